"""Jobs against a real API server in memory; tasks are moved on by hand, as the task controller would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from domain_world import DOMAIN, Mesh, a_domain, mesh

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, JobPhase
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.controllers.kusciajob.plan import JobView, Plan, plan_until_settled

JOB, TASK, IMAGE = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic, APP_IMAGES.as_dynamic


def an_image(name: str = "engine", role: str = "", containers: int = 1, replicas: int | None = None) -> Object:
    template: Object = {
        "name": "t",
        "spec": {"containers": [{"name": f"c{index}", "workingDir": "/"} for index in range(containers)]},
    }
    if role:
        template["role"] = role
    if replicas is not None:
        template["replicas"] = replicas
    return {
        "metadata": {"name": name},
        "spec": {"image": {"name": "coterie/host", "tag": "latest"}, "deployTemplates": [template]},
    }


def a_task(alias: str, *after: str, parties: tuple[str, ...] = ("alice", "bob"), **more: Any) -> Object:
    named = [{"domainID": party} for party in parties]
    task = {"alias": alias, "appImage": "engine", "taskInputConfig": "{}", "parties": named, **more}
    return {**task, "dependencies": list(after)} if after else task


def a_job(*tasks: Object, name: str = "j", initiator: str = "alice", **spec: Any) -> Object:
    body = {"initiator": initiator, "tasks": list(tasks), "maxParallelism": 2, **spec}
    return {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": body}


class Jobs:
    def __init__(self, world: Mesh) -> None:
        self.world, self.client = world, world.client

    async def job(self, name: str = "j") -> Object:
        return await self.world.get(JOB, name, CROSS_DOMAIN)

    async def status(self, name: str = "j") -> Object:
        return (await self.job(name)).get("status") or {}

    async def phase(self, wanted: str, name: str = "j", seconds: float = 60) -> Object:
        async def reached() -> bool:
            return (await self.status(name)).get("phase") == wanted

        await self.world.until(reached, seconds)
        return await self.status(name)

    async def tasks(self) -> dict[str, Object]:
        found = await self.world.list(TASK, CROSS_DOMAIN)
        return {task["metadata"]["annotations"][labels.KUSCIA_TASK_ALIAS]: task for task in found}

    async def running(self, *aliases: str) -> None:
        async def reached() -> bool:
            there = await self.tasks()
            for task in there.values():
                if task["metadata"].get("deletionTimestamp"):  # the task controller has cleaned up
                    free = {"metadata": {"finalizers": []}}
                    await self.client.patch(TASK, task["metadata"]["name"], CROSS_DOMAIN, free)
            ended = ("Succeeded", "Failed")
            return {a for a, t in there.items() if t.get("status", {}).get("phase") not in ended} == set(aliases)

        await self.world.until(reached)

    async def end(self, alias: str, phase: str, message: str = "") -> None:
        task = (await self.tasks())[alias]
        status = {"status": {"phase": phase, "message": message}}
        await self.client.patch_status(TASK, task["metadata"]["name"], CROSS_DOMAIN, status)

    async def order(self, stage: str, version: int = 1, name: str = "j") -> None:
        told = {labels.KUSCIA_JOB_STAGE: stage, labels.KUSCIA_JOB_STAGE_VERSION: str(version)}
        told[labels.KUSCIA_JOB_STAGE_TRIGGER] = "alice"
        await self.client.patch(JOB, name, CROSS_DOMAIN, {"metadata": {"labels": told}})

    async def say(self, name: str = "j", **status: Any) -> None:
        await self.client.patch_status(JOB, name, CROSS_DOMAIN, {"status": status})


@asynccontextmanager
async def jobs(partners: tuple[str, ...] = (), **settings: Any) -> AsyncIterator[Jobs]:
    async with mesh((("kusciajob-controller", partial(kusciajob.make, **settings)),)) as world:
        for name in ("alice", "bob"):
            role = {"role": "partner"} if name in partners else {}
            await world.client.create(DOMAIN, a_domain(name, **role))
        await world.client.create(IMAGE, an_image())
        yield Jobs(world)


async def test_a_linear_job_runs_to_its_end_and_names_its_tasks() -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("one"), a_task("two", "one")))
        await at.running("one")
        job = await at.job()
        ids = [task["taskID"] for task in job["spec"]["tasks"]]
        assert all(each.startswith("j-") and len(each) == 14 for each in ids) and len(set(ids)) == 2
        assert job["status"]["phase"] == "Running" and job["status"]["taskStatus"] == {ids[0]: "Pending"}
        await at.end("one", "Succeeded")
        await at.running("two")
        made = (await at.tasks())["two"]
        assert made["metadata"]["ownerReferences"][0]["name"] == "j"
        assert made["metadata"]["annotations"][labels.KUSCIA_SELF_AS_PARTICIPANT] == "true"
        await at.end("two", "Succeeded")
        status = await at.phase("Succeeded")
        assert status["completionTime"] and status["taskStatus"] == dict.fromkeys(ids, "Succeeded")


@pytest.mark.parametrize(("shows", "held"), [(True, [labels.FINALIZER_INTERCONN]), (False, None)], ids=str)
async def test_a_job_with_partners_is_held_back_only_where_somebody_withdraws_it(
    shows: bool, held: list[str] | None
) -> None:
    async with jobs(partners=("bob",), shows=shows) as at:
        await at.client.create(JOB, a_job(a_task("a")))
        await at.phase("AwaitingApproval")
        assert (await at.job())["metadata"].get("finalizers") == held


async def test_no_more_than_the_limit_run_at_once_and_the_urgent_first() -> None:
    async with jobs() as at:
        tasks = [a_task(f"t{n}", priority=n) for n in range(4)]
        await at.client.create(JOB, a_job(*tasks))
        await at.running("t3", "t2")
        await at.end("t2", "Succeeded")
        await at.running("t3", "t1")


FAILURES = [
    # mode, the task that fails is tolerable, what the other running task does, the end
    ("Strict", False, None, "Failed"),
    ("Strict", True, "Succeeded", "Succeeded"),
    ("BestEffort", False, "Succeeded", "Failed"),
    ("BestEffort", True, "Succeeded", "Succeeded"),
]


@pytest.mark.parametrize(("mode", "tolerable", "other", "end"), FAILURES, ids=lambda value: str(value))
async def test_what_a_failed_task_does_to_its_job(mode: str, tolerable: bool, other: str | None, end: str) -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("bad", tolerable=tolerable), a_task("good"), scheduleMode=mode))
        await at.running("bad", "good")
        await at.end("bad", "Failed", "party bob: the engine exited with 1")
        if other is not None:
            await at.world.settle(5)
            assert (await at.status())["phase"] == "Running"
            await at.end("good", other)
        status = await at.phase(end)
        if end == "Failed":
            assert status["message"] == "Task bad failed: party bob: the engine exited with 1."
            good = (await at.tasks())["good"]["status"]
            assert good.get("reason", "") == ("" if other else "KusciaJobStopped")


async def test_what_waits_for_a_failed_task_never_runs() -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("a", tolerable=True), a_task("b", "a"), scheduleMode="BestEffort"))
        await at.running("a")
        await at.end("a", "Failed")
        assert (await at.phase("Failed"))["message"] == "Not run, because they wait for a: b."


INVALID = [
    ([a_task("a"), a_task("a")], 'tasks[1].alias: "a" is the alias of tasks[0] too'),
    ([a_task("a", "c"), a_task("b", "a"), a_task("c", "b")], "in a circle: a -> c -> b -> a"),
    ([a_task("a", "x")], 'there is no task with the alias "x"'),
    ([a_task("a", appImage="nope")], 'tasks[0].appImage: there is no AppImage "nope"'),
    ([a_task("a", parties=("alice", "zoe"))], 'tasks[0].parties[1].domainID: there is no domain "zoe"'),
    ([a_task("a", parties=("alice", "alice"))], "tasks[0].parties[1]: alice is named twice"),
    ([a_task("a", parties=())], "tasks[0].parties: name at least one"),
]


@pytest.mark.parametrize(("tasks", "sentence"), INVALID, ids=[row[1].split(":")[-1].strip()[:30] for row in INVALID])
async def test_a_job_that_makes_no_sense_fails_and_says_why(tasks: list[Object], sentence: str) -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(*tasks))
        status = await at.phase("Failed")
        assert status["reason"] == "ValidateFailed" and sentence in status["message"], status["message"]
        assert next(c for c in status["conditions"] if c["type"] == "JobValidated")["status"] == "False"
        await at.order("Restart")
        await at.world.settle(5)
        assert (await at.status())["phase"] == "Failed" and not await at.tasks()


async def test_an_engine_that_comes_a_moment_later_is_waited_for() -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("a", appImage="late")))
        await at.world.settle(1)
        assert "Waiting" in (await at.status())["message"]
        await at.client.create(IMAGE, an_image("late"))
        await at.running("a")


async def test_what_was_written_here_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look when the job comes and one when its engine has not come; both write, and neither write is news to us."""
    looks: list[str] = []

    def counted(view: JobView) -> Plan:
        made = plan_until_settled(view)
        looks.append(made.status.phase)
        return made

    monkeypatch.setattr(kusciajob, "plan_until_settled", counted)
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("a", appImage="late")))
        await at.phase("Failed")
        await at.world.settle(5)
        assert looks == [JobPhase.INITIALIZED, JobPhase.FAILED]
        await at.client.patch(JOB, "j", CROSS_DOMAIN, {"metadata": {"labels": {"touched": "by-hand"}}})
        await at.world.settle(1)
        assert looks[2:] == [JobPhase.FAILED], "what others write is news"


