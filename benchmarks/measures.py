"""What is measured, in the order of the table. Each function starts what it needs and gives back rows."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, watchers
from benchmarks.node import Cores, Node, Pinned, free_port
from benchmarks.objects import PLACE, configmap, pod, template
from benchmarks.table import Row

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_SMALL = 600


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done. `quick` is for a test that everything runs; its numbers mean nothing."""

    seconds: float = 4.0
    pods: int = 5000
    many_pods: int = 30_000
    lists: int = 30
    creates_watched: int = 300
    watchers: tuple[int, int] = (100, 1000)
    start_objects: int = 10_000
    starts: int = 3
    settle: float = 1.5
    """Seconds for the server to come to rest before its memory is read."""

    @staticmethod
    def quick() -> Plan:
        return Plan(0.2, 50, 100, 3, 5, (3, 6), 100, 1, 0.1)


@dataclass(frozen=True, slots=True)
class Bench:
    plan: Plan
    folder: Path
    cores: Cores

    @contextmanager
    def node(self) -> Iterator[Node]:
        """A fresh node, gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place, Node(Path(place), self.cores) as node:
            yield node

    def loaded(self, node: Node, what: load.Load) -> tuple[load.Outcome, float]:
        """The generator's outcome, and the server's CPU microseconds for one request."""
        before = node.process.cpu()
        outcome = load.run(what)
        return outcome, (node.process.cpu() - before) / outcome.requests * 1e6

    def pods(self, node: Node, count: int, first: int = 0, connections: int = 64) -> load.Load:
        before, after = template(pod(f"pod-{PLACE}"))
        return load.Load(
            node.port, node.identity, connections, "POST", PODS, body_before=before.decode(),
            body_after=after.decode(), first=first, count=count, core=self.cores.load,
        )  # fmt: skip


def yardsticks(bench: Bench) -> list[Row]:
    """The machine itself: a server that does nothing but HTTP and TLS, and the disk."""
    with bench.node() as node:
        node.stop()
        port = free_port()
        arguments = ["-m", "benchmarks.bare", str(port), *node.server_certificate, str(_SMALL)]
        bare = Pinned(arguments, bench.cores.server, node.root / "bare.log")
        try:
            bare.wait_for(port)
            before = bare.cpu()
            outcome = load.run(
                load.Load(port, node.identity, 32, "GET", "/", seconds=bench.plan.seconds, core=bench.cores.load)
            )
            cpu = (bare.cpu() - before) / outcome.requests * 1e6
        finally:
            bare.stop()
    return [
        Row("yardstick: constant answer, 32 connections", outcome.rate, "/s", cpu, note=f"{_SMALL} B over TLS; generator {outcome.cpu:.0f} µs"),
        Row("yardstick: 4 KiB append and fdatasync", _syncs(bench), "/s"),
    ]  # fmt: skip


def _syncs(bench: Bench) -> float:
    with tempfile.NamedTemporaryFile(dir=bench.folder) as file:
        count, end = 0, time.perf_counter() + bench.plan.seconds / 2
        while time.perf_counter() < end:
            os.pwrite(file.fileno(), b"x" * 4096, count * 4096)
            os.fdatasync(file.fileno())
            count += 1
        return count / (bench.plan.seconds / 2)


def creates_and_gets(bench: Bench) -> list[Row]:
    rows, seconds = [], bench.plan.seconds
    with bench.node() as node:
        first = 0
        for connections, prototype in ((1, 433.0), (64, 3734.0)):
            spec = bench.pods(node, 0, first, connections)
            outcome, cpu = bench.loaded(node, _for(spec, seconds))
            first += outcome.requests
            plural = "s" if connections > 1 else ""
            rows.append(
                Row(f"create pod, {connections} connection{plural}", outcome.rate, "/s", cpu, prototype, note=f"{outcome.bytes} B stored; p50 {outcome.p50:.2f} ms, p99 {outcome.p99:.2f} ms")
            )  # fmt: skip
        small = configmap("small", note="x" * 180)
        _create(bench, node, CONFIGMAPS, small)
        for what, path, prototype in (
            ("get ConfigMap, 32 connections", f"{CONFIGMAPS}/small", 33_329.0),
            ("get pod, 32 connections", f"{PODS}/pod-00000000", None),
        ):
            outcome, cpu = bench.loaded(node, _get(bench, node, path, 32, seconds=seconds))
            rows.append(
                Row(what, outcome.rate, "/s", cpu, prototype, note=f"{outcome.bytes} B; p99 {outcome.p99:.2f} ms")
            )
    return rows


def lists_and_memory(bench: Bench) -> list[Row]:
    plan = bench.plan
    with bench.node() as node:
        time.sleep(plan.settle)
        idle, shared = node.process.memory()
        bench.loaded(node, bench.pods(node, plan.pods))
        lists = [_list(bench, node, *asked) for asked in (
            (f"list {plan.pods} pods, JSON", PODS, "application/json", 10.9),
            (f"list {plan.pods} pods, Table", PODS, TABLE, 76.0),
            ("list limit=500, Table", f"{PODS}?limit=500", TABLE, 11.0),
            ("list limit=500, JSON", f"{PODS}?limit=500", "application/json", 3.5),
            (f"list {plan.pods} pods, selector that matches none", f"{PODS}?labelSelector=app%3Dnone", "application/json", 1.1),
        )]  # fmt: skip
        time.sleep(plan.settle)
        some = node.process.memory()[0]
        bench.loaded(node, bench.pods(node, plan.many_pods - plan.pods, plan.pods))
        time.sleep(plan.settle)
        many = node.process.memory()[0]
    return [
        *lists,
        Row("idle memory, RSS", idle, "MB", None, 36.0, True, note="all controllers on; 1 MB = 10^6 B"),
        Row("idle memory, PSS", shared, "MB"),
        Row(f"memory per pod at {plan.pods}", (some - idle) * 1e3 / plan.pods, "kB", None, 8.8, True, f"RSS {some:.0f} MB"),
        Row(f"memory per pod at {plan.many_pods}", (many - idle) * 1e3 / plan.many_pods, "kB", None, 9.3, True, f"RSS {many:.0f} MB"),
    ]  # fmt: skip


def watches(bench: Bench) -> list[Row]:
    plan, rows = bench.plan, []
    known = {(100, 0.01): (1.3, 6.5), (100, 0.0): (1.1, 6.0), (1000, 0.01): (9.2, 22.0)}
    with bench.node() as node:
        for count in plan.watchers:
            for pace, how in ((0.01, "each 10 ms"), (0.0, "flat out")):
                label = f"w{count}-{int(pace * 1000)}"
                spec = watchers.Watching(
                    node.port,
                    node.identity,
                    count,
                    plan.creates_watched,
                    pace,
                    label,
                    node.process.pid,
                    bench.cores.load,
                )
                delays = watchers.run(spec)
                p50, p99 = known.get((count, pace), (None, None))
                what, rate = f"watch delay, {count} watchers, {how}", delays.deliveries / delays.seconds
                rows += [
                    Row(f"{what}, p50", delays.p50, "ms", delays.cpu, p50, True, f"{rate:,.0f} deliveries/s"),
                    Row(f"{what}, p99", delays.p99, "ms", None, p99, True),
                ]
    return rows


def starts(bench: Bench) -> list[Row]:
    plan = bench.plan
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        node = Node(Path(place), bench.cores)
        rows = [_started(node, 1, "first start to ready, keys made")]
        rows.append(_started(node, plan.starts, "start to ready, 0 objects"))
        node.start()
        bench.loaded(node, bench.pods(node, plan.start_objects))
        node.stop()
        rows.append(_started(node, plan.starts, f"start to ready, {plan.start_objects} pods"))
    return rows


def _started(node: Node, times: int, what: str) -> Row:
    """The median of some starts."""
    seconds, cpu = [], []
    for _ in range(times):
        seconds.append(node.start())
        cpu.append(node.process.cpu())
        node.stop()
    middle = sorted(seconds)[times // 2]
    return Row(what, middle * 1e3, "ms", sorted(cpu)[times // 2] * 1e6)


def _list(bench: Bench, node: Node, what: str, path: str, accept: str, prototype: float) -> Row:
    outcome, cpu = bench.loaded(node, _get(bench, node, path, 1, accept=accept, count=bench.plan.lists))
    note = f"{outcome.bytes / 1e6:.2f} MB, p99 {outcome.p99:.1f} ms"
    return Row(what, outcome.p50, "ms", cpu, prototype, True, note)


def _get(
    bench: Bench, node: Node, path: str, connections: int, *, accept: str = "application/json", seconds: float = 0.0, count: int = 0,
) -> load.Load:  # fmt: skip
    return load.Load(
        node.port, node.identity, connections, "GET", path, accept, seconds=seconds, count=count, core=bench.cores.load
    )


def _for(spec: load.Load, seconds: float) -> load.Load:
    return load.Load(**{**{name: getattr(spec, name) for name in load.Load.__slots__}, "seconds": seconds})


def _create(bench: Bench, node: Node, path: str, obj: dict[str, object]) -> None:
    before, after = template({**obj, "data": {**obj["data"], "number": PLACE}})  # type: ignore[dict-item]
    load.run(
        load.Load(
            node.port, node.identity, 1, "POST", path, body_before=before.decode(), body_after=after.decode(), count=1,
            core=bench.cores.load,
        )
    )  # fmt: skip
