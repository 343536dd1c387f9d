"""Log requests between control planes. Only what one side asks and what the other answers crosses, never the preview.

    host's cluster, namespace <member>
    host asks      request (ours) ─ makes ─> mirror <─ follows ─ member: incoming request ── its status ──> mirror ─> request
    member asks    incoming request <─ makes ─ host <─ mirror <─ makes ─ member: request;   status the other way round

One class for both: they differ in where the mirror lies. A mirror that is gone means that its request was withdrawn, at the owner,
or that the owner removed it, at the requester.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.reflector import FollowObserver
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api.domain_ownership import is_own, is_partner, master_of
from coterie.kuscia.api.log_requests import (
    ended,
    incoming_request,
    is_over,
    load_fault,
    load_of,
    origin_of,
    parse_origin,
    request_taken,
    requester_fault,
    status_for_requester,
    status_from_owner,
    withdrawn,
)
from coterie.kuscia.api.partner_requests import PartnerRequestError
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.log_request import (
    LOG_REQUESTS,
    OPEN,
    LogRequest,
    LogRequestPhase,
    LogRequestStatus,
    Way,
)
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.interconn.member import AWAY

BY_ORIGIN = "interconn/log-request-origin"
BY_REQUEST_NAME = "interconn/log-request-name"
_PLAIN = LOG_REQUESTS.as_dynamic
SELDOM = Policy(first=0.5, factor=2.0, limit=30.0, jitter=0.3)
"""Pauses before a partner that does not have this kind is asked for it again."""
_LATER = 2.0
"""Seconds after which a partner's namespace that was missing is tried again."""


def by_origin(request: LogRequest) -> tuple[str, ...]:
    way, control_plane, _ = parse_origin(request)
    return (control_plane,) if way in (Way.HOST, Way.MEMBER) else ()


def by_name(request: LogRequest) -> tuple[str, ...]:
    return (request.metadata.name,)


