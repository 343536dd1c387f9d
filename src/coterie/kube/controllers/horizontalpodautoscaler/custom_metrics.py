"""Metrics of pods, of other objects and of systems outside, from `custom.metrics.k8s.io` and `external.metrics.k8s.io`, as Kubernetes'
own autoscaler reads them.

Adapters are aggregated API servers. Without one for `custom.metrics.k8s.io` the API server itself answers for metrics that pods
serve. What an adapter answers is not trusted: it becomes numbers, or a message in a condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from coterie.kube.api import quantity
from coterie.kube.api.errors import ApiError
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.resources import Resource
from coterie.kube.client.client import Client
from coterie.kube.controllers.horizontalpodautoscaler.plan import ObjectMetric, PodsMetric
from coterie.kube.controllers.horizontalpodautoscaler.replicas import PodSample, Samples

CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
_BUILT_IN = {CUSTOM: "v1beta2", EXTERNAL: "v1beta1"}
_TIMEOUT = 10.0
_LONGEST = 86400.0
_Found = TypeVar("_Found")


class _Described(msgspec.Struct, frozen=True):
    name: str = ""


class _MetricValue(msgspec.Struct, frozen=True, rename="camel"):
    value: str | int | float
    timestamp: str = ""
    described_object: _Described = _Described()
    window_seconds: float | None = None
    window: float | None = None
    """The same in v1beta1."""


class _MetricValues(msgspec.Struct, frozen=True):
    items: tuple[_MetricValue, ...]


class _PreferredVersion(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    preferred_version: _PreferredVersion


async def served_version(client: Client, group: str) -> str:
    """The version of the adapter, or the built-in one where there is no adapter."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            reply = await client.raw("GET", f"/apis/{group}")
        return msgspec.json.decode(reply.body, type=_Group).preferred_version.version
    except (ApiError, TimeoutError, msgspec.DecodeError):
        return _BUILT_IN[group]


async def read_pods_metric(client: Client, version: str, metric: PodsMetric) -> Samples | str:
    """The values of all pods of the namespace that have the metric, or why there are none."""
    namespace, name, selector = metric
    path = f"/apis/{CUSTOM}/{version}/namespaces/{quote(namespace)}/pods/*/{quote(name)}"

    async def read() -> Samples | str:
        found: dict[str, PodSample] = {}
        for item in await _values(client, path, "metricLabelSelector", selector):
            at = parse_time(item.timestamp)
            if at is not None:
                window = timedelta(seconds=min(max(item.window_seconds or item.window or 0.0, 0.0), _LONGEST))
                found[item.described_object.name] = PodSample(_milli(item), at, window)
        return found

    return await _or_problem(read())


async def read_object_metric(
    client: Client, version: str, metric: ObjectMetric, resource: Resource | None
) -> int | str:
    """In thousandths."""
    if resource is None:
        return f'no matches for kind "{metric.kind}" in version "{metric.api_version}"'
    prefix = f"/apis/{CUSTOM}/{version}"
    if resource.plural == "namespaces" and not resource.group:
        path = f"{prefix}/namespaces/{quote(metric.name)}/metrics/{quote(metric.metric)}"
    else:
        scope = f"namespaces/{quote(metric.namespace)}/" if resource.namespaced else ""
        path = f"{prefix}/{scope}{resource.group_resource}/{quote(metric.name)}/{quote(metric.metric)}"

    async def read() -> int | str:
        values = await _values(client, path, "metricLabelSelector", metric.selector)
        return _milli(values[0]) if values else "no metric value returned"

    return await _or_problem(read())


async def read_external_metric(client: Client, version: str, metric: PodsMetric) -> int | str:
    """The sum of all series, in thousandths."""
    namespace, name, selector = metric
    path = f"/apis/{EXTERNAL}/{version}/namespaces/{quote(namespace)}/{quote(name)}"

    async def read() -> int | str:
        values = await _values(client, path, "labelSelector", selector)
        return sum(map(_milli, values)) if values else "no metrics returned from external metrics API"

    return await _or_problem(read())


async def _or_problem(reading: Awaitable[_Found]) -> _Found | str:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await reading
    except ApiError as problem:
        return problem.message
    except TimeoutError:
        return "context deadline exceeded"
    except (msgspec.DecodeError, quantity.QuantityError) as problem:
        return f"the answer of the adapter cannot be read: {str(problem)[:200]}"


async def _values(client: Client, path: str, parameter: str, selector: str) -> tuple[_MetricValue, ...]:
    query = urlencode({parameter: selector}) if selector else ""
    reply: Any = await client.raw("GET", path, query)
    return msgspec.json.decode(reply.body, type=_MetricValues).items


def _milli(item: _MetricValue) -> int:
    return quantity.parse(str(item.value)).milli_value()
