"""Autoscalers with the figures of real agents. Targets are changed instead of the load: figures are the same on busy machines."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from e2e_kit import Cluster, container, deployment, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")

_SOON = 90.0
_METRICS = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    body = b'# TYPE queue_length gauge\\nqueue_length{name="a"} 20\\nqueue_length{name="b"} 10\\n'
    self.send_response(200 if self.path == '/figures' else 404)
    self.end_headers()
    self.wfile.write(body)
  def log_message(self, *a): pass
http.server.HTTPServer(('0.0.0.0', 8080), H).serve_forever()
"""


def autoscaler(name: str, metric: dict[str, Any], most: int = 3) -> dict[str, Any]:
    at_once = {"stabilizationWindowSeconds": 0}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [metric],
            "behavior": {"scaleDown": at_once},
        },
    }


def cpu(percent: int) -> dict[str, Any]:
    aim = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": aim}}


def memory(amount: str) -> dict[str, Any]:
    aim = {"type": "AverageValue", "averageValue": amount}
    return {"type": "Resource", "resource": {"name": "memory", "target": aim}}


def queue(amount: str) -> dict[str, Any]:
    aim = {"type": "AverageValue", "averageValue": amount}
    return {"type": "Pods", "pods": {"metric": {"name": "queue_length"}, "target": aim}}


def _size(cluster: Cluster, name: str) -> tuple[int, int]:
    found = cluster.json(f"get deployment {name}")
    return found["spec"]["replicas"], found["status"].get("readyReplicas", 0)


def _reaches(cluster: Cluster, name: str, wanted: int) -> None:
    until(f"{name} has {wanted} replicas", lambda: _size(cluster, name) == (wanted, wanted), _SOON)


def test_g11_cpu_and_memory_each_work_alone(autonomy: Cluster) -> None:
    busy = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.1; done"
    small = {"requests": {"cpu": "1m", "memory": "1Mi"}}
    autonomy.apply(
        deployment("bycpu", 1, container(script=busy, resources=small)),
        deployment("bymem", 1, container(resources=small)),
        autoscaler("bycpu", cpu(100)),
        autoscaler("bymem", memory("1k"), most=2),
    )
    _reaches(autonomy, "bycpu", 3)
    _reaches(autonomy, "bymem", 2)
    assert re.search(r"^bycpu-\S+\s+[1-9]\d*m\s+\d+Mi", autonomy.do("top pods"), re.MULTILINE)
    described = autonomy.do("describe hpa bycpu")
    assert "SuccessfulRescale" in described and "TooManyReplicas" in described
    autonomy.apply(autoscaler("bycpu", cpu(1_000_000)), autoscaler("bymem", memory("10Gi"), most=2))
    _reaches(autonomy, "bycpu", 1)
    _reaches(autonomy, "bymem", 1)


def test_metrics_that_pods_serve_themselves(autonomy: Cluster) -> None:
    serving = deployment("served", 1, {"name": "main", "image": "coterie/python:latest", "args": ["-c", _METRICS]})
    notes = {"prometheus.io/port": "8080", "prometheus.io/path": "/figures"}
    serving["spec"]["template"]["metadata"]["annotations"] = notes
    autonomy.apply(serving, autoscaler("served", queue("10")))
    _reaches(autonomy, "served", 3)
    status = autonomy.json("get hpa served")["status"]
    assert status["currentMetrics"][0]["pods"]["current"]["averageValue"] == "30"
    path = f"/apis/custom.metrics.k8s.io/v1beta2/namespaces/{autonomy.namespace}/pods/*/queue_length"
    found = json.loads(autonomy.do(f"get --raw {path}?metricLabelSelector=name%3Db"))
    assert found["items"][0]["value"] == "10"
    autonomy.apply(autoscaler("served", queue("30")))
    until("the target is met", lambda: "30/30" in autonomy.do("get hpa served"), _SOON)
    autonomy.apply(autoscaler("served", queue("300")))
    _reaches(autonomy, "served", 1)
