"""Whether a task that failed is begun again, and when. Pure.

    failure                              retried
    -----------------------------------  --------------------------------------------------------------------
    a person stopped the job             never: the job is not Running any more
    the task cannot run here (TaskInvalid), or was stopped (KusciaJobStopped)   never
    TaskStalled, stallAction Restart     at once, up to `retry.count` times, or 3 where there is no `retry`
    any other                            up to `retry.count` times, after `backoffSeconds`, doubled each time

The control plane of the initiator decides and writes each failed attempt into the job's `status.taskAttempts`; partners
copy that list and follow. A partner never begins a task more often than its own copy of the job allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import find_condition
from coterie.kuscia.api.jobs.conditions import SUCCESS
from coterie.kuscia.api.types.job import STALL_RESTART, KusciaTask, ScheduleConfig, TaskAttempt

MOST_RETRIES: Final = 10
LONGEST_BACKOFF: Final = 3600
LEAST_STALL_SECONDS: Final = 5
STALL_RETRIES: Final = 3
"""Of a stalled task with stallAction Restart and without `retry`."""
TASK_STALLED: Final = "TaskStalled"
TASK_STOPPED: Final = "KusciaJobStopped"
TASK_INVALID: Final = "TaskInvalid"
_FINAL_REASONS: Final = frozenset((TASK_STOPPED, TASK_INVALID))
_PUBLIC_REASONS: Final = frozenset(("TaskFailed", TASK_STALLED))
_LONGEST_MESSAGE: Final = 512
_LONGEST_WORD: Final = 64

Attempts = Mapping[str, tuple[TaskAttempt, ...]]
"""By task id."""


def most_retries(config: ScheduleConfig | None) -> int:
    """How often a task with this configuration is begun again at most."""
    if config is None:
        return 0
    count = config.retry.count if config.retry is not None else 0
    if config.stall_seconds and config.stall_action == STALL_RESTART and config.retry is None:
        count = STALL_RETRIES
    return min(max(0, count), MOST_RETRIES)


def retries_for(config: ScheduleConfig | None, reason: str) -> int:
    """How often a task that failed for this reason is begun again at most."""
    if config is None or reason in _FINAL_REASONS:
        return 0
    if config.retry is None and reason != TASK_STALLED:
        return 0
    return most_retries(config)


def pause_before(config: ScheduleConfig | None, reason: str, failed: int) -> float:
    """Seconds between the failure and the next attempt; `failed`: attempts that failed, this one included."""
    if config is None or config.retry is None:
        return 0.0
    if reason == TASK_STALLED and config.stall_action == STALL_RESTART:
        return 0.0
    return float(min(config.retry.backoff_seconds * 2 ** (failed - 1), LONGEST_BACKOFF))


def failed_attempt(
    task: KusciaTask, config: ScheduleConfig | None, before: Sequence[TaskAttempt], now: datetime
) -> TaskAttempt:
    """The record of an attempt that failed just now, with the time of the next one if there is one."""
    status = task.status
    number = len(before) + 1
    again = number <= retries_for(config, status.reason)
    due = now + timedelta(seconds=pause_before(config, status.reason, number))
    ended = find_condition(status.conditions, SUCCESS)
    return TaskAttempt(
        attempt=number,
        task_uid=task.metadata.uid,
        start_time=status.start_time,
        end_time=(ended.last_transition_time if ended is not None else None) or rfc3339(now),
        reason=status.reason,
        message=status.message.partition("\n")[0][:_LONGEST_MESSAGE],
        retry_time=rfc3339(due) if again else None,
    )


def public_attempt(attempt: TaskAttempt) -> TaskAttempt:
    """As partners see it. The message of a failure in the engines consists of what the parties tell each other anyway;
    others name nodes and quotas of ours."""
    return attempt if attempt.reason in _PUBLIC_REASONS else replace(attempt, message="")


def attempts_taken(
    reported: Attempts | None, allowed: Mapping[str, ScheduleConfig | None]
) -> dict[str, tuple[TaskAttempt, ...]] | None:
    """A partner's copy of what the initiator reported. `allowed`: tasks of the job by id. Entries beyond what the job
    allows are dropped, and texts are cut."""
    out: dict[str, tuple[TaskAttempt, ...]] = {}
    for task, attempts in (reported or {}).items():
        if task in allowed and attempts:
            out[task] = tuple(_bounded(each) for each in attempts[: most_retries(allowed[task]) + 1])
    return out or None


def _bounded(reported: TaskAttempt) -> TaskAttempt:
    return replace(
        reported,
        task_uid=reported.task_uid[:_LONGEST_WORD],
        reason=reported.reason[:_LONGEST_WORD],
        message=reported.message[:_LONGEST_MESSAGE],
    )
