"""Making and removing pods on behalf of a workload: templates to pods, slow start, events.

Slow start: a workload that asks for 500 pods and is refused the first (a quota, a template nobody can admit) should not
ask 500 times. So one is tried, then two, four, ... and the first refusal ends the round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import ApiObject, Object, ObjectMeta
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.control.controller_refs import reference
from coterie.kube.control.events import EventRecorder, reference_to

_PLAIN = PODS.as_dynamic
BURST = 500
"""Pods made or removed in one round at most."""


def pod_from_template(kind: Kind[Any], owner: ObjectMeta, template: Mapping[str, Any]) -> Object:
    """A pod as the template says, controlled by the owner and named after it."""
    meta = template.get("metadata") or {}
    owner_ref = reference(kind, owner)
    made: Object = {
        "generateName": f"{owner.name}-",
        "namespace": owner.namespace,
        "ownerReferences": [
            {
                "apiVersion": owner_ref.api_version,
                "kind": owner_ref.kind,
                "name": owner_ref.name,
                "uid": owner_ref.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    for key in ("labels", "annotations"):
        if meta.get(key):
            made[key] = dict(meta[key])
    if meta.get("finalizers"):
        made["finalizers"] = list(meta["finalizers"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template.get("spec") or {}}


@dataclass(frozen=True, slots=True)
class PodBatchResult:
    done: int = 0
    refused: ApiError | None = None
    """The first refusal, if there was one."""


async def slow_start(count: int, attempt: Callable[[int], Awaitable[None]]) -> PodBatchResult:
    """Call `attempt(i)` for each number below `count`, in batches that double while all goes well."""
    done, size = 0, 1
    while done < count:
        batch = range(done, min(count, done + size))
        results = await asyncio.gather(*(attempt(i) for i in batch), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        done += len(results) - len(failures)
        for failure in failures:
            if not isinstance(failure, ApiError):
                raise failure
        if failures:
            first = failures[0]
            assert isinstance(first, ApiError)
            return PodBatchResult(done, first)
        size *= 2
    return PodBatchResult(done)


class PodControl:
    """Creates and deletes pods of owners of one kind and tells about it in events of the owner."""

    def __init__(
        self,
        client: Client,
        kind: Kind[Any],
        events: EventRecorder | None,
        written: Callable[[ObjectMeta, str], None],
    ) -> None:
        """`written(owner, version)` hears of each write, so that the caller can wait for its cache."""
        self._client = client
        self._kind = kind
        self._events = events
        self._written = written

    async def create(self, owner: ApiObject, pods: Sequence[Object]) -> PodBatchResult:
        async def one(i: int) -> None:
            try:
                made = await self._client.create(_PLAIN, pods[i])
            except ApiError as error:
                if not namespace_is_going(error):
                    self.record_event(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
                raise
            meta = made["metadata"]
            self._written(owner.metadata, meta.get("resourceVersion") or "")
            self.record_event(owner, "Normal", "SuccessfulCreate", f"Created pod: {meta['name']}")

        outcome = await slow_start(len(pods), one)
        if outcome.refused is not None and namespace_is_going(outcome.refused):
            return PodBatchResult(outcome.done)  # nothing can be created there any more, and nothing needs to
        return outcome

    async def delete(self, owner: ApiObject, pods: Sequence[Pod]) -> PodBatchResult:
        results = await asyncio.gather(*(self._delete(owner, pod) for pod in pods), return_exceptions=True)
        refused: ApiError | None = None
        for result in results:
            if isinstance(result, ApiError):
                refused = refused or result
            elif isinstance(result, BaseException):
                raise result
        return PodBatchResult(sum(result is None for result in results), refused)

    async def _delete(self, owner: ApiObject, pod: Pod) -> None:
        meta = pod.metadata
        try:
            gone = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return
        except Conflict:
            raise  # another pod of this name: our cache is behind
        except ApiError as error:
            self.record_event(owner, "Warning", "FailedDelete", f"Error deleting: {error.message}")
            raise
        self._written(owner.metadata, (gone.get("metadata") or {}).get("resourceVersion") or "")
        self.record_event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")

    def record_event(self, owner: ApiObject, type: str, reason: str, message: str) -> None:
        if self._events is not None:
            resource = self._kind.resource
            about = reference_to(owner, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, "Warning" if type == "Warning" else "Normal", reason, message)


def namespace_is_going(error: ApiError) -> bool:
    return any(cause.reason == "NamespaceTerminating" for cause in error.causes)
