"""metrics.k8s.io: what nodes and pods use now, asked of the agents when somebody wants to know (`kubectl top`).

Nothing is stored. A node whose agent does not answer in time is left out, as its figures would be guesses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.http.messages import Request, Response
from coterie.kube.api import errors, quantity, selectors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver import options
from coterie.kube.apiserver.call import not_found
from coterie.kube.apiserver.paths import RequestInfo
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry

Object = dict[str, Any]
GROUP = "metrics.k8s.io"
_WINDOW = "15s"
"""Of agents that do not say it."""
_NANOS_PER_MILLI = 1_000_000


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
        summaries = await self._summaries(self._nodes_of(entries, resource))
        now = rfc3339(self._clock.now())
        if resource.plural == "nodes":
            items = [_node_metrics(e, s["node"], now) for e in entries if (s := summaries.get(e.name)) is not None]
        else:
            used = {pod["podRef"]["uid"]: pod for summary in summaries.values() for pod in summary["pods"]}
            items = [_pod_metrics(e, used[e.uid], now) for e in entries if e.uid in used]
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

    def _nodes_of(self, entries: Sequence[ObjectEntry], resource: Resource) -> list[ObjectEntry]:
        if resource.plural == "nodes":
            return list(entries)
        names = {(entry.load().get("spec") or {}).get("nodeName") for entry in entries}
        return [node for name in sorted(filter(None, names)) if (node := self._nodes.get("", name)) is not None]

    async def _summaries(self, nodes: Sequence[ObjectEntry]) -> dict[str, Object]:
        async def one(node: ObjectEntry) -> tuple[str, Object] | None:
            try:
                return node.name, await self._proxy.get_json(node.load(), "/stats/summary")
            except errors.ApiError:
                return None

        return dict(found for found in await asyncio.gather(*map(one, nodes)) if found is not None)


def _node_metrics(node: ObjectEntry, summary: Object, now: str) -> Object:
    return {
        "kind": "NodeMetrics",
        "apiVersion": f"{GROUP}/v1beta1",
        "metadata": _metadata(node, now),
        **_period([summary], now),
        "usage": _usage(summary),
    }


def _pod_metrics(pod: ObjectEntry, summary: Object, now: str) -> Object:
    return {
        "kind": "PodMetrics",
        "apiVersion": f"{GROUP}/v1beta1",
        "metadata": _metadata(pod, now),
        **_period(summary["containers"], now),
        "containers": [{"name": each["name"], "usage": _usage(each)} for each in summary["containers"]],
    }


def _metadata(entry: ObjectEntry, now: str) -> Object:
    metadata: Object = {"name": entry.name, "creationTimestamp": now}
    if entry.namespace:
        metadata["namespace"] = entry.namespace
    if entry.labels:
        metadata["labels"] = entry.labels
    return metadata


def _period(measured: Sequence[Object], now: str) -> Object:
    """When the figures were measured, and over which time, in the agent's words: its clock set the pod's conditions too."""
    cpu = [each["cpu"] for each in measured]
    seconds = max((float(each.get("windowSeconds") or 0) for each in cpu), default=0.0)
    window = f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds else _WINDOW
    return {"timestamp": min((each.get("time") or now for each in cpu), default=now), "window": window}


def _usage(summary: Object) -> Object:
    cores = int(summary["cpu"]["usageNanoCores"])
    memory = int(summary["memory"]["workingSetBytes"]) // 1024
    return {"cpu": str(quantity.from_milli(-(-cores // _NANOS_PER_MILLI))), "memory": f"{memory}Ki"}
