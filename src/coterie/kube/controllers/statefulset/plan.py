"""The next step of a StatefulSet: which pods to create, delete or relabel, and what its status says. Pure.

OrderedReady   one step at a time: the first ordinal that is missing, ended, going or not available is what is waited
               for or acted on; surplus pods go from the highest ordinal down, one after the other
Parallel       all missing pods are created and all surplus ones deleted at once

RollingUpdate  when nothing above is left to do: from the highest ordinal down to the partition, pods of an older
               revision are deleted while fewer than maxUnavailable (one) are not available
OnDelete       whoever deletes a pod gets one of the new revision
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from coterie.kube.api.int_or_percent import resolve
from coterie.kube.api.pod_state import is_ready, until_available
from coterie.kube.api.types.apps import StatefulSet, StatefulSetStatus
from coterie.kube.api.types.pods import Pod
from coterie.kube.controllers.statefulset.identity import by_ordinal, missing_labels, revision_of


@dataclass(frozen=True, slots=True)
class OrdinalPod:
    ordinal: int
    revision: str
    """Name of the ControllerRevision whose template it is made from."""


@dataclass(slots=True)
class Plan:
    create: list[OrdinalPod] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    recreated: list[Pod] = field(default_factory=list)
    """Ended pods among `delete`: they are told in events."""
    condemned: list[Pod] = field(default_factory=list)
    """Pods beyond the wanted ones, whether they are deleted now or later."""
    relabel: list[Pod] = field(default_factory=list)
    after: float | None = None
    """Seconds after which a ready pod becomes available."""


@dataclass(frozen=True, slots=True)
class StatefulPods:
    stateful_set: StatefulSet
    pods: Sequence[Pod]
    current: str
    """Name of the revision that the update started from."""
    update: str
    """Name of the revision of the present template."""
    now: datetime

    @property
    def ordinals(self) -> range:
        start = self.stateful_set.start
        return range(start, start + self.stateful_set.replicas)

    @property
    def partition(self) -> int:
        """The lowest ordinal that is updated."""
        rolling = self.stateful_set.spec.update_strategy.rolling_update
        return self.stateful_set.start + ((rolling.partition or 0) if rolling is not None else 0)

    @property
    def max_unavailable(self) -> int:
        rolling = self.stateful_set.spec.update_strategy.rolling_update
        value = rolling.max_unavailable if rolling is not None else None
        return 1 if value is None else max(1, resolve(value, self.stateful_set.replicas, up=True))

    def revision_for(self, ordinal: int) -> str:
        """The revision a new pod gets: those below the partition stay with the current one."""
        rolling = self.stateful_set.spec.update_strategy.type == "RollingUpdate"
        return self.current if rolling and ordinal < self.partition else self.update

    def until_available(self, pod: Pod) -> float | None:
        """0: it is available; None: it is not ready."""
        if pod.status.phase != "Running" or pod.metadata.deleting:
            return None
        return until_available(pod, self.stateful_set.spec.min_ready_seconds, self.now)

    def available(self, pod: Pod) -> bool:
        return self.until_available(pod) == 0


def plan(known: StatefulPods) -> Plan:
    found = by_ordinal(known.pods)
    out = Plan(condemned=[pod for ordinal, pod in found.items() if ordinal not in known.ordinals])
    out.relabel = [pod for pod in known.pods if not pod.metadata.deleting and missing_labels(pod)]
    out.after = _soonest(known)
    if known.stateful_set.metadata.deleting:
        return out
    ordered = known.stateful_set.spec.pod_management_policy != "Parallel"
    if _fill(known, found, ordered, out) or _shrink(known, found, ordered, out):
        return out
    if known.stateful_set.spec.update_strategy.type == "RollingUpdate":
        _roll(known, found, out)
    return out


def _fill(known: StatefulPods, found: dict[int, Pod], ordered: bool, out: Plan) -> bool:
    """Create what is missing, lowest first. True: nothing else may happen before it is there."""
    for ordinal in known.ordinals:
        pod = found.get(ordinal)
        if pod is None:
            out.create.append(OrdinalPod(ordinal, known.revision_for(ordinal)))
        elif pod.ended and not pod.metadata.deleting:
            out.delete.append(pod)
            out.recreated.append(pod)
        elif not ordered or known.available(pod):
            continue
        if ordered:
            return True
    return bool(out.create or out.delete)


def _shrink(known: StatefulPods, found: dict[int, Pod], ordered: bool, out: Plan) -> bool:
    """Delete what is too many, highest first. A pod that is not healthy is waited for, unless it is the only one."""
    for pod in reversed(out.condemned):
        if pod.metadata.deleting:
            if ordered:
                return True
            continue
        if ordered and not known.available(pod) and pod is not _first_unhealthy(known, found):
            return True
        out.delete.append(pod)
        if ordered:
            return True
    return False


def _first_unhealthy(known: StatefulPods, found: dict[int, Pod]) -> Pod | None:
    return next((pod for pod in found.values() if not is_ready(pod) or pod.metadata.deleting), None)


def _roll(known: StatefulPods, found: dict[int, Pod], out: Plan) -> None:
    unavailable = 0
    for ordinal in reversed(known.ordinals):
        if ordinal < known.partition or unavailable >= known.max_unavailable:
            return
        pod = found[ordinal]
        if revision_of(pod) != known.update and not pod.metadata.deleting:
            out.delete.append(pod)
            unavailable += 1
        elif not known.available(pod):
            unavailable += 1


def _soonest(known: StatefulPods) -> float | None:
    waits = [wait for pod in known.pods if (wait := known.until_available(pod))]
    return min(waits, default=None)


def status(known: StatefulPods) -> StatefulSetStatus:
    pods = known.pods
    staying = [pod for pod in pods if not pod.metadata.deleting]
    ready = [pod for pod in pods if pod.status.phase == "Running" and is_ready(pod)]
    updated = _count(staying, known.update)
    current, revision = _count(staying, known.current), known.current
    rolling = known.stateful_set.spec.update_strategy.type == "RollingUpdate"
    if rolling and updated == len(pods) == known.stateful_set.replicas == len(ready):
        current, revision = updated, known.update  # the update is complete
    return msgspec.structs.replace(
        known.stateful_set.status,
        observed_generation=known.stateful_set.metadata.generation,
        replicas=len(pods),
        ready_replicas=len(ready),
        available_replicas=sum(known.available(pod) for pod in ready),
        current_replicas=current,
        updated_replicas=updated,
        current_revision=revision,
        update_revision=known.update,
    )


def _count(pods: Iterable[Pod], revision: str) -> int:
    return sum(revision_of(pod) == revision for pod in pods)
