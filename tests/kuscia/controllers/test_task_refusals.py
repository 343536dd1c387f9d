"""Objects of tasks and jobs that the API refuses: what lasts ends the task with its reason, what may end is waited for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from job_world import CROSS_DOMAIN, GROUP, JOB, POD, TASK, JobWorld, a_job, a_task, by_task, job_world
from workload_world import QUOTA

from coterie.kube.api import errors
from coterie.kube.api.errors import ApiError
from coterie.kube.api.labels import COTERIE_RUNTIME_HANDLER
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.transport import TransportRequest
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES

CREATE_FAILED = "CreateResourceFailed"
LIMIT_RANGE = Kind.dynamic(builtin("limitranges"))


def a_quota(namespace: str, **hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "small", "namespace": namespace}, "spec": {"hard": hard}}


def refuse(error: ApiError, method: str, *parts: str) -> Callable[[TransportRequest], ApiError | None]:
    return lambda call: error if call.method == method and all(part in call.path for part in parts) else None


def party(status: dict[str, Any], domain: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in status["partyTaskStatus"] if each["domainID"] == domain)
    return found


async def waits(w: JobWorld, sentence: str) -> None:
    async def told() -> bool:
        tasks = await w.tasks()
        return any(sentence in (each.get("status") or {}).get("message", "") for each in tasks.values())

    await w.until(told, 10)


async def test_a_quota_is_told_at_once_and_waited_for() -> None:
    async with job_world() as w:
        await w.client.create(QUOTA, a_quota("bob", pods="0"))
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await waits(w, "exceeded quota: small")
        status = await w.task_status("a")
        assert status["phase"] == "Pending"
        assert party(status, "bob")["message"] == "Pod t-0 was refused: exceeded quota", "partners learn no amounts"
        made = next(each for each in status["conditions"] if each["type"] == "ResourceCreated")
        assert made["status"] == "False" and "exceeded quota" in made["reason"]
        await w.client.patch(QUOTA, "small", "bob", {"spec": {"hard": {"pods": "10"}}})
        await w.until_phase("Succeeded")
        assert not any(each.get("message") for each in (await w.task_status("a"))["partyTaskStatus"])


async def test_a_quota_that_stays_full_ends_the_task_when_its_life_is_over() -> None:
    async with job_world() as w:
        await w.client.create(QUOTA, a_quota("bob", pods="0"))
        await w.client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 50})))
        await w.settle(45)
        assert (await w.task_status("a"))["phase"] == "Pending"
        status = await w.until_phase("Failed", seconds=30)
        task = await w.task_status("a")
        assert (task["phase"], task["reason"]) == ("Failed", CREATE_FAILED)
        assert "waited 50 seconds in vain: Pod t-0" in task["message"] and "exceeded quota" in task["message"]
        assert "exceeded quota: small" in status["message"], "the job says so too"
        assert party(task, "bob")["phase"] == "Failed"
        await w.until_clean()


async def test_the_life_of_a_task_goes_on_over_a_restart() -> None:
    async with job_world() as w:
        await w.client.create(QUOTA, a_quota("bob", pods="0"))
        await w.client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 50})))
        await w.settle(40)
        await w.stop()
        await w.start()
        await w.until_phase("Failed", seconds=20)


async def test_a_pod_above_the_limits_of_its_namespace_fails_at_once() -> None:
    async with job_world() as w:
        limits = [{"type": "Container", "max": {"cpu": "1"}}]
        body = {"metadata": {"name": "small", "namespace": "alice"}, "spec": {"limits": limits}}
        await w.client.create(LIMIT_RANGE, body)
        task = a_task("a", taskID="t")
        task["parties"][0]["resources"] = {"limits": {"cpu": "2"}}
        await w.client.create(JOB, a_job(task))
        status = await w.until_phase("Failed", seconds=10)
        found = await w.task_status("a")
        assert found["reason"] == CREATE_FAILED and "maximum cpu usage" in found["message"], found
        assert "maximum cpu usage" in status["message"]
        assert party(found, "alice")["message"] == "Pod t-0 was refused: Forbidden"
        await w.until_clean()


async def test_an_input_that_no_config_map_holds_fails_at_once() -> None:
    async with job_world() as w:
        noise = random.Random(1).randbytes(1_100_000).hex()
        await w.client.create(JOB, a_job(a_task("a", taskID="t", taskInputConfig=noise)))
        status = await w.until_phase("Failed", seconds=10)
        assert (await w.task_status("a"))["reason"] == CREATE_FAILED
        assert "ConfigMap t-0-configtemplate" in status["message"] or "ConfigMap" in status["message"], status
        assert len(status["message"]) < 5000
        await w.until_clean()


@pytest.mark.parametrize("plural", ["pods", "services", "configmaps", "taskresourcegroups", "taskresources"])
async def test_a_lasting_refusal_of_any_object_ends_the_task(plural: str) -> None:
    async with job_world() as w:
        w.faults.refuse = refuse(errors.Forbidden("no such luck"), "POST", f"/{plural}")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        status = await w.until_phase("Failed", seconds=10)
        assert "no such luck" in status["message"]
        assert (await w.task_status("a"))["reason"] == CREATE_FAILED
        w.faults.refuse = lambda call: None
        await w.until_clean()


async def test_a_lasting_refusal_in_the_group_ends_the_task() -> None:
    """The group lets the reservations go ahead."""
    async with job_world() as w:
        refused = errors.Forbidden("no such luck")
        w.faults.refuse = lambda call: (
            refused if call.method == "PATCH" and "/bob/" in call.path and b"Schedulable" in call.body else None
        )
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        status = await w.until_phase("Failed", seconds=10)
        assert "no such luck" in status["message"]
        assert (await w.task_status("a"))["reason"] == "TaskResourceGroupPhaseFailed"
        await w.until_clean()


async def test_what_is_refused_for_a_partner_does_not_speak_in_its_name() -> None:
    """The initiator keeps the partner's reservation, but its party's message is the partner's own."""
    async with job_world(partners=("bob",)) as w:
        w.faults.refuse = refuse(errors.Forbidden("no such luck"), "POST", "/bob/taskresources")
        named = [{"domainID": name, "appImageRef": "engine"} for name in ("alice", "bob")]
        spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": named}
        await w.client.create(TASK, {"metadata": {"name": "t", "namespace": CROSS_DOMAIN}, "spec": spec})

        async def failed() -> bool:
            return ((await w.get(TASK, "t", CROSS_DOMAIN)).get("status") or {}).get("phase") == "Failed"

        await w.until(failed, 10)
        status = (await w.get(TASK, "t", CROSS_DOMAIN))["status"]
        assert status["reason"] == CREATE_FAILED and "no such luck" in status["message"]
        assert not party(status, "bob").get("message") and party(status, "bob")["phase"] == "Pending"
        await w.until_clean()


