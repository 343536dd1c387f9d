"""Jobs down to their pods: the job, task and group controllers with the real scheduler, pods run by a few lines."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from domain_world import CDR, a_route
from job_world import (
    CONFIG_MAP,
    CROSS_DOMAIN,
    IMAGE,
    JOB,
    POD,
    SERVICE,
    TASK,
    a_job,
    a_task,
    an_image,
    by_task,
    job_world,
)

from coterie.kuscia.api import labels


async def test_a_job_of_two_parties_runs_and_leaves_nothing_behind() -> None:
    async with job_world() as w:
        w.outcome = by_task(one="Running")
        await w.client.create(JOB, a_job(a_task("one"), a_task("two", "one")))

        async def both_run() -> bool:
            return len([p for p in (await w.client.list(POD)).items if p["status"].get("phase") == "Running"]) == 2

        await w.until(both_run)
        status = await w.task_status("one")
        assert status["phase"] == "Running"
        assert {p["domainID"]: p["phase"] for p in status["partyTaskStatus"]} == {"alice": "Running", "bob": "Running"}
        w.outcome = by_task()
        await w.until_phase("Succeeded")
        assert [(await w.task_status(alias))["phase"] for alias in ("one", "two")] == ["Succeeded"] * 2
        await w.until_clean()
        assert (await w.task_status("two"))["completionTime"]


async def test_what_an_engine_is_given() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.patch(IMAGE, "engine", "", {"spec": an_image(replicas=2)["spec"]})
        job = a_job(a_task("a", taskID="t7"))
        job["spec"]["flowID"] = "f7"
        await w.client.create(JOB, job)
        await w.until_phase("Running")

        async def made() -> bool:
            return len((await w.client.list(POD)).items) == 4

        await w.until(made)
        await w.settle(2)
        pod = await w.get(POD, "t7-1", "alice")
        numbers = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert all(20000 <= number < 32767 for number in numbers.values()) and len(set(numbers.values())) == 3
        env = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
        assert env == {f"KUSCIA_PORT_{name.upper()}_NUMBER": str(number) for name, number in numbers.items()}
        assert pod["spec"]["nodeSelector"] == {labels.KUSCIA_NODE_NAMESPACE: "alice"}
        assert pod["spec"]["schedulerName"] == "kuscia-scheduler" and pod["spec"]["restartPolicy"] == "Never"
        marks = pod["metadata"]["annotations"]
        assert marks[labels.COTERIE_FLOW] == "f7", "grants may be for one flow"
        values = await w.get(CONFIG_MAP, marks[labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM], "alice")
        define = json.loads(values["data"]["TASK_CLUSTER_DEFINE"])
        assert (define["selfPartyIdx"], define["selfEndpointIdx"]) == (0, 1), "each replica knows which it is"
        assert [party["name"] for party in define["parties"]] == ["alice", "bob"]
        services = {each["portName"]: each["endpoints"] for each in define["parties"][0]["services"]}
        assert services["talk"] == ["t7-0-talk.alice.svc", "t7-1-talk.alice.svc"]
        assert services["inner"][1] == f"t7-1-inner.alice.svc:{numbers['inner']}" and "own" not in services
        ports = json.loads(values["data"]["ALLOCATED_PORTS"])["ports"]
        assert ports[0] == {"name": "talk", "port": numbers["talk"], "scope": "Cluster", "protocol": "HTTP"}
        assert zlib.decompress(base64.b64decode(values["binaryData"]["TASK_INPUT_CONFIG"])) == b'{"n": 1}'
        talk = await w.get(SERVICE, "t7-1-talk", "alice")
        assert talk["metadata"]["annotations"][labels.KUSCIA_ACCESS_DOMAIN] == "alice,bob"
        assert talk["metadata"]["labels"][labels.KUSCIA_LOADBALANCER] == "domainroute"
        assert talk["spec"]["ports"][0]["port"] == numbers["talk"]
        inner = await w.get(SERVICE, "t7-1-inner", "alice")
        assert labels.KUSCIA_LOADBALANCER not in inner["metadata"]["labels"]
        assert not await w.exists(SERVICE, "t7-1-own", "alice")


FAILURES = [
    ({"a_bob": "Failed"}, "party bob: pod t-0: container main exited with 1 (Error)"),
]


@pytest.mark.parametrize(("outcomes", "sentence"), FAILURES, ids=["engine-fails"])
async def test_a_party_that_fails_ends_the_task_for_all(outcomes: dict[str, str], sentence: str) -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running", **outcomes)
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        status = await w.until_phase("Failed")
        assert sentence in status["message"], status["message"]
        await w.until_clean()
        left = {(pod["metadata"]["namespace"], pod["status"]["phase"]) for pod in (await w.client.list(POD)).items}
        assert left == {("bob", "Failed")}, "failed pods stay for people to look at"


async def test_a_lost_pod_fails_the_task() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))

        async def runs() -> bool:
            tasks = await w.tasks()
            return bool(tasks) and tasks["a"].get("status", {}).get("phase") == "Running"

        await w.until(runs)
        await w.client.delete(POD, "t-0", "bob", grace=0)
        assert "party bob: pod t-0: the pod is gone" in (await w.until_phase("Failed"))["message"]
        await w.until_clean()


async def test_a_party_without_room_makes_all_wait_with_the_true_reason() -> None:
    async with job_world(cpu="1") as w:
        task = a_task("a", taskID="t")
        for party in task["parties"]:
            party["resources"] = {"requests": {"cpu": "2"} if party["domainID"] == "bob" else {"cpu": "500m"}}
        await w.client.create(JOB, a_job(task))
        await w.settle(20)
        status = await w.task_status("a")
        assert status["phase"] == "Pending" and "party bob" in status["message"] and "cpu" in status["message"], status
        assert all(not pod["spec"].get("nodeName") for pod in (await w.client.list(POD)).items)
        await w.add_node("bob", "bob-big", "4")
        await w.until_phase("Succeeded", seconds=120)


async def test_a_group_that_never_fits_fails_the_task_in_time() -> None:
    async with job_world(cpu="1") as w:
        task = a_task("a", taskID="t", scheduleConfig={"lifecycleSeconds": 50})
        task["parties"][1]["resources"] = {"requests": {"cpu": "2"}}
        await w.client.create(JOB, a_job(task))
        status = await w.until_phase("Failed", seconds=150)
        assert "not scheduled within 50 seconds" in status["message"] and "cpu" in status["message"]
        await w.until_clean()


async def test_two_jobs_that_need_half_of_each_other_both_end() -> None:
    async with job_world(cpu="1") as w:
        for number in range(4):
            task = a_task("a", taskID=f"t{number}")
            for party in task["parties"]:
                party["resources"] = {"requests": {"cpu": "700m"}}
            await w.client.create(JOB, a_job(task, name=f"j{number}"))
        for number in range(4):
            await w.until_phase("Succeeded", f"j{number}", seconds=400)
        await w.until_clean()


async def test_stop_kills_what_runs_and_restart_begins_again() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))

        async def runs() -> bool:
            return len([p for p in (await w.client.list(POD)).items if p["status"].get("phase") == "Running"]) == 2

        await w.until(runs)
        await w.order("Stop", 1)
        await w.until_phase("Failed")
        await w.until_clean()
        assert not (await w.client.list(POD)).items
        await w.order("Restart", 2)
        w.outcome = by_task()
        await w.until_phase("Succeeded")
        await w.until_clean()


async def test_a_task_that_runs_too_long_is_ended() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.create(JOB, a_job(a_task("a", scheduleConfig={"activeDeadlineSeconds": 30})))
        await w.settle(20)
        assert (await w.task_status("a"))["phase"] == "Running"
        status = await w.until_phase("Failed")
        assert "longer than its limit of 30 seconds" in status["message"]
        await w.until_clean()


async def test_a_deleted_job_takes_everything_with_it() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running", b="Failed")
        await w.client.create(JOB, a_job(a_task("a"), a_task("b", tolerable=True)))

        async def failed() -> bool:
            return (await w.tasks()).get("b", {}).get("status", {}).get("phase") == "Failed"

        await w.until(failed)
        await w.client.delete(JOB, "j", CROSS_DOMAIN)

        async def gone() -> bool:
            return not (await w.client.list(TASK)).items and not (await w.client.list(POD)).items

        await w.until(gone)
        await w.until_clean()


async def test_a_bare_task_runs_without_a_job() -> None:
    """As in Kuscia's own examples, a KusciaTask may be applied by hand."""
    async with job_world() as w:
        parties = [{"domainID": name, "appImageRef": "engine"} for name in ("alice", "bob")]
        spec: dict[str, Any] = {"initiator": "alice", "taskInputConfig": "{}", "parties": parties}
        await w.client.create(TASK, {"metadata": {"name": "bare", "namespace": CROSS_DOMAIN}, "spec": spec})

        async def done() -> bool:
            task = await w.get(TASK, "bare", CROSS_DOMAIN)
            return (task.get("status") or {}).get("phase") == "Succeeded"

        await w.until(done)
        await w.until_clean()


async def test_ports_in_use_are_known_after_a_restart() -> None:
    async with job_world() as w:
        w.outcome = by_task(a="Running", b="Running")
        await w.client.create(JOB, a_job(a_task("a"), name="first"))
        await w.settle(10)
        await w.stop()
        await w.start()
        await w.client.create(JOB, a_job(a_task("b"), name="second"))
        await w.settle(10)
        used: list[tuple[str, int]] = []
        for task in (await w.tasks()).values():
            for party in task["status"]["allocatedPorts"]:
                used += [(party["domainID"], number) for number in party["namedPort"].values()]
        assert len(used) == len(set(used)) == 12


async def test_a_route_that_is_not_ready_is_waited_for() -> None:
    async with job_world() as w:
        await w.client.create(CDR, a_route("alice", "bob"))
        await w.settle(2)
        await w.client.create(JOB, a_job(a_task("a")))
        await w.settle(20)
        status = await w.task_status("a")
        assert status["phase"] == "Pending" and "route from alice to bob is not ready" in status["message"]
        assert not (await w.client.list(POD)).items
        for domain in ("alice", "bob"):
            w.add_gateway(domain, f"gw-{domain}", healthy={"alice-to-bob-http": True})
        await w.until_phase("Succeeded", seconds=120)
