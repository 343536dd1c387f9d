"""Grants that end by themselves, and logs that partners gave us, as events. Read from objects, written once each.

After a restart all objects come again; what the log has already is not written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from coterie.base.clock import Clock
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api import evidence
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.api.grants import EXPIRED
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DomainDataGrant
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.log_request import LOG_REQUESTS, LogRequest, LogRequestPhase
from coterie.kuscia.evidence.event_queue import QueuedRecorder
from coterie.kuscia.evidence.service import EvidenceService

_RECENT = 50_000
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


class AccessFollower(QueuedRecorder):
    name = "evidence-access"

    def __init__(self, service: EvidenceService, informers: Informers, clock: Clock) -> None:
        super().__init__(service, clock)
        self._grants = informers.get(DOMAIN_DATA_GRANTS)
        self._requests = informers.get(LOG_REQUESTS)
        self._domains = informers.get(DOMAINS)
        self._written: set[tuple[object, ...]] = set()

    async def begin(self) -> None:
        await asyncio.to_thread(self._read_recent)
        self._grants.add_handler(self._grant_changed)
        self._requests.add_handler(self._request_changed)

    async def write(self, batch: Sequence[EventRequest]) -> None:
        await self._service.record(*batch)

    def _read_recent(self) -> None:
        used = self._service.log
        if used is None:
            return
        for stored in used.file.events(max(0, used.file.size - _RECENT)):
            if stored.body is not None and (event := evidence.decode(stored.body)).kind in _KINDS:
                self._written.add(key_of(event))

    def _grant_changed(self, change: ObjectChange[DomainDataGrant]) -> None:
        if change.type != "deleted" and is_own(self._domains.cache.get(change.object.spec.author)):
            self._add_new(expired(change.object))

    def _request_changed(self, change: ObjectChange[LogRequest]) -> None:
        if change.type != "deleted" and is_own(self._domains.cache.get(change.object.spec.requester)):
            self._add_new(received(change.object))

    def _add_new(self, request: EventRequest | None) -> None:
        if request is not None and (key := key_of(request.event)) not in self._written:
            self._written.add(key)
            self.add([request])
