"""Programs that the tests of the bus run in a process of their own: one is killed, one gets no more disk."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

from bus_suite import entry, read_values

from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import BusError, Commit, Entry


async def publish_until_killed(path: Path, url: str = "embedded") -> None:
    """Prints what was acknowledged."""
    bus = await open_bus(url, path)
    await bus.create_topic("a", 2)
    await bus.create_topic("b", 3)

    async def publisher(number: int) -> None:
        for step in range(100_000):
            value = f"{number}/{step}"
            await bus.publish([entry("a", value), entry("b", value)], [Commit(f"g{number}", "a", 0, step)])
            print(value, flush=True)

    await asyncio.gather(*(publisher(number) for number in range(8)))


async def fill_disk(path: Path) -> None:
    """Files cannot grow over a limit: what a full disk looks like, for this process alone."""
    bus = await open_bus("embedded", path)
    await bus.create_topic("a", 1)
    await bus.create_topic("b", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    acknowledged = []
    failure = None
    for number in range(200):
        try:
            await bus.publish(
                [entry("a", str(number)), Entry("b", "", os.urandom(50_000))], [Commit("g", "a", 0, number)]
            )
            acknowledged.append(str(number))
        except BusError as error:
            failure = str(error)
            break
    assert failure is not None and "did not reach the disk" in failure and str(path) in failure, failure
    assert await read_values(bus, "a") == acknowledged and len(acknowledged) > 10
    for _ in range(3):
        try:
            await bus.publish([Entry("b", "", bytes(1 << 20))])
        except BusError:
            continue
        raise AssertionError("a publish that does not fit was acknowledged")
    assert await bus.committed("g", "a") == {0: len(acknowledged) - 1}
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (position,) = await bus.publish([entry("a", "again")])
    assert position.offset == len(acknowledged)
    await bus.close()
    bus = await open_bus("embedded", path)
    assert await read_values(bus, "a") == [*acknowledged, "again"]
    assert sum((await bus.ends("b")).values()) == len(acknowledged)
    await bus.close()
    print("done")


if __name__ == "__main__":
    program = {"publish": publish_until_killed, "fill": fill_disk}[sys.argv[1]]
    asyncio.run(program(Path(sys.argv[2]), *sys.argv[3:]))
