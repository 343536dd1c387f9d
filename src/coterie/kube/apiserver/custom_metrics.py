"""custom.metrics.k8s.io: metrics that pods serve themselves, for autoscalers with metrics of the type Pods.

    GET .../namespaces/NAMESPACE/pods/NAME/METRIC    NAME is one pod, or * for all

A pod takes part when it says where its metrics are, as for Prometheus: by the annotations `prometheus.io/port` and, unless it is
/metrics, `prometheus.io/path`. Its agent reads them when somebody asks; nothing is stored. Pods that do not answer are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import isfinite
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.http.messages import Request, Response
from coterie.kube.api import errors, quantity, selectors
from coterie.kube.api.selectors import LabelSelector
from coterie.kube.apiserver.paths import RequestInfo
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
GROUP = "custom.metrics.k8s.io"
_PORT, _PATH, _SCRAPE = "prometheus.io/port", "prometheus.io/path", "prometheus.io/scrape"
_AT_ONCE = 32
_LONGEST = 86400.0
_GREATEST = 9e15
"""A quantity in thousandths holds no more."""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    value: float
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    window_seconds: float = 0.0


class _Answer(msgspec.Struct, frozen=True):
    samples: tuple[_Series, ...]
    time: str = ""


class CustomMetricsApi:
    def __init__(
        self,
        nodes: Collection,
        pods: Collection,
        proxy: NodeProxy,
        clock: Clock,
        annotations: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`annotations`: more pairs of annotations with port and path."""
        self._annotations = ((_PORT, _PATH), *annotations)
        self._nodes = nodes
        self._pods = pods
        self._proxy = proxy
        self._clock = clock

    async def respond(self, request: Request, target: RequestInfo) -> Response:
        metric = target.subresource
        chosen = selectors.parse_label_selector(request.param("metricLabelSelector"))
        pods = self._chosen(target, selectors.parse_label_selector(request.param("labelSelector")))
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(pod: Object) -> Object | None:
            async with places:
                return await self._value(pod, metric, chosen)

        items = [each for each in await asyncio.gather(*map(one, pods)) if each is not None]
        if not items:
            words = f'no pod serves the metric "{metric}"; pods say where theirs are by the annotation {_PORT}'
            raise errors.NotFound(words, name=metric, group=GROUP, kind="pods")
        listed = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/v1beta2", "metadata": {}, "items": items}
        return Response(200, orjson.dumps(listed))

    def _chosen(self, target: RequestInfo, labels: LabelSelector) -> list[Object]:
        """Pods that run and have metrics."""
        found = [
            entry.load()
            for entry in self._pods.entries(target.namespace)
            if target.name in ("*", entry.name) and labels.matches(entry.labels)
        ]
        return [
            pod
            for pod in found
            if self._endpoint(pod) is not None and (pod.get("status") or {}).get("phase") == "Running"
        ]

    def _endpoint(self, pod: Object) -> tuple[int, str] | None:
        """Port and path, where annotations say them."""
        known = pod["metadata"].get("annotations") or {}
        if known.get(_SCRAPE) == "false":
            return None
        for port_key, path_key in self._annotations:
            port = known.get(port_key, "")
            if port.isdecimal() and 0 < int(port) < 65536:
                return int(port), known.get(path_key) or "/metrics"
        return None

    async def _value(self, pod: Object, metric: str, chosen: LabelSelector) -> Object | None:
        meta = pod["metadata"]
        node = self._nodes.get("", pod["spec"].get("nodeName") or "")
        endpoint = self._endpoint(pod)
        if node is None or endpoint is None:
            return None
        port, path = endpoint
        query = urlencode({"port": port, "path": path, "metric": metric})
        where = f"/podMetrics/{quote(meta['namespace'])}/{quote(meta['name'])}?{query}"
        try:
            answer = msgspec.convert(await self._proxy.get_json(node.load(), where), _Answer)
        except (errors.ApiError, msgspec.ValidationError):
            return None
        series = [each for each in answer.samples if chosen.matches(each.labels) and isfinite(each.value)]
        if not series:
            return None
        total = min(max(sum(each.value for each in series), -_GREATEST), _GREATEST)
        return {
            "describedObject": {
                "kind": "Pod",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "apiVersion": "/v1",
            },
            "metric": {"name": metric, "selector": None},
            "timestamp": answer.time or rfc3339(self._clock.now()),
            "value": str(quantity.from_milli(round(total * 1000))),
            **_window(series),
        }


def _window(series: Sequence[_Series]) -> Object:
    seconds = max(each.window_seconds for each in series)
    return {"windowSeconds": round(seconds)} if 0 < seconds < _LONGEST else {}
