"""Tells the API how pods are: only what changed, the newest state only, a few at a time, again until it is there.

A status is written as a strategic merge patch that carries the pod's uid: the conditions of others are left alone, and a
pod that was replaced by another of the same name is never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.pods import pod_model, resize
from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.control.queue import WorkQueue

log = logger("agent.pods.status")
_PODS = PODS.as_dynamic
_TEMPORARY = (resize.PENDING, resize.IN_PROGRESS)


@dataclass(slots=True)
class _Wanted:
    pod: Object
    status: Object
    on_written: Callable[[Object], None]
    settled: asyncio.Future[None]


def changed_fields(before: Object, after: Object) -> Object:
    """The fields of a status to write; None for what is gone."""
    fields = {key: value for key, value in after.items() if before.get(key) != value}
    fields.update({key: None for key in ("reason", "message") if key in before and key not in after})
    if "conditions" in fields:
        left = {condition["type"] for condition in after["conditions"]}
        # Others' conditions are merged with ours; those of a resize that is over must be removed by name.
        over = [kind for kind in _TEMPORARY if kind not in left and kind in _types(before)]
        if over:
            fields["conditions"] = [*fields["conditions"], *({"type": kind, "$patch": "delete"} for kind in over)]
    return fields


def _types(status: Object) -> set[str]:
    return {condition["type"] for condition in status.get("conditions") or ()}


class StatusWriter:
    def __init__(self, client: Client, clock: Clock, writers: int, pause: float = 0.0) -> None:
        self._client = client
        self._clock = clock
        self._writers = writers
        self._pause = pause
        self._queue: WorkQueue[str] = WorkQueue(clock=clock)
        self._wanted: dict[str, _Wanted] = {}
        self._last: dict[str, float] = {}
        self.writes = 0

    async def run(self) -> None:
        async with TaskOwner("pod-statuses") as owner:
            owner.start("delays", self._queue.run())
            for i in range(self._writers):
                owner.start(f"writer-{i}", self._work())
            await owner.wait()

    def put(
        self, pod: Object, status: Object, on_written: Callable[[Object], None], delay: float = 0.0
    ) -> asyncio.Future[None]:
        """Have the status written, after `delay` seconds if nothing newer comes before; a newer one for the same pod takes its place. The result comes when it is settled:
        written, or of no use because the pod is gone."""
        uid = pod_model.uid_of(pod)
        known = self._wanted.get(uid)
        settled = known.settled if known is not None else asyncio.get_running_loop().create_future()
        self._wanted[uid] = _Wanted(pod, status, on_written, settled)
        due = self._last.get(uid, float("-inf")) + self._pause - self._clock.monotonic()
        self._queue.add_after(uid, max(due, delay))
        return settled

    def forget(self, uid: str) -> None:
        self._last.pop(uid, None)
        wanted = self._wanted.pop(uid, None)
        if wanted is not None and not wanted.settled.done():
            wanted.settled.set_result(None)

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                await self._write(uid)
            finally:
                self._queue.done(uid)

    async def _write(self, uid: str) -> None:
        wanted = self._wanted.get(uid)
        if wanted is None:
            return
        key = pod_model.key_of(wanted.pod)
        patch = {"metadata": {"uid": uid}, "status": changed_fields(pod_model.status_in(wanted.pod), wanted.status)}
        try:
            written = await self._client.patch(
                _PODS, key.name, key.namespace, patch, type="strategic", subresource="status"
            )
        except (NotFound, Conflict):
            self._queue.forget(uid)
            self.forget(uid)  # gone, or another pod has its name
            return
        except Exception as error:  # noqa: BLE001 - whatever the reason, the status must get there in the end
            wait = self._queue.retry(uid)
            log.warning("A pod's status could not be written", error=error, pod=str(key), seconds=round(wait, 2))
            return
        self.writes += 1
        self._queue.forget(uid)
        self._last[uid] = self._clock.monotonic()
        if self._wanted.get(uid) is wanted:
            self.forget(uid)
            self._last[uid] = self._clock.monotonic()
        wanted.on_written(written)
