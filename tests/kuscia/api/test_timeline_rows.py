"""Rows of the timeline: who did what, why it did not go on, and each attempt apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.jobs.timeline import Note, facts
from coterie.kuscia.api.jobs.timeline_rows import JobRows, TimelineRow, job_rows, split_sentence
from coterie.kuscia.api.task_usage import PodUsage, TaskUsage
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource


def at(seconds: int, day: int = 2) -> str:
    return f"2026-01-{day:02d}T03:{seconds // 60:02d}:{seconds % 60:02d}Z"


def moment(seconds: int, day: int = 2) -> float:
    found = parse_time(at(seconds, day))
    assert found is not None
    return found.timestamp()


ZERO = moment(0)


def a_job(phase: str = "Running", **status: Any) -> KusciaJob:
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    tasks = [
        {"alias": alias, "taskID": f"j-{alias}", "appImage": "e", "taskInputConfig": "", "dependencies": after, "parties": parties}
        for alias, after in (("psi", None), ("train", ["psi"]))
    ]  # fmt: skip
    meta = {"name": "j", "uid": "u", "creationTimestamp": at(0)}
    known = {"phase": phase, "conditions": [{"type": "JobValidated", "status": "True", "lastTransitionTime": at(1)}]}
    return msgspec.convert(
        {"metadata": meta, "spec": {"initiator": "alice", "tasks": tasks}, "status": known | status}, KusciaJob
    )


def a_task(
    begin: int = 2, *, phase: str = "Running", placed: int | None = 20, pods: int = 1, day: int = 2
) -> KusciaTask:
    listed: dict[str, Any] = {
        f"alice/p{number}": {"podName": f"j-psi-{number}", "podPhase": phase if placed else "Pending", "namespace": "alice",
                             "createTime": at(begin, day), **({"scheduleTime": at(placed, day), "readyTime": at(placed + 2, day)} if placed else {})}
        for number in range(pods)
    }  # fmt: skip
    conditions = [{"type": "ResourceCreated", "status": "True", "lastTransitionTime": at(begin, day)}]
    if placed:
        conditions.append({"type": "Running", "status": "True", "lastTransitionTime": at(placed + 2, day)})
    state = phase if placed else "Pending"
    status = {"phase": state, "podStatuses": listed, "conditions": conditions,
              "partyTaskStatus": [{"domainID": "alice", "phase": state}, {"domainID": "bob", "phase": state}]}  # fmt: skip
    meta = {
        "name": "j-psi",
        "uid": "t",
        "creationTimestamp": at(begin, day),
        "labels": {"kuscia.secretflow/job-uid": "u"},
    }
    spec = {"initiator": "alice", "taskInputConfig": "", "parties": []}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, KusciaTask)


def rows_of(job: KusciaJob, *tasks: KusciaTask, now: int = 60, **more: Any) -> JobRows:
    known = facts(job, tasks, reservations=more.pop("reservations", ()))
    return job_rows(job, tasks, known, more.pop("own", ("alice",)), more.pop("at", moment(now)), **more)


def row(found: JobRows, kind: str, **marks: Any) -> TimelineRow:
    (one,) = [
        each
        for each in found.rows
        if each.kind == kind and all(getattr(each, name) == value for name, value in marks.items())
    ]
    return one


def spans(one: TimelineRow) -> list[tuple[str, float, float]]:
    return [(span.kind, span.begin - ZERO, span.end - ZERO) for span in one.spans]


WAITING = (
    "Waiting for party alice: pod j-psi-0: 0/1 nodes are available: 1 Insufficient cpu; party bob: no free memory "
    "(since 2026-01-02T03:00:02Z). Run `coterie top node`, and free resources of alice or ask for less."
)


def test_a_gap_says_who_waits_for_what_and_what_to_do() -> None:
    note = Note(moment(2), moment(2), "psi", WAITING, task="psi")
    found = rows_of(a_job(), a_task(), notes=[note])
    alice, bob = row(found, "party", task="psi", party="alice"), row(found, "party", task="psi", party="bob")
    assert spans(alice) == [("wait", 2, 20), ("start", 20, 22), ("run", 22, 60)]
    wait = alice.spans[0]
    assert (wait.sentence, wait.by) == ("0/1 nodes are available: 1 Insufficient cpu", "")
    assert wait.next_step.startswith("Run `coterie top node`") and not wait.going_on
    assert bob.reported and (bob.spans[0].sentence, bob.spans[0].by) == ("no free memory", "bob")
    assert row(found, "task", task="psi").spans[0].sentence.startswith("Waiting for party alice: pod j-psi-0")
    assert alice.spans[-1].going_on and alice.spans[-1].sentence == ""


def test_what_holds_longest_is_the_reason() -> None:
    notes = [
        Note(moment(2), moment(2), "psi", "Waiting for the route to bob. Run `coterie route check`.", task="psi"),
        Note(moment(4), moment(4), "psi", "Waiting for a node. Run `coterie top node`.", task="psi"),
    ]
    found = rows_of(a_job(), a_task(), notes=notes)
    assert row(found, "party", task="psi", party="alice").spans[0].sentence == "Waiting for a node"


def test_room_that_is_held_is_told_from_waiting_for_it() -> None:
    condition = {"type": "Reserving", "status": "False", "lastTransitionTime": at(9)}
    after = {"type": "Reserved", "status": "False", "lastTransitionTime": at(20)}
    meta = {"name": "r", "namespace": "alice", "annotations": {"kuscia.secretflow/task-id": "j-psi"}}
    held = msgspec.convert(
        {"metadata": meta, "spec": {}, "status": {"phase": "Schedulable", "conditions": [condition, after]}},
        TaskResource,
    )
    found = rows_of(a_job(), a_task(), reservations=[held])
    assert spans(row(found, "party", task="psi", party="alice"))[:2] == [("wait", 2, 9), ("reserve", 9, 20)]


def test_a_task_that_has_not_begun_waits_for_another() -> None:
    train = row(rows_of(a_job(), a_task()), "task", task="train")
    (queue,) = train.spans
    assert (queue.kind, queue.sentence, queue.going_on) == ("queue", "Waiting for task psi", True)


def test_what_a_partner_shares_are_its_own_times() -> None:
    used = TaskUsage("j-psi", (PodUsage("bob", "j-psi-0", (), moment(3), moment(5), moment(6), moment(50)),))
    bob = row(rows_of(a_job(), a_task(), usage=[used]), "party", task="psi", party="bob")
    assert bob.reported and bob.pod == "j-psi-0"
    assert spans(bob) == [("wait", 3, 5), ("start", 5, 6), ("run", 6, 50)]


def test_several_pods_of_a_party_have_rows_of_their_own() -> None:
    used = TaskUsage("j-psi", (PodUsage("alice", "j-psi-1", (), moment(2), moment(20), moment(21), moment(40)),))
    found = rows_of(a_job(), a_task(pods=2), usage=[used])
    assert row(found, "party", task="psi", party="alice").pod == ""
    assert spans(row(found, "pod", pod="j-psi-1")) == [("wait", 2, 20), ("start", 20, 21), ("run", 21, 40)]
    assert row(found, "pod", pod="j-psi-0").spans[-1].kind == "run"


def test_a_retry_days_later_does_not_squeeze_the_axis() -> None:
    first = {"attempt": 1, "startTime": at(2), "endTime": at(30), "reason": "TaskFailed", "message": "bob: exit 1",
             "retryTime": at(0, day=4)}  # fmt: skip
    job = a_job(taskAttempts={"j-psi": [first]})
    found = rows_of(job, a_task(10, day=4), at=moment(60, day=4))
    assert [window.number for window in found.attempts] == [1, 2]
    one, two = found.attempts
    assert (one.begin - ZERO, one.end - ZERO, one.reason) == (0, 30, "TaskFailed: bob: exit 1")
    assert two.end - two.begin == pytest.approx(50) and two.reason == ""
    failed = row(found, "task", task="psi", attempt=1)
    assert [span.kind for span in failed.spans] == ["run", "pause"] and failed.phase == "Failed"
    assert rows_of(a_job(), a_task()).attempts == ()


def test_a_job_that_was_restarted_begins_with_that() -> None:
    conditions = [{"type": "JobRestarted", "status": "True", "lastTransitionTime": at(0, day=5)}]
    found = rows_of(a_job(conditions=conditions), a_task(3, day=5), at=moment(60, day=5))
    assert found.begin == found.restarted == moment(0, day=5)
    assert found.end - found.begin == 60


def test_a_sentence_is_split_into_reason_and_next_step() -> None:
    assert split_sentence("Waiting for bob (since 2026-01-02T03:04:05Z). Ask bob.") == ("Waiting for bob", "Ask bob.")
    assert split_sentence("FailedScheduling: no nodes.") == ("FailedScheduling: no nodes.", "")
