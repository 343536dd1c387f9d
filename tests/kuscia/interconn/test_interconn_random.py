"""Random graphs, failures, cuts, deaths and restarts: both sides always end in the phase that the rules give."""

from __future__ import annotations

from random import Random

import pytest
from interconn_kit import Network, network
from job_world import JOB, a_job, a_task, by_task


def expected(tasks: list[tuple[str, list[str], bool]], bad: set[str]) -> str:
    """`tasks` in an order in which each comes after those it waits for: (alias, waits for, tolerable)."""
    dead: set[str] = set()
    lost = False
    for alias, after, tolerable in tasks:
        if alias in bad or not dead.isdisjoint(after):
            dead.add(alias)
            lost |= not tolerable
    return "Failed" if lost else "Succeeded"


async def disturb(net: Network, random: Random) -> None:
    match random.randrange(4):
        case 0:
            net.cut("bob", "alice")
            await net.settle(random.uniform(0.2, 20))
            net.cut("bob", "alice", down=False)
        case 1 | 2:
            plane = net[random.choice(("alice", "bob"))]
            await plane.stop()
            await plane.start()
        case _:
            await net.settle(random.uniform(0.2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_both_sides_end_as_the_rules_say(seed: int) -> None:
    random = Random(seed)
    names = [f"t{number}" for number in range(random.randrange(2, 7))]
    tasks = [
        (name, random.sample(names[:place], random.randrange(min(place, 2) + 1)), random.random() < 0.3)
        for place, name in enumerate(names)
    ]
    bad = {name for name in names if random.random() < 0.25}
    parties = {name: random.choice((("alice", "bob"), ("alice", "bob"), ("bob",), ("alice",))) for name in names}
    parties[names[0]] = ("alice", "bob")  # so that a partner takes part at all
    blame = {f"{name}_{random.choice(parties[name])}": "Failed" for name in bad}
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(**blame)
        job = a_job(
            *(a_task(name, *after, parties=parties[name], tolerable=tolerable) for name, after, tolerable in tasks),
            scheduleMode=random.choice(("Strict", "BestEffort")),
            maxParallelism=random.randrange(1, 4),
        )
        await net["alice"].client.create(JOB, job)
        for _ in range(random.randrange(5)):
            await disturb(net, random)
        version = 0
        if random.random() < 0.5:

            async def taken_up() -> bool:
                return bool(await net["bob"].list(JOB, "cross-domain"))

            await net.until(taken_up)
            version = 1
            await net["bob"].order("Suspend", version, trigger="bob")
            await net.settle(random.uniform(0.2, 5))
            version += 1
            await net["alice"].order("Restart", version)
        await net.until_phase(expected(tasks, bad), seconds=300)
        await net.until_clean()
