"""Stores beside each other: SQLite, PostgreSQL, etcd, MySQL, each in its own folder, with every write on disk when it is acknowledged.

    python -m benchmarks.bench_stores [--seconds 3] [--folder DIR]

For each: compare-and-swap writes of 2 kB with 1 and 64 at once, a list of 5,000 objects, consistent reads with 64 at once, the
time from a write at one server to its event at another, and CPU of this process for each write. A server that is not on this
machine (`scripts/get-servers`) is left out and said so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from coterie.base.store_address import StoreAddress, parse_store_address
from coterie.kube.store import PutOp, Store, StoreEvent
from coterie.kube.store.opening import store_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kube" / "store"))
import store_servers_kit

VALUE = os.urandom(2000)
_LIST = 5000
_AT_ONCE = 64
_EVENTS = 300


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] * 1000


async def writes(store: Store, at_once: int, seconds: float) -> tuple[float, float, float]:
    """Writes/s, median latency (ms), CPU for each (µs)."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def write(number: int) -> None:
        key, expect, before = f"/w/{at_once}/{number}", 0, time.perf_counter()
        while before < end:
            (expect,) = await store.commit([PutOp(key, VALUE, expect)])
            latencies.append(time.perf_counter() - before)
            before = time.perf_counter()

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(n) for n in range(at_once)))
    count = len(latencies)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - spent
    return count / elapsed, percentile(latencies, 0.5), cpu / count * 1e6


async def listing(store: Store) -> float:
    for start in range(0, _LIST, 500):
        await asyncio.gather(*(store.commit([PutOp(f"/l/{n:05}", VALUE)]) for n in range(start, start + 500)))
    best = float("inf")
    for _ in range(3):
        before = time.perf_counter()
        page = await store.scan("/l/")
        best = min(best, time.perf_counter() - before)
        assert len(page.records) == _LIST
    return best * 1000


async def fresh_reads(store: Store, seconds: float) -> float:
    """What a read from the cache asks first: is there something newer."""
    end, count = time.perf_counter() + seconds, 0

    async def read() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await store.reached(await store.current())
            count += 1
            await asyncio.sleep(0)

    await asyncio.gather(*(read() for _ in range(_AT_ONCE)))
    return count / seconds


async def events(writer: Store, other: Store) -> tuple[float, float]:
    """Median and 99th percentile (ms) from the call of the write to the event at the other."""
    sent: dict[str, float] = {}
    took: list[float] = []

    def listen(batch: Sequence[StoreEvent]) -> None:
        now = time.perf_counter()
        took.extend(now - sent[event.key] for event in batch if event.key in sent)

    end = other.subscribe(listen)
    for number in range(_EVENTS):
        key = f"/e/{number}"
        sent[key] = time.perf_counter()
        await writer.commit([PutOp(key, VALUE)])
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.5)
    end()
    return percentile(took, 0.5), percentile(took, 0.99)


async def measure(name: str, make: Callable[[], Store], seconds: float) -> str:
    store = make()
    await store.open()
    other = store
    if store.shared:
        other = make()
        await other.open()
    try:
        one, median_one, _ = await writes(store, 1, seconds)
        many, median_many, cpu = await writes(store, _AT_ONCE, seconds)
        listed = await listing(store)
        fresh = await fresh_reads(store, seconds)
        middle, late = await events(store, other)
    finally:
        await store.close()
        if other is not store:
            await other.close()
    return (
        f"| {name} | {one:,.0f} ({median_one:.1f} ms) | {many:,.0f} ({median_many:.1f} ms) | {cpu:.0f} µs "
        f"| {listed:.0f} ms | {fresh:,.0f} | {middle:.1f} / {late:.1f} ms |"
    )


def addresses(stack: ExitStack, folder: Path) -> list[tuple[str, StoreAddress]]:
    found = [("SQLite", parse_store_address(f"sqlite://{folder}/bench.db"))]
    for name, kind in (
        ("PostgreSQL", "postgresql"),
        ("etcd", "etcd"),
        ("MySQL (MariaDB)", "mysql"),
    ):
        try:
            server = stack.enter_context(store_servers_kit.server_of(kind, durable=True))
            found.append((name, store_servers_kit.fresh_address(kind, server)))
        except pytest.skip.Exception as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--folder", default=None)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, ExitStack() as stack:
        print("| store | writes/s, 1 at once (p50) | 64 at once (p50) | CPU per write | list 5,000 x 2 kB | fresh reads/s | event p50/p99 |")  # fmt: skip
        print("|---|---|---|---|---|---|---|")
        for name, address in addresses(stack, Path(folder)):
            print(asyncio.run(measure(name, lambda a=address: store_of(a, Path(a.path)), args.seconds)), flush=True)


if __name__ == "__main__":
    main()