async def test_stop_then_restart_runs_only_what_did_not_succeed() -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("one"), a_task("two", "one")))
        await at.running("one")
        await at.end("one", "Succeeded")
        await at.running("two")
        before = await at.tasks()
        await at.order("Stop", 1)
        status = await at.phase("Failed")
        assert status["message"] == "Party: alice execute the cmd: Stop." and status["completionTime"]
        assert status["stageStatus"] == dict.fromkeys(("alice", "bob"), "JobStopStageSucceeded")
        await at.order("Restart", 2)
        await at.running("two")
        after = await at.tasks()
        assert after["one"]["metadata"]["uid"] == before["one"]["metadata"]["uid"]
        assert after["two"]["metadata"]["uid"] != before["two"]["metadata"]["uid"]
        assert after["two"]["metadata"]["name"] == before["two"]["metadata"]["name"]
        assert (await at.job())["metadata"]["labels"][labels.KUSCIA_JOB_STAGE] == "Start"
        await at.end("two", "Failed")
        await at.phase("Failed")
        await at.world.settle(5)
        assert (await at.status())["phase"] == "Failed", "the old command must not restart it again"
        await at.order("Restart", 4)
        await at.running("two")
        await at.end("two", "Succeeded")
        await at.phase("Succeeded")


@pytest.mark.parametrize(("stage", "phase"), [("Suspend", "Suspended"), ("Cancel", "Cancelled")], ids=str)
async def test_suspend_and_cancel_stop_the_tasks(stage: str, phase: str) -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("one")))
        await at.running("one")
        await at.order(stage, 1)
        await at.phase(phase)
        await at.running()
        await at.order("Restart", 2)
        if phase == "Suspended":
            await at.running("one")
        else:
            await at.world.settle(5)
            assert (await at.status())["phase"] == "Cancelled"


