"""The scale sub-resource of built-in workloads and of custom resources."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api.errors import BadRequest, Invalid
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.rules.scale import ScalePaths, apply_scale, scale_of

RESOURCES = {(resource.group, resource.plural): resource for resource in BUILTIN}
DEPLOYMENTS = RESOURCES["apps", "deployments"]
WIDGETS = Resource("example.com", "v1", "widgets", "Widget", True, custom=True)
PATHS = ScalePaths.of(
    {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.now", "labelSelectorPath": ".status.selector"}
)
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
    "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "c", "a": "b"}}},
    "status": {"replicas": 2},
}


def test_scale_of_a_deployment() -> None:
    assert scale_of(DEPLOYMENT, DEPLOYMENTS) == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {"name": "d", "namespace": "n", "uid": "u", "resourceVersion": "7"},
        "spec": {"replicas": 3},
        "status": {"replicas": 2, "selector": "a=b,b=c"},
    }


def test_scale_of_a_replication_controller() -> None:
    controller = {"spec": {"replicas": 1, "selector": {"x": "y"}}}
    assert scale_of(controller, RESOURCES["", "replicationcontrollers"])["status"]["selector"] == "x=y"


def test_scale_of_a_custom_resource() -> None:
    widget = {"metadata": {"name": "w"}, "spec": {"size": 4}, "status": {"now": 1, "selector": "a=b"}}
    scale = scale_of(widget, WIDGETS, PATHS)
    assert (scale["spec"], scale["status"]) == ({"replicas": 4}, {"replicas": 1, "selector": "a=b"})
    assert apply_scale(widget, {"spec": {"replicas": 9}}, WIDGETS, PATHS)["spec"] == {"size": 9}
    with pytest.raises(Invalid, match="does not exist"):
        scale_of({"spec": {}}, WIDGETS, PATHS)


def test_applying_a_scale_changes_a_copy() -> None:
    scaled = apply_scale(DEPLOYMENT, {"metadata": {"resourceVersion": "6"}, "spec": {"replicas": 0}}, DEPLOYMENTS)
    assert scaled["spec"]["replicas"] == 0
    assert scaled["metadata"]["resourceVersion"] == "6"
    assert DEPLOYMENT["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("scale", "error", "told"),
    [
        ({"spec": {"replicas": -1}}, Invalid, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        ({"spec": {"replicas": "3"}}, BadRequest, "must be a whole number"),
        ({"kind": "Pod"}, BadRequest, "expected a Scale, got kind Pod"),
    ],
)
def test_refused_scales(scale: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        apply_scale(DEPLOYMENT, scale, DEPLOYMENTS)
