"""The statement about a task that all its parties sign: an in-toto Statement in a DSSE envelope. Pure, but for signatures.

    payload     subject: digests of the results; predicate: job, task, agreement, and of each party key, checkpoint, outcome, results
    envelope    the payload, and one signature per evidence log: Ed25519 over DSSE's pre-authentication encoding

A party's results are commitments: it can show what they stand for, nobody else can.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from coterie.kuscia.api import evidence
from coterie.kuscia.evidence.signed_notes import LogSigner, NoteError, NoteKey, open_checkpoint

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://coterie.io/task-statement/v1"
MAX_ENVELOPE = 64 << 10
_MOST_RESULTS = 64
_MOST_PARTIES = 64


class StatementPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one party adds."""

    key: str
    """Of its evidence log."""
    checkpoint: str
    """Signed note, without cosignatures."""
    outcome: str
    results: tuple[str, ...] = ()


class StatementSubject(msgspec.Struct, frozen=True):
    name: str
    digest: dict[str, str]


class StatementPredicate(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    task: str
    agreement: str
    parties: dict[str, StatementPart]


class StatementPayload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str = msgspec.field(name="_type")
    subject: tuple[StatementSubject, ...]
    predicate_type: str
    predicate: StatementPredicate


class EnvelopeSignature(msgspec.Struct, frozen=True):
    keyid: str
    sig: str


class StatementEnvelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[EnvelopeSignature, ...]

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")


@dataclass(frozen=True, slots=True)
class CheckedStatement:
    predicate: StatementPredicate
    envelope: StatementEnvelope
    signed: tuple[str, ...]
    """Names of the logs whose signature is right."""
    missing: tuple[str, ...]
    """Names of logs that are parties and have not signed."""
    keys: Mapping[str, NoteKey]
    """By name, of the logs."""
    unproven: tuple[str, ...] = ()
    """Names of logs that signed with a key that no certificate proves, as far as the checker knows."""


def key_id(key: NoteKey) -> str:
    return f"{key.name}+{key.id.hex()}"


def encoded_for_signing(payload: bytes) -> bytes:
    """DSSE's PAE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def unsigned(job: str, task: str, agreement: str, parties: Mapping[str, StatementPart]) -> StatementEnvelope:
    predicate = StatementPredicate(job=job, task=task, agreement=agreement, parties=dict(parties))
    payload = StatementPayload(
        type=STATEMENT_TYPE, subject=_subjects(predicate), predicate_type=PREDICATE_TYPE, predicate=predicate
    )
    content = evidence.canonical(payload)
    return StatementEnvelope(payload=base64.b64encode(content).decode(), payload_type=PAYLOAD_TYPE, signatures=())


def _subjects(predicate: StatementPredicate) -> tuple[StatementSubject, ...]:
    """in-toto wants one at least: a task without results is named by what was agreed."""
    found = tuple(
        StatementSubject(f"{party}/result-{number}", {"sha256": digest})
        for party, part in sorted(predicate.parties.items())
        for number, digest in enumerate(part.results, 1)
    )
    return found or (StatementSubject(f"{predicate.job}/{predicate.task}", {"sha256": predicate.agreement}),)


def signed_by(envelope: StatementEnvelope, signer: LogSigner) -> StatementEnvelope:
    signature = signer.private.sign(encoded_for_signing(_payload(envelope)))
    made = EnvelopeSignature(key_id(signer.key), base64.b64encode(signature).decode())
    return with_signatures(envelope, [made])


def with_signatures(envelope: StatementEnvelope, more: Iterable[EnvelopeSignature]) -> StatementEnvelope:
    known = {each.keyid: each for each in (*more, *envelope.signatures)}
    return replace(envelope, signatures=tuple(known[name] for name in sorted(known)))


def check_statement(body: bytes) -> CheckedStatement:
    """That it is well formed, and that every signature on it is right. Whose keys these are is for the caller to know. Raises NoteError."""
    if len(body) > MAX_ENVELOPE:
        raise NoteError("the statement is too long")
    try:
        envelope = msgspec.json.decode(body, type=StatementEnvelope)
        payload = msgspec.json.decode(_payload(envelope), type=StatementPayload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoteError("the statement cannot be read") from None
    predicate = payload.predicate
    if (envelope.payload_type, payload.type, payload.predicate_type) != (PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE):
        raise NoteError("this is no statement about a task")
    parts = predicate.parties
    if not 0 < len(parts) <= _MOST_PARTIES or any(len(each.results) > _MOST_RESULTS for each in parts.values()):
        raise NoteError(f"a statement has 1 to {_MOST_PARTIES} parties, each with {_MOST_RESULTS} results at most")
    if payload.subject != _subjects(predicate):
        raise NoteError("the subjects of the statement are not the results of its parties")
    keys: dict[str, NoteKey] = {}
    for part in parts.values():
        key = NoteKey.parse(part.key)
        open_checkpoint(part.checkpoint, key)
        keys[key_id(key)] = key
    if len({key.name for key in keys.values()}) != len(keys):
        raise NoteError("the statement names two keys of one log")
    content = encoded_for_signing(_payload(envelope))
    for each in envelope.signatures:
        if each.keyid not in keys:
            raise NoteError(f'"{each.keyid[:100]}" signed the statement and is no party of it')
        keys[each.keyid].verify(_decoded(each.sig), content)
    by = {each.keyid for each in envelope.signatures}
    return CheckedStatement(
        predicate,
        envelope,
        tuple(sorted(key.name for name, key in keys.items() if name in by)),
        tuple(sorted(key.name for name, key in keys.items() if name not in by)),
        {key.name: key for key in keys.values()},
    )


def _payload(envelope: StatementEnvelope) -> bytes:
    return _decoded(envelope.payload)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("the statement contains something that is not base64") from None
