"""Pod affinity, anti-affinity and topology spread: what other pods, anywhere, mean for the nodes a pod may go to.

Everything that does not depend on the node is worked out once for a plan: for each term the values of its topology label
that are asked for or forbidden. Asking a node is then one look-up for each term. `examine` answers None for pods that
have no terms and that nobody keeps away, so most plans pay nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kube.scheduler.facts import NodeFacts, PodFacts
from coterie.kube.scheduler.filters import ANTI_AFFINITY, ANTI_AFFINITY_OF_OTHERS, NO_AFFINITY, NO_TOPOLOGY, SKEWED
from coterie.kube.scheduler.snapshot import Snapshot
from coterie.kube.scheduler.terms import NO_TERMS, Labels, PodTerm, Spread


@dataclass(frozen=True, slots=True)
class _SpreadCheck:
    key: str
    counts: Mapping[str, int]
    most: int
    """How many such pods a value may already have."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    near: tuple[tuple[str, frozenset[str]], ...]
    """Topology label and the values where the wanted pods are."""
    away: tuple[tuple[str, frozenset[str]], ...]
    forbidden: tuple[tuple[str, frozenset[str]], ...]
    """As `away`, but wished by pods that are there."""
    spreads: tuple[_SpreadCheck, ...]

    def rejection(self, node: NodeFacts) -> str | None:
        labels = node.labels
        for check in self.spreads:
            value = labels.get(check.key)
            if value is None:
                return NO_TOPOLOGY
            if check.counts.get(value, 0) > check.most:
                return SKEWED
        for key, values in self.near:
            if labels.get(key) not in values:
                return NO_AFFINITY
        for key, values in self.away:
            if labels.get(key) in values:
                return ANTI_AFFINITY
        for key, values in self.forbidden:
            if labels.get(key) in values:
                return ANTI_AFFINITY_OF_OTHERS
        return None


def examine(snapshot: Snapshot, pod: PodFacts) -> Neighbourhood | None:
    forbidden = _forbidden(snapshot, pod) if snapshot.preferred_terms else ()
    terms = pod.terms
    if terms is NO_TERMS:
        return Neighbourhood((), (), forbidden, ()) if forbidden else None
    near = _near(snapshot, pod)
    away = tuple((t.topology_key, frozenset(snapshot.tally(t.neighbours, t.topology_key))) for t in terms.anti)
    spreads = tuple(_spread(snapshot, pod, spread) for spread in terms.spread)
    if not (near or away or forbidden or spreads):
        return None
    return Neighbourhood(near, away, forbidden, spreads)


def helped_by(pod: PodFacts, arrived: PodFacts, namespaces: Mapping[str, Labels]) -> bool:
    """Whether that pod being placed may make this one fit; most only take room."""
    terms = pod.terms
    if terms is NO_TERMS or pod.uid == arrived.uid:
        return False
    wanted = (*(term.neighbours for term in terms.affinity), *(spread.neighbours for spread in terms.spread))
    return any(neighbours.match(arrived.namespace, arrived.labels, namespaces) for neighbours in wanted)


def _near(snapshot: Snapshot, pod: PodFacts) -> tuple[tuple[str, frozenset[str]], ...]:
    terms = pod.terms.affinity
    if not terms:
        return ()
    found = [(t.topology_key, frozenset(snapshot.tally(t.neighbours, t.topology_key))) for t in terms]
    if not any(values for _, values in found) and all(_is_own(snapshot, pod, t) for t in terms):
        # The first of pods that want to be together: it may start anywhere where the label exists.
        return tuple((t.topology_key, _all_values(snapshot, pod, t.topology_key)) for t in terms)
    return tuple(found)


def _is_own(snapshot: Snapshot, pod: PodFacts, term: PodTerm) -> bool:
    return term.neighbours.match(pod.namespace, pod.labels, snapshot.namespaces)


def _all_values(snapshot: Snapshot, pod: PodFacts, key: str) -> frozenset[str]:
    return snapshot.domains(key, pod.static, False, False).values


def _forbidden(snapshot: Snapshot, pod: PodFacts) -> tuple[tuple[str, frozenset[str]], ...]:
    out = []
    for placed, nodes in snapshot.preferences_about(pod):
        if placed.weight == 0:
            key = placed.term.topology_key
            values = frozenset(v for v in (snapshot.label(node, key) for node in nodes) if v is not None)
            if values:
                out.append((key, values))
    return tuple(out)


def _spread(snapshot: Snapshot, pod: PodFacts, spread: Spread) -> _SpreadCheck:
    counts, values = spread_counts(snapshot, pod, spread)
    fewest = min((counts.get(value, 0) for value in values), default=0)
    if len(values) < spread.min_domains:
        fewest = 0
    own = 1 if spread.neighbours.match(pod.namespace, pod.labels, snapshot.namespaces) else 0
    return _SpreadCheck(spread.topology_key, counts, fewest + spread.max_skew - own)


def spread_counts(snapshot: Snapshot, pod: PodFacts, spread: Spread) -> tuple[dict[str, int], frozenset[str]]:
    """Matching pods for each value of the topology label, and all values that count."""
    key = spread.topology_key
    domains = snapshot.domains(key, pod.static, spread.honor_affinity, spread.honor_taints)
    counts: dict[str, int] = {}
    for node, count in snapshot.matches(spread.neighbours).items():
        if node in domains.nodes:
            value = snapshot.label(node, key)
            if value is not None:
                counts[value] = counts.get(value, 0) + count
    return counts, domains.values
