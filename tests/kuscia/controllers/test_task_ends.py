"""Which party's engine ended first, and what the others saw: sentences for people, from times and last words. Pure."""

from __future__ import annotations

import pytest
from job_world import JOB, POD, a_job, a_task, by_task, job_world

from coterie.kuscia.api.types.job import PartyTaskStatus
from coterie.kuscia.controllers.kusciatask.status import lost_connection, who_ended_first, why_failed


def party(name: str, phase: str, ended: str | None, message: str = "") -> PartyTaskStatus:
    at = f"2026-11-18T10:00:{ended}Z" if ended else None
    return PartyTaskStatus(domain_id=name, phase=phase, ended_at=at, message=message)


def test_an_engine_that_ends_well_too_early_is_named() -> None:
    parties = [party("alice", "Succeeded", "05"), party("bob", "Failed", "16", "container e exited with 1")]
    sentence = "alice had ended 11 s before bob failed, with exit code 0"
    assert sentence in who_ended_first(parties)
    assert sentence in who_ended_first(parties[::-1])
    told = why_failed(parties, {"bob-0": "connection refused\n"})
    assert told.startswith("party bob: container e exited with 1; alice had ended 11 s before")
    assert told.endswith("bob-0 printed at the end:\nconnection refused")


def test_of_failures_one_after_the_other_the_first_is_named() -> None:
    parties = [party("bob", "Failed", "16"), party("alice", "Failed", "05"), party("carol", "Failed", "20")]
    assert who_ended_first(parties) == "alice failed first, 11 s before bob, carol: look there first"


@pytest.mark.parametrize(
    "parties",
    [
        [party("alice", "Failed", "05")],
        [party("alice", "Failed", "05"), party("bob", "Failed", None)],
        [party("alice", "Failed", "05"), party("bob", "Running", "04")],
        [party("alice", "Failed", "05"), party("bob", "Failed", "05")],
        [party("alice", "Failed", "05"), party("bob", "Succeeded", "09")],
        [party("alice", "Succeeded", "05"), party("bob", "Succeeded", "09")],
        [],
    ],
)
def test_where_the_times_do_not_tell_nothing_is_said(parties: list[PartyTaskStatus]) -> None:
    assert who_ended_first(parties) == ""


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        ("Traceback\nConnectionRefusedError: [Errno 111] Connection refused", True),
        ("grpc: StatusCode.UNAVAILABLE", True),
        ("task t failed at bob: alice cannot be reached: HTTP status 503", True),
        ("BrokenPipeError", True),
        ("connection refused\n" + "other\n" * 30, False),
        ("ValueError: bad column", False),
        ("", False),
    ],
)
def test_last_words_about_a_partner(log: str, lost: bool) -> None:
    assert lost_connection(log) is lost


async def test_the_task_and_its_job_tell_who_ended_first() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))

        async def runs() -> bool:
            parties = (await w.tasks()).get("a", {}).get("status", {}).get("partyTaskStatus") or []
            return [each.get("phase") for each in parties] == ["Running", "Running"]

        await w.until(runs)
        for domain, phase, code, second, said in (
            ("alice", "Succeeded", 0, 5, ""),
            ("bob", "Failed", 1, 16, "ConnectionRefusedError: [Errno 111]"),
        ):
            ended = {
                "exitCode": code,
                "finishedAt": f"2026-11-18T10:00:{second:02}Z",
                "reason": "Error",
                "message": said,
            }
            containers = [{"name": "main", "state": {"terminated": ended}}]
            status = {"status": {"phase": phase, "containerStatuses": containers}}
            await w.client.patch_status(POD, "t-0", domain, status)
        message = (await w.until_phase("Failed"))["message"]
        assert (
            "party bob: pod t-0: container main exited with 1 (Error); its last words tell of a lost connection"
            in message
        )
        assert "alice had ended 11 s before bob failed, with exit code 0" in message
        parties = {each["domainID"]: each for each in (await w.task_status("a"))["partyTaskStatus"]}
        assert parties["alice"]["endedAt"] == "2026-11-18T10:00:05Z"
