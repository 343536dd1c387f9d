"""What becomes of a LogRequest, as pure decisions: ends, limits, the standing policy."""

from __future__ import annotations

import base64
import json
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.base.redaction import MOST_KNOWN_VALUES, Redactor
from coterie.kuscia.api import labels
from coterie.kuscia.api.log_query import LogLine, LogPage, LogQuery
from coterie.kuscia.api.log_requests import (
    MOST_BYTES,
    MOST_LINES,
    MOST_PER_HOUR,
    RETENTION_SECONDS,
    RequesterLoad,
    bounds_of,
    excerpt_of,
    load_fault,
    load_of,
    readable_tasks,
    recorded,
    status_for_requester,
    status_from_owner,
    tasks_of_job,
)
from coterie.kuscia.api.partner_policy import Verdict
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequest, LogRequestRecord, LogRequestStatus, Way
from coterie.kuscia.api.types.partner_policy import PartnerPolicySpec
from coterie.kuscia.controllers.logrequest import plan
from coterie.kuscia.controllers.logrequest.excerpts import known_secrets, read_excerpt

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_request(
    namespace: str = "bob", made: datetime = NOW, status: LogRequestStatus | None = None, **spec: Any
) -> LogRequest:
    body = {
        "metadata": {"name": "lr", "namespace": namespace, "creationTimestamp": rfc3339(made)},
        "spec": {"requester": "alice", "owner": "bob", "job": "j", "reason": "r", **spec},
    }
    found = msgspec.convert(body, LogRequest)
    return replace(found, status=status) if status is not None else found


def a_job() -> KusciaJob:
    task = {"alias": "a", "appImage": "e", "taskInputConfig": "", "taskID": "t-1"}
    task["parties"] = [{"domainID": "alice"}, {"domainID": "bob"}]  # type: ignore[assignment]
    return msgspec.convert({"metadata": {"name": "j"}, "spec": {"initiator": "alice", "tasks": [task]}}, KusciaJob)


def a_task(phase: str) -> dict[str, KusciaTask]:
    body = {
        "metadata": {"name": "t-1"},
        "spec": {"initiator": "alice", "taskInputConfig": "", "parties": []},
        "status": {"phase": phase},
    }
    return {"t-1": msgspec.convert(body, KusciaTask)}


def a_policy(**logs: Any) -> PartnerPolicySpec:
    return msgspec.convert({"appImages": ["*"], "logs": {"sources": ["engine"], **logs}}, PartnerPolicySpec)


@pytest.mark.parametrize("side", ["outgoing", "incoming"])
def test_a_record_is_deleted_after_its_time_and_not_before(side: str) -> None:
    def step(age: float) -> plan.RequestStep:
        status = LogRequestStatus(phase="Expired", end_time=rfc3339(NOW - timedelta(seconds=age)))
        if side == "outgoing":
            return plan.outgoing(a_request("alice", status=status), None, True, 0, Way.HOST, NOW)
        return plan.incoming(a_request(status=status), None, RequesterLoad(), None, NOW)

    young, old = step(60), step(RETENTION_SECONDS + 1)
    assert not young.delete and young.after == pytest.approx(RETENTION_SECONDS - 59)
    assert old.delete


@pytest.mark.parametrize("phase", ["Pending", "AwaitingApproval", "Answered"])
def test_every_state_that_waits_has_an_end(phase: str) -> None:
    past = rfc3339(NOW - timedelta(seconds=1))
    status = LogRequestStatus(phase=phase, expire_time=past, answer=LogExcerpt(text="x"), preview=LogExcerpt(text="x"))
    for step in (
        plan.outgoing(a_request("alice", status=status), a_job(), True, 0, Way.HOST, NOW),
        plan.incoming(a_request(status=status), a_job(), RequesterLoad(), None, NOW),
    ):
        assert step.status.phase == "Expired" and step.status.message
        assert step.status.answer is None and step.status.preview is None


def test_a_mirror_that_nobody_removes_goes_in_the_end() -> None:
    assert not plan.mirror(a_request(made=NOW - timedelta(days=20)), NOW).delete
    assert plan.mirror(a_request(made=NOW - timedelta(days=22)), NOW).delete


def test_a_request_whose_job_was_deleted_before_its_logs_were_read_ends() -> None:
    status = LogRequestStatus(phase="AwaitingApproval", expire_time=rfc3339(NOW + timedelta(hours=1)))
    step = plan.incoming(a_request(status=status), None, RequesterLoad(), None, NOW)
    assert step.status.phase == "Rejected" and step.status.message == "job j was deleted"


def test_a_time_that_cannot_be_read_is_over() -> None:
    status = LogRequestStatus(phase="Answered", expire_time="soon", answer=LogExcerpt(text="x"))
    assert plan.incoming(a_request(status=status), a_job(), RequesterLoad(), None, NOW).status.phase == "Expired"


