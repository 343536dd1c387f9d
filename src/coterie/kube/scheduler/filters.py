"""Which nodes a pod may not go to, and why; every filter answers with the words a person reads in the pod's condition.

Static filters look at the pod's demand and the node's face alone. Counting filters look at what runs on one node.
Neighbour filters (`pod_affinity.py`) look at the whole cluster. Each reason also says what kind of change could lift it, so
that a waiting pod is woken by such changes and sleeps through the others.
"""

from __future__ import annotations

from enum import IntFlag

from coterie.kube.api.labels import COTERIE_HANDLER_PREFIX, COTERIE_POD_NAMESPACE
from coterie.kube.api.node_selection import tolerates, untolerated
from coterie.kube.scheduler.facts import NodeFacts, PodFacts
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.terms import StaticDemand


class UnschedulableCause(IntFlag):
    """What stands in the way of a pod, by what could remove it."""

    FACE = 1
    """Labels, taints, readiness of nodes."""
    ROOM = 2
    """Resources or ports that others hold."""
    NEIGHBOURS = 4
    """Where other pods are."""
    GANG = 8
    """The gang of the pod."""
    ERROR = 16
    """Something failed; time heals."""


NOT_READY = "node(s) were not ready"
UNSCHEDULABLE = "node(s) were unschedulable"
WRONG_NAME = "node(s) didn't match the requested node name"
NOT_AFFINE = "node(s) didn't match Pod's node affinity/selector"
OTHER_NAMESPACE = "node(s) run only pods of their domain's namespace"
NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
NO_AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
ANTI_AFFINITY_OF_OTHERS = "node(s) didn't satisfy existing pods anti-affinity rules"
SKEWED = "node(s) didn't match pod topology spread constraints"
NO_TOPOLOGY = "node(s) didn't match pod topology spread constraints (missing required label)"

_UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
_NOT_READY_TAINT = "node.kubernetes.io/not-ready"
_NEIGHBOUR_REASONS = frozenset((NO_AFFINITY, ANTI_AFFINITY, ANTI_AFFINITY_OF_OTHERS, SKEWED, NO_TOPOLOGY))


def insufficient(resource: str) -> str:
    return f"Insufficient {resource}"


def cause_of(reason: str) -> UnschedulableCause:
    if reason in (NO_PORTS, TOO_MANY_PODS) or reason.startswith("Insufficient "):
        return UnschedulableCause.ROOM
    if reason in _NEIGHBOUR_REASONS:
        # A relabelled node can make a topology that was missing.
        return UnschedulableCause.NEIGHBOURS | UnschedulableCause.FACE
    return UnschedulableCause.FACE


def may_be_preempted(reason: str) -> bool:
    """Whether fewer pods on the node could lift it."""
    return cause_of(reason) is UnschedulableCause.ROOM or reason in (ANTI_AFFINITY, ANTI_AFFINITY_OF_OTHERS, SKEWED)


def static_rejection(node: NodeFacts, demand: StaticDemand) -> str | None:
    if demand.blocked:
        return demand.blocked
    # Cordoned and unready nodes act as if tainted: what tolerates the taint (a daemon) goes there all the same.
    if node.unschedulable and not tolerates(demand.tolerations, _UNSCHEDULABLE_TAINT, "", "NoSchedule"):
        return UNSCHEDULABLE
    if not node.ready and not tolerates(demand.tolerations, _NOT_READY_TAINT, "", "NoSchedule"):
        return NOT_READY
    if demand.node_name and demand.node_name != node.name:
        return WRONG_NAME
    only = node.labels.get(COTERIE_POD_NAMESPACE)
    if only and demand.namespace and demand.namespace != only:
        return OTHER_NAMESPACE
    if node.hard_taints:
        taint = untolerated(node.hard_taints, demand.tolerations)
        if taint is not None:
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not demand.affine(node.name, node.labels):
        return _missing_handler(node, demand) or NOT_AFFINE
    for volume in demand.volumes:
        if not any(term.matches(node.name, node.labels) for term in volume.terms):
            return volume.reason
    return None


def _missing_handler(node: NodeFacts, demand: StaticDemand) -> str:
    """A RuntimeClass selects nodes by the label of its handler; one that is not there is said as what it is."""
    for key, value in demand.selector:
        if key.startswith(COTERIE_HANDLER_PREFIX) and node.labels.get(key) != value:
            return f'node(s) had no runtime handler "{key.removeprefix(COTERIE_HANDLER_PREFIX)}"'
    return ""


def fits(node: NodeState, pod: PodFacts) -> bool:
    """Whether the node has the room and the ports. What is not asked for is not looked at, as in Kubernetes."""
    if node.count >= node.room_pods:
        return False
    if pod.cpu and node.cpu + pod.cpu > node.room_cpu:
        return False
    if pod.memory and node.memory + pod.memory > node.room_memory:
        return False
    for name, amount in pod.others:
        if node.others.get(name, 0) + node.excess.get(name, 0) + amount > node.room_others.get(name, 0):
            return False
    if pod.ports and not node.ports_free(pod.ports):
        return False
    return not node.nominated or _fits_beside_nominated(node, pod)


def shortages(node: NodeState, pod: PodFacts) -> list[str]:
    """All that `fits` found missing, in words."""
    reasons = []
    if pod.ports and not node.ports_free(pod.ports):
        reasons.append(NO_PORTS)
    cpu, memory, count = node.cpu, node.memory, node.count
    others = dict(node.others)
    for nominated in _nominated_before(node, pod):
        cpu, memory, count = cpu + nominated.cpu, memory + nominated.memory, count + 1
        for name, amount in nominated.others:
            others[name] = others.get(name, 0) + amount
    if count >= node.room_pods:
        reasons.append(TOO_MANY_PODS)
    if pod.cpu and cpu + pod.cpu > node.room_cpu:
        reasons.append(insufficient("cpu"))
    if pod.memory and memory + pod.memory > node.room_memory:
        reasons.append(insufficient("memory"))
    for name, amount in pod.others:
        if others.get(name, 0) + node.excess.get(name, 0) + amount > node.room_others.get(name, 0):
            reasons.append(insufficient(name))
    return reasons


def _nominated_before(node: NodeState, pod: PodFacts) -> list[PodFacts]:
    """Those for whom room was made here and who do not have to give way to this pod."""
    return [n for n in node.nominated.values() if n.uid != pod.uid and n.priority >= pod.priority]


def _fits_beside_nominated(node: NodeState, pod: PodFacts) -> bool:
    return not _nominated_before(node, pod) or not shortages(node, pod)
