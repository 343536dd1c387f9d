"""Commands to a job and answers to it, as patches. Pure.

Whether a command makes sense now is said before it is sent: the server would take it in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coterie.kube.api.meta import Object, find_condition
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.conditions import STAGE_HANDLED, VALIDATE_FAILED
from coterie.kuscia.api.jobs.phases import JOB_FINAL
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    REJECTED,
    ApprovalRecord,
    JobPhase,
    JobStage,
    KusciaJob,
    PartyTaskStatus,
)

NEW = "New"
"""The phase of a job that no controller has looked at."""

REJECTION = "rejected: "
"""Before the reason that a person gave."""
LONGEST_REASON = 1000


def own_parties(job: KusciaJob) -> tuple[str, ...]:
    """The parties of this control plane, the initiator first; all of them until the controller has written it down."""
    marked = (job.metadata.annotations or {}).get(labels.KUSCIA_INTERCONN_SELF_PARTIES, "")
    named = job.spec.party_domains
    own = tuple(party for party in named if party in marked.split("_")) if marked else named
    return tuple(sorted(own, key=lambda party: party != job.spec.initiator))


def initiates(job: KusciaJob) -> bool:
    return (job.metadata.annotations or {}).get(labels.KUSCIA_SELF_AS_INITIATOR, "true") == "true"


def command_error(job: KusciaJob, stage: JobStage) -> str:
    """Why a command would do nothing to this job now; empty when it would do something."""
    name, phase = job.metadata.name, job.status.phase
    if stage is JobStage.RESTART:
        if phase in (JobPhase.FAILED, JobPhase.SUSPENDED):
            if job.status.reason == VALIDATE_FAILED:
                return f"job {name} was never valid ({job.status.message}); correct it and run it under a new name"
            return ""
        return f"job {name} is {phase or NEW}, and only a job that is Failed or Suspended can be restarted"
    if phase in JOB_FINAL:
        return f"job {name} is {phase}, which is the end; there is nothing to {stage.lower()}"
    if stage is JobStage.SUSPEND and phase != JobPhase.RUNNING:
        return f"job {name} is {phase or NEW}, and only a job that is Running can be suspended"
    if stage is JobStage.STOP and phase == JobPhase.FAILED:
        return f"job {name} has Failed already; there is nothing to stop"
    return ""


def command_patch(job: KusciaJob, stage: JobStage, trigger: str) -> tuple[Object, int]:
    """A merge patch that gives the command, and its version. It meets the job as we saw it, or nothing."""
    version = stage_version(job) + 1
    command_labels = {
        labels.KUSCIA_JOB_STAGE: str(stage),
        labels.KUSCIA_JOB_STAGE_TRIGGER: trigger,
        labels.KUSCIA_JOB_STAGE_VERSION: str(version),
    }
    return {"metadata": {"labels": command_labels, "resourceVersion": job.metadata.resource_version}}, version


def stage_version(job: KusciaJob) -> int:
    text = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
    return int(text) if text.isdecimal() else 0


def carried_out(job: KusciaJob, version: int) -> bool:
    """Our controller writes the last command it carried out as `<stage>/<version>`."""
    handled = find_condition(job.status.conditions, STAGE_HANDLED)
    number = handled.message.rpartition("/")[2] if handled is not None else ""
    return number.isdecimal() and int(number) >= version


def approvers(job: KusciaJob) -> tuple[str, ...]:
    """The parties of this control plane whose word is asked for."""
    return tuple(party for party in own_parties(job) if party != job.spec.initiator)


def approval_patch(
    job: KusciaJob, parties: Iterable[str], *, reject: bool, reason: str = "", record: ApprovalRecord | None = None
) -> Object:
    """A patch of the status with the word of these parties. The reason of a rejection stands where partners look for the
    explanations of a policy, so it reaches the initiator, also one that runs Kuscia. `record`: who answered, from callers
    that the API server believes it of."""
    answers = dict.fromkeys(parties, REJECTED if reject else ACCEPTED)
    status: Object = {"approveStatus": answers}
    if record is not None:
        status["approvalRecords"] = dict.fromkeys(answers, msgspec.to_builtins(record))
    if reject and (words := " ".join(reason.split())[:LONGEST_REASON]):
        name = job.metadata.name
        entries = {entry.domain_id: entry for entry in (job.status.party_task_create_status or {}).get(name, ())}
        entries |= {party: PartyTaskStatus(domain_id=party, message=f"{REJECTION}{words}") for party in answers}
        status["partyTaskCreateStatus"] = {name: msgspec.to_builtins(tuple(entries.values()))}
    return {"metadata": {"resourceVersion": job.metadata.resource_version}, "status": status}


def rejections(job: KusciaJob) -> dict[str, str]:
    """By party, the reason that a person gave for rejecting the job."""
    entries = (job.status.party_task_create_status or {}).get(job.metadata.name, ())
    return {
        entry.domain_id: entry.message.removeprefix(REJECTION)
        for entry in entries
        if entry.message.startswith(REJECTION) and (job.status.approve_status or {}).get(entry.domain_id) == REJECTED
    }


def unanswered(job: KusciaJob) -> tuple[str, ...]:
    """Parties whose approval the job waits for."""
    approvals = job.status.approve_status or {}
    return tuple(
        party for party in job.spec.party_domains if party != job.spec.initiator and approvals.get(party) != ACCEPTED
    )
