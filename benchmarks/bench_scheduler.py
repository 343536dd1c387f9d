"""Simulates a cluster of 1,000 nodes and 10,000 pods: scheduling decisions per second on one core, and memory.

Everything the scheduler does in its own process is counted, in CPU time so that neighbours do not matter: reading a pod's facts, deciding, assuming, and confirming
when the binding is seen. The API server is not there. Run it as a script; the arguments are numbers of nodes and pods.

    alone     pods with requests and owners, one by one
    gangs     the same pods in gangs of three, each reserved, held and released as TaskResources want it
    picky     pods with node affinity, spread constraints and anti-affinity
    full      10,000 pods wait in a full cluster; one place becomes free
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.scheduler.effects import Bind
from coterie.kube.scheduler.engine import SchedulingEngine
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.gangs.effects import MarkReserved
from coterie.kuscia.gangs.plugin import GangPlugin

T = TypeVar("T")

_PREFIX = "kuscia.secretflow/"
_REPLICAS = 20
_ZONES = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    decisions: int
    seconds: float
    megabytes: float

    @property
    def rate(self) -> float:
        return self.decisions / self.seconds

    def __str__(self) -> str:
        return f"{self.name:8} {self.decisions:6} decisions {self.rate:8.0f} /s   {self.megabytes:6.1f} MB"


def make_nodes(count: int, cpu: int = 32) -> list[Node]:
    return [
        _read(
            NODES,
            {
                "metadata": {"name": f"node-{i}", "labels": {"kubernetes.io/hostname": f"node-{i}", "zone": str(i % _ZONES)}},
                "status": {
                    "allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": 110, "kuscia.io/bandwidth": 1000},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        for i in range(count)
    ]  # fmt: skip


def make_pod(i: int, spec: dict[str, Any] | None = None, task: str = "") -> Pod:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "r",
        "uid": f"owner-{i // _REPLICAS}",
        "controller": True,
    }
    asked = {"cpu": f"{100 + i % 7 * 100}m", "memory": f"{128 + i % 5 * 128}Mi"}
    meta: dict[str, Any] = {
        "name": f"pod-{i}",
        "namespace": "alice",
        "uid": f"uid-{i}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": f"app-{i // _REPLICAS}"},
        "ownerReferences": [] if task else [owner],
    }
    if task:
        asked["kuscia.io/bandwidth"] = "10"
        meta["labels"][_PREFIX + "task-resource-uid"] = task
        meta["annotations"] = {_PREFIX + "task-resource": task, _PREFIX + "task-resource-group": task}
    container = {"name": "c", "resources": {"requests": asked}}
    body = {"schedulerName": "kuscia-scheduler" if task else "default-scheduler", "containers": [container]}
    return _read(PODS, {"metadata": meta, "spec": {**body, **(spec or {})}})  # fmt: skip


def picky(i: int) -> dict[str, Any]:
    """By turns: a zone it must be in, spreading over zones, never two on one node."""
    alike = {"matchLabels": {"app": f"app-{i // _REPLICAS}"}}
    turn = i // _REPLICAS % 3
    if turn == 0:
        terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1", "2"]}]}]
        hard = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return {"affinity": {"nodeAffinity": hard}}
    if turn == 1:
        constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": alike}
        return {"topologySpreadConstraints": [constraint]}
    away = [{"labelSelector": alike, "topologyKey": "kubernetes.io/hostname"}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": away}}}


def alone(nodes: int, pods: int, spec: Callable[[int], dict[str, Any]] | None = None, name: str = "alone") -> Outcome:
    made = [make_pod(i, spec(i) if spec else None) for i in range(pods)]
    later = {pod.metadata.uid: pod for pod in made}

    def work(engine: GangEngine) -> int:
        for pod in made:
            engine.pod_seen(pod)
        return sum(_run_all(engine, later))

    return _measured(name, nodes, work)


def gangs(nodes: int, pods: int, size: int = 3) -> Outcome:
    made = [make_pod(i, task=f"task-{i // size}") for i in range(pods - pods % size)]
    later = {pod.metadata.uid: pod for pod in made}

    def work(engine: GangEngine) -> int:
        for i in range(0, len(made), size):
            engine.task_seen(_task(f"task-{i // size}", "Reserving", size))
            for pod in made[i : i + size]:
                engine.pod_seen(pod)
        return sum(_run_all(engine, later, size))

    return _measured("gangs", nodes, work)


def full(nodes: int, pods: int) -> Outcome:
    """Counts how many times a place that becomes free is given to one of the many that wait."""
    hogs = [make_pod(i, {"containers": [_container("32")], "nodeName": f"node-{i}"}) for i in range(nodes)]
    waiting = [make_pod(nodes + i, {"containers": [_container("16")]}) for i in range(pods)]
    later = {pod.metadata.uid: pod for pod in waiting}
    engine = _cluster(nodes)
    for pod in (*hogs, *waiting):
        engine.pod_seen(pod)
    while (due := engine.next_due()) is not None and due <= time.monotonic():
        engine.run()
    before = _resident()
    start = time.process_time()
    decided = 0
    for hog in hogs:
        engine.pod_gone(hog)
        decided += sum(_run_all(engine, later))
    return Outcome("full", decided, time.process_time() - start, _resident() - before)


def _run_all(engine: GangEngine, pods: dict[str, Pod], size: int = 1) -> Iterator[int]:
    """Everything that can be decided; each binding and mark is seen at once, as an informer would tell."""
    while (due := engine.next_due()) is not None and due <= time.monotonic():
        for effect in engine.run(1000):
            if isinstance(effect, Bind):
                old = pods[effect.pod.uid]
                spec = msgspec.structs.replace(old.spec, node_name=effect.node)
                engine.pod_seen(msgspec.structs.replace(old, spec=spec), old)
                yield 1
            elif isinstance(effect, MarkReserved):
                for phase in ("Reserved", "Schedulable"):
                    engine.task_seen(_task(effect.key.name, phase, size))


def _measured(name: str, nodes: int, work: Callable[[GangEngine], int]) -> Outcome:
    gc.collect()
    before = _resident()
    engine = _cluster(nodes)
    start = time.process_time()
    decisions = work(engine)
    seconds = time.process_time() - start
    return Outcome(name, decisions, seconds, _resident() - before)


class GangEngine(SchedulingEngine):
    def __init__(self) -> None:
        gangs = GangPlugin()
        super().__init__(time.monotonic, plugins=[gangs])
        self.task_seen = gangs.task_seen


def _cluster(nodes: int) -> GangEngine:
    engine = GangEngine()
    for node in make_nodes(nodes):
        engine.node_seen(node)
    return engine


def _container(cpu: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}


def _task(name: str, phase: str, size: int) -> TaskResource:
    meta = {"name": name, "namespace": "alice", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return _read(TASK_RESOURCES, {"metadata": meta, "spec": {"minReservedPods": size}, "status": {"phase": phase}})


def _read(kind: Kind[T], value: dict[str, Any]) -> T:
    return kind.decode(msgspec.json.encode(value))


def _resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def picky_alone(nodes: int, pods: int) -> Outcome:
    return alone(nodes, pods, picky, "picky")


def measure(nodes: int = 1000, pods: int = 10_000) -> list[Outcome]:
    """Each in a process of its own: memory that the one before gave back would be taken again unseen."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        return [pool.submit(scene, nodes, pods).result() for scene in (alone, gangs, picky_alone, full)]


if __name__ == "__main__":
    sizes = [int(argument) for argument in sys.argv[1:]]
    for outcome in measure(*sizes):
        print(outcome)
