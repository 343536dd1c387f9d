"""What the scheduler knows of one pod and of one node, as numbers and matchers that are cheap to ask.

Amounts are whole numbers: thousandths of a CPU, bytes, plain counts. Facts never change; a new state of an object is
new facts. Extended resources are all treated alike in `others`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.kube.api import quantity
from coterie.kube.api.meta import ObjectKey, controller_of, is_true
from coterie.kube.api.node_selection import NodeTerm
from coterie.kube.api.quota import pod_resources
from coterie.kube.api.types.nodes import Node, Taint
from coterie.kube.api.types.pods import Pod, PodSpec, PodStatus
from coterie.kube.scheduler.plugin import GangMembership
from coterie.kube.scheduler.terms import PodTerms, StaticDemand, pod_terms, preferred_nodes, static_demand

HostPort = tuple[str, str, int]
"""(address, protocol, port); the address 0.0.0.0 takes the port on all of them."""

_ANY_ADDRESS = "0.0.0.0"
_NO_LABELS: Mapping[str, str] = {}
_LEAST_CPU = 100
_LEAST_MEMORY = 200 * 1024 * 1024
"""What a pod that asks for nothing counts when nodes are compared; otherwise such pods would all go to one node."""


@dataclass(frozen=True, slots=True)
class Requests:
    cpu: int = 0
    memory: int = 0
    others: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True, eq=False)
class PodFacts:
    key: ObjectKey
    uid: str
    labels: Mapping[str, str]
    cpu: int
    memory: int
    others: tuple[tuple[str, int], ...]
    weighed_cpu: int
    weighed_memory: int
    ports: tuple[HostPort, ...]
    static: StaticDemand
    preferred_nodes: tuple[tuple[int, NodeTerm], ...]
    terms: PodTerms
    priority: int
    preempts: bool
    owner: str
    """Who made it: pods of one owner are spread."""
    created: str
    started: str
    terminating: bool
    gang: ObjectKey | None
    """The gang it belongs to; None for pods that go alone."""
    gang_unnamed: bool
    """It will belong to a gang that is not named yet."""
    gang_uid: str
    group: str
    """What gangs of several clusters that wait for each other have in common."""
    claims: tuple[str, ...] = ()
    """Names of the PersistentVolumeClaims that it mounts."""
    unbound_claims: tuple[str, ...] = ()
    """Those that are bound when its node is known."""

    @property
    def namespace(self) -> str:
        return self.key.namespace


@dataclass(slots=True, eq=False)
class NodeFacts:
    name: str
    labels: Mapping[str, str]
    hard_taints: tuple[Taint, ...]
    soft_taints: tuple[Taint, ...]
    unschedulable: bool
    ready: bool
    cpu: int
    memory: int
    pods: int
    others: Mapping[str, int]

    def same_place(self, other: NodeFacts) -> bool:
        """Whether all filters that do not count anything say the same of both."""
        return (
            self.labels == other.labels
            and self.hard_taints == other.hard_taints
            and self.soft_taints == other.soft_taints
            and self.unschedulable == other.unschedulable
            and self.ready == other.ready
        )

    def same_size(self, other: NodeFacts) -> bool:
        return (
            self.cpu == other.cpu
            and self.memory == other.memory
            and self.pods == other.pods
            and self.others == other.others
        )


def pod_facts(pod: Pod, membership: GangMembership | None = None) -> PodFacts:
    meta, spec = pod.metadata, pod.spec
    labels = meta.labels or _NO_LABELS
    requests = requests_of(spec, pod.status)
    gang = membership.key if membership is not None else None
    owner = controller_of(meta)
    return PodFacts(
        key=pod.key,
        uid=meta.uid or f"{meta.namespace}/{meta.name}",
        labels=labels,
        cpu=requests.cpu,
        memory=requests.memory,
        others=requests.others,
        weighed_cpu=requests.cpu or _LEAST_CPU,
        weighed_memory=requests.memory or _LEAST_MEMORY,
        ports=host_ports(spec),
        static=static_demand(spec.node_name, spec.node_selector, spec.affinity, spec.tolerations, meta.namespace),
        preferred_nodes=preferred_nodes(spec.affinity),
        terms=pod_terms(spec.affinity, spec.topology_spread_constraints, meta.namespace, labels),
        priority=spec.priority or 0,
        preempts=spec.preemption_policy != "Never",
        owner=owner.uid if owner is not None else str(gang or ""),
        created=meta.creation_timestamp or "",
        started=pod.status.start_time or meta.creation_timestamp or "",
        terminating=meta.deleting,
        gang=gang,
        gang_unnamed=membership is not None and gang is None,
        gang_uid=membership.uid if membership is not None else "",
        group=membership.group if membership is not None else "",
        claims=pod.claim_names,
    )


def node_facts(node: Node) -> NodeFacts:
    taints = node.spec.taints or ()
    amounts = _amounts(node.status.allocatable or node.status.capacity or {})
    return NodeFacts(
        name=node.metadata.name,
        labels=node.metadata.labels or _NO_LABELS,
        hard_taints=tuple(_bare(t) for t in taints if t.effect in ("NoSchedule", "NoExecute")),
        soft_taints=tuple(_bare(t) for t in taints if t.effect == "PreferNoSchedule"),
        unschedulable=node.spec.unschedulable,
        # A node that never said how it is has no agent that could start anything.
        ready=is_true(node.status.conditions, "Ready"),
        cpu=amounts.pop("cpu", 0),
        memory=amounts.pop("memory", 0),
        pods=amounts.pop("pods", 0),
        others=amounts,
    )


def requests_of(spec: PodSpec, status: PodStatus | None = None) -> Requests:
    """What the whole pod asks for; see `quota.pod_resources` for how containers add up. A pod that is being resized counts
    with the greatest of what it asks for, was given and has."""
    simple = spec.containers
    if status is not None and _resizing(spec, status):
        usage = pod_resources({"spec": msgspec.to_builtins(spec), "status": msgspec.to_builtins(status)}, "requests")
        amounts = {name: a.milli_value() if name == "cpu" else a.value() for name, a in usage.items()}
    elif len(simple) == 1 and not (spec.init_containers or spec.overhead or spec.resources):
        asked: Mapping[str, Any] = (simple[0].resources.requests if simple[0].resources else None) or {}
        amounts = _amounts(asked)
    else:
        usage = pod_resources({"spec": msgspec.to_builtins(spec)}, "requests")
        amounts = {name: a.milli_value() if name == "cpu" else a.value() for name, a in usage.items()}
    cpu, memory = amounts.pop("cpu", 0), amounts.pop("memory", 0)
    return Requests(cpu, memory, tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))


def _resizing(spec: PodSpec, status: PodStatus) -> bool:
    """Whether a container was given, or has, something else than its spec asks for."""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    if not any(found.allocated_resources or found.resources for found in statuses):
        return False
    asked = {
        container.name: (container.resources.requests if container.resources else None) or {}
        for container in (*spec.containers, *(spec.init_containers or ()))
    }
    return any(
        (found.allocated_resources or {}) != asked.get(found.name, {})
        or ((found.resources.requests if found.resources else None) or {}) != asked.get(found.name, {})
        for found in statuses
        if found.allocated_resources or found.resources
    )


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    found: dict[HostPort, None] = {}
    for container in (*spec.containers, *(spec.init_containers or ())):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            # Init containers are gone before the others start; only sidecars keep their ports.
            if number and (container.restart_policy == "Always" or container in spec.containers):
                found[(port.host_ip or _ANY_ADDRESS, port.protocol or "TCP", number)] = None
    return tuple(found)


def ports_clash(one: HostPort, other: HostPort) -> bool:
    return one[1:] == other[1:] and (one[0] == other[0] or _ANY_ADDRESS in (one[0], other[0]))


def _amounts(asked: Mapping[str, Any]) -> dict[str, int]:
    parse = quantity.parse
    return {
        name: parse(amount).milli_value() if name == "cpu" else parse(amount).value() for name, amount in asked.items()
    }


def _bare(taint: Taint) -> Taint:
    """Without the time, so that equal taints are equal."""
    return Taint(key=taint.key, value=taint.value, effect=taint.effect)
