"""Listeners of a child that sleeps, serves, ends and dies."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coterie.base import listener_handover
from coterie.base.clock import SYSTEM_CLOCK, Clock, VirtualClock
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kube.control import on_demand_process
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import USED, private_socket
from coterie.kube.control.on_demand_process import HeldListener, OnDemandProcess, OnDemandProcessSpec


class Nobody:
    async def send(self, call: TransportRequest) -> TransportResponse:
        raise AssertionError(f"nobody asks for {call.path}")

    async def close(self) -> None:
        return


_CHILD = """
import os, pathlib, selectors, signal, socket, sys, time
here = pathlib.Path(__file__).parent
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
serving = selectors.DefaultSelector()
for pair in options["--listeners"].split(","):
    bound = socket.socket(fileno=int(pair.partition("=")[2]))
    serving.register(bound, selectors.EVENT_READ, "held")
    if bound.family == socket.AF_INET6 and (here / "beside").exists():
        own = socket.socket(socket.AF_INET6)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind(bound.getsockname())
        own.listen()
        serving.register(own, selectors.EVENT_READ, "own")
own_count = 0

def end(*_):
    (here / "ending").touch()
    while (here / "slow").exists():
        time.sleep(0.01)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
with socket.socket(socket.AF_UNIX) as node:
    node.connect(options["--api"])
    node.sendall(b"POST /ready HTTP/1.1\\r\\nHost: node\\r\\nContent-Length: 0\\r\\n\\r\\n")
    node.recv(1000)
while True:
    for key, _ in serving.select():
        if key.data == "echo":
            if data := key.fileobj.recv(1000):
                key.fileobj.sendall(data)
                continue
            serving.unregister(key.fileobj)
            key.fileobj.close()
            continue
        if key.data == "own":
            own_count += 1
            (here / "beside").write_text(str(own_count))
        connection = key.fileobj.accept()[0]
        connection.setblocking(True)
        serving.register(connection, selectors.EVENT_READ, "echo")
