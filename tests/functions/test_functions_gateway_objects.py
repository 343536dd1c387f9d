"""The objects of the HTTP gateway."""

from __future__ import annotations

from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.functions.gateway_objects import gateway_addresses, gateway_objects
from coterie.functions.settings import FunctionsSettings
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.pods import Pod, PodStatus


def test_c26_c35_objects() -> None:
    settings = FunctionsSettings("alice", DomainPaths(Path("/r")), min_gateways=2, max_gateways=3, image="own:1")
    found = {each.kind.resource.kind: each.body for each in gateway_objects(settings, "t0ken", "t0invoke")}
    assert {each["metadata"]["name"] for each in found.values()} == {"serverless-gateway"}
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 3)
    assert scaler["metrics"][0]["resource"]["target"]["averageUtilization"] == 60
    assert [each["port"] for each in found["Service"]["spec"]["ports"]] == [6810]
    spec = found["Deployment"]["spec"]
    assert "replicas" not in spec, "those are the autoscaler's"
    assert spec["template"]["spec"]["containers"][0]["image"] == "own:1"
    assert "t0ken" not in str(found["Deployment"]) and "t0invoke" not in str(found["Deployment"])
    given = {each["name"]: each.get("valueFrom") for each in spec["template"]["spec"]["containers"][0]["env"]}
    assert given["COTERIE_INVOKE_TOKEN"] == {"secretKeyRef": {"name": "serverless-gateway", "key": "invoke-token"}}
    assert {"token", "invoke-token"} == set(found["Secret"]["data"])


def test_gateways_that_run_have_links() -> None:
    pods = [
        Pod(metadata=ObjectMeta(uid="1"), status=PodStatus(phase="Running", pod_ip="10.0.0.1")),
        Pod(metadata=ObjectMeta(uid="2"), status=PodStatus(phase="Pending")),
        Pod(metadata=ObjectMeta(uid="3"), status=PodStatus(phase="Failed", pod_ip="10.0.0.3")),
    ]
    assert [(each.uid, each.host, each.port) for each in gateway_addresses(pods, "t")] == [("1", "10.0.0.1", 6812)]
