"""The extension point of the scheduler.

    filter    `namespace_refusal`: pods of some namespaces are not placed here
    score     `resource_scores`: extended resources by which nodes are compared
    gangs     `gang_of`: pods that are placed together or not at all
    reserve   `GangPlacer`: takes room for a whole gang, holds it and gives it back
    permit    `GangPlacer`: lets the pods of a gang be bound when all of its conditions are met
    effects   `apply`: what a plug-in wants written to the API

Everything but `watches` and `apply` is pure and synchronous, like the engine that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coterie.base.clock import Clock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers

if TYPE_CHECKING:
    from coterie.kube.scheduler.effects import PluginEffect
    from coterie.kube.scheduler.facts import PodFacts
    from coterie.kube.scheduler.state import SchedulerState


@dataclass(frozen=True, slots=True)
class GangMembership:
    """To which gang a pod belongs."""

    key: ObjectKey | None
    """None: the gang is not named yet, and the pod waits until it is."""
    uid: str = ""
    group: str = ""
    """What gangs of several clusters that wait for each other have in common."""


@dataclass(frozen=True, slots=True)
class ResourceScore:
    """An extended resource by which nodes are compared: the more of it is left, the better."""

    resource: str
    weight: float = 1.0
    shortage_reason: str = ""
    """Reason of the pod's condition when a node lacks nothing else."""


class GangOfPods(Protocol):
    @property
    def namespace(self) -> str: ...

    @property
    def pods(self) -> Sequence[PodFacts]:
        """All that are known."""


class GangPlacer(Protocol):
    """Places gangs. Entries of the queue that are gangs have a key that `find` knows."""

    def member_pending(self, pod: PodFacts) -> None: ...

    def member_bound(self, pod: PodFacts, node: str) -> None: ...

    def member_gone(self, pod: PodFacts) -> None: ...

    def node_gone(self, name: str) -> None: ...

    def bind_failed(self, pod: PodFacts) -> None: ...

    def find(self, queue_key: str) -> GangOfPods | None: ...

    def attempt(self, queue_key: str) -> None:
        """Try to reserve room for the gang."""

    def expire(self) -> None:
        """Give back what was held too long."""

    def next_deadline(self) -> float | None: ...

    def helped_by(self, queue_key: str, nodes: Iterable[str]) -> bool:
        """Whether one of the gang's pods could go to one of the nodes."""

    def held_pods(self) -> set[str]:
        """Uids of pods for which room is held; they are not preempted."""


@dataclass(frozen=True, slots=True)
class PluginWatch:
    """Objects that a plug-in follows; the scheduler starts when all of them are known."""

    informer: Informer[Any]
    seen: Callable[[Any], None]
    gone: Callable[[Any], None]


class SchedulerPlugin(Protocol):
    name: str
    scheduler_names: frozenset[str]
    """More values of `spec.schedulerName` that this scheduler answers to."""
    resource_scores: tuple[ResourceScore, ...]

    def namespace_refusal(self, namespace: str, labels: Mapping[str, str]) -> str:
        """Why pods of this namespace are not placed here; empty: they are."""

    def gang_of(self, pod: Pod) -> GangMembership | None: ...

    def placer(self, state: SchedulerState) -> GangPlacer | None:
        """Called once, by the engine that has the state."""

    def watches(self, informers: Informers) -> Sequence[PluginWatch]: ...

    async def apply(self, effect: PluginEffect, client: Client, clock: Clock) -> None:
        """Effects on one key are applied one after the other."""
