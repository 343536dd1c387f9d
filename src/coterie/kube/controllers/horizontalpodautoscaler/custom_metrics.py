"""Metrics that pods serve themselves, read from `custom.metrics.k8s.io`, as Kubernetes' own autoscaler reads them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from coterie.kube.api import quantity
from coterie.kube.api.errors import ApiError
from coterie.kube.api.pod_state import parse_time
from coterie.kube.client.client import Client
from coterie.kube.controllers.horizontalpodautoscaler.plan import PodsMetric
from coterie.kube.controllers.horizontalpodautoscaler.replicas import PodSample, Samples

_PREFIX = "/apis/custom.metrics.k8s.io/v1beta2"


async def read_pods_metric(client: Client, metric: PodsMetric) -> Samples | str:
    """The values of all pods of the namespace that serve the metric, or why there are none."""
    namespace, name, selector = metric
    path = f"{_PREFIX}/namespaces/{quote(namespace)}/pods/*/{quote(name)}"
    query = urlencode({"metricLabelSelector": selector}) if selector else ""
    try:
        reply = await client.raw("GET", path, query)
    except ApiError as problem:
        return problem.message
    found: dict[str, PodSample] = {}
    for item in orjson.loads(reply.body).get("items") or ():
        sample = _sample(item)
        if sample is not None:
            found[item["describedObject"]["name"]] = sample
    return found


def _sample(item: dict[str, Any]) -> PodSample | None:
    at = parse_time(item.get("timestamp"))
    if at is None:
        return None
    window = timedelta(seconds=float(item.get("windowSeconds") or 0))
    return PodSample(quantity.parse(item["value"]).milli_value(), at, window)
