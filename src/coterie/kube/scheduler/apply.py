"""Does what the engine decided: binds, reports, evicts, and writes the phases of TaskResources.

Effects on one pod are done one after the other (by the same worker), so a report can never overtake a binding. Whatever
fails is told to the engine, which knows what to do about it; reports are the exception: a lost one is made again.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Condition, Object, ObjectKey, find_condition, set_condition
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.cache import Cache
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import EventRecorder
from coterie.kube.scheduler.effects import Bind, Effect, Evict, MarkFailed, MarkReserved, Report
from coterie.kube.scheduler.engine import Engine
from coterie.kube.scheduler.facts import PodFacts
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.gangs.gangs import FAILED, RESERVED, RESERVING

_log = logger("scheduler")
_PLAIN_PODS = PODS.as_dynamic
_MARK_PAUSE = 0.2
_MARK_FAILED_SECONDS = 15.0
_SCHEDULED = "PodScheduled"
_Failure = (ApiError, TransportError)


class Applier:
    def __init__(self, client: Client, engine: Engine, pods: Cache[Pod], events: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._engine = engine
        self._pods = pods
        self._events = events
        self._clock = clock

    async def apply(self, effect: Effect) -> None:
        match effect:
            case Bind():
                await self._bind(effect.pod, effect.node)
            case Report():
                await self._report(effect)
            case Evict():
                await self._evict(effect)
            case MarkReserved():
                await self._mark_reserved(effect.task)
            case MarkFailed():
                await self._mark_failed(effect.task, effect.message)

    async def _bind(self, pod: PodFacts, node: str) -> None:
        binding: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": pod.namespace, "name": pod.key.name, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._client.create(_PLAIN_PODS, binding, pod.namespace, name=pod.key.name, subresource="binding")
        except (NotFound, Conflict) as error:
            _log.debug("Pod could not be bound", pod=str(pod.key), node=node, why=str(error))
            self._engine.bind_failed(pod)
        except _Failure as error:
            _log.warning("Pod could not be bound; trying again", error=error, pod=str(pod.key), node=node)
            self._events.warning(reference_to(pod), "FailedScheduling", f"binding rejected: {error}")
            self._engine.bind_failed(pod)
        else:
            message = f"Successfully assigned {pod.key} to {node}"
            self._events.record(reference_to(pod), "Normal", "Scheduled", message, action="Binding")

    async def _report(self, report: Report) -> None:
        pod = self._current(report.pod)
        if pod is None:
            return
        self._events.record(
            reference_to(report.pod), "Warning", "FailedScheduling", report.message, action="Scheduling"
        )
        old = find_condition(pod.status.conditions, _SCHEDULED)
        if old is not None and (old.status, old.reason, old.message) == ("False", report.reason, report.message):
            return
        since = old.last_transition_time if old is not None and old.status == "False" else None
        condition = {
            "type": _SCHEDULED,
            "status": "False",
            "reason": report.reason,
            "message": report.message,
            "lastTransitionTime": since or rfc3339(self._clock.now()),
        }
        await self._patch_status(report.pod, {"conditions": [condition]})

    async def _evict(self, evict: Evict) -> None:
        if self._current(evict.pod) is None:
            return
        await self._patch_status(evict.pod, {"nominatedNodeName": evict.node})
        for victim in evict.victims:
            if victim.terminating:
                continue
            message = f"Preempted by pod {evict.pod.uid} on node {evict.node}"
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": f"coterie: preempting to accommodate a higher priority pod {evict.pod.key}",
                "lastTransitionTime": rfc3339(self._clock.now()),
            }
            await self._patch_status(victim, {"conditions": [condition]})
            try:
                await self._client.delete(PODS, victim.key.name, victim.namespace, uid=victim.uid)
            except (NotFound, Conflict):
                continue  # gone already, or replaced by another of its name: its room is free either way
            except _Failure as error:
                _log.warning("Pod could not be preempted", error=error, pod=str(victim.key))
                self._engine.evict_failed(evict.pod)
                return
            self._events.record(reference_to(victim), "Normal", "Preempted", message, action="Preempting")

    async def _patch_status(self, pod: PodFacts, status: Object) -> None:
        # The uid guards against writing to another pod of the same name.
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        try:
            await self._client.patch(
                _PLAIN_PODS, pod.key.name, pod.namespace, patch, type="strategic", subresource="status"
            )
        except _Failure as error:
            _log.debug("Pod status was not written", pod=str(pod.key), why=str(error))

    def _current(self, facts: PodFacts) -> Pod | None:
        """The pod, if it is still the same one and still waits."""
        pod = self._pods.by_key(facts.key)
        if pod is None or pod.metadata.uid != facts.uid or pod.spec.node_name or pod.metadata.deleting:
            return None
        return pod

    # TaskResources have no status sub-resource: their phase is written with the object.

    async def _mark_reserved(self, key: ObjectKey) -> None:
        """Until it is written or the room is not held any more."""
        held = self._engine.reservations.held
        while key in held and not held[key].giving_up:
            if await self._modify_task(key, lambda task: self._in_phase(task, (RESERVING,), RESERVED, "")):
                return
            await self._clock.sleep(_MARK_PAUSE)

    async def _mark_failed(self, key: ObjectKey, message: str) -> None:
        deadline = self._clock.monotonic() + _MARK_FAILED_SECONDS
        # What became schedulable in the last moment stays so; the answer tells the engine, which then binds.
        while not await self._modify_task(
            key, lambda task: self._in_phase(task, (RESERVING, RESERVED, "", "Pending"), FAILED, message)
        ):
            if self._clock.monotonic() >= deadline:
                _log.warning("TaskResource could not be marked as failed", task=str(key))
                self._engine.mark_gave_up(key)
                return
            await self._clock.sleep(_MARK_PAUSE)

    async def _modify_task(self, key: ObjectKey, change: Callable[[TaskResource], TaskResource]) -> bool:
        """True when it is done; what the server answers is as good as seen."""
        try:
            task = await self._client.modify(TASK_RESOURCES, key.name, key.namespace, change)
        except NotFound:
            self._engine.task_gone(key)
        except _Failure as error:
            _log.debug("TaskResource was not written", task=str(key), why=str(error))
            return False
        else:
            self._engine.task_seen(task)
        return True

    def _in_phase(self, task: TaskResource, before: tuple[str, ...], phase: str, reason: str) -> TaskResource:
        if task.status.phase not in before:
            return task
        now = rfc3339(self._clock.now())
        conditions = set_condition(task.status.conditions, Condition(type=phase, status="True", reason=reason), now)
        status = replace(task.status, phase=phase, conditions=conditions, last_transition_time=now)
        return replace(task, status=status)


def reference_to(pod: PodFacts) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.key.name, uid=pod.uid)
