"""Tells the API when a pod that asks for it (annotation `coterie.io/idle-seconds`) does nothing any more, and when it does again.

    every 1 to 15 s while there are such pods: CPU time and network bytes ──> idleness (pure) ──> condition, when it changed

A pod that works is measured and never written. Without such pods nothing happens at all.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.agent.pods import idleness, pod_model
from coterie.kube.agent.pods.idleness import IdleRules, PodActivity
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.errors import ApiError
from coterie.kube.api.labels import COTERIE_IDLE
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError

log = logger("agent.idleness")
_PODS = PODS.as_dynamic


class IdleMonitor:
    """A Runnable."""

    name = "pod-idleness"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        runtime: PodRuntime,
        settings: AgentSettings,
        clock: Clock,
        rules: IdleRules | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._runtime = runtime
        self._clock = clock
        self._rules = rules or IdleRules()
        # The same informer as the pod manager's.
        self._informer = informers.get(_PODS, settings.pods.namespace, fields=f"spec.nodeName={settings.node_name}")
        self._watched: dict[str, Object] = {}
        """By uid."""
        self._known: dict[str, PodActivity] = {}
        self._period = self._rules.longest_period
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        remove = self._informer.add_handler(self._changed)
        self.ready.set()
        try:
            while not self._stop.is_set():
                if not self._watched:
                    await self._wake.wait()
                if self._stop.is_set():
                    return
                self._wake.clear()
                if await self._pause():
                    await self.check()
        finally:
            remove()

    async def _pause(self) -> bool:
        """Until the next measurement is due; False when a pod came that must be measured more often."""
        limits = [seconds for pod in self._watched.values() if (seconds := idleness.idle_seconds(pod)) is not None]
        self._period = idleness.period(limits, self._rules)
        sleep = asyncio.ensure_future(self._clock.sleep(self._period))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()
        return not self._wake.is_set()

    def _changed(self, change: ObjectChange[Object]) -> None:
        pod = change.object
        uid = pod_model.uid_of(pod)
        over = change.type == "deleted" or pod_model.phase_is_final(pod) or pod_model.deleting(pod)
        limit = idleness.idle_seconds(pod)
        if over or limit is None:
            self._watched.pop(uid, None)
            self._known.pop(uid, None)
            return
        if not self._watched or (uid not in self._watched and idleness.period([limit], self._rules) < self._period):
            self._wake.set()
        self._watched[uid] = pod

    async def check(self) -> None:
        """Measure each pod once, and write what changed."""
        for uid, pod in list(self._watched.items()):
            limit = idleness.idle_seconds(pod)
            usage = await self._runtime.usage(uid)
            if not usage or limit is None:
                self._known.pop(uid, None)  # nothing runs; its phase says so
                continue
            cpu = sum(each.cpu_nanoseconds for each in usage.values())
            network = self._runtime.network_bytes(uid) or 0
            now = self._clock.now().timestamp()
            before = self._known.get(uid)
            if before is None:
                self._known[uid] = idleness.first(pod, now, cpu, network)
                continue
            after = idleness.measured(before, now, cpu, network, limit, self._rules)
            if after.idle == before.idle or await self._write(pod, after):
                self._known[uid] = after

    async def _write(self, pod: Object, activity: PodActivity) -> bool:
        key = pod_model.key_of(pod)
        since = rfc3339(datetime.fromtimestamp(activity.active_at, UTC))
        condition = {
            "type": COTERIE_IDLE,
            "status": "True" if activity.idle else "False",
            "reason": "NoActivity" if activity.idle else "Active",
            "lastTransitionTime": since,
        }
        patch = {"metadata": {"uid": pod_model.uid_of(pod)}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(_PODS, key.name, key.namespace, patch, type="strategic", subresource="status")
        except (ApiError, TransportError) as error:
            log.debug("The activity of a pod could not be written", pod=str(key), why=str(error))
            return False  # it is tried again with the next measurement
        return True
