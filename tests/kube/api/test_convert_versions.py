"""Autoscalers and events in their two shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.kube.api import convert
from coterie.kube.api.errors import BadRequest
from coterie.kube.api.resources import BUILTIN

RESOURCES = {(resource.group, resource.version, resource.plural): resource for resource in BUILTIN}
TARGET = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}
V2: dict[str, Any] = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "h", "annotations": {"mine": "kept"}},
    "spec": {
        "scaleTargetRef": TARGET,
        "minReplicas": 1,
        "maxReplicas": 5,
        "metrics": [
            {"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
            {
                "type": "Object",
                "object": {
                    "describedObject": {"kind": "Service", "name": "s"},
                    "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                    "target": {"type": "Value", "value": "5"},
                },
            },
            {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "3"}}},
            {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}},
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
        ],
        "behavior": {"scaleDown": {"selectPolicy": "Max"}},
    },
    "status": {
        "currentReplicas": 2,
        "desiredReplicas": 3,
        "currentMetrics": [
            {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40, "averageValue": "1"}}}
        ],
        "conditions": [{"type": "AbleToScale", "status": "True"}],
    },
}  # fmt: skip


def test_a_v1_client_sees_the_cpu_target_and_the_rest_in_annotations() -> None:
    v1 = convert.hpa_v2_to_v1(V2)
    assert v1["apiVersion"] == "autoscaling/v1"
    assert v1["spec"] == {
        "scaleTargetRef": TARGET,
        "minReplicas": 1,
        "maxReplicas": 5,
        "targetCPUUtilizationPercentage": 60,
    }
    assert v1["status"] == {"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 40}
    notes = v1["metadata"]["annotations"]
    assert notes["mine"] == "kept"
    assert json.loads(notes["autoscaling.alpha.kubernetes.io/metrics"])[0] == {
        "type": "Pods",
        "pods": {"metricName": "qps", "targetAverageValue": "10"},
    }
    assert json.loads(notes["autoscaling.alpha.kubernetes.io/behavior"]) == {"scaleDown": {"selectPolicy": "Max"}}


def test_nothing_is_lost_on_the_way_back() -> None:
    assert convert.hpa_v1_to_v2(convert.hpa_v2_to_v1(V2)) == V2


def test_a_plain_v1_autoscaler() -> None:
    v1 = {"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}}
    assert convert.hpa_v1_to_v2(v1)["spec"] == {
        "maxReplicas": 3,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
            }
        ],
    }


@pytest.mark.parametrize("text", ["{", "3", "[1]", '"x"'])
def test_a_broken_annotation_is_a_bad_request(text: str) -> None:
    notes = {"autoscaling.alpha.kubernetes.io/metrics": text}
    with pytest.raises(BadRequest, match=r"autoscaling\.alpha\.kubernetes\.io/metrics"):
        convert.hpa_v1_to_v2({"metadata": {"annotations": notes}, "spec": {}})


NEW_EVENT: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "e", "namespace": "n"},
    "eventTime": "2024-01-01T00:00:00.000000Z",
    "reportingController": "c.io/x",
    "reportingInstance": "i",
    "action": "A",
    "reason": "R",
    "regarding": {"kind": "Pod", "name": "p"},
    "related": {"kind": "Node"},
    "note": "hello",
    "type": "Normal",
    "deprecatedSource": {"component": "c"},
    "deprecatedCount": 2,
    "series": {"count": 3},
}


def test_events_both_ways() -> None:
    core = convert.event_events_to_core(NEW_EVENT)
    assert core["apiVersion"] == "v1"
    assert core["involvedObject"] == {"kind": "Pod", "name": "p"}
    assert (core["message"], core["count"], core["source"]) == ("hello", 2, {"component": "c"})
    assert core["reportingComponent"] == "c.io/x"
    assert convert.event_core_to_events(core) == NEW_EVENT


def test_only_two_resources_are_converted() -> None:
    converted = [resource for resource in BUILTIN if convert.is_converted(resource)]
    assert [resource.schema_name for resource in converted] == [
        resource.schema_name for resource in BUILTIN if resource.storage != (resource.group, resource.version)
    ]
    pods = RESOURCES["", "v1", "pods"]
    pod = {"kind": "Pod"}
    assert convert.to_storage(pods, pod) is pod
    assert convert.from_storage(pods, pod) is pod
