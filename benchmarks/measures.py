"""What is measured, in the order of the table. Each function starts what it needs and gives back rows."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import watchers
from benchmarks.load import Load, Outcome, run
from benchmarks.node import Cores, Node, Pinned, free_port
from benchmarks.objects import PLACE, Object, configmap, pod, template
from benchmarks.table import Row

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
JSON = "application/json"
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
    cluster: tuple[int, int] = (1000, 10_000)
    """Nodes and pods of the scheduler's simulation."""
    pod_starts: int = 100
    short_pods: int = 200
    sleeping_pods: int = 100
    idle: float = 60.0
    """Seconds over which a node's idle CPU time is taken: two of its rounds of measuring itself."""
    rounds: int = 3
    """How often the ways of a request take turns; the best round of each counts."""
    bulk: int = 1 << 30
    """Bytes of one large body."""
    services: int = 1000
    partners: int = 1000
    changes: int = 50
    jobs: int = 20
    burst: int = 200
    """Jobs submitted at once."""
    graph: int = 128
    """Tasks of one job."""
    remembered: int = 1000
    """Jobs that come and go before memory is read, and again before it is read once more."""
    known_jobs: int = 1000
    """Jobs that KusciaAPI is asked for."""
    job_watchers: int = 50
    table: int = 1_000_000_000
    """Bytes of one large table."""
    keys: int = 1_000_000
    """Rows of each party of an intersection."""
    image_bytes: int = 100 << 20
    """Of an image's layer, unpacked."""
    simulated: tuple[int, int, int] = (200, 1000, 300)
    """Domains, nodes and jobs."""

    @staticmethod
    def quick() -> Plan:
        few = Plan(
            0.2, 50, 100, 3, 5, (3, 6), 100, 1, 0.1, (20, 60), 3, 6, 3, 0.2, 1, 1 << 20, 20, 20, 3, 1, 2, 4, 2, 30, 4
        )
        return replace(few, table=1 << 20, keys=1000, image_bytes=4 << 20, simulated=(4, 8, 4))


