"""What control planes send each other about their evidence logs, through the gateways: names and paths, and the JSON beside C2SP's add-checkpoint.

POST http://coterie-evidence.<partner>.svc/evidence/v1/add-checkpoint   C2SP tlog-witness; 200: cosignature lines
POST .../introduce      our logs' first events, each with a checkpoint and a proof; answered with the partner's
POST .../heads          which of these logs do you witness too? answered with the newest checkpoints that were cosigned
POST .../consistency    that one checkpoint of a log of the receiver goes on from an older one
POST .../task-statements   of a job that ended: what do you say of these tasks? or: sign these statements
"""

from __future__ import annotations

from typing import Any

import msgspec

EVIDENCE_SERVICE = "coterie-evidence"
ADD_CHECKPOINT_PATH = "/evidence/v1/add-checkpoint"
INTRODUCE_PATH = "/evidence/v1/introduce"
HEADS_PATH = "/evidence/v1/heads"
CONSISTENCY_PATH = "/evidence/v1/consistency"
STATEMENTS_PATH = "/evidence/v1/task-statements"
EVIDENCE_PATHS = (ADD_CHECKPOINT_PATH, INTRODUCE_PATH, HEADS_PATH, CONSISTENCY_PATH, STATEMENTS_PATH)

MAX_LOGS = 16
"""Of one domain in one message: the newest."""
MAX_HEADS = 256


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """A log shows its first event."""

    opened: str
    """The event as it is hashed."""
    note: str
    proof: tuple[str, ...] = ()
    """That it is the first event of the checkpoint."""


class Introductions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a domain: its logs, the oldest first."""

    logs: tuple[Introduction, ...]


class HeadsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Each log is named by a digest that only its witnesses can compute: who does not witness it learns nothing."""

    nonce: str
    logs: tuple[str, ...]


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    heads: tuple[str, ...]
    """Signed notes."""


class StatementsRequest(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    tasks: dict[str, str]
    """Agreement digests by task id."""
    envelopes: dict[str, str] = {}
    """By task id, what is to be signed (DSSE); without, the receiver says its parts."""


class StatementsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    """By task id and party."""
    envelopes: dict[str, str] = {}


class ConsistencyRequest(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    old: int
    size: int


class Consistency(msgspec.Struct, frozen=True, kw_only=True):
    proof: tuple[str, ...] | None
    """None: nothing connects the two."""
