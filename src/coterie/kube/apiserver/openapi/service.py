"""Serves `/openapi/v2` and `/openapi/v3`: documents are built when first asked for and kept packed.

Every document has a hash that is known without building it: from our version, the catalogue and the identity of the
custom resource definitions. The v3 index tells clients the hashes, so that they fetch a document once and keep it.
Building takes up to a few hundred milliseconds and happens in a thread; those who ask meanwhile wait for the same one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from coterie import __version__
from coterie.base.clock import http_date
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Request, Response
from coterie.kube.api.errors import NotFound
from coterie.kube.api.resources import Resource
from coterie.kube.api.schema.builtin import definitions_file
from coterie.kube.apiserver import documents
from coterie.kube.apiserver.documents import Document, content_hash

if TYPE_CHECKING:
    from coterie.kube.apiserver.aggregator import AggregatedVersion
    from coterie.kube.apiserver.openapi import gnostic, merge, v2, v3
    from coterie.kube.apiserver.openapi.custom import CustomDefinition
else:
    # What writes the documents is loaded in the thread that writes the first.
    gnostic = lazy_import("coterie.kube.apiserver.openapi.gnostic")
    merge = lazy_import("coterie.kube.apiserver.openapi.merge")
    v2 = lazy_import("coterie.kube.apiserver.openapi.v2")
    v3 = lazy_import("coterie.kube.apiserver.openapi.v3")

JSON = "application/json"
_YEAR = 365 * 24 * 3600
_NO_CACHE = ("Cache-Control", "no-cache, private")
_V2 = "openapi/v2"


class OpenApi:
    """`respond` answers all paths below `/openapi`; it raises `ApiError` for what is not there."""

    def __init__(
        self,
        resources: Callable[[], Sequence[Resource]],
        crds: Callable[[], Sequence[CustomDefinition]],
        elsewhere: Callable[[], Sequence[AggregatedVersion]] = tuple,
    ) -> None:
        """`elsewhere`: group-versions of other servers, whose documents are merged with ours."""
        self._elsewhere = elsewhere
        self._resources = resources
        self._crds = crds
        self._index: dict[str, str] | None = None
        self._kept: dict[tuple[str, str], Document] = {}
        self._building: dict[tuple[str, str, str], asyncio.Task[Document]] = {}

    def invalidate(self) -> None:
        """The catalogue changed. Documents whose hash stays the same are kept."""
        self._index = None

    def respond(self, request: Request) -> Response | Awaitable[Response]:
        documents.only_reads(request)
        path = request.path.strip("/")
        accept = request.headers.get("accept", "")
        if path == "openapi/v3":
            documents.best_of(accept, (JSON,))
            return documents.send(request, self._v3_index(), [_NO_CACHE])
        if path == _V2:
            media = documents.best_of(accept, (JSON, gnostic.MEDIA_TYPE, gnostic.SENT_TYPE))
            media = media if media == JSON else gnostic.SENT_TYPE
            return self._answer(request, _V2, media, [_NO_CACHE])
        group_version = path.removeprefix("openapi/v3/")
        current = self._hashes().get(group_version)
        if group_version in (path, _V2) or current is None:
            raise NotFound("the server could not find the requested resource")
        media = documents.best_of(accept, (JSON,))
        asked = request.param("hash")
        if not asked:
            return self._answer(request, group_version, media, [_NO_CACHE])
        if asked != current:
            return Response(301, headers=[("Location", _url(group_version, current)), _NO_CACHE])
        forever = [
            ("Cache-Control", "public, immutable"),
            ("Expires", http_date(time.time() + _YEAR)),
        ]
        return self._answer(request, group_version, media, forever)

    # ---- hashes --------------------------------------------------------------------------------------------------

    def _hashes(self) -> dict[str, str]:
        """The hash of every group-version's document, as `apis/apps/v1`, and of the v2 document."""
        if self._index is None:
            self._index = hashes(self._resources(), self._crds())
            packed = [each.openapi_v2 for each in self._elsewhere() if each.openapi_v2]
            if packed:
                self._index[_V2] = content_hash(self._index[_V2].encode(), *packed)
        return self._index

    def _v3_index(self) -> Document:
        paths = {
            group_version: {"serverRelativeURL": _url(group_version, found)}
            for group_version, found in self._hashes().items()
            if group_version != _V2
        }
        for each in self._elsewhere():
            paths.pop(each.path[1:], None)
            if each.openapi_v3:
                paths[each.path[1:]] = {"serverRelativeURL": each.openapi_v3}
        return documents.document(JSON, orjson.dumps({"paths": paths}))

    # ---- documents -----------------------------------------------------------------------------------------------

    def _answer(
        self, request: Request, name: str, media: str, headers: list[tuple[str, str]]
    ) -> Response | Awaitable[Response]:
        current = self._hashes()[name]
        found = self._kept.get((name, media))
        if found is not None and found.etag == _etag(current, media):
            return documents.send(request, found, headers)
        return self._built(request, name, media, current, headers)

    async def _built(
        self, request: Request, name: str, media: str, current: str, headers: list[tuple[str, str]]
    ) -> Response:
        key = (name, media, current)
        task = self._building.get(key)
        if task is None:
            task = asyncio.create_task(self._build(name, media, current), name=f"openapi {name}")
            self._building[key] = task
            task.add_done_callback(lambda _: self._building.pop(key, None))
        # Shielded: one client that goes away must not take the document from the others who wait for it.
        found = await asyncio.shield(task)
        return documents.send(request, found, headers)

    async def _build(self, name: str, media: str, current: str) -> Document:
        # The catalogue is read here, on the loop; the thread works on what cannot change any more.
        resources, crds = tuple(self._resources()), tuple(self._crds())
        others = [(each.path, each.openapi_v2) for each in self._elsewhere() if each.openapi_v2] if name == _V2 else ()
        made = await asyncio.to_thread(build, name, media, current, resources, crds, others)
        if self._index is not None and self._index.get(name) == current:
            self._kept[(name, media)] = made
        for kept in [key for key in self._kept if key[0] not in self._hashes()]:
            del self._kept[kept]
        return made