@dataclass(frozen=True, slots=True)
class Bench:
    plan: Plan
    folder: Path
    cores: Cores

    @property
    def bytecode(self) -> Path:
        return self.folder / "bytecode"

    @contextmanager
    def node(self) -> Iterator[Node]:
        """A fresh node, gone afterwards."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as place,
            Node(Path(place), self.cores.server, self.bytecode) as node,
        ):
            yield node

    def create(
        self, node: Node, path: str, obj: Object, *, connections: int = 64, first: int = 0, count: int = 0,
        seconds: float = 0.0,
    ) -> Outcome:  # fmt: skip
        """Create objects that differ in the number that stands where `PLACE` is."""
        before, after = template(obj)
        return run(
            Load(
                node.port, node.identity, connections, "POST", path, body_before=before.decode(),
                body_after=after.decode(), first=first, count=count, seconds=seconds, pids=(node.process.pid,),
                core=self.cores.load,
            )
        )  # fmt: skip

    def create_pods(self, node: Node, count: int, first: int = 0) -> Outcome:
        return self.create(node, PODS, pod(f"pod-{PLACE}"), first=first, count=count)

    def get(
        self, node: Node, path: str, *, connections: int = 1, accept: str = JSON, count: int = 0, seconds: float = 0.0
    ) -> Outcome:
        return run(
            Load(
                node.port, node.identity, connections, "GET", path, accept, count=count, seconds=seconds,
                pids=(node.process.pid,), core=self.cores.load,
            )
        )  # fmt: skip


def yardsticks(bench: Bench) -> list[Row]:
    """The machine itself: a server that does nothing but HTTP and TLS, and the disk."""
    seconds, cores = bench.plan.seconds, bench.cores
    with bench.node() as node:
        node.stop()
        port = free_port()
        arguments = ["-m", "benchmarks.bare", str(port), *node.server_certificate, str(_SMALL)]
        bare = Pinned(arguments, cores.server, node.root / "bare.log")
        try:
            bare.wait_for(port)
            done = run(Load(port, node.identity, 32, "GET", "/", seconds=seconds, pids=(bare.pid,), core=cores.load))
        finally:
            bare.stop()
    note = f"{_SMALL} B over TLS; the generator takes {done.own_cpu:.0f} µs"
    return [
        Row("yardstick: constant answer, 32 connections", done.rate, "/s", done.cpu, note=note),
        Row("yardstick: 4 KiB append and fdatasync", _syncs(bench.folder, seconds / 2), "/s"),
    ]


def _syncs(folder: Path, seconds: float) -> float:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            os.pwrite(file.fileno(), b"x" * 4096, count * 4096)
            os.fdatasync(file.fileno())
            count += 1
        return count / seconds


def creates_and_gets(bench: Bench) -> list[Row]:
    rows, seconds, first = [], bench.plan.seconds, 0
    with bench.node() as node:
        for connections, prototype in ((1, 433.0), (64, 3734.0)):
            done = bench.create(node, PODS, pod(f"pod-{PLACE}"), connections=connections, first=first, seconds=seconds)
            first += done.requests
            note = f"{done.bytes} B stored; p50 {done.p50:.2f} ms, p99 {done.p99:.2f} ms"
            what = f"create pod, {connections} connection{'s' if connections > 1 else ''}"
            rows.append(Row(what, done.rate, "/s", done.cpu, prototype, note=note))
        bench.create(node, CONFIGMAPS, configmap(f"small-{PLACE}", note="x" * 190), connections=1, count=1)
        for what, path, known in (
            ("get ConfigMap, 32 connections", f"{CONFIGMAPS}/small-00000000", 33_329.0),
            ("get pod, 32 connections", f"{PODS}/pod-00000000", None),
        ):
            done = bench.get(node, path, connections=32, seconds=seconds)
            rows.append(Row(what, done.rate, "/s", done.cpu, known, note=f"{done.bytes} B; p99 {done.p99:.2f} ms"))
    return rows


def lists_and_memory(bench: Bench) -> list[Row]:
    plan = bench.plan
    with bench.node() as node:
        time.sleep(plan.settle)
        first, _ = node.process.memory()
        node.stop()
        node.start()
        time.sleep(plan.settle)
        idle, shared = node.process.memory()
        bench.create_pods(node, plan.pods)
        time.sleep(plan.settle)
        some = node.process.memory()[0]
        lists = [
            _list(bench, node, f"list {plan.pods} pods, JSON", PODS, JSON, 10.9),
            _list(bench, node, f"list {plan.pods} pods, Table", PODS, TABLE, 76.0),
            _list(bench, node, "list limit=500, Table", f"{PODS}?limit=500", TABLE, 11.0),
            _list(bench, node, "list limit=500, JSON", f"{PODS}?limit=500", JSON, 3.5),
            _list(bench, node, f"list {plan.pods} pods, none selected", f"{PODS}?labelSelector=app%3Dx", JSON, 1.1),
        ]
        bench.create_pods(node, plan.many_pods - plan.pods, plan.pods)
        time.sleep(plan.settle)
        many = node.process.memory()[0]
    each, each_of_many = (some - idle) * 1024 / plan.pods, (many - idle) * 1024 / plan.many_pods
    return [
        *lists,
        Row(
            "idle memory, RSS",
            idle,
            "MiB",
            None,
            36.0,
            True,
            "all controllers, asleep where nothing is to do; no gateway",
        ),
        Row("idle memory after the very first start, RSS", first, "MiB", None, 36.0, True),
        Row("idle memory, PSS", shared, "MiB"),
        Row(f"memory per pod at {plan.pods}", each, "KiB", None, 8.8, True, f"RSS {some:.0f} MiB"),
        Row(f"memory per pod at {plan.many_pods}", each_of_many, "KiB", None, 9.3, True, f"RSS {many:.0f} MiB"),
    ]


def _list(bench: Bench, node: Node, what: str, path: str, accept: str, prototype: float) -> Row:
    done = bench.get(node, path, accept=accept, count=bench.plan.lists)
    note = f"{done.bytes / 1e6:.2f} MB, p99 {done.p99:.1f} ms"
    return Row(what, done.p50, "ms", done.cpu, prototype, True, note)


def watches(bench: Bench) -> list[Row]:
    plan, rows = bench.plan, []
    known = {(100, 0.01): (1.3, 6.5), (100, 0.0): (1.1, 6.0), (1000, 0.01): (9.2, 22.0)}
    with bench.node() as node:
        for count in plan.watchers:
            for pace, how in ((0.01, "each 10 ms"), (0.0, "flat out")):
                label = f"w{count}-{int(pace * 1000)}"
                spec = watchers.Watching(
                    node.port, node.identity, count, plan.creates_watched, pace, label, node.process.pid,
                    bench.cores.load,
                )  # fmt: skip
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
        node = Node(Path(place), bench.cores.server, bench.bytecode)
        rows = [
            _started(node, 1, "first start to ready, keys made"),
            _started(node, plan.starts, "start to ready, 0 objects"),
        ]
        with node:
            bench.create_pods(node, plan.start_objects)
        rows.append(_started(node, plan.starts, f"start to ready, {plan.start_objects} pods"))
    return rows


def _started(node: Node, times: int, what: str) -> Row:
    """The median of some starts."""
    seconds, cpu = [], []
    for _ in range(times):
        seconds.append(node.start())
        cpu.append(node.process.cpu())
        node.stop()
    return Row(what, sorted(seconds)[times // 2] * 1e3, "ms", sorted(cpu)[times // 2] * 1e6)
