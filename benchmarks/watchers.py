"""How long after a write do N watchers hear of it? One process holds them all and writes too, so that it has one clock.

The moment of writing stands in the object; the delay ends when the event's bytes are read. So it contains the write itself,
the disk, the fan-out, and this process's own reading: what a program beside a thousand others would see.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from benchmarks.load import child
from benchmarks.node import Identity, cpu_of
from benchmarks.objects import configmap

PATH = "/api/v1/namespaces/default/configmaps"
_STAMP = b'"written-at":"'
_DIGITS = 20
_PATIENCE = 6000
"""Times 5 ms: how long the last deliveries may take."""


@dataclass(frozen=True, slots=True)
class Watching:
    port: int
    identity: Identity
    watchers: int
    creates: int
    pace: float
    """Seconds between two creates; 0: each as soon as the one before is acknowledged."""
    label: str
    """Makes the objects of this run its own."""
    pid: int
    """The server's."""
    core: int = 0


@dataclass(frozen=True, slots=True)
class Delays:
    deliveries: int
    p50: float
    p99: float
    """Milliseconds."""
    seconds: float
    cpu: float
    """Microseconds of the server's CPU time for one delivery; opening the watches is left out."""


class _Watcher(asyncio.Protocol):
    def __init__(self, delays: list[float], label: str) -> None:
        self._delays = delays
        self._label = label
        self._tail = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        label = self._label
        self.transport.write(
            f"GET {PATH}?watch=true&labelSelector=bench%3D{label} HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        if not self.opened.done():
            self.opened.set_result(None)
        if self._tail:
            data = self._tail + data
        at = 0
        while True:
            found = data.find(_STAMP, at)
            if found < 0:
                break
            start = found + len(_STAMP)
            if len(data) < start + _DIGITS:
                at = found
                break
            self._delays.append((now - int(data[start : start + _DIGITS])) / 1e6)
            at = start + _DIGITS
        # A stamp may be cut in two; what lies before it is done with.
        self._tail = data[max(at, len(data) - len(_STAMP) - _DIGITS) :] if at < len(data) else b""


class _Creator(asyncio.Protocol):
    def __init__(self) -> None:
        self._answered: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(data)

    async def create(self, name: str, label: str) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        obj = configmap(name, **{"written-at": f"{time.perf_counter_ns():0{_DIGITS}d}"})
        obj["metadata"]["labels"] = {"bench": label}
        body = json.dumps(obj, separators=(",", ":"))
        self.transport.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = await self._answered
        if not answer.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(answer[:600].decode(errors="replace"))


async def watch(spec: Watching) -> Delays:
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    tls = spec.identity.tls()
    watchers = []
    for _ in range(spec.watchers):
        _, watcher = await loop.create_connection(
            lambda: _Watcher(delays, spec.label), "127.0.0.1", spec.port, ssl=tls, server_hostname="localhost"
        )
        watchers.append(watcher)
    for watcher in watchers:
        await watcher.opened
    _, creator = await loop.create_connection(_Creator, "127.0.0.1", spec.port, ssl=tls, server_hostname="localhost")
    cpu, began = cpu_of(spec.pid), time.perf_counter()
    for number in range(spec.creates):
        due = began + number * spec.pace
        if spec.pace and due > time.perf_counter():
            await asyncio.sleep(due - time.perf_counter())
        await creator.create(f"{spec.label}-{number}", spec.label)
    expected = spec.creates * spec.watchers
    for _ in range(_PATIENCE):
        if len(delays) >= expected:
            break
        await asyncio.sleep(0.005)
    seconds, cpu = time.perf_counter() - began, cpu_of(spec.pid) - cpu
    if len(delays) != expected:
        raise RuntimeError(f"{len(delays)} deliveries of {expected} arrived")
    delays.sort()
    for watcher in watchers:
        watcher.transport.abort()
    creator.transport.abort()
    return Delays(expected, delays[expected // 2], delays[expected * 99 // 100], seconds, cpu / expected * 1e6)


def run(spec: Watching) -> Delays:
    return Delays(**child("benchmarks.watchers", asdict(spec)))


def main() -> None:
    specification = json.load(sys.stdin)
    spec = Watching(**{**specification, "identity": Identity(**specification["identity"])})
    os.sched_setaffinity(0, {spec.core})
    print(json.dumps(asdict(uvloop.run(watch(spec)))))


if __name__ == "__main__":
    main()
