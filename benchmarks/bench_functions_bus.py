"""The message bus of functions: publishes per second, each acknowledged only when it is durable, and how soon a reader has a record.

Run it as a script, with a folder on the disk to be measured as its argument if it is not the one for temporary files, and a URL of Kafka
as a second one to measure it beside:

    python -m benchmarks.bench_functions_bus /var/tmp kafka://127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.functions.bus.factory import EMBEDDED, open_bus
from coterie.functions.bus.protocol import Bus, Commit, Entry

VALUE = bytes(1000)
CALLS = 64


async def alone(bus: Bus, seconds: float) -> tuple[float, float]:
    """One after the other: publishes per second, and the median in milliseconds."""
    return await _publish(bus, 1, seconds, commits=False)


async def _publish(bus: Bus, publishers: int, seconds: float, commits: bool) -> tuple[float, float]:
    end = time.perf_counter() + seconds
    latencies: list[float] = []

    async def publisher(number: int) -> None:
        step = 0
        before = time.perf_counter()
        while before < end:
            entries = [Entry("calls", f"{number}-{step}", VALUE)]
            if commits:  # what the dispatcher does for a call: answer, result, record, offset
                entries += [Entry("answers", entries[0].key, VALUE), Entry("results", entries[0].key, VALUE)]
            await bus.publish(entries, [Commit("group", "calls", number % 6, step)] if commits else ())
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
            step += 1

    began = time.perf_counter()
    await asyncio.gather(*(publisher(number) for number in range(publishers)))
    return len(latencies) / (time.perf_counter() - began), median(latencies) * 1000


async def batched(bus: Bus, entries: int = 2000) -> tuple[float, float]:
    """Entries of one publish: milliseconds and CPU microseconds each."""
    times, used = [], []
    for _ in range(5):
        batch = [Entry("calls", str(number), VALUE) for number in range(entries)]
        before, cpu = time.perf_counter(), time.process_time()
        await bus.publish(batch)
        times.append(time.perf_counter() - before)
        used.append(time.process_time() - cpu)
    return min(times) / entries * 1000, min(used) / entries * 1e6


async def wake_up(bus: Bus, count: int) -> float:
    """Median milliseconds from the call of publish until a reader that waited has the record, durable."""
    delays: list[float] = []
    offset = (await bus.ends("one"))[0]
    for number in range(count):
        reader = asyncio.ensure_future(_read(bus, offset))
        await asyncio.sleep(0)
        before = time.perf_counter()
        await bus.publish([Entry("one", str(number), VALUE)])
        got, offset = await reader
        delays.append(got - before)
    return median(delays) * 1000


async def _read(bus: Bus, offset: int) -> tuple[float, int]:
    (record,) = await bus.read("one", 0, offset, 1, wait=30)
    return time.perf_counter(), record.offset + 1


async def measure(url: str, folder: Path, seconds: float) -> list[Row]:
    bus = await open_bus(url, folder / "bus.db", "bench-")
    name = "bus" if url == EMBEDDED else "bus on Kafka"
    try:
        for topic, partitions in (("calls", 6), ("answers", 6), ("results", 6), ("one", 1)):
            await bus.create_topic(topic, partitions)
        rate, latency = await alone(bus, seconds)
        each, cpu = await batched(bus)
        many, many_latency = await _publish(bus, CALLS, seconds, commits=False)
        answers, answers_latency = await _publish(bus, CALLS, seconds, commits=True)
        waked = await wake_up(bus, 200 if url == EMBEDDED else 50)
    finally:
        for topic in await bus.topics():
            await bus.delete_topic(topic)
        await bus.close()
    return [
        Row(f"{name}: publish of 1 kB, alone", rate, "/s", note=f"p50 {latency:.2f} ms"),
        Row(f"{name}: 2,000 entries in one publish, each", each, "ms", cpu, lower_is_better=True),
        Row(f"{name}: publish of 1 kB, {CALLS} at once", many, "/s", note=f"p50 {many_latency:.2f} ms"),
        Row(
            f"{name}: three topics and an offset, {CALLS} at once", answers, "/s", note=f"p50 {answers_latency:.2f} ms"
        ),
        Row(f"{name}: from publish to a waiting reader", waked, "ms", lower_is_better=True),
    ]


def bus(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(measure(EMBEDDED, Path(place), bench.plan.seconds))


def main(folder: str | None = None, *urls: str) -> None:
    rows: Sequence[Row] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for url in (EMBEDDED, *urls):
            rows = asyncio.run(measure(url, Path(place), 3.0))
            for row in rows:
                cpu = f"CPU {row.cpu:.1f} µs" if row.cpu else ""
                print(f"{row.what:<60} {row.value:>12,.4g} {row.unit:<3} {row.note} {cpu}")


if __name__ == "__main__":
    main(*sys.argv[1:])
