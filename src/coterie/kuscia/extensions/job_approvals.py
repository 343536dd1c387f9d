"""Answers to jobs at the API server: who accepted or rejected a job, and when, is written here and not by the person."""

from __future__ import annotations

from typing import Final

from coterie.base.clock import Clock, now_rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kuscia.api.types.job import KUSCIA_JOBS

CONTROLLERS: Final = frozenset(("system:coterie-controllers", "system:coterie-kusciaapi"))
"""The node's own controllers and KusciaAPI: they pass on who answered."""


class JobApprovalAdmission:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, attempt: AdmissionRequest) -> None:
        resource = KUSCIA_JOBS.resource
        if (attempt.resource.group, attempt.resource.plural) != (resource.group, resource.plural):
            return
        status = attempt.obj.get("status")
        if attempt.verb == "delete" or attempt.user.name in CONTROLLERS or not isinstance(status, dict):
            return
        before = (attempt.old or {}).get("status") or {}
        records = approval_records(before, status, attempt.user.name, now_rfc3339(self._clock))
        status.pop("approvalRecords", None)
        if records:
            status["approvalRecords"] = records


def approval_records(before: Object, after: Object, user: str, now: str) -> Object:
    """The records that were there, and one for each answer that this write changes. Pure."""
    old, new = before.get("approveStatus") or {}, after.get("approveStatus")
    answers = new if isinstance(new, dict) else {}
    changed = {party: {"by": user, "at": now} for party in answers if answers[party] != old.get(party)}
    return {**(before.get("approvalRecords") or {}), **changed}
