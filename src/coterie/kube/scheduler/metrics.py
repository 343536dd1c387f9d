"""What the scheduler counts: attempts by result, and what pods wait for.

A pod's condition says in a sentence why it waits; here the sentence becomes one of a few words, because each word is a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.base.exposition import Family, labels

if TYPE_CHECKING:
    from coterie.kube.scheduler.engine import SchedulingEngine

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
QUEUED, RESERVED, OTHER = "Queued", "Reserved", "Other"
_GENERAL = "Unschedulable"
"""The usual reason of the condition, which says nothing; plug-ins have words of their own."""
_WORDS = (
    # In a sentence with several, the first of these is the word: what an operator can do something about comes first.
    ('namespace "', "NamespaceRefused"),
    ("no nodes available", "NoNodes"),
    ("Insufficient cpu", "InsufficientCPU"),
    ("Insufficient memory", "InsufficientMemory"),
    ("Insufficient ephemeral-storage", "InsufficientStorage"),
    ("Insufficient ", "InsufficientDevices"),
    ("Too many pods", "TooManyPods"),
    ("free ports", "NoFreePorts"),
    ("ersistent volume", "Volumes"),
    ("ersistentVolume", "Volumes"),
    ("persistentvolume", "Volumes"),
    ("taint", "UntoleratedTaint"),
    ("affinity", "Affinity"),
    ("topology spread", "TopologySpread"),
    ("runtime", "RuntimeClass"),
    ("node(s) were not ready", "NodeNotReady"),
    ("node(s) were unschedulable", "NodeUnschedulable"),
    ("requested node name", "NodeName"),
    ("node(s) run only pods of their domain", "NodeOfOtherNamespace"),
    ("task resource", "Reservation"),
    ("reserve", "Reservation"),
)
_OUTCOMES = {"waiting": UNSCHEDULABLE, "backoff": UNSCHEDULABLE, "popped": SCHEDULED, "": SCHEDULED}


def wait_reason(reason: str, message: str) -> str:
    if reason != _GENERAL:
        return reason
    return next((word for text, word in _WORDS if text in message), OTHER)


class SchedulerMetrics:
    """Plain counters, written by the engine and by plug-ins' reports."""

    def __init__(self) -> None:
        self.attempts = dict.fromkeys((SCHEDULED, UNSCHEDULABLE, ERROR), 0)
        self.reasons: dict[str, str] = {}
        """By uid, of pods that were reported as unschedulable and are still pending."""
        self._waits: Counter[str] = Counter()

    def attempted(self, state: str) -> None:
        """`state`: of the queue's entry after the attempt."""
        if (outcome := _OUTCOMES.get(state)) is not None:
            self.attempts[outcome] += 1

    def waits(self, uid: str, reason: str) -> None:
        if self.reasons.get(uid) != reason:
            self._waits[reason] += 1
            self.reasons[uid] = reason

    def families(self, engine: SchedulingEngine) -> list[Family]:
        state = engine.state
        pending = Counter(RESERVED if uid in state.assumed else self.reasons.get(uid, QUEUED) for uid in state.pending)
        queue = engine.queue.counts()
        return [
            Family(
                "coterie_scheduler_attempts_total",
                "Attempts to place a pod or the pods of a task, by result.",
                "counter",
                [(labels(result=result), count) for result, count in self.attempts.items()],
            ),
            Family(
                "coterie_scheduler_waits_total",
                "Pods that began to wait, by reason.",
                "counter",
                [(labels(reason=reason), count) for reason, count in sorted(self._waits.items())],
            ),
            Family(
                "coterie_pending",
                "Pods without a node, by reason.",
                "gauge",
                [(labels(reason=reason), count) for reason, count in sorted(pending.items())],
            ),
            Family(
                "coterie_scheduler_queue",
                "Entries of the scheduling queue (pods, or tasks with all their pods), by state.",
                "gauge",
                [(labels(state=each), queue[each]) for each in ("active", "waiting", "backoff")],
            ),
        ]


class SchedulerSource:
    """A source of metrics. `engine` is set when the scheduler is made, which is when the first pod is seen."""

    name = "scheduler"

    def __init__(self) -> None:
        self.engine: SchedulingEngine | None = None

    async def families(self) -> Sequence[Family]:
        return self.engine.state.metrics.families(self.engine) if self.engine is not None else ()
