"""metrics.k8s.io: what nodes and pods use now, asked of the agents when somebody wants to know (`kubectl top`).

Nothing is stored. A node whose agent does not answer in time, or not in the kubelet's form, is left out. An agent is believed only
about its own node and the pods that are bound to it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.kube.api import errors, quantity, selectors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver import options
from coterie.kube.apiserver.call import not_found
from coterie.kube.apiserver.paths import RequestInfo
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry

log = logger("apiserver.usage")

Object = dict[str, Any]
GROUP = "metrics.k8s.io"
_LONGEST = 86400.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
_WINDOW = "15s"
"""Of agents that do not say it."""
_NANOS_PER_MILLI = 1_000_000


Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Cpu(msgspec.Struct, frozen=True, rename="camel"):
    usage_nano_cores: Amount = 0
    time: str = ""
    window_seconds: float = 0.0


class _Memory(msgspec.Struct, frozen=True, rename="camel"):
    working_set_bytes: Amount = 0


class MeasuredUsage(msgspec.Struct, frozen=True, rename="camel"):
    cpu: _Cpu
    memory: _Memory
    name: str = ""


class _PodReference(msgspec.Struct, frozen=True, rename="camel"):
    uid: str


class MeasuredPod(msgspec.Struct, frozen=True, rename="camel"):
    pod_ref: _PodReference
    containers: tuple[MeasuredUsage, ...] = ()


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of the kubelet's summary."""

    node: MeasuredUsage
    pods: tuple[MeasuredPod, ...] = ()


class UsageApi:
    def __init__(self, nodes: Collection, pods: Collection, proxy: NodeProxy, clock: Clock) -> None:
        self._nodes = nodes
        self._pods = pods
        self._proxy = proxy
        self._clock = clock

    async def respond(self, request: Request, target: RequestInfo, resource: Resource) -> Response:
        asked = options.list_options(request)
        labels = selectors.parse_label_selector(asked.label_selector)
        collection = self._nodes if resource.plural == "nodes" else self._pods
        if target.name:
            entry = collection.get(target.namespace, target.name)
            if entry is None:
                raise not_found(resource, target.name)
            entries: Sequence[ObjectEntry] = [entry]
        else:
            entries = [each for each in collection.entries(target.namespace) if labels.matches(each.labels)]
        now = rfc3339(self._clock.now())
        if resource.plural == "nodes":
            summaries = await self._summaries(entries)
            items = [_node_metrics(e, s.node, now) for e in entries if (s := summaries.get(e.name)) is not None]
        else:
            places = {entry.uid: str((entry.load().get("spec") or {}).get("nodeName") or "") for entry in entries}
            nodes = [node for name in sorted(set(places.values())) if (node := self._nodes.get("", name)) is not None]
            summaries = await self._summaries(nodes)
            used = {(name, pod.pod_ref.uid): pod for name, summary in summaries.items() for pod in summary.pods}
            items = [_pod_metrics(e, found, now) for e in entries if (found := used.get((places[e.uid], e.uid)))]
        if target.name:
            if not items:
                raise errors.NotFound(
                    f'{resource.plural[:-1]} metrics for "{target.name}" are not available yet: its agent has not reported any',
                    name=target.name,
                    group=GROUP,
                    kind=resource.plural,
                )
            return Response(200, orjson.dumps(items[0]))
        listed = {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": {}, "items": items}
        return Response(200, orjson.dumps(listed))

    async def _summaries(self, nodes: Sequence[ObjectEntry]) -> dict[str, Summary]:
        async def one(node: ObjectEntry) -> tuple[str, Summary] | None:
            try:
                answer = await self._proxy.get_json(node.load(), "/stats/summary")
                return node.name, msgspec.convert(answer, Summary)
            except errors.ApiError:
                return None
            except msgspec.ValidationError as fault:
                log.warning("The figures of a node are not understood", node=node.name, problem=str(fault))
                return None

        return dict(found for found in await asyncio.gather(*map(one, nodes)) if found is not None)


def _node_metrics(node: ObjectEntry, measured: MeasuredUsage, now: str) -> Object:
    return {
        "kind": "NodeMetrics",
        "apiVersion": f"{GROUP}/v1beta1",
        "metadata": _metadata(node, now),
        **_period([measured], now),
        "usage": _usage(measured),
    }


def _pod_metrics(pod: ObjectEntry, measured: MeasuredPod, now: str) -> Object:
    return {
        "kind": "PodMetrics",
        "apiVersion": f"{GROUP}/v1beta1",
        "metadata": _metadata(pod, now),
        **_period(measured.containers, now),
        "containers": [{"name": each.name, "usage": _usage(each)} for each in measured.containers],
    }


def _metadata(entry: ObjectEntry, now: str) -> Object:
    metadata: Object = {"name": entry.name, "creationTimestamp": now}
    if entry.namespace:
        metadata["namespace"] = entry.namespace
    if entry.labels:
        metadata["labels"] = entry.labels
    return metadata


def _period(measured: Sequence[MeasuredUsage], now: str) -> Object:
    """When the figures were measured, and over which time, in the agent's words: its clock set the pod's conditions too."""
    seconds = max((each.cpu.window_seconds for each in measured), default=0.0)
    known = 0.0 < seconds < _LONGEST
    window = f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if known else _WINDOW
    times = [each.cpu.time for each in measured if _TIME.fullmatch(each.cpu.time)]
    return {"timestamp": min(times, default=now), "window": window}


def _usage(measured: MeasuredUsage) -> Object:
    cores, memory = measured.cpu.usage_nano_cores, measured.memory.working_set_bytes // 1024
    return {"cpu": str(quantity.from_milli(-(-cores // _NANOS_PER_MILLI))), "memory": f"{memory}Ki"}
