"""Log requests of our domains to others, and of others to our domains: states, preview, answer, expiry.

Requests between domains of this control plane are handed over here; those of partners travel by `kuscia/interconn`.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.redaction import Redactor
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api.domain_ownership import is_own, master_of
from coterie.kuscia.api.log_query import TaskLogs
from coterie.kuscia.api.log_requests import (
    RequesterLoad,
    ended,
    incoming_request,
    is_over,
    load_of,
    origin_of,
    parse_origin,
    status_for_requester,
    status_from_owner,
    tasks_of_job,
    withdrawn,
)
from coterie.kuscia.api.types.domain import DOMAINS, INTEROP_CONFIGS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob
from coterie.kuscia.api.types.log_request import (
    LOG_REQUESTS,
    OPEN,
    LogRequest,
    LogRequestPhase,
    LogRequestStatus,
    LogReview,
    Way,
)
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, PartnerPolicySpec
from coterie.kuscia.control.job_evidence import JobEvidence
from coterie.kuscia.control.task_logs import ApiTaskLogs
from coterie.kuscia.controllers.logrequest import plan
from coterie.kuscia.controllers.logrequest.excerpts import known_secrets, read_excerpt

BY_REQUESTER = "logrequest/requester"
_PLAIN = LOG_REQUESTS.as_dynamic


def by_requester(request: LogRequest) -> tuple[str, ...]:
    """Incoming requests, by the control plane that asks."""
    if request.metadata.namespace != request.spec.owner:
        return ()
    return (parse_origin(request)[1] or request.spec.requester,)


class LogRequestReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        logs: TaskLogs | None,
        events: EventRecorder,
        clock: Clock,
        evidence: JobEvidence | None = None,
    ) -> None:
        """`logs`: instead of those that the API server has. `evidence`: None: nothing is recorded."""
        self._evidence = evidence
        self._client = client
        self._logs = logs
        self._events = events
        self._clock = clock
        self.requests = informers.get(LOG_REQUESTS)
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)
        self.policies = informers.get(PARTNER_POLICIES)
        self.configs = informers.get(INTEROP_CONFIGS)
        self.requests.cache.add_index(BY_REQUESTER, by_requester)
        self._log = logger("controllers.logrequest")

    async def reconcile(self, key: ObjectKey) -> Result:
        request = self.requests.cache.by_key(key)
        if request is None or request.metadata.deleting:
            return DONE
        if not self._ours(key.namespace):
            step = plan.mirror(request, self._clock.now())
            if step.delete:
                await self._delete(request)
            return Result(after=step.after)
        if request.spec.requester == key.namespace:
            return await self._outgoing(request)
        if request.spec.owner == key.namespace:
            return await self._incoming(request)
        words = f"neither requester nor owner is {key.namespace}, in whose namespace it is"
        if not is_over(request.status):
            await self._write(request, ended(request.status, LogRequestPhase.REJECTED, words, self._clock.now()))
        return DONE

    # The requester's side.

    async def _outgoing(self, request: LogRequest) -> Result:
        spec, now = request.spec, self._clock.now()
        job = self._job(spec.job)
        owner = self.domains.cache.get(spec.owner)
        followed = {config.spec.host for config in self.configs.cache}
        way = plan.way_of(
            is_own(owner),
            master_of(spec.owner, owner),
            job is not None and self._ours(job.spec.initiator),
            followed,
        )
        mine = self.requests.cache.list(spec.requester)
        opened = sum(each.status.phase in OPEN - {""} and each.spec.requester == spec.requester for each in mine)
        step = plan.outgoing(request, job, owner is not None, opened, way, now)
        if step.delete:
            await self._delete(request)
            return DONE
        if await self._write(request, step.status):
            return DONE  # its own event brings us back
        if request.status.way == Way.LOCAL:
            await self._hand_over(request)
        return Result(after=step.after)

    async def _hand_over(self, request: LogRequest) -> None:
        """Between two domains of ours."""
        spec, meta = request.spec, request.metadata
        incoming = self.requests.cache.get(meta.name, spec.owner)
        origin = origin_of(Way.LOCAL, spec.requester, meta.uid)
        if incoming is None:
            if request.status.phase != LogRequestPhase.PENDING:
                return
            body = incoming_request(meta.name, replace(spec, review=None), origin)
            try:
                await self._client.create(_PLAIN, body)
            except (AlreadyExists, NotFound):
                return  # the cache is behind, or the namespace is on its way
            return
        if parse_origin(incoming) != (Way.LOCAL, spec.requester, meta.uid):
            words = f"{spec.owner} has another log request of the name {meta.name}; make one with another name"
            await self._write(request, ended(request.status, LogRequestPhase.REJECTED, words, self._clock.now()))
            return
        there = status_for_requester(incoming.status)
        await self._write(request, status_from_owner(request, there, self._clock.now()))

    # The owner's side.

    async def _incoming(self, request: LogRequest) -> Result:
        spec, now = request.spec, self._clock.now()
        way, control_plane, uid = parse_origin(request)
        if way == Way.LOCAL and not is_over(request.status):
            original = self.requests.cache.get(request.metadata.name, spec.requester)
            if original is None or original.metadata.uid != uid or is_over(original.status):
                await self._write(request, withdrawn(request.status, spec.requester, now))
                return DONE
        job, policy = self._job(spec.job), self._policy(spec.requester)
        load = self._load(request, control_plane or spec.requester)
        step = plan.incoming(request, job, load, policy, now)
        if step.delete:
            await self._delete(request)
            return DONE
        if step.read and job is not None:
            step = await self._previewed(request, step.status, job, policy, load)
        if await self._write(request, step.status) and is_over(step.status):
            await self._delete_surplus(control_plane or spec.requester)
        return Result(after=step.after)

    async def _previewed(
        self,
        request: LogRequest,
        before: LogRequestStatus,
        job: KusciaJob,
        policy: PartnerPolicySpec | None,
        load: RequesterLoad,
    ) -> plan.RequestStep:
        spec, review = request.spec, request.spec.review or LogReview()
        own_rules = (policy.logs.redact if policy is not None and policy.logs is not None else None) or ()
        redactor = Redactor(await known_secrets(self._client, spec.owner, job), (*own_rules, *(review.redact or ())))
        logs = self._logs or ApiTaskLogs(self._client, (spec.owner,))
        tasks = tasks_of_job(job, self.tasks.cache)
        preview = await read_excerpt(logs, spec, job, tasks, redactor, self._clock.now(), review.generation)
        decision = plan.decide(policy, spec, job, tasks, load)
        return plan.previewed(request, before, preview, decision, policy, self._clock.now())

    def _load(self, request: LogRequest, control_plane: str) -> RequesterLoad:
        others = self.requests.cache.by_index(BY_REQUESTER, control_plane)
        return load_of((each for each in others if each.metadata.uid != request.metadata.uid), self._clock.now())

    async def _delete_surplus(self, control_plane: str) -> None:
        for each in plan.surplus(self.requests.cache.by_index(BY_REQUESTER, control_plane), self._clock.now()):
            await self._delete(each)

    # Both.

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    def _job(self, name: str) -> KusciaJob | None:
        return self.jobs.cache.get(name, CROSS_DOMAIN)

    def _policy(self, requester: str) -> PartnerPolicySpec | None:
        """The requester's own, else that of its control plane."""
        for name in (requester, master_of(requester, self.domains.cache.get(requester))):
            if (found := self.policies.cache.get(name)) is not None:
                return found.spec
        return None

    async def _write(self, request: LogRequest, status: LogRequestStatus) -> bool:
        """What happened is an event and a log line besides, so that it is known after the record is gone. No line leaves before it is
        evidence."""
        if self._evidence is not None and request.metadata.namespace == request.spec.owner:
            await self._evidence.ensure(plan.recorded_events(request, status))
        if not await write_status(self._client, LOG_REQUESTS, request, request.status, status):
            return False
        if status.phase != request.status.phase:
            spec = request.spec
            self._log.info(
                "Log request changed",
                request=str(request.key),
                requester=spec.requester,
                owner=spec.owner,
                job=spec.job,
                phase=status.phase,
                by=status.decided_by,
                digest=status.digest,
                reason=spec.reason,
            )
            reference = reference_to(request, api_version=LOG_REQUESTS.resource.api_version, kind="LogRequest")
            self._events.normal(reference, status.phase, status.message)
        return True

    async def _delete(self, request: LogRequest) -> None:
        meta = request.metadata
        try:
            await self._client.delete(LOG_REQUESTS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    def keys_of_counterpart(self, request: LogRequest) -> list[ObjectKey]:
        """The other end of a request between two domains of ours."""
        spec, name = request.spec, request.metadata.name
        ends = (spec.requester, spec.owner)
        return [ObjectKey(each, name) for each in ends if each != request.metadata.namespace and self._ours(each)]


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder,
    evidence: JobEvidence | None = None,
    logs: TaskLogs | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    reconciler = LogRequestReconciler(client, informers, logs, events, clock, evidence)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.requests, own_key),
        Watches(reconciler.requests, reconciler.keys_of_counterpart),
        *(
            Watches(informer, lambda _: ())
            for informer in (
                reconciler.jobs,
                reconciler.tasks,
                reconciler.domains,
                reconciler.policies,
                reconciler.configs,
            )
        ),
    ]
    return Controller("logrequest", reconciler.reconcile, watches, workers=1, clock=clock)
