"""Queries of jobs from what is followed: the same answers as from the API, and never an older state than one's own write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.kusciaapi import jobs, messages
from coterie.kuscia.kusciaapi.known_jobs import MANY_QUERIES
from coterie.kuscia.kusciaapi.operations import Mode

TASK: Object = {
    "alias": "psi",
    "app_image": "engine",
    "task_input_config": "{}",
    "parties": [{"domain_id": "alice"}, {"domain_id": "bob"}],
}


@asynccontextmanager
async def followed(directory: Path) -> AsyncIterator[World]:
    """A domain whose KusciaAPI was asked so often that it follows jobs."""
    async with here(directory, mode=Mode.MASTER) as world:
        await create(world, "first")
        while not world.here.known_jobs.following:
            for _ in range(MANY_QUERIES):
                await query(world, "first")
            await asyncio.sleep(0.01)
        try:
            yield world
        finally:
            await world.here.known_jobs.close()


async def create(world: World, name: str) -> Any:
    return await world.call(
        jobs.OPERATIONS, "CreateJob", job_id=name, initiator="alice", max_parallelism=1, tasks=[TASK]
    )


async def query(world: World, name: str) -> Any:
    return await world.call(jobs.OPERATIONS, "QueryJob", job_id=name)


async def test_one_sees_what_one_wrote_however_far_the_watch_is(tmp_path: Path) -> None:
    async with followed(tmp_path) as world:
        for number in range(20):
            name = f"job-{number}"
            assert (await create(world, name)).status.code == 0
            assert (await query(world, name)).data.job_id == name
            assert (await world.call(jobs.OPERATIONS, "StopJob", job_id=name)).status.code == 0
            stage = (await world.client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)).metadata.labels
            assert stage and stage[labels.KUSCIA_JOB_STAGE] == "Stop"
            assert (await world.call(jobs.OPERATIONS, "DeleteJob", job_id=name)).status.code == 0
            assert "there is no job" in (await query(world, name)).status.message


async def test_what_others_write_is_seen_and_answers_are_the_same(tmp_path: Path) -> None:
    async with followed(tmp_path) as world:
        job = await world.client.get(KUSCIA_JOBS, "first", CROSS_DOMAIN)
        task_id = job.spec.tasks[0].task_id or "first-task"
        marks = {labels.KUSCIA_JOB_ID: "first", labels.KUSCIA_TASK_ALIAS: "psi"}
        spec: Object = {"initiator": "alice", "taskInputConfig": "{}", "parties": []}
        meta: Object = {
            "name": task_id,
            "annotations": marks,
            "labels": {labels.KUSCIA_JOB_UID: job.metadata.uid},
        }
        await world.client.create(KUSCIA_TASKS.as_dynamic, {"metadata": meta, "spec": spec}, CROSS_DOMAIN)
        patch = {"status": {"phase": "Failed", "message": "no such table"}}
        await world.client.patch_status(KUSCIA_JOBS, "first", CROSS_DOMAIN, patch)
        while (answer := await query(world, "first")).data.status.state != "Failed":
            await asyncio.sleep(0.005)
        batch = await world.call(jobs.OPERATIONS, "BatchQueryJobStatus", job_ids=["first", "first"])
        await world.here.known_jobs.close()
        fresh = await query(world, "first")
        assert messages.answer_text(fresh) == messages.answer_text(answer)
        assert messages.as_json(answer.response) == messages.as_json(fresh.response)
        assert answer.data.status.err_msg == "no such table"
        plain = await world.call(jobs.OPERATIONS, "BatchQueryJobStatus", job_ids=["first", "first"])
        for each in (batch, plain):
            assert messages.answer_text(each) == messages.as_text(messages.as_json(each.response))
            assert len(each.data.jobs) == 2 and each.data.jobs[1].status.err_msg == "no such table"


async def test_domains_do_not_see_jobs_of_others(tmp_path: Path) -> None:
    async with followed(tmp_path) as world:
        for caller, seen in (("bob", True), ("carol", False)):
            answer = await world.call(jobs.OPERATIONS, "QueryJob", caller=domain_caller(caller), job_id="first")
            assert (answer.status.code == 0) is seen
            batch = await world.call(
                jobs.OPERATIONS, "BatchQueryJobStatus", caller=domain_caller(caller), job_ids=["first"]
            )
            assert (batch.status.code == 0) is seen


async def test_a_watch_that_fails_is_not_trusted(tmp_path: Path) -> None:
    async with followed(tmp_path) as world:
        known = world.here.known_jobs
        assert known._following is not None
        known._following.failed(KUSCIA_TASKS, "the API is away")
        assert not known.following and (await query(world, "first")).data.job_id == "first"
        known._following.recovered(KUSCIA_TASKS)
        assert known.following