"""


def made_of(directory: Path, clock: Clock, port: HeldListener | None = None) -> OnDemandProcess:
    (directory / "echo_child.py").write_text(_CHILD)
    plan = OnDemandProcessSpec(
        "child", "a child", "echo_child", {},
        [port or HeldListener.port("port", "127.0.0.1", 0), HeldListener.unix("unix", directory / "held.sock")],
        directory / "api.sock", directory / "log", {"PYTHONPATH": str(directory)},
    )  # fmt: skip
    return OnDemandProcess(plan, Nobody(), lambda *_: False, clock)


@asynccontextmanager
async def held(
    directory: Path, clock: Clock = SYSTEM_CLOCK, port: HeldListener | None = None
) -> AsyncIterator[tuple[OnDemandProcess, tuple[str, int]]]:
    """A child that echoes on a port and on a Unix socket, and the address of the port."""
    made = made_of(directory, clock, port)
    running = asyncio.create_task(made.run())
    await made.open.wait()
    try:
        yield made, ("127.0.0.1", made._held["port"].getsockname()[1])
    finally:
        made.stop()
        await running


async def echoed(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"ping")
    try:
        return await asyncio.wait_for(reader.readexactly(4), 20)
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_private_socket_is_so_from_its_first_moment_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with private_socket(tmp_path / "s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


async def test_connections_wait_for_a_child_and_it_serves_them_all(tmp_path: Path) -> None:
    async with held(tmp_path) as (made, address):
        assert made.pid is None
        waiting = [await asyncio.open_connection(*address) for _ in range(40)]
        unix = await asyncio.open_unix_connection(tmp_path / "held.sock")
        for reader, writer in (*waiting, unix):
            writer.write(b"ping")
            assert await asyncio.wait_for(reader.readexactly(4), 20) == b"ping"
            writer.close()
            await writer.wait_closed()
        assert made.pid is not None


async def test_a_child_that_dies_leaves_the_backlog_to_the_next(tmp_path: Path) -> None:
    async with held(tmp_path) as (made, address):
        assert await echoed(address) == b"ping"
        for _ in range(3):
            before = made.pid
            assert before is not None
            os.kill(before, signal.SIGSTOP)  # it accepts no more
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"late")
            os.kill(before, signal.SIGKILL)
            assert await asyncio.wait_for(reader.readexactly(4), 20) == b"late"
            writer.close()
            await writer.wait_closed()
            assert made.pid != before


async def test_who_connects_while_the_child_ends_wakes_the_next(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with held(tmp_path, clock) as (made, address):
        assert await echoed(address) == b"ping"
        first = made.pid
        (tmp_path / "slow").touch()  # to end
        await clock.advance(on_demand_process.IDLE + 2 * on_demand_process._POLL_SECONDS)
        await until(lambda: (tmp_path / "ending").exists())
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"late")
        (tmp_path / "slow").unlink()
        assert await asyncio.wait_for(reader.readexactly(4), 20) == b"late"
        writer.close()
        await writer.wait_closed()
        assert made.pid not in (None, first)


async def test_the_node_does_not_look_at_a_listener_that_a_child_serves(tmp_path: Path) -> None:
    async with held(tmp_path) as (made, address):
        loop = asyncio.get_running_loop()
        assert await echoed(address) == b"ping"
        assert not any(loop.remove_reader(each) for each in made._held.values())


async def test_sockets_and_ports_are_free_in_the_end(tmp_path: Path) -> None:
    async with held(tmp_path) as (_, address):
        assert await echoed(address) == b"ping"
    assert not (tmp_path / "held.sock").exists()
    listener_handover.listen(*address, wait=0).close()
    left = made_of(tmp_path, SYSTEM_CLOCK)  # never run
    port = left._held["port"].getsockname()[1]
    left.release()
    assert not (tmp_path / "held.sock").exists()
    listener_handover.listen("127.0.0.1", port, wait=0).close()


async def test_a_listener_that_cannot_be_had_closes_the_others(tmp_path: Path) -> None:
    opened: list[socket.socket] = []

    def first() -> socket.socket:
        opened.append(listener_handover.listen("127.0.0.1", 0))
        return opened[0]

    def second() -> socket.socket:
        raise OSError(errno.EADDRINUSE, "taken")

    plan = OnDemandProcessSpec(
        "child", "a child", "echo_child", {}, [HeldListener("a", first), HeldListener("b", second)],
        tmp_path / "api.sock", tmp_path / "log",
    )  # fmt: skip
    with pytest.raises(OSError, match="taken"):
        OnDemandProcess(plan, Nobody(), lambda *_: False, SYSTEM_CLOCK)
    assert opened[0].fileno() == -1


async def test_a_child_in_the_shared_mode_serves_early_and_later_connections(tmp_path: Path) -> None:
    """It opens the port beside the held one; who came before is in the backlog of the held one."""
    shared = HeldListener.shared_port("port", "127.0.0.1", 0, listener_handover.listen_shared)
    (tmp_path / "beside").touch()
    async with held(tmp_path, port=shared) as (_, address):
        assert await echoed(address) == b"ping"
        assert await echoed(address) == b"ping"
        assert (tmp_path / "beside").read_text() == "1"  # connections that came to its own


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not question():
            await asyncio.sleep(0.01)


async def test_a_child_that_nobody_called_ends_soon_and_one_that_was_called_stays(tmp_path: Path) -> None:
    clock = VirtualClock()
    soon = on_demand_process.UNUSED + 2 * on_demand_process._POLL_SECONDS
    async with held(tmp_path, clock) as (made, _):
        made.need()
        await until(lambda: made.pid is not None)
        await clock.advance(soon)
        await until(lambda: made.pid is None)
        made.need()
        await until(lambda: made.pid is not None)
        transport = child_transport(tmp_path / "api.sock")
        await notify_parent(transport, USED)
        await transport.close()
        await clock.advance(soon)
        assert made.pid is not None
        await clock.advance(on_demand_process.IDLE)
        await until(lambda: made.pid is None)
