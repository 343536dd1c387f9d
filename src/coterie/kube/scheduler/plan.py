"""`plan(snapshot, pod)`: the node a pod should go to, or the reasons why there is none, counted as kube-scheduler does.

Pure: nothing is changed, no time is asked, and the same snapshot, pod and cursor give the same answer. In a large cluster
not all nodes are looked at: from `cursor` on, the search ends when it has found enough that would do, and the next plan
starts where this one ended, so that all nodes get their turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.kube.scheduler.facts import NodeFacts, PodFacts
from coterie.kube.scheduler.filters import UnschedulableCause, cause_of, fits, insufficient, shortages, static_rejection
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.pod_affinity import Neighbourhood, examine
from coterie.kube.scheduler.scores import best
from coterie.kube.scheduler.snapshot import Snapshot

UNSCHEDULABLE_REASON = "Unschedulable"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many fitting nodes are compared: a share of all nodes, but never fewer than `least`."""

    share: float = 0.05
    least: int = 100

    def sample_size(self, nodes: int) -> int:
        return max(self.least, int(nodes * self.share))


SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Placement:
    node: str
    next_cursor: int
    compared: int


@dataclass(frozen=True, slots=True)
class Unschedulable:
    nodes: int
    reasons: Mapping[str, int]
    causes: UnschedulableCause
    reason: str = UNSCHEDULABLE_REASON
    """Another one when some node lacks nothing but an extended resource that has a reason of its own."""
    of_pod: str = ""
    """A reason that lies in the pod, not in any node."""

    @property
    def message(self) -> str:
        if not self.nodes:
            return "no nodes available to schedule pods"
        if self.of_pod:
            return f"0/{self.nodes} nodes are available: {self.of_pod}."
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in self.reasons.items()))
        return f"0/{self.nodes} nodes are available: {listed}."


def plan(
    snapshot: Snapshot, pod: PodFacts, cursor: int = 0, sampling: Sampling = SAMPLING
) -> Placement | Unschedulable:
    candidates = snapshot.candidates(pod.static)
    neighbourhood = examine(snapshot, pod)
    nominated = snapshot.nominations.get(pod.uid)
    if nominated is not None:
        # Others left that node for this pod: it goes there when it can, so that they did not leave in vain.
        for node in candidates.nodes:
            if node.name == nominated and node_takes(node, pod, neighbourhood):
                return Placement(nominated, cursor, 1)
    feasible, visited = _search(candidates.nodes, pod, neighbourhood, cursor, sampling.sample_size(len(snapshot)))
    if not feasible:
        return _explain(snapshot, pod, candidates.rejected, candidates.nodes, neighbourhood)
    return Placement(best(snapshot, pod, feasible).name, cursor + visited, len(feasible))


def node_takes(node: NodeState, pod: PodFacts, neighbourhood: Neighbourhood | None) -> bool:
    """The counting and neighbour filters for one node."""
    return fits(node, pod) and (neighbourhood is None or neighbourhood.rejection(_facts(node)) is None)


def could_take(snapshot: Snapshot, node_name: str, pod: PodFacts) -> bool:
    """Whether the pod fits on this one node now: what a waiting pod asks when something changed there."""
    node = snapshot.states.get(node_name)
    if node is None or node.facts is None or not fits(node, pod):
        return False
    if static_rejection(node.facts, pod.static) is not None:
        return False
    neighbourhood = examine(snapshot, pod)
    return neighbourhood is None or neighbourhood.rejection(node.facts) is None


def _search(
    nodes: Sequence[NodeState], pod: PodFacts, neighbourhood: Neighbourhood | None, cursor: int, wanted: int
) -> tuple[list[NodeState], int]:
    """Nodes that would do, at most `wanted`, and how many were looked at."""
    count = len(nodes)
    feasible: list[NodeState] = []
    if not count:
        return feasible, 0
    start = cursor % count
    cpu, memory = pod.cpu, pod.memory
    plain = not pod.others and not pod.ports and neighbourhood is None
    visited = 0
    for index in range(start, start + count):
        node = nodes[index - count if index >= count else index]
        visited += 1
        # The rules of `fits`, written out for the many pods that ask for CPU and memory only.
        if node.count >= node.room_pods or node.cpu + cpu > node.room_cpu or node.memory + memory > node.room_memory:
            if (cpu and memory) or not node_takes(node, pod, neighbourhood):
                continue
        elif (not plain or node.nominated) and not node_takes(node, pod, neighbourhood):
            continue
        feasible.append(node)
        if len(feasible) >= wanted:
            break
    return feasible, visited


def _explain(
    snapshot: Snapshot,
    pod: PodFacts,
    rejected: Mapping[str, int],
    nodes: Sequence[NodeState],
    neighbourhood: Neighbourhood | None,
) -> Unschedulable:
    if pod.static.blocked:
        return Unschedulable(len(snapshot), {}, UnschedulableCause.FACE, of_pod=pod.static.blocked)
    reasons = Counter(rejected)
    alone = {insufficient(each.resource): each.shortage_reason for each in snapshot.resource_scores}
    condition_reason = UNSCHEDULABLE_REASON
    for node in nodes:
        found = shortages(node, pod)
        if not found and neighbourhood is not None:
            found = [why for why in (neighbourhood.rejection(_facts(node)),) if why is not None]
        reasons.update(found)
        if len(found) == 1:
            condition_reason = alone.get(found[0]) or condition_reason
    # With no node at all, any node that comes may do.
    causes = UnschedulableCause.FACE
    for reason in reasons:
        causes |= cause_of(reason)
    return Unschedulable(len(snapshot), dict(reasons), causes, condition_reason)


def _facts(node: NodeState) -> NodeFacts:
    assert node.facts is not None  # only nodes that were shown are candidates
    return node.facts
