"""The message queue of engines beside plain HTTP: messages and bytes per second, in one run on one server core.

    python -m benchmarks.bench_transport [SECONDS]

A message of the queue is two calls, a push and a pop; of plain HTTP it is one, to a server of the same kind that drops the body. Gateways
are left out: `gateway` has them. Client and server are one process each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.measures import Bench
from benchmarks.node import cpu_of
from benchmarks.table import Row
from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.calls import CHANNEL
from coterie.kuscia.transport.outbound import Outbound
from coterie.kuscia.transport.server import TransportServer
from coterie.kuscia.transport.settings import ENGINES, PARTNERS, QueueLimits

PLAIN = "plain"
SMALL, LARGE = 1000, 4 << 20
CALLERS, LARGE_CALLERS = 32, 4
_WAKE_UPS = 200
_SUCCESS = outbound.encode(Outbound())
_TAIL = len(_SUCCESS)
Step = Callable[["Caller", bytes], Awaitable[None]]


# ---- server ----


async def serve(folder: Path) -> None:
    async def parties_of(_: str) -> frozenset[str]:
        return frozenset({"bob"})

    async def needed() -> None:
        pass

    async def drop(_: Request) -> Response:
        return Response(200, b"", "text/plain")

    queue = TransportServer("alice", QueueLimits(), folder, parties_of, SYSTEM_CLOCK, needed, 3600.0)
    plain = HttpServer(drop, limits=HttpLimits(max_body=128 << 20))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await plain.serve(private_socket(folder / PLAIN))
    await queue.serve({name: private_socket(folder / name) for name in (ENGINES, PARTNERS)})
    print("ready", flush=True)
    await stop.wait()
    await queue.stop()
    await plain.stop()


# ---- client ----


class Answers(asyncio.BufferedProtocol):
    """Reads answers into one buffer, so that what is measured is the server: the first and last bytes of each are kept, the others counted."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 18)
        self._view = memoryview(self._buffer)
        self._head = b""
        self._left = -1
        self._size = 0
        self._ends = b""
        self.waiting: asyncio.Future[tuple[int, bytes]] | None = None
        """For the length of the next answer, and its last bytes."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        if self._left < 0:
            self._head += self._buffer[:nbytes]
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, at = self._head[:end].lower(), nbytes - (len(self._head) - end - 4)
            assert head.startswith(b"http/1.1 200"), head
            self._size = self._left = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self._head = self._ends = b""
        self._left -= nbytes - at
        self._ends = (self._ends + self._view[max(at, nbytes - _TAIL) : nbytes])[-_TAIL:]
        if not self._left:
            self._left = -1
            assert self.waiting is not None
            self.waiting.set_result((self._size, self._ends))


class Caller:
    """One connection to each socket."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._links: dict[str, tuple[asyncio.WriteTransport, Answers]] = {}
        self._head = (
            f"host: queue\r\nkuscia-source: bob\r\nx-ptp-session-id: t{number}\r\nx-ptp-topic: m\r\n"
            "x-ptp-source-node-id: bob\r\nx-ptp-target-node-id: bob\r\n"
        )

    async def post(self, where: str, action: str, body: bytes = b"") -> tuple[int, bytes]:
        """The length of the answer, and its last bytes."""
        loop = asyncio.get_running_loop()
        if where not in self._links:
            self._links[where] = await loop.create_unix_connection(Answers, str(self._folder / where))
        transport, answers = self._links[where]
        answers.waiting = loop.create_future()
        transport.write(f"POST {CHANNEL}{action} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n".encode())
        transport.write(body)
        return await answers.waiting

    def close(self) -> None:
        for transport, _ in self._links.values():
            transport.close()


async def through_queue(caller: Caller, body: bytes) -> None:
    size, code = await caller.post(PARTNERS, "invoke", body)
    assert size == len(_SUCCESS) and code == _SUCCESS, code
    size, code = await caller.post(ENGINES, "pop")
    assert size > len(body) + len(_SUCCESS) and code.endswith(_SUCCESS), code


async def plainly(caller: Caller, body: bytes) -> None:
    await caller.post(PLAIN, "invoke", body)


async def rate(folder: Path, server: int, step: Step, callers: int, size: int, seconds: float) -> tuple[float, float]:
    """Messages per second, and the server's CPU time for one in microseconds."""
    made = [Caller(folder, number) for number in range(callers)]
    body, done = bytes(size), 0
    end = time.perf_counter() + seconds

    async def run(caller: Caller) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await step(caller, body)
            done += 1

    began, cpu = time.perf_counter(), cpu_of(server)
    try:
        await asyncio.gather(*map(run, made))
        return done / (time.perf_counter() - began), (cpu_of(server) - cpu) / done * 1e6
    finally:
        for each in made:
            each.close()


async def wake_up(folder: Path, count: int) -> float:
    """Median milliseconds from a push until somebody who waited has the message."""
    pusher, popper = Caller(folder, 0), Caller(folder, 0)
    delays: list[float] = []
    try:
        for _ in range(count):
            waiting = asyncio.ensure_future(popper.post(ENGINES, "pop"))
            await asyncio.sleep(0.001)
            before = time.perf_counter()
            pushing = asyncio.ensure_future(pusher.post(PARTNERS, "invoke", bytes(SMALL)))
            await waiting
            delays.append(time.perf_counter() - before)
            await pushing
    finally:
        pusher.close()
        popper.close()
    return median(delays) * 1000


async def measure(folder: Path, server: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for name, step in (
        ("plain HTTP: messages of {} posted", plainly),
        ("message queue: messages of {} pushed and popped", through_queue),
    ):
        small, cpu = await rate(folder, server, step, CALLERS, SMALL, seconds)
        rows.append(Row(f"{name.format('1 kB')}, {CALLERS} at once", small, "/s", cpu))
        large, cpu = await rate(folder, server, step, LARGE_CALLERS, LARGE, seconds)
        rows.append(Row(f"{name.format('4 MiB')}, {LARGE_CALLERS} at once", large * LARGE / 1e9, "GB/s", cpu))
    waited = await wake_up(folder, _WAKE_UPS)
    return [*rows, Row("message queue: from push to a waiting pop", waited, "ms", lower_is_better=True)]


def transport(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="queue-") as place:  # not in the run's folder: paths of sockets are short
        return run(Path(place), bench.plan.seconds, bench.cores.server)


def run(folder: Path, seconds: float, core: int | None = None) -> list[Row]:
    command = [sys.executable, "-m", "benchmarks.bench_transport", "--serve", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "ready\n", "the server did not start"
        if core is not None:
            os.sched_setaffinity(server.pid, {core})
        return asyncio.run(measure(folder, server.pid, seconds))
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--serve"]:
        uvloop.run(serve(Path(arguments[1])))  # as the queue's process does
        return
    with tempfile.TemporaryDirectory() as place:
        for row in run(Path(place), float(arguments[0]) if arguments else 3.0):
            print(f"{row.what:<60} {row.value:>12,.4g} {row.unit:<5} CPU {row.cpu or 0:,.0f} µs")


if __name__ == "__main__":
    main(sys.argv[1:])
