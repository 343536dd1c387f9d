"""Commits per second of the SQLite store, each acknowledged only when it is on disk.

Run it as a script, with a folder on the disk to be measured as its argument if it is not the one for temporary files.
Prints commits/s at 1 and 64 at once, the event loop's share of a commit, reads while nobody writes, and start-up time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from coterie.kube.store import PutOp, SqliteStore

VALUE = os.urandom(2400)


async def commits(store: SqliteStore, writers: int, seconds: float) -> tuple[float, float]:
    """Commits per second, and the median latency in milliseconds."""
    end = time.perf_counter() + seconds
    latencies: list[float] = []

    async def write(writer: int) -> None:
        count = 0
        before = time.perf_counter()
        while before < end:
            await store.commit([PutOp(f"/pods/namespace-{writer % 10}/pod-{writer}-{count}", VALUE, expect=0)])
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
            count += 1

    start = time.perf_counter()
    offset = store.revision  # keys of different rounds must not meet
    await asyncio.gather(*(write(offset + writer) for writer in range(writers)))
    elapsed = time.perf_counter() - start
    return len(latencies) / elapsed, sorted(latencies)[len(latencies) // 2] * 1000


async def submit_cost(store: SqliteStore, rounds: int = 20_000) -> float:
    """Microseconds that `submit` alone takes on the loop."""
    spent = 0.0
    for at in range(0, rounds, 100):
        ops = [[PutOp(f"/cost/{at + i}", b"x")] for i in range(100)]
        before = time.perf_counter()
        futures = [store.submit(op) for op in ops]
        spent += time.perf_counter() - before
        await asyncio.gather(*futures)
    return spent / rounds * 1e6


async def settle_cost(store: SqliteStore, count: int = 2000) -> float:
    """Microseconds of CPU in the whole process for one of many concurrent commits of 2.4 kB."""
    before = time.process_time()
    await asyncio.gather(*(store.commit([PutOp(f"/settle/{i}", VALUE)]) for i in range(count)))
    return (time.process_time() - before) / count * 1e6


async def measure(folder: Path) -> None:
    store = SqliteStore(folder / "bench.db")
    await store.open()
    for writers in (1, 64):
        rate, median = await commits(store, writers, 3.0)
        print(f"commits, {writers:>2} at once: {rate:>8,.0f}/s   median {median:.2f} ms")
    print(f"submit on the loop:     {await submit_cost(store):>6.1f} µs")
    print(f"CPU for a commit, all threads: {await settle_cost(store):>6.1f} µs")
    before = time.perf_counter()
    for i in range(500):
        await store.get(f"/cost/{i}")
    print(f"gets, one after the other: {500 / (time.perf_counter() - before):,.0f}/s")
    page = await store.scan("/", limit=10_000)
    await store.close()

    again = SqliteStore(folder / "bench.db")
    before = time.perf_counter()
    await again.open()
    opened = time.perf_counter() - before
    page = await again.scan("/", limit=10_000)
    scanned = time.perf_counter() - before - opened
    print(
        f"open with {again.revision:,} keys: {opened * 1000:.0f} ms; scan of {len(page.records):,}: {scanned * 1000:.0f} ms"
    )
    await again.close()


def main(folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        asyncio.run(measure(Path(place)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
