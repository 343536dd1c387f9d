"""Decisions about GpuJobs: what the status becomes, which cluster is taken. Pure.

Creating ──files are there──> Created ──cluster chosen, written down──> Submitting ──id known──> Waiting ──> Running ──> Succeeded
                                                                                                                    └─> Failed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.gpujobs.slurm_states import SlurmResult
from coterie.gpujobs.types import (
    CREATING,
    FAILED,
    FINISHED,
    RUNNING,
    SUCCEEDED,
    UNREACHABLE,
    WAITING,
    GpuJob,
    GpuJobStatus,
)
from coterie.kube.api.meta import Condition, find_condition, set_condition

CANCELLED, LOST = "Cancelled", "Lost"
TAIL = 4096
"""Characters of the output in the status."""
LOST_AFTER = 20.0
"""Seconds for which a job may be known to nobody before it counts as lost: shared file systems are late."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    name: str
    pending: int
    """Jobs that wait there, of all users."""
    assigned: int
    """GpuJobs that are to be submitted there, or were, and have not ended."""
    limit: int


def choose_cluster(loads: Sequence[ClusterLoad]) -> str | None:
    """The one with the fewest pending jobs, then with the fewest of ours; None when all have as many of ours as they may."""
    free = [load for load in loads if load.assigned < load.limit]
    return min(free, key=lambda load: (load.pending, load.assigned, load.name)).name if free else None


def waiting_for_files(status: GpuJobStatus, message: str) -> GpuJobStatus:
    return msgspec.structs.replace(status, phase=CREATING, message=message)


def failed(status: GpuJobStatus, reason: str, message: str, now: datetime) -> GpuJobStatus:
    return msgspec.structs.replace(
        status, phase=FAILED, reason=reason, message=message, completion_time=status.completion_time or rfc3339(now)
    )


def reached(status: GpuJobStatus, now: datetime) -> GpuJobStatus:
    """The cluster answers (again)."""
    if find_condition(status.conditions, UNREACHABLE) is None:
        return status
    new = Condition(type=UNREACHABLE, status="False", reason="Reachable")
    return msgspec.structs.replace(status, conditions=set_condition(status.conditions, new, rfc3339(now)))


def unreachable(status: GpuJobStatus, reason: str, message: str, now: datetime) -> GpuJobStatus:
    """The phase stays as it is: nothing is known about the job, neither good nor bad."""
    new = Condition(type=UNREACHABLE, status="True", reason=reason, message=message)
    return msgspec.structs.replace(status, conditions=set_condition(status.conditions, new, rfc3339(now)))


def observed(status: GpuJobStatus, result: SlurmResult, *, cancelled: bool, now: datetime) -> GpuJobStatus:
    """After what Slurm says. A phase never goes back, except that a job which was requeued waits again."""
    gpus = result.gpus if result.gpus is not None else status.gpus
    phase = result.phase
    changed = msgspec.structs.replace(
        reached(status, now),
        phase=phase,
        slurm_state=result.state,
        nodes=result.nodes or status.nodes,
        gpus=gpus,
        reason="" if phase in (RUNNING, SUCCEEDED) else result.reason if phase == WAITING else result.state,
        message="",
        start_time=_time(result.started) if phase != WAITING else None,
        exit_code=None,
    )
    if phase not in FINISHED:
        return changed
    ended = result.ended if result.ended is not None else int(now.timestamp())
    return msgspec.structs.replace(
        changed,
        reason=CANCELLED if cancelled and result.state == "CANCELLED" else changed.reason,
        message=_failure(result) if phase == FAILED else "",
        exit_code=result.code,
        completion_time=_time(ended),
        gpu_seconds=gpu_seconds(result.started, ended, gpus),
    )


def lost(status: GpuJobStatus, now: datetime) -> GpuJobStatus:
    message = "Slurm does not know the job any more, and the job has left no exit file"
    return failed(reached(status, now), LOST, message, now)


def gpu_seconds(started: int | None, ended: int | None, gpus: int | None) -> int:
    """Between start and end, times the GPUs; a job that never started used none."""
    if started is None or ended is None or not gpus:
        return 0
    return max(0, ended - started) * gpus


def tail_of(output: bytes, error: bytes) -> str:
    """For the status: the end of what it printed, errors first, as the seed's description has it."""
    parts = []
    for title, data in (("Errors", error), ("Outputs", output)):
        if text := printable(data[-TAIL:].decode(errors="replace")).strip("\n"):
            parts.append((title, text[-TAIL // 2 :]))
    if len(parts) == 1 and parts[0][0] == "Outputs":
        return parts[0][1] + "\n"
    return "".join(f"{title}:\n{text}\n" for title, text in parts)


def printable(text: str) -> str:
    """Without control characters: a status is read in terminals."""
    return "".join(char for char in text if char in "\n\t" or char.isprintable())


def expires_in(job: GpuJob, now: datetime) -> float | None:
    """Seconds until a finished job is deleted; None: it is kept."""
    ttl, ended = job.spec.ttl_seconds_after_finished, job.status.completion_time
    if ttl is None or ended is None:
        return None
    return ttl - (now - parse_rfc3339(ended)).total_seconds()


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))


def _failure(result: SlurmResult) -> str:
    if result.state == "FAILED" and result.code is not None:
        where = "while compiling" if result.reason == "compile" else ""
        return f"exit code {result.code} {where}".strip()
    return f"Slurm ended the job: {result.state}" + (f" ({result.reason})" if result.reason else "")
