"""When a task that failed is begun again, and how a partner's record of it is bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from coterie.kuscia.api.jobs.retries import (
    LONGEST_BACKOFF,
    MOST_RETRIES,
    STALL_RETRIES,
    TASK_INVALID,
    TASK_STALLED,
    TASK_STOPPED,
    attempts_taken,
    failed_attempt,
    most_retries,
    pause_before,
    public_attempt,
    retries_for,
)
from coterie.kuscia.api.jobs.validation import job_problems
from coterie.kuscia.api.types.job import KusciaJobSpec, KusciaTask, KusciaTaskStatus, ScheduleConfig, TaskAttempt

NOW = datetime(2026, 11, 16, 18, 0, 0, tzinfo=UTC)
FAILED = "TaskFailed"


def config(**fields: Any) -> ScheduleConfig:
    return msgspec.convert(fields, ScheduleConfig)


@pytest.mark.parametrize(
    ("fields", "reason", "times"),
    [
        ({}, FAILED, 0),
        ({"retry": {"count": 2}}, FAILED, 2),
        ({"retry": {"count": 99}}, FAILED, MOST_RETRIES),
        ({"retry": {"count": -1}}, FAILED, 0),
        ({"retry": {"count": 2}}, TASK_STOPPED, 0),
        ({"retry": {"count": 2}}, TASK_INVALID, 0),
        ({"retry": {"count": 2}, "stallSeconds": 9}, TASK_STALLED, 2),
        ({"stallSeconds": 9}, TASK_STALLED, 0),
        ({"stallSeconds": 9, "stallAction": "Restart"}, TASK_STALLED, STALL_RETRIES),
        ({"stallSeconds": 9, "stallAction": "Restart"}, FAILED, 0),
        ({"stallSeconds": 9, "stallAction": "Restart", "retry": {"count": 0}}, TASK_STALLED, 0),
    ],
)
def test_how_often(fields: dict[str, Any], reason: str, times: int) -> None:
    assert retries_for(config(**fields), reason) == times
    assert most_retries(config(**fields)) >= times


@pytest.mark.parametrize(("failed", "seconds"), [(1, 30), (2, 60), (3, 120), (10, LONGEST_BACKOFF)])
def test_the_pause_is_doubled_up_to_an_hour(failed: int, seconds: float) -> None:
    assert pause_before(config(retry={"count": 10, "backoffSeconds": 30}), FAILED, failed) == seconds


def test_a_stalled_task_is_begun_again_at_once() -> None:
    chosen = config(retry={"count": 1, "backoffSeconds": 30}, stallSeconds=9, stallAction="Restart")
    assert pause_before(chosen, TASK_STALLED, 1) == 0 and pause_before(chosen, FAILED, 1) == 30


def _task(reason: str, message: str) -> KusciaTask:
    plain = {"metadata": {"uid": "u"}, "spec": {"initiator": "a", "taskInputConfig": "", "parties": []}}
    made = msgspec.convert(plain, KusciaTask)
    return msgspec.structs.replace(made, status=KusciaTaskStatus(phase="Failed", reason=reason, message=message))


def test_the_record_of_an_attempt_names_the_next_or_is_the_last() -> None:
    chosen = config(retry={"count": 1, "backoffSeconds": 30})
    first = failed_attempt(_task(FAILED, "party bob: exited with 7\nprinted at the end: a secret"), chosen, (), NOW)
    assert (first.attempt, first.task_uid, first.retry_time) == (1, "u", "2026-11-16T18:00:30Z")
    assert first.message == "party bob: exited with 7", "what engines print stays out"
    assert failed_attempt(_task(FAILED, ""), chosen, (first,), NOW).retry_time is None


def test_partners_are_not_told_of_nodes_and_quotas() -> None:
    refused = TaskAttempt(attempt=1, reason="CreateResourceFailed", message="Pod x: exceeded quota: alice-3")
    assert public_attempt(refused).message == ""
    ended = TaskAttempt(attempt=1, reason=FAILED, message="party bob: exited with 7")
    assert public_attempt(ended) == ended


def test_what_a_host_reports_is_bounded_by_the_job() -> None:
    many = tuple(TaskAttempt(attempt=n, reason="r" * 500, message="m" * 5000) for n in range(1, 30))
    taken = attempts_taken({"t": many, "other": many}, {"t": config(retry={"count": 2}), "u": None})
    assert taken is not None and set(taken) == {"t"} and len(taken["t"]) == 3
    assert all(len(each.reason) <= 64 and len(each.message) <= 512 for each in taken["t"])
    assert attempts_taken(None, {}) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stallSeconds": 4}, "stallSeconds"),
        ({"stallAction": "Restart"}, "stallAction"),
        ({"stallSeconds": 9, "stallAction": "Sleep"}, "stallAction"),
        ({"retry": {"count": 11}}, "retry.count"),
        ({"retry": {"count": -1}}, "retry.count"),
        ({"retry": {"count": 1, "backoffSeconds": 3601}}, "retry.backoffSeconds"),
        ({"stallSeconds": 5, "stallAction": "Restart", "retry": {"count": 10, "backoffSeconds": 3600}}, ""),
    ],
)
def test_validation(fields: dict[str, Any], field: str) -> None:
    task = {
        "alias": "a",
        "appImage": "e",
        "taskInputConfig": "",
        "parties": [{"domainID": "alice"}],
        "scheduleConfig": fields,
    }
    found = job_problems("j", msgspec.convert({"initiator": "alice", "tasks": [task]}, KusciaJobSpec))
    assert [each.field for each in found] == ([f"tasks[0].scheduleConfig.{field}"] if field else [])
