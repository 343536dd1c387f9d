"""After a job: its initiator's control plane collects what each party says of the tasks, and all sign the same statements.

    initiator                                         partner
    job ended ─▶ tasks without envelopes ───────────▶ its parts: checkpoint, outcome, results
    statements made and signed ─────────────────────▶ checked against the own job, log and results ─▶ signed, kept
    signatures checked, kept ◀─────────────────────── its signatures

A partner that cannot be reached is asked again for some hours. Nothing waits for statements: the job has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.http.messages import Response
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own, is_partner, master_of
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.evidence_exchange import STATEMENTS_PATH, StatementsAnswer, StatementsRequest
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.jobs.task_results import result_values, results_by_task
from coterie.kuscia.api.types.data import DOMAIN_DATA_RECORDS
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.evidence import domain_log, task_statements
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.job_events import JobEvents
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.evidence.signed_notes import NoteError, NoteKey, SignedNote, open_checkpoint
from coterie.kuscia.evidence.task_statements import StatementEnvelope, StatementPart
from coterie.kuscia.evidence.witness_exchange import PartnerTransport

log = logger("evidence.statements")

BY_TASK = "evidence/task"
SETTLE_SECONDS = 1.0
"""After a job's end: its partners end it a moment later."""
_FIRST_PAUSE, _LONGEST_PAUSE, _MOST_TRIES = 2.0, 1800.0, 16
_MOST_TASKS = 128


class PartnerSilent(Exception):
    """A partner cannot sign yet; the message says why."""


