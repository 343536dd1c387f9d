"""The client: Kubernetes' verbs as methods, over any transport.

    Reader  get, list, page, watch                    Writer  create, update, modify, patch, apply, delete, ...
                             \\_______ Client _______/

What the server refuses is raised as the `ApiError` of its `Status`. A server that is busy (429, or 503 with
`Retry-After`) is asked again a few times, as Kubernetes' own clients do. Typed kinds are read-only views
(see `coterie.kube.api.meta`), so `update` takes plain kinds only; `modify` changes typed ones safely.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec
import orjson

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import ApiError, Conflict, Expired, Gone, from_status
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind, ListPage
from coterie.kube.api.types.overlay import overlay
from coterie.kube.client.limits import ResponseLimits, many_items, memory_of, object_fault, usable_version
from coterie.kube.client.requests import CONTENT_TYPES, PatchType, Propagation, delete_options, path, query
from coterie.kube.client.transport import (
    LimitExceeded,
    LineStream,
    Transport,
    TransportRequest,
    TransportResponse,
    UnreadableResponse,
)
from coterie.kube.client.watch import Watch

T = TypeVar("T")
R = TypeVar("R")

PAGE_SIZE = 500
_BUSY_ATTEMPTS = 5
_CONFLICT_ATTEMPTS = 8
_MAX_CONTINUE = 4096
_WATCH_SILENCE = 30.0
"""Seconds a watch may be silent beyond the time after which the server ends it by itself."""


class Reader(Protocol):
    async def get(self, kind: Kind[T], name: str, namespace: str = "", *, subresource: str = "") -> T: ...

    async def list(self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "") -> ListPage[T]: ...

    async def watch(
        self, kind: Kind[T], namespace: str = "", *, resource_version: str = "", labels: str = "", fields: str = ""
    ) -> Watch[T]: ...


class Writer(Protocol):
    async def create(self, kind: Kind[T], obj: T, namespace: str = "") -> T: ...

    async def update(self, kind: Kind[Object], obj: Object, *, subresource: str = "") -> Object: ...

    async def modify(
        self, kind: Kind[T], name: str, namespace: str, change: Callable[[T], T], *, subresource: str = ""
    ) -> T: ...

    async def patch(
        self, kind: Kind[T], name: str, namespace: str, patch: Any, *, type: PatchType = "merge", subresource: str = ""
    ) -> T: ...

    async def apply(self, kind: Kind[T], obj: T, namespace: str = "", *, force: bool = False) -> T: ...

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, propagation: Propagation | None = None, uid: str = ""
    ) -> Object: ...


class Client:
    def __init__(
        self,
        transport: Transport,
        *,
        field_manager: str = "coterie",
        field_validation: str = "",
        namespace: str = "default",
        clock: Clock = SYSTEM_CLOCK,
        limits: ResponseLimits | None = None,
    ) -> None:
        """`limits`: what the server may send; None: it is trusted. `field_validation`: Ignore, Warn or Strict; empty for the server's choice. A program that reads no warnings spares
        the server the looking with Ignore."""
        self.transport = transport
        self.field_manager = field_manager
        self.field_validation = field_validation
        self.namespace = namespace
        """Where a user's commands go when they name no namespace; the methods here never guess."""
        self.clock = clock
        self.limits = limits

    # Reading.

    async def get(
        self, kind: Kind[T], name: str, namespace: str = "", *, subresource: str = "", resource_version: str = ""
    ) -> T:
        if not name:
            raise ValueError(f"get {kind}: a name is needed")
        call = TransportRequest(
            "GET",
            path(kind.resource, namespace, name, subresource),
            query(resourceVersion=resource_version),
            {"Accept": kind.accept},
        )
        return _decoded(kind.decode, await self.send(call))

    async def page(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        continue_: str = "",
        resource_version: str = "",
        version_match: str = "",
    ) -> ListPage[T]:
        """One page of a list, as asked for."""
        asked = query(
            **{"continue": continue_},
            fieldSelector=fields,
            labelSelector=labels,
            limit=limit or None,
            resourceVersion=resource_version,
            resourceVersionMatch=version_match,
        )
        call = TransportRequest("GET", path(kind.resource, namespace), asked, {"Accept": kind.accept_list})
        body, limits = await self.send(call), self.limits
        if limits is None:
            return _decoded(kind.decode_list, body)
        if many_items(body, limits.objects):
            raise LimitExceeded(f"{call.path}: a page has more than {limits.objects} items")
        found = _decoded(
            lambda data: kind.decode_checked_list(
                data, lambda raw: object_fault(raw, namespace, limits) or kind.shape_fault(raw), memory_of
            ),
            body,
        )
        if not usable_version(found.resource_version) or len(found.continue_) > _MAX_CONTINUE:
            raise UnreadableResponse("the list's resourceVersion or continue token is not valid")
        return found

    async def list(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        page_size: int = PAGE_SIZE,
    ) -> ListPage[T]:
        """All objects, fetched page by page from one snapshot. Of a server with limits, as many as these admit."""
        while True:
            try:
                first = await self.page(
                    kind, namespace, labels=labels, fields=fields, limit=page_size, resource_version=resource_version
                )
                break
            except LimitExceeded:
                if page_size <= 1:
                    raise
                page_size = max(1, page_size // 10)  # large objects: fewer at a time
        if not first.continue_:
            return first
        items, broken, sizes, page, pages = list(first.items), list(first.broken), list(first.sizes), first, 1
        while page.continue_:
            if self.limits is not None and (excess := _excess(self.limits, pages, sizes, broken)):
                broken.append((ObjectKey("", ""), excess))
                break
            pages += 1
            try:
                page = await self.page(
                    kind, namespace, labels=labels, fields=fields, limit=page_size, continue_=page.continue_
                )
            except (Gone, Expired):
                # The snapshot was compacted away between two pages: ask for everything at once.
                return await self.page(kind, namespace, labels=labels, fields=fields)
            items += page.items
            broken += page.broken
            sizes += page.sizes
        return ListPage(items, first.resource_version, broken=tuple(broken), sizes=tuple(sizes))

    async def watch(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        bookmarks: bool = True,
        initial_events: bool = False,
        timeout: int = 0,
    ) -> Watch[T]:
        """Changes after `resource_version`. With `initial_events` (WatchList) all that exists comes first."""
        asked = query(
            watch=True,
            allowWatchBookmarks=bookmarks,
            fieldSelector=fields,
            labelSelector=labels,
            resourceVersion=resource_version,
            sendInitialEvents=initial_events,
            resourceVersionMatch="NotOlderThan" if initial_events else "",
            timeoutSeconds=timeout or None,
        )
        silence = timeout + _WATCH_SILENCE if timeout else None
        headers = {"Accept": kind.accept}
        call = TransportRequest("GET", path(kind.resource, namespace), asked, headers, stream=True, timeout=silence)
        return Watch(kind, await self.stream(call), namespace=namespace, limits=self.limits)

    # Writing.

    async def create(
        self,
        kind: Kind[T],
        obj: T,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """`name` and `subresource` are for what is created under an object: a token, an eviction, a binding."""
        if kind.resource.namespaced and not namespace:
            namespace = kind.namespace(obj)
        where = path(kind.resource, namespace, name, subresource)
        call = self._write("POST", where, kind.encode(obj), "application/json", dry_run=dry_run, accept=kind.accept)
        return _decoded(kind.decode, await self.send(call))

    async def update(self, kind: Kind[Object], obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Replace the whole object; refused with Conflict when its resourceVersion is not the current one."""
        if not kind.plain:
            raise TypeError(f"a typed {kind.resource.kind} does not know all its fields: use modify, patch or apply")
        namespace, name = kind.key(obj)
        where = path(kind.resource, namespace, name, subresource)
        call = self._write("PUT", where, kind.encode(obj), "application/json", dry_run=dry_run)
        return _decoded(kind.decode, await self.send(call))

    async def modify(
        self, kind: Kind[T], name: str, namespace: str, change: Callable[[T], T], *, subresource: str = ""
    ) -> T:
        """Read, change, write, and again from the start when somebody else wrote meanwhile.

        `change` is pure. When what it returns equals what it got, nothing is written.
        """
        plain = kind.as_dynamic

        async def attempt() -> T:
            original = await self.get(plain, name, namespace)
            before = _decoded(kind.decode, orjson.dumps(original))
            after = change(before)
            if after == before:
                return before
            changed = overlay(original, _as_json(before), _as_json(after))
            return _decoded(kind.decode, orjson.dumps(await self.update(plain, changed, subresource=subresource)))

        return await retry_on_conflict(attempt)

    async def modify_status(self, kind: Kind[T], name: str, namespace: str, change: Callable[[T], T]) -> T:
        return await self.modify(kind, name, namespace, change, subresource="status")

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str,
        patch: Object | Sequence[Object],
        *,
        type: PatchType = "merge",
        subresource: str = "",
        force: bool = False,
        dry_run: bool = False,
        field_manager: str = "",
    ) -> T:
        """A resourceVersion inside a merge patch is a precondition: Conflict when it is not the current one."""
        call = self._write(
            "PATCH",
            path(kind.resource, namespace, name, subresource),
            orjson.dumps(patch),
            CONTENT_TYPES[type],
            dry_run=dry_run,
            force=force,
            accept=kind.accept,
            field_manager=field_manager,
        )
        return _decoded(kind.decode, await self.send(call))

    async def patch_status(self, kind: Kind[T], name: str, namespace: str, patch: Object) -> T:
        return await self.patch(kind, name, namespace, patch, subresource="status")

    async def apply(
        self,
        kind: Kind[T],
        obj: T,
        namespace: str = "",
        *,
        force: bool = False,
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
    ) -> T:
        """Server-side apply: what the object names becomes ours; `force` takes it from other managers."""
        key = kind.key(obj)
        call = self._write(
            "PATCH",
            path(kind.resource, namespace or key.namespace, key.name, subresource),
            kind.encode(obj),
            CONTENT_TYPES["apply"],
            dry_run=dry_run,
            force=force,
            accept=kind.accept,
            field_manager=field_manager,
        )
        return _decoded(kind.decode, await self.send(call))

    async def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str = "",
        *,
        propagation: Propagation | None = None,
        grace: int | None = None,
        uid: str = "",
        resource_version: str = "",
        dry_run: bool = False,
    ) -> Object:
        """The server's answer: a Status, or the object as it is while it is being deleted."""
        if not name:
            raise ValueError(f"delete {kind}: a name is needed")
        body = delete_options(propagation=propagation, grace=grace, uid=uid, resource_version=resource_version)
        where = path(kind.resource, namespace, name)
        call = self._write("DELETE", where, body, "application/json", dry_run=dry_run, manager=False)
        return _json(await self.send(call))

    async def delete_collection(
        self,
        kind: Kind[Any],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        propagation: Propagation | None = None,
        grace: int | None = None,
    ) -> Object:
        asked = query(fieldSelector=fields, labelSelector=labels)
        body = delete_options(propagation=propagation, grace=grace)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return _json(await self.send(TransportRequest("DELETE", path(kind.resource, namespace), asked, headers, body)))

    async def scale(self, kind: Kind[Any], name: str, namespace: str, replicas: int | None = None) -> int:
        """The wanted number of replicas; given one, sets it first."""
        scaled = kind.as_dynamic
        if replicas is None:
            answer = await self.get(scaled, name, namespace, subresource="scale")
        else:
            answer = await self.patch(scaled, name, namespace, {"spec": {"replicas": replicas}}, subresource="scale")
        return int((answer.get("spec") or {}).get("replicas") or 0)

    # The floor under all of these.

    async def raw(
        self, method: str, path: str, query: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> TransportResponse:
        """Any request; refusals are raised as everywhere."""
        return await self._answered(
            TransportRequest(method, path, query, headers or {"Accept": "application/json"}, body)
        )

    async def send(self, call: TransportRequest) -> bytes:
        return (await self._answered(call)).body

    async def stream(self, call: TransportRequest) -> LineStream:
        lines = (await self._answered(call)).lines
        if lines is None:
            raise TypeError(f"{call.method} {call.path}: the transport did not open a stream")
        return lines

    async def close(self) -> None:
        await self.transport.close()

    async def _answered(self, call: TransportRequest) -> TransportResponse:
        for attempt in range(_BUSY_ATTEMPTS):
            reply = await self.transport.send(call)
            if reply.status < 300:
                return reply
            if reply.status < 400:
                raise UnreadableResponse(f"the server answered {reply.status}, and redirects are not followed")
            error = error_of(reply)
            wait = _busy_for(reply, error)
            if wait is None or attempt == _BUSY_ATTEMPTS - 1:
                raise error
            await self.clock.sleep(wait if self.limits is None else min(wait, self.limits.wait))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _write(
        self,
        method: str,
        path: str,
        body: bytes,
        content_type: str,
        *,
        dry_run: bool = False,
        force: bool = False,
        manager: bool = True,
        accept: str = "application/json",
        field_manager: str = "",
    ) -> TransportRequest:
        asked = _write_query(
            dry_run,
            (field_manager or self.field_manager) if manager else "",
            self.field_validation if manager else "",
            force,
        )
        return TransportRequest(method, path, asked, {"Accept": accept, "Content-Type": content_type}, body)


async def retry_on_conflict(attempt: Callable[[], Awaitable[R]], attempts: int = _CONFLICT_ATTEMPTS) -> R:
    """Run a read-change-write again while others win the race; the last Conflict is raised.

    No pause between attempts: each loss means that somebody else made progress.
    """
    for _ in range(attempts - 1):
        try:
            return await attempt()
        except Conflict as error:
            if type(error) is not Conflict:  # AlreadyExists and ApplyConflict do not go away by reading again
                raise
    return await attempt()


@lru_cache(maxsize=64)
def _write_query(dry_run: bool, manager: str, validation: str, force: bool) -> str:
    """A program writes with few combinations of these."""
    return query(dryRun="All" if dry_run else "", fieldManager=manager, fieldValidation=validation, force=force)


def error_of(reply: TransportResponse) -> ApiError:
    """The error that an answer of 400 or more stands for, whatever its body is."""
    status: Any = None
    if reply.body[:1] == b"{":
        try:
            status = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        text = reply.body[:512].decode("utf-8", "replace").strip()
        status = {"message": text or f"the server answered {reply.status}"}
    return from_status(status, reply.status)


def _busy_for(reply: TransportResponse, error: ApiError) -> float | None:
    """Seconds to wait before asking again, or None when asking again is no use."""
    retry_after = reply.headers.get("retry-after", "")
    if reply.status == 429 or (reply.status >= 500 and retry_after):
        # An eviction refused by a disruption budget is a 429 too, but an answer and not a request to slow down.
        if any(cause.reason == "DisruptionBudget" for cause in error.causes):
            return None
        asked = retry_after if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10 else ""
        return float(asked or error.retry_after or 1)
    return None


def _excess(limits: ResponseLimits, pages: int, sizes: Sequence[int], broken: Sequence[tuple[ObjectKey, str]]) -> str:
    """Why no further page of a list is fetched; empty: it is."""
    if len(sizes) + len(broken) >= limits.objects:
        return f"the list has more than {limits.objects} objects; the rest is left out"
    if sum(sizes) >= limits.kept_bytes:
        return f"the list takes more than {limits.kept_bytes} bytes of memory; the rest is left out"
    if pages >= limits.pages:
        return f"the list has more than {limits.pages} pages; the rest is left out"
    return ""


def _decoded(decode: Callable[[bytes], R], body: bytes) -> R:
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableResponse(f"the server's answer cannot be read: {error}") from error


def _json(body: bytes) -> Object:
    value = _decoded(orjson.loads, body or b"{}")
    if not isinstance(value, dict):
        raise UnreadableResponse("the server's answer is not a JSON object")
    return value


def _as_json(value: Any) -> Object:
    """A typed object as the JSON it stands for."""
    if isinstance(value, dict):
        return value
    return _json(msgspec.json.encode(value))
