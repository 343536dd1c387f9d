"""Where partners' control planes send their checkpoints. Only our own Envoy connects here, and only for partners that it authenticated.

add-checkpoint   shape ─▶ decided and stored in one transaction ─▶ checkpoint.received in our log ─▶ cosigned ─▶ answered

Whatever a log shows that contradicts what it showed before is kept with both signed notes, recorded and told (`PartnerLogs.found`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.evidence_exchange import (
    ADD_CHECKPOINT_PATH,
    CONSISTENCY_PATH,
    EVIDENCE_PATHS,
    HEADS_PATH,
    INTRODUCE_PATH,
    MAX_HEADS,
    MAX_LOGS,
    STATEMENTS_PATH,
    Consistency,
    ConsistencyRequest,
    Heads,
    HeadsRequest,
    Introduction,
    Introductions,
)
from coterie.kuscia.evidence import domain_log, witness
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.evidence.service import EvidenceService, evidence_directory
from coterie.kuscia.evidence.signed_notes import (
    Checkpoint,
    NoteError,
    SignedNote,
    WitnessSigner,
    encode_hashes,
)
from coterie.kuscia.evidence.witness import NOT_CONTINUED, ROLLED_BACK, LogFinding
from coterie.kuscia.evidence.witness_store import WitnessStore

log = logger("evidence.witness")

SETTLED_SECONDS = 60.0
"""After which no older request of a partner can still be on its way."""
_BURST, _PER_SECOND = 120.0, 2.0
_STATEMENTS_PER_SECOND = 20.0
"""Calls of one partner. Each new checkpoint is an event of our log, so a partner must not send as it likes."""
_MAX_STATEMENTS = 256 << 10
_INTRODUCTION_COST = 10.0
"""Up to 16 logs, each of which is an event when it is new."""
_NONCE = re.compile(r"[0-9a-f]{32,64}")


class PartnerLogs:
    """What partners' logs showed us."""

    def __init__(
        self,
        service: EvidenceService,
        store: WitnessStore,
        domain_key: Callable[[str], RSAPublicKey | None],
        clock: Clock,
        *,
        on_finding: Callable[[LogFinding], None] = lambda finding: None,
        on_closed: Callable[[str, int], None] = lambda domain, count: None,
    ) -> None:
        """`domain_key`: of a partner, by its Domain object; None when it has no certificate there. `on_closed`: a partner put right so many
        findings."""
        self._on_closed = on_closed
        self.store = store
        self._service = service
        self._domain_key = domain_key
        self._clock = clock
        self._on_finding = on_finding

    async def introduced(self, partner: str, shown: Introductions) -> str:
        """Pins what may be pinned. Why not, as a sentence. Raises EvidenceError."""
        key = self._domain_key(partner)
        if key is None:
            return f"the Domain {partner} has no certificate here: its log cannot be told from another's"
        if not 0 < len(shown.logs) <= MAX_LOGS:
            return f"an introduction shows 1 to {MAX_LOGS} logs"
        known: set[str] = set()
        if await asyncio.to_thread(self.store.current, partner) is not None:
            pinned = await asyncio.to_thread(self.store.logs)
            known = {each.opened.decode() for each in pinned if each.domain == partner}
        problem: NoteError | None = None
        for each in shown.logs:
            if each.opened in known:
                problem = None
                continue
            try:
                new = await asyncio.to_thread(witness.check_introduction, each, partner, key)
                problem = None
            except NoteError as failure:
                # Older logs may have been certified by a key that the domain had before.
                problem = failure
                continue
            result = await asyncio.to_thread(self.store.succession, partner, new)
            if result.refused:
                return result.refused
            if result.finding is not None:
                await self.found(result.finding)
                return result.finding.sentence
            if result.pin is not None:
                kind = evidence.PARTNER_REOPENED if result.reopened else evidence.PARTNER_INTRODUCED
                head = (new.before.origin, str(new.before.size), new.before.root.hex()) if new.before else ()
                event = EvidenceEvent(kind=kind, partner=partner, checkpoint=head, more={"key": str(new.key)})
                await self._service.record(EventRequest(event=event))
                if (await asyncio.to_thread(self.store.introduce, partner, new)).pin is None:
                    return f"{partner} introduced another log meanwhile"
                if result.reopened:
                    await self._put_right(partner, (ROLLED_BACK, NOT_CONTINUED))
                log.info("Log of a partner", partner=partner, origin=new.origin, reopened=result.reopened)
        return str(problem) if problem is not None else ""

    async def went_on(self, partner: str, origin: str) -> None:
        """The log goes on from what it showed last: if it was an older copy for a while, it is the newer one again. Raises EvidenceError."""
        await self._put_right(partner, (ROLLED_BACK,), origin)

    async def _put_right(self, partner: str, reasons: tuple[str, ...], origin: str = "") -> None:
        if count := await asyncio.to_thread(self.store.close_findings, partner, reasons, origin):
            log.warning("A partner put its evidence log right", partner=partner, findings=count)
            self._on_closed(partner, count)

    async def found(self, finding: LogFinding) -> None:
        """Kept, recorded and told, once. Raises EvidenceError."""
        if not await asyncio.to_thread(self.store.is_new, finding):
            return
        log.error("A partner's evidence log contradicts itself", partner=finding.domain, found=finding.sentence)
        await self._service.record(
            EventRequest(
                event=EvidenceEvent(
                    kind=evidence.CHECKPOINT_REFUSED,
                    partner=finding.domain,
                    reason=finding.reason,
                    checkpoint=_head_of(finding.second or finding.first),
                )
            )
        )
        if await asyncio.to_thread(self.store.keep_finding, finding, int(self._clock.now().timestamp())):
            self._on_finding(finding)


