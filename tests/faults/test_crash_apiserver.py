"""`kill -9` of the server, fifty times, under load: what it acknowledged is there, and watches go on where they were."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from random import Random

import pytest
from crash_model import (
    CONFIGMAPS,
    MARK,
    NAMESPACE,
    Follower,
    Ledger,
    Listener,
    Writer,
    list_when_up,
    name_of,
    until_equal,
)
from fault_server import FaultServer

from coterie.kube.client.informer import Informer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("crash"), pytest.mark.timeout(400)]

KILLS = 50
WRITERS = 8
SEED = 20261


async def test_nothing_acknowledged_is_lost_over_fifty_kills(tmp_path: Path) -> None:
    random = Random(SEED)
    server = FaultServer(tmp_path)
    await server.start()
    ledger, stop = Ledger(), asyncio.Event()
    clients = [server.client() for _ in range(WRITERS + 4)]
    writers = [Writer(n, clients[n], ledger, Random(SEED + n), stop) for n in range(WRITERS)]
    followers = [
        Follower("follower of all", clients[-1], ledger),
        Follower("follower of one side", clients[-2], ledger, labels=f"{MARK},side=left"),
        Follower("follower that is ended each second", clients[-3], ledger, timeout=1),
    ]
    listener = Listener(ledger)
    informer = Informer(clients[-4], CONFIGMAPS, namespace=NAMESPACE, labels=MARK)
    informer.add_handler(listener.heard)
    began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(part.run()) for part in (*followers, informer)]
            writing = [tasks.create_task(writer.run()) for writer in writers]
            await _kill_again_and_again(server, random)
            stop.set()
            await asyncio.gather(*writing)
            await _compare(server, ledger, writers, followers, informer, listener)
            for task in following:
                task.cancel()
        acknowledged = sum(writer.acknowledged for writer in writers)
        cut = sum(writer.cut for writer in writers)
        print(
            f"\n{KILLS} kills in {time.monotonic() - began:.0f} s: {acknowledged} acknowledged writes, {cut} cut off, "
            f"{sum(f.replay.events for f in followers)} events, {sum(f.resumed for f in followers)} watches"
        )
        # The test would prove little if the server had idled, or if no request had met a kill.
        assert acknowledged > KILLS * WRITERS
        assert cut > KILLS // 2
        assert all(follower.resumed >= KILLS // 2 for follower in followers)
        assert followers[2].bookmarks
        assert informer.restarts == 0, "the informer had to list again, though its version was not too old"
        status, _ = server.terminate()
        assert status == 0
        await _compare_after_clean_start(server, writers)
        assert "Traceback" not in server.log()
    finally:
        server.kill()
        await asyncio.gather(*(client.close() for client in clients))


async def _kill_again_and_again(server: FaultServer, random: Random) -> None:
    await asyncio.sleep(1.0)
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0.05, 0.6))
        server.kill()
        server.spawn()
        if random.random() < 0.15:
            # Not even started: recovery itself is cut short. It does not count as one of the fifty.
            await asyncio.sleep(random.uniform(0.1, 0.7))
            server.kill()
            server.spawn()
        await server.ready()


async def _compare(
    server: FaultServer,
    ledger: Ledger,
    writers: list[Writer],
    followers: list[Follower],
    informer: Informer[dict[str, object]],
    listener: Listener,
) -> None:
    """Model, server, watchers and informer agree, object by object and byte by byte."""
    client = server.client()
    try:
        listed, version = await list_when_up(client)
        model = {name: obj for writer in writers for name, obj in writer.state.items()}
        assert listed == model
        left, _ = await list_when_up(client, f"{MARK},side=left")
        # Every follower reaches the last change by an event, or by resuming; nothing more is being written.
        newest = max(max(follower.replay.newest.values(), default=0) for follower in followers)
        for follower in followers:
            expected = left if "one side" in follower.replay.who else listed
            await until_equal(lambda who=follower: who.replay.state, expected)
        assert newest <= version
        await until_equal(lambda: {name_of(obj): obj for obj in informer.cache}, listed)
        assert listener.state == listed
        assert max(ledger.seen) <= version
    finally:
        await client.close()


async def _compare_after_clean_start(server: FaultServer, writers: list[Writer]) -> None:
    with sqlite3.connect(server.database) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    await server.start()
    client = server.client()
    try:
        listed, _ = await list_when_up(client)
    finally:
        await client.close()
    assert listed == {name: obj for writer in writers for name, obj in writer.state.items()}
