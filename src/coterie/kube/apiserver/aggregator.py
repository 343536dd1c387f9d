"""Groups and versions that another server answers: APIServices with a Service.

    APIService ──> AggregatedVersion ──> follower: is it available? its discovery, its OpenAPI documents
    request below /apis/GROUP/VERSION ──> authenticated and authorized here ──> the Service, with the caller's name in headers

The aggregated server believes the headers because of the client certificate of this server (`auth/authentication_info.py`). Each
version has a follower of its own, so one that hangs delays no other, and requests never wait for a check: discovery answers
from what was read last.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import Tasks
from coterie.kube.api import errors
from coterie.kube.api.resources import BUILTIN
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, encode
from coterie.kube.apiserver.state.state import ObjectWrite, ResourceStorage
from coterie.kube.apiserver.state.watching import StoredChange

if TYPE_CHECKING:
    from coterie.kube.apiserver import forwarding, outgoing
else:
    # Most servers have no aggregated version.
    forwarding = lazy_import("coterie.kube.apiserver.forwarding")
    outgoing = lazy_import("coterie.kube.apiserver.outgoing")

log = logger("apiserver.aggregator")

Object = dict[str, Any]
_ALWAYS_LOCAL = frozenset(resource.group for resource in BUILTIN)
"""Controllers, agents and this server itself believe what is read there; TokenReviews hold tokens of others. Metrics are no part of it."""
_CHECK_SECONDS, _CHECK_TIMEOUT = 30.0, 5.0
_HEAD_SECONDS = 60.0
_MAX_DOCUMENT = 16 << 20
_MAX_URL = 1024
_UPGRADES = frozenset(("websocket", "spdy/3.1"))
"""Protocols that carry one request. Over others (h2c) a client could send more of them, in any name."""
_PROBE_HEADERS = (
    ("X-Remote-User", "system:kube-aggregator"),
    ("X-Remote-Group", "system:masters"),
    ("Accept", "application/json"),
)


class AggregatedResource(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of an APIResourceList; `name` is `plural` or `plural/subresource`."""

    name: str
    namespaced: bool
    kind: str
    verbs: tuple[str, ...]
    singular_name: str = ""
    group: str = ""
    version: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class _ResourceList(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str
    resources: tuple[AggregatedResource, ...]


class _DocumentReference(msgspec.Struct, frozen=True):
    server_relative_url: str = msgspec.field(name="serverRelativeURL")


class _DocumentIndex(msgspec.Struct, frozen=True):
    paths: dict[str, _DocumentReference]


@dataclass(slots=True, eq=False)
class AggregatedVersion:
    name: str
    group: str
    version: str
    spec: Object
    group_priority: int
    version_priority: int
    available: bool = False
    reason: str = "Unknown"
    message: str = "not checked yet"
    resources: tuple[AggregatedResource, ...] = ()
    """As they were last told."""
    fresh: bool = False
    """Whether that was in the last check."""
    openapi_v3: str = ""
    """The URL of its document, as its own index tells it."""
    openapi_v2: bytes = b""
    """Its document, packed."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    follower: asyncio.Task[None] | None = None
    _tls: ssl.SSLContext | None = None

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}"

    @property
    def service(self) -> tuple[str, str]:
        service = self.spec["service"]
        return service.get("namespace") or "", service.get("name") or ""

    @property
    def port(self) -> int:
        return self.spec["service"].get("port") or 443

    def where(self, path: str) -> outgoing.OutgoingDestination:
        return outgoing.service_destination(*self.service, self.port, path)

    def tls(self, certificate: tuple[str, str] | None) -> ssl.SSLContext:
        """Raises OutgoingError."""
        if self._tls is None:
            try:
                bundle = base64.b64decode(self.spec.get("caBundle") or "")
            except binascii.Error as problem:
                raise outgoing.OutgoingError("unable to load root certificates") from problem
            insecure = bool(self.spec.get("insecureSkipTLSVerify"))
            self._tls = outgoing.tls_context(bundle, insecure=insecure, certificate=certificate)
        return self._tls


class Aggregator:
    def __init__(
        self,
        state: ResourceStorage,
        registrations: Collection,
        services: Collection,
        dialler: Callable[[], outgoing.Outgoing],
        tasks: Tasks,
        clock: Clock,
        certificate: tuple[str, str] | None,
        changed: Callable[[], None],
        local_groups: Iterable[str] = (),
        reports: Callable[[], bool] = lambda: True,
    ) -> None:
        """`registrations`: APIServices. `certificate`: files of the front-proxy client certificate. `changed`: discovery is different.
        `local_groups`: more groups that are always answered here. `reports`: whether conditions are ours to write."""
        self._state = state
        self._registrations = registrations
        self._services = services
        self._dialler = dialler
        self._tasks = tasks
        self._clock = clock
        self._certificate = certificate
        self._changed = changed
        self._local = _ALWAYS_LOCAL.union(local_groups)
        self._reports = reports
        self._versions: dict[tuple[str, str], AggregatedVersion] = {}

    @property
    def served(self) -> Mapping[tuple[str, str], AggregatedVersion]:
        """The same object for ever, so that who asks for each request need not ask twice."""
        return self._versions

    def versions(self) -> Sequence[AggregatedVersion]:
        return tuple(self._versions.values())

    def find(self, path: str) -> AggregatedVersion | None:
        """The version below which a path lies, `/apis/GROUP/VERSION` itself among them."""
        parts = path.split("/", 4)
        if len(parts) < 4 or parts[1] != "apis":
            return None
        return self._versions.get((parts[2], parts[3]))

    # -- following the objects ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Once the objects are loaded."""
        for entry in self._registrations:
            self._set(entry)

    def observe(self, changes: Sequence[StoredChange]) -> None:
        for change in changes:
            if change.kind == "DELETED":
                self._remove(change.entry.name)
            else:
                self._set(change.entry)

    def observe_services(self, changes: Sequence[StoredChange]) -> None:
        """Services: something may have become available, or not be so any more."""
        self._wake({(change.entry.namespace, change.entry.name) for change in changes} if self._versions else ())

    def observe_slices(self, changes: Sequence[StoredChange]) -> None:
        if self._versions:
            owners = [
                (each.entry.namespace, (each.entry.labels or {}).get("kubernetes.io/service-name", ""))
                for each in changes
            ]
            self._wake(owners)

    def _wake(self, services: Iterable[tuple[str, str]]) -> None:
        for service in services:
            for version in self._versions.values():
                if version.service == service:
                    version.wake.set()

    def _set(self, entry: ObjectEntry) -> None:
        if b'"service":' not in entry.raw:
            self._remove(entry.name)
            return
        spec = entry.load().get("spec") or {}
        key = (spec.get("group") or "", spec.get("version") or "")
        known = self._versions.get(key)
        if not spec.get("service") or key[0] in self._local:
            self._remove(entry.name)
            return
        if known is not None and known.spec == spec:
            return
        self._remove(entry.name)
        made = AggregatedVersion(
            entry.name, *key, spec, spec.get("groupPriorityMinimum") or 0, spec.get("versionPriority") or 0
        )
        self._versions[key] = made
        made.follower = self._tasks.create_task(self._follow(made), name=f"aggregated {entry.name}")
        self._changed()

    def _remove(self, name: str) -> None:
        for key, version in list(self._versions.items()):
            if version.name == name:
                del self._versions[key]
                if version.follower is not None:
                    version.follower.cancel()
                self._changed()

    # -- availability -------------------------------------------------------------------------------------------

    async def _follow(self, version: AggregatedVersion) -> None:
        while True:
            version.wake.clear()
            await self._check(version)
            sleeping = asyncio.ensure_future(self._clock.sleep(_CHECK_SECONDS))
            waiting = asyncio.ensure_future(version.wake.wait())
            try:
                await asyncio.wait((sleeping, waiting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                waiting.cancel()

    async def _check(self, version: AggregatedVersion) -> None:
        before = (version.available, version.resources, version.fresh, version.openapi_v3, version.openapi_v2)
        version.available, version.reason, version.message = await self._availability(version)
        if not version.available:
            version.fresh = False
        after = (version.available, version.resources, version.fresh, version.openapi_v3, version.openapi_v2)
        if after != before:
            self._changed()
        await self._write_condition(version)

    async def _availability(self, version: AggregatedVersion) -> tuple[bool, str, str]:
        namespace, name = version.service
        entry = self._services.get(namespace, name)
        if entry is None:
            return False, "ServiceNotFound", f'service/{name} in "{namespace}" is not present'
        ports = [each.get("port") for each in (entry.load().get("spec") or {}).get("ports") or ()]
        if version.port not in ports:
            return False, "ServicePortError", f'service/{name} in "{namespace}" is not listening on port {version.port}'
        where = version.where(version.path)
        try:
            status, body = await self._get(version, version.path)
        except outgoing.OutgoingError as problem:
            if "no endpoints available" in str(problem):
                return False, "MissingEndpoints", f'endpoints for service/{name} in "{namespace}" have no addresses'
            return False, "FailedDiscoveryCheck", f"failing or missing response from {where.url}: {problem}"
        if not 200 <= status < 300:
            return (
                False,
                "FailedDiscoveryCheck",
                f"failing or missing response from {where.url}: bad status from {where.url}: {status}",
            )
        try:
            listed = msgspec.json.decode(body, type=_ResourceList)
        except (msgspec.DecodeError, RecursionError) as problem:
            log.warning(
                "An aggregated server has no usable discovery", service=version.name, problem=str(problem)[:200]
            )
            version.fresh = False
        else:
            version.fresh = listed.group_version == f"{version.group}/{version.version}"
            if version.fresh:
                version.resources = listed.resources
        await self._read_documents(version)
        return True, "Passed", "all checks passed"

    async def _read_documents(self, version: AggregatedVersion) -> None:
        """OpenAPI is optional: what cannot be read is left out."""
        try:
            status, body = await self._get(version, "/openapi/v3")
            index = msgspec.json.decode(body, type=_DocumentIndex).paths if status == 200 else {}
            found = index.get(version.path[1:])
            url = found.server_relative_url if found is not None else ""
            version.openapi_v3 = url if url.startswith(f"/openapi/v3{version.path}") and len(url) < _MAX_URL else ""
        except (outgoing.OutgoingError, msgspec.DecodeError, RecursionError):
            version.openapi_v3 = ""
        try:
            status, body = await self._get(version, "/openapi/v2")
            version.openapi_v2 = zlib.compress(body, 6) if status == 200 else b""
        except outgoing.OutgoingError:
            version.openapi_v2 = b""

    async def _get(self, version: AggregatedVersion, path: str) -> tuple[int, bytes]:
        tls = version.tls(self._certificate)
        return await self._dialler().get(
            version.where(path), tls, _PROBE_HEADERS, timeout=_CHECK_TIMEOUT, limit=_MAX_DOCUMENT
        )

    async def _write_condition(self, version: AggregatedVersion) -> None:
        if not self._reports():
            return
        collection = self._registrations
        now = rfc3339(self._clock.now())

        def decide(entry: ObjectEntry | None) -> ObjectWrite | None:
            if entry is None:
                return None
            obj = entry.load()
            if obj.get("spec") != version.spec:
                return None
            status = obj.get("status") or {}
            before: Object = next(
                (each for each in status.get("conditions") or () if each.get("type") == "Available"), {}
            )
            wanted = {
                "type": "Available",
                "status": "True" if version.available else "False",
                "lastTransitionTime": before.get("lastTransitionTime"),
                "reason": version.reason,
                "message": version.message,
            }
            if wanted == before:
                return None
            if wanted["status"] != before.get("status"):
                wanted["lastTransitionTime"] = now
            others = [each for each in status.get("conditions") or () if each.get("type") != "Available"]
            obj["status"] = {**status, "conditions": [*others, wanted]}
            obj["metadata"].pop("resourceVersion", None)
            return ObjectWrite(encode(obj, collection.api_version, collection.kind))

        await self._state.modify(collection, "", version.name, decide)

    # -- requests -----------------------------------------------------------------------------------------------

    async def respond(self, request: Request, version: AggregatedVersion, user: UserInfo, *, endless: bool) -> Response:
        """`endless`: a watch, or another request without an end. Authorized already."""
        if not version.available:
            raise errors.ServiceUnavailable(
                f"the aggregated API {version.name} is not available: {version.reason}: {version.message}"
            )
        if forwarding.is_upgrade(request) and request.headers["upgrade"].strip().lower() not in _UPGRADES:
            raise errors.BadRequest("connections to an aggregated API are upgraded to WebSocket or SPDY/3.1 only")
        path = forwarding.encoded_path(request.path)
        target = f"{path}?{request.query}" if request.query else path
        where = version.where(request.path)
        how = forwarding.Forwarding(
            target,
            where.host,
            forwarding.headers_of_user(user.name, user.uid, user.groups, dict(user.extra)),
            head_seconds=None if endless else _HEAD_SECONDS,
            refuse_redirects=True,
        )
        try:
            made = await self._dialler().connect(where, version.tls(self._certificate))
            connection = forwarding.OpenConnection(made.reader, made.writer)
            return await forwarding.forward(connection, request, how, self._tasks)
        except (outgoing.OutgoingError, forwarding.ForwardingFailed) as problem:
            raise errors.ServiceUnavailable(f"error trying to reach service: {problem}") from problem
