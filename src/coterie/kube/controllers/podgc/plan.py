"""Which pods nobody else will ever remove? Pure.

on a node that does not exist (for `quarantine` seconds)        orphaned
being deleted, never given to a node                            unscheduled
being deleted, on a node that is down and marked out-of-service out of service
ended, when there are more than `threshold` of them             the oldest ended ones
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True)
class Settings:
    period: float = 20.0
    """Seconds between two looks."""
    quarantine: float = 40.0
    """Seconds a node must be missing before its pods are; an agent may be about to register it again."""
    threshold: int = 12500
    """Ended pods that are kept; 0 or less: all."""


@dataclass(frozen=True, slots=True)
class Garbage:
    pod: Pod
    reason: str


def missing_nodes(pods: Iterable[Pod], nodes: Collection[str]) -> set[str]:
    return {pod.spec.node_name for pod in pods if pod.spec.node_name and pod.spec.node_name not in nodes}


def garbage(
    pods: Collection[Pod], nodes: Mapping[str, Node], gone: Collection[str], settings: Settings
) -> list[Garbage]:
    """`gone` are the nodes that are missing for long enough."""
    out: dict[str, Garbage] = {}
    for pod in pods:
        reason = _reason(pod, nodes, gone)
        if reason:
            out[pod.metadata.uid] = Garbage(pod, reason)
    if settings.threshold > 0:
        ended = [pod for pod in pods if pod.ended and pod.metadata.uid not in out]
        surplus = len(ended) - settings.threshold
        if surplus > 0:
            ended.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
            for pod in ended[:surplus]:
                out[pod.metadata.uid] = Garbage(pod, "terminated")
    return list(out.values())


def _reason(pod: Pod, nodes: Mapping[str, Node], gone: Collection[str]) -> str:
    name = pod.spec.node_name
    if name:
        if name in gone:
            return "orphaned"
        node = nodes.get(name)
        if pod.metadata.deleting and node is not None and _out_of_service(node):
            return "out-of-service"
    elif pod.metadata.deleting:
        return "unscheduled"
    return ""


def _out_of_service(node: Node) -> bool:
    marked = any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints or ())
    ready = any(found.type == "Ready" and found.status == "True" for found in node.status.conditions or ())
    return marked and not ready
