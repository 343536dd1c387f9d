"""What the client asks, what it makes of answers, streams and refusals; with and without `await`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from aiohttp import web
from sdk_kit import TOKEN, FakeApi, fake_api

import coterie.sdk
from coterie.sdk import (
    AsyncConnection,
    Data,
    Grant,
    Invalid,
    Missing,
    Party,
    Refused,
    Route,
    Task,
    Unauthorized,
    resources,
)
from coterie.sdk.errors import KINDS, JobEnded, TimedOut, Unreachable, refused
from coterie.sdk.models import Job, JobStatus, read
from coterie.sdk.resources import event_of

JOB = {
    "job_id": "j1",
    "initiator": "alice",
    "max_parallelism": 1,
    "tasks": [{"app_image": "sample", "alias": "sample", "parties": [{"domain_id": "alice", "role": ""}]}],
    "status": {
        "state": "Succeeded",
        "tasks": [{"alias": "sample", "task_id": "j1-a", "state": "Succeeded", "progress": 1}],
    },
}


def connected(fake: FakeApi, domain: str = "alice") -> AsyncConnection:
    return coterie.sdk.connect_async(domain, url=fake.url, token=TOKEN)


def event(kind: int, job: str, state: str) -> bytes:
    piece: dict[str, Any] = {"object": {"job_id": job, "status": {"state": state}}}
    return json.dumps({"type": kind, **piece} if kind else piece).encode()


# Streams.


def test_events_are_told_by_name_and_heartbeats_not_at_all() -> None:
    assert event_of({"type": 4}) is None
    told = event_of({"object": {"job_id": "j", "status": {"state": "Running"}}})
    assert told is not None and (told.type, told.job_id, told.status.state) == ("ADDED", "j", "Running")
    with pytest.raises(Refused, match="not on a master"):
        event_of({"status": {"code": 11105, "message": "not on a master"}})


async def test_a_job_is_created_followed_and_given_back() -> None:
    async with fake_api(job_create={"data": {"job_id": "j1"}}, job_query={"data": JOB}) as fake:
        fake.streams["/api/v1/job/watch"] = [
            event(0, "other", "Failed"), event(0, "j1", "Pending"), event(1, "j1", "Running"), event(1, "j1", "Succeeded"),
        ]  # fmt: skip
        seen: list[str] = []
        async with connected(fake) as alice:
            job = await alice.jobs.run(
                "sample",
                ["alice", Party("bob", role="guest")],
                {"rows": 3},
                on_change=lambda each: seen.append(each.status.state),
            )
    assert seen == ["Pending", "Running", "Succeeded"]
    assert job.check().task("sample").progress == 1
    created = fake.asked[0][1]
    assert created["initiator"] == "alice" and created["job_id"].startswith("sample-")
    assert created["tasks"][0]["task_input_config"] == '{"rows": 3}'
    assert [each["domain_id"] for each in created["tasks"][0]["parties"]] == ["alice", "bob"]
    assert created["tasks"][0]["parties"][1]["role"] == "guest"


async def test_a_watch_that_ends_is_taken_up_again() -> None:
    async with fake_api(job_query={"data": JOB}) as fake:
        path = "/api/v1/job/watch"
        fake.streams[path] = [event(0, "j1", "Running")]
        changes = []

        def changed(each: Any) -> None:
            changes.append(each)
            fake.streams[path] = [event(0, "j1", "Succeeded")]

        async with connected(fake) as alice:
            assert (await alice.jobs.wait("j1", on_change=changed)).succeeded
        assert len(changes) == 2


async def test_a_node_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PAUSE", 0.01)
    async with fake_api(job_query={"data": JOB}) as fake, connected(fake) as alice:
        waiting = asyncio.create_task(alice.jobs.wait("j1"))
        for _ in range(500):
            if len(fake.asked) > 2:
                break
            await asyncio.sleep(0.01)
        assert not waiting.done(), "there was no watch so far"
        fake.streams["/api/v1/job/watch"] = [event(0, "j1", "Succeeded")]
        assert (await waiting).succeeded


@pytest.mark.parametrize(("code", "goes_on"), [(11103, True), (11101, True), (11102, False)])
async def test_a_lite_whose_master_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, code: int, goes_on: bool
) -> None:
    monkeypatch.setattr(resources, "_PAUSE", 0.01)
    path = "/api/v1/job/watch"
    broken = json.dumps({"status": {"code": code, "message": "not now"}}).encode()
    async with fake_api(job_query={"data": JOB}) as fake, connected(fake) as alice:
        fake.streams[path] = [event(0, "j1", "Running"), broken]

        def changed(each: Any) -> None:
            fake.streams[path] = [event(0, "j1", "Succeeded")]

        if goes_on:
            assert (await alice.jobs.wait("j1", on_change=changed, timeout=20)).succeeded
            return
        with pytest.raises(Refused, match="not now"):
            await alice.jobs.wait("j1", on_change=changed, timeout=20)


async def test_a_node_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PAUSE", 0)
    async with fake_api() as fake, connected(fake) as alice:
        with pytest.raises(Unreachable, match="answers 404"):
            await alice.jobs.wait("j1")
        assert len(fake.asked) == resources._ATTEMPTS + 1


async def test_who_waits_no_longer_leaves_the_stream() -> None:
    async with fake_api() as fake:
        fake.streams["/api/v1/job/watch"] = [event(0, "j1", "Running"), b"wait"]
        async with connected(fake) as alice:
            with pytest.raises(TimedOut, match=r"j1 has not ended within 0\.2 seconds; it goes on"):
                await alice.jobs.wait("j1", timeout=0.2)
            await asyncio.wait_for(fake.left.wait(), 10)


async def test_a_deleted_job_ends_the_wait() -> None:
    async with fake_api() as fake:
        fake.streams["/api/v1/job/watch"] = [event(0, "j1", "Running"), event(2, "j1", "Running")]
        async with connected(fake) as alice:
            with pytest.raises(JobEnded, match="was deleted"):
                await alice.jobs.wait("j1")


@pytest.mark.parametrize("rest", [[b'{"type":4}', b"wait"], []], ids=["heartbeat", "ended"])
async def test_who_waits_for_a_job_that_is_not_there_is_told(rest: list[bytes]) -> None:
    none = {"status": {"code": 11202, "message": "there is no job j1"}}
    async with fake_api(job_query=none) as fake, connected(fake) as alice:
        fake.streams["/api/v1/job/watch"] = [event(0, "other", "Running"), *rest]
        with pytest.raises(Refused, match="there is no job j1"):
            await alice.jobs.wait("j1", timeout=20)


@pytest.mark.parametrize("rest", [b"<html>", b"[]"])
async def test_a_stream_that_is_none_is_told(rest: bytes) -> None:
    async with fake_api() as fake, connected(fake) as alice:
        fake.streams["/api/v1/job/watch"] = [event(0, "j1", "Running"), rest]
        seen = []
        with pytest.raises(Unreachable, match="not as KusciaAPI does"):
            async for each in alice.jobs.watch():
                seen.append(each.job_id)
        assert seen == ["j1"]


async def test_the_token_goes_nowhere_else() -> None:
    async with fake_api(domain_query={"data": {"domain_id": "alice"}}) as elsewhere:

        def lead_away(request: dict[str, Any]) -> None:
            raise web.HTTPTemporaryRedirect(f"{elsewhere.url}/api/v1/domain/query")

        async with fake_api(domain_query=lead_away) as fake, connected(fake) as alice:
            with pytest.raises(Unreachable, match="answers 307"):
                await alice.domains.get()
        assert elsewhere.asked == []


async def test_logs_come_in_pieces_and_tell_refusals() -> None:
    async with fake_api() as fake:
        path = "/api/v1/log/task/query"
        fake.streams[path] = [b'{"log":"a\\nb"}{"status":{"code":0}}', b'{"log":"c"}']
        async with connected(fake) as alice:
            assert [each async for each in alice.logs.read("t1")] == ["a\nb", "c"]
            fake.streams[path] = [b'{"status":{"code":13200,"message":"there is no such task"}}']
            with pytest.raises(Refused, match=r"there is no such task \(13200\)"):
                _ = [each async for each in alice.logs.read("t2")]


async def test_a_search_of_logs() -> None:
    line = {"at": "2026-01-02T03:04:05.000000000Z", "source": "gateway", "text": "503"}
    async with fake_api(log_search={"lines": [line], "cursor": "c", "notes": ["n"]}) as fake, connected(fake) as alice:
        found = await alice.logs.search("j1", since="10m", sources=["gateway"])
        assert [each.text for each in found.lines] == ["503"]
        assert (found.cursor, found.notes) == ("c", ("n",))
        path, asked = fake.asked[-1]
        assert path == "/api/v1/log/search"
        assert {name: value for name, value in asked.items() if value} == {
            "job_id": "j1", "domain_id": "alice", "since": "10m", "sources": ["gateway"],
        }  # fmt: skip


# Answers.


async def test_the_own_domain_needs_not_be_named() -> None:
    answer = {"data": {"domaindata_id": "t", "domain_id": "alice", "file_format": "CSV"}}
    async with fake_api(domaindata_query=answer, domaindata_create=answer) as fake, connected(fake) as alice:
        assert (await alice.data.get("t")).file_format == "CSV"
        assert await alice.data.create(Data("t", relative_uri="t.csv")) == "t"
        assert fake.asked[0][1] == {"data": {"domain_id": "alice", "domaindata_id": "t"}}
        assert fake.asked[1][1]["domain_id"] == "alice"


async def test_grants_have_their_parts_together_and_numbers_as_numbers() -> None:
    answer = {
        "data": {
            "data": {"domaindatagrant_id": "g", "limit": {"expiration_time": "17000"}},
            "status": {"phase": "Ready"},
        }
    }
    async with fake_api(domaindatagrant_query=answer) as fake, connected(fake) as alice:
        grant = await alice.grants.get("g")
    assert grant.limit is not None and grant.limit.expiration_time == 17000
    assert grant.status is not None and grant.status.phase == "Ready"


async def test_images_are_listed_page_by_page() -> None:
    def page(request: dict[str, Any]) -> dict[str, Any]:
        if not request["page_token"]:
            return {"data": {"appimage_list": [{"name": "a"}], "next_page_token": "more"}}
        return {"data": {"appimage_list": [{"name": "b"}], "next_page_token": ""}}

    async with fake_api(appimage_list=page) as fake, connected(fake) as alice:
        assert [each.name for each in await alice.images.list()] == ["a", "b"]


@pytest.mark.parametrize("shape", [Job, Route, Data, Grant])
def test_fields_that_are_not_known_are_passed_over_and_null_parts_are_missing_ones(shape: Any) -> None:
    assert isinstance(read(shape, {"from_the_future": 1}), shape)


def test_an_answer_of_another_form_is_told() -> None:
    with pytest.raises(Unreachable, match="not as KusciaAPI has it"):
        read(Job, {"tasks": 3})


# Refusals.


@pytest.mark.parametrize(("kind", "code"), [(kind, code) for kind, codes in KINDS.items() for code in codes])
def test_codes_have_their_kind(kind: type[Refused], code: int) -> None:
    problem = refused(code, "no")
    assert type(problem) is kind and problem.code == code and str(problem) == f"no ({code})"


async def test_refusals_carry_the_code_and_the_sentence() -> None:
    says = {"status": {"code": 11100, "message": "job_id: must be given"}}
    async with fake_api(job_query=says, domaindata_query={"data": None}) as fake, connected(fake) as alice:
        with pytest.raises(Invalid, match="job_id: must be given") as caught:
            await alice.jobs.get("")
        assert caught.value.code == 11100 and caught.value.message == "job_id: must be given"
        with pytest.raises(Missing):
            await alice.data.get("t")


async def test_the_wrong_token_the_wrong_port_and_no_port_differ() -> None:
    async with fake_api() as fake:
        async with coterie.sdk.connect_async(url=fake.url, token="guess") as alice:
            with pytest.raises(Unauthorized, match="does not take the token"):
                await alice.health.ready()
        async with connected(fake) as alice:
            with pytest.raises(Unreachable, match="answers 404"):
                await alice.health.ready()
        url = fake.url
    async with coterie.sdk.connect_async(url=url) as alice:
        with pytest.raises(Unreachable, match="cannot be reached"):
            await alice.health.ready()


def test_a_job_that_did_not_succeed_says_why() -> None:
    with pytest.raises(JobEnded, match="job j is Failed: out of luck") as caught:
        Job("j", status=JobStatus("Failed", "out of luck")).check()
    assert caught.value.job.ended


def test_tasks_in_few_words() -> None:
    task = Task.of("psi", ["alice", "bob"], "raw", alias="p", after=["split"])
    assert (task.app_image, task.alias, task.task_input_config, task.dependencies) == ("psi", "p", "raw", ("split",))


# Without `await`.


async def test_the_plain_face_does_the_same() -> None:
    async with fake_api(job_query={"data": JOB}, job_create={"data": {"job_id": "j1"}}) as fake:
        fake.streams["/api/v1/job/watch"] = [event(0, "j1", "Running"), event(1, "j1", "Succeeded"), b"wait"]

        def plainly() -> None:
            with coterie.sdk.connect("alice", url=fake.url, token=TOKEN) as alice:
                assert alice.jobs.run("sample", ["alice"]).succeeded
                watch = alice.jobs.watch()
                assert [next(watch).status.state for _ in range(2)] == ["Running", "Succeeded"]
                watch.close()  # type: ignore[attr-defined]
                with pytest.raises(Unreachable):
                    alice.health.ready()

        await asyncio.to_thread(plainly)
        await asyncio.wait_for(fake.left.wait(), 10)


async def test_a_program_may_end_without_closing() -> None:
    async with fake_api(job_query={"data": JOB}) as fake:
        program = f"import coterie.sdk; a = coterie.sdk.connect(url={fake.url!r}, token={TOKEN!r}); print(a.jobs.get('j1').state)"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-X", "dev", "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, problem = await child.communicate()
    assert (child.returncode, out, problem) == (0, b"Succeeded\n", b"")


def test_both_faces_have_the_same_operations() -> None:
    for name, face in vars(coterie.sdk.connection).items():
        under = getattr(coterie.sdk.resources, name, None)
        if (
            isinstance(face, type)
            and isinstance(under, type)
            and issubclass(face, coterie.sdk.connection.SyncResourceClient)
        ):
            assert public(face) == public(under), name


def public(of: type) -> set[str]:
    return {name for name in vars(of) if not name.startswith("_")} - {"base"}
