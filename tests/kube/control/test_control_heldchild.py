"""Doors of a child that is slow to serve, gone again, or in the way of too many."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK, Clock, VirtualClock
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kube.control import on_demand_process
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY, USED, private_socket
from coterie.kube.control.on_demand_process import OnDemandProcess, OnDemandProcessSpec


class Nobody:
    async def send(self, call: TransportRequest) -> TransportResponse:
        raise AssertionError(f"nobody asks for {call.path}")

    async def close(self) -> None:
        return


@asynccontextmanager
async def held(
    directory: Path, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[tuple[OnDemandProcess, OnDemandProcessSpec]]:
    """One door that is a socket. The child does nothing; tests play its part."""
    (directory / "idler.py").write_text("import signal\nsignal.pause()\n")
    plan = OnDemandProcessSpec(
        "child", "a child", "idler", {}, (), directory / "api.sock", directory / "log",
        {directory / "door.sock": directory / "served.sock"}, {"PYTHONPATH": str(directory)},
    )  # fmt: skip
    made = OnDemandProcess(plan, Nobody(), lambda *_: False, clock)
    running = asyncio.create_task(made.run())
    await made.open.wait()
    try:
        yield made, plan
    finally:
        made.stop()
        await running


async def serves(plan: OnDemandProcessSpec) -> None:
    transport = child_transport(plan.api)
    await notify_parent(transport, READY)
    await transport.close()


async def ended(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """What comes until it ends."""
    reader, writer = connection
    try:
        async with asyncio.timeout(20):
            return await reader.read()
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


async def test_who_comes_by_when_the_child_is_gone_again_is_sent_away_and_the_next_is_served(tmp_path: Path) -> None:
    async with held(tmp_path) as (_, plan):
        door = str(next(iter(plan.sockets)))
        await serves(plan)  # and is gone: nobody listens at its socket
        for _ in range(5):
            assert await ended(await asyncio.open_unix_connection(door)) == b""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(4) * 100_000)
            writer.close()

        async with await asyncio.start_unix_server(answer, plan.sockets[Path(door)]):
            await serves(plan)
            connection = await asyncio.open_unix_connection(door)
            connection[1].write(b"ping")
            assert await ended(connection) == b"ping" * 100_000


async def test_only_so_many_wait_for_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand_process, "_MOST_WAITING", 2)
    async with held(tmp_path) as (_, plan):
        door = str(next(iter(plan.sockets)))
        waiting = [await asyncio.open_unix_connection(door) for _ in range(3)]
        assert await ended(waiting.pop()) == b""
        await serves(plan)
        assert [await ended(each) for each in waiting] == [b"", b""]


async def test_a_moment_without_descriptors_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand_process, "_BREATH", 0.0)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "too many open files")]

    async def scarce(bound: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return await accept(bound)

    monkeypatch.setattr(loop, "sock_accept", scarce)
    async with held(tmp_path) as (_, plan):
        connection = await asyncio.open_unix_connection(str(next(iter(plan.sockets))))
        await serves(plan)
        assert await ended(connection) == b""
        assert not failures


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not question():
            await asyncio.sleep(0.01)


async def test_a_child_that_nobody_called_ends_soon_and_one_that_was_called_stays(tmp_path: Path) -> None:
    clock = VirtualClock()
    soon = on_demand_process.UNUSED + 2 * on_demand_process._POLL_SECONDS
    async with held(tmp_path, clock) as (made, plan):
        made.need()
        await until(lambda: made.pid is not None)
        await clock.advance(soon)
        await until(lambda: made.pid is None)
        made.need()
        await until(lambda: made.pid is not None)
        transport = child_transport(plan.api)
        await notify_parent(transport, USED)
        await transport.close()
        await clock.advance(soon)
        assert made.pid is not None
        await clock.advance(on_demand_process.IDLE)
        await until(lambda: made.pid is None)
