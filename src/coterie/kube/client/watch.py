"""A running watch: lines from the server become events.

Events come in batches, as many as have arrived: under load one turn of the event loop then handles many. An `ERROR`
event is raised as the `ApiError` it carries (`Gone`/`Expired` when the asked version is too old).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from coterie.kube.api.errors import ApiError, from_status
from coterie.kube.api.labels import INITIAL_EVENTS_END
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind, identify
from coterie.kube.client.limits import ResponseLimits, depth_of, key_in_head, memory_of, object_fault, usable_version
from coterie.kube.client.transport import Disconnected, LineStream, TruncatedLine

T = TypeVar("T")


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Changed(NamedTuple, Generic[T]):
    type: str
    """ADDED, MODIFIED or DELETED; the object of a deletion is its last state."""
    object: T
    size: int = 0
    """Memory of the object (`limits.memory_of`); only where the server has limits."""


class Bookmark(NamedTuple):
    """Nothing changed up to this version. `initial_end`: all objects that existed have been sent."""

    resource_version: str
    initial_end: bool = False


class UndecodableObject(NamedTuple):
    """An object that does not have the shape of its type: it exists, but cannot be shown."""

    key: ObjectKey
    deleted: bool
    why: str


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class _MarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Mark(msgspec.Struct, frozen=True):
    metadata: _MarkMeta = _MarkMeta()


_envelopes = msgspec.json.Decoder(_Envelope)
_marks = msgspec.json.Decoder(_Mark)
_CHANGES = frozenset(("ADDED", "MODIFIED", "DELETED"))

WatchEvent = Changed[T] | Bookmark | UndecodableObject


def decode_event(
    kind: Kind[T], line: bytes, namespace: str = "", limits: ResponseLimits | None = None
) -> WatchEvent[T]:
    """Raises ApiError for an ERROR event and Disconnected for a line that is no event (it was cut off).

    `limits`: the server is not trusted; an object that breaks one of them cannot be decoded. Such an object of another
    namespace than `namespace` neither.
    """
    if isinstance(line, TruncatedLine):
        deleted = line.startswith(b'{"type":"DELETED"')
        return UndecodableObject(key_in_head(line), deleted, "the event has more bytes than are read")
    if limits is not None and depth_of(line, limits.depth) > limits.depth:
        # Before anything is decoded: a decoder that gives up cannot say whose object it was.
        return UndecodableObject(key_in_head(line), False, f"it nests deeper than {limits.depth} levels")
    try:
        envelope = _envelopes.decode(line)
        if envelope.type == "BOOKMARK":
            return _bookmark(envelope.object)
        if envelope.type == "ERROR":
            raise _error(envelope.object)
    except (ValueError, RecursionError) as error:
        raise Disconnected("the watch sent something that is not an event") from error
    if envelope.type not in _CHANGES:
        raise Disconnected("the watch sent an event of an unknown type")
    size = 0
    if limits is not None:
        raw = bytes(envelope.object)
        size = memory_of(raw)
        if fault := object_fault(raw, namespace, limits) or kind.shape_fault(raw):
            return UndecodableObject(identify(raw), envelope.type == "DELETED", fault)
    try:
        return Changed(envelope.type, kind.decode(envelope.object), size)
    except (ValueError, RecursionError) as error:
        return UndecodableObject(identify(envelope.object), envelope.type == "DELETED", str(error))


def _bookmark(raw: msgspec.Raw) -> Bookmark:
    meta = _marks.decode(raw).metadata
    if not usable_version(meta.resource_version):
        raise ValueError("not a resourceVersion")
    return Bookmark(meta.resource_version, (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true")


def _error(raw: msgspec.Raw) -> ApiError:
    status = msgspec.json.decode(raw)
    if not isinstance(status, dict):
        raise ValueError("not a Status")
    return from_status(status)


class Watch(Generic[T]):
    """`async with client.watch(...) as watch: async for event in watch`. Ends when the server ends it."""

    def __init__(
        self, kind: Kind[T], stream: LineStream, *, namespace: str = "", limits: ResponseLimits | None = None
    ) -> None:
        self._kind = kind
        self._namespace = namespace
        self._limits = limits
        self._stream = stream
        self._error: ApiError | Disconnected | None = None

    async def batch(self) -> list[WatchEvent[T]]:
        """The events that have come; [] when the watch is over.

        Events before an error in one batch are delivered first; the error is raised by the next call.
        """
        if self._error is not None:
            raise self._error
        events: list[WatchEvent[T]] = []
        kind = self._kind
        for line in await self._stream.read():
            try:
                events.append(decode_event(kind, line, self._namespace, self._limits))
            except (ApiError, Disconnected) as error:
                if not events:
                    raise
                self._error = error
                break
        return events

    async def __aiter__(self) -> AsyncIterator[WatchEvent[T]]:
        while events := await self.batch():
            for event in events:
                yield event

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Watch[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
