"""One node and the sums of what runs there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from coterie.kube.scheduler.facts import HostPort, NodeFacts, PodFacts, ports_clash


class NodeState:
    """A node and the sums of what runs there. Changed only by its snapshot."""

    __slots__ = (
        "count",
        "cpu",
        "excess",
        "facts",
        "memory",
        "name",
        "nominated",
        "others",
        "pods",
        "ports",
        "room_cpu",
        "room_memory",
        "room_others",
        "room_pods",
        "weighed_cpu",
        "weighed_memory",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: NodeFacts | None = None
        """None while pods are bound to a node that nobody has shown us."""
        self.pods: dict[str, PodFacts] = {}
        self.nominated: dict[str, PodFacts] = {}
        """Pods for which others were asked to leave."""
        self.cpu = self.memory = self.count = self.weighed_cpu = self.weighed_memory = 0
        self.others: dict[str, int] = {}
        self.excess: Mapping[str, int] = {}
        """What pods use of extended resources beyond what they requested, as plug-ins measured it."""
        self.ports: Counter[HostPort] = Counter()
        self.room_cpu = self.room_memory = self.room_pods = 0
        self.room_others: Mapping[str, int] = {}

    def show(self, facts: NodeFacts | None) -> None:
        self.facts = facts
        if facts is None:
            self.room_cpu = self.room_memory = self.room_pods = 0
            self.room_others = {}
        else:
            self.room_cpu, self.room_memory, self.room_pods = facts.cpu, facts.memory, facts.pods
            self.room_others = facts.others

    def add(self, pod: PodFacts, sign: int = 1) -> None:
        self.cpu += sign * pod.cpu
        self.memory += sign * pod.memory
        self.weighed_cpu += sign * pod.weighed_cpu
        self.weighed_memory += sign * pod.weighed_memory
        self.count += sign
        for name, amount in pod.others:
            self.others[name] = self.others.get(name, 0) + sign * amount
        for port in pod.ports:
            self.ports[port] += sign
        if sign > 0:
            self.pods[pod.uid] = pod
        else:
            del self.pods[pod.uid]

    def ports_free(self, wanted: Iterable[HostPort]) -> bool:
        return not any(taken and ports_clash(port, used) for port in wanted for used, taken in self.ports.items())
