"""JobPlanService with the controller that answers, over HTTP, gRPC and through the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from kusciaapi_kit import Place, domain_caller, served
from kusciaapi_stage import JOB, prepare

import coterie.sdk
from coterie.base.tasks import TaskOwner
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.types.job import KUSCIA_JOBS
from coterie.kuscia.api.types.job_plan import JOB_PLAN_REQUESTS
from coterie.kuscia.controllers.jobplan import controller as jobplan
from coterie.kuscia.kusciaapi.job_plans import OPERATIONS
from coterie.kuscia.kusciaapi.table import OPERATIONS as ALL

ASKED = {**JOB, "job_id": "planned", "wait_seconds": 1}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with served(ALL, tmp_path, namespaces=("bob", "carol")) as made:
        settings = {"kusciaAPI": {"HTTPPort": made.settings.http_port}}
        (made.paths.etc / "coterie.yaml").write_text(yaml.safe_dump(settings))
        await prepare(made.world, ALL)
        informers = Informers(made.world.client)
        plans = jobplan.make(made.world.client, informers)
        async with TaskOwner("plans") as owner:
            owner.start("informers", informers.run())
            owner.start("plans", plans.run())
            yield made


async def test_a_job_is_planned_and_nothing_is_left(place: Place) -> None:
    jobs = len((await place.world.client.list(KUSCIA_JOBS)).items)
    status, answer = await place.post("/api/v1/job/plan", ASKED)
    assert status == 200 and answer["status"]["code"] == 0, answer
    found = {each["domain_id"]: each for each in answer["data"]["parties"]}
    assert list(found) == ["alice", "bob"]
    assert found["alice"]["detail"] == "own" and found["alice"]["phase"] == "Answered"
    assert found["alice"]["engines"][0]["app_image"] == "engine"
    assert answer["data"]["outlook"] == "Waits" and answer["data"]["message"]
    again = await place.ask("JobPlanService", "PlanJob", **ASKED)
    assert again.status.code == 0 and [each.domain_id for each in again.data.parties] == ["alice", "bob"]
    client = place.world.client
    assert not (await client.list(JOB_PLAN_REQUESTS)).items
    assert len((await client.list(KUSCIA_JOBS)).items) == jobs


async def test_the_sdk_asks(place: Place) -> None:
    async with coterie.sdk.connect_async("alice", root=place.paths.home.parent) as alice:
        found = await alice.jobs.plan("engine", ["alice", "bob"], wait_seconds=1)
        assert not found.runs and found.outlook == "Waits"
        assert found.party("bob").placements[0].problem == "no node is suitable"
        with pytest.raises(KeyError):
            found.party("carol")
        with pytest.raises(coterie.sdk.Invalid):
            await alice.jobs.plan("engine", ["alice", "bob"], wait_seconds=99)


async def test_who_may_not_ask(place: Place) -> None:
    world = place.world
    refused = await world.call(OPERATIONS, "PlanJob", caller=domain_caller("bob"), **ASKED)
    assert refused.status.code == 11102 or "may only plan jobs that it initiates" in refused.status.message
    wrong = await world.call(OPERATIONS, "PlanJob", **{**ASKED, "tasks": []})
    assert wrong.status.code == 11100 and "tasks" in wrong.status.message
