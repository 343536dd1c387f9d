"""Which of the nodes that would do is best: each view gives 0 to 100, weighted as kube-scheduler weights them.

    least requested, balanced   1 each    room that is left; CPU and memory used up alike
    extended resources          as given  those that plug-ins name, for pods that ask for them
    spread over nodes           2         of one owner's pods, or of a Service's; topology spread constraints that are only wishes
    spread over zones           1         of the same pods, where nodes have zones
    node affinity, pod affinity 2         wishes of the pod, and of pods that are there
    discouraging taints         3

Views nobody cares about (no wishes, no such taints) cost nothing. The first of equal nodes wins, and plans start at
different nodes, so equal nodes take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from coterie.kube.api.node_selection import tolerates
from coterie.kube.scheduler.facts import NodeFacts, PodFacts
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.pod_affinity import spread_counts
from coterie.kube.scheduler.snapshot import ZONE, Snapshot
from coterie.kube.scheduler.terms import NO_TERMS

_SPREAD = 2.0
_ZONES = 1.0
_NODE_AFFINITY = 2.0
_POD_AFFINITY = 2.0
_TAINTS = 3.0


def best(snapshot: Snapshot, pod: PodFacts, nodes: Sequence[NodeState]) -> NodeState:
    if len(nodes) == 1:
        return nodes[0]
    scores = room(pod, nodes)
    for weight, view in _views(snapshot, pod, nodes):
        for i, score in enumerate(view):
            scores[i] += weight * score
    return nodes[scores.index(max(scores))]


def room(pod: PodFacts, nodes: Iterable[NodeState]) -> list[float]:
    """Least requested plus balanced: 0 to 200."""
    more_cpu, more_memory = pod.weighed_cpu, pod.weighed_memory
    scores = []
    for node in nodes:
        cpu = (node.weighed_cpu + more_cpu) / node.room_cpu if node.room_cpu else 1.0
        memory = (node.weighed_memory + more_memory) / node.room_memory if node.room_memory else 1.0
        if cpu > 1.0:
            cpu = 1.0
        if memory > 1.0:
            memory = 1.0
        # 50 * (2 - cpu - memory) + 100 - 50 * |cpu - memory|, which is:
        scores.append(200.0 - 100.0 * (cpu if cpu > memory else memory))
    return scores


def _views(snapshot: Snapshot, pod: PodFacts, nodes: Sequence[NodeState]) -> Iterable[tuple[float, Sequence[float]]]:
    for name, amount in pod.others:
        for scored in snapshot.resource_scores:
            if name == scored.resource:
                yield scored.weight, [_free_share(node, name, amount) for node in nodes]
    for mates in _mates(snapshot, pod):
        yield _SPREAD, fewer_is_better([mates.get(node.name, 0) for node in nodes])
        if len(snapshot.zones) > 1:
            yield _ZONES, _zone_spread(snapshot, mates, nodes)
    if pod.preferred_nodes:
        yield _NODE_AFFINITY, more_is_better([_preferred_node_score(pod, _facts(node)) for node in nodes])
    if snapshot.soft_taints:
        yield _TAINTS, fewer_is_better([_discouraging(pod, _facts(node)) for node in nodes])
    if pod.terms is not NO_TERMS:
        for spread in pod.terms.soft_spread:
            counts, _ = spread_counts(snapshot, pod, spread)
            # Where the label is missing the pod is worst spread.
            worst = max(counts.values(), default=0) + 1
            yield _SPREAD, fewer_is_better([_count_at(node, spread.topology_key, counts, worst) for node in nodes])
    attraction = _attraction(snapshot, pod)
    if attraction:
        yield _POD_AFFINITY, more_is_better([sum(draw(_facts(node)) for draw in attraction) for node in nodes])


def _mates(snapshot: Snapshot, pod: PodFacts) -> Iterable[Mapping[str, int]]:
    """Pods by node among which this one is spread unless it says how itself: of its owner; without one, of its Services."""
    if pod.terms.spread or pod.terms.soft_spread:
        return
    if pod.owner:
        found = snapshot.owners.get(pod.owner)
        if found:
            yield found
        return
    for service in snapshot.services_of(pod):
        counts = snapshot.matches(service)
        if counts:
            yield counts


def _zone_spread(snapshot: Snapshot, mates: Mapping[str, int], nodes: Sequence[NodeState]) -> list[float]:
    counts: dict[str, int] = {}
    for name, count in mates.items():
        zone = snapshot.label(name, ZONE)
        if zone is not None:
            counts[zone] = counts.get(zone, 0) + count
    worst = max(counts.values(), default=0)
    return fewer_is_better([_count_at(node, ZONE, counts, worst) for node in nodes])


def more_is_better(values: Sequence[int]) -> list[float]:
    """Stretched over 0 to 100; values may be negative."""
    least, most = min(values), max(values)
    if least == most:
        return [0.0] * len(values)
    return [100.0 * (value - least) / (most - least) for value in values]


def fewer_is_better(values: Sequence[int]) -> list[float]:
    most = max(values)
    if not most:
        return [100.0] * len(values)
    return [100.0 * (most - value) / most for value in values]


def _facts(node: NodeState) -> NodeFacts:
    assert node.facts is not None  # only nodes that were shown are planned for
    return node.facts


def _free_share(node: NodeState, name: str, amount: int) -> float:
    offered = node.room_others.get(name, 0)
    return max(0.0, 100.0 * (1 - (node.others.get(name, 0) + amount) / offered)) if offered else 0.0


def _preferred_node_score(pod: PodFacts, node: NodeFacts) -> int:
    return sum(weight for weight, term in pod.preferred_nodes if term.matches(node.name, node.labels))


def _discouraging(pod: PodFacts, node: NodeFacts) -> int:
    return sum(1 for t in node.soft_taints if not tolerates(pod.static.tolerations, t.key, t.value, t.effect))


def _count_at(node: NodeState, key: str, counts: dict[str, int], missing: int) -> int:
    value = _facts(node).labels.get(key)
    return missing if value is None else counts.get(value, 0)


def _attraction(snapshot: Snapshot, pod: PodFacts) -> list[Callable[[NodeFacts], int]]:
    """How strongly pods that are placed draw this one to a node, or push it away: by its wishes and by theirs."""
    found: dict[tuple[str, str], int] = {}
    for weight, term in pod.terms.preferred:
        for value, count in snapshot.tally(term.neighbours, term.topology_key).items():
            found[(term.topology_key, value)] = found.get((term.topology_key, value), 0) + weight * count
    for placed, nodes in snapshot.preferences_about(pod):
        if placed.weight:
            key = placed.term.topology_key
            for name, count in nodes.items():
                value_at = snapshot.label(name, key)
                if value_at is not None:
                    found[(key, value_at)] = found.get((key, value_at), 0) + placed.weight * count
    by_key: dict[str, dict[str, int]] = {}
    for (key, value), weight in found.items():
        by_key.setdefault(key, {})[value] = weight
    return [_draw(key, weights) for key, weights in by_key.items()]


def _draw(key: str, weights: dict[str, int]) -> Callable[[NodeFacts], int]:
    def at(node: NodeFacts) -> int:
        value = node.labels.get(key)
        return 0 if value is None else weights.get(value, 0)

    return at