async def test_a_partner_cannot_choose_a_weaker_runtime_class() -> None:
    """Neither in its party's template nor on the task, nor by the pod afterwards; and one that is missing runs nothing."""
    async with job_world(partners=("alice",)) as w:
        policy = {"metadata": {"name": "alice"}, "spec": {"appImages": ["*"], "runtimeClass": "gvisor"}}
        await w.client.create(PARTNER_POLICIES.as_dynamic, policy)
        await w.settle(2)
        weaker = {COTERIE_RUNTIME_HANDLER: "runp"}
        party = {
            "domainID": "bob",
            "appImageRef": "engine",
            "template": {
                "metadata": {"annotations": weaker},
                "spec": {"runtimeClassName": "runp", "containers": [{"name": "main", "workingDir": "/"}]},
            },
        }
        spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": [party]}
        meta = {"name": "t", "namespace": CROSS_DOMAIN, "annotations": {**weaker, "runtimeClassName": "runp"}}
        await w.client.create(TASK, {"metadata": meta, "spec": spec})

        async def there() -> bool:
            return bool(await w.list(POD, "bob"))

        await w.until(there, 20)
        (pod,) = await w.list(POD, "bob")
        assert pod["spec"]["runtimeClassName"] == "gvisor"
        assert pod["metadata"]["annotations"][COTERIE_RUNTIME_HANDLER] == "gvisor"
        changed = await w.client.patch(POD, pod["metadata"]["name"], "bob", {"metadata": {"annotations": weaker}})
        assert changed["metadata"]["annotations"][COTERIE_RUNTIME_HANDLER] == "gvisor"
        await w.client.patch(PARTNER_POLICIES.as_dynamic, "alice", "", {"spec": {"runtimeClass": "absent"}})
        await w.settle(2)
        await w.client.create(TASK, {"metadata": {**meta, "name": "t2"}, "spec": spec})

        async def failed() -> bool:
            return ((await w.get(TASK, "t2", CROSS_DOMAIN)).get("status") or {}).get("phase") == "Failed"

        await w.until(failed, 20)
        status = (await w.get(TASK, "t2", CROSS_DOMAIN))["status"]
        assert 'RuntimeClass "absent" not found' in str(status)
        assert [each["metadata"]["name"] for each in await w.list(POD, "bob")] == [pod["metadata"]["name"]]


