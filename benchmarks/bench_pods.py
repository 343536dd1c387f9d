"""Real pods on a real node: how fast they start, how many a second, and what a node costs while they sleep.

Everything is seen as a user sees it: through our client over HTTPS, and timed by the arrival of watch events, because the
times in a pod's status are whole seconds. The node is in mode autonomy, so its one process is API server, scheduler,
controllers and agent; its supervisor, which keeps the containers, is counted with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.measures import Bench
from benchmarks.node import NODE_NAME, PodNode, cpu_of, memory_of
from benchmarks.objects import Object, sleeper
from benchmarks.table import Row
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.wait import wait_for
from coterie.kube.client.watch import Changed, Watch

_NAMESPACE = "default"
_ACCOUNTS = Kind.dynamic(builtin("serviceaccounts"))
_PATIENCE = 120.0
_CREATORS = 16
"""Creates under way at once when many pods are wanted."""
_GONE = "gone"


class Sightings:
    """When each phase of each pod was first heard of."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], asyncio.Future[float]] = {}

    def when(self, name: str, phase: str) -> asyncio.Future[float]:
        return self._seen.setdefault((name, phase), asyncio.get_running_loop().create_future())

    async def follow(self, watch: Watch[Pod]) -> None:
        async for event in watch:
            now = time.perf_counter()
            if isinstance(event, Changed):
                pod = event.object
                seen = self.when(pod.metadata.name, _GONE if event.type == "DELETED" else pod.status.phase)
                if not seen.done():
                    seen.set_result(now)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who makes pods and sees what becomes of them."""

    client: Client
    sightings: Sightings

    async def create(self, pod: Object) -> None:
        await self.client.create(PODS.as_dynamic, pod)

    async def create_many(self, pods: Sequence[Object]) -> None:
        waiting = iter(pods)

        async def work() -> None:
            for pod in waiting:
                await self.create(pod)

        await asyncio.gather(*(work() for _ in range(_CREATORS)))

    async def bind(self, name: str) -> None:
        """What the scheduler does, but at a moment that is known."""
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                   "target": {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME}}  # fmt: skip
        await self.client.create(PODS.as_dynamic, binding, _NAMESPACE, name=name, subresource="binding")

    async def seen(self, names: Sequence[str], phase: str) -> list[float]:
        async with asyncio.timeout(_PATIENCE):
            return await asyncio.gather(*(self.sightings.when(name, phase) for name in names))

    async def delete(self, names: Sequence[str]) -> None:
        await self.client.delete_collection(PODS, _NAMESPACE, grace=0)
        await self.seen(names, _GONE)


@contextlib.asynccontextmanager
async def operating(node: PodNode) -> AsyncIterator[Operator]:
    """Begins when the node takes pods."""
    client = Client(HttpTransport(_connection(node)))
    try:
        await wait_for(client, _ACCOUNTS, "default", _NAMESPACE, lambda account: account is not None, _PATIENCE)
        await wait_for(client, NODES, NODE_NAME, "", _is_ready, _PATIENCE)
        sightings = Sightings()
        async with await client.watch(PODS, _NAMESPACE) as watch:
            following = asyncio.create_task(sightings.follow(watch), name="watch pods")
            try:
                yield Operator(client, sightings)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    finally:
        await client.close()


def _connection(node: PodNode) -> ClusterConnection:
    own = node.identity
    ca, certificate, key = (Path(path).read_bytes() for path in (own.ca, own.certificate, own.key))
    return ClusterConnection(f"https://127.0.0.1:{node.port}", ca=ca, certificate=certificate, key=key)


def _is_ready(node: Node | None) -> bool:
    conditions = (node.status.conditions or ()) if node is not None else ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def pods(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place, PodNode(Path(place), bench.bytecode) as node:
        return uvloop.run(_measured(bench, node))


async def _measured(bench: Bench, node: PodNode) -> list[Row]:
    plan = bench.plan
    async with operating(node) as operator:
        idle = await _idle(bench, node, 0)
        starts = await _starts(operator, node, plan.pod_starts)
        short = await _short(operator, node, plan.short_pods)
        names = [f"sleeper-{i}" for i in range(plan.sleeping_pods)]
        await operator.create_many([sleeper(name) for name in names])
        await operator.seen(names, "Running")
        sleeping = await _idle(bench, node, plan.sleeping_pods)
        await operator.delete(names)
    return [*starts, short, *idle, *sleeping]


async def _starts(operator: Operator, node: PodNode, count: int) -> list[Row]:
    """One start after the other, the kinds by turns: whatever else the machine does then meets them all alike."""
    bare, bound, created = Starts(), Starts(), Starts()
    for i in range(count):
        bare.waits.append(_bare_start())
        await _started(operator, node, sleeper(f"bound-{i}", scheduler="bench"), bound, bind=True)
        await _started(operator, node, sleeper(f"created-{i}"), created)
    over = bound.share(0.5) - bare.share(0.5)
    return [
        *bare.rows("process start without Coterie", "the yardstick"),
        *bound.rows("pod start, bind to Running", f"{over:.0f} ms over a bare start; goal 35 in all"),
        *created.rows("pod start, create to Running", "API, scheduler and agent"),
    ]


@dataclass(slots=True)
class Starts:
    waits: list[float] = field(default_factory=list)
    """Milliseconds."""
    cpu: float = 0.0
    """Seconds of the node and its supervisor for all of them, their removal included."""

    def share(self, share: float) -> float:
        ordered = sorted(self.waits)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    def rows(self, what: str, note: str) -> list[Row]:
        cpu = self.cpu / len(self.waits) * 1e6 or None
        return [
            Row(f"{what}, p50", self.share(0.5), "ms", cpu, note=note),
            Row(f"{what}, p99", self.share(0.99), "ms"),
        ]


async def _started(operator: Operator, node: PodNode, pod: Object, starts: Starts, *, bind: bool = False) -> None:
    """Timed from the moment before the request that sets the pod going."""
    name = pod["metadata"]["name"]
    before, began = _cpu(node), time.perf_counter()
    await operator.create(pod)
    if bind:
        began = time.perf_counter()
        await operator.bind(name)
    (running,) = await operator.seen([name], "Running")
    starts.waits.append((running - began) * 1e3)
    await operator.delete([name])
    starts.cpu += _cpu(node) - before


def _bare_start() -> float:
    """Milliseconds until a process has begun its program."""
    began = time.perf_counter()
    process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)  # comes back when the program is loaded
    waited = time.perf_counter() - began
    process.kill()
    process.wait()
    return waited * 1e3


async def _short(operator: Operator, node: PodNode, count: int) -> Row:
    names = [f"short-{i}" for i in range(count)]
    began, before = time.perf_counter(), _cpu(node)
    await operator.create_many([sleeper(name, "sh", "-c", "true") for name in names])
    ended = max(await operator.seen(names, "Succeeded"))
    cpu = (_cpu(node) - before) / count * 1e6
    await operator.delete(names)
    return Row(f"{count} short pods, create to Succeeded", count / (ended - began), "/s", cpu, note="at once, one node")


async def _idle(bench: Bench, node: PodNode, count: int) -> list[Row]:
    await asyncio.sleep(bench.plan.settle)
    pids = node.pids()
    began, before = time.perf_counter(), [cpu_of(pid) for pid in pids]
    await asyncio.sleep(bench.plan.idle)
    seconds = time.perf_counter() - began
    of_node, of_supervisor = ((cpu_of(pid) - was) / seconds * 100 for pid, was in zip(pids, before, strict=True))
    memory = [memory_of(pid) for pid in pids]
    (rss, rss_supervisor), (pss, pss_supervisor) = zip(*memory, strict=True)
    what = f"node with {count} sleeping pods"
    return [
        Row(
            f"{what}, idle CPU of a core", of_node + of_supervisor, "%", note=f"supervisor {of_supervisor:.2f}; goal 1"
        ),
        Row(f"{what}, RSS", rss + rss_supervisor, "MiB", note=f"supervisor {rss_supervisor:.1f}"),
        Row(f"{what}, PSS", pss + pss_supervisor, "MiB", note=f"supervisor {pss_supervisor:.1f}"),
    ]


def _cpu(node: PodNode) -> float:
    return sum(cpu_of(pid) for pid in node.pids())