DECISIONS = [
    (None, {}, Verdict.ASK, "there is no policy for alice"),
    (PartnerPolicySpec(app_images=("*",)), {}, Verdict.ASK, "opens no logs"),
    (PartnerPolicySpec(outside="Refuse"), {}, Verdict.REFUSE, "opens no logs"),
    (a_policy(), {}, Verdict.ALLOW, ""),
    (a_policy(), {"sources": ["gateway"]}, Verdict.ASK, "may not read gateway"),
    (a_policy(maxLines=10), {}, Verdict.ASK, "asks for 500 lines, alice may have 10"),
    (a_policy(maxLines=10), {"maxLines": 10}, Verdict.ALLOW, ""),
    (a_policy(maxBytes=10), {}, Verdict.ASK, "bytes, alice may have 10"),
    (a_policy(keepSeconds=10), {}, Verdict.ASK, "seconds of keeping, alice may have 10"),
    (a_policy(onlyFailed=True), {}, Verdict.ASK, "failed tasks only"),
    (a_policy(redact=["(a+)+"]), {}, Verdict.ASK, "cannot be applied"),
    (a_policy(perDay=0), {}, Verdict.ASK, "in the last 24 hours"),
]


@pytest.mark.parametrize(
    ("policy", "spec", "verdict", "words"), DECISIONS, ids=[f"{row[2]}-{row[3]}" for row in DECISIONS]
)
def test_the_standing_policy(policy: PartnerPolicySpec | None, spec: Any, verdict: Verdict, words: str) -> None:
    found = plan.decide(policy, a_request(**spec).spec, a_job(), a_task("Succeeded"), RequesterLoad())
    assert found.verdict is verdict and words in found.sentence


def test_failed_tasks_and_the_number_of_a_day() -> None:
    policy, spec = a_policy(onlyFailed=True, perDay=2), a_request().spec
    assert (
        plan.decide(policy, spec, a_job(), a_task("Failed"), RequesterLoad(automatic_last_day=1)).verdict
        is Verdict.ALLOW
    )
    assert (
        plan.decide(policy, spec, a_job(), a_task("Failed"), RequesterLoad(automatic_last_day=2)).verdict is Verdict.ASK
    )


def test_what_a_partner_has_here_is_counted() -> None:
    old = NOW - timedelta(days=2)
    others = [
        a_request(status=LogRequestStatus(phase="AwaitingApproval")),
        a_request(),
        a_request(status=LogRequestStatus(phase="Answered", decided_by="policy")),
        a_request(made=old, status=LogRequestStatus(phase="Expired", decided_by="policy")),
    ]
    assert load_of(others, NOW) == RequesterLoad(open=2, last_hour=3, automatic_last_day=1)
    assert load_fault("alice", RequesterLoad(open=5), None) and not load_fault("alice", RequesterLoad(open=4), None)
    assert load_fault("alice", RequesterLoad(open=1), a_policy(openRequests=1))
    assert "in the last hour" in load_fault("alice", RequesterLoad(last_hour=MOST_PER_HOUR), None)


def test_the_oldest_records_make_room() -> None:
    records = [
        a_request(status=LogRequestStatus(phase="Expired", end_time=rfc3339(NOW + timedelta(seconds=number))))
        for number in range(plan.MOST_RECORDS + 3)
    ]
    waiting = a_request(status=LogRequestStatus(phase="AwaitingApproval"))
    automatic = a_request(status=LogRequestStatus(phase="Withdrawn", decided_by="policy", end_time=rfc3339(NOW)))
    gone = plan.surplus([automatic, waiting, *reversed(records)], NOW)
    assert gone == tuple(records[:3]), "what counts for perDay stays"
    assert automatic in plan.surplus([automatic, waiting, *reversed(records)], NOW + timedelta(days=2))


def made_task(uid: str, *parties: str) -> KusciaTask:
    """Of the job with that uid."""
    body = {
        "metadata": {"name": "t-1", "labels": {labels.KUSCIA_JOB_UID: uid}},
        "spec": {
            "initiator": "x",
            "taskInputConfig": "",
            "parties": [{"domainID": each, "appImageRef": "e"} for each in parties],
        },
    }
    return msgspec.convert(body, KusciaTask)


def test_ids_of_other_jobs_are_not_believed() -> None:
    """Whoever begins a job chooses the ids of its tasks."""
    job, spec = replace(a_job(), metadata=replace(a_job().metadata, uid="u1")), a_request().spec

    for task, readable in (
        (made_task("u1", "alice", "bob"), True),
        (made_task("u2", "carol", "bob"), False),
        (made_task("u2", "alice", "bob"), False),
        (made_task("u1", "carol", "bob"), False),
    ):
        assert bool(readable_tasks(job, spec, tasks_of_job(job, [task]))) is readable
    assert not tasks_of_job(a_job(), [made_task("", "alice", "bob")]), "a job without a uid has no tasks"