async def test_a_partner_is_asked_and_may_refuse() -> None:
    async with jobs(partners=("bob",)) as at:
        await at.client.create(JOB, a_job(a_task("a")))
        status = await at.phase("AwaitingApproval")
        assert status["approveStatus"] == {"alice": "JobAccepted"}
        marks = (await at.job())["metadata"]["annotations"]
        assert marks[labels.KUSCIA_INTERCONN_KUSCIA_PARTIES] == "bob"
        assert marks[labels.KUSCIA_SELF_AS_INITIATOR] == "true"
        await at.world.settle(5)
        assert "approval of bob" in (await at.status())["message"]
        await at.say(approveStatus={"bob": "JobRejected"})
        assert (await at.phase("ApprovalReject"))["message"] == "Party: bob approval reject."


APPROVALS: list[tuple[bool, Callable[[Jobs], Awaitable[None]] | None]] = [
    (False, None),
    (True, lambda at: at.say(approveStatus={"bob": "JobAccepted"})),
]


@pytest.mark.parametrize(("requires_approval", "accept"), APPROVALS, ids=["by-itself", "by-a-person"])
async def test_a_participant_accepts_and_waits_for_the_initiator(
    requires_approval: bool, accept: Callable[[Jobs], Awaitable[None]] | None
) -> None:
    async with jobs(partners=("alice",), requires_approval=requires_approval) as at:
        await at.client.create(JOB, a_job(a_task("a")))
        if accept is not None:
            await at.phase("AwaitingApproval")
            await at.world.settle(5)
            assert (await at.status())["phase"] == "AwaitingApproval"
            await accept(at)
        status = await at.phase("Pending")
        assert status["approveStatus"] == {"bob": "JobAccepted"}
        await at.say(stageStatus={"alice": "JobCreateStageSucceeded"})
        await at.phase("Running")
        await at.world.settle(5)
        assert not await at.tasks(), "task ids are the initiator's to give"
        job = await at.job()
        job["spec"]["tasks"][0]["taskID"] = "given"
        await at.client.patch(JOB, "j", CROSS_DOMAIN, {"spec": job["spec"]})
        await at.running("a")
        assert (await at.tasks())["a"]["metadata"]["name"] == "given"