async def test_a_quota_of_reservations_is_told_and_ends_with_its_life() -> None:
    async with job_world() as w:
        w.faults.refuse = refuse(errors.Forbidden("exceeded quota: small"), "POST", "/taskresources")
        await w.client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 40})))
        await w.settle(30)
        assert (await w.task_status("a"))["phase"] == "Pending"
        status = await w.until_phase("Failed", seconds=20)
        assert "exceeded quota: small" in status["message"]


TRANSIENT: list[ApiError] = [errors.InternalError("disk"), errors.Timeout("slow"), errors.Conflict("raced")]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: str(error.code))
async def test_transient_errors_are_retried(error: ApiError) -> None:
    async with job_world() as w:
        w.faults.refuse = refuse(error, "POST", "/pods")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.settle(10)
        assert (await w.task_status("a"))["phase"] == "Pending"
        w.faults.refuse = lambda call: None
        await w.until_phase("Succeeded")


async def test_transient_errors_that_never_end_fail_the_task_when_its_life_is_over() -> None:
    async with job_world() as w:
        w.faults.refuse = refuse(errors.InternalError("the disk is full"), "POST", "/pods")
        await w.client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 50})))
        status = await w.until_phase("Failed", seconds=90)
        assert "waited 50 seconds in vain: the disk is full" in status["message"]


async def test_a_task_whose_group_is_lost_fails_when_its_life_is_over() -> None:
    async with job_world(cpu="1") as w:
        task = a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 50})
        task["parties"][1]["resources"] = {"requests": {"cpu": "2"}}
        await w.client.create(JOB, a_job(task))
        await w.settle(5)
        w.faults.refuse = refuse(errors.Forbidden("no"), "POST", "/taskresourcegroups")
        await w.client.delete(GROUP, "t")
        status = await w.until_phase("Failed", seconds=60)
        assert "TaskResourceGroup is gone" in status["message"]


async def test_tasks_that_a_quota_refuses_make_the_job_wait_and_then_fail() -> None:
    async with job_world() as w:
        await w.client.create(QUOTA, a_quota(CROSS_DOMAIN, **{"count/kusciatasks.kuscia.secretflow": "0"}))
        await w.client.create(JOB, a_job(a_task("a", taskID="t"), name="waits"))
        await w.settle(10)
        status = await w.job_status("waits")
        assert status["phase"] == "Running" and "Task a cannot be created" in status["message"]
        assert "exceeded quota" in status["message"]
        await w.until_phase("Failed", "waits", seconds=320)
        assert (await w.job_status("waits"))["reason"] == "CreateTaskFailed"


async def test_tasks_that_a_quota_lets_pass_later_run() -> None:
    async with job_world() as w:
        await w.client.create(QUOTA, a_quota(CROSS_DOMAIN, **{"count/kusciatasks.kuscia.secretflow": "0"}))
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.settle(10)
        await w.client.delete(QUOTA, "small", CROSS_DOMAIN)
        await w.until_phase("Succeeded")
        conditions = {each["type"]: each["status"] for each in (await w.job_status())["conditions"]}
        assert conditions["TasksCreated"] == "True"


async def test_a_job_that_cannot_be_marked_fails_with_the_reason() -> None:
    async with job_world() as w:
        refused = errors.RequestEntityTooLarge("the object is too large")
        w.faults.refuse = lambda call: (
            refused if call.method == "PATCH" and call.path.endswith("/kusciajobs/j") else None
        )
        await w.client.create(JOB, a_job(a_task("a")))
        status = await w.until_phase("Failed", seconds=10)
        assert status["reason"] == "UpdateJobFailed" and "too large" in status["message"]


async def test_other_replicas_are_not_created_after_a_refusal_was_cleaned_up() -> None:
    """A create that is slower than the refusal of its sibling must not come after the clean-up."""
    async with job_world() as w:
        w.outcome = by_task(a="Pending")
        w.faults.refuse = refuse(errors.Forbidden("no such luck"), "POST", "/namespaces/alice/pods")
        w.faults.delay = lambda call: 5.0 if call.method == "POST" and call.path.endswith("/bob/pods") else 0.0
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.until_phase("Failed", seconds=20)
        await w.client.delete(JOB, "j", CROSS_DOMAIN)
        await w.settle(20)
        assert not (await w.client.list(POD)).items
