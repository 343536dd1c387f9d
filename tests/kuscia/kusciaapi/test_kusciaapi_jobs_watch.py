"""WatchJob: what watchers are told, for how long, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kusciaapi_kit import World, domain_caller, here, served

from coterie.base.clock import VirtualClock
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport, TransportRequest, TransportResponse
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.kusciaapi.codes import CallRefused
from coterie.kuscia.kusciaapi.job_watch import (
    ADDED,
    DELETED,
    HEARTBEAT_TYPE,
    MODIFIED,
    JobEventQueue,
    JobUpdate,
    WatchedJob,
    merged,
)
from coterie.kuscia.kusciaapi.jobs import OPERATIONS

JOB, TASK = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic
SOON = 20.0
"""Seconds after which a test is given up; none waits so long."""


async def put_job(
    world: World, name: str, phase: str = "Running", parties: tuple[str, ...] = ("alice", "bob")
) -> Object:
    task = {
        "alias": "psi", "taskID": f"{name}-psi", "appImage": "engine", "taskInputConfig": "{}",
        "parties": [{"domainID": each} for each in parties],
    }  # fmt: skip
    spec = {"initiator": parties[0], "tasks": [task]}
    job = await world.client.create(JOB, {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": spec})
    await world.client.patch_status(JOB, name, CROSS_DOMAIN, {"status": {"phase": phase}})
    return job


async def put_task(world: World, job: Object) -> str:
    meta = job["metadata"]
    name = f"{meta['name']}-psi"
    marks = {labels.KUSCIA_JOB_ID: meta["name"]}
    told = {labels.KUSCIA_JOB_UID: meta["uid"]}
    body = {
        "metadata": {"name": name, "namespace": CROSS_DOMAIN, "labels": told, "annotations": marks},
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": []},
    }
    await world.client.create(TASK, body)
    await world.client.patch_status(TASK, name, CROSS_DOMAIN, {"status": {"phase": "Running"}})
    return name


async def set_phase(world: World, name: str, phase: str) -> None:
    await world.client.patch_status(JOB, name, CROSS_DOMAIN, {"status": {"phase": phase}})


def watch(world: World, *, caller: Any = None, seconds: int = 0) -> AsyncGenerator[Any, None]:
    more = {"caller": caller} if caller is not None else {}
    found = world.pieces(OPERATIONS, "WatchJob", timeout_seconds=seconds, **more)
    assert isinstance(found, AsyncGenerator)
    return found


async def next_of(events: AsyncIterator[Any]) -> tuple[int, str, str]:
    async with asyncio.timeout(SOON):
        event = await anext(events)
    return event.type, event.object.job_id, event.object.status.state


class Counting:
    """The streams that were opened, and those that are open."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.opened: list[str] = []
        self.closed = 0

    async def send(self, call: TransportRequest) -> TransportResponse:
        reply = await self._inner.send(call)
        if call.stream:
            self.opened.append(call.path.rpartition("/")[2])
            assert reply.lines is not None
            close = reply.lines.close

            async def counted() -> None:
                self.closed += 1
                await close()

            reply.lines.close = counted  # type: ignore[method-assign]
        return reply

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        yield world


@pytest.fixture
async def patient(alice: World, tmp_path: Path) -> AsyncIterator[tuple[World, VirtualClock]]:
    """The same, with a clock of its own."""
    clock = VirtualClock()
    async with here(tmp_path, client=alice.client, clock=clock) as world:
        yield world, clock


async def test_jobs_that_exist_come_first_and_changes_after_them(alice: World) -> None:
    await put_job(alice, "a")
    await put_job(alice, "b", "Failed")
    events = watch(alice)
    first = {await next_of(events), await next_of(events)}
    assert first == {(ADDED, "a", "Running"), (ADDED, "b", "Failed")}
    await set_phase(alice, "a", "Succeeded")
    assert await next_of(events) == (MODIFIED, "a", "Succeeded")
    await alice.client.delete(JOB, "b", CROSS_DOMAIN)
    assert await next_of(events) == (DELETED, "b", "Failed")
    await events.aclose()


