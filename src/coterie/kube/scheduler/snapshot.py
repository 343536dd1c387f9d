"""The cluster as the scheduler sees it: nodes with what is left on them, and where pods are.

The snapshot is kept, not copied: each change of a pod or node costs about a microsecond, and planning only reads. Pods
that are only *assumed* (decided, not yet bound) are placed like all others, so the next plan counts them. Questions that
many pods ask alike are answered once and kept:

    candidates(demand)    nodes that pass every filter which does not count anything; until a node changes its face
    matches(neighbours)   how many of these pods are on which node; kept up to date with each pod
    domains(...)          values of a topology label; until a node changes its face

`release_version` moves whenever something could have become possible that was not. While it stands still, a pod that
did not fit will not fit, and nobody needs to try.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.selectors import selector_of_map
from coterie.kube.scheduler.facts import NodeFacts, PodFacts
from coterie.kube.scheduler.filters import static_rejection
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.plugin import ResourceScore
from coterie.kube.scheduler.selector_index import LabelIndex
from coterie.kube.scheduler.terms import NO_TERMS, Labels, Neighbours, PodTerm, StaticDemand

_CACHED_DEMANDS = 512
_CACHED_NEIGHBOURS = 256
ZONE = "topology.kubernetes.io/zone"
_HARD_AFFINITY_WEIGHT = 1
"""How much a placed pod's required affinity draws matching pods to it, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Candidates:
    nodes: tuple[NodeState, ...]
    rejected: Mapping[str, int]
    """Why the others are none: reason -> number of nodes."""


class PlacedTerm(NamedTuple):
    """A wish of pods that are placed, concerning those that come. Weight 0: they must stay away."""

    term: PodTerm
    weight: int


@dataclass(frozen=True, slots=True)
class TopologyDomains:
    values: frozenset[str]
    nodes: frozenset[str]