async def test_a_guess_is_confirmed_by_nothing_that_is_counted() -> None:
    """Neither the number of redactions nor the mark of more lines, of lines that are not shown."""
    job = replace(a_job(), metadata=replace(a_job().metadata, uid="u1", creation_timestamp=rfc3339(NOW)))
    queries: list[LogQuery] = []

    class Logs:
        async def query(self, query: LogQuery) -> LogPage:
            queries.append(query)
            texts = ("password=hunter2", "password=hunter2") if "hunter2" in query.grep else ()
            return LogPage(tuple(LogLine("2026", "engine", "bob", "t-1", "p", each) for each in texts), "more")

    own = tasks_of_job(job, [made_task("u1", "alice", "bob")])
    right, wrong = [
        await read_excerpt(Logs(), a_request(grep=guess, maxLines=1).spec, job, own, Redactor(), NOW, 0)
        for guess in ("hunter2", "hunter3")
    ]
    assert right == wrong
    assert queries[0].since == NOW, "lines from before the job are of another one"


async def test_long_lines_are_not_held_without_limit() -> None:
    job = replace(a_job(), metadata=replace(a_job().metadata, uid="u1"))

    class Logs:
        async def query(self, query: LogQuery) -> LogPage:
            texts = [f"{number} x y " * 1024 for number in range(400)]
            return LogPage(tuple(LogLine("2026", "engine", "bob", "t-1", "p", each) for each in texts), "more")

    own = tasks_of_job(job, [made_task("u1", "alice", "bob")])
    spec = a_request(maxLines=MOST_LINES).spec
    tracemalloc.start()
    try:
        found = await read_excerpt(Logs(), spec, job, own, Redactor(), NOW, 0)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert found.truncated and len(found.text) <= MOST_BYTES


async def test_a_partners_job_does_not_push_our_secrets_out_of_the_list() -> None:
    many = {f"token{number}": f"filler-{number:06d}" for number in range(2 * MOST_KNOWN_VALUES)}
    job = a_job()
    task = replace(job.spec.tasks[0], task_input_config=json.dumps(many))
    job = replace(job, spec=replace(job.spec, tasks=(task,)))

    class Page:
        def __init__(self, *items: Any) -> None:
            self.items = list(items)

    class Objects:
        async def list(self, kind: Any, namespace: str = "") -> Page:
            planted = {"data": {"k": base64.b64encode(b"planted-by-the-owner").decode()}}
            return Page(planted) if kind.resource.kind == "Secret" else Page()

    known = await known_secrets(Objects(), "bob", job)  # type: ignore[arg-type]
    assert "planted" not in Redactor(known).line("with planted-by-the-owner")


WAYS = [
    (True, "bob", True, (), Way.LOCAL),
    (False, "bob", True, ("bob",), Way.HOST),
    (False, "bob", False, ("bob",), Way.MEMBER),
    (False, "bob", False, ("carol",), Way.HOST),
]


@pytest.mark.parametrize(("own", "control_plane", "initiated", "followed", "way"), WAYS)
def test_how_a_request_travels(
    own: bool, control_plane: str, initiated: bool, followed: tuple[str, ...], way: Way
) -> None:
    assert plan.way_of(own, control_plane, initiated, followed) is way


def test_an_excerpt_has_the_newest_lines_that_fit() -> None:
    bounds = bounds_of(a_request(maxLines=3, maxBytes=10).spec)
    found = excerpt_of([f"line{number}" for number in range(9)], bounds, NOW)
    assert (found.text, found.lines, found.truncated) == ("line8\n", 1, True)
    few = excerpt_of(["a", "b", "c", "d"], bounds, NOW)
    assert (few.text, few.lines, few.truncated) == ("b\nc\nd\n", 3, True)
    assert bounds_of(a_request(maxBytes=MOST_BYTES).spec).bytes == MOST_BYTES


def test_the_history_is_bounded_and_keeps_who_asked() -> None:
    status = LogRequestStatus()
    for number in range(100):
        status = recorded(status, LogRequestRecord(time="t", event=f"e{number}"))
    assert status.history is not None and len(status.history) == 20
    assert (status.history[0].event, status.history[-1].event) == ("e0", "e99")


def test_what_travels_to_the_requester() -> None:
    status = LogRequestStatus(
        phase="AwaitingApproval",
        message="m",
        preview=LogExcerpt(text="x"),
        answer=LogExcerpt(text="x"),
        history=(LogRequestRecord(time="t", event="e"),),
    )
    assert status_for_requester(status) == LogRequestStatus(phase="AwaitingApproval", message="m")


def test_what_has_ended_stays_ended() -> None:
    done = a_request("alice", status=LogRequestStatus(phase="Expired", end_time="t"))
    there = LogRequestStatus(phase="Answered", answer=LogExcerpt(text="x"))
    assert status_from_owner(done, there, NOW) == done.status
