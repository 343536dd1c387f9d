"""A load generator: N kept-alive TLS connections, each with one request under way, in a process of its own.

It does as little as it can (no HTTP library, one search for the end of the head), because it must be faster than what it
measures: about 10 µs for a request, so that one core loads one core. The specification comes as JSON on stdin, the result
goes as JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.node import Identity, cpu_of
from benchmarks.objects import NAME_DIGITS

_LENGTH = b"\r\ncontent-length: "
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Load:
    port: int
    identity: Identity | None
    """None: plain text."""
    connections: int
    method: str
    path: str
    accept: str = "application/json"
    body_before: str = ""
    body_after: str = ""
    """With a body, each request carries the next number between the two halves."""
    first: int = 0
    """The first number."""
    count: int = 0
    """Requests to send; 0: for `seconds`."""
    seconds: float = 0.0
    pids: tuple[int, ...] = ()
    """Whose CPU time is measured, all of them together."""
    core: int = 0
    address: str = "127.0.0.1"
    host: str = "localhost"
    """The name in the request."""
    headers: str = ""
    """Further lines of the head, each with its end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    requests: int
    seconds: float
    p50: float
    p99: float
    """Milliseconds."""
    bytes: int
    """Size of the last answer."""
    refused: int
    refusal: str
    cpu: float
    """Microseconds of the server's CPU time for one request; opening the connections is left out."""
    own_cpu: float
    """The same of the generator: it must be faster than what it measures."""

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class _Run:
    """What the connections of one run share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent = 0
        self.latencies: list[float] = []
        self.refused = 0
        self.refusal = ""
        self.size = 0
        self.deadline = float("inf")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = load.connections
        before, after = load.body_before.encode(), load.body_after.encode()
        self._after = after
        head = (
            f"{load.method} {load.path} HTTP/1.1\r\nHost: {load.host}\r\nUser-Agent: bench\r\nAccept: {load.accept}\r\n"
        )
        head += load.headers
        if before:
            size = len(before) + NAME_DIGITS + len(after)
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        self._before = head.encode() + b"\r\n" + before
        self._numbered = bool(before)

    def next(self) -> bytes | None:
        """The next request; None when the run is over."""
        load = self.load
        if (load.count and self.sent >= load.count) or time.perf_counter() >= self.deadline:
            return None
        number = load.first + self.sent
        self.sent += 1
        return b"%b%0*d%b" % (self._before, NAME_DIGITS, number, self._after) if self._numbered else self._before

    def closed(self) -> None:
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(None)

    def failed(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(why))


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._missing = 0
        self._head = b""
        self._tail = b""
        """The last bytes of a body in chunks; empty outside of one."""
        self._sent_at = 0.0
        self._over = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        request = self._run.next()
        if request is None:
            self._over = True
            self._transport.close()
            self._run.closed()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._tail:
            self._chunks(data)
            return
        if self._missing:
            self._missing -= len(data)
        else:
            if self._head:
                data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            # Our API writes the name in the usual way, Envoy in small letters.
            run = self._run
            at = data[:end].lower().find(_LENGTH)
            if at < 0:  # long lists come in chunks
                run.size = 0
                self._tail = b"\n"
                self._chunks(data[end + 2 :])
                return
            at += len(_LENGTH)
            stop = data.find(b"\r", at)
            size = int(data[at:stop])
            run.size = size
            if data[9:10] != b"2":
                run.refused += 1
                run.refusal = data[:600].decode(errors="replace")
            self._missing = end + 4 + size - len(data)
        if self._missing == 0:
            self._run.latencies.append(time.perf_counter() - self._sent_at)
            self.begin()

    def _chunks(self, data: bytes) -> None:
        """Only the end is looked for: our objects, as JSON, never have it inside."""
        self._run.size += len(data)
        self._tail = (self._tail + data[-len(_LAST_CHUNK) :])[-len(_LAST_CHUNK) :]
        if self._tail == _LAST_CHUNK:
            self._tail = b""
            self._run.latencies.append(time.perf_counter() - self._sent_at)
            self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over:
            self._run.failed(f"the server closed a connection: {exc}")


def _cpu(load: Load) -> float:
    return sum(cpu_of(pid) for pid in load.pids)


async def generate(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    run = _Run(load)
    tls = load.identity.tls() if load.identity is not None else None
    name = "localhost" if tls is not None else None
    connections = []
    for _ in range(load.connections):
        _, connection = await loop.create_connection(
            lambda: _Connection(run), load.address, load.port, ssl=tls, server_hostname=name
        )
        connections.append(connection)
    own_cpu, cpu = time.process_time(), _cpu(load)
    began = time.perf_counter()
    if load.seconds:
        run.deadline = began + load.seconds
    for connection in connections:
        connection.begin()
    await run.done
    seconds = time.perf_counter() - began
    own_cpu, cpu = time.process_time() - own_cpu, _cpu(load) - cpu
    ordered = sorted(run.latencies)
    count = len(ordered)
    return Outcome(
        requests=count,
        seconds=seconds,
        p50=ordered[count // 2] * 1e3,
        p99=ordered[count * 99 // 100] * 1e3,
        bytes=run.size,
        refused=run.refused,
        refusal=run.refusal,
        cpu=cpu / count * 1e6,
        own_cpu=own_cpu / count * 1e6,
    )


def run(load: Load, prefix: Sequence[str] = ()) -> Outcome:
    """Run the generator in a child process and take its result. `prefix`: comes before the interpreter."""
    outcome = Outcome(**child("benchmarks.load", asdict(load), prefix))
    if outcome.refused:
        raise RuntimeError(f"{outcome.refused} of {outcome.requests} requests were refused: {outcome.refusal}")
    return outcome


def child(module: str, specification: dict[str, object], prefix: Sequence[str] = ()) -> dict[str, Any]:
    finished = subprocess.run(
        [*prefix, sys.executable, "-m", module],
        input=json.dumps(specification).encode(),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        check=True,
    )
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def main() -> None:
    specification = json.load(sys.stdin)
    own = specification["identity"]
    load = Load(**{**specification, "identity": Identity(**own) if own is not None else None})
    os.sched_setaffinity(0, {load.core})
    print(json.dumps(asdict(uvloop.run(generate(load)))))


if __name__ == "__main__":
    main()
