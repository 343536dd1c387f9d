"""Carries out jobs: reads a job with its tasks, asks `plan.py` what is next, and does it.

A job that ended is not looked at again until it is old enough to be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from typing import Any

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.ids import uid4
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey, controller_of, find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.deferred import Deferred, earliest
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.preconditions import preconditions, write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, domain_bandwidth
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import (
    EngineVersion,
    LocalEngine,
    engine_named,
    local_engines,
    node_digests,
    parse_pins,
    version_of,
)
from coterie.kuscia.api.evidence import NOT_RECORDED, EvidenceError
from coterie.kuscia.api.jobs.conditions import WAITING
from coterie.kuscia.api.jobs.phases import JOB_ENDED, JOB_NEW, JOB_UNSUCCESSFUL, TASK_ENDED
from coterie.kuscia.api.jobs.recorded_events import events_of_job, task_ended, task_started
from coterie.kuscia.api.jobs.references import ungranted
from coterie.kuscia.api.jobs.retries import TASK_STOPPED
from coterie.kuscia.api.jobs.task_results import result_values, results_by_task
from coterie.kuscia.api.jobs.trace_context import job_trace
from coterie.kuscia.api.partner_policy import ALLOWED, AdmissionDecision, admit
from coterie.kuscia.api.partner_requests import job_request, version_allowed, versions_allowed
from coterie.kuscia.api.types.data import (
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_RECORDS,
    DOMAIN_DATAS,
    DomainData,
    DomainDataGrant,
)
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, Domain
from coterie.kuscia.api.types.job import (
    APP_IMAGES,
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    KUSCIA_TASKS,
    AppImage,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobStatus,
    KusciaTask,
    PartyTaskStatus,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.api.types.partner_policy import PartnerPolicy, PartnerPolicySpec
from coterie.kuscia.api.waiting import WaitReason
from coterie.kuscia.control.job_evidence import JobEvidence
from coterie.kuscia.control.job_metrics import JobMetrics
from coterie.kuscia.control.log_facts import facts_of_job
from coterie.kuscia.control.nodes_of_domains import NodesOfDomains
from coterie.kuscia.control.partner_quotas import PartnerQuotas
from coterie.kuscia.control.task_counters import TASK_COUNTERS
from coterie.kuscia.control.task_witnesses import START, TaskWitnesses
from coterie.kuscia.controllers.kusciajob import launch, statements
from coterie.kuscia.controllers.kusciajob.image_choices import ImageChoices
from coterie.kuscia.controllers.kusciajob.plan import (
    EVIDENCE_RETRY,
    WITNESS_RETRY,
    JobView,
    Plan,
    evidence_missing,
    only_informs,
    plan_until_settled,
    task_refused,
    tasks_taken,
    update_refused,
    witness_missing,
)
from coterie.kuscia.controllers.kusciajob.settled_jobs import SettledJobs, is_settled
from coterie.kuscia.controllers.kusciajob.statements import PreparedStatement, StatementFacts

BY_JOB = "kusciajob/job"
BY_NAMED = "kusciajob/named"
BY_TASK = "kusciajob/task"
_RETENTION = 720 * 3600.0


def by_job(task: KusciaTask) -> tuple[str, ...]:
    uid = (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID, "")
    return (uid,) if uid else ()


def by_named(job: KusciaJob) -> tuple[str, ...]:
    """Everything whose coming may end a job's waiting, while it is new."""
    if job.status.phase not in JOB_NEW:
        return ()
    return (
        *sorted({job.spec.initiator, *job.spec.party_domains}),
        *sorted({f"image/{engine_named(task.app_image)}" for task in job.spec.tasks}),
    )


class KusciaJobReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        *,
        requires_approval: bool | None,
        quotas: PartnerQuotas,
        retention: float,
        shows: bool,
        events: EventRecorder | None,
        clock: Clock,
        metrics: JobMetrics | None = None,
        evidence: JobEvidence | None = None,
        witnesses: TaskWitnesses | None = None,
    ) -> None:
        self._evidence = evidence
        self._witnesses = witnesses
        self._quotas = quotas
        self._client = client
        self._shows = shows
        self._requires_approval = requires_approval
        self._retention = retention
        self._events = events
        self._metrics = metrics or JobMetrics()
        self._clock = clock
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)
        self.images = informers.get(APP_IMAGES)
        self._choices = ImageChoices(self.images)
        self.nodes = informers.get(NODES)
        self._nodes_of = NodesOfDomains(self.nodes).of
        self.routes = informers.get(DOMAIN_ROUTES)
        self.datas = informers.get(DOMAIN_DATAS)
        self.grants = informers.get(DOMAIN_DATA_GRANTS)
        self.results = informers.get(DOMAIN_DATA_RECORDS) if evidence is not None else None
        if self.results is not None:
            self.results.cache.add_index(BY_TASK, results_by_task)
        self.policies = quotas.policies
        informed = (
            self.tasks,
            self.domains,
            self.images,
            self.nodes,
            self.routes,
            self.datas,
            self.grants,
            self.policies,
        )
        self._read = [each.cache for each in informed]
        self._settled = SettledJobs(clock)
        self.tasks.cache.add_index(BY_JOB, by_job)
        self.jobs.cache.add_index(BY_NAMED, by_named)
        self._first_seen: dict[str, float] = {}
        self.jobs.add_handler(self._saw)
        self._later: Deferred[str] = Deferred(clock)
        self._log = logger("controllers.kusciajob")

    async def reconcile(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        if job is None or job.metadata.deleting:
            self._settled.forget(key)
            if job is not None:
                self._later.clear(job.metadata.uid)
            return DONE  # its tasks have an owner, and go with it
        if job.status.completion_time and (left := self._until_removal(job)) is not None and left <= 0:
            return await self._remove(job)
        if (same := self._settled.result(job, self._facts())) is not None:
            return same
        try:
            return await self._carry_on(job)
        except EvidenceError as problem:
            # The log may be on a disk of its own: the status can be written all the same.
            await self._write(job, evidence_missing(rfc3339(self._clock.now()), job.status, str(problem)))
            return Result(after=EVIDENCE_RETRY)

    async def _carry_on(self, job: KusciaJob) -> Result:
        """Raises EvidenceError when the next step cannot be recorded."""
        facts = self._facts()
        view = self._view(job)
        wanted = plan_until_settled(view)
        if wanted.mark is not None or wanted.name_tasks:
            marked = await self._update(view, wanted)
            if marked is None:
                return DONE
            job = marked
            view = self._view(job)
            wanted = plan_until_settled(view)
            if wanted.mark is not None or wanted.name_tasks:
                return DONE  # its own event brings us back
        status, again = await self._act(view, wanted)
        after = again if again is not None else self._next_check(job, wanted)
        if only_informs(job.status, status):
            left = self._later.wait(job.metadata.uid)
            if left is not None:
                return Result(after=earliest(left, after))
        self._later.clear(job.metadata.uid)
        written = await self._write(job, status)
        if wanted.start_again:
            await self._start_again(job)
        if written is not None and is_settled(view, wanted, status):
            self._settled.note(written, facts, after)
        return Result(after=after)

    def _facts(self) -> tuple[int, ...]:
        """Changes when anything does that a look at a job reads, the job itself left out."""
        return tuple(cache.changes for cache in self._read)

    def _view(self, job: KusciaJob) -> JobView:
        tasks = {task.metadata.name: task for task in self.tasks.cache.by_index(BY_JOB, job.metadata.uid)}
        ids = {template.task_id for template in job.spec.tasks if template.task_id}
        there = {name for name in ids if self.tasks.cache.get(name, CROSS_DOMAIN) is not None}
        named = {job.spec.initiator, *job.spec.party_domains}
        engines = self._engines(job)
        images = self._images(job)
        prepared = self._statements(job, engines, images)
        return JobView(
            job=job,
            domains={name: found for name in named if (found := self.domains.cache.get(name)) is not None},
            images=images,
            ungranted=self._ungranted(job, images),
            bandwidth=self._bandwidth(job),
            tasks=tasks,
            foreign_tasks=frozenset(there - tasks.keys()),
            admission=self._admission(job, images),
            age=self._age(job),
            now=rfc3339(self._clock.now()),
            statements={party: each.statement for party, each in prepared.items()},
            tables={party: each.tables for party, each in prepared.items()},
            engines=engines,
            shows=self._shows,
        )

    def _bandwidth(self, job: KusciaJob) -> dict[str, DomainBandwidth]:
        if job.status.phase not in JOB_NEW:
            return {}
        ours = [name for name in job.spec.party_domains if is_own(self.domains.cache.get(name))]
        return {name: domain_bandwidth(name, self._nodes_of(name), self.routes.cache.list(name)) for name in ours}

    def _ungranted(self, job: KusciaJob, images: Mapping[str, AppImage]) -> tuple[str, ...]:
        if job.status.phase not in JOB_NEW:
            return ()
        ours = sorted(
            name for name in {*job.spec.party_domains} - {job.spec.initiator} if is_own(self.domains.cache.get(name))
        )
        datas = {name: self.datas.cache.list(name) for name in ours}
        given = {name: self.grants.cache.list(name) for name in ours}
        return ungranted(job.spec, ours, datas, given, self._clock.now(), images)

    def _images(self, job: KusciaJob) -> dict[str, AppImage]:
        """All by name, and by what the job's tasks write the newest that may be used for it here."""
        named = {template.app_image for template in job.spec.tasks}
        ours = next((name for name in job.spec.party_domains if is_own(self.domains.cache.get(name))), "")
        found = self._choices.images(named, self._engine_pins(ours))
        for text in named:
            if offered := self._versions(ours, text, job):
                found[text] = offered[0].image
        if not (policy := self._policy(job)):
            return found
        # What a partner may not use it is not told of: messages about versions that are missing list those that are there.
        return {
            name: image
            for name, image in found.items()
            if name in named or not version_of(image).version or version_allowed(policy, version_of(image))
        }

    def _policy(self, job: KusciaJob) -> PartnerPolicySpec | None:
        """Of the partner that began the job."""
        initiator = job.spec.initiator
        policy = self._quotas.policy_of(initiator) if self._quotas.is_partner(initiator) else None
        return policy.spec if policy is not None else None

    def _engine_pins(self, party: str) -> dict[str, str]:
        domain = self.domains.cache.get(party)
        annotations = (domain.metadata.annotations or {}) if domain is not None else {}
        return parse_pins(annotations.get(labels.COTERIE_ENGINE_PINS, ""))

    def _versions(self, party: str, text: str, job: KusciaJob) -> tuple[EngineVersion, ...]:
        """What a domain of ours may use for the job, the newest first."""
        return versions_allowed(self._policy(job), self._choices.versions(text, self._engine_pins(party)))

    def _engines(self, job: KusciaJob) -> dict[tuple[str, str], tuple[LocalEngine, ...]]:
        """What our domains offer for each task, until the job's parties have agreed."""
        if job.status.phase not in JOB_NEW and job.status.phase != JobPhase.AWAITING_APPROVAL:
            return {}
        out: dict[tuple[str, str], tuple[LocalEngine, ...]] = {}
        for party in job.spec.party_domains:
            if not is_own(self.domains.cache.get(party)):
                continue
            digests = node_digests(party, self._nodes_of(party))
            tasks = [task for task in job.spec.tasks if any(each.domain_id == party for each in task.parties)]
            offers = {
                text: local_engines(self._versions(party, text, job), digests)
                for text in {task.app_image for task in tasks}
            }
            out |= {(party, task.alias): offers[task.app_image] for task in tasks}
        return out

    def _statements(
        self,
        job: KusciaJob,
        engines: Mapping[tuple[str, str], Sequence[LocalEngine]],
        images: Mapping[str, AppImage],
    ) -> dict[str, PreparedStatement]:
        """What our parties say of their part, as long as they did not. Raises EvidenceError."""
        if job.status.phase not in JOB_NEW and job.status.phase != JobPhase.AWAITING_APPROVAL:
            return {}
        stated = job.status.party_statements or {}
        named = {job.spec.initiator, *job.spec.party_domains}
        facts = StatementFacts(
            images=images,
            engines={key: tuple(each.offer for each in found) for key, found in engines.items()},
            datas=self.datas.cache.list,
            grants=self.grants.cache.list,
            now=self._clock.now(),
            log=self._evidence,
        )
        return {
            party: statements.prepare(party, job.spec, facts)
            for party in sorted(named)
            if party not in stated and is_own(self.domains.cache.get(party))
        }

    def _admission(self, job: KusciaJob, images: Mapping[str, AppImage]) -> AdmissionDecision:
        """What the policy says to a partner's job that is new or waits for approval."""
        initiator = job.spec.initiator
        waits = job.status.phase in JOB_NEW or job.status.phase == JobPhase.AWAITING_APPROVAL
        if not waits or not self._quotas.is_partner(initiator):
            return ALLOWED
        ours = {name for name in job.spec.party_domains if is_own(self.domains.cache.get(name))}
        tables = {
            name: {data.metadata.name for data in self.datas.cache.list(name) if data.spec.author == name}
            for name in ours
        }
        policy = self._quotas.policy_of(initiator)
        asked = job_request(job.spec, ours, images, tables)
        return admit(self._requires_approval, policy.spec if policy is not None else None, asked, self._clock.now())

    def _saw(self, change: ObjectChange[KusciaJob]) -> None:
        """Not when it is first looked at: of many that come at once the last are as old by then as they have to be."""
        job = change.object
        if change.type == "deleted" or job.status.phase not in JOB_NEW:
            self._first_seen.pop(job.metadata.uid, None)
        else:
            self._first_seen.setdefault(job.metadata.uid, self._clock.monotonic())

    def _age(self, job: KusciaJob) -> float:
        if job.status.phase not in JOB_NEW:
            return 0.0
        now = self._clock.monotonic()
        return now - self._first_seen.setdefault(job.metadata.uid, now)

    # Doing.

    async def _update(self, view: JobView, wanted: Plan) -> KusciaJob | None:
        """The job with its new metadata and task ids; None when it is gone, or failed because they were refused."""
        try:
            return await self._mark(view.job, wanted.mark or {}, wanted.name_tasks)
        except NotFound:
            return None
        except ApiError as error:
            if NOT_RECORDED in (why := status_message(error)):
                raise EvidenceError(why.partition(f"{NOT_RECORDED}: ")[2] or why) from error
            if outlook(error) is not Outlook.LASTING:
                raise
            await self._write(view.job, update_refused(view, status_message(error)))
            return None

    async def _act(self, view: JobView, wanted: Plan) -> tuple[KusciaJobStatus, float | None]:
        """Everything but the status, which it answers, with the seconds after which a refused task is tried again."""
        for task in wanted.stop:
            await self._stop(task, view)
        for task in wanted.delete:
            await self._delete(task)
        if wanted.delete and view.stage is not JobStage.RESTART:
            TASK_COUNTERS.retries += len(wanted.delete)
        status = wanted.status
        # What was agreed on in this very step holds for the tasks that begin in it.
        view = replace_fields(view, job=replace(view.job, status=status))
        await self._record(view, wanted)
        for template in wanted.create:
            if (missing := await self._witness(view, template)) is not None:
                return witness_missing(view, status, template.alias, missing), WITNESS_RETRY
            problem = await self._create(view, template)
            if problem is not None:
                message = f"Task {template.alias} cannot be created: {status_message(problem)}"
                return task_refused(view, status, message, lasting=outlook(problem) is Outlook.LASTING)
            status = replace(
                status, task_status={**(status.task_status or {}), template.task_id: str(TaskPhase.PENDING)}
            )
        return tasks_taken(view, status) if wanted.create else status, None

    async def _record(self, view: JobView, wanted: Plan) -> None:
        """What is planned is on disk when it returns; only then may it happen. Raises EvidenceError."""
        if self._evidence is None:
            return
        job = view.job
        # A partner's answer takes effect with the tasks that begin, or with the job's end: it is recorded together with that, if the follower
        # of events did not do so meanwhile.
        at_once = bool(wanted.create) or job.status.phase in JOB_ENDED
        requests = [
            each
            for each in events_of_job(job, view.tables)
            if at_once or not each.event.partner or each.event.partner in view.own_parties
        ]
        requests += [task_started(job, each, view.agreement(each), view.own_parties) for each in wanted.create]
        requests += [
            ended for task in view.tasks.values() if (ended := task_ended(task, self._results(task))) is not None
        ]
        await self._evidence.ensure(requests)

    def _results(self, task: KusciaTask) -> tuple[str, ...]:
        if self.results is None:
            return ()
        found = self.results.cache.by_index(BY_TASK, task.metadata.name)
        owners = sorted({each.metadata.namespace for each in found})
        return tuple(
            value
            for owner in owners
            for value in result_values([each for each in found if each.metadata.namespace == owner])
        )

    async def _witness(self, view: JobView, template: TaskTemplate) -> str | None:
        """Why the task must not begin yet."""
        if self._witnesses is None or not view.interconnected:
            return None
        parties = {party.domain_id for party in template.parties}
        return await self._witnesses.at_task(template.task_id, parties, START)

    async def _create(self, view: JobView, template: TaskTemplate) -> ApiError | None:
        """The refusal, unless it is transient."""
        body = launch.task_of(view, template, view.agreement(template).digest)
        try:
            await self._client.create(KUSCIA_TASKS.as_dynamic, body)
        except AlreadyExists:
            return None  # the cache is behind, or another job's task came first: the next look tells
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            return error
        return None

    async def _stop(self, task: KusciaTask, view: JobView) -> None:
        own = set(view.own_parties)
        party_statuses = tuple(
            replace(party, phase=TaskPhase.FAILED)
            if party.domain_id in own and party.phase not in TASK_ENDED
            else party
            for party in task.status.party_task_status
            or (PartyTaskStatus(domain_id=each.domain_id, role=each.role) for each in task.spec.parties)
        )
        stopped = replace(
            task.status,
            phase=TaskPhase.FAILED,
            reason=TASK_STOPPED,
            message="Job was stopped",
            party_task_status=party_statuses,
            last_reconcile_time=view.now,
        )
        await write_status(self._client, KUSCIA_TASKS, task, task.status, stopped)

    async def _delete(self, task: KusciaTask) -> None:
        meta = task.metadata
        try:
            await self._client.delete(KUSCIA_TASKS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    async def _mark(self, job: KusciaJob, mark: Object, aliases: tuple[str, ...]) -> KusciaJob:
        """The job with this metadata and ids for these tasks."""
        patch: dict[str, Any] = {"metadata": {**mark, **preconditions(job)}}
        if aliases:
            patch |= await self._names(job, aliases)
        return await self._client.patch(KUSCIA_JOBS, job.metadata.name, job.metadata.namespace, patch)

    async def _names(self, job: KusciaJob, aliases: tuple[str, ...]) -> Object:
        """The list is written whole: a merge patch cannot reach into it."""
        plain = await self._client.get(KUSCIA_JOBS.as_dynamic, job.metadata.name, job.metadata.namespace)
        named = [
            {**task, "taskID": launch.task_id(job.metadata.name, uid4()[-12:])}
            if task["alias"] in aliases and not task.get("taskID")
            else task
            for task in plain["spec"]["tasks"]
        ]
        return {"spec": {"tasks": named}}

    async def _start_again(self, job: KusciaJob) -> None:
        version = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
        following = str(int(version) + 1 if version.isdigit() else 1)
        start_labels = {labels.KUSCIA_JOB_STAGE: str(JobStage.START), labels.KUSCIA_JOB_STAGE_VERSION: following}
        await self._client.patch(
            KUSCIA_JOBS,
            job.metadata.name,
            job.metadata.namespace,
            {"metadata": {"uid": job.metadata.uid, "labels": start_labels}},
        )

    async def _write(self, job: KusciaJob, status: KusciaJobStatus) -> KusciaJob | None:
        """The job as written."""
        if changes(job.status, status) is None:
            return None
        status = replace(status, last_reconcile_time=rfc3339(self._clock.now()))
        written = await write_status(self._client, KUSCIA_JOBS, job, job.status, status)
        if written is None:
            return None
        if status.phase != job.status.phase:
            self._record_event(job, status)
        self._record_waiting(job, status)
        return written

    def _record_waiting(self, job: KusciaJob, status: KusciaJobStatus) -> None:
        """An event when the job begins to wait for a person of ours, for a retry or for room; not for each attempt."""
        before = find_condition(job.status.conditions, WAITING)
        now = find_condition(status.conditions, WAITING)
        if self._events is None or now is None or (before is not None and before.reason == now.reason):
            return
        asks_us = now.reason == WaitReason.APPROVAL and any(
            is_own(self.domains.cache.get(party)) for party in now.message.split(", ")
        )
        if asks_us or now.reason in (WaitReason.RETRY, WaitReason.QUOTA):
            resource = KUSCIA_JOBS.resource
            about = reference_to(job, api_version=resource.api_version, kind=resource.kind)
            self._events.normal(about, WAITING, status.message)

    def _record_event(self, job: KusciaJob, status: KusciaJobStatus) -> None:
        log = self._log.bind(job=job.metadata.name, phase=status.phase, trace_id=job_trace(job))
        log.info("Job phase changed", why=status.message)
        self._metrics.jobs.ended(status.phase)
        # The status says how a job goes on; an event of its own is for what somebody should look at.
        if self._events is None or status.phase not in JOB_UNSUCCESSFUL:
            return
        resource = KUSCIA_JOBS.resource
        about = reference_to(job, api_version=resource.api_version, kind=resource.kind)
        self._events.warning(about, status.phase, status.message or f"The job is {status.phase}")

    def phase_to_reconcile(self, key: ObjectKey) -> str | None:
        """For metrics; None: the job is gone or ended, and there is nothing to do."""
        job = self.jobs.cache.by_key(key)
        return None if job is None or job.status.completion_time else job.status.phase

    # Time.

    def _until_removal(self, job: KusciaJob) -> float | None:
        ended = parse_time(job.status.completion_time)
        if ended is None or self._retention <= 0:
            return None
        return self._retention - (self._clock.now() - ended).total_seconds()

    async def _remove(self, job: KusciaJob) -> Result:
        meta = job.metadata
        self._log.info("An old job is removed", job=meta.name, ended=job.status.completion_time)
        try:
            await self._client.delete(KUSCIA_JOBS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return DONE
        return DONE

    def _next_check(self, job: KusciaJob, wanted: Plan) -> float | None:
        if wanted.after is not None:
            return wanted.after
        return self._until_removal(job) if job.status.completion_time else None

    # Whom a change concerns.

    def keys_of_task(self, task: KusciaTask) -> list[ObjectKey]:
        owner = controller_of(task.metadata)
        return [ObjectKey(CROSS_DOMAIN, owner.name)] if owner is not None else []

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        return [job.key for job in self.jobs.cache.by_index(BY_NAMED, domain.metadata.name)]

    def keys_of_data(self, data: DomainData | DomainDataGrant) -> list[ObjectKey]:
        return [job.key for job in self.jobs.cache.by_index(BY_NAMED, data.metadata.namespace)]

    def keys_of_image(self, image: AppImage) -> list[ObjectKey]:
        names = {image.metadata.name, version_of(image).engine}
        found = (self.jobs.cache.by_index(BY_NAMED, f"image/{name}") for name in sorted(names))
        return [job.key for jobs in found for job in jobs]

    def keys_of_policy(self, policy: PartnerPolicy) -> list[ObjectKey]:
        return [
            job.key
            for job in self.jobs.cache.list()
            if job.status.phase == JobPhase.AWAITING_APPROVAL and self._quotas.concerned(policy, job.spec.initiator)
        ]


def make(
    client: Client,
    informers: Informers,
    *,
    requires_approval: bool | None = False,
    quotas: PartnerQuotas | None = None,
    retention: float = _RETENTION,
    shows: bool = True,
    events: EventRecorder | None = None,
    metrics: JobMetrics | None = None,
    evidence: JobEvidence | None = None,
    witnesses: TaskWitnesses | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`requires_approval`: jobs of partners wait until a user approves them; None: their policies decide, and False: where
    they have none, the jobs are accepted. `retention`: seconds after which an ended
    job is removed; 0 keeps them. `evidence`: the log without which nothing begins; None: nothing is recorded. `witnesses`: of that log. `shows`: the interconnection runs beside, and takes the finalizer off that it needs."""
    metrics = metrics or JobMetrics()
    reconciler = KusciaJobReconciler(
        client,
        informers,
        requires_approval=requires_approval,
        quotas=quotas or PartnerQuotas(informers),
        retention=retention,
        shows=shows,
        events=events,
        metrics=metrics,
        clock=clock,
        evidence=evidence,
        witnesses=witnesses,
    )
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.jobs, own_key),
        Watches(reconciler.tasks, reconciler.keys_of_task),
        Watches(reconciler.domains, reconciler.keys_of_domain),
        Watches(reconciler.images, reconciler.keys_of_image),
        Watches(reconciler.datas, reconciler.keys_of_data),
        Watches(reconciler.grants, reconciler.keys_of_data),
        Watches(reconciler.policies, reconciler.keys_of_policy),
    ]
    reconcile = metrics.jobs.timed(reconciler.reconcile, reconciler.phase_to_reconcile, clock)
    return Controller(
        "kusciajob",
        reconcile,
        watches,
        workers=workers,
        clock=clock,
        log_facts=lambda key: facts_of_job(key.name, reconciler.jobs.cache.by_key(key)),
    )
