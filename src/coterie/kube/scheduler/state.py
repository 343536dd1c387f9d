"""The state of the scheduler: the snapshot, which pods are pending, what was decided and is not yet true.

Shared by the engine (pods that go alone) and plug-ins (gangs). A pod that was decided for is `assumed`: it has
its place in the snapshot until the binding is seen, or has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from coterie.kube.scheduler.effects import Effect, Report
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.metrics import SchedulerMetrics, wait_reason
from coterie.kube.scheduler.plan import SAMPLING, Sampling
from coterie.kube.scheduler.queue import SchedulingQueue
from coterie.kube.scheduler.snapshot import Snapshot


class SchedulerState:
    def __init__(self, monotonic: Callable[[], float], *, sampling: Sampling = SAMPLING, seed: int = 0) -> None:
        self.now = monotonic
        self.sampling = sampling
        self.snapshot = Snapshot()
        self.queue = SchedulingQueue()
        self.pending: dict[str, PodFacts] = {}
        self.assumed: dict[str, str] = {}
        self.effects: list[Effect] = []
        self.freed: set[str] = set()
        """Nodes that pods left since waiting pods were looked through last."""
        self.metrics = SchedulerMetrics()
        self.cursor = Random(seed).randrange(1 << 16)

    def forget(self, uid: str) -> None:
        """Whatever was decided for the pod does not hold any more."""
        self.assumed.pop(uid, None)
        state = self.snapshot.places.get(uid)
        if state is not None:
            self.snapshot.remove(uid)
            self.freed.add(state.name)

    def report(self, pod: PodFacts, reason: str, message: str) -> None:
        self.effects.append(Report(pod, reason, message))
        self.metrics.waits(pod.uid, wait_reason(reason, message))

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
