"""One exchange with one partner: our checkpoint goes there and comes back cosigned, and checkpoints of logs that both witness are compared.

introduce (once) ─▶ add-checkpoint ─200─▶ cosignature checked, kept with the checkpoint, recorded
                         │ 409: from the size that the partner has        404: introduce, once
                         └ 409 with more than we have, 422: is our own log older than what we signed? then it stops
heads ─▶ each checkpoint of a common log: connected with ours by a proof that its owner gives, or a finding
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.evidence_exchange import (
    ADD_CHECKPOINT_PATH,
    CONSISTENCY_PATH,
    HEADS_PATH,
    INTRODUCE_PATH,
    MAX_HEADS,
    Consistency,
    ConsistencyRequest,
    Heads,
    HeadsRequest,
    Introductions,
)
from coterie.kuscia.evidence import witness
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.evidence.signed_notes import (
    Checkpoint,
    NoteError,
    NoteSignature,
    SignedNote,
    decode_hashes,
    open_checkpoint,
    parse_signatures,
    verify_cosignature,
)
from coterie.kuscia.evidence.witness import PinnedLog
from coterie.kuscia.evidence.witness_inbox import PartnerLogs, own_introductions
from coterie.kuscia.evidence.witness_store import ExchangeState

log = logger("evidence.witness")

EXCHANGE_SECONDS = 10.0
"""For one exchange with all its messages."""
GOSSIP_SECONDS = 60.0
"""For all comparisons with one partner."""
_TRIES = 4
_REFUSED = (400, 403, 404, 405)
_PROBLEM_LENGTH = 300


@dataclass(frozen=True, slots=True)
class WitnessAnswer:
    status: int
    """0: there was no answer."""
    body: bytes = b""
    content_type: str = ""
    problem: str = ""


class PartnerTransport(Protocol):
    async def post(self, partner: str, path: str, body: bytes) -> WitnessAnswer:
        """Through the gateways. Never raises for what the partner does."""

    async def close(self) -> None: ...


class WitnessExchange:
    def __init__(self, service: EvidenceService, logs: PartnerLogs, transport: PartnerTransport, clock: Clock) -> None:
        self._service = service
        self._logs = logs
        self._store = logs.store
        self._transport = transport
        self._clock = clock

    async def exchange(self, partner: str) -> str:
        """Empty: the partner cosigned our log as it is now. Else a sentence that says why not. Never raises for what the partner does."""
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                problem = await self._cosigned_by(partner)
        except TimeoutError:
            problem = f"no answer within {EXCHANGE_SECONDS:g} s"
        except EvidenceError as failure:
            problem = str(failure)
        if problem:
            await self._keep_problem(partner, _printable(problem))
        return _printable(problem)

    async def _keep_problem(self, partner: str, problem: str) -> None:
        now = int(self._clock.now().timestamp())
        try:
            state = await asyncio.to_thread(self._store.exchange, partner)
            await asyncio.to_thread(self._store.keep_exchange, replace(state, tried=now, problem=problem))
        except EvidenceError as failure:
            log.error("The state of witnesses cannot be written", error=failure)

    async def _cosigned_by(self, partner: str) -> str:
        used = self._service.log
        if used is None:
            return "our own evidence log cannot be used"
        pinned = await asyncio.to_thread(self._store.current, partner)
        introduced = pinned is None
        if introduced and (why := await self._introduce(partner)):
            return why
        note = await used.checkpoint()
        head = Checkpoint.parse(note.text)
        state = await asyncio.to_thread(self._store.exchange, partner)
        old = state.size if state.origin == used.origin and state.size <= head.size else 0
        why = ""
        for _ in range(_TRIES):
            answer = await self._send(partner, used, note, old, head.size)
            if answer.status == 200:
                found = await self._checked(partner, note, answer.body)
                if isinstance(found, NoteSignature):
                    await self._keep(partner, used, head, found)
                    return ""
                why = found
                if introduced:
                    return why
                # It may have opened a new log, with another key.
            elif answer.status == 409:
                size = _size_of(answer)
                if size is None or size == old:
                    return f"{partner} answered 409 without a size that helps"
                if size > head.size:
                    return await self._own_log_doubted(partner, used, f"{partner} cosigned {size} events of our log")
                old = size
                continue
            elif answer.status == 422:
                return await self._own_log_doubted(partner, used, f"{partner} says that our log does not go on")
            elif answer.status not in (403, 404):
                return answer.problem or f"{partner} answered with status {answer.status}"
            if introduced:
                return why or answer.problem or f"{partner} does not witness our log (status {answer.status})"
            introduced, old = True, 0
            if why := await self._introduce(partner):
                return why
        return why or f"{partner} did not come to an answer"

    async def _send(self, partner: str, used: DomainLog, note: SignedNote, old: int, size: int) -> WitnessAnswer:
        proof = await asyncio.to_thread(used.file.consistency, old, size)
        # Who else cosigned is not for everybody.
        own = SignedNote(note.text, note.signatures[:1])
        return await self._transport.post(partner, ADD_CHECKPOINT_PATH, witness.request_body(old, proof, own))

    async def _checked(self, partner: str, note: SignedNote, body: bytes) -> NoteSignature | str:
        pinned = await asyncio.to_thread(self._store.current, partner)
        if pinned is None:
            return f"the log of {partner} is not known"
        key = witness.witness_key(pinned.key)
        try:
            for each in parse_signatures(body.decode()):
                if each.name == key.name and each.key_id == key.id:
                    verify_cosignature(note.text, each, key)
                    return each
        except (NoteError, UnicodeDecodeError) as problem:
            return f"the cosignature of {partner} cannot be used: {problem}"
        return f"{partner} did not cosign with the key of its log"

    async def _keep(self, partner: str, used: DomainLog, head: Checkpoint, cosignature: NoteSignature) -> None:
        event = EvidenceEvent(
            kind=evidence.CHECKPOINT_COSIGNED,
            partner=partner,
            checkpoint=(head.origin, str(head.size), head.root.hex()),
        )
        await self._service.record(EventRequest(event=event))
        await used.add_cosignatures(head.size, [cosignature])
        now = int(self._clock.now().timestamp())
        await asyncio.to_thread(
            self._store.keep_exchange, ExchangeState(partner, used.origin, head.size, cosigned=now, tried=now)
        )

    async def _introduce(self, partner: str) -> str:
        own = await own_introductions(self._service)
        answer = await self._transport.post(partner, INTRODUCE_PATH, msgspec.json.encode(own))
        if answer.status != 200:
            return answer.problem or f"{partner} has no witness for our log (status {answer.status})"
        try:
            shown = msgspec.json.decode(answer.body, type=Introductions)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return f"{partner} answered an introduction with something else"
        return await self._logs.introduced(partner, shown)

    async def _own_log_doubted(self, partner: str, used: DomainLog, why: str) -> str:
        """Only a checkpoint with our own signature counts: a partner cannot talk us out of our log."""
        for shown in await self._heads(partner, []):
            try:
                _, note = open_checkpoint(shown, used.key)
            except NoteError:
                continue
            if await used.contradicts(note):
                await self._service.rolled_back(note)
                return f"{why}: our own log was rolled back"
        return f"{why}, and shows no checkpoint of ours that proves it"

    # Logs that both witness.

    async def gossip(self, partner: str) -> None:
        """Compares what the partner was shown with what we were shown. Raises EvidenceError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOSSIP_SECONDS):
                await self._compare(partner)

    async def _compare(self, partner: str) -> None:
        known = await asyncio.to_thread(self._store.logs)
        by_origin = {each.origin: each for each in known if each.domain != partner and each.note}
        used = self._service.log
        for shown in await self._heads(partner, list(by_origin.values())):
            try:
                origin = Checkpoint.parse(SignedNote.parse(shown).text).origin
                # Of each log one: who shows many would have its owner asked many times.
                mine = by_origin.pop(origin, None)
                if mine is not None:
                    theirs, note = open_checkpoint(shown, mine.key)
                    # A log that was closed may be gone, and its owner said so when it opened the next one.
                    if mine.current or theirs.size == mine.size:
                        await self._connect(mine, theirs, note)
                elif used is not None and origin == used.origin:
                    _, note = open_checkpoint(shown, used.key)
                    if await used.contradicts(note):
                        await self._service.rolled_back(note)
            except NoteError as problem:
                log.warning("A partner showed a checkpoint that nobody signed", partner=partner, why=problem)

    async def _heads(self, partner: str, known: Sequence[PinnedLog]) -> tuple[str, ...]:
        nonce = secrets.token_hex(16)
        tokens = [witness.log_token(nonce, each.opened) for each in known[: MAX_HEADS - 1]]
        if (used := self._service.log) is not None:
            tokens += [witness.log_token(nonce, each) for each in await asyncio.to_thread(_first_event, used)]
        request = HeadsRequest(nonce=nonce, logs=tuple(tokens))
        answer = await self._transport.post(partner, HEADS_PATH, msgspec.json.encode(request))
        if answer.status != 200:
            return ()
        try:
            return msgspec.json.decode(answer.body, type=Heads).heads[:MAX_HEADS]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ()

    async def _connect(self, mine: PinnedLog, theirs: Checkpoint, note: SignedNote) -> None:
        """The owner of the log has to connect the two. One that cannot be reached is asked again the next time."""
        proof: Sequence[bytes] | None = ()
        if 0 < min(mine.size, theirs.size) != max(mine.size, theirs.size):
            asked = ConsistencyRequest(
                origin=mine.origin, old=min(mine.size, theirs.size), size=max(mine.size, theirs.size)
            )
            answer = await self._transport.post(mine.domain, CONSISTENCY_PATH, msgspec.json.encode(asked))
            if answer.status in _REFUSED:
                # No way there, or no wish to answer?
                if await self.exchange(mine.domain):
                    return
                proof = None
            elif answer.status != 200:
                return
            else:
                proof = _proof_in(answer.body)
        if finding := witness.compare_heads(mine, theirs, str(note), proof):
            await self._logs.found(finding)


def _first_event(used: DomainLog) -> list[bytes]:
    return [each.body for each in used.file.events(0, 1) if each.body is not None]


def _proof_in(body: bytes) -> Sequence[bytes] | None:
    try:
        found = msgspec.json.decode(body, type=Consistency).proof
        return decode_hashes(found) if found is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NoteError):
        return None


def _size_of(answer: WitnessAnswer) -> int | None:
    text = answer.body.decode(errors="replace").removesuffix("\n")
    right = answer.content_type == witness.SIZE_TYPE and text.isascii() and text.isdecimal() and len(text) < 19
    return int(text) if right else None


def _printable(text: str) -> str:
    return "".join(each for each in text[:_PROBLEM_LENGTH] if each.isprintable())
