"""autoscale, get and describe hpa, top: the controllers are real, the figures those of `fake_agent.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kubectl_steps import Act, Chapter, Command, Scene
from server_process import ApiFailed

_MERGE = "application/merge-patch+json"


def _load(millicores: int, replicas: int, limited: str) -> Callable[[Scene], None]:
    """What agents would do until the target has this size: run its pods, and report that each uses so much.

    The size alone is not the end: it may be right while the new pods are not measured yet, for another reason.
    """

    def act(scene: Scene) -> None:
        deadline = time.monotonic() + 40
        while True:
            pods = scene.server.api("GET", f"/api/v1/namespaces/{scene.namespace}/pods?labelSelector=app%3Dweb")[
                "items"
            ]
            _run(scene, pods)
            _report(scene, pods, millicores)
            found = scene.server.api("GET", f"/apis/apps/v1/namespaces/{scene.namespace}/deployments/web")
            if found["spec"]["replicas"] == replicas == len(pods) and _settled(scene, replicas, limited):
                return
            assert time.monotonic() < deadline, f"the target has {found['spec']['replicas']} replicas"
            time.sleep(0.1)

    return act


def _settled(scene: Scene, replicas: int, limited: str) -> bool:
    path = f"/apis/autoscaling/v2/namespaces/{scene.namespace}/horizontalpodautoscalers/web"
    status = scene.server.api("GET", path).get("status") or {}
    reasons = {each["reason"] for each in status.get("conditions") or ()}
    return status.get("currentReplicas") == replicas and "SucceededRescale" not in reasons and limited in reasons


def _run(scene: Scene, pods: list[dict[str, Any]]) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [ready]}
    for pod in pods:
        path = f"/api/v1/namespaces/{scene.namespace}/pods/{pod['metadata']['name']}"
        try:
            if pod["metadata"].get("deletionTimestamp"):
                scene.server.api("DELETE", f"{path}?gracePeriodSeconds=0")
            elif pod["status"]["phase"] != "Running":
                scene.server.api("PATCH", f"{path}/status", {"status": status}, _MERGE)
        except ApiFailed as failed:
            if failed.status != 404:
                raise


def _report(scene: Scene, pods: list[dict[str, Any]], millicores: int) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    used = {
        "cpu": {"usageNanoCores": millicores * 1_000_000, "time": now, "windowSeconds": 1.0},
        "memory": {"workingSetBytes": 48 * 1024**2, "time": now},
    }
    summary = {
        "node": {"nodeName": "edge-1", **used},
        "pods": [
            {
                "podRef": {
                    "name": each["metadata"]["name"],
                    "namespace": scene.namespace,
                    "uid": each["metadata"]["uid"],
                },
                "containers": [{"name": "main", **used}],
            }
            for each in pods
        ],
    }
    (scene.server.root / "agent" / "summary.json").write_text(json.dumps(summary))


def _conditions(autoscaler: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in autoscaler["status"]["conditions"]}


AUTOSCALING = Chapter(
    "autoscaling",
    (
        Command("target", "apply -f web.yaml", out="deployment.apps/web created"),
        Command("refused", "autoscale deployment web --min=3 --max=2", rc=1, err="--max=MAXPODS must be at least|must be larger or equal|maxReplicas"),
        Command("autoscale", "autoscale deployment web --min=1 --max=4 --cpu-percent=50", out="horizontalpodautoscaler.autoscaling/web autoscaled"),
        Act("the load grows it to the maximum", _load(90, 4, "TooManyReplicas")),
        Command("wait", "wait --for=condition=ScalingActive hpa/web --timeout=20s", out="condition met"),
        Command("columns", "get hpa", out=(r"^NAME\s+REFERENCE\s+TARGETS\s+MINPODS\s+MAXPODS\s+REPLICAS\s+AGE", r"^web\s+Deployment/web\s+(cpu: )?90%/50%\s+1\s+4\s+4")),
        Command("status", "get hpa web -o json", check=lambda h: h["status"]["currentReplicas"] == 4 and h["status"]["desiredReplicas"] == 4 and "lastScaleTime" in h["status"] and _conditions(h) == {"AbleToScale": "ReadyForNewScale", "ScalingActive": "ValidMetricFound", "ScalingLimited": "TooManyReplicas"}),
        Command("current metrics", "get hpa web -o 'jsonpath={.status.currentMetrics[0].resource.current.averageUtilization}'", out=r"\A90\Z"),
        Command("version 1", "get horizontalpodautoscalers.v1.autoscaling web -o json", check=lambda h: h["status"]["currentCPUUtilizationPercentage"] == 90),
        Command("describe", "describe hpa web", out=(r"AbleToScale\s+True\s+ReadyForNewScale", r"ScalingLimited\s+True\s+TooManyReplicas", r"Deployment pods:\s+4 current / 4 desired", r"SuccessfulRescale.*New size: \d; reason: cpu resource utilization", r"resource cpu on pods +\(as a percentage of request\): +90% \(90m\) / 50%")),
        Command("top", "top pods -l app=web", out=r"^web-\S+\s+90m\s+48Mi"),
        Command("quick", "patch hpa web --type=merge -p '{\"spec\":{\"behavior\":{\"scaleDown\":{\"stabilizationWindowSeconds\":0}}}}'", out="patched"),
        Act("without load it shrinks", _load(5, 1, "DesiredWithinRange")),
        Command("shrunk", "get events --field-selector=reason=SuccessfulRescale,involvedObject.name=web", out="New size: 1; reason: All metrics below target"),
        Command("raw metrics", "get --raw /apis/metrics.k8s.io/v1beta1/namespaces/{ns}/pods", check=lambda m: m["kind"] == "PodMetricsList" and m["items"][0]["window"] == "1s"),
        Command("one is enough", "delete hpa web", out="deleted"),
        Command("unserved metrics", "apply -f external.yaml", out="created"),
        Command("unserved condition", "wait --for=jsonpath='{.status.conditions[?(@.type==\"ScalingActive\")].reason}'=FailedGetExternalMetric hpa/external --timeout=20s", out="condition met", since="1.31"),
        Command("finish", "delete hpa --all", out="deleted"),
        Command("finish target", "delete deployment web --cascade=foreground --wait=false", out="deleted"),
    ),
    files={
        "web.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {nodeName: edge-1, containers: [{name: main, image: x, resources: {requests: {cpu: 100m}}}]}
""",
        "external.yaml": """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: external}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 3
  metrics:
  - {type: External, external: {metric: {name: queue}, target: {type: Value, value: "5"}}}
""",
    },
    agent=True,
)  # fmt: skip
