"""What is sent next and what answers mean, each state and each answer by itself: no partner, no time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bfia_partner import create_body
from bfia_planes import own_job

from coterie.kuscia.api.types.job import JobPhase, KusciaJob, KusciaJobStatus, KusciaTask, PartyTaskStatus
from coterie.kuscia.bfia import exchange, wire
from coterie.kuscia.bfia.client import BfiaAnswer
from coterie.kuscia.bfia.exchange import LOST_SECONDS, UNKNOWN_SECONDS, BfiaCall

CREATED, STARTED = "JobCreateStageSucceeded", "JobStartStageSucceeded"
OK, SILENT, BROKEN = BfiaAnswer(200), BfiaAnswer(message="away"), BfiaAnswer(500, "inside")
REFUSED, EXISTS = BfiaAnswer(400, "no"), BfiaAnswer(400, "Job already exists")
START = BfiaCall("bob", wire.TASK_START, None, "host")
POLL, STOP = (BfiaCall("bob", path, None, "host") for path in (wire.TASK_POLL, wire.TASK_STOP))


def job(phase: str, stage: str | None = None, **metadata: Any) -> KusciaJob:
    body = own_job("j", create_body("j", "alice", "bob"))
    body["metadata"] |= {"uid": "u", **metadata}
    body["status"] = {"phase": phase, "stageStatus": {"bob": stage} if stage else {}}
    return msgspec.convert(body, KusciaJob)


def task(phase: str, bob: str = "Running") -> KusciaTask:
    named = {"alice": "guest", "bob": "host"}.items()
    parties = [{"domainID": name, "role": role, "appImageRef": "engine"} for name, role in named]
    states = [{"domainID": "bob", "role": "host", "phase": bob}]
    body = {
        "metadata": {"name": "t", "annotations": {"kuscia.secretflow/task-alias": "psi"}},
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": parties},
        "status": {"phase": phase, "partyTaskStatus": states},
    }
    return msgspec.convert(body, KusciaTask)


@pytest.mark.parametrize(
    ("phase", "stage", "sent"),
    [
        ("", None, []),
        ("AwaitingApproval", None, ["job/create"]),
        ("Pending", None, ["job/create"]),
        ("Pending", CREATED, []),
        ("Running", None, []),
        ("Running", CREATED, ["job/start"]),
        ("Running", STARTED, []),
        ("Running", "JobStartStageFailed", []),
        ("Failed", None, []),
        ("Failed", "JobCreateStageFailed", []),
        ("Failed", CREATED, ["job/stop"]),
        ("Failed", STARTED, ["job/stop"]),
        ("Failed", "JobStartStageFailed", ["job/stop"]),
        ("Failed", "JobStopStageSucceeded", []),
        ("Cancelled", STARTED, ["job/stop"]),
        ("ApprovalReject", CREATED, ["job/stop"]),
        ("Succeeded", STARTED, []),
    ],
)
def test_what_a_partner_is_told_of_a_job(phase: str, stage: str | None, sent: list[str]) -> None:
    assert [call.path for call in exchange.job_calls(job(phase, stage), ["bob"])] == sent


@pytest.mark.parametrize(
    ("path", "answer", "waited", "tried", "stage"),
    [
        (wire.JOB_CREATE, OK, 0, False, CREATED),
        (wire.JOB_CREATE, REFUSED, 0, False, "JobCreateStageFailed"),
        (wire.JOB_CREATE, EXISTS, 0, False, "JobCreateStageFailed"),
        (wire.JOB_CREATE, EXISTS, 0, True, CREATED),
        (wire.JOB_CREATE, SILENT, LOST_SECONDS - 1, True, None),
        (wire.JOB_CREATE, BROKEN, LOST_SECONDS - 1, True, None),
        (wire.JOB_CREATE, SILENT, LOST_SECONDS, True, "JobCreateStageFailed"),
        (wire.JOB_START, OK, 0, False, STARTED),
        (wire.JOB_START, EXISTS, 0, True, "JobStartStageFailed"),
        (wire.JOB_START, BROKEN, 0, True, None),
        (wire.JOB_STOP, OK, 0, False, "JobStopStageSucceeded"),
        (wire.JOB_STOP, REFUSED, 0, False, "JobStopStageFailed"),
        (wire.JOB_STOP, SILENT, 0, True, None),
        (wire.JOB_STOP, SILENT, LOST_SECONDS, True, "JobStopStageFailed"),
    ],
)
def test_what_an_answer_about_a_job_means(
    path: str, answer: BfiaAnswer, waited: float, tried: bool, stage: str | None
) -> None:
    after = exchange.job_answered(
        job("Running"), KusciaJobStatus(), BfiaCall("bob", path, None), answer, waited, tried=tried
    )
    if stage is None:
        assert after is None, "it is tried again"
        return
    assert after is not None and (after.stage_status or {})["bob"] == stage
    accepted = (after.approve_status or {}).get("bob") == "JobAccepted"
    assert accepted is (stage == CREATED)
    failed = (after.party_task_create_status or {}).get("j", ())
    assert [each.domain_id for each in failed] == (
        ["bob"] if stage.endswith("Failed") and path != wire.JOB_STOP else []
    )


@pytest.mark.parametrize(
    ("phase", "bob", "reservation", "stage", "sent"),
    [
        ("Pending", "", "Reserving", CREATED, []),
        ("Pending", "", "Reserving", STARTED, ["task/start"]),
        ("Pending", "", "", STARTED, ["task/start"]),
        ("Running", "Running", "Reserved", STARTED, ["task/poll"]),
        ("Running", "Running", "Schedulable", STARTED, ["task/poll"]),
        ("Running", "Succeeded", "Schedulable", STARTED, []),
        ("Failed", "Running", "Schedulable", STARTED, ["task/stop"]),
        ("Failed", "Failed", "Schedulable", STARTED, []),
        ("Failed", "", "Reserving", STARTED, []),
        ("Running", "Running", "Failed", STARTED, []),
    ],
)
def test_what_a_partner_is_told_of_a_task(phase: str, bob: str, reservation: str, stage: str, sent: list[str]) -> None:
    calls = exchange.task_calls(job("Running", stage), task(phase, bob), {"bob"}, {"bob": reservation})
    assert [(call.partner, call.path, call.role) for call in calls] == [("bob", path, "host") for path in sent]


def polled(status: Any) -> BfiaAnswer:
    return BfiaAnswer(200, data={"status": status})


@pytest.mark.parametrize(
    ("answer", "silent", "phase"),
    [
        (polled("PENDING"), 0, "Pending"),
        (polled("RUNNING"), 0, "Running"),
        (polled("SUCCESS"), 0, "Succeeded"),
        (polled("FAILED"), 0, "Failed"),
        (polled("DONE"), 0, None),
        (polled(None), 0, None),
        (polled({"t": "SUCCESS"}), 0, None),
        (BfiaAnswer(200), LOST_SECONDS, "Failed"),
        (REFUSED, UNKNOWN_SECONDS - 1, None),
        (REFUSED, UNKNOWN_SECONDS, "Failed"),
        (SILENT, LOST_SECONDS - 1, None),
        (BROKEN, LOST_SECONDS, "Failed"),
    ],
)
def test_what_a_poll_means(answer: BfiaAnswer, silent: float, phase: str | None) -> None:
    found = exchange.party_after_poll(POLL, answer, silent)
    assert (found.phase if found is not None else None) == phase
    assert found is None or (found.domain_id, found.role) == ("bob", "host")


@pytest.mark.parametrize(("answer", "fails"), [(OK, False), (SILENT, False), (BROKEN, False), (REFUSED, True)])
def test_what_the_answer_to_a_start_means(answer: BfiaAnswer, fails: bool) -> None:
    found = exchange.party_after_start(START, answer)
    assert (found is not None) is fails
    assert found is None or (found.phase, found.message) == ("Failed", "bob does not start the task: no")


@pytest.mark.parametrize(
    ("answer", "waited", "over"),
    [(OK, 0, True), (REFUSED, 0, True), (BROKEN, 0, False), (SILENT, LOST_SECONDS - 1, False), (SILENT, 301, True)],
)
def test_what_the_answer_to_a_stop_means(answer: BfiaAnswer, waited: float, over: bool) -> None:
    found = exchange.party_after_stop(STOP, answer, waited)
    assert (found.phase if found is not None else None) == ("Failed" if over else None)


@pytest.mark.parametrize(
    ("answer", "silent", "phase"),
    [
        (polled({"t": "PENDING"}), 0, "Pending"),
        (polled({"t": "RUNNING"}), 0, "Running"),
        (polled({"t": "SUCCESS"}), 0, "Succeeded"),
        (polled({"t": "FAILED"}), 0, "Failed"),
        (polled({"t": 1}), 0, None),
        (polled({"other": "FAILED"}), LOST_SECONDS, None),
        (polled("FAILED"), 0, None),
        (polled(["t"]), LOST_SECONDS, "Failed"),
        (SILENT, LOST_SECONDS - 1, None),
        (SILENT, LOST_SECONDS, "Failed"),
        (REFUSED, LOST_SECONDS, "Failed"),
    ],
)
def test_what_the_initiator_says_of_all_tasks(answer: BfiaAnswer, silent: float, phase: str | None) -> None:
    """As bob, in a job of alice's."""
    found = exchange.others_after_status(job("Running"), {"t": task("Running")}, {"bob"}, answer, silent)
    assert [(each.domain_id, each.phase) for each in found.get("t", ())] == ([("alice", phase)] if phase else [])


def test_only_a_job_that_runs_asks_its_initiator() -> None:
    started = {"kuscia.secretflow/job-stage": "Start"}
    assert exchange.asks_status(job(JobPhase.RUNNING, labels=started))
    assert not exchange.asks_status(job(JobPhase.RUNNING))
    assert not exchange.asks_status(job(JobPhase.SUCCEEDED, labels=started))


def test_who_has_ended_stays_so() -> None:
    over = PartyTaskStatus(domain_id="bob", role="host", phase="Succeeded")
    late = PartyTaskStatus(domain_id="bob", role="host", phase="Failed")
    other = PartyTaskStatus(domain_id="carol", role="arbiter", phase="Running")
    assert exchange.with_parties((over,), (late, other)) == (over, other)
    assert exchange.with_parties((other,), (late,)) == (other, late)
    assert exchange.with_parties(None, ()) is None
