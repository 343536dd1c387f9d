"""What a witness answers: C2SP's tlog-witness, and how a log is introduced to it. Pure.

    old 20                          the size that the witness cosigned last
    <hash, base64>                  consistency of that size with the new one, at most 63 lines
                                    (empty line)
    alice.coterie/evidence/1 ...    a signed checkpoint

    parse_request ─▶ 400 ─▶ origin known? 404 ─▶ signed? 403 ─▶ old size right? 409 with ours ─▶ does it follow? 422 ─▶ cosign

The origin and the key of a partner's log are pinned by an *introduction*: the log's first event, in which the domain's RSA key certifies the log's key, with the
proof that it is the first event of a signed checkpoint. Later only a log that names the last head of the pinned one takes its place.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence_exchange import Introduction
from coterie.kuscia.evidence import domain_log, merkle
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.evidence.merkle import ProofError
from coterie.kuscia.evidence.signed_notes import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    NoteError,
    NoteKey,
    SignedNote,
    decode_hashes,
    encode_hashes,
    open_checkpoint,
)

WITNESS_SUFFIX = ".coterie/witness"
SIZE_TYPE = "text/x.tlog.size"
MAX_REQUEST = 64 << 10
MAX_PROOF = 63
SPLIT_VIEW, ROLLED_BACK, NOT_CONTINUED, KEY_CHANGED = "split-view", "rolled-back", "not-continued", "key-changed"
"""What is wrong with a log; words of events."""
_OLD = re.compile(r"old (0|[1-9][0-9]{0,17})")


def witness_key(log_key: NoteKey) -> NoteKey:
    """The key with which the owner of this log cosigns."""
    return NoteKey(log_key.name.partition(".coterie/")[0] + WITNESS_SUFFIX, COSIGNATURE, log_key.public)


@dataclass(frozen=True, slots=True)
class PinnedLog:
    """A partner's log as a witness knows it."""

    domain: str
    origin: str
    key: NoteKey
    opened: bytes
    """Its first event."""
    size: int = 0
    """Of the newest checkpoint that was cosigned."""
    root: bytes = merkle.EMPTY_ROOT
    note: str = ""
    current: bool = True
    """False: the domain opened a new one since."""

    @property
    def head(self) -> Checkpoint:
        return Checkpoint(self.origin, self.size, self.root)

    @property
    def certificate(self) -> str:
        """The domain's signature over the key."""
        return evidence.decode(self.opened).more.get("certificate", "")


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A log that contradicts itself, with what proves it."""

    domain: str
    origin: str
    reason: str
    sentence: str
    first: str = ""
    second: str = ""
    """Signed notes."""


@dataclass(frozen=True, slots=True)
class WitnessRequest:
    old: int
    proof: Sequence[bytes]
    checkpoint: Checkpoint
    note: str


@dataclass(frozen=True, slots=True)
class WitnessRefusal:
    status: int
    sentence: str
    size: int = -1
    """Of what was cosigned, for 409."""
    finding: LogFinding | None = None


def parse_request(body: bytes) -> WitnessRequest | WitnessRefusal:
    if len(body) > MAX_REQUEST:
        return WitnessRefusal(400, "the request is too long")
    try:
        head, gap, note = body.decode().partition("\n\n")
        first, *lines = head.split("\n")
        found = _OLD.fullmatch(first)
        if not gap or found is None:
            return WitnessRefusal(
                400, "a request begins with `old` and a size; an empty line stands before the checkpoint"
            )
        if len(lines) > MAX_PROOF:
            return WitnessRefusal(400, f"a proof has at most {MAX_PROOF} hashes")
        proof = decode_hashes(lines)
        checkpoint = Checkpoint.parse(SignedNote.parse(note).text)
    except (NoteError, UnicodeDecodeError) as problem:
        return WitnessRefusal(400, str(problem) if isinstance(problem, NoteError) else "the request is no text")
    return WitnessRequest(int(found[1]), proof, checkpoint, note)


def request_body(old: int, proof: Sequence[bytes], note: SignedNote) -> bytes:
    return f"old {old}\n{encode_hashes(proof)}\n{note}".encode()


def decide(request: WitnessRequest, caller: str, pinned: PinnedLog | None, *, settled: bool) -> WitnessRefusal | None:
    """None: cosign it. `caller`: the domain that the gateway authenticated. `settled`: what was cosigned last is so old that no older request of
    the same caller can still be on its way."""
    checkpoint = request.checkpoint
    if pinned is None or pinned.domain != caller or pinned.origin != checkpoint.origin:
        return WitnessRefusal(404, "this log was not introduced")
    try:
        open_checkpoint(request.note, pinned.key)
    except NoteError as problem:
        return WitnessRefusal(403, str(problem))
    if request.old > checkpoint.size:
        return WitnessRefusal(400, "the old size is greater than that of the checkpoint")
    if request.old != pinned.size:
        return WitnessRefusal(409, "", pinned.size, _shrunk(request, pinned) if settled else None)
    try:
        merkle.verify_consistency(request.old, checkpoint.size, request.proof, pinned.root, checkpoint.root)
        if checkpoint.size == 0 and checkpoint.root != merkle.EMPTY_ROOT:
            raise ProofError("the root of the empty tree is wrong")
    except ProofError as problem:
        return WitnessRefusal(422, str(problem), finding=_contradiction(request, pinned))
    return None


def _shrunk(request: WitnessRequest, pinned: PinnedLog) -> LogFinding | None:
    if request.checkpoint.size >= pinned.size:
        return None
    return LogFinding(
        pinned.domain,
        pinned.origin,
        ROLLED_BACK,
        f"{pinned.domain} shows a log of {request.checkpoint.size} events, and showed one of {pinned.size} before: it was rolled back",
        pinned.note,
        request.note,
    )


def _contradiction(request: WitnessRequest, pinned: PinnedLog) -> LogFinding | None:
    if not pinned.note:
        return None
    return LogFinding(
        pinned.domain,
        pinned.origin,
        SPLIT_VIEW,
        f"{pinned.domain} shows a log of {request.checkpoint.size} events that does not go on from the {pinned.size} that it showed before",
        pinned.note,
        request.note,
    )


def log_token(nonce: str, opened: bytes) -> str:
    """Names a log to whoever knows its first event, which contains a signature that nobody can guess: to its witnesses."""
    return hashlib.sha256(nonce.encode() + b"\n" + opened).hexdigest()


def compare_heads(first: PinnedLog, second: Checkpoint, note: str, proof: Sequence[bytes] | None) -> LogFinding | None:
    """Two checkpoints of one log that came different ways. `proof`: from the smaller to the larger; None: the log could not give one.
    None when the proof connects them."""
    small, large = sorted((first.head, second), key=lambda each: each.size)
    try:
        merkle.verify_consistency(small.size, large.size, proof or (), small.root, large.root)
    except ProofError:
        return LogFinding(
            first.domain,
            first.origin,
            SPLIT_VIEW,
            f"{first.domain} showed us a log of {first.size} events and a partner another one of {second.size}: nothing connects the two",
            first.note,
            note,
        )
    return None


# Introductions.


@dataclass(frozen=True, slots=True)
class IntroducedLog:
    origin: str
    key: NoteKey
    opened: bytes
    before: Checkpoint | None
    """The head of the log that this one goes on from."""


def introduction_of(reader: EvidenceReader, note: SignedNote) -> Introduction:
    """Of a log, by one of its own signed heads. Raises EvidenceError where its first event is gone."""
    first = next(reader.events(0, 1), None)
    if first is None or first.body is None:
        raise evidence.EvidenceError(f"the first event of the evidence log {reader.path} is gone")
    return Introduction(
        opened=first.body.decode(),
        # Who else cosigned is not for everybody.
        note=str(SignedNote(note.text, note.signatures[:1])),
        proof=tuple(encode_hashes(reader.inclusion(0, Checkpoint.parse(note.text).size)).splitlines()),
    )


def check_introduction(shown: Introduction, domain: str, domain_key: RSAPublicKey) -> IntroducedLog:
    """Raises NoteError."""
    body = shown.opened.encode()
    try:
        event = evidence.decode(body)
        proof = decode_hashes(shown.proof)
    except (msgspec.DecodeError, ValueError):
        raise NoteError("the first event of the log cannot be read") from None
    key = NoteKey.parse(event.more.get("key", ""))
    if event.kind != evidence.LOG_OPENED or key.type != ED25519 or domain_log.domain_of(key.name) != domain:
        raise NoteError(f"this is not the first event of a log of {domain}")
    domain_log.check_key_certificate(key, event.more.get("certificate", ""), domain_key)
    head, _ = open_checkpoint(shown.note, key)
    try:
        merkle.verify_inclusion(merkle.leaf_hash(body), 0, head.size, proof, head.root)
    except ProofError as problem:
        raise NoteError(f"the log does not begin with this event: {problem}") from None
    return IntroducedLog(key.name, key, body, _named(event.checkpoint))


def _named(head: Sequence[str]) -> Checkpoint | None:
    if not head:
        return None
    try:
        origin, size, root = head
        return Checkpoint.parse(f"{origin}\n{size}\n{base64.b64encode(bytes.fromhex(root)).decode()}\n")
    except ValueError:
        raise NoteError("the first event names a head that cannot be read") from None


@dataclass(frozen=True, slots=True)
class Succession:
    """What becomes of what is pinned."""

    pin: IntroducedLog | None = None
    """From now on this one; None: what is pinned stays."""
    reopened: bool = False
    finding: LogFinding | None = None
    """It is refused."""
    refused: str = ""
    """The same, and nobody is to blame."""


def succeed(new: IntroducedLog, domain: str, pinned: PinnedLog | None) -> Succession:
    """Whether the introduced log may take the place of the pinned one."""
    if pinned is None:
        return Succession(new)

    def refused(reason: str, sentence: str) -> Succession:
        return Succession(finding=LogFinding(domain, new.origin, reason, sentence, pinned.note))

    if new.origin == pinned.origin:
        if new.key != pinned.key:
            return refused(KEY_CHANGED, f"{domain} changed the key of its log {new.origin} without opening a new one")
        return Succession()
    if domain_log.number_of(new.origin) < domain_log.number_of(pinned.origin):
        return Succession()
    before = new.before
    if before is None or before.origin != pinned.origin:
        return refused(
            NOT_CONTINUED, f"{domain} began the log {new.origin}, which does not name the last head of {pinned.origin}"
        )
    if before.size < pinned.size or (before.size == pinned.size and before.root != pinned.root):
        return refused(
            ROLLED_BACK,
            f"{domain} began the log {new.origin} after event {before.size} of {pinned.origin}, which has {pinned.size} that we cosigned",
        )
    return Succession(new, reopened=True)
