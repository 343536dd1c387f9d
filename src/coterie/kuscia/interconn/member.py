"""The partner's side: follows one host's jobs that we take part in, and tells the host how we are.

    host's cluster, namespace <us>          our cluster
    KusciaJob (mirror)  ──────────────────> KusciaJob (working copy), made once, ours to approve and to stop
    KusciaJobSummary    <───── words of our domains ─────  its status
                        ───── words of the others ──────>
    KusciaTaskSummary   ───── its name is the task's id ─> the job's task ids, from which our tasks are made
                        <───── our parties, reservations ─ KusciaTask, TaskResources

All writing between the two is done by us; the host never calls. When the host cannot be reached everything here goes on
with what is known, and catches up later.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError
from coterie.kube.api.meta import ObjectKey, find_condition
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.deferred import Deferred
from coterie.kube.control.finalizers import delete_with_finalizer, remove_finalizer
from coterie.kube.control.preconditions import write, write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.job_agreement import DIGEST_LENGTH
from coterie.kuscia.api.jobs.conditions import RESTARTED
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.partner_requests import PartnerRequestError, job_taken
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOB_SUMMARIES,
    KUSCIA_JOBS,
    KUSCIA_TASK_SUMMARIES,
    KUSCIA_TASKS,
    JobStage,
    JobSummarySpec,
    KusciaJob,
    KusciaJobSummary,
    KusciaTask,
    KusciaTaskSummary,
    PartyTaskStatus,
    TaskPhase,
    TaskSummaryStatus,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.interconn import job_mirror
from coterie.kuscia.interconn.host import BY_GROUP, by_group
from coterie.kuscia.interconn.reservations import exchange, member_step

FINALIZER = labels.FINALIZER_INTERCONN
BY_JOB = "interconn/job"
AWAY = Policy(first=0.1, factor=2.0, limit=3.0, jitter=0.3)
"""Pauses before a host that cannot be reached is tried again. Jobs of both sides wait for that, so they stay short."""


def by_job(summary: KusciaTaskSummary) -> tuple[str, ...]:
    return (summary.spec.job_id,)


class MemberReconciler:
    """`host`: the partner's control plane; `namespace`: ours in its cluster."""

    def __init__(
        self,
        host: str,
        namespace: str,
        remote: Client,
        remote_informers: Informers,
        local: Client,
        local_informers: Informers,
        clock: Clock,
        *,
        states: bool,
    ) -> None:
        self._states = states
        self._host, self._namespace = host, namespace
        self._remote, self._local = remote, local
        self._clock = clock
        self.mirrors = remote_informers.get(KUSCIA_JOBS.as_dynamic, namespace)
        self.job_summaries = remote_informers.get(KUSCIA_JOB_SUMMARIES, namespace)
        self.task_summaries = remote_informers.get(KUSCIA_TASK_SUMMARIES, namespace)
        self.jobs = local_informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = local_informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = local_informers.get(DOMAINS)
        self.reservations = local_informers.get(TASK_RESOURCES)
        self.task_summaries.cache.add_index(BY_JOB, by_job)
        self.reservations.cache.add_index(BY_GROUP, by_group)
        self._later: Deferred[ObjectKey] = Deferred(clock)
        self._log = logger("interconn.member").bind(host=host)

    # Jobs.

    async def reconcile_job(self, key: ObjectKey) -> Result:
        shown = self.mirrors.cache.get(key.name, self._namespace)
        summary = self.job_summaries.cache.get(key.name, self._namespace)
        job = self.jobs.cache.get(key.name, CROSS_DOMAIN)
        if job is not None and not self._follows(job):
            if shown is not None and summary is not None:
                await self._refuse(summary, shown, f'{self._namespace} has another job named "{key.name}"')
            return DONE
        if shown is None and summary is None:
            if job is not None:
                await self._withdraw_copy(job)
            return DONE
        if job is None:
            if shown is not None and summary is not None and self._should_run(summary):
                await self._copy(shown, summary)
            return DONE
        if job.metadata.deleting:
            await self._stop_for_all(job, summary)
            return DONE
        if summary is not None:
            await self._exchange(job, summary)
        return DONE

    def _follows(self, job: KusciaJob) -> bool:
        return (job.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN) == self._host

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    @staticmethod
    def _should_run(summary: KusciaJobSummary) -> bool:
        """A job that is over, or was stopped (also by us, who then deleted our copy), is not begun here any more."""
        over = bool(summary.status.completion_time) or summary.status.phase in JOB_ENDED
        return not over and summary.spec.stage not in (JobStage.STOP, JobStage.CANCEL)

    async def _copy(self, shown: dict[str, Any], summary: KusciaJobSummary) -> None:
        try:
            taken = job_taken(shown.get("spec"))
            ours = [party for party in taken.party_domains if self._ours(party)]
            body = job_mirror.working_copy(shown, self._host, self._namespace, ours, summary.status.party_statements)
        except PartnerRequestError as problem:
            await self._refuse(summary, shown, str(problem))
            return
        initiator = taken.initiator
        if fault := job_mirror.initiator_fault(initiator, self.domains.cache.get(initiator), self._host):
            await self._refuse(summary, shown, fault)
            return
        body["metadata"]["finalizers"] = [FINALIZER]
        try:
            await self._local.create(KUSCIA_JOBS.as_dynamic, body)
        except AlreadyExists:
            return  # the cache is behind
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            await self._refuse(summary, shown, status_message(error))
            return
        self._log.info("Accepted a partner's job", job=body["metadata"]["name"])

    async def _refuse(self, summary: KusciaJobSummary, shown: dict[str, Any], sentence: str) -> None:
        """The host waits for us: it is told that we cannot, and why."""
        marks = shown["metadata"].get("annotations") or {}
        asked = marks.get(labels.KUSCIA_INTERCONN_KUSCIA_PARTIES, "").split("_")
        parties = [party for party in asked if party]
        statuses = tuple(
            PartyTaskStatus(domain_id=party, phase=str(TaskPhase.FAILED), message=sentence) for party in parties
        )
        status = replace(
            summary.status,
            stage_status={**(summary.status.stage_status or {}), **dict.fromkeys(parties, JobStage.CREATE.failed)},
            party_task_create_status={
                **(summary.status.party_task_create_status or {}),
                summary.metadata.name: statuses,
            },
        )
        change = changes(summary.status, status)
        if change is not None:
            self._log.warning("A partner's job is refused", job=summary.metadata.name, why=sentence)
            await write(self._remote, KUSCIA_JOB_SUMMARIES, summary, {"status": change})

    async def _exchange(self, job: KusciaJob, summary: KusciaJobSummary) -> None:
        parties = job.spec.party_domains
        ours = tuple(party for party in parties if self._ours(party))
        others = tuple({*(party for party in parties if party not in ours), job.spec.initiator})
        if (ordered := job_mirror.newer_command_from(job, summary)) is not None:
            await write(self._local, KUSCIA_JOBS, job, {"metadata": {"labels": ordered}})
            return  # its own event brings us back with everything else
        named = self._task_ids(job)
        if named is not None:
            await self._name_tasks(job, named)
            return
        merged = job_mirror.job_status_from(job, summary.status, others)
        merged = job_mirror.with_attempts(merged, summary.status, job)
        if not job_mirror.only_confirms(job.status, merged):
            await write_status(self._local, KUSCIA_JOBS, job, job.status, merged)
        patch: dict[str, Any] = {}
        if (newer := job_mirror.newer_command_for(job, summary)) is not None:
            patch["metadata"] = {"labels": newer[0]}
            patch["spec"] = {"stage": newer[1].stage, "stageTrigger": newer[1].stage_trigger}
        status = changes(summary.status, job_mirror.member_status(merged, summary.status, ours, states=self._states))
        if status is not None:
            patch["status"] = status
        await write(self._remote, KUSCIA_JOB_SUMMARIES, summary, patch)

    def _task_ids(self, job: KusciaJob) -> dict[str, str] | None:
        """By alias, the ids that the initiator gave and our job does not have yet."""
        given = {
            summary.spec.alias: summary.metadata.name
            for summary in self.task_summaries.cache.by_index(BY_JOB, job.metadata.name)
            if not self._is_outdated(job, summary)
        }
        lacking = {task.alias: given[task.alias] for task in job.spec.tasks if task.alias in given and not task.task_id}
        return lacking or None

    @staticmethod
    def _is_outdated(job: KusciaJob, summary: KusciaTaskSummary) -> bool:
        """What is told of a task from before the last restart, unless it succeeded: then it is not begun anew."""
        if summary.status.phase == TaskPhase.SUCCEEDED:
            return False
        restarted = find_condition(job.status.conditions, RESTARTED)
        since = int(restarted.message) if restarted is not None and restarted.message.isdecimal() else 0
        return job_mirror.version_of(summary.metadata.labels) < since

    async def _name_tasks(self, job: KusciaJob, named: dict[str, str]) -> None:
        plain = await self._local.get(KUSCIA_JOBS.as_dynamic, job.metadata.name, job.metadata.namespace)
        tasks = [
            {**task, "taskID": named[task["alias"]]} if task["alias"] in named and not task.get("taskID") else task
            for task in plain["spec"]["tasks"]
        ]
        version = plain["metadata"]["resourceVersion"]
        # Which of the host's tasks they are goes with the names, so that our tasks are made with it.
        uids = {
            summary.metadata.name: uid
            for summary in self.task_summaries.cache.by_index(BY_JOB, job.metadata.name)
            if (uid := (summary.metadata.labels or {}).get(job_mirror.HOST_TASK_UID))
            and self.tasks.cache.get(summary.metadata.name, CROSS_DOMAIN) is None
        }
        meta: dict[str, Any] = {"uid": job.metadata.uid, "resourceVersion": version}
        agreed = {
            summary.metadata.name: digest[:DIGEST_LENGTH]
            for summary in self.task_summaries.cache.by_index(BY_JOB, job.metadata.name)
            if (digest := (summary.metadata.annotations or {}).get(labels.COTERIE_AGREEMENT))
        }
        annotations = {labels.COTERIE_HOST_TASK_UIDS: uids, labels.COTERIE_HOST_AGREEMENTS: agreed}
        if marks := {key: msgspec.json.encode(each).decode() for key, each in annotations.items() if each}:
            meta["annotations"] = marks
        patch = {"metadata": meta, "spec": {"tasks": tasks}}
        await self._local.patch(KUSCIA_JOBS, job.metadata.name, job.metadata.namespace, patch)

    async def _withdraw_copy(self, job: KusciaJob) -> None:
        """The host withdrew the job."""
        self._log.info("A partner's job was withdrawn", job=job.metadata.name)
        await delete_with_finalizer(self._local, KUSCIA_JOBS, job.metadata, FINALIZER)

    async def _stop_for_all(self, job: KusciaJob, summary: KusciaJobSummary | None) -> None:
        """Whoever deletes our copy stops the job: the others must not wait for us."""
        meta = job.metadata
        if not meta.has_finalizer(FINALIZER):
            return
        if summary is not None and self._should_run(summary):
            version = max(job_mirror.version_of(meta.labels), job_mirror.version_of(summary.metadata.labels)) + 1
            spec = JobSummarySpec(stage=str(JobStage.STOP), stage_trigger=self._namespace)
            patch = {
                "metadata": {"labels": {labels.KUSCIA_JOB_STAGE_VERSION: str(version)}},
                "spec": {"stage": spec.stage, "stageTrigger": spec.stage_trigger},
            }
            await write(self._remote, KUSCIA_JOB_SUMMARIES, summary, patch)
        await remove_finalizer(self._local, KUSCIA_JOBS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)

    # Tasks.

    async def reconcile_task(self, key: ObjectKey) -> Result:
        summary = self.task_summaries.cache.get(key.name, self._namespace)
        if summary is None:
            return DONE
        job = self.jobs.cache.get(summary.spec.job_id, CROSS_DOMAIN)
        if job is None or not self._follows(job) or self._is_outdated(job, summary):
            return DONE
        task = self.tasks.cache.get(key.name, CROSS_DOMAIN)
        if task is None:
            if job.status.phase in JOB_ENDED:
                why = f"the job ended here: {job.status.message or job.status.phase}"
                await self._report_failed(job, summary, why)
            return DONE
        if task.metadata.deleting or not self._of(task, job):
            return DONE
        about = (task.metadata.annotations or {}).get(job_mirror.HOST_TASK_UID)
        current = (summary.metadata.labels or {}).get(job_mirror.HOST_TASK_UID, "")
        if about is None:
            await write(
                self._local, KUSCIA_TASKS, task, {"metadata": {"annotations": {job_mirror.HOST_TASK_UID: current}}}
            )
        elif about == current:
            return Result(after=await self._exchange_task(task, summary))
        elif summary.status.phase not in TASK_ENDED:
            await self._begin_again(job, task, summary)
        return DONE

    async def _begin_again(self, job: KusciaJob, task: KusciaTask, summary: KusciaTaskSummary) -> None:
        """The host began the task anew, because it failed and is retried, or while we took it for done."""
        retries = job_mirror.retry_granted(job, task.metadata.name, summary.spec.alias)
        if retries is None:
            limit = "it was begun again as often as the job allows"
            await self._report_failed(job, summary, f"{self._namespace} does not begin the task again: {limit}")
            return
        # Noted before the task goes; and nobody may take the next one for the old one of the host.
        noted = {
            labels.COTERIE_TASK_RETRIES: msgspec.json.encode(retries).decode(),
            labels.COTERIE_HOST_TASK_UIDS: None,
        }
        await write(self._local, KUSCIA_JOBS, job, {"metadata": {"annotations": noted}})
        await self._local.delete(KUSCIA_TASKS, task.metadata.name, task.metadata.namespace, uid=task.metadata.uid)

    @staticmethod
    def _of(task: KusciaTask, job: KusciaJob) -> bool:
        return (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID) == job.metadata.uid

    async def _report_failed(self, job: KusciaJob, summary: KusciaTaskSummary, why: str) -> None:
        """We do not run this task, which the host may still be waiting for."""
        template = next((each for each in job.spec.tasks if each.alias == summary.spec.alias), None)
        if template is None or summary.status.phase in TASK_ENDED:
            return
        statuses = tuple(
            PartyTaskStatus(domain_id=party.domain_id, role=party.role, phase=str(TaskPhase.FAILED), message=why)
            for party in template.parties
            if self._ours(party.domain_id)
        )
        parties = job_mirror.parties_from(
            summary.status.party_task_status, statuses, [party.domain_id for party in statuses]
        )
        await self._write_task(summary, replace(summary.status, party_task_status=parties))

    async def _exchange_task(self, task: KusciaTask, summary: KusciaTaskSummary) -> float | None:
        """The seconds after which what is not told yet is due."""
        named = tuple(dict.fromkeys(party.domain_id for party in task.spec.parties))
        ours = tuple(party for party in named if self._ours(party))
        # Of a task that succeeded even our own words are taken back, which we may have forgotten by restarting.
        succeeded = summary.status.phase == TaskPhase.SUCCEEDED
        others = named if succeeded else tuple(party for party in named if party not in ours)
        merged = job_mirror.parties_from(task.status.party_task_status, summary.status.party_task_status, others)
        status = replace(task.status, party_task_status=merged)
        if summary.status.phase == TaskPhase.FAILED and task.status.phase not in TASK_ENDED and task.status.phase:
            status = job_mirror.fail_own(
                status, ours, f"the initiator ended the task: {summary.status.reason or 'failed'}"
            )
        there = summary.status
        reported = job_mirror.parties_from(there.party_task_status, status.party_task_status, ours)
        after = replace(there, party_task_status=reported) if not succeeded else there
        if not succeeded:
            first = job_mirror.HOST_TASK_UID in (summary.metadata.labels or {})
            after = await self._exchange_reservations(task, after, ours, first)
        # Before it has a phase its own controller has not listed the parties.
        changed_here = bool(task.status.phase) and status != task.status
        quiet_here = job_mirror.only_progress(task.status.party_task_status, status.party_task_status)
        quiet_there = (
            job_mirror.only_progress(there.party_task_status, reported)
            and after.resource_status == there.resource_status
        )
        pause = None
        if (changed_here and quiet_here) or (after != there and quiet_there):
            pause = self._later.wait(summary.key)
        if pause is None:
            self._later.clear(summary.key)
        if changed_here and (pause is None or not quiet_here):
            await write_status(self._local, KUSCIA_TASKS, task, task.status, status)
        if after != there and (pause is None or not quiet_there):
            await self._write_task(summary, after)
        return pause

    async def _exchange_reservations(
        self, task: KusciaTask, status: TaskSummaryStatus, ours: tuple[str, ...], first: bool
    ) -> TaskSummaryStatus:
        owned = self.reservations.cache.by_index(BY_GROUP, task.metadata.name)
        kept = [each for each in owned if each.metadata.namespace in ours]
        now = rfc3339(self._clock.now())
        reported = await exchange(
            self._local,
            kept,
            status.resource_status,
            partial(member_step, first=first),
            lambda _: "the initiator reported it",
            now,
        )
        return replace(status, resource_status=reported)

    async def _write_task(self, summary: KusciaTaskSummary, status: TaskSummaryStatus) -> None:
        change = changes(summary.status, status)
        if change is not None:
            await write(self._remote, KUSCIA_TASK_SUMMARIES, summary, {"status": change})

    # Whom a change concerns.

    def keys_of_mirror(self, shown: dict[str, Any]) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, shown["metadata"]["name"])]

    def keys_of_job(self, job: KusciaJob | KusciaJobSummary) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, job.metadata.name)]

    def jobs_of_task_summary(self, summary: KusciaTaskSummary) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, summary.spec.job_id)]

    def keys_of_task(self, task: KusciaTask | KusciaTaskSummary) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, task.metadata.name)]

    def tasks_of_job(self, job: KusciaJob) -> list[ObjectKey]:
        """A job that ended may have tasks that the host waits for."""
        if not self._follows(job):
            return []
        summaries = self.task_summaries.cache.by_index(BY_JOB, job.metadata.name)
        return [ObjectKey(CROSS_DOMAIN, summary.metadata.name) for summary in summaries]

    def keys_of_reservation(self, reservation: TaskResource) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, name) for name in by_group(reservation)]


