"""Applies what the engine decided: binds, reports, evicts, and hands effects of plug-ins to them.

Effects on one pod are done one after the other (by the same worker), so a report can never overtake a binding. Whatever
fails is told to the engine, which knows what to do about it; reports are the exception: a lost one is made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.cache import Cache
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import BRIEF, EventRecorder
from coterie.kube.scheduler.effects import Bind, Effect, Evict, PluginEffect, Report
from coterie.kube.scheduler.engine import SchedulingEngine
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.plugin import SchedulerPlugin
from coterie.kube.scheduler.volume_binding import SchedulerStops, VolumeBinder, VolumesNotBound

_log = logger("scheduler")
_PLAIN_PODS = PODS.as_dynamic
_SCHEDULED = "PodScheduled"
_Failure = (ApiError, TransportError)


class Applier:
    def __init__(
        self,
        client: Client,
        engine: SchedulingEngine,
        pods: Cache[Pod],
        events: EventRecorder,
        clock: Clock,
        plugins: Sequence[SchedulerPlugin] = (),
        volumes: VolumeBinder | None = None,
    ) -> None:
        self._volumes = volumes
        self._plugins = {plugin.name: plugin for plugin in plugins}
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
            case PluginEffect():
                await self._plugins[effect.plugin].apply(effect, self._client, self._clock)

    async def _bind(self, pod: PodFacts, node: str) -> None:
        if pod.unbound_claims and self._volumes is not None:
            try:
                await self._volumes.bind(pod, node, lambda: self._current(pod) is not None)
            except (VolumesNotBound, *_Failure) as error:
                _log.debug("Volumes of a pod could not be bound", pod=str(pod.key), node=node, why=str(error))
                if self._current(pod) is not None and not isinstance(error, SchedulerStops):
                    self._events.warning(reference_to(pod), "FailedScheduling", f"running PreBind: {error}")
                self._engine.bind_failed(pod)
                return
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
            after = BRIEF if pod.gang is not None else 0.0
            self._events.record(reference_to(pod), "Normal", "Scheduled", message, action="Binding", after=after)

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


def reference_to(pod: PodFacts) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.key.name, uid=pod.uid)