def _head_of(note: str) -> tuple[str, ...]:
    try:
        seen = Checkpoint.parse(SignedNote.parse(note).text)
    except NoteError:
        return ()
    return seen.origin, str(seen.size), seen.root.hex()


class WitnessInbox:
    def __init__(
        self,
        logs: PartnerLogs,
        service: EvidenceService,
        caller_header: str,
        clock: Clock,
        *,
        on_heads: Callable[[str], None] = lambda partner: None,
        statements: Callable[[str, bytes], Awaitable[Response]] | None = None,
    ) -> None:
        """`caller_header`: set by our own gateway to the domain that it authenticated. `on_heads`: told who asked for heads. `statements`: answers
        about statements of tasks."""
        self._statements = statements
        self._logs = logs
        self._service = service
        self._caller_header = caller_header
        self._clock = clock
        self._on_heads = on_heads
        self._cosigned: dict[str, float] = {}
        """By partner, when it showed a greater size, by the monotonic clock."""
        self._allowance: dict[tuple[str, str], tuple[float, float]] = {}

    def caller_of(self, headers: Mapping[str, str]) -> str:
        return headers.get(self._caller_header, "")

    async def handle(self, request: Request) -> Response:
        partner = self.caller_of(request.headers)
        if request.path not in EVIDENCE_PATHS:
            return _plain(404, "there is nothing here")
        if request.method != "POST":
            return _plain(405, "send it with POST")
        if not partner or partner == self._service.domain:
            log.warning("A checkpoint without a partner's name was refused", path=request.path)
            return _plain(403, "only partners send checkpoints here")
        if len(request.body) > (_MAX_STATEMENTS if request.path == STATEMENTS_PATH else witness.MAX_REQUEST):
            return _plain(400, "the request is too long")
        if not self._allowed(partner, request.path):
            return _plain(429, "too many requests; send it later")
        try:
            return await self._answers[request.path](self, partner, request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _plain(400, "the request cannot be read")
        except EvidenceError as problem:
            log.error("A partner's checkpoint cannot be kept", partner=partner, error=problem)
            return _plain(503, "our evidence log cannot be written now")

    def _allowed(self, partner: str, path: str) -> bool:
        now = self._clock.monotonic()
        # Statements are bounded by the tasks of jobs that ended, and are no events of the log.
        kind, rate = ("statements", _STATEMENTS_PER_SECOND) if path == STATEMENTS_PATH else ("", _PER_SECOND)
        cost = _INTRODUCTION_COST if path == INTRODUCE_PATH else 1.0
        left, since = self._allowance.get((partner, kind), (_BURST, now))
        left = min(_BURST, left + (now - since) * rate)
        allowed = left >= cost
        self._allowance[partner, kind] = (left - cost if allowed else left, now)
        return allowed

    async def task_statements(self, partner: str, body: bytes) -> Response:
        if self._statements is None:
            return _plain(404, "there is nothing here")
        return await self._statements(partner, body)

    async def add_checkpoint(self, partner: str, body: bytes) -> Response:
        request = witness.parse_request(body)
        if isinstance(request, witness.WitnessRefusal):
            return _refused(partner, request)
        seen = self._cosigned.get(partner)
        settled = seen is None or self._clock.monotonic() - seen > SETTLED_SECONDS
        result = await asyncio.to_thread(self._logs.store.answer_to, request, partner, settled=settled)
        head = request.checkpoint
        if result is True:
            event = EvidenceEvent(
                kind=evidence.CHECKPOINT_RECEIVED,
                partner=partner,
                checkpoint=(head.origin, str(head.size), head.root.hex()),
            )
            await self._service.record(EventRequest(event=event))
            # Another request of the same partner may have come between: what is on disk decides.
            result = await asyncio.to_thread(self._logs.store.cosign, request, partner, settled=settled)
            if result is True:
                self._cosigned[partner] = self._clock.monotonic()
                await self._logs.went_on(partner, head.origin)
        if isinstance(result, witness.WitnessRefusal):
            if result.finding is not None:
                await self._logs.found(result.finding)
            return _refused(partner, result)
        if (used := self._service.log) is None:
            raise EvidenceError("the evidence log cannot be used")
        signer = WitnessSigner(self._service.domain + witness.WITNESS_SUFFIX, used.signer.private)
        line = signer.cosign(head.text(), int(self._clock.now().timestamp())).line()
        return Response(200, line.encode(), "text/plain; charset=utf-8")

    async def introduce(self, partner: str, body: bytes) -> Response:
        shown = msgspec.json.decode(body, type=Introductions)
        own = await own_introductions(self._service)
        if why := await self._logs.introduced(partner, shown):
            log.warning("A partner's log was not accepted", partner=partner, why=why)
            return _plain(403, why)
        return Response(200, msgspec.json.encode(own))

    async def heads(self, partner: str, body: bytes) -> Response:
        asked = msgspec.json.decode(body, type=HeadsRequest)
        if not _NONCE.fullmatch(asked.nonce) or len(asked.logs) > MAX_HEADS:
            return _plain(400, f"a nonce has 32 to 64 hexadecimal digits; {MAX_HEADS} logs are the most")
        wanted = frozenset(asked.logs)
        known = await asyncio.to_thread(self._logs.store.logs)
        found = [each.note for each in known if each.note and witness.log_token(asked.nonce, each.opened) in wanted]
        self._on_heads(partner)
        return Response(200, msgspec.json.encode(Heads(heads=tuple(found[:MAX_HEADS]))))

    async def consistency(self, partner: str, body: bytes) -> Response:
        asked = msgspec.json.decode(body, type=ConsistencyRequest)
        try:
            proof = await asyncio.to_thread(_consistency, self._service, asked)
        except (NoteError, ValueError, EvidenceError) as problem:
            log.warning("A partner asked for a proof that there is not", partner=partner, why=problem)
            return Response(200, msgspec.json.encode(Consistency(proof=None)))
        return Response(200, msgspec.json.encode(Consistency(proof=tuple(encode_hashes(proof).splitlines()))))

    _answers: ClassVar[dict[str, Callable[[WitnessInbox, str, bytes], Awaitable[Response]]]] = {
        ADD_CHECKPOINT_PATH: add_checkpoint,
        INTRODUCE_PATH: introduce,
        HEADS_PATH: heads,
        CONSISTENCY_PATH: consistency,
        STATEMENTS_PATH: task_statements,
    }


def _refused(partner: str, refusal: witness.WitnessRefusal) -> Response:
    log.info("A checkpoint was not cosigned", partner=partner, status=refusal.status, why=refusal.sentence)
    if refusal.status == 409:
        return Response(409, b"%d\n" % refusal.size, witness.SIZE_TYPE)
    return _plain(refusal.status, refusal.sentence)


def _plain(status: int, sentence: str) -> Response:
    return Response(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8")


def log_file_of(service: EvidenceService, number: int) -> Path:
    return evidence_directory(service.paths) / str(number) / domain_log.LOG_FILE


def _consistency(service: EvidenceService, asked: ConsistencyRequest) -> list[bytes]:
    """Raises NoteError, ValueError and EvidenceError."""
    if domain_log.domain_of(asked.origin) != service.domain:
        raise NoteError("this log is not ours")
    path = log_file_of(service, domain_log.number_of(asked.origin))
    if not path.exists():
        raise NoteError("this log is not here")
    reader = EvidenceReader(path)
    heads = reader.heads()
    if not heads or not 0 <= asked.old <= asked.size <= heads[-1][0]:
        raise ValueError("nothing of this size is signed")
    return reader.consistency(asked.old, asked.size)


async def own_introductions(service: EvidenceService) -> Introductions:
    """Raises EvidenceError."""
    used = service.log
    if used is None:
        raise EvidenceError("the evidence log cannot be used")
    await used.checkpoint()
    return await asyncio.to_thread(_introductions, service)


def _introductions(service: EvidenceService) -> Introductions:
    """Those of this machine, and those that other members of the control plane held."""
    made = {number: shown for number, shown in _inherited(service)}
    for number in domain_log.log_numbers(evidence_directory(service.paths)):
        path = log_file_of(service, number)
        if not path.exists():
            continue
        reader = EvidenceReader(path)
        heads = reader.heads()
        # One that was never signed was shown to nobody, and its number may be another member's log.
        if not heads or not any(each.body is not None for each in reader.events(0, 1)):
            continue
        if number not in made or number == domain_log.number_of(service.log.origin if service.log is not None else ""):
            made[number] = witness.introduction_of(reader, SignedNote.parse(heads[-1][1]))
    return Introductions(logs=tuple(made[number] for number in sorted(made)[-MAX_LOGS:]))


def _inherited(service: EvidenceService) -> Iterator[tuple[int, Introduction]]:
    for each in service.inherited:
        shown = msgspec.json.decode(each, type=Introduction)
        yield domain_log.number_of(Checkpoint.parse(SignedNote.parse(shown.note).text).origin), shown