class LogRequestExchange:
    """A key is a partner's control plane and the name of a request.

    `host`: whose cluster has the mirrors, with `namespace`, ours there. Empty: the mirrors lie in our own cluster, in the namespace
    of each partner's control plane."""

    def __init__(
        self,
        host: str,
        namespace: str,
        remote: Client,
        remote_informers: Informers,
        local: Client,
        local_informers: Informers,
        clock: Clock,
    ) -> None:
        self._host, self._namespace = host, namespace
        self._remote, self._local = remote, local
        self._clock = clock
        self._way = Way.MEMBER if host else Way.HOST
        self.mirrors = remote_informers.get(LOG_REQUESTS, namespace if host else "")
        self.requests = local_informers.get(LOG_REQUESTS)
        self.domains = local_informers.get(DOMAINS)
        self.policies = local_informers.get(PARTNER_POLICIES)
        self.requests.cache.add_index(BY_ORIGIN, by_origin)
        self.requests.cache.add_index(BY_REQUEST_NAME, by_name)
        self._log = logger("interconn.logs").bind(host=host or "own")

    async def reconcile(self, key: ObjectKey) -> Result:
        partner, name = key.namespace, key.name
        mirror = self.mirrors.cache.get(name, self._namespace if self._host else partner)
        request = self._request(partner, name)
        if request is not None:
            return await self._ask(request, mirror, partner)
        if mirror is not None and is_own(self.domains.cache.get(mirror.spec.requester)):
            await self._delete(mirror)  # our request is gone
            return DONE
        await self._receive(mirror, self._incoming(partner, name), partner)
        return DONE

    def _request(self, partner: str, name: str) -> LogRequest | None:
        """A request of a domain of ours that travels this way."""
        for each in self.requests.cache.by_index(BY_REQUEST_NAME, name):
            ours = each.metadata.namespace == each.spec.requester and self._is_own(each)
            owner = each.spec.owner
            if ours and each.status.way == self._way and self._master_of(owner) == partner:
                return each
        return None

    def _master_of(self, name: str) -> str:
        return master_of(name, self.domains.cache.get(name))

    def _incoming(self, partner: str, name: str) -> LogRequest | None:
        for each in self.requests.cache.by_index(BY_REQUEST_NAME, name):
            way, control_plane, _ = parse_origin(each)
            if way == self._way and control_plane == partner and self._is_own(each):
                return each
        return None

    def _is_own(self, request: LogRequest) -> bool:
        return is_own(self.domains.cache.get(request.metadata.namespace))

    # We ask.

    async def _ask(self, request: LogRequest, mirror: LogRequest | None, partner: str) -> Result:
        status, now = request.status, self._clock.now()
        if is_over(status) or request.metadata.deleting:
            if mirror is not None and mirror.spec.requester == request.spec.requester:
                await self._delete(mirror)
            return DONE
        if mirror is None:
            if status.sent:
                words = f"{request.spec.owner} removed the request"
                await self._write(request, ended(status, LogRequestPhase.REJECTED, words, now, by=partner))
                return DONE
            return DONE if await self._send(request, partner) else Result(after=_LATER)
        if mirror.spec.requester != request.spec.requester:
            words = f"{partner} has another log request of the name {request.metadata.name}; make one with another name"
            await self._write(request, ended(status, LogRequestPhase.REJECTED, words, now))
            return DONE
        after = status_from_owner(request, mirror.status, now)
        await self._write(request, after if after.sent else replace(after, sent=True))
        return DONE

    async def _send(self, request: LogRequest, partner: str) -> bool:
        """False when the partner has no namespace here yet."""
        meta = request.metadata
        body: Object = {
            "metadata": {"name": meta.name, "namespace": self._namespace if self._host else partner},
            "spec": msgspec.to_builtins(replace(request.spec, review=None)),
        }
        try:
            await self._remote.create(_PLAIN, body)
        except AlreadyExists:
            return True  # the cache is behind
        except NotFound:
            return False
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            words = f"the request was not taken by {partner}: {status_message(error)}"
            await self._write(request, ended(request.status, LogRequestPhase.REJECTED, words, self._clock.now()))
            return True
        self._log.info("Log request sent to a partner", request=str(request.key), partner=partner)
        # At once: a partner that removes it has answered, and is not asked again.
        await self._write(request, replace(request.status, sent=True))
        return True

    # We are asked.

    async def _receive(self, mirror: LogRequest | None, incoming: LogRequest | None, partner: str) -> None:
        now = self._clock.now()
        if mirror is None or (incoming is not None and parse_origin(incoming)[2] != mirror.metadata.uid):
            if incoming is not None:
                await self._write(incoming, withdrawn(incoming.status, incoming.spec.requester, now))
            if mirror is not None and not is_over(mirror.status):
                await self._refuse(mirror, f"there was another log request of the name {mirror.metadata.name}")
            return
        if incoming is not None:
            await self._report(mirror, status_for_requester(incoming.status))
        elif not is_over(mirror.status):
            await self._accept(mirror, partner)

    async def _accept(self, mirror: LogRequest, partner: str) -> None:
        if mirror.status.phase not in OPEN:
            return
        try:
            spec = request_taken(msgspec.to_builtins(mirror.spec))
        except PartnerRequestError as problem:
            await self._refuse(mirror, str(problem))
            return
        fault = requester_fault(spec.requester, self.domains.cache.get(spec.requester), partner)
        if not fault and not is_own(self.domains.cache.get(spec.owner)):
            fault = f"{spec.owner} is no domain of this control plane"
        if not fault:
            load = load_of(self.requests.cache.by_index(BY_ORIGIN, partner), self._clock.now())
            policy = self.policies.cache.get(spec.requester) or self.policies.cache.get(partner)
            fault = load_fault(spec.requester, load, policy.spec if policy is not None else None)
        if fault:
            await self._refuse(mirror, fault)
            return
        body = incoming_request(mirror.metadata.name, spec, origin_of(self._way, partner, mirror.metadata.uid))
        try:
            await self._local.create(_PLAIN, body)
        except AlreadyExists:
            if self._incoming(partner, mirror.metadata.name) is None:
                await self._refuse(mirror, f"{spec.owner} has another log request of that name")
            return
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            await self._refuse(mirror, status_message(error))
            return
        self._log.info("Log request of a partner received", request=mirror.metadata.name, partner=partner)

    async def _refuse(self, mirror: LogRequest, sentence: str) -> None:
        self._log.warning("A partner's log request is refused", request=mirror.metadata.name, why=sentence)
        await self._report(mirror, LogRequestStatus(phase=str(LogRequestPhase.REJECTED), message=sentence))

    async def _report(self, mirror: LogRequest, status: LogRequestStatus) -> None:
        await write_status(self._remote, LOG_REQUESTS, mirror, mirror.status, status)

    # Both.

    async def _write(self, request: LogRequest, status: LogRequestStatus) -> None:
        await write_status(self._local, LOG_REQUESTS, request, request.status, status)

    async def _delete(self, mirror: LogRequest) -> None:
        meta = mirror.metadata
        try:
            await self._remote.delete(LOG_REQUESTS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    def keys_of_mirror(self, mirror: LogRequest) -> list[ObjectKey]:
        if self._host:
            return [ObjectKey(self._host, mirror.metadata.name)]
        namespace = mirror.metadata.namespace
        return [ObjectKey(namespace, mirror.metadata.name)] if is_partner(self.domains.cache.get(namespace)) else []

    def keys_of_request(self, request: LogRequest) -> list[ObjectKey]:
        if not self._is_own(request):
            return []
        name, owner = request.metadata.name, request.spec.owner
        way, control_plane, _ = parse_origin(request)
        out = []
        if way == self._way and (not self._host or control_plane == self._host):
            out.append(ObjectKey(control_plane, name))
        if request.metadata.namespace == request.spec.requester and request.status.way == self._way:
            partner = self._master_of(owner)
            if not self._host or partner == self._host:
                out.append(ObjectKey(partner, name))
        return out


class OptionalKind:
    """A FollowObserver for a kind that not every partner has: that it cannot be read is no fault of following the partner."""

    def __init__(self, inner: FollowObserver) -> None:
        self._inner = inner

    def failed(self, kind: Any, why: str) -> None:
        """The other kinds tell when the partner cannot be reached."""

    def recovered(self, kind: Any) -> None:
        self._inner.recovered(kind)

    def left_out(self, kind: Any, key: ObjectKey, why: str) -> None:
        self._inner.left_out(kind, key, why)


def _controller(name: str, part: LogRequestExchange, clock: Clock) -> Controller[ObjectKey]:
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(part.mirrors, part.keys_of_mirror),
        Watches(part.requests, part.keys_of_request),
        Watches(part.domains, lambda _: ()),
        Watches(part.policies, lambda _: ()),
    ]
    return Controller(name, part.reconcile, watches, workers=1, clock=clock, retry=AWAY)


def make_host(client: Client, informers: Informers, *, clock: Clock = SYSTEM_CLOCK) -> Controller[ObjectKey]:
    part = LogRequestExchange("", "", client, informers, client, informers, clock)
    return _controller("interconn-host-logrequests", part, clock)


def make_member(
    host: str,
    namespace: str,
    remote: Client,
    remote_informers: Informers,
    local: Client,
    local_informers: Informers,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    part = LogRequestExchange(host, namespace, remote, remote_informers, local, local_informers, clock)
    return _controller(f"interconn-{host}-logrequests", part, clock)
