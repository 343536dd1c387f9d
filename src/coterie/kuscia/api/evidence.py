"""Events of the evidence log: what they contain, how they are encoded, what is committed to instead of written. Pure.

An event is hashed as the bytes that are stored; nobody encodes it a second time. Contents, names of tables and of people are never in
it: a *commitment* stands for them, the SHA-256 of a random salt and the value. Who has salt and value can show what was meant; when the
salt is destroyed, nobody can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

SALT_SIZE = 32
MAX_EVENT = 16 << 10

LOG_OPENED, LOG_CLOSED = "log.opened", "log.closed"
KEY_ROTATED = "key.rotated"
"""The log ends with this and `log.closed`; the next one has another key, and both keys sign the change."""
CHECKPOINT_RECEIVED = "checkpoint.received"
"""Of a partner: origin, size and root. It was cosigned."""
CHECKPOINT_COSIGNED, CHECKPOINT_UNANSWERED = "checkpoint.cosigned", "checkpoint.unanswered"
"""Ours, by a partner or not."""
CHECKPOINT_REFUSED = "checkpoint.refused"
"""A partner's log contradicts itself; `reason` says how."""
CHECKPOINT_ACCEPTED = "checkpoint.accepted"
"""A person looked at that, and goes on."""
PARTNER_INTRODUCED, PARTNER_REOPENED = "partner.introduced", "partner.reopened"
"""A partner's log is witnessed from now on; it begins after the head that it names."""
GRANT_MADE, GRANT_USED, GRANT_REFUSED, GRANT_REVOKED = "grant.made", "grant.used", "grant.refused", "grant.revoked"
GRANT_EXPIRED = "grant.expired"
JOB_CREATED, JOB_APPROVED, JOB_REJECTED, JOB_ENDED = "job.created", "job.approved", "job.rejected", "job.ended"
TASK_STARTED, TASK_ENDED = "task.started", "task.ended"
ROUTE_CHANGED, ENGINE_CHANGED, POLICY_CHANGED = "route.changed", "engine.changed", "policy.changed"
CERTIFICATE_CHANGED, DATA_CHANGED = "certificate.changed", "data.changed"
API_WRITE, SECURITY_WEAKENED = "api.write", "security.weakened"
LOGS_ASKED, LOGS_APPROVED, LOGS_DENIED = "logs.asked", "logs.approved", "logs.denied"
LOGS_GIVEN, LOGS_RECEIVED = "logs.given", "logs.received"
"""The same digest on both sides."""
PLAN_ASKED, PLAN_ANSWERED = "plan.asked", "plan.answered"
SALTS_ERASED, BODIES_REMOVED = "salts.erased", "bodies.removed"

KINDS = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str) and "." in value
)


NOT_RECORDED = "nothing that must be recorded can happen now"
"""How the API server refuses a write that cannot be recorded."""


class EvidenceError(Exception):
    """Evidence cannot be written, so what it would record must not happen. The message says why and what to do."""


class RecordedEngine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which program one party ran."""

    digest: str = ""
    version: str = ""


class EvidenceEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    kind: str
    time: int = msgspec.field(name="t", default=0)
    """Milliseconds since 1970, by the clock of who wrote it."""
    format: int = msgspec.field(name="v", default=1)
    who: str = ""
    """A commitment: the person or account."""
    job: str = ""
    task: str = ""
    parties: tuple[str, ...] = ()
    partner: str = ""
    agree: str = ""
    """The agreement digest of a task: equal at all parties."""
    engines: dict[str, RecordedEngine] = {}
    """By party."""
    inputs: tuple[str, ...] = msgspec.field(name="in", default=())
    outputs: tuple[str, ...] = msgspec.field(name="out", default=())
    """Commitments, or digests where the content was streamed through the data mesh."""
    grant: tuple[str, ...] = ()
    """Name and digest of the grant."""
    object: tuple[str, ...] = ()
    """Kind, name or commitment, and digest of what was written."""
    verb: str = ""
    outcome: str = ""
    reason: str = ""
    """A word of a fixed set, never a message that may contain data."""
    checkpoint: tuple[str, ...] = msgspec.field(name="head", default=())
    """Origin, size, root (hex)."""
    count: int = 0
    more: dict[str, str] = {}


class EventRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An event with values that are committed to when it is written: none of them reaches the log itself."""

    event: EvidenceEvent
    person: str = ""
    """For `who`."""
    tables: tuple[str, ...] = ()
    """For `inputs`."""
    results: tuple[str, ...] = ()
    """For `outputs`."""
    object_name: str = ""
    """For the second part of `object`."""


PERSON, TABLE, OBJECT = "person", "table", "object"
"""Subjects of commitments."""


def encode(event: EvidenceEvent) -> bytes:
    """As it is stored and hashed: sorted keys, no spaces. ValueError when it is too long or of an unknown kind."""
    if event.kind not in KINDS:
        raise ValueError(f'"{event.kind}" is no kind of event')
    fields: dict[str, Any] = {"v": event.format, **msgspec.to_builtins(event)}
    body = canonical(fields)
    if len(body) > MAX_EVENT:
        raise ValueError(f"an event has at most {MAX_EVENT} bytes")
    return body


def decode(body: bytes) -> EvidenceEvent:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(body, type=EvidenceEvent)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and without spaces: the same bytes for the same value, everywhere."""
    return msgspec.json.encode(value, order="deterministic")


def commitment(salt: bytes, value: str) -> str:
    """Hex. Never a hash without a salt: names and small tables can be guessed."""
    if len(salt) != SALT_SIZE:
        raise ValueError("a salt has 32 bytes")
    return hashlib.sha256(salt + value.encode()).hexdigest()


def object_digest(spec: Any) -> str:
    """Of what an object says: hex SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical(spec)).hexdigest()


def agreement(
    *,
    job: str,
    task: str,
    parties: Mapping[str, str],
    engines: Mapping[str, str],
    parameters: str,
    inputs: Mapping[str, Sequence[str]],
    grants: Mapping[str, Sequence[str]],
) -> str:
    """The digest that all parties of a task compute before it runs. `parties`: roles by party; `engines`: digests by party;
    `parameters`: digest of the task's input; `inputs`, `grants`: commitments and digests by party, in any order."""
    content = {
        "v": 1,
        "job": job,
        "task": task,
        "parties": dict(parties),
        "engines": dict(engines),
        "parameters": parameters,
        "inputs": {party: sorted(each) for party, each in inputs.items() if each},
        "grants": {party: sorted(each) for party, each in grants.items() if each},
    }
    return hashlib.sha256(canonical(content)).hexdigest()
