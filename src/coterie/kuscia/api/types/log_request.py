"""LogRequest: a domain asks another for log lines of a task that both took part in. `kuscia.secretflow/v1alpha1`.

Ours, Kuscia has no such kind. The same request exists up to three times, under one name:

    in the requester's namespace, at its control plane    the request: what is asked for, how it stands, the answer
    in the partner's mirror namespace, at the host        how it travels (`kuscia/interconn/log_requests.py`)
    in the owner's namespace, at its control plane        the incoming request: preview, decision

Only `spec.review` of the incoming request is written by the owner's people. Everything else of a spec stays as it was made. The
rules are in `kuscia/api/log_requests.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.types.domain import kuscia_resource

APPROVE, REJECT, REVOKE = "Approve", "Reject", "Revoke"


class LogRequestPhase(StrEnum):
    PENDING = "Pending"
    """The owner's control plane has not received it."""
    AWAITING_APPROVAL = "AwaitingApproval"
    ANSWERED = "Answered"
    REJECTED = "Rejected"
    REVOKED = "Revoked"
    """The owner took the answer back."""
    WITHDRAWN = "Withdrawn"
    """The requester deleted the request."""
    EXPIRED = "Expired"


OPEN: Final = frozenset(("", LogRequestPhase.PENDING, LogRequestPhase.AWAITING_APPROVAL))


class Way(StrEnum):
    """How a request travels."""

    LOCAL = "Local"
    """One control plane hosts both domains."""
    HOST = "Host"
    """The mirror lies in our own cluster, where the partner follows us."""
    MEMBER = "Member"
    """The mirror lies in the partner's cluster, which we follow."""


class LogReview(Model, frozen=True, kw_only=True):
    decision: str = ""
    reason: str = ""
    by: str = ""
    """Who wrote it, as the API server knows them."""
    digest: str = ""
    """Of the preview that is approved."""
    redact: tuple[str, ...] | None = None
    """More that is cut out of this answer, as regular expressions."""
    generation: int = 0
    """Counted up to have the preview made again."""


class LogRequestSpec(Model, frozen=True, kw_only=True):
    requester: str
    owner: str
    job: str
    reason: str
    task: str = ""
    """Alias of a task; empty: all tasks that both took part in."""
    sources: tuple[str, ...] | None = None
    since: str = ""
    until: str = ""
    grep: str = ""
    """Text that a line must contain."""
    max_lines: int = 0
    max_bytes: int = 0
    expires_seconds: int = 0
    """After which a request without an answer ends."""
    keep_seconds: int = 0
    """For which the answer is kept."""
    requested_by: str = ""
    review: LogReview | None = None


class LogExcerpt(Model, frozen=True, kw_only=True):
    """Lines after redaction, and what is known about them."""

    text: str = ""
    lines: int = 0
    redactions: int = 0
    truncated: bool = False
    """There were more lines than may be sent."""
    digest: str = ""
    """SHA-256 of the text."""
    time: str = ""
    notes: tuple[str, ...] | None = None
    """What could not be read."""
    generation: int = 0


class LogRequestRecord(Model, frozen=True, kw_only=True):
    """One line of the history."""

    time: str
    event: str
    by: str = ""
    message: str = ""
    digest: str = ""


class LogRequestStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    message: str = ""
    """Who or what it waits for, or how it ended."""
    way: str = ""
    sent: bool = False
    """The mirror was made."""
    expire_time: str = ""
    """When an open request ends, or when the answer is removed."""
    end_time: str = ""
    decided_by: str = ""
    digest: str = ""
    """Of what was sent; it stays when the answer is gone."""
    preview: LogExcerpt | None = None
    """Only at the owner."""
    answer: LogExcerpt | None = None
    history: tuple[LogRequestRecord, ...] | None = None


class LogRequest(ApiObject, frozen=True, kw_only=True):
    spec: LogRequestSpec
    status: LogRequestStatus = LogRequestStatus()


LOG_REQUESTS = Kind(kuscia_resource("logrequests", "LogRequest", namespaced=True), LogRequest)