def make(
    host: str,
    namespace: str,
    remote: Client,
    remote_informers: Informers,
    local: Client,
    local_informers: Informers,
    *,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
    states: bool = True,
) -> list[Controller[ObjectKey]]:
    """`states`: the job controller beside it writes statements of our domains; approvals are told with them."""
    member = MemberReconciler(host, namespace, remote, remote_informers, local, local_informers, clock, states=states)
    jobs: list[Watches[Any, ObjectKey]] = [
        Watches(member.mirrors, member.keys_of_mirror),
        Watches(member.job_summaries, member.keys_of_job),
        Watches(member.task_summaries, member.jobs_of_task_summary),
        Watches(member.jobs, member.keys_of_job),
    ]
    tasks: list[Watches[Any, ObjectKey]] = [
        Watches(member.task_summaries, member.keys_of_task),
        Watches(member.tasks, member.keys_of_task),
        Watches(member.reservations, member.keys_of_reservation),
        Watches(member.jobs, member.tasks_of_job),
    ]
    return [
        Controller(f"interconn-{host}-jobs", member.reconcile_job, jobs, workers=workers, clock=clock, retry=AWAY),
        Controller(f"interconn-{host}-tasks", member.reconcile_task, tasks, workers=workers, clock=clock, retry=AWAY),
    ]
