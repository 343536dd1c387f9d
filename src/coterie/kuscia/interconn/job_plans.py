"""Dry runs of a partner that hosts jobs of ours: its question is taken over, and our answer is written where it asked.

    host's cluster, namespace <us>            our cluster
    JobPlanRequest (mirror) ── checked ─────> JobPlanRequest (incoming), answered by its controller
                            <── the answer ── its status; then it is removed

It travels the way a job would, so a partner that could not reach us with the job cannot reach us with the question. A host may ask as
often as it likes; so many an hour are answered, some more are refused, and the rest gets no answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimit, RateLimitedLog, TokenBucket
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.job_plans import (
    MOST_PER_HOUR,
    MOST_REFUSALS_PER_HOUR,
    incoming_plan_request,
    origin_of_plan,
    plan_request_fault,
    refusal,
)
from coterie.kuscia.api.log_requests import requester_fault
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import KusciaJobSpec
from coterie.kuscia.api.types.job_plan import JOB_PLAN_REQUESTS, JobPlanRequest, JobPlanRequestStatus
from coterie.kuscia.interconn.member import AWAY

_PLAIN = JOB_PLAN_REQUESTS.as_dynamic
_HOUR = 3600.0


class PlanAnswerer:
    """`host`: whose cluster has the mirrors; `namespace`: ours there, and our own domain here."""

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
        self.mirrors = remote_informers.get(JOB_PLAN_REQUESTS, namespace)
        self.requests = local_informers.get(JOB_PLAN_REQUESTS)
        self.domains = local_informers.get(DOMAINS)
        self._answers = TokenBucket(RateLimit(MOST_PER_HOUR, MOST_PER_HOUR / _HOUR), clock)
        self._refusals = TokenBucket(RateLimit(MOST_REFUSALS_PER_HOUR, MOST_REFUSALS_PER_HOUR / _HOUR), clock)
        self._ignored: dict[str, str] = {}
        """Mirrors that get no answer: uid by name."""
        self._log = logger("interconn.plans").bind(host=host)
        self._warnings = RateLimitedLog(self._log, clock)

    async def reconcile(self, key: ObjectKey) -> Result:
        mirror = self.mirrors.cache.get(key.name, self._namespace)
        incoming = self._incoming(key.name)
        if mirror is None or mirror.status.phase:
            self._ignored.pop(key.name, None)
            if incoming is not None:
                await self._delete(incoming)
            return DONE
        if incoming is None:
            await self._accept(mirror)
        elif origin_of_plan(incoming)[1] != mirror.metadata.uid:
            await self._delete(incoming)  # its own event brings us back
        elif incoming.status.phase:
            await self._report(mirror, incoming.status)
            await self._delete(incoming)
        return DONE

    def _incoming(self, name: str) -> JobPlanRequest | None:
        found = self.requests.cache.get(name, self._namespace)
        return found if found is not None and origin_of_plan(found)[0] == self._host else None

    async def _accept(self, mirror: JobPlanRequest) -> None:
        if self._ignored.get(mirror.metadata.name) == mirror.metadata.uid:
            return
        if not self._answers.take():
            await self._refuse(
                mirror, f"{self._host} asked for more than {MOST_PER_HOUR} dry runs in an hour; ask again later"
            )
            return
        if fault := self._fault(mirror):
            await self._refuse(mirror, fault)
            return
        name, uid = mirror.metadata.name, mirror.metadata.uid
        try:
            await self._local.create(_PLAIN, incoming_plan_request(name, self._namespace, mirror.spec, self._host, uid))
        except AlreadyExists:
            if self._incoming(name) is None and self.requests.cache.get(name, self._namespace) is not None:
                await self._refuse(mirror, "there is another dry run of that name")
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            await self._refuse(mirror, status_message(error))

    def _fault(self, mirror: JobPlanRequest) -> str:
        spec = mirror.spec
        if fault := plan_request_fault(spec):
            return fault
        return requester_fault(spec.initiator, self.domains.cache.get(spec.initiator), self._host)

    async def _refuse(self, mirror: JobPlanRequest, sentence: str) -> None:
        """Answers cost a write in the partner's cluster, so they are counted as well."""
        self._warnings.warn("A partner's dry run is refused", request=mirror.metadata.name, why=sentence)
        if not self._refusals.take():
            self._ignored[mirror.metadata.name] = mirror.metadata.uid
            return
        await self._report(mirror, refusal(self._named(mirror), sentence))

    def _named(self, mirror: JobPlanRequest) -> list[str]:
        """Our domains among the parties, as far as the job can be read."""
        if plan_request_fault(mirror.spec):
            return []
        parties = msgspec.convert(mirror.spec.job, KusciaJobSpec).party_domains
        return [each for each in parties if is_own(self.domains.cache.get(each))]

    async def _report(self, mirror: JobPlanRequest, status: JobPlanRequestStatus) -> None:
        await write_status(self._remote, JOB_PLAN_REQUESTS, mirror, mirror.status, status)

    async def _delete(self, incoming: JobPlanRequest) -> None:
        meta = incoming.metadata
        try:
            await self._local.delete(JOB_PLAN_REQUESTS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    def keys_of_mirror(self, mirror: JobPlanRequest) -> list[ObjectKey]:
        return [ObjectKey(self._host, mirror.metadata.name)]

    def keys_of_request(self, request: JobPlanRequest) -> list[ObjectKey]:
        if origin_of_plan(request)[0] != self._host or request.metadata.namespace != self._namespace:
            return []
        return [ObjectKey(self._host, request.metadata.name)]


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
    part = PlanAnswerer(host, namespace, remote, remote_informers, local, local_informers, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(part.mirrors, part.keys_of_mirror),
        Watches(part.requests, part.keys_of_request),
        Watches(part.domains, lambda _: ()),
    ]
    return Controller(f"interconn-{host}-plans", part.reconcile, watches, workers=1, clock=clock, retry=AWAY)
