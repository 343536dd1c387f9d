"""Jobs by KusciaAPI alone, under the controllers that carry them out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from job_world import JOB_PLANE, JobWorld, by_task, job_world

from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.kube.api.meta import Object
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.identity import domain_identity
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller, Role
from coterie.kuscia.kusciaapi.jobs import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode, OperationContext

_KEY = SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True))


class Desk:
    def __init__(self, world: JobWorld, here: OperationContext) -> None:
        self.world = world
        self.here = here

    async def call(self, method: str, *, caller: ApiCaller = OPERATOR, **request: Any) -> Any:
        operation = next(each for each in OPERATIONS if each.method == method)
        answer = await operation.run(self.here, caller, operation.request(**request))
        assert answer.status.code == 0, answer.status.message
        return answer.data

    async def create(self, *tasks: Object, initiator: str = "alice", **more: Any) -> None:
        await self.call("CreateJob", job_id="j", initiator=initiator, tasks=list(tasks), **more)

    async def status(self) -> Any:
        return (await self.call("QueryJob", job_id="j")).status


@asynccontextmanager
async def a_desk(directory: Path, mode: Mode = Mode.AUTONOMY, **options: Any) -> AsyncIterator[Desk]:
    async with job_world(**options) as world:
        domain = "kuscia-system" if mode is Mode.MASTER else "alice"
        paths = DomainPaths.of(directory, domain).prepare()
        own = domain_identity.ensure(paths, domain, _KEY, world.clock.now())
        yield Desk(world, OperationContext(world.client, domain, mode, paths, own, world.clock))


def a_task(alias: str, *after: str) -> Object:
    parties = [{"domain_id": "alice"}, {"domain_id": "bob"}]
    return {"alias": alias, "app_image": "engine", "parties": parties, "dependencies": list(after)}


async def test_a_job_runs_and_tells_how_it_went(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.create(a_task("a"), a_task("b", "a"), max_parallelism=2)
        await desk.world.until_phase("Succeeded")
        status = await desk.status()
    assert (status.state, status.err_msg) == ("Succeeded", "")
    assert [(task.alias, task.state, task.progress) for task in status.tasks] == [
        ("a", "Succeeded", 1.0), ("b", "Succeeded", 1.0),
    ]  # fmt: skip
    assert {(party.domain_id, party.state) for task in status.tasks for party in task.parties} == {
        ("alice", "Succeeded"), ("bob", "Succeeded"),
    }  # fmt: skip
    assert all(task.task_id and task.create_time and task.start_time for task in status.tasks)
    assert status.end_time


async def test_while_it_runs_its_endpoints_are_told(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.world.outcome = by_task(a="Running")
        await desk.create(a_task("a"))
        await desk.world.until_phase("Running")

        async def begun() -> bool:
            return (await desk.status()).tasks[0].state == "Running"

        await desk.world.until(begun)
        task = (await desk.status()).tasks[0]
        name = task.task_id
        ends = {party.domain_id: {(end.port_name, end.scope) for end in party.endpoints} for party in task.parties}
        assert ends == {each: {("talk", "Cluster"), ("inner", "Domain")} for each in ("alice", "bob")}
        hosts = [end.endpoint for party in task.parties for end in party.endpoints if end.port_name == "talk"]
        assert hosts == [f"{name}-0-talk.alice.svc", f"{name}-0-talk.bob.svc"]


@pytest.mark.parametrize(
    ("method", "phase", "stage"),
    [("StopJob", "Failed", "JobStopStageSucceeded"), ("CancelJob", "Cancelled", "JobCancelStageSucceeded")],
)
async def test_a_job_is_ended(tmp_path: Path, method: str, phase: str, stage: str) -> None:
    async with a_desk(tmp_path) as desk:
        desk.world.outcome = by_task(a="Running")
        await desk.create(a_task("a"))
        await desk.world.until_phase("Running")
        await desk.call(method, job_id="j", reason="enough")
        await desk.world.until_phase(phase)
        status = await desk.status()
        await desk.call(method, job_id="j")
    assert {each.state for each in status.stage_status_list} == {stage}
    assert "Party: alice execute the cmd" in status.err_msg


async def test_a_job_is_suspended_and_restarted(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.world.outcome = by_task(a="Running")
        await desk.create(a_task("a"))
        await desk.world.until_phase("Running")
        await desk.call("SuspendJob", job_id="j")
        await desk.world.until_phase("Suspended")
        desk.world.outcome = by_task()
        await desk.call("RestartJob", job_id="j")
        await desk.world.until_phase("Succeeded")
        await desk.call("DeleteJob", job_id="j")
        await desk.world.until_clean()


async def test_a_partners_job_is_approved_by_each_of_our_domains(tmp_path: Path) -> None:
    asking = tuple(
        (each[0], partial(kusciajob.make, requires_approval=True))
        if isinstance(each, tuple) and each[1] is kusciajob.make
        else each
        for each in JOB_PLANE
    )
    everybody = ("alice", "bob", "carol")
    async with a_desk(tmp_path, Mode.MASTER, partners=("carol",), domains=everybody, makes=asking) as desk:
        await desk.create(a_task("a"), initiator="carol")
        await desk.world.until_phase("AwaitingApproval")
        await desk.call("ApproveJob", caller=ApiCaller(Role.DOMAIN, "alice"), job_id="j", result=1)
        await desk.world.settle(3)
        assert (await desk.status()).state == "AwaitingApproval"
        await desk.call("ApproveJob", caller=ApiCaller(Role.DOMAIN, "bob"), job_id="j", result=1)

        async def gone_on() -> bool:
            return (await desk.status()).state != "AwaitingApproval"

        await desk.world.until(gone_on)
        told = {each.domain_id: each.state for each in (await desk.status()).approve_status_list}
        assert told == {"alice": "JobAccepted", "bob": "JobAccepted"}
