"""Which nodes a DaemonSet wants a pod on, and the pod for one of them. Pure.

A pod of a DaemonSet goes through the scheduler like any other: a node affinity on the field `metadata.name` names its
node, and tolerations are added, so that nodes that are cordoned or under pressure have their pod all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.kube.api.labels import (
    CONTROLLER_REVISION_HASH,
    COTERIE_POD_NAMESPACE,
    TAINT_DISK_PRESSURE,
    TAINT_MEMORY_PRESSURE,
    TAINT_NETWORK_UNAVAILABLE,
    TAINT_NOT_READY,
    TAINT_PID_PRESSURE,
    TAINT_UNREACHABLE,
    TAINT_UNSCHEDULABLE,
)
from coterie.kube.api.meta import Object
from coterie.kube.api.node_selection import node_terms, untolerated
from coterie.kube.api.types.apps import DAEMON_SETS, DaemonSet
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod, Toleration
from coterie.kube.control.pod_control import pod_from_template

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_NAME = "metadata.name"
_AUTOMATIC = (
    (TAINT_NOT_READY, "NoExecute"),
    (TAINT_UNREACHABLE, "NoExecute"),
    (TAINT_DISK_PRESSURE, "NoSchedule"),
    (TAINT_MEMORY_PRESSURE, "NoSchedule"),
    (TAINT_PID_PRESSURE, "NoSchedule"),
    (TAINT_UNSCHEDULABLE, "NoSchedule"),
)


@dataclass(frozen=True, slots=True)
class NodeFit:
    run: bool
    """The node should have a pod."""
    keep: bool
    """A pod that is there may stay."""


def tolerations_of(daemon_set: DaemonSet) -> list[Object]:
    """Those of the template and the automatic ones."""
    spec = (daemon_set.spec.template or {}).get("spec") or {}
    found: list[Object] = [dict(each) for each in spec.get("tolerations") or ()]
    wanted = [*_AUTOMATIC, *([(TAINT_NETWORK_UNAVAILABLE, "NoSchedule")] if spec.get("hostNetwork") else ())]
    for key, effect in wanted:
        added = {"key": key, "operator": "Exists", "effect": effect}
        if added not in found:
            found.append(added)
    return found


class NodeMatcher:
    """What one DaemonSet asks of nodes, worked out once."""

    def __init__(self, daemon_set: DaemonSet) -> None:
        spec: Mapping[str, Any] = (daemon_set.spec.template or {}).get("spec") or {}
        affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
        self._name = spec.get("nodeName") or ""
        self._labels: Mapping[str, str] = spec.get("nodeSelector") or {}
        self._terms = node_terms(affinity)
        self._tolerations = msgspec.convert(tolerations_of(daemon_set), tuple[Toleration, ...])
        self._namespace = daemon_set.metadata.namespace

    def fit(self, node: Node) -> NodeFit:
        name, labels = node.metadata.name, node.metadata.labels or {}
        only = labels.get(COTERIE_POD_NAMESPACE)
        if (self._name and self._name != name) or (only and only != self._namespace):
            return NodeFit(False, False)
        if any(labels.get(key) != value for key, value in self._labels.items()):
            return NodeFit(False, False)
        if self._terms is not None and not any(term.matches(name, labels) for term in self._terms):
            return NodeFit(False, False)
        hard = [taint for taint in node.spec.taints or () if taint.effect in ("NoSchedule", "NoExecute")]
        if untolerated(hard, self._tolerations) is None:
            return NodeFit(True, True)
        evicting = [taint for taint in hard if taint.effect == "NoExecute"]
        return NodeFit(False, untolerated(evicting, self._tolerations) is None)


def pod_for(daemon_set: DaemonSet, node: str, revision: str) -> Object:
    """The pod of one node; `revision` is the hash of the template's revision."""
    pod = pod_from_template(DAEMON_SETS, daemon_set.metadata, daemon_set.spec.template or {})
    meta = pod["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), CONTROLLER_REVISION_HASH: revision}
    spec = pod["spec"]
    affinity = dict(spec.get("affinity") or {})
    named = {"matchFields": [{"key": _NODE_NAME, "operator": "In", "values": [node]}]}
    affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: {"nodeSelectorTerms": [named]}}
    pod["spec"] = {**spec, "affinity": affinity, "tolerations": tolerations_of(daemon_set)}
    return pod


def node_of(pod: Pod) -> str:
    """The node a pod is on, or is meant for; empty when it says neither."""
    if pod.spec.node_name:
        return pod.spec.node_name
    required = (((pod.spec.affinity or {}).get("nodeAffinity")) or {}).get(_REQUIRED) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == _NODE_NAME and field.get("operator") == "In" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return ""
