"""How the controllers of jobs and log requests write evidence: each event once, on disk before what it records has an effect (`kuscia/evidence/job_events.py` does it).

plan ─▶ ensure(job.approved, task.started ..) ─▶ on disk ─▶ the KusciaTask is created, the status is written
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from coterie.kuscia.api.evidence import EventRequest


class JobEvidence(Protocol):
    @property
    def verifier_key(self) -> str:
        """Of the log; empty while it is not open."""

    def commitments(self, tables: Sequence[str]) -> tuple[str, ...]:
        """That `ensure` will write for the same tables. Raises EvidenceError."""

    async def ensure(self, requests: Iterable[EventRequest]) -> None:
        """All of them are on disk when it returns; those that were written before are not written again. Raises EvidenceError."""
