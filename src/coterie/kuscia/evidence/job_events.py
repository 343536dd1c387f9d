"""Events of jobs and tasks, each written once: by the job controller before they have an effect, by the follower where nobody did.

    job controller ─▶ ensure ─┐
    follower       ─▶ ensure ─┴─▶ not written yet? ─▶ the log

After a restart all objects come again; what the log has already is not written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.control.task_witnesses import END, TaskWitnesses
from coterie.kuscia.evidence.service import EvidenceService

_RECENT = 50_000
"""Events that are read at start: jobs of more than that are long gone."""

EventKey = tuple[str, str, str, str, int, str]
"""Kind, job, task, party, attempt, and the command that restarted the job: each is written once."""


def key_of(event: EvidenceEvent) -> EventKey:
    return event.kind, event.job, event.task, event.partner, event.count, event.more.get("run", "")


class JobEvents:
    """See JobEvidence."""

    def __init__(self, service: EvidenceService) -> None:
        self._service = service
        self.witnesses: TaskWitnesses | None = None
        """Asked when a task has ended; set before anything runs."""
        self._written: dict[EventKey, None] | None = None
        self._writing: dict[EventKey, asyncio.Future[None]] = {}
        self._reading = asyncio.Lock()

    @property
    def verifier_key(self) -> str:
        return str(self._service.log.key) if self._service.log is not None else ""

    def commitments(self, tables: Sequence[str]) -> tuple[str, ...]:
        used = self._service.log
        if used is None:
            raise EvidenceError(self._service.problem)
        return tuple(used.file.commit(each, evidence.TABLE).commitment for each in tables)

    def knows(self, request: EventRequest) -> bool:
        """Whether it was written, or is being written."""
        key = key_of(request.event)
        return key in self._writing or (self._written is not None and key in self._written)

    async def ensure(self, requests: Iterable[EventRequest]) -> None:
        written = await self._known()
        fresh: dict[EventKey, EventRequest] = {}
        others: dict[EventKey, asyncio.Future[None]] = {}
        for request in requests:
            key = key_of(request.event)
            if key in written:
                continue
            if key in self._writing:
                others[key] = self._writing[key]
            else:
                fresh[key] = request
        if fresh:
            await self._write(written, fresh)
            await self._ask_witnesses(fresh.values())
        for each in others.values():
            await asyncio.shield(each)

    async def _write(self, written: dict[EventKey, None], fresh: dict[EventKey, EventRequest]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writing |= dict.fromkeys(fresh, done)
        try:
            await self._service.record(*fresh.values())
        except BaseException as problem:
            failure = (
                problem if isinstance(problem, EvidenceError) else EvidenceError("the writer of the event was stopped")
            )
            done.set_exception(failure)
            done.exception()  # also where nobody else waits for it
            raise
        else:
            written |= dict.fromkeys(fresh)
            done.set_result(None)
            if len(written) > 2 * _RECENT:
                for old in list(written)[:_RECENT]:
                    del written[old]
        finally:
            for key in fresh:
                del self._writing[key]

    async def _ask_witnesses(self, requests: Iterable[EventRequest]) -> None:
        """What was recorded of the end of a task is in a checkpoint that its partners cosign. Of its beginning the job controller asks."""
        for request in requests:
            event = request.event
            if self.witnesses is not None and event.kind == evidence.TASK_ENDED:
                await self.witnesses.at_task(event.task, event.parties, END)

    async def _known(self) -> dict[EventKey, None]:
        """What the log has. EvidenceError while it cannot be used."""
        async with self._reading:
            if self._written is None:
                if self._service.log is None:
                    raise EvidenceError(self._service.problem)
                self._written = await asyncio.to_thread(self._read_recent)
            return self._written

    def _read_recent(self) -> dict[EventKey, None]:
        assert self._service.log is not None
        file = self._service.log.file
        return {
            key_of(evidence.decode(stored.body)): None
            for stored in file.events(max(0, file.size - _RECENT))
            if stored.body is not None
        }
