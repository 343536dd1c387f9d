"""Kuscia's plug-in of the scheduler: tasks reserve in all domains before anything is bound, and bandwidth counts.

    TaskResource ──seen──> Reservations (GangPlacer) ──MarkReserved, MarkFailed──> phase of the TaskResource

Pods of a partner's namespace are placed by the partner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Condition, ObjectKey, set_condition
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.scheduler.effects import PluginEffect
from coterie.kube.scheduler.plugin import GangMembership, PluginWatch, ResourceScore
from coterie.kube.scheduler.state import SchedulerState
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import INSUFFICIENT
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, GATEWAYS, DomainRoute, Gateway
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS
from coterie.kuscia.api.types.task_resource import RESERVATION_SENTENCES, TASK_RESOURCES, ReservationPhase, TaskResource
from coterie.kuscia.gangs.bandwidth import BandwidthState
from coterie.kuscia.gangs.effects import PLUGIN, MarkFailed, MarkReserved, MarkWaiting
from coterie.kuscia.gangs.gangs import FAILED, RESERVED, RESERVING, Gang, task_facts
from coterie.kuscia.gangs.reservations import GangReservations

_PARTNER = "partner"
_RETRY_SECONDS = 0.2
_MARK_FAILED_SECONDS = 15.0

log = logger("scheduler.gangs")


class GangPlugin:
    name = PLUGIN
    scheduler_names = frozenset((labels.KUSCIA_SCHEDULER,))
    resource_scores: tuple[ResourceScore, ...] = (ResourceScore(labels.KUSCIA_BANDWIDTH, 1.0, INSUFFICIENT),)

    def __init__(self, *, hold_seconds: float = 30.0, wall: Callable[[], datetime] = SYSTEM_CLOCK.now) -> None:
        """`hold_seconds`: how long room is held when the TaskResource does not say."""
        self._hold_seconds = hold_seconds
        self.bandwidth = BandwidthState(wall)
        self._now: Callable[[], float] = SYSTEM_CLOCK.monotonic
        self._reservations: GangReservations | None = None

    @property
    def reservations(self) -> GangReservations:
        assert self._reservations is not None, "the engine asks for the placer first"
        return self._reservations

    def namespace_refusal(self, namespace: str, labels_of_namespace: Mapping[str, str]) -> str:
        if labels_of_namespace.get(labels.KUSCIA_ROLE) == _PARTNER:
            return f'namespace "{namespace}" belongs to a partner'
        return ""

    def gang_of(self, pod: Pod) -> GangMembership | None:
        meta = pod.metadata
        name = (meta.annotations or {}).get(labels.KUSCIA_TASK_RESOURCE)
        if name is None:
            return None
        group = (meta.annotations or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP)
        return GangMembership(
            ObjectKey(meta.namespace, name) if name else None,
            (meta.labels or {}).get(labels.KUSCIA_TASK_RESOURCE_UID, ""),
            group or (meta.labels or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP_UID, ""),
        )

    def placer(self, state: SchedulerState) -> GangReservations:
        self._now = state.now
        self._reservations = GangReservations(state, hold_seconds=self._hold_seconds, bandwidth=self.bandwidth)
        return self._reservations

    def watches(self, informers: Informers) -> Sequence[PluginWatch]:
        return [
            PluginWatch(informers.get(TASK_RESOURCES), self.task_seen, lambda task: self.task_gone(task.key)),
            PluginWatch(informers.get(DOMAIN_ROUTES), self._route_seen, self._route_gone),
            PluginWatch(informers.get(GATEWAYS), self.gateway_seen, self._gateway_gone),
            PluginWatch(
                informers.get(KUSCIA_TASKS, CROSS_DOMAIN),
                self.bandwidth.task_seen,
                lambda task: self.bandwidth.task_gone(task.metadata.name),
            ),
        ]

    def _route_seen(self, route: DomainRoute) -> None:
        self._recheck(self.bandwidth.route_seen(route))

    def _route_gone(self, route: DomainRoute) -> None:
        self._recheck(self.bandwidth.route_gone(route.key))

    def gateway_seen(self, gateway: Gateway) -> None:
        """Of each domain that is scheduled here: what a gateway says counts for its own domain only."""
        self._recheck(self.bandwidth.gateway_seen(gateway, self._now()))

    def _gateway_gone(self, gateway: Gateway) -> None:
        self._recheck(self.bandwidth.gateway_gone(gateway.key))

    def _recheck(self, changed: bool) -> None:
        if changed and self._reservations is not None:
            self._reservations.bandwidth_seen()

    def task_seen(self, task: TaskResource) -> None:
        self.reservations.task_seen(task_facts(task))

    def task_gone(self, key: ObjectKey) -> None:
        self.reservations.task_gone(key)

    def holding(self) -> list[Gang]:
        """Gangs that hold room and are not bound yet."""
        return list(self.reservations.held.values())

    # Effects. TaskResources have no status sub-resource: their phase is written with the object.

    async def apply(self, effect: PluginEffect, client: Client, clock: Clock) -> None:
        match effect:
            case MarkReserved():
                await self._mark_reserved(effect.key, client, clock)
            case MarkWaiting():
                await self._modify(client, effect.key, lambda task: _waiting(task, effect.message, clock))
            case MarkFailed():
                await self._mark_failed(effect.key, effect.message, client, clock)

    async def _mark_reserved(self, key: ObjectKey, client: Client, clock: Clock) -> None:
        """Until it is written or the room is not held any more."""
        held = self.reservations.held
        while key in held and not held[key].giving_up:
            if await self._modify(client, key, lambda task: _in_phase(task, (RESERVING,), RESERVED, "", clock)):
                return
            await clock.sleep(_RETRY_SECONDS)

    async def _mark_failed(self, key: ObjectKey, message: str, client: Client, clock: Clock) -> None:
        deadline = clock.monotonic() + _MARK_FAILED_SECONDS
        before = (RESERVING, RESERVED, "", "Pending")
        # What became schedulable in the last moment stays so; the answer tells the reservations, which then bind.
        while not await self._modify(client, key, lambda task: _in_phase(task, before, FAILED, message, clock)):
            if clock.monotonic() >= deadline:
                log.warning("TaskResource could not be marked as failed", task=str(key))
                self.reservations.mark_gave_up(key)
                return
            await clock.sleep(_RETRY_SECONDS)

    async def _modify(self, client: Client, key: ObjectKey, change: Callable[[TaskResource], TaskResource]) -> bool:
        """True when it is done; what the server answers is as good as seen."""
        try:
            task = await client.modify(TASK_RESOURCES, key.name, key.namespace, change)
        except NotFound:
            self.task_gone(key)
        except (ApiError, TransportError) as error:
            log.debug("TaskResource was not written", task=str(key), why=str(error))
            return False
        else:
            self.task_seen(task)
            marks = task.metadata.annotations or {}
            group = marks.get(labels.KUSCIA_TASK_RESOURCE_GROUP, key.name)
            log.info("TaskResource was written", task=group, party=key.namespace, phase=task.status.phase)
        return True


def _waiting(task: TaskResource, reason: str, clock: Clock) -> TaskResource:
    """The phase stays; its condition says why it lasts."""
    if task.status.phase != RESERVING:
        return task
    condition = Condition(type=RESERVING, status="True", reason=reason)
    conditions = set_condition(task.status.conditions, condition, rfc3339(clock.now()))
    return replace(task, status=replace(task.status, conditions=conditions))


def _in_phase(task: TaskResource, before: tuple[str, ...], phase: str, reason: str, clock: Clock) -> TaskResource:
    if task.status.phase not in before:
        return task
    now = rfc3339(clock.now())
    why = reason or RESERVATION_SENTENCES.get(ReservationPhase(phase), "")
    conditions = set_condition(task.status.conditions, Condition(type=phase, status="True", reason=why), now)
    status = replace(task.status, phase=phase, conditions=conditions, last_transition_time=now)
    return replace(task, status=status)
