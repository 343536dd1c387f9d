"""What 100 HorizontalPodAutoscalers cost: one round of the controller over 1,000 pods, with API server and caches in this process.

    steady     all targets have the right size: scales are read, metrics listed, nothing is written
    growing    the load doubles: every target is scaled and every status written

CPU time, so that neighbours do not matter. The agents' answers are there already; what a summary costs an agent is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base.clock import rfc3339
from coterie.http.messages import UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver import proxy
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.controllers.horizontalpodautoscaler import controller
from coterie.kube.store.memory import MemoryStore

Object = dict[str, Any]
_ADMIN = UserInfo("system:admin", ("system:masters",))
_SETS = Kind.dynamic(builtin("replicasets", "apps"))
_PODS = Kind.dynamic(builtin("pods"))
_NODES = Kind.dynamic(builtin("nodes"))
_AUTOSCALERS = Kind.dynamic(builtin("horizontalpodautoscalers", "autoscaling", "v2"))
_LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Rounds:
    steady: float
    """Milliseconds of CPU."""
    growing: float


def measure(autoscalers: int = 100, pods: int = 10, rounds: int = 5) -> Rounds:
    return asyncio.run(_measure(autoscalers, pods, rounds))


async def _measure(autoscalers: int, pods: int, rounds: int) -> Rounds:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings())
    await server.start()
    transport = InProcessTransport(server.handle, _ADMIN)
    client = Client(transport)
    load = _Agents()
    original, proxy.NodeProxy.get_json = proxy.NodeProxy.get_json, load.get_json  # type: ignore[method-assign]
    informers = Informers(client)
    running = asyncio.create_task(informers.run())
    try:
        await _create(client, load, autoscalers, pods)
        loop = controller.make(client, informers)
        for informer in (loop.autoscalers, loop.pods):
            await informer.ready.wait()
        await _seen(lambda: len(loop.autoscalers.cache) == autoscalers and len(loop.pods.cache) == autoscalers * pods)
        await loop.sync()  # the first one writes every status
        await _seen(lambda: all(each.status.conditions for each in loop.autoscalers.cache.list()))
        await loop.sync()
        steady = [await _cpu(loop) for _ in range(rounds)]
        load.millicores = 100
        growing = await _cpu(loop)
    finally:
        proxy.NodeProxy.get_json = original  # type: ignore[method-assign]
        running.cancel()
        await asyncio.wait([running])
        await server.stop()
        await store.close()
    return Rounds(median(steady), growing)


async def _cpu(loop: controller.AutoscalerLoop) -> float:
    begun = time.process_time()
    await loop.sync()
    return (time.process_time() - begun) * 1000


async def _seen(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110 - caches have no event for "all of it"
            await asyncio.sleep(0.01)


class _Agents:
    """The summary of one node with all pods."""

    def __init__(self) -> None:
        self.millicores = 50
        self.pods: list[tuple[str, str]] = []

    async def get_json(self, node: Object, path: str) -> Object:
        now = rfc3339(datetime.now(UTC))
        cpu = {"time": now, "usageNanoCores": self.millicores * 1_000_000, "windowSeconds": 15.0}
        used = {"name": "main", "cpu": cpu, "memory": {"workingSetBytes": 2**25}}
        found = [
            {"podRef": {"name": name, "namespace": "default", "uid": uid}, "containers": [used]}
            for name, uid in self.pods
        ]
        return {"node": used, "pods": found}


async def _create(client: Client, load: _Agents, autoscalers: int, pods: int) -> None:
    await client.create(_NODES, {"metadata": {"name": "n"}})
    resources = {"requests": {"cpu": "100m"}}
    spec = {"containers": [{"name": "main", "image": "i", "resources": resources}]}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _LONG_AGO}
    status = {"phase": "Running", "startTime": _LONG_AGO, "conditions": [ready]}
    for number in range(autoscalers):
        name, labels = f"web-{number}", {"app": f"web-{number}"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
        await client.create(_SETS, {"metadata": {"name": name, "namespace": "default"}, "spec": body})
        for each in range(pods):
            meta = {"name": f"{name}-{each}", "namespace": "default", "labels": labels}
            made = await client.create(_PODS, {"metadata": meta, "spec": {**spec, "nodeName": "n"}})
            await client.patch_status(_PODS, meta["name"], "default", {"status": status})  # type: ignore[arg-type]
            load.pods.append((made["metadata"]["name"], made["metadata"]["uid"]))
        target = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name}
        await client.create(
            _AUTOSCALERS,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"scaleTargetRef": target, "maxReplicas": 4 * pods, "metrics": [_CPU_50]},
            },
        )


_CPU_50 = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}


def autoscaling(bench: Bench) -> list[Row]:
    """One round of the controller, API server included."""
    found = measure()
    share = found.steady / 1000 / 15 * 100
    return [
        Row(
            "autoscaling: 100 autoscalers, 1,000 pods, one round, nothing to do", found.steady, "ms", found.steady * 1000,
            note=f"{share:.2f} % of a core at one round in 15 s",
        ),
        Row("autoscaling: the same, every target grows", found.growing, "ms", found.growing * 1000),
    ]  # fmt: skip


if __name__ == "__main__":
    print(measure())
