"""Dry runs: asks the partners of a job, and answers for the domains of this control plane from their objects, which are only read.

Requests of partners arrive by `kuscia/interconn/job_plans.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import parse_pins
from coterie.kuscia.api.job_plans import (
    bounded,
    by_control_plane,
    completed,
    detail_of,
    mirror_of,
    origin_of_plan,
    plan_request_fault,
    refusal,
)
from coterie.kuscia.api.partner_requests import PartnerRequestError, job_taken
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, KusciaJobSpec
from coterie.kuscia.api.types.job_plan import (
    JOB_PLAN_REQUESTS,
    JobPlanRequest,
    PlanAnswer,
    PlanDetail,
    PlanPhase,
)
from coterie.kuscia.control.partner_quotas import PartnerQuotas
from coterie.kuscia.controllers.jobplan import plan
from coterie.kuscia.controllers.jobplan.party_plan import OWN, PlanObjects, plan_of_party

BY_NAME = "jobplan/name"
_PLAIN = JOB_PLAN_REQUESTS.as_dynamic
_LATER = 1.0
"""Seconds after which a partner's namespace that was missing is tried again."""


def by_name(request: JobPlanRequest) -> tuple[str, ...]:
    return (request.metadata.name,)


class JobPlanReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        requires_approval: bool | None,
        quotas: PartnerQuotas,
        clock: Clock,
    ) -> None:
        self._client = client
        self._requires_approval = requires_approval
        self._quotas = quotas
        self._clock = clock
        self.requests = informers.get(JOB_PLAN_REQUESTS)
        self.domains = informers.get(DOMAINS)
        self.policies = quotas.policies
        self.requests.cache.add_index(BY_NAME, by_name)
        self._log = logger("controllers.jobplan")

    async def reconcile(self, key: ObjectKey) -> Result:
        request = self.requests.cache.by_key(key)
        if request is None or request.metadata.deleting:
            return DONE
        if not self._ours(key.namespace):
            return await self._mirror(request)
        if origin_of_plan(request)[0]:
            return await self._incoming(request)
        return await self._outgoing(request)

    # We ask.

    async def _outgoing(self, request: JobPlanRequest) -> Result:
        spec, now = request.spec, self._clock.now()
        if request.status.phase == PlanPhase.COMPLETE:
            return await self._carry_out(request, plan.outgoing(request, (), None, {}, {}, {}, {}, now))
        fault = plan_request_fault(spec)
        if not fault and spec.initiator != request.metadata.namespace:
            fault = f"initiator: {spec.initiator} asks in its own namespace, not in {request.metadata.namespace}"
        if fault:
            await self._write(request, refusal((), fault))
            return DONE
        job = msgspec.convert(spec.job, KusciaJobSpec)
        parties = tuple(dict.fromkeys((spec.initiator, *job.party_domains)))
        known = {name: found for name in parties if (found := self.domains.cache.get(name)) is not None}
        partners = by_control_plane(parties, known)
        mirrors = {
            each.metadata.namespace: each for each in self.requests.cache.by_index(BY_NAME, request.metadata.name)
        }
        own = await self._own_answers(request, job, known)
        routes = (await self._client.list(CLUSTER_DOMAIN_ROUTES)).items if partners else ()
        step = plan.outgoing(
            request, parties, job, own, partners, mirrors, plan.unready_routes(routes, spec.initiator), now
        )
        return await self._carry_out(request, step)

    async def _own_answers(
        self, request: JobPlanRequest, job: KusciaJobSpec, known: dict[str, Domain]
    ) -> dict[str, PlanAnswer]:
        """Those that were given stay: a plan is a statement about one moment."""
        given = {each.domain: each for each in request.status.answers or () if each.phase == PlanPhase.ANSWERED}
        out: dict[str, PlanAnswer] = {}
        for name, domain in known.items():
            if is_own(domain):
                detail = OWN if name == job.initiator else self._detail(job.initiator)
                out[name] = given.get(name) or await self._answer(job, name, detail)
        return out

    async def _carry_out(self, request: JobPlanRequest, step: plan.PlanStep) -> Result:
        later = False
        for master in step.send:
            later |= not await self._send(request, master)
        await self._write(request, step.status)
        if step.withdraw:
            for each in self.requests.cache.by_index(BY_NAME, request.metadata.name):
                if not self._ours(each.metadata.namespace):
                    await self._delete(each)
        if step.delete:
            await self._delete(request)
            return DONE
        return Result(after=min(_LATER, step.after or _LATER) if later else step.after)

    async def _send(self, request: JobPlanRequest, master: str) -> bool:
        """False when the partner has no namespace here yet."""
        try:
            await self._client.create(_PLAIN, mirror_of(request, master))
        except AlreadyExists:
            return True  # the cache is behind
        except NotFound:
            return False
        self._log.info("Dry run sent to a partner", request=str(request.key), partner=master)
        return True

    async def _mirror(self, request: JobPlanRequest) -> Result:
        """Removed when nobody needs it any more."""
        original = self.requests.cache.get(request.metadata.name, request.spec.initiator)
        step = plan.mirror(request, original, self._clock.now())
        if step.delete:
            await self._delete(request)
            return DONE
        return Result(after=step.after)

    # We are asked.

    async def _incoming(self, request: JobPlanRequest) -> Result:
        step = plan.incoming(request, self._clock.now())
        if step.delete:
            await self._delete(request)
            return DONE
        if request.status.phase:
            return Result(after=step.after)
        initiator = request.spec.initiator
        fault = plan_request_fault(request.spec)
        if fault:
            await self._write(request, refusal((), fault))
            return Result(after=step.after)
        try:
            job = job_taken(request.spec.job)
        except PartnerRequestError as problem:
            await self._write(request, refusal((), str(problem)))
            return Result(after=step.after)
        ours = [name for name in job.party_domains if self._ours(name)]
        detail = self._detail(initiator)
        if not ours:
            await self._write(request, refusal((), "no domain of this control plane takes part"))
        elif detail is PlanDetail.NONE:
            await self._write(request, refusal(ours, f"dry runs of {initiator} are not answered"))
        else:
            await self._write(request, completed([await self._answer(job, name, detail) for name in ours]))
        return Result(after=step.after)

    # Both.

    def _detail(self, initiator: str) -> PlanDetail:
        policy = self._quotas.policy_of(initiator)
        return detail_of(policy.spec if policy is not None else None)

    async def _answer(self, job: KusciaJobSpec, domain: str, detail: str) -> PlanAnswer:
        if detail == PlanDetail.NONE:
            words = f"dry runs of {job.initiator} are not answered"
            return PlanAnswer(domain=domain, phase=str(PlanPhase.REFUSED), message=words)
        found = plan_of_party(await self._objects(job, domain), job, domain, detail, self._clock.now())
        shown = bounded(found, domain, with_nodes=detail == OWN)
        return PlanAnswer(domain=domain, phase=str(PlanPhase.ANSWERED), plan=shown)

    async def _objects(self, job: KusciaJobSpec, domain: str) -> PlanObjects:
        """Read when somebody asks, which is seldom: keeping all of them in memory for that would cost more."""
        client = self._client
        partner = self._quotas.is_partner(job.initiator)
        policy = self._quotas.policy_of(job.initiator) if partner else None
        marks = (self.domains.cache.get(domain) or Domain()).metadata.annotations or {}
        return PlanObjects(
            images={each.metadata.name: each for each in (await client.list(APP_IMAGES)).items},
            pinned=parse_pins(marks.get(labels.COTERIE_ENGINE_PINS, "")),
            nodes=(await client.list(NODES)).items,
            pods=(await client.list(PODS)).items,
            datas=(await client.list(DOMAIN_DATAS, domain)).items,
            grants=(await client.list(DOMAIN_DATA_GRANTS, domain)).items,
            routes=(await client.list(CLUSTER_DOMAIN_ROUTES)).items,
            links=(await client.list(DOMAIN_ROUTES, domain)).items,
            policy=policy.spec if policy is not None else None,
            from_partner=partner,
            requires_approval=self._requires_approval,
            used=self._quotas.used_by(job.initiator),
        )

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    async def _write(self, request: JobPlanRequest, status: Any) -> None:
        if await write_status(self._client, JOB_PLAN_REQUESTS, request, request.status, status):
            self._log.info(
                "Dry run",
                request=str(request.key),
                initiator=request.spec.initiator,
                phase=status.phase,
                outlook=status.outlook,
            )

    async def _delete(self, request: JobPlanRequest) -> None:
        meta = request.metadata
        try:
            await self._client.delete(JOB_PLAN_REQUESTS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    def keys_of_request(self, request: JobPlanRequest) -> list[ObjectKey]:
        """A mirror that was answered, or whose request is complete, concerns the other."""
        name = request.metadata.name
        found = self.requests.cache.by_index(BY_NAME, name)
        others = {ObjectKey(each.metadata.namespace, name) for each in found}
        return sorted({*others, ObjectKey(request.spec.initiator, name)} - {request.key})


def make(
    client: Client,
    informers: Informers,
    *,
    requires_approval: bool | None = False,
    quotas: PartnerQuotas | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    reconciler = JobPlanReconciler(client, informers, requires_approval, quotas or PartnerQuotas(informers), clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.requests, own_key),
        Watches(reconciler.requests, reconciler.keys_of_request),
        Watches(reconciler.domains, lambda _: ()),
        Watches(reconciler.policies, lambda _: ()),
    ]
    return Controller("jobplan", reconciler.reconcile, watches, workers=1, clock=clock)