async def test_progress_of_a_task_is_news_of_its_job(alice: World) -> None:
    task = await put_task(alice, await put_job(alice, "a"))
    events = watch(alice)
    assert await next_of(events) == (ADDED, "a", "Running")
    await alice.client.patch_status(TASK, task, CROSS_DOMAIN, {"status": {"progress": 0.5}})
    async with asyncio.timeout(SOON):
        event = await anext(events)
    assert (event.type, event.object.status.tasks[0].progress) == (MODIFIED, 0.5)
    await events.aclose()


async def test_what_nobody_sees_is_no_news(alice: World) -> None:
    await put_job(alice, "a")
    events = watch(alice)
    assert await next_of(events) == (ADDED, "a", "Running")
    await alice.client.patch(JOB, "a", CROSS_DOMAIN, {"metadata": {"annotations": {"note": "x"}}})
    await set_phase(alice, "a", "Suspended")
    assert await next_of(events) == (MODIFIED, "a", "Suspended")
    await events.aclose()


async def test_a_domain_hears_of_its_jobs_only(alice: World) -> None:
    await put_job(alice, "theirs", parties=("carol", "dave"))
    await put_job(alice, "hers", parties=("alice", "bob"))
    events = watch(alice, caller=domain_caller("bob"))
    assert await next_of(events) == (ADDED, "hers", "Running")
    await set_phase(alice, "theirs", "Failed")
    await put_job(alice, "mine", parties=("bob", "carol"))
    assert (await next_of(events))[1] == "mine"
    await events.aclose()


async def test_silence_is_told(patient: tuple[World, VirtualClock]) -> None:
    world, clock = patient
    await put_job(world, "a")
    events = watch(world)
    assert await next_of(events) == (ADDED, "a", "Running")
    for _ in range(2):
        waiting = asyncio.ensure_future(next_of(events))
        await clock.advance(9.7)
        assert not waiting.done()
        await clock.advance(0.4)
        assert await waiting == (HEARTBEAT_TYPE, "", "")
    await events.aclose()


async def test_a_watch_ends_after_its_time(patient: tuple[World, VirtualClock]) -> None:
    world, clock = patient
    await put_job(world, "a")
    events = watch(world, seconds=15)
    told = [await next_of(events)]

    async def rest() -> None:
        async for event in events:
            told.append((event.type, event.object.job_id, event.object.status.state))

    reading = asyncio.ensure_future(rest())
    await clock.advance(14)
    assert not reading.done()
    await clock.advance(1)
    async with asyncio.timeout(SOON):
        await reading
    assert told == [(ADDED, "a", "Running"), (HEARTBEAT_TYPE, "", "")]
    assert world.here.jobs.watchers == 0


@pytest.mark.parametrize("seconds", [-1, 2**31])
async def test_a_time_that_cannot_be_is_refused(alice: World, seconds: int) -> None:
    with pytest.raises(CallRefused, match="timeout_seconds: must be between 0 and 2147483647") as refusal:
        await anext(watch(alice, seconds=seconds))
    assert refusal.value.code == 11100


async def test_fifty_watchers_cost_one_watch_of_jobs_and_one_of_tasks(alice: World, tmp_path: Path) -> None:
    for number in range(5):
        await put_job(alice, f"j{number}")
    counting = Counting(alice.client.transport)
    async with here(tmp_path, client=Client(counting)) as world:
        streams = [watch(world) for _ in range(50)]
        for events in streams:
            assert {(await next_of(events))[1] for _ in range(5)} == {f"j{number}" for number in range(5)}
        assert world.here.jobs.watchers == 50
        await set_phase(alice, "j3", "Succeeded")
        assert {await next_of(events) for events in streams} == {(MODIFIED, "j3", "Succeeded")}
        assert sorted(counting.opened) == ["kusciajobs", "kusciatasks"]
        for events in streams[1:]:
            await events.aclose()
        assert counting.closed == 0
        await streams[0].aclose()
        assert counting.closed >= 2, "when the last has left, nothing is followed"
        assert world.here.jobs.watchers == 0
        again = watch(world)
        assert (await next_of(again))[0] == ADDED
        await again.aclose()


