"""Real processes that are killed while calls run through a chain of three actions: each call is answered, with the answer of one run.

The number of calls is COTERIE_KILL_CALLS. tests/e2e/test_e2e_functions_kills.py does it on a whole node, `make functions-kills` with 10,000 calls.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
from kill_kit import KilledFunctions

from coterie.functions.bus.embedded import EmbeddedBus
from coterie.functions.messages import MONITOR_TOPIC, RESULTS_TOPIC, CallRecord
from coterie.http.plain_client import Pool

CALLS = int(os.environ.get("COTERIE_KILL_CALLS", "60"))
EVERY = int(os.environ.get("COTERIE_KILL_EVERY", "8"))
"""Answers between two kills: so it is the same on slow machines."""


async def test_killed_processes_lose_no_call_and_answer_none_twice(tmp_path: Path) -> None:
    world = KilledFunctions(tmp_path)
    pools = [Pool(("127.0.0.1", port)) for port in world.http_ports]
    try:
        status, body, _ = await world.call(pools, 0)
        assert (status, body) == (200, b"answer 0"), (tmp_path / "host.log").read_text()
        limit = asyncio.Semaphore(12)
        random = Random(5)
        answered = 0

        async def one(number: int) -> tuple[int, bytes, int]:
            nonlocal answered
            async with limit:
                answer = await world.call(pools, number)
                answered += 1
                if answered % EVERY == 0:
                    await world.kill_one(random)
                return answer

        answers = await asyncio.gather(*[one(number) for number in range(1, CALLS)])
        problems = [
            (number, answer) for number, answer in enumerate(answers, 1)
            if answer[:2] != (200, f"answer {number}".encode())
        ]  # fmt: skip
        assert not problems, problems[:5]
        assert world.host.kills + sum(each.kills for each in (*world.gateways, *world.actors)) >= 3
    finally:
        for pool in pools:
            await pool.close()
        world.end()
    await check_bus(tmp_path)
    for name in ("first", "second", "third"):
        effects = Counter(world.effects(name).read_text().split())
        assert len(effects) == CALLS, "each call was run, under one id however often"


async def check_bus(folder: Path) -> None:
    bus = await EmbeddedBus.open(folder / "bus.db")
    try:
        results: Counter[str] = Counter()
        for partition in range(6):
            results.update(each.key for each in await bus.read(RESULTS_TOPIC, partition, 0, 1_000_000))
        assert len(results) == CALLS and set(results.values()) == {1}, "one result for each call"
        records: Counter[str] = Counter()
        for partition in range(6):
            for each in await bus.read(MONITOR_TOPIC, partition, 0, 1_000_000):
                records[msgspec.json.decode(each.value, type=CallRecord).action] += 1
        assert records == {"first": CALLS, "second": CALLS, "third": CALLS}
    finally:
        await bus.close()
    with sqlite3.connect(folder / "results.db") as index:
        index.execute("SELECT count(*) FROM results").fetchone()
    index.close()