def build(
    name: str,
    media: str,
    current: str,
    resources: Sequence[Resource],
    crds: Sequence[CustomDefinition],
    others: Sequence[tuple[str, bytes]] = (),
) -> Document:
    """Make one document: `openapi/v2`, or that of a group-version such as `apis/apps/v1`. `others`: documents of other
    servers, packed, each with the path below which its operations are."""
    if name != _V2:
        own = [resource for resource in resources if path_of(resource) == name]
        body = orjson.dumps(v3.v3_document(own, crds))
        return documents.document(media, body, _etag(current, media))
    own_document = v2.v2_document(resources, crds)
    encode = gnostic.encode if media == gnostic.SENT_TYPE else orjson.dumps
    document = own_document
    for path, packed in others:
        document = merge.merged(document, path, packed)
    try:
        body = encode(document)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        # What another server sends need not be a document at all; ours is one.
        body = encode(own_document)
    return documents.document(media, body, _etag(current, media))


def path_of(resource: Resource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


def hashes(resources: Sequence[Resource], crds: Sequence[CustomDefinition]) -> dict[str, str]:
    """Hashes of all documents by name, cheap: nothing is built."""
    schemas = {(crd["spec"]["group"], crd["spec"]["names"]["plural"]): _identity(crd) for crd in crds}
    by_path: dict[str, list[bytes]] = {}
    for resource in resources:
        parts = by_path.setdefault(path_of(resource), [])
        parts.append(repr(resource).encode())
        if resource.custom:
            parts.append(schemas.get((resource.group, resource.plural), b""))
    source = f"{__version__} {_source_of_builtins()}".encode()
    found = {path: content_hash(source, *parts) for path, parts in sorted(by_path.items())}
    found[_V2] = content_hash(*(each.encode() for each in found.values()))
    return found


def _identity(crd: CustomDefinition) -> bytes:
    """What tells one state of a definition from another: the server counts changes of the spec in `generation`."""
    metadata: dict[str, Any] = crd.get("metadata", {})
    uid, generation = metadata.get("uid"), metadata.get("generation")
    if uid and generation:
        return f"{uid} {generation}".encode()
    return orjson.dumps(crd["spec"])


@cache
def _source_of_builtins() -> str:
    """The definitions by their content: asking for the package's version would load 2 MB of modules."""
    return content_hash(definitions_file().read_bytes())


def _etag(current: str, media: str) -> str:
    return current if media == JSON else f"{current}-PB"


def _url(group_version: str, found: str) -> str:
    return f"/openapi/v3/{group_version}?hash={found}"