class Snapshot:
    def __init__(self) -> None:
        self.resource_scores: tuple[ResourceScore, ...] = ()
        """Extended resources by which plug-ins have nodes compared."""
        self.states: dict[str, NodeState] = {}
        self.nodes: list[NodeState] = []
        """Those that were shown, in the order of joining."""
        self.places: dict[str, NodeState] = {}
        """Where each pod (by uid) is."""
        self.owners: dict[str, dict[str, int]] = {}
        self.preferred_terms: dict[PlacedTerm, dict[str, int]] = {}
        self.namespaces: dict[str, Labels] = {}
        self.nominations: dict[str, str] = {}
        self.priorities: Counter[int] = Counter()
        """How many pods of each priority are placed."""
        self.release_version = 0
        self.zones: Counter[str] = Counter()
        """How many nodes are in which zone."""
        self.soft_taints = 0
        """How many nodes have taints that only discourage."""
        self._candidates: OrderedDict[StaticDemand, Candidates] = OrderedDict()
        self._domains: dict[tuple[str, StaticDemand, bool, bool], TopologyDomains] = {}
        self._matches: OrderedDict[Neighbours, dict[str, int]] = OrderedDict()
        self._counted: LabelIndex[Neighbours] = LabelIndex()
        self._services: dict[ObjectKey, Neighbours] = {}
        self._services_of: dict[str, LabelIndex[Neighbours]] = {}
        """By namespace."""
        self._preferred_index: LabelIndex[PlacedTerm] = LabelIndex()

    def __len__(self) -> int:
        return len(self.nodes)

    def pods(self) -> Iterator[PodFacts]:
        for uid, state in self.places.items():
            yield state.pods[uid]

    # Changes.

    def set_node(self, facts: NodeFacts) -> bool:
        """False when nothing that matters changed: a heartbeat."""
        state = self.states.get(facts.name)
        if state is None:
            state = self.states[facts.name] = NodeState(facts.name)
        old = state.facts
        if old is not None and old.same_place(facts):
            if old.same_size(facts):
                return False
            state.show(facts)
        else:
            if old is None:
                self.nodes.append(state)
            else:
                self._count_node(old, -1)
            self._count_node(facts, 1)
            state.show(facts)
            self._faces_changed()
        self.release_version += 1
        return True

    def remove_node(self, name: str) -> None:
        state = self.states.get(name)
        if state is None or state.facts is None:
            return
        self._count_node(state.facts, -1)
        self.nodes.remove(state)
        state.show(None)
        self._faces_changed()
        self._drop_if_empty(state)

    def set_excess(self, resource: str, by_node: Mapping[str, int]) -> set[str]:
        """What pods use of the resource beyond their requests. The nodes on which more is free than before."""
        freed: set[str] = set()
        for state in self.states.values():
            old, new = state.excess.get(resource, 0), max(0, by_node.get(state.name, 0))
            if old == new:
                continue
            others = {name: amount for name, amount in state.excess.items() if name != resource}
            state.excess = {**others, resource: new} if new else others
            if new < old:
                freed.add(state.name)
        if freed:
            self.release_version += 1
        return freed

    def place(self, pod: PodFacts, node: str) -> None:
        """The pod is, or is decided to be, on the node. Newer facts of a pod replace the older."""
        known = self.places.get(pod.uid)
        if known is not None:
            if known.name == node and _counts_alike(known.pods[pod.uid], pod):
                known.pods[pod.uid] = pod
                return
            self.remove(pod.uid)
        state = self.states.get(node)
        if state is None:
            state = self.states[node] = NodeState(node)
        state.add(pod)
        self.places[pod.uid] = state
        if pod.uid in self.nominations:
            self.nominate(pod, "")
        self._count(pod, node, 1)

    def remove(self, uid: str) -> PodFacts | None:
        state = self.places.pop(uid, None)
        if state is None:
            return None
        pod = state.pods[uid]
        state.add(pod, -1)
        self._count(pod, state.name, -1)
        self.release_version += 1
        self._drop_if_empty(state)
        return pod

    def nominate(self, pod: PodFacts, node: str) -> None:
        """Room that is being made on the node is for this pod; no node: for nobody any more."""
        before = self.nominations.pop(pod.uid, "")
        if before and before in self.states:
            self.states[before].nominated.pop(pod.uid, None)
            self.release_version += 1
        if node and node in self.states:
            self.nominations[pod.uid] = node
            self.states[node].nominated[pod.uid] = pod

    def set_namespace(self, name: str, labels: Labels | None) -> bool:
        """None: it is gone. True when something changed."""
        if self.namespaces.get(name) == labels:
            return False
        if labels is None:
            del self.namespaces[name]
        else:
            self.namespaces[name] = labels
        for neighbours in [n for n in self._matches if n.namespace_selector is not None]:
            del self._matches[neighbours]
            self._counted.discard(neighbours.selector, neighbours)
        self.release_version += 1
        return True

    def set_service(self, key: ObjectKey, selector: Labels | None) -> None:
        """The pods that a Service selects are spread; None: it is gone, or selects none."""
        after = Neighbours(selector_of_map(selector), frozenset((key.namespace,)), staying=True) if selector else None
        before = self._services.pop(key, None)
        if after is not None:
            self._services[key] = after
        if before == after:
            return
        index = self._services_of.setdefault(key.namespace, LabelIndex())
        if before is not None and before not in self._services.values():
            index.discard(before.selector, before)
        if after is not None:
            index.add(after.selector, after)

    # Questions.

    def candidates(self, demand: StaticDemand) -> Candidates:
        found = self._candidates.get(demand)
        if found is None:
            nodes, rejected = [], Counter[str]()
            for state in self.nodes:
                assert state.facts is not None
                reason = static_rejection(state.facts, demand)
                if reason is None:
                    nodes.append(state)
                else:
                    rejected[reason] += 1
            found = self._candidates[demand] = Candidates(tuple(nodes), rejected)
            if len(self._candidates) > _CACHED_DEMANDS:
                self._candidates.popitem(last=False)
        return found

    def matches(self, neighbours: Neighbours) -> Mapping[str, int]:
        """How many of these pods are on which node."""
        found = self._matches.get(neighbours)
        if found is None:
            found = {}
            for uid, state in self.places.items():
                pod = state.pods[uid]
                if self._counts(neighbours, pod):
                    found[state.name] = found.get(state.name, 0) + 1
            self._matches[neighbours] = found
            self._counted.add(neighbours.selector, neighbours)
            if len(self._matches) > _CACHED_NEIGHBOURS:
                oldest, _ = self._matches.popitem(last=False)
                self._counted.discard(oldest.selector, oldest)
        else:
            self._matches.move_to_end(neighbours)
        return found

    def domains(self, key: str, demand: StaticDemand, honor_affinity: bool, honor_taints: bool) -> TopologyDomains:
        """Values of the topology label, among the nodes that count for a spread constraint."""
        asked = (key, demand, honor_affinity, honor_taints)
        found = self._domains.get(asked)
        if found is None:
            values, names = set(), set()
            for state in self.nodes:
                facts = state.facts
                assert facts is not None
                value = facts.labels.get(key)
                if value is None or (honor_affinity and not demand.affine(facts.name, facts.labels)):
                    continue
                if honor_taints and static_rejection(facts, StaticDemand(tolerations=demand.tolerations)) is not None:
                    continue
                values.add(value)
                names.add(facts.name)
            if len(self._domains) > _CACHED_DEMANDS:
                self._domains.clear()
            found = self._domains[asked] = TopologyDomains(frozenset(values), frozenset(names))
        return found

    def label(self, node: str, key: str) -> str | None:
        state = self.states.get(node)
        return None if state is None or state.facts is None else state.facts.labels.get(key)

    def tally(self, neighbours: Neighbours, key: str) -> dict[str, int]:
        """How many of these pods are within which value of the topology label."""
        out: dict[str, int] = {}
        for node, count in self.matches(neighbours).items():
            value = self.label(node, key)
            if value is not None:
                out[value] = out.get(value, 0) + count
        return out

    def services_of(self, pod: PodFacts) -> list[Neighbours]:
        """The pods of the Services that select this one, itself included."""
        index = self._services_of.get(pod.namespace)
        if index is None:
            return []
        return [each for each in index.about(pod.labels) if each.selector.matches(pod.labels)]

    def preferences_about(self, pod: PodFacts) -> Iterator[tuple[PlacedTerm, Mapping[str, int]]]:
        """What pods that are placed wish concerning this one, and how many on which node."""
        for placed in self._preferred_index.about(pod.labels):
            if placed.term.neighbours.match(pod.namespace, pod.labels, self.namespaces):
                yield placed, self.preferred_terms[placed]

    # Inside.

    def _count_node(self, facts: NodeFacts, sign: int) -> None:
        self.soft_taints += sign * bool(facts.soft_taints)
        zone = facts.labels.get(ZONE)
        if zone is not None:
            self.zones[zone] += sign
            if not self.zones[zone]:
                del self.zones[zone]

    def _faces_changed(self) -> None:
        self._candidates.clear()
        self._domains.clear()

    def _drop_if_empty(self, state: NodeState) -> None:
        if state.facts is None and not state.pods and not state.nominated:
            self.states.pop(state.name, None)

    def _count(self, pod: PodFacts, node: str, sign: int) -> None:
        self.priorities[pod.priority] += sign
        if not self.priorities[pod.priority]:
            del self.priorities[pod.priority]
        if pod.owner:
            _change(self.owners, pod.owner, node, sign)
        terms = pod.terms
        if terms is not NO_TERMS:
            for term in terms.anti:
                self._count_preference(PlacedTerm(term, 0), node, sign)
            for term in terms.affinity:
                self._count_preference(PlacedTerm(term, _HARD_AFFINITY_WEIGHT), node, sign)
            for weight, term in terms.preferred:
                if weight:
                    self._count_preference(PlacedTerm(term, weight), node, sign)
        for neighbours in self._counted.about(pod.labels):
            if self._counts(neighbours, pod):
                counts = self._matches[neighbours]
                counts[node] = counts.get(node, 0) + sign
                if not counts[node]:
                    del counts[node]

    def _counts(self, neighbours: Neighbours, pod: PodFacts) -> bool:
        if neighbours.staying and pod.terminating:
            return False
        return neighbours.match(pod.namespace, pod.labels, self.namespaces)

    def _count_preference(self, placed: PlacedTerm, node: str, sign: int) -> None:
        known = placed in self.preferred_terms
        _change(self.preferred_terms, placed, node, sign)
        if known != (placed in self.preferred_terms):
            selector = placed.term.neighbours.selector
            (self._preferred_index.discard if known else self._preferred_index.add)(selector, placed)


def _counts_alike(one: PodFacts, other: PodFacts) -> bool:
    return (
        one.cpu == other.cpu
        and one.memory == other.memory
        and one.others == other.others
        and one.ports == other.ports
        and one.labels == other.labels
        and one.owner == other.owner
        and one.priority == other.priority
        and one.terms == other.terms
        and one.terminating == other.terminating
    )


def _change(counts: dict[Any, dict[str, int]], key: Any, node: str, sign: int) -> None:
    by_node = counts.setdefault(key, {})
    by_node[node] = by_node.get(node, 0) + sign
    if not by_node[node]:
        del by_node[node]
        if not by_node:
            del counts[key]
