"""Who has to leave so that a more important pod can run: as few and as unimportant pods as possible.

For each node that would do without its less important pods, these are taken away in thought, then given back one by one,
the most important first, as long as the pod still fits; those that do not come back are the victims. Of all such nodes
the one is taken whose victims break the fewest disruption budgets, then are least important, then are fewest, then
started last. The snapshot is changed in thought only: it is as before when `preempt` returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from coterie.kube.api.selectors import LabelSelector
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.filters import may_be_preempted, shortages
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.plan import node_takes
from coterie.kube.scheduler.pod_affinity import examine
from coterie.kube.scheduler.snapshot import Snapshot

_MOST_OPTIONS = 50
"""Nodes to compare; in a large full cluster the best of fifty is good enough."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A disruption budget: how many pods it covers may leave now."""

    namespace: str
    selector: LabelSelector
    allowed: int

    def covers(self, pod: PodFacts) -> bool:
        return pod.namespace == self.namespace and self.selector.matches(pod.labels)


@dataclass(frozen=True, slots=True)
class Preemption:
    node: str
    victims: tuple[PodFacts, ...]
    violations: int
    """Victims that a disruption budget wanted to keep."""


@dataclass(frozen=True, slots=True)
class NoPreemption:
    """Why nobody leaves, in kube-scheduler's words, counted by nodes."""

    message: str


def preempt(
    snapshot: Snapshot, pod: PodFacts, budgets: Sequence[Budget] = (), protected: Collection[str] = (), cursor: int = 0
) -> Preemption | NoPreemption:
    """`protected`: uids of pods that must not leave, whatever their priority (reservations that are not bound)."""
    total = len(snapshot)
    if not pod.preempts:
        return NoPreemption("not eligible due to preemptionPolicy=Never.")
    nominated = snapshot.nominations.get(pod.uid)
    if nominated is not None and _is_clearing(snapshot, nominated, pod):
        return NoPreemption("not eligible due to a terminating pod on the nominated node.")
    nodes = snapshot.candidates(pod.static).nodes
    if all(priority >= pod.priority for priority in snapshot.priorities):
        return _nobody(total, len(nodes), total - len(nodes))
    options: list[Preemption] = []
    helpless = total - len(nodes)
    without_victims = 0
    start = cursor % len(nodes) if nodes else 0
    for node in (*nodes[start:], *nodes[:start]):
        if not _victims_could_help(snapshot, node, pod):
            helpless += 1
            continue
        option = _victims_on(snapshot, node, pod, budgets, protected)
        if option is None:
            without_victims += 1
            continue
        options.append(option)
        if len(options) >= _MOST_OPTIONS:
            break
    if options:
        return min(options, key=_cost)
    return _nobody(total, without_victims, helpless)


def _nobody(total: int, without_victims: int, helpless: int) -> NoPreemption:
    parts = []
    if without_victims:
        parts.append(f"{without_victims} No preemption victims found for incoming pod")
    if helpless:
        parts.append(f"{helpless} Preemption is not helpful for scheduling")
    return NoPreemption(f"0/{total} nodes are available: {', '.join(parts)}." if parts else "")


def _is_clearing(snapshot: Snapshot, node_name: str, pod: PodFacts) -> bool:
    """Less important pods are already leaving the node the pod was promised."""
    node = snapshot.states.get(node_name)
    return node is not None and any(p.terminating and p.priority < pod.priority for p in node.pods.values())


def _victims_could_help(snapshot: Snapshot, node: NodeState, pod: PodFacts) -> bool:
    reasons = shortages(node, pod)
    if not reasons:
        neighbourhood = examine(snapshot, pod)
        rejection = None if neighbourhood is None or node.facts is None else neighbourhood.rejection(node.facts)
        reasons = [] if rejection is None else [rejection]
    return all(may_be_preempted(reason) for reason in reasons)


def _victims_on(
    snapshot: Snapshot, node: NodeState, pod: PodFacts, budgets: Sequence[Budget], protected: Collection[str]
) -> Preemption | None:
    lesser = [p for p in node.pods.values() if p.priority < pod.priority and p.uid not in protected]
    if not lesser:
        return None
    kept_by_budget = _violating(sorted(lesser, key=_importance), budgets)
    version = snapshot.release_version
    victims: list[PodFacts] = []
    for other in lesser:
        snapshot.remove(other.uid)
    try:
        if not node_takes(node, pod, examine(snapshot, pod)):
            victims = lesser
            return None
        # Those a budget wants to keep are given their place back before the others.
        for other in sorted(lesser, key=lambda p: (p.uid not in kept_by_budget, _importance(p))):
            snapshot.place(other, node.name)
            if not node_takes(node, pod, examine(snapshot, pod)):
                snapshot.remove(other.uid)
                victims.append(other)
    finally:
        for other in victims:
            snapshot.place(other, node.name)
        # In the end nobody left: what did not fit before does not fit now.
        snapshot.release_version = version
    if not victims:
        return None
    violations = sum(1 for victim in victims if victim.uid in kept_by_budget)
    return Preemption(node.name, tuple(victims), violations)


def _importance(pod: PodFacts) -> tuple[int, str, str]:
    """Sorts the most important first: high priority, then early start."""
    return (-pod.priority, pod.started, pod.uid)


def _violating(pods: Iterable[PodFacts], budgets: Sequence[Budget]) -> set[str]:
    """Those for whom nothing is left of some budget, when the earlier ones have used it."""
    left = [budget.allowed for budget in budgets]
    out: set[str] = set()
    for pod in pods:
        for i, budget in enumerate(budgets):
            if budget.covers(pod):
                left[i] -= 1
                if left[i] < 0:
                    out.add(pod.uid)
    return out


def _cost(option: Preemption) -> tuple[int, int, int, int, tuple[int, ...]]:
    priorities = [victim.priority for victim in option.victims]
    highest = max(priorities)
    earliest = min(victim.started for victim in option.victims if victim.priority == highest)
    # Late is good, so the text of the time is compared upside down.
    return (option.violations, highest, sum(priorities), len(priorities), tuple(-ord(c) for c in earliest))
