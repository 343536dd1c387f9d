"""Short ways to write nodes, pods and task resources for scheduler tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.scheduler.engine import SchedulingEngine
from coterie.kube.scheduler.facts import PodFacts, node_facts, pod_facts
from coterie.kube.scheduler.snapshot import Snapshot
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.gangs.plugin import GangPlugin

PREFIX = "kuscia.secretflow/"
BANDWIDTH = "kuscia.io/bandwidth"


def node_object(
    name: str,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: int = 110,
    *,
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    ready: str | None = "True",
    unschedulable: bool = False,
    **others: Any,
) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    amounts = {
        "cpu": cpu,
        "memory": memory,
        "pods": pods,
        **{k.replace("bandwidth", BANDWIDTH): v for k, v in others.items()},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"unschedulable": unschedulable, "taints": taints or []},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions},
    }


def pod_object(
    name: str,
    cpu: str = "",
    memory: str = "",
    *,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    priority: int | None = None,
    ports: list[dict[str, Any]] | None = None,
    owner: str = "",
    node: str = "",
    created: str = "2026-01-01T00:00:00Z",
    requests: dict[str, Any] | None = None,
    phase: str = "Pending",
    **spec: Any,
) -> dict[str, Any]:
    asked = {**({"cpu": cpu} if cpu else {}), **({"memory": memory} if memory else {}), **(requests or {})}
    # Extended resources cannot be overcommitted: their limit is their request.
    limits = {name: amount for name, amount in asked.items() if "/" in name}
    container = {"name": "c", "image": "i", "resources": {"requests": asked, "limits": limits}, "ports": ports or []}
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": labels or {},
            "annotations": annotations or {},
            "ownerReferences": owners if owner else [],
            "creationTimestamp": created,
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [container],
            **({"priority": priority} if priority is not None else {}),
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": phase},
    }


def gang_pod_object(name: str, task: str, namespace: str = "alice", *, group: str = "", **more: Any) -> dict[str, Any]:
    return pod_object(
        name,
        more.pop("cpu", "1"),
        namespace=namespace,
        labels={PREFIX + "task-resource-uid": f"uid-{task}", **more.pop("labels", {})},
        annotations={PREFIX + "task-resource": task, PREFIX + "task-resource-group": group or task},
        schedulerName="kuscia-scheduler",
        **more,
    )


def task_object(
    name: str,
    phase: str = "Reserving",
    namespace: str = "alice",
    *,
    least: int = 1,
    seconds: int | None = None,
    group: str = "",
    reason: str = "",
    created: str = "2026-01-01T00:00:00Z",
) -> dict[str, Any]:
    conditions = [{"type": phase, "status": "True", "reason": reason}] if reason else []
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "TaskResource",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "annotations": {PREFIX + "task-resource-group": group or name},
            "creationTimestamp": created,
        },
        "spec": {
            "minReservedPods": least,
            "initiator": namespace,
            **({"resourceReservedSeconds": seconds} if seconds else {}),
        },
        "status": {"phase": phase, "conditions": conditions},
    }


def node(*args: Any, **kwargs: Any) -> Node:
    return NODES.decode(msgspec.json.encode(node_object(*args, **kwargs)))


def pod(*args: Any, **kwargs: Any) -> Pod:
    return PODS.decode(msgspec.json.encode(pod_object(*args, **kwargs)))


def gang_pod(*args: Any, **kwargs: Any) -> Pod:
    return PODS.decode(msgspec.json.encode(gang_pod_object(*args, **kwargs)))


def task(*args: Any, **kwargs: Any) -> TaskResource:
    return TASK_RESOURCES.decode(msgspec.json.encode(task_object(*args, **kwargs)))


def facts(*args: Any, **kwargs: Any) -> PodFacts:
    return gang_facts(pod(*args, **kwargs))


def snapshot(*nodes: Node, placed: dict[str, list[PodFacts]] | None = None) -> Snapshot:
    out = Snapshot()
    out.resource_scores = GangPlugin.resource_scores
    for one in nodes:
        out.set_node(node_facts(one))
    for name, pods in (placed or {}).items():
        for one_pod in pods:
            out.place(one_pod, name)
    return out


def bound(one: Pod, where: str, phase: str = "Running") -> Pod:
    """The same pod after its binding."""
    return msgspec.structs.replace(
        one,
        spec=msgspec.structs.replace(one.spec, node_name=where),
        status=msgspec.structs.replace(one.status, phase=phase),
    )


def gang_facts(found: Pod) -> PodFacts:
    return pod_facts(found, GangPlugin().gang_of(found))


class GangEngine(SchedulingEngine):
    """An engine with Kuscia's plug-in."""

    def __init__(self, monotonic: Callable[[], float], *, hold_seconds: float = 30.0, **settings: Any) -> None:
        self.gangs = GangPlugin(hold_seconds=hold_seconds)
        super().__init__(monotonic, plugins=[self.gangs], **settings)
        self.task_seen = self.gangs.task_seen
        self.task_gone = self.gangs.task_gone
        self.holding = self.gangs.holding
        self.reservations = self.gangs.reservations
        self.mark_gave_up = self.reservations.mark_gave_up