async def test_a_task_id_that_another_job_has_fails_the_job() -> None:
    async with jobs() as at:
        await at.client.create(JOB, a_job(a_task("a", taskID="same"), name="first"))
        await at.phase("Running", "first")
        await at.running("a")
        await at.client.create(JOB, a_job(a_task("a", taskID="same"), name="second"))
        assert (await at.phase("Failed", "second"))["reason"] == "CreateTaskFailed"
        assert (await at.status("first"))["phase"] == "Running"


async def test_a_party_resources_are_shared_out_among_its_containers() -> None:
    async with jobs() as at:
        await at.client.create(IMAGE, an_image("two", containers=2, replicas=2))
        task = a_task("a", appImage="two")
        task["parties"][0]["resources"] = {"limits": {"cpu": "2", "memory": "4Gi", "kuscia.io/bandwidth": "10"}}
        await at.client.create(JOB, a_job(task))
        await at.running("a")
        parties = (await at.tasks())["a"]["spec"]["parties"]
        given = [container["resources"]["limits"] for container in parties[0]["template"]["spec"]["containers"]]
        assert given == [{"cpu": "500m", "memory": "1Gi", "kuscia.io/bandwidth": "2"}] * 2
        assert "template" not in parties[1]


async def test_an_old_job_is_removed() -> None:
    async with jobs(retention=100.0) as at:
        await at.client.create(JOB, a_job(a_task("a")))
        await at.running("a")
        await at.end("a", "Succeeded")
        await at.phase("Succeeded")
        await at.world.settle(90, step=10)
        assert await at.world.exists(JOB, "j", CROSS_DOMAIN)
        await at.world.settle(20, step=5)
        assert not await at.world.exists(JOB, "j", CROSS_DOMAIN)