class StatementExchange:
    def __init__(
        self,
        service: EvidenceService,
        events: JobEvents,
        informers: Informers,
        transport: PartnerTransport,
        clock: Clock,
    ) -> None:
        self._service = service
        self._events = events
        self._transport = transport
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self._domains = informers.get(DOMAINS)
        self._results = informers.get(DOMAIN_DATA_RECORDS)
        self._results.cache.add_index(BY_TASK, results_by_task)
        self._clock = clock
        self._tries: dict[str, int] = {}
        self._done: dict[str, None] = {}

    # As the initiator's control plane.

    async def reconcile(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        if job is None or job.status.phase not in JOB_ENDED or not self._ours(job.spec.initiator):
            return DONE
        run = f"{job.metadata.uid}/{job.status.completion_time}"
        if run in self._done:
            return DONE
        tries = self._tries.setdefault(run, 0)
        if tries == 0:
            self._tries[run] = 1
            return Result(after=SETTLE_SECONDS)
        try:
            await self._make(job)
        except (PartnerSilent, EvidenceError, NoteError) as problem:
            self._tries[run] = tries + 1
            log.info("Statements of a job are not signed by all", job=key.name, why=problem, tries=tries)
            if tries >= _MOST_TRIES:
                self._finished(run)
                return DONE
            return Result(after=min(_FIRST_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE))
        self._finished(run)
        return DONE

    def _finished(self, run: str) -> None:
        self._tries.pop(run, None)
        self._done[run] = None
        while len(self._done) > 10_000:
            del self._done[next(iter(self._done))]

    async def _make(self, job: KusciaJob) -> None:
        """Raises PartnerSilent, EvidenceError and NoteError."""
        used = self._usable()
        tasks = [task for task in self._ended_tasks(job) if not await self._is_complete(used, task)]
        if not tasks:
            return
        masters = self._partners(job)
        parts = {task.metadata.name: await self._own_parts(used, job, task) for task in tasks}
        ours = {name for name, each in parts.items() if each}
        agreed = {task.metadata.name: _agreement(task) for task in tasks}
        for partner in masters:
            answer = await self._ask(partner, StatementsRequest(job=job.metadata.name, tasks=agreed))
            for name in parts.keys() & answer.parts.keys():
                parts[name] |= self._parts_of(partner, job, answer.parts[name])
        made = {
            name: task_statements.unsigned(job.metadata.name, name, agreed[name], each)
            for name, each in parts.items()
            if each
        }
        # Who began the job need not take part in each of its tasks; only parties sign.
        made |= {name: task_statements.signed_by(made[name], used.signer) for name in ours}
        await self._keep_all(used, made)
        for round_ in range(2 if len(masters) > 1 else 1):  # the second tells all of them the signatures of the others
            for partner in masters:
                request = StatementsRequest(
                    job=job.metadata.name,
                    tasks=agreed,
                    envelopes={name: each.encode().decode() for name, each in made.items()},
                )
                answer = await self._ask(partner, request)
                if round_ == 0:
                    made = {name: _merged(each, answer.envelopes.get(name, "")) for name, each in made.items()}
                    await self._keep_all(used, made)

    def _parts_of(self, partner: str, job: KusciaJob, theirs: Mapping[str, Any]) -> dict[str, StatementPart]:
        """What a partner says of its own parties. Raises PartnerSilent and NoteError."""
        allowed, stated = self._of(partner, job), job.status.party_statements or {}
        out: dict[str, StatementPart] = {}
        for party in sorted(allowed & theirs.keys()):
            try:
                part = msgspec.convert(theirs[party], StatementPart)
            except (msgspec.ValidationError, RecursionError):
                raise PartnerSilent(f"{partner} answered with something else") from None
            key = NoteKey.parse(part.key)
            if domain_log.domain_of(key.name) != partner:
                raise NoteError(f"{partner} names the log {key.name}, which is not its own")
            known = stated[party].verifier_key if party in stated else ""
            if known.partition("+")[0] == key.name and known != part.key:
                raise NoteError(f"{partner} names another key of its log than the one that it stated with the job")
            open_checkpoint(part.checkpoint, key)
            out[party] = part
        return out

    async def _keep_all(self, used: DomainLog, made: Mapping[str, StatementEnvelope]) -> None:
        for name, each in made.items():
            await used.file.keep_statement(name, each.encode())

    async def _ask(self, partner: str, request: StatementsRequest) -> StatementsAnswer:
        answer = await self._transport.post(partner, STATEMENTS_PATH, msgspec.json.encode(request))
        if answer.status != 200:
            raise PartnerSilent(f"{partner}: {answer.problem}")
        try:
            return msgspec.json.decode(answer.body, type=StatementsAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise PartnerSilent(f"{partner} answered with something else") from None

    async def _is_complete(self, used: DomainLog, task: KusciaTask) -> bool:
        kept = await used.file.statement(task.metadata.name)
        if kept is None:
            return False
        found = task_statements.check_statement(kept)
        return not found.missing and found.predicate.agreement == _agreement(task)

    # As a partner's.

    async def answer(self, caller: str, body: bytes) -> Response:
        """Raises EvidenceError, and msgspec.DecodeError."""
        request = msgspec.json.decode(body, type=StatementsRequest)
        job = self.jobs.cache.get(request.job, CROSS_DOMAIN)
        if job is None or _host(job) != caller or len(request.tasks) > _MOST_TASKS:
            return _refusal(404, "there is no such job of yours")
        used = self._usable()
        known = {task.metadata.name: task for task in self._ended_tasks(job)}
        parts: dict[str, dict[str, Any]] = {}
        envelopes: dict[str, str] = {}
        for name, agreed in request.tasks.items():
            task = known.get(name)
            if task is None:
                return _refusal(409, f"task {name[:100]} has not ended here")
            if not agreed or agreed != _agreement(task):
                return _refusal(409, f"task {name[:100]} was agreed otherwise here")
            own = await self._own_parts(used, job, task)
            if (shown := request.envelopes.get(name)) is None:
                parts[name] = msgspec.to_builtins(own)
                continue
            try:
                signed = self._signed(used, job, task, own, shown.encode())
            except NoteError as problem:
                log.warning("A statement was not signed", partner=caller, task=name, why=problem)
                return _refusal(422, str(problem))
            await used.file.keep_statement(name, signed.encode())
            envelopes[name] = signed.encode().decode()
        return Response(200, msgspec.json.encode(StatementsAnswer(parts=parts, envelopes=envelopes)))

    def _signed(
        self, used: DomainLog, job: KusciaJob, task: KusciaTask, own: Mapping[str, StatementPart], shown: bytes
    ) -> StatementEnvelope:
        """With our signature. Raises NoteError where it says of us, or of the task, what we do not say."""
        found = task_statements.check_statement(shown)
        says = found.predicate
        if (says.job, says.task, says.agreement) != (job.metadata.name, task.metadata.name, _agreement(task)):
            raise NoteError("the statement is about another task")
        statements = job.status.party_statements or {}
        for party, part in says.parties.items():
            ours = own.get(party)
            if ours is not None and (part.key, part.outcome, part.results) != (ours.key, ours.outcome, ours.results):
                raise NoteError(f"the statement says of {party} what {party} did not say")
            if ours is None and (party not in statements or statements[party].verifier_key != part.key):
                raise NoteError(f"the key of {party} in the statement is not the one that it stated with the job")
        if not own.keys() <= says.parties.keys():
            raise NoteError("the statement leaves out a party")
        return task_statements.signed_by(found.envelope, used.signer) if own else found.envelope

    # Both.

    async def _own_parts(self, used: DomainLog, job: KusciaJob, task: KusciaTask) -> dict[str, StatementPart]:
        statements = job.status.party_statements or {}
        parties = [name for name in _parties(task) if name in statements and self._ours(name)]
        note = await used.checkpoint()
        shown = str(SignedNote(note.text, note.signatures[:1]))
        records = self._results.cache.by_index(BY_TASK, task.metadata.name)
        return {
            party: StatementPart(
                key=str(used.key),
                checkpoint=shown,
                outcome=str(task.status.phase),
                results=self._events.commitments(
                    result_values([each for each in records if each.metadata.namespace == party])
                ),
            )
            for party in parties
        }

    def _usable(self) -> DomainLog:
        if self._service.log is None:
            raise EvidenceError(self._service.problem)
        return self._service.log

    def _ended_tasks(self, job: KusciaJob) -> list[KusciaTask]:
        found = (self._tasks.cache.get(each.task_id, CROSS_DOMAIN) for each in job.spec.tasks if each.task_id)
        return [task for task in found if task is not None and task.status.phase in TASK_ENDED and _agreement(task)]

    def _partners(self, job: KusciaJob) -> list[str]:
        """Control planes of partners that give statements."""
        statements = job.status.party_statements or {}
        names = [name for name in job.spec.party_domains if name in statements and statements[name].verifier_key]
        return sorted({master_of(name, found) for name in names if is_partner(found := self._domains.cache.get(name))})

    def _of(self, partner: str, job: KusciaJob) -> set[str]:
        return {
            name
            for name in job.spec.party_domains
            if is_partner(found := self._domains.cache.get(name)) and master_of(name, found) == partner
        }

    def _ours(self, name: str) -> bool:
        return is_own(self._domains.cache.get(name))


def _merged(made: StatementEnvelope, shown: str) -> StatementEnvelope:
    """With the signatures of the answer. Raises NoteError, PartnerSilent."""
    if not shown:
        raise PartnerSilent("a partner did not sign")
    found = task_statements.check_statement(shown.encode())
    if found.envelope.payload != made.payload:
        raise NoteError("a partner signed something else")
    return task_statements.with_signatures(made, found.envelope.signatures)


def _agreement(task: KusciaTask) -> str:
    return (task.metadata.annotations or {}).get(labels.COTERIE_AGREEMENT, "")


def _host(job: KusciaJob) -> str:
    return (job.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN, "")


def _parties(task: KusciaTask) -> Sequence[str]:
    return tuple(dict.fromkeys(each.domain_id for each in task.spec.parties))


def _refusal(status: int, sentence: str) -> Response:
    return Response(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8")


def make(exchange: StatementExchange, clock: Clock) -> Controller[ObjectKey]:
    return Controller(
        "evidence-statements", exchange.reconcile, [Watches(exchange.jobs, own_key)], workers=2, clock=clock
    )
