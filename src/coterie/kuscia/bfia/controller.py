"""Jobs with partners that speak BFIA: sends what `exchange.py` says, and writes what the partners answer.

KusciaJobs, KusciaTasks, TaskResources ─▶ exchange.py ─▶ BfiaCalls ─▶ status of jobs and tasks, phases of reservations
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.meta import Condition, ObjectKey, set_condition
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.control.preconditions import write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, DOMAINS
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    KUSCIA_TASKS,
    KusciaJob,
    KusciaTask,
    PartyTaskStatus,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, ReservationPhase, TaskResource
from coterie.kuscia.bfia import exchange, wire
from coterie.kuscia.bfia.answers import is_bfia
from coterie.kuscia.bfia.client import BfiaAnswer, BfiaCalls
from coterie.kuscia.bfia.exchange import AGAIN_SECONDS, POLL_SECONDS, STATUS_SECONDS, BfiaCall
from coterie.kuscia.bfia.wire import BfiaRefused, JobRequest
from coterie.kuscia.control.task_resources import move_reservation

BY_GROUP = "bfia/group"
_FINALIZER = labels.FINALIZER_INTERCONN


def by_group(reservation: TaskResource) -> tuple[str, ...]:
    name = (reservation.metadata.annotations or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP, "")
    return (name,) if name else ()


class BfiaReconciler:
    def __init__(self, client: Client, informers: Informers, calls: BfiaCalls, clock: Clock) -> None:
        self._client = client
        self._calls = calls
        self._clock = clock
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)
        self.reservations = informers.get(TASK_RESOURCES)
        self.reservations.cache.add_index(BY_GROUP, by_group)
        self._since: dict[tuple[str, str, str, str], float] = {}
        """When an exchange began, or a partner last answered: by uid, partner, path and role."""
        self._asked: dict[tuple[str, str, str, str], float] = {}
        """When something was last asked for."""
        self._unwritten: dict[tuple[str, str, str, str], tuple[BfiaAnswer, bool]] = {}
        """Answers that no status has yet."""
        self._log = logger("bfia")

    # Jobs.

    async def reconcile_job(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        if job is None or not is_bfia(job):
            return DONE
        if not self._ours(job.spec.initiator):
            return await self._ask_initiator(job)
        partners = [party for party in job.spec.party_domains if self._speaks_bfia(party)]
        try:
            calls = exchange.job_calls(job, partners)
        except BfiaRefused as problem:
            self._log.warning("A job cannot be told to BFIA partners", job=key.name, why=problem)
            return DONE
        if job.metadata.deleting and not calls:
            await self._let_go(job)
            return DONE
        if any(call.path == wire.JOB_CREATE for call in calls) and not exchange.create_begun(job):
            self._since[job.metadata.uid, "", wire.JOB_CREATE, ""] = self._clock.monotonic()
            begun = Condition(type=exchange.CREATE_BEGUN, status="True", reason="", message="")
            conditions = set_condition(job.status.conditions, begun, rfc3339(self._clock.now()))
            await write_status(self._client, KUSCIA_JOBS, job, job.status, replace(job.status, conditions=conditions))
            return DONE  # its own event brings us back
        return await self._tell(job, calls)

    async def _tell(self, job: KusciaJob, calls: tuple[BfiaCall, ...]) -> Result:
        status, again = job.status, False
        uid = job.metadata.uid
        for call in calls:
            place = (uid, call.partner, call.path, "")
            # Another process of ours may have sent it: then nothing of it is known here.
            tried = place in self._since or (uid, "", wire.JOB_CREATE, "") not in self._since
            began = self._since.setdefault(place, self._clock.monotonic())
            answer, tried = self._unwritten.get(place) or (await self._call(job.metadata.name, call), tried)
            after = exchange.job_answered(job, status, call, answer, self._clock.monotonic() - began, tried=tried)
            if after is None:
                again = True
                continue
            # Somebody else may write the status first: then we come back with this answer.
            self._unwritten[place] = answer, tried
            status = after
        await write_status(self._client, KUSCIA_JOBS, job, job.status, status)
        for call in calls:
            self._unwritten.pop((uid, call.partner, call.path, ""), None)
        if not calls:
            self._forget(uid, job.status.completion_time is not None)
        return Result(after=AGAIN_SECONDS) if again else DONE

    async def _call(self, job: str, call: BfiaCall) -> BfiaAnswer:
        answer = await self._calls.call(call.partner, call.path, call.message)
        self._note(job, call, answer)
        return answer

    def _note(self, job: str, call: BfiaCall, answer: BfiaAnswer) -> None:
        if answer.ok:
            self._log.info("A BFIA partner accepted", job=job, partner=call.partner, path=call.path)
        else:
            self._log.warning(
                "A BFIA partner did not accept",
                job=job,
                partner=call.partner,
                path=call.path,
                code=answer.code,
                why=answer.message,
            )

    async def _let_go(self, job: KusciaJob) -> None:
        meta = job.metadata
        self._forget(meta.uid, True)
        if meta.has_finalizer(_FINALIZER):
            await remove_finalizer(self._client, KUSCIA_JOBS, meta.name, meta.namespace, _FINALIZER, uid=meta.uid)

    def _forget(self, uid: str, ended: bool) -> None:
        if ended:
            for place in [each for each in (*self._since, *self._asked, *self._unwritten) if each[0] == uid]:
                self._since.pop(place, None)
                self._asked.pop(place, None)
                self._unwritten.pop(place, None)

    async def _ask_initiator(self, job: KusciaJob) -> Result:
        """A participant learns from the initiator how the parts of others are."""
        uid, initiator = job.metadata.uid, job.spec.initiator
        if not exchange.asks_status(job) or job.metadata.deleting:
            self._forget(uid, True)
            return DONE
        place = (uid, initiator, wire.JOB_STATUS, "")
        if (pause := self._pause(place, STATUS_SECONDS)) > 0:
            return Result(after=pause)
        answer = await self._calls.call(initiator, wire.JOB_STATUS, JobRequest(job_id=job.metadata.name))
        silent = self._silence(place, answered=answer.ok)
        names = [template.task_id for template in job.spec.tasks if template.task_id]
        tasks = {name: task for name in names if (task := self.tasks.cache.get(name, CROSS_DOMAIN)) is not None}
        own = {each.metadata.name for each in self.domains.cache.list() if is_own(each)}
        for name, parties in exchange.others_after_status(job, tasks, own, answer, silent).items():
            await self._write_parties(tasks[name], parties)
        return Result(after=STATUS_SECONDS)

    # Tasks.

    async def reconcile_task(self, key: ObjectKey) -> Result:
        task = self.tasks.cache.by_key(key)
        if task is None or (task.metadata.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE) != BFIA_PROTOCOL:
            return DONE
        kept = self.reservations.cache.by_index(BY_GROUP, key.name)
        if not self._ours(task.spec.initiator):
            await self._go_ahead(task, kept)
            return DONE
        job = self.jobs.cache.get((task.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, ""), CROSS_DOMAIN)
        if job is None:
            return DONE
        partners = {party.domain_id for party in task.spec.parties if self._speaks_bfia(party.domain_id)}
        phases = {each.metadata.namespace: each.status.phase for each in kept if each.metadata.namespace in partners}
        calls = exchange.task_calls(job, task, partners, phases)
        if not calls:
            self._forget(task.metadata.uid, task.status.phase in TASK_ENDED)
            return DONE
        pauses: list[float] = []
        updates: list[PartyTaskStatus] = []
        for call in calls:
            pauses.append(await self._send(task, call, kept, updates))
        await self._write_parties(task, tuple(updates))
        return Result(after=min(pauses))

    async def _send(
        self, task: KusciaTask, call: BfiaCall, kept: Sequence[TaskResource], updates: list[PartyTaskStatus]
    ) -> float:
        """The seconds after which the next is due."""
        place = (task.metadata.uid, call.partner, call.path, call.role)
        if (pause := self._pause(place, POLL_SECONDS)) > 0:
            return pause
        answer = await self._calls.call(call.partner, call.path, call.message)
        silent = self._silence(place, answered=answer.ok and call.path == wire.TASK_POLL)
        if call.path == wire.TASK_START:
            self._note(task.metadata.name, call, answer)
            if answer.ok:
                await self._reserved(call.partner, kept)
            found = exchange.party_after_start(call, answer)
        elif call.path == wire.TASK_STOP:
            self._note(task.metadata.name, call, answer)
            found = exchange.party_after_stop(call, answer, silent)
        else:
            found = exchange.party_after_poll(call, answer, silent)
        updates += [found] if found is not None else []
        return POLL_SECONDS

    async def _reserved(self, partner: str, kept: Sequence[TaskResource]) -> None:
        now = rfc3339(self._clock.now())
        for each in kept:
            if each.metadata.namespace == partner and each.status.phase != ReservationPhase.RESERVED:
                words = f"{partner} started the task"
                await move_reservation(self._client, each, ReservationPhase.RESERVED, words, now)

    async def _go_ahead(self, task: KusciaTask, kept: Sequence[TaskResource]) -> None:
        """BFIA's initiator starts a task when it is ready itself, and says nothing more."""
        now = rfc3339(self._clock.now())
        for each in kept:
            if each.status.phase == ReservationPhase.RESERVED and self._ours(each.metadata.namespace):
                words = f"{task.spec.initiator} started the task"
                await move_reservation(self._client, each, ReservationPhase.SCHEDULABLE, words, now)

    async def _write_parties(self, task: KusciaTask, updates: tuple[PartyTaskStatus, ...]) -> None:
        merged = exchange.with_parties(task.status.party_task_status, updates)
        await write_status(
            self._client, KUSCIA_TASKS, task, task.status, replace(task.status, party_task_status=merged)
        )

    # Small things.

    def _pause(self, place: tuple[str, str, str, str], every: float) -> float:
        """Seconds until it may be asked for again; 0: now."""
        now = self._clock.monotonic()
        last = self._asked.get(place)
        if last is not None and now - last < every:
            return every - (now - last)
        self._asked[place] = now
        return 0.0

    def _silence(self, place: tuple[str, str, str, str], *, answered: bool) -> float:
        """Seconds since the last answer, or since the first question."""
        now = self._clock.monotonic()
        if answered:
            self._since[place] = now
        return now - self._since.setdefault(place, now)

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    def _speaks_bfia(self, name: str) -> bool:
        domain = self.domains.cache.get(name)
        return domain is not None and domain.partner and domain.protocol == BFIA_PROTOCOL


def reservation_key(reservation: TaskResource) -> list[ObjectKey]:
    return [ObjectKey(CROSS_DOMAIN, name) for name in by_group(reservation)]


def make(
    client: Client, informers: Informers, calls: BfiaCalls, *, workers: int = 4, clock: Clock
) -> list[Controller[ObjectKey]]:
    made = BfiaReconciler(client, informers, calls, clock)
    tasks: list[Watches[Any, ObjectKey]] = [Watches(made.tasks, own_key), Watches(made.reservations, reservation_key)]

    def tasks_of(job: KusciaJob) -> list[ObjectKey]:
        """A partner that started the job may start its tasks."""
        if not is_bfia(job):
            return []
        return [ObjectKey(CROSS_DOMAIN, each.task_id) for each in job.spec.tasks if each.task_id]

    tasks.append(Watches(made.jobs, tasks_of))
    return [
        Controller("bfia-jobs", made.reconcile_job, [Watches(made.jobs, own_key)], workers=workers, clock=clock),
        Controller("bfia-tasks", made.reconcile_task, tasks, workers=workers, clock=clock),
    ]
