"""One evidence log for a control plane of several members: whoever leads holds it, the others record through the store.

    member without the log ──record──> /evidence/pending/ID ──> holder records, deletes the key ──> the member goes on
    holder: every signed head ──> /evidence/head, /evidence/logs/NUMBER, before anybody is shown it

A member that takes over begins the next log, whose first event names the last head in the store: for partners' witnesses that is
a log that was opened anew, and nothing is rolled back. Heads are written with compare-and-swap, so a leader of before cannot sign on
behind the back of the next one. What was recorded and not signed when a member was lost is in that member's file only.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.store.protocol import (
    CompareFailed,
    DeleteOp,
    PutOp,
    SlowWatcher,
    Store,
    StoreError,
    StoreEvent,
    StoreRecord,
)
from coterie.kuscia.api.evidence import EventRequest, EvidenceError
from coterie.kuscia.evidence.shared_witness import SharedWitnessRows

log = logger("evidence.shared")

ROOT = "/evidence/"
HEAD, LOGS, PENDING = f"{ROOT}head", f"{ROOT}logs/", f"{ROOT}pending/"
WAIT_SECONDS = 15.0
"""For the holder's answer: a little more than it takes until another member leads."""
_RETRY_SECONDS = 1.0
_REFUSED = b"!"
"""Before the holder's reason, in place of a request that it could not record."""
_decoder = msgspec.json.Decoder(tuple[EventRequest, ...])

Record = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True)
class InheritedLog:
    """What the store knows of the logs before: the last head, and the introductions of all."""

    head: str
    introductions: tuple[bytes, ...]


class SharedEvidence:
    """The evidence in one store, as one member sees it. The store is open while anything here is called."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._head_revision = 0
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._subscribed = False

    # ---- of the holder ----

    def witness_rows(self) -> SharedWitnessRows:
        """What all members that led know as witnesses of partners."""
        return SharedWitnessRows(self._store)

    async def inherited(self) -> InheritedLog:
        """Raises EvidenceError."""
        try:
            found = await self._store.get(HEAD)
            logs = (await self._store.scan(LOGS)).records
        except StoreError as problem:
            raise EvidenceError(f"the heads of earlier logs cannot be read: {problem}") from problem
        self._head_revision = found.revision if found is not None else 0
        return InheritedLog(found.value.decode() if found is not None else "", tuple(each.value for each in logs))

    async def publish(self, number: int, introduction: bytes, head: str) -> None:
        """Before anybody is shown this head. Raises EvidenceError, also where another member holds the log now."""
        ops = [PutOp(HEAD, head.encode(), self._head_revision), PutOp(f"{LOGS}{number:09d}", introduction)]
        try:
            self._head_revision = (await self._store.commit(ops))[0]
        except CompareFailed as problem:
            raise EvidenceError("another member of the control plane holds the evidence log now") from problem
        except StoreError as problem:
            raise EvidenceError(f"the signed head cannot be kept in the store: {problem}") from problem

    async def serve(self, record: Record) -> None:
        """Record what other members ask for, until this is cancelled."""
        while True:
            try:
                async with TaskOwner("evidence-requests") as owner:
                    page = await self._store.scan(PENDING)
                    for each in page.records:
                        owner.start(each.key, self._answer(each, record), vital=False)
                    async for batch in self._store.watch(PENDING, page.revision):
                        for event in batch:
                            if event.value is not None and not event.value.startswith(_REFUSED):
                                asked = StoreRecord(event.key, event.value, event.revision, event.created)
                                owner.start(event.key, self._answer(asked, record), vital=False)
            except (StoreError, SlowWatcher) as problem:
                log.debug("Requests of other members are read again", reason=str(problem))
            await self._clock.sleep(_RETRY_SECONDS)

    async def _answer(self, asked: StoreRecord, record: Record) -> None:
        if asked.value.startswith(_REFUSED):
            return
        try:
            await record(*_decoder.decode(asked.value))
            done: PutOp | DeleteOp = DeleteOp(asked.key, asked.revision)
        except msgspec.DecodeError:
            done = PutOp(asked.key, _REFUSED + b"the request cannot be read; upgrade all members", asked.revision)
        except EvidenceError as problem:
            done = PutOp(asked.key, _REFUSED + str(problem).encode(), asked.revision)
        try:
            await self._store.commit([done])
        except CompareFailed:
            pass  # who asked has given up
        except StoreError as problem:
            log.warning("Another member is not told that its event was recorded", reason=str(problem))

    # ---- of the others ----

    async def record(self, requests: Sequence[EventRequest]) -> None:
        """By whoever holds the log; on disk there when it returns. Raises EvidenceError."""
        if not self._subscribed:
            self._store.subscribe(self._on_events)
            self._subscribed = True
        key = f"{PENDING}{uuid.uuid4().hex}"
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answered
        try:
            await self._store.commit([PutOp(key, msgspec.json.encode(requests), 0)])
            problem = await self._within(answered)
        except StoreError as failure:
            raise EvidenceError(f"the member that holds the evidence log cannot be asked: {failure}") from failure
        finally:
            del self._waiting[key]
        if problem:
            await self._withdraw(key)
            raise EvidenceError(problem)

    async def _within(self, answered: asyncio.Future[Any]) -> str:
        limit: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(WAIT_SECONDS))
        try:
            await asyncio.wait({answered, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
        if answered.done():
            return str(answered.result())
        return (
            f"no member of the control plane recorded it within {WAIT_SECONDS:g} s; `coterie status` shows which one leads, "
            "its log says more"
        )

    async def _withdraw(self, key: str) -> None:
        try:
            await self._store.commit([DeleteOp(key)])
        except StoreError as problem:  # recorded after all, or the store is away: it says that somebody tried
            log.debug("A request to record stays in the store", reason=str(problem))

    def _on_events(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            waiting = self._waiting.get(event.key)
            if waiting is None or waiting.done():
                continue
            if event.value is None:
                waiting.set_result("")
            elif event.value.startswith(_REFUSED):
                waiting.set_result(event.value.removeprefix(_REFUSED).decode(errors="replace"))
