"""Grants that end by themselves, and logs that partners gave us, as events. Read from objects, written once each.

After a restart all objects come again; what the log has already is not written twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api import evidence
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.grants import EXPIRED
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DomainDataGrant
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.log_request import LOG_REQUESTS, LogRequest, LogRequestPhase
from coterie.kuscia.evidence.service import EvidenceService

log = logger("evidence")

_RECENT = 50_000
_BACKOFF = Policy(first=0.5, factor=2.0, limit=30.0)
_KINDS = frozenset((evidence.GRANT_EXPIRED, evidence.LOGS_RECEIVED))


def key_of(event: EvidenceEvent) -> tuple[object, ...]:
    return event.kind, event.job, event.partner, event.grant, event.more.get("digest", "")


def expired(grant: DomainDataGrant) -> EventRequest | None:
    """Of a grant that its author made, not of the copy at the grantee. Pure."""
    spec, status = grant.spec, grant.status
    if spec.author != grant.metadata.namespace or status is None or status.message != EXPIRED:
        return None
    digest = evidence.object_digest(msgspec.to_builtins(spec))
    event = EvidenceEvent(
        kind=evidence.GRANT_EXPIRED,
        partner=spec.grant_domain,
        grant=(grant.metadata.name, digest),
        count=len(grant.uses),
    )
    return EventRequest(event=event, tables=(spec.domain_data_id,))


def received(request: LogRequest) -> EventRequest | None:
    """Of a request that a domain of ours made. Pure."""
    spec, status = request.spec, request.status
    if spec.requester != request.metadata.namespace or status.phase != LogRequestPhase.ANSWERED or not status.digest:
        return None
    event = EvidenceEvent(kind=evidence.LOGS_RECEIVED, job=spec.job, partner=spec.owner, more={"digest": status.digest})
    return EventRequest(event=event, person=spec.requested_by, object_name=request.metadata.name)


class AccessFollower:
    """A Runnable: after the log and the informers."""

    name = "evidence-access"

    def __init__(self, service: EvidenceService, informers: Informers, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._service = service
        self._clock = clock
        self._grants = informers.get(DOMAIN_DATA_GRANTS)
        self._requests = informers.get(LOG_REQUESTS)
        self._domains = informers.get(DOMAINS)
        self._written: set[tuple[object, ...]] = set()
        self._waiting: deque[EventRequest] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        async with TaskOwner(self.name) as owner:
            owner.start("writer", self._write(), endless=True)
            await self._stop.wait()

    async def _write(self) -> None:
        backoff = Backoff(_BACKOFF)
        while self._service.log is None:
            await self._clock.sleep(backoff.failed())
        await asyncio.to_thread(self._read_recent)
        self._grants.add_handler(self._grant_changed)
        self._requests.add_handler(self._request_changed)
        backoff = Backoff(_BACKOFF)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._service.record(self._waiting[0])
                except EvidenceError as problem:
                    log.error("Ended grants and received logs cannot be recorded yet", error=problem)
                    await self._clock.sleep(backoff.failed())
                    continue
                backoff = Backoff(_BACKOFF)
                self._waiting.popleft()

    def _read_recent(self) -> None:
        used = self._service.log
        if used is None:
            return
        for stored in used.file.events(max(0, used.file.size - _RECENT)):
            if stored.body is not None and (event := evidence.decode(stored.body)).kind in _KINDS:
                self._written.add(key_of(event))

    def _grant_changed(self, change: ObjectChange[DomainDataGrant]) -> None:
        if change.type != "deleted" and is_own(self._domains.cache.get(change.object.spec.author)):
            self._add(expired(change.object))

    def _request_changed(self, change: ObjectChange[LogRequest]) -> None:
        if change.type != "deleted" and is_own(self._domains.cache.get(change.object.spec.requester)):
            self._add(received(change.object))

    def _add(self, request: EventRequest | None) -> None:
        if request is None or (key := key_of(request.event)) in self._written:
            return
        self._written.add(key)
        self._waiting.append(request)
        self._wake.set()
