"""The event recorder: tells users what happened to an object, as `kubectl describe` shows it.

Recording never fails, never waits and never floods: it puts a note into a bounded queue, and `run` writes the notes.
The same note again only raises the count of the event that is there. Many notes that differ in their words alone melt
into one. One object that talks without end is cut to a trickle. What cannot be written is dropped and counted.
A note may also wait a moment, and is dropped when its object is gone by then (`retract`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.ids import suffix
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import ApiObject, Object
from coterie.kube.api.types.core import EVENTS, ObjectReference
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError

_PLAIN = EVENTS.as_dynamic
_QUEUE = 1000
_REMEMBERED = 256
_SIMILAR_LIMIT = 10
_SIMILAR_WINDOW = 600.0
_BURST = 25
_REFILL = 1 / 300.0
_TOGETHER = 8
"""Notes that are written at once when many wait."""
_ATTEMPTS = 3
_RETRY_PAUSE = 1.0
_MESSAGE_LIMIT = 1024
BRIEF = 1.0
"""Seconds that routine notes about a pod that runs once wait: a pod that is gone by then needs none."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class PendingEvent:
    regarding: ObjectReference
    type: EventType
    reason: str
    message: str
    at: datetime
    action: str = ""


def reference_to(obj: ApiObject | Object, *, api_version: str = "", kind: str = "") -> ObjectReference:
    """What an event is about. `api_version` and `kind` are for objects that came without them, as lists send them."""
    if isinstance(obj, ApiObject):
        meta = obj.metadata
        return ObjectReference(
            api_version=obj.api_version or api_version,
            kind=obj.kind or kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
    found: dict[str, Any] = obj.get("metadata") or {}
    return ObjectReference(
        api_version=obj.get("apiVersion") or api_version,
        kind=obj.get("kind") or kind,
        namespace=found.get("namespace") or "",
        name=found.get("name") or "",
        uid=found.get("uid") or "",
        resource_version=found.get("resourceVersion") or "",
    )


@dataclass(slots=True)
class _Written:
    """An event that is on the server."""

    name: str
    count: int


@dataclass(slots=True)
class _Similar:
    """Different messages of one reason about one object."""

    since: float
    messages: set[str]


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float


class EventRecorder:
    """A Runnable; notes recorded before it runs are written when it does."""

    def __init__(self, client: Client, component: str, *, instance: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = f"events/{component}"
        self.ready = asyncio.Event()
        self.dropped = 0
        self.written = 0
        self._client = client
        self._component = component
        self._instance = instance or component
        self._clock = clock
        self._notes: deque[PendingEvent] = deque()
        self._waiting: deque[tuple[float, PendingEvent]] = deque()
        self._changed = asyncio.Event()
        self._stopping = False
        self._known: OrderedDict[tuple[str, ...], _Written] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._log = logger("control.events").bind(component=component)

    def record(
        self,
        regarding: ApiObject | Object | ObjectReference,
        type: EventType,
        reason: str,
        message: str,
        *,
        action: str = "",
        after: float = 0.0,
    ) -> None:
        """`after`: seconds to wait, unless the object is retracted before."""
        reference = regarding if isinstance(regarding, ObjectReference) else reference_to(regarding)
        if self._stopping or len(self._notes) + len(self._waiting) >= _QUEUE or not self._allowed(reference):
            self.dropped += 1
            return
        note = PendingEvent(reference, type, reason, message[:_MESSAGE_LIMIT], self._clock.now(), action)
        if after > 0:
            self._waiting.append((self._clock.monotonic() + after, note))
        else:
            self._notes.append(note)
        self._changed.set()

    def retract(self, uid: str) -> None:
        """The object is gone: what still waits to be said about it is not said."""
        if any(note.regarding.uid == uid for _, note in self._waiting):
            self._waiting = deque(entry for entry in self._waiting if entry[1].regarding.uid != uid)

    def normal(self, regarding: ApiObject | Object | ObjectReference, reason: str, message: str) -> None:
        self.record(regarding, "Normal", reason, message)

    def warning(self, regarding: ApiObject | Object | ObjectReference, reason: str, message: str) -> None:
        self.record(regarding, "Warning", reason, message)

    async def run(self) -> None:
        self.ready.set()
        while self._notes or self._waiting or not self._stopping:
            due = self._release()
            if self._notes:
                await self._write_next()
                continue
            self._changed.clear()
            if due is None:
                await self._changed.wait()
            else:
                await self._sleep(due)

    def _release(self) -> float | None:
        """Moves what has waited long enough; the seconds until the next one has."""
        now = self._clock.monotonic()
        kept: deque[tuple[float, PendingEvent]] = deque()
        for due, note in self._waiting:
            if due <= now or self._stopping:
                self._notes.append(note)
            else:
                kept.append((due, note))
        self._waiting = kept
        return min((due for due, _ in kept), default=now) - now if kept else None

    async def _sleep(self, seconds: float) -> None:
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def stop(self) -> None:
        """Write what was recorded, then end."""
        self._stopping = True
        self._changed.set()

    def _allowed(self, reference: ObjectReference) -> bool:
        """A token bucket for each object: a burst, then one note in five minutes."""
        now = self._clock.monotonic()
        bucket = _remember(
            self._buckets, reference.uid or f"{reference.namespace}/{reference.name}", _Bucket(_BURST, now)
        )
        bucket.tokens = min(_BURST, bucket.tokens + (now - bucket.filled) * _REFILL)
        bucket.filled = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    async def _write_next(self) -> None:
        """Some notes together, so that they share a commit; those about one object follow each other."""
        batch = [self._notes.popleft()]
        about = {_object_of(batch[0].regarding)}
        while (
            self._notes and len(batch) < _TOGETHER and (following := _object_of(self._notes[0].regarding)) not in about
        ):
            about.add(following)
            batch.append(self._notes.popleft())
        if len(batch) == 1:
            await self._write(batch[0])
        else:
            await asyncio.gather(*map(self._write, batch))

    async def _write(self, note: PendingEvent) -> None:
        message, key = self._melted(note)
        for attempt in range(_ATTEMPTS):
            try:
                await self._write_once(note, message, key)
            except ApiError as error:
                # The namespace is going away, or we may not: trying again would not change it.
                self._log.debug("Event was refused", why=str(error), reason=note.reason)
                break
            except TransportError as error:
                if attempt < _ATTEMPTS - 1:
                    await self._clock.sleep(_RETRY_PAUSE)
                else:
                    self._log.warning("Event could not be written", error=error, reason=note.reason)
            else:
                self.written += 1
                return
        self.dropped += 1

    def _melted(self, note: PendingEvent) -> tuple[str, tuple[str, ...]]:
        """The message to write and the identity of its event."""
        about = note.regarding
        base = (
            about.kind,
            about.namespace,
            about.name,
            about.uid,
            about.field_path,
            note.type,
            note.reason,
            note.action,
        )
        now = self._clock.monotonic()
        similar = _remember(self._similar, base, _Similar(now, set()))
        if now - similar.since > _SIMILAR_WINDOW:
            similar.since, similar.messages = now, set()
        if len(similar.messages) < _SIMILAR_LIMIT or note.message in similar.messages:
            similar.messages.add(note.message)
            return note.message, (*base, note.message)
        return f"(combined from similar events): {note.message}", base

    async def _write_once(self, note: PendingEvent, message: str, key: tuple[str, ...]) -> None:
        namespace = note.regarding.namespace or "default"
        known = self._known.get(key)
        if known is not None:
            patch = {"count": known.count + 1, "lastTimestamp": rfc3339(note.at), "message": message}
            try:
                await self._client.patch(_PLAIN, known.name, namespace, patch)
            except NotFound:
                del self._known[key]  # events expire; this one starts anew
            else:
                known.count += 1
                self._known.move_to_end(key)
                return
        name = f"{note.regarding.name or 'object'}.{suffix(16)}"
        await self._client.create(_PLAIN, self._event(note, name, namespace, message))
        _remember(self._known, key, _Written(name, 1))

    def _event(self, note: PendingEvent, name: str, namespace: str, message: str) -> Object:
        about = note.regarding
        involved = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
            "resourceVersion": about.resource_version,
            "fieldPath": about.field_path,
        }
        event: Object = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": note.type,
            "reason": note.reason,
            "message": message,
            "source": {"component": self._component},
            "count": 1,
            "firstTimestamp": rfc3339(note.at),
            "lastTimestamp": rfc3339(note.at),
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        if note.action:
            event["action"] = note.action
        return event


def _object_of(about: ObjectReference) -> tuple[str, str, str, str]:
    return about.kind, about.namespace, about.name, about.uid


def _remember(memory: OrderedDict[Any, Any], key: Any, new: Any) -> Any:
    """The value of the key, `new` at first; the least recently used is forgotten when there are too many."""
    found = memory.setdefault(key, new)
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
    return found
