"""Cron jobs: when schedules fire, what follows, and a day of it on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_world import CRON, JOB, World, template, world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.types.batch import CRON_JOBS, JOBS, CronJob, Job
from coterie.kube.controllers.cronjob import controller, plan
from coterie.kube.controllers.cronjob.schedule import parse
from coterie.kube.controllers.job import controller as jobs

NOW = datetime(2026, 1, 2, 12, 30, 20, tzinfo=UTC)  # a Friday
NEVER = template({"app": "cron"}, restartPolicy="Never")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "wanted"),
    [
        ("* * * * *", "2026-01-02 12:30:20", ["2026-01-02 12:31", "2026-01-02 12:32"]),
        ("*/15 * * * *", "2026-01-02 12:30", ["2026-01-02 12:45", "2026-01-02 13:00"]),
        ("5/20 * * * *", "2026-01-02 12:30", ["2026-01-02 12:45", "2026-01-02 13:05"]),
        ("0 9-17/4 * * mon-fri", "2026-01-02 14:00", ["2026-01-02 17:00", "2026-01-05 09:00"]),
        ("30 2 29 2 *", "2026-01-02 00:00", ["2028-02-29 02:30"]),
        ("0 0 13 * fri", "2026-01-02 12:00", ["2026-01-09 00:00", "2026-01-13 00:00"]),
        ("0 0 */10 * fri", "2026-01-02 12:00", ["2026-01-09 00:00", "2026-01-11 00:00"]),
        ("0 0 1,15 jan,JUL *", "2026-01-02 12:00", ["2026-01-15 00:00", "2026-07-01 00:00"]),
        ("0 0 31 2 *", "2026-01-02 12:00", []),
        ("@hourly", "2026-01-02 12:30", ["2026-01-02 13:00"]),
        ("@weekly", "2026-01-02 12:30", ["2026-01-04 00:00"]),
        ("@yearly", "2026-01-02 12:30", ["2027-01-01 00:00"]),
        ("@every 1h30m", "2026-01-02 12:30:20", ["2026-01-02 14:00:20", "2026-01-02 15:30:20"]),
    ],
)
def test_firings(schedule: str, after: str, wanted: list[str]) -> None:
    found = list(islice(parse(schedule).after(at(after)), max(1, len(wanted))))
    assert found == [at(text) for text in wanted]


@pytest.mark.parametrize(
    ("schedule", "after", "wanted"),
    [
        ("30 2 * * *", "2026-03-28 12:00", ["2026-03-30 00:30", "2026-03-31 00:30"]),
        ("30 2 * * *", "2026-10-24 12:00", ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-26 01:30"]),
        ("0 * * * *", "2026-03-28 23:30", ["2026-03-29 00:00", "2026-03-29 01:00", "2026-03-29 02:00"]),
        ("0 0 * * *", "2026-01-01 12:00", ["2026-01-01 23:00"]),
    ],
    ids=["left-out-hour", "repeated-hour", "every-hour-across", "midnight"],
)
def test_daylight_saving(schedule: str, after: str, wanted: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    assert list(islice(parse(schedule).after(at(after), zone), len(wanted))) == [at(text) for text in wanted]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "0 3 * * *", "15 1 * * sun", "@every 45m", "0 0 1 * *"]),
    st.integers(0, 60 * 24 * 40),
    st.sampled_from(["UTC", "America/New_York", "Asia/Shanghai"]),
)
def test_the_latest_is_the_last_of_all(schedule: str, minutes: int, zone: str) -> None:
    start = datetime(2026, 2, 20, 7, 3, tzinfo=UTC)
    until = start + timedelta(minutes=minutes)
    last = None
    for fired in parse(schedule).after(start, ZoneInfo(zone)):
        if fired > until:
            break
        last = fired
    assert parse(schedule).latest(start, until, ZoneInfo(zone)) == last


def cron(schedule: str = "*/10 * * * *", *, last: str | None = None, active: Any = (), **spec: Any) -> CronJob:
    body = {
        "metadata": {"name": "tick", "namespace": "default", "uid": "c", "creationTimestamp": "2026-01-02T12:15:00Z"},
        "spec": {
            "schedule": schedule,
            "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": NEVER}},
            **spec,
        },
        "status": {"active": list(active)} | ({"lastScheduleTime": last} if last else {}),
    }
    return CRON_JOBS.decode(CRON_JOBS.as_dynamic.encode(body))


def job(name: str, outcome: str = "", start: str = "2026-01-02T12:20:00Z") -> Job:
    status: Object = {"startTime": start}
    if outcome:
        status["conditions"] = [{"type": outcome, "status": "True"}]
        status["completionTime"] = start
    body = {"metadata": {"name": name, "uid": name, "namespace": "default"}, "status": status}
    return JOBS.decode(JOBS.as_dynamic.encode(body))


DUE = "tick-" + str(int(at("2026-01-02 12:30").timestamp()) // 60)


@pytest.mark.parametrize(
    ("found", "there", "created", "replaced", "reason"),
    [
        (cron(), [], DUE, [], ""),
        (cron(last="2026-01-02T12:30:00Z"), [], None, [], ""),
        (cron("0 * * * *"), [], None, [], ""),
        (cron(suspend=True), [], None, [], ""),
        (cron(startingDeadlineSeconds=10), [], None, [], ""),
        (cron(startingDeadlineSeconds=30), [], DUE, [], ""),
        (cron(), [job("old")], DUE, [], ""),
        (cron(concurrencyPolicy="Forbid"), [job("old")], None, [], "JobAlreadyActive"),
        (cron(concurrencyPolicy="Forbid"), [job("old", "Complete")], DUE, [], ""),
        (cron(concurrencyPolicy="Replace"), [job("old")], DUE, ["old"], ""),
        (cron(), [job(DUE)], None, [], ""),
        (cron("* * * * *", last="2026-01-01T00:00:00Z"), [], DUE, [], "TooManyMissedTimes"),
        (cron("bad"), [], None, [], "UnparseableSchedule"),
        (cron("0 0 30 2 *"), [], None, [], "InvalidSchedule"),
        (cron(timeZone="No/Where"), [], None, [], "UnknownTimeZone"),
        (cron("30 20 * * *", timeZone="Asia/Shanghai"), [], DUE, [], ""),
    ],
    ids=[
        "due", "done", "not-due", "suspended", "too-late", "just-in-time", "allow", "forbid", "forbid-free", "replace",
        "made-but-not-noted", "away-for-long", "bad-schedule", "never", "bad-zone", "zone",
    ],
)  # fmt: skip
def test_plan(found: CronJob, there: list[Job], created: str | None, replaced: list[str], reason: str) -> None:
    wanted = plan.plan(found, there, NOW)
    assert (wanted.create["metadata"]["name"] if wanted.create else None) == created
    assert [one.metadata.name for one in wanted.replace] == replaced
    assert [one for _, one, _ in wanted.notes] == ([reason] if reason else [])
    if there and there[0].metadata.name == DUE:
        assert wanted.status.last_schedule_time == "2026-01-02T12:30:00Z"


def test_history_status_and_next_look() -> None:
    there = [
        *(job(f"ok{i}", "Complete", f"2026-01-02T0{i}:00:00Z") for i in range(5)),
        job("bad1", "Failed", "2026-01-02T01:00:00Z"), job("bad2", "Failed", "2026-01-02T02:00:00Z"), job("runs"),
    ]  # fmt: skip
    active = [{"name": "runs", "uid": "runs"}, {"name": "ok4", "uid": "ok4"}, {"name": "lost", "uid": "lost"}]
    found = cron(last="2026-01-02T12:30:00Z", active=active, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    wanted = plan.plan(found, there, NOW)
    assert [one.metadata.name for one in wanted.forget] == ["ok0", "ok1", "bad1"]
    assert [entry.name for entry in wanted.status.active or ()] == ["runs"]
    assert wanted.status.last_successful_time == "2026-01-02T04:00:00Z"
    assert sorted(reason for _, reason, _ in wanted.notes) == ["MissingJob", "SawCompletedJob"]
    assert wanted.after == pytest.approx(580.1)


# ---- on the server ----

MAKES = (("cronjob-controller", controller.make), ("job-controller", jobs.make))


async def names(w: World) -> list[str]:
    return [found["metadata"]["name"] for found in await w.list(JOB)]


async def test_an_hour_of_jobs() -> None:
    async with world(*MAKES) as w:
        w.outcome = lambda found: "Succeeded"
        spec = {
            "schedule": "*/10 * * * *",
            "jobTemplate": {"spec": {"template": NEVER}},
            "successfulJobsHistoryLimit": 2,
        }
        await w.client.create(CRON, {"metadata": {"name": "tick", "namespace": "default"}, "spec": spec})
        await w.settle(5 * 60, 5)  # the world begins at 03:04:05
        assert await names(w) == []
        await w.settle(60, 2)
        (first,) = await w.list(JOB)
        assert first["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
        assert first["metadata"]["annotations"][plan.SCHEDULED_AT] == "2026-01-02T03:10:00Z"
        status = await w.status(CRON, "tick")
        assert (
            status["lastScheduleTime"] == "2026-01-02T03:10:00Z"
            and not status.get("active")
            and status["lastSuccessfulTime"]
        )
        await w.settle(40 * 60, 5)
        await w.settle(10)
        assert len(await names(w)) == 2 and len(w.started) == 5
        created = [
            message for reason, message in await w.events() if reason == "SuccessfulCreate" and "job tick" in message
        ]
        assert len(created) == 5
        await w.client.patch(CRON, "tick", "default", {"spec": {"suspend": True}})
        await w.settle(15 * 60, 5)
        assert len(w.started) == 5


async def test_policies_while_a_job_runs() -> None:
    async with world(*MAKES) as w:
        for name, policy in (("f", "Forbid"), ("r", "Replace"), ("a", "Allow")):
            spec = {"schedule": "* * * * *", "concurrencyPolicy": policy, "jobTemplate": {"spec": {"template": NEVER}}}
            await w.client.create(CRON, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        await w.settle(200, 1)
        found = await names(w)
        assert len([n for n in found if n.startswith("f-")]) == 1
        assert len([n for n in found if n.startswith("a-")]) == 3
        active = (await w.status(CRON, "r"))["active"]
        assert [n for n in found if n.startswith("r-")] == [active[0]["name"]] and len(active) == 1
        assert active[0]["name"] == f"r-{int(w.clock.now().timestamp()) // 60}"
        assert rfc3339(w.clock.now())[:16] == (await w.status(CRON, "r"))["lastScheduleTime"][:16]
