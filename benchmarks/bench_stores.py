"""Stores beside each other: SQLite, PostgreSQL, etcd, MySQL, each in its own folder, with every write on disk when it is acknowledged.

    python -m benchmarks.bench_stores [--seconds 3] [--folder DIR]

For each: compare-and-swap writes of 2 kB with 1 and 64 at once, a list of 5,000 objects, consistent reads with 64 at once, the
time from a write at one server to its event at another, and CPU of this process for each write. Then what high availability costs: objects
created by API servers on the store, 32 at once, by one of them and by two in turn, all in this process. A server that is not on this machine
(`scripts/get-servers`) is left out and said so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base.store_address import StoreAddress, parse_store_address
from coterie.http.messages import UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store import PutOp, Store, StoreEvent
from coterie.kube.store.opening import store_of

sys.path.extend(str(Path(__file__).parents[1] / "tests" / each) for each in (".", "kube/store"))
import store_servers_kit

VALUE = os.urandom(2000)
_LIST = 5000
_AT_ONCE = 64
_API_AT_ONCE = 32
_ADMIN = UserInfo("system:admin", ("system:masters",))
_CONFIG_MAPS = Kind.dynamic(builtin("configmaps"))
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


async def api_creates(stores: Sequence[Store], at_once: int, seconds: float) -> tuple[float, float]:
    """Objects/s and median latency (ms), created by API servers in turn."""
    latencies: list[float] = []
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        clients = []
        for store in stores:
            server = ApiServer(store, Settings())
            await server.start()
            stack.push_async_callback(server.stop)
            clients.append(Client(InProcessTransport(server.handle, _ADMIN)))
        end = time.perf_counter() + seconds

        async def create(client: Client, who: str) -> None:
            before = time.perf_counter()
            while before < end:
                name = f"{who}-{next(numbers)}"
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "x" * 1500}}
                await client.create(_CONFIG_MAPS, body, "default")
                latencies.append(time.perf_counter() - before)
                before = time.perf_counter()

        began = time.perf_counter()
        await asyncio.gather(
            *(create(clients[n % len(clients)], f"w{len(stores)}-{at_once}-{n}") for n in range(at_once))
        )
        elapsed = time.perf_counter() - began
    return len(latencies) / elapsed, percentile(latencies, 0.5)


@dataclass(frozen=True, slots=True)
class StoreFigures:
    name: str
    one: tuple[float, float]
    """Writes/s and median latency (ms)."""
    many: tuple[float, float]
    cpu: float
    """Microseconds for a write."""
    listed: float
    fresh: float
    event: tuple[float, float]
    api_one: tuple[float, float]
    """Objects/s and median latency (ms) of one API server, and of two."""
    api_two: tuple[float, float] | None

    @property
    def line(self) -> str:
        two = f"{self.api_two[0]:,.0f} ({self.api_two[1]:.1f} ms)" if self.api_two else ""
        return (
            f"| {self.name} | {self.one[0]:,.0f} ({self.one[1]:.1f} ms) | {self.many[0]:,.0f} ({self.many[1]:.1f} ms) | {self.cpu:.0f} µs "
            f"| {self.listed:.0f} ms | {self.fresh:,.0f} | {self.event[0]:.1f} / {self.event[1]:.1f} ms "
            f"| {self.api_one[0]:,.0f} ({self.api_one[1]:.1f} ms) | {two} |"
        )

    def rows(self) -> list[Row]:
        def row(what: str, rate: tuple[float, float], cpu: float | None = None) -> Row:
            return Row(f"stores: {self.name}: {what}", rate[0], "/s", cpu, note=f"p50 {rate[1]:.1f} ms")

        found = [
            row("writes of 2 kB, 1 at once", self.one),
            row("writes of 2 kB, 64 at once", self.many, self.cpu),
            Row(f"stores: {self.name}: list of 5,000 x 2 kB", self.listed, "ms", lower_is_better=True),
            Row(
                f"stores: {self.name}: from a write to its event, p50",
                self.event[0], "ms", lower_is_better=True, note=f"p99 {self.event[1]:.1f} ms",
            ),
            row("objects created by one API server, 32 at once", self.api_one),
        ]  # fmt: skip
        return found + ([row("objects created by two API servers, 32 at once", self.api_two)] if self.api_two else [])


async def measure(name: str, make: Callable[[], Store], seconds: float) -> StoreFigures:
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
        event = await events(store, other)
        api_one = await api_creates([store], _API_AT_ONCE, seconds)
        api_two = await api_creates([store, other], _API_AT_ONCE, seconds) if other is not store else None
    finally:
        await store.close()
        if other is not store:
            await other.close()
    return StoreFigures(name, (one, median_one), (many, median_many), cpu, listed, fresh, event, api_one, api_two)


def rows(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder, ExitStack() as stack:
        return [
            row
            for name, address in addresses(stack, Path(folder))
            for row in asyncio.run(
                measure(name, lambda a=address: store_of(a, Path(a.path)), bench.plan.seconds)
            ).rows()
        ]


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
        print("| store | writes/s, 1 at once (p50) | 64 at once (p50) | CPU per write | list 5,000 x 2 kB | fresh reads/s | event p50/p99 | API creates/s, 32 at once, one server (p50) | two servers |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|")
        for name, address in addresses(stack, Path(folder)):
            found = asyncio.run(measure(name, lambda a=address: store_of(a, Path(a.path)), args.seconds))
            print(found.line, flush=True)


if __name__ == "__main__":
    main()
