"""Conversion webhooks of custom resources: objects between the version in which they are stored and the one of a request.

What must wait for a webhook cannot happen where bytes are written out, so a verb is run on a view that knows the converted bytes
(`ConvertedView`); where it needs others, it is told so (`NotConverted`), and run again when they are there.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from coterie.base import ids
from coterie.http.messages import Response, Sink
from coterie.http.server import Tasks
from coterie.kube.api import errors
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.outgoing import Outgoing, OutgoingError, destination
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import NotConverted, ObjectEntry, VersionView
from coterie.kube.apiserver.state.watching import Encode, Watcher

Object = dict[str, Any]
_REVIEW = {"v1": "apiextensions.k8s.io/v1", "v1beta1": "apiextensions.k8s.io/v1beta1"}
_SECONDS = 30.0
_BATCH_BYTES, _BATCH_OBJECTS = 512 << 10, 500
_KEPT_BYTES = 4 << 20
_ROUNDS = 8
_CHANGEABLE = ("labels", "annotations")


class BadConversion(Exception):
    """The webhook did not answer as it must."""


class CrdConversion:
    """The conversion webhook of one definition, and what it answered of late."""

    def __init__(self, spec: Object, kind: str, outgoing: Callable[[], Outgoing]) -> None:
        """`spec`: `spec.conversion.webhook` of the definition."""
        self.spec = spec
        self._kind = kind
        self._outgoing = outgoing
        self._kept: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()
        self._kept_bytes = 0

    # -- bytes ----------------------------------------------------------------------------------------------------

    async def render(self, view: VersionView, collection: Collection, raws: Sequence[bytes]) -> dict[bytes, bytes]:
        """Stored objects as clients of the version see them."""
        desired = view.resource.api_version
        out: dict[bytes, bytes] = {}
        waiting: list[bytes] = []
        for raw in raws:
            known = self._kept.get((raw, desired))
            if known is not None:
                self._kept.move_to_end((raw, desired))
                out[raw] = known
            else:
                waiting.append(raw)
        objects = [stored_object(collection, raw) for raw in waiting]
        for raw, obj in zip(waiting, await self.convert(objects, desired), strict=True):
            out[raw] = orjson.dumps(obj)
            self._keep((raw, desired), out[raw])
        return out

    async def load(self, view: VersionView, collection: Collection, entry: ObjectEntry) -> Object:
        obj: Object = orjson.loads((await self.render(view, collection, [entry.raw]))[entry.raw])
        return obj

    async def to_storage(self, collection: Collection, obj: Object) -> Object:
        return (await self.convert([obj], collection.api_version))[0]

    def _keep(self, key: tuple[bytes, str], value: bytes) -> None:
        self._kept[key] = value
        self._kept_bytes += len(key[0]) + len(value)
        while self._kept_bytes > _KEPT_BYTES:
            (raw, _), old = self._kept.popitem(last=False)
            self._kept_bytes -= len(raw) + len(old)

    # -- objects --------------------------------------------------------------------------------------------------

    async def convert(self, objects: Sequence[Object], desired: str) -> list[Object]:
        """In the version `desired`, in the same order."""
        out = list(objects)
        batch: list[int] = []
        size = 0
        for index, obj in enumerate(objects):
            if obj.get("apiVersion") == desired:
                continue
            weight = len(orjson.dumps(obj))
            if batch and (size + weight > _BATCH_BYTES or len(batch) >= _BATCH_OBJECTS):
                await self._convert_batch(out, batch, desired)
                batch, size = [], 0
            batch.append(index)
            size += weight
        if batch:
            await self._convert_batch(out, batch, desired)
        return out

    async def _convert_batch(self, objects: list[Object], places: list[int], desired: str) -> None:
        given = [objects[place] for place in places]
        try:
            converted = await self._ask(given, desired)
        except (BadConversion, OutgoingError, ValueError) as problem:
            raise errors.InternalError(
                f"conversion webhook for {given[0].get('apiVersion')}, Kind={self._kind} failed: {problem}"
            ) from problem
        for place, obj in zip(places, converted, strict=True):
            objects[place] = obj

    async def _ask(self, given: list[Object], desired: str) -> list[Object]:
        client = self.spec.get("clientConfig") or {}
        version = next((each for each in self.spec.get("conversionReviewVersions") or () if each in _REVIEW), "v1")
        uid = ids.uid4()
        review = {
            "kind": "ConversionReview",
            "apiVersion": _REVIEW[version],
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": given},
        }
        where = destination(client)
        try:
            ca_bundle = binascii.a2b_base64(client.get("caBundle") or "")
            body = await self._outgoing().post(where, ca_bundle, orjson.dumps(review), timeout=_SECONDS)
        except OutgoingError as problem:
            raise BadConversion(f'Post "{where.url}?timeout=30s": {problem}') from problem
        return read_conversion(body, uid, _REVIEW[version], given, desired)


def stored_object(collection: Collection, raw: bytes) -> Object:
    """With the version in which it was stored, which may not be the one in which objects are stored now."""
    obj: Object = orjson.loads(raw)
    if collection.other_versions:
        metadata = obj["metadata"]
        obj["apiVersion"] = collection.other_versions.get(
            (metadata.get("namespace", ""), metadata["name"]), obj["apiVersion"]
        )
    return obj


def read_conversion(body: bytes, uid: str, version: str, given: Sequence[Object], desired: str) -> list[Object]:
    """The converted objects of an answer. Raises BadConversion."""
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise BadConversion(f"couldn't decode the response: {problem}") from problem
    if not isinstance(review, dict) or (review.get("apiVersion"), review.get("kind")) != (version, "ConversionReview"):
        raise BadConversion(f"expected webhook response of {version}, Kind=ConversionReview")
    response = review.get("response")
    if not isinstance(response, dict):
        raise BadConversion("no response provided")
    if response.get("uid") != uid:
        raise BadConversion(f'expected response.uid="{uid}", got "{str(response.get("uid"))[:256]}"')
    result = response.get("result")
    if not isinstance(result, dict) or result.get("status") != "Success":
        why = result.get("message") if isinstance(result, dict) else ""
        raise BadConversion(str(why or "response.result.status was no Success")[:2048])
    converted = response.get("convertedObjects")
    if not isinstance(converted, list) or len(converted) != len(given):
        count = len(converted) if isinstance(converted, list) else 0
        raise BadConversion(f"returned {count} objects, expected {len(given)}")
    return [_checked(index, obj, old, desired) for index, (obj, old) in enumerate(zip(converted, given, strict=True))]


def _checked(index: int, obj: Any, old: Object, desired: str) -> Object:
    at = f"invalid converted object at index {index}"
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        raise BadConversion(f"{at}: it has no metadata")
    if obj.get("apiVersion") != desired:
        raise BadConversion(f"{at}: invalid groupVersion (expected {desired}, received {obj.get('apiVersion')})")
    if obj.get("kind") != old.get("kind"):
        raise BadConversion(f"{at}: invalid kind (expected {old.get('kind')}, received {obj.get('kind')})")
    new, before = obj["metadata"], old["metadata"]
    for key in ("name", "namespace", "uid"):
        if (new.get(key) or None) != (before.get(key) or None):
            raise BadConversion(f"{at}: must have the same {key}: {new.get(key)!r} != {before.get(key)!r}")
    metadata = {key: value for key, value in before.items() if key not in _CHANGEABLE}
    for key in _CHANGEABLE:
        values = new.get(key)
        if values is None:
            continue
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise BadConversion(f"{at}: metadata.{key} must be a map of strings")
        if values:
            metadata[key] = values
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": desired, "kind": obj["kind"], "metadata": metadata, **rest}


# -- verbs ----------------------------------------------------------------------------------------------------------


class ConvertedView(VersionView):
    """A version of which some objects are converted."""

    def __init__(self, view: VersionView, done: dict[bytes, bytes]) -> None:
        self.resource = view.resource
        self.warning = view.warning
        self.conversion = view.conversion
        self.is_storage = False
        self._done = done

    def render(self, raw: bytes) -> bytes:
        found = self._done.get(raw)
        if found is None:
            raise NotConverted([raw])
        return found

    def load(self, raw: bytes) -> Object:
        obj: Object = orjson.loads(self.render(raw))
        return obj

    def of_stored(self, obj: Object) -> Object:
        raise AssertionError("objects of this version come from a webhook")

    def to_stored(self, obj: Object) -> Object:
        return obj

    def require(self, entries: Sequence[ObjectEntry]) -> None:
        missing = [entry.raw for entry in entries if entry.raw not in self._done]
        if missing:
            raise NotConverted(missing)


def _conversion_of(view: VersionView) -> CrdConversion:
    assert isinstance(view.conversion, CrdConversion)
    return view.conversion


async def show(call: ResourceRequest, *raws: bytes) -> None:
    """From now on the request sees these objects in its version."""
    view = call.view
    call.view = ConvertedView(view, await _conversion_of(view).render(view, call.collection, raws))


async def read(call: ResourceRequest, verb: Callable[[ResourceRequest], Response | Awaitable[Response]]) -> Response:
    """Run a verb that reads, with what it needs converted before."""
    view, done = call.view, dict[bytes, bytes]()
    for _ in range(_ROUNDS):
        call.view = ConvertedView(view, done)
        try:
            answer = verb(call)
            return answer if isinstance(answer, Response) else await answer
        except NotConverted as needed:
            done |= await _conversion_of(view).render(view, call.collection, needed.raws)
    raise errors.ServiceUnavailable("the objects change faster than they can be converted", retry_after=1)


class ConvertedStream:
    """A watch whose objects pass through a conversion webhook: takes the lines of a watch of stored objects."""

    def __init__(self, call: ResourceRequest, watcher: Watcher, encode: Callable[[ResourceRequest], Encode], tasks: Tasks) -> None:  # fmt: skip
        self._call = call
        self._view = call.view
        self._done: dict[bytes, bytes] = {}
        call.view = ConvertedView(call.view, self._done)
        self._encode = encode(call)
        self._watcher = watcher
        self._tasks = tasks
        self._sink: Sink | None = None
        self._lines: list[bytes] = []
        self._queued = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ending = False
        self._first = True
        self._task: asyncio.Task[None] | None = None

    # The HTTP side calls these.

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self._task = self._tasks.create_task(self._run(), name="watch conversion")
        self._watcher.opened(self)

    def closed(self) -> None:
        self._sink = None
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        self._watcher.closed()

    # The watcher calls these.

    @property
    def pending(self) -> int:
        return self._queued + (self._sink.pending if self._sink is not None else 0)

    def write(self, chunk: bytes) -> None:
        self._lines += chunk.splitlines()
        self._queued += len(chunk)
        self._wake.set()

    async def drain(self) -> None:
        while self._queued > _BATCH_BYTES and self._sink is not None:
            self._room.clear()
            await self._room.wait()
        if self._sink is not None:
            await self._sink.drain()

    def close(self) -> None:
        self._ending = True
        self._wake.set()

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()

    # -- conversion -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            lines, self._lines = self._lines, []
            try:
                text = await self._converted(lines)
            except errors.ApiError as error:
                text = b'{"type":"ERROR","object":%b}\n' % orjson.dumps(error.status())
                self._ending = True
            self._queued = sum(map(len, self._lines))
            self._room.set()
            if self._sink is None:
                return
            if text:
                self._sink.write(text)
            if self._ending and (self._sink is not None and not self._lines):
                self._sink.close()
                return

    async def _converted(self, lines: Sequence[bytes]) -> bytes:
        out: list[bytes | tuple[str, ObjectEntry]] = []
        for line in lines:
            event = orjson.loads(line)
            if event["type"] in ("BOOKMARK", "ERROR"):
                out.append(line + b"\n")
                continue
            metadata = event["object"]["metadata"]
            raw = orjson.dumps(event["object"])
            revision = int(metadata["resourceVersion"])
            entry = ObjectEntry(metadata.get("namespace", ""), metadata["name"], raw, revision, revision)
            out.append((event["type"], entry))
        raws = [each[1].raw for each in out if isinstance(each, tuple)]
        self._done |= await _conversion_of(self._view).render(self._view, self._call.collection, raws)
        text = b"".join(each if isinstance(each, bytes) else self._line(*each) for each in out)
        self._done.clear()
        return text

    def _line(self, kind: str, entry: ObjectEntry) -> bytes:
        first, self._first = self._first, False
        return self._encode(kind, entry, first)