async def test_who_reads_slowly_is_told_how_things_are_now_and_holds_nobody_up(alice: World) -> None:
    await put_job(alice, "a")
    slow, quick = watch(alice), watch(alice)
    assert await next_of(slow) == (ADDED, "a", "Running")
    assert await next_of(quick) == (ADDED, "a", "Running")
    for phase in ("Suspended", "Running", "Failed"):
        await set_phase(alice, "a", phase)
        assert await next_of(quick) == (MODIFIED, "a", phase)
    assert await next_of(slow) == (MODIFIED, "a", "Failed")
    await slow.aclose()
    await quick.aclose()


async def test_a_job_that_is_replaced_goes_and_comes(alice: World) -> None:
    await put_job(alice, "a")
    events = watch(alice)
    assert await next_of(events) == (ADDED, "a", "Running")
    await alice.client.delete(JOB, "a", CROSS_DOMAIN)
    await put_job(alice, "a", "Failed")
    told = [await next_of(events), await next_of(events)]
    assert told[0] == (DELETED, "a", "Running")
    assert told[1][:2] == (ADDED, "a")
    await events.aclose()


# The mailbox.


@pytest.mark.parametrize(
    ("arriving", "left"),
    [
        pytest.param((ADDED, MODIFIED), [(ADDED, 1)], id="new-and-changed"),
        pytest.param((ADDED, DELETED), [], id="never-seen"),
        pytest.param((MODIFIED, MODIFIED), [(MODIFIED, 1)], id="changed-twice"),
        pytest.param((MODIFIED, DELETED), [(DELETED, 1)], id="gone"),
        pytest.param((DELETED, ADDED), [(DELETED, 0), (ADDED, 1)], id="replaced"),
        pytest.param((DELETED, ADDED, MODIFIED), [(DELETED, 0), (ADDED, 2)], id="replaced-and-changed"),
        pytest.param((DELETED, ADDED, DELETED), [(DELETED, 0)], id="replaced-and-gone"),
        pytest.param((MODIFIED, DELETED, ADDED, DELETED, ADDED), [(DELETED, 1), (ADDED, 4)], id="replaced-twice"),
    ],
)
def test_news_that_wait_become_one(arriving: tuple[int, ...], left: list[tuple[int, int]]) -> None:
    waiting: tuple[JobUpdate, ...] = ()
    for number, kind in enumerate(arriving):
        waiting = merged(waiting, JobUpdate(kind, WatchedJob("", frozenset(), number)))
    assert [(news.type, news.job.status) for news in waiting] == left


def test_a_mailbox_never_holds_more_than_there_are_jobs() -> None:
    mailbox = JobEventQueue("")
    for turn in range(1000):
        job = WatchedJob(f"uid-{turn}", frozenset(), turn)
        mailbox.put(ADDED, f"j{turn % 7}", job)
        mailbox.put(MODIFIED, f"j{turn % 7}", job)
        mailbox.put(DELETED, f"j{turn % 7}", job)
    assert len(mailbox) == 0, "what came and went unseen is no news"
    for turn in range(1000):
        mailbox.put(MODIFIED, f"j{turn % 7}", WatchedJob("uid", frozenset(), turn))
    assert len(mailbox) == 7
    first = mailbox.take()
    assert first is not None
    assert (first.type, first.job.status) == (MODIFIED, 994), "the newest of the job that has waited longest"


# Through the doors.


async def test_a_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path) as place:
        await put_job(place.world, "a")
        board = place.world.here.jobs
        async with place.session() as session, session.post("/api/v1/job/watch", json={}) as answer:
            async with asyncio.timeout(SOON):
                first = await answer.content.readany()
            assert first.startswith(b'{"object":{"job_id":"a"'), "ADDED is 0, which is left out"
            assert board.watchers == 1
            answer.close()
        async with place.channel() as channel:
            call = channel.unary_stream("/kuscia.proto.api.v1alpha1.kusciaapi.JobService/WatchJob")(
                b"", metadata=(("token", place.token),)
            )
            operation = next(each for each in OPERATIONS if each.method == "WatchJob")
            async with asyncio.timeout(SOON):
                event = operation.response.FromString(await call.read())
            assert (event.type, event.object.job_id) == (ADDED, "a")
            call.cancel()
        async with asyncio.timeout(SOON):
            while board.watchers:
                await asyncio.sleep(0.01)
