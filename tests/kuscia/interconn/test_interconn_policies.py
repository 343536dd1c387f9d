"""What a partner begins is accepted, waits or is refused as its policy says, and both sides see why. Two control planes, in
virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from domain_world import DOMAIN_PLANE
from interconn_kit import Network, network
from job_world import GROUP, JOB, POD, TASK, a_job, a_task, by_task
from serving_world import KD, a_party, a_serving, pods_of, serving, serving_status

from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.controllers.deployment import controller as deployment
from coterie.kube.controllers.endpoints import controller as endpoints
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.replicaset import controller as replicaset
from coterie.kube.scheduler import scheduler
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.commands import approval_patch
from coterie.kuscia.api.partner_requests import deployment_digest, deployment_taken
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.control.partner_quotas import PartnerQuotas
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciadeployment import controller as kusciadeployment
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.controllers.kusciatask import controller as kusciatask
from coterie.kuscia.controllers.taskresourcegroup import controller as taskresourcegroup
from coterie.kuscia.gangs.plugin import GangPlugin

POLICY = PARTNER_POLICIES.as_dynamic


def _plane(client: Client, informers: Any, clock: Any, *, requires_approval: bool | None) -> list[Any]:
    """Those that share port numbers and quotas."""
    pool = PortPool(random=Random(7), informers=informers)
    quotas = PartnerQuotas(informers)
    return [
        kusciajob.make(client, informers, requires_approval=requires_approval, quotas=quotas, clock=clock),
        kusciatask.make(client, informers, ports=pool, quotas=quotas, clock=clock),
        kusciadeployment.make(
            client, informers, requires_approval=requires_approval, ports=pool, quotas=quotas, clock=clock
        ),
        replicaset.make(client, informers, pod_hook=pool, clock=clock),
        taskresourcegroup.make(client, informers, clock=clock),
        scheduler.make(client, informers, clock=clock, plugins=[GangPlugin()]),
        GarbageCollector(client, clock=clock),
    ]


@asynccontextmanager
async def partners(requires_approval: bool | None = None) -> AsyncIterator[Network]:
    """alice begins, bob decides; bob's partners are open at alice's."""
    plane = partial(_plane, requires_approval=requires_approval)
    async with network("alice", "bob", makes=(*DOMAIN_PLANE, deployment.make, endpoints.make, plane)) as net:
        for each in net.planes.values():
            each.outcome = lambda pod: "Running"
        yield net


async def put_policy(net: Network, **spec: Any) -> None:
    """bob's, of alice."""
    client = net["bob"].client
    if not (await client.list(POLICY)).items:
        await client.create(POLICY, {"metadata": {"name": "alice"}, "spec": spec})
    else:
        await client.modify(POLICY, "alice", "", lambda old: {**old, "spec": spec})


async def job_says(net: Network, *words: str, phase: str, job: str = "j") -> None:
    """On both sides."""

    async def reached() -> bool:
        found = [await net._status(plane, job) for plane in ("alice", "bob")]
        return all(
            each.get("phase") == phase and all(word in each.get("message", "") for word in words) for each in found
        )

    await net.until(reached)


async def deployment_says(net: Network, reason: str, *words: str) -> None:
    async def reached() -> bool:
        found = [await serving_status(net[plane]) for plane in ("alice", "bob")]
        texts = [f"{each.get('reason')} {each.get('message')}" for each in found]
        return all(all(word in text for word in (reason, *words)) for text in texts)

    await net.until(reached)


async def test_a_job_of_a_partner_without_policy_waits_until_there_is_one() -> None:
    async with partners() as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await job_says(net, "Waiting for the approval of bob: there is no policy for alice", phase="AwaitingApproval")
        await net.settle(10)
        assert not (await net["bob"].client.list(POD)).items
        await put_policy(net, appImages=["*"])
        await net.until_phase("Running")
        for plane in net.planes.values():
            plane.outcome = by_task()
        for status in await net.until_phase("Succeeded"):
            assert not any(
                each.get("message") for entries in status["partyTaskCreateStatus"].values() for each in entries
            )


async def test_a_job_outside_the_policy_is_refused_and_both_sides_know_why() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["scql"], outside="Refuse")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await job_says(net, "Party: bob approval reject. refused: alice may not begin `engine`", phase="ApprovalReject")
        admitted = [each for each in (await net._status("bob", "j"))["conditions"] if each["type"] == "Admitted"]
        assert [(each["status"], each["reason"]) for each in admitted] == [("False", "Refuse")]
        assert not (await net["bob"].client.list(TASK)).items


async def test_a_person_rejects_a_job_and_the_initiator_sees_why() -> None:
    async with partners() as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await job_says(net, "Waiting for the approval of bob", phase="AwaitingApproval")
        bob = net["bob"].client
        job = await bob.get(KUSCIA_JOBS, "j", CROSS_DOMAIN)
        patch = approval_patch(job, ("bob",), reject=True, reason="not before\n\x1b the contract is signed")
        await bob.patch_status(JOB, "j", CROSS_DOMAIN, patch)
        await job_says(net, "approval reject. rejected: not before \x1b the contract is signed", phase="ApprovalReject")


async def test_a_person_may_accept_what_is_outside_the_policy() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"], cpu="1")
        task = a_task("a")
        task["parties"][1]["resources"] = {"limits": {"cpu": "2"}}
        await net["alice"].client.create(JOB, a_job(task))
        await job_says(net, "task a: asks for 2 CPUs, alice may have 1", phase="AwaitingApproval")
        approval = {"status": {"approveStatus": {"bob": "JobAccepted"}}}
        await net["bob"].client.patch_status(JOB, "j", CROSS_DOMAIN, approval)
        await net.until_phase("Running")


@pytest.mark.parametrize(("setting", "phase"), [(True, "AwaitingApproval"), (False, "Running")])
async def test_the_setting_of_kuscia_holds_where_it_is_given(setting: bool, phase: str) -> None:
    async with partners(setting) as net:
        if setting:
            await put_policy(net, appImages=["*"])
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase(phase)
        await net.settle(5)
        await net.until_phase(phase)


async def test_tasks_beyond_the_quota_wait_for_those_that_run() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"], quota={"tasks": 1})
        await net["alice"].client.create(JOB, a_job(a_task("a"), name="one"))
        await net.until_phase("Running", job="one")

        async def runs(count: int) -> bool:
            pods = (await net["bob"].client.list(POD)).items
            return len([pod for pod in pods if pod["status"].get("phase") == "Running"]) == count

        await net.until(lambda: runs(1))
        await net["alice"].client.create(JOB, a_job(a_task("a"), name="two"))
        await net.until_phase("Running", job="two")

        async def both_say_why() -> bool:
            for plane in net.planes.values():
                tasks = [t for t in await plane.list(TASK, CROSS_DOMAIN) if t["metadata"]["name"].startswith("two")]
                texts = [
                    party.get("message", "")
                    for task in tasks
                    for party in (task.get("status") or {}).get("partyTaskStatus", ())
                    if party["domainID"] == "bob"
                ]
                if not any("alice may have 1 tasks here at once" in text for text in texts):
                    return False
            return True

        await net.until(both_say_why)
        assert await runs(1)
        for plane in net.planes.values():
            plane.outcome = lambda pod: "Succeeded"
        await net.until_phase("Succeeded", job="one")
        await net.until_phase("Succeeded", job="two")
        assert not (await net["bob"].client.list(GROUP)).items or await net.until_clean() is None


async def test_a_task_that_never_fits_its_quota_fails_at_once() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"], quota={"cpu": "1"})
        task = a_task("a")
        task["parties"][1]["resources"] = {"limits": {"cpu": "2"}}
        await net["alice"].client.create(JOB, a_job(task))
        await job_says(net, "alice may have 1 CPUs here at once", phase="AwaitingApproval")
        approval = {"status": {"approveStatus": {"bob": "JobAccepted"}}}
        await net["bob"].client.patch_status(JOB, "j", CROSS_DOMAIN, approval)
        for status in await net.until_phase("Failed"):
            assert "alice may have 1 CPUs here at once, and this would make 2" in status["message"]


HOSTILE: Object = {
    "replicas": 1,
    "strategy": {"type": "Recreate"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "workingDir": "/",
                "command": ["/bin/sh", "-c", "id"],
                "args": ["x"],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"cpu": "500m"}},
            }
        ]
    },
}


async def test_a_partners_deployment_runs_our_command_only() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"])
        await net["alice"].client.create(KD, a_serving("alice", a_party("bob", template=HOSTILE)))

        async def served() -> bool:
            return (await serving_status(net["bob"])).get("phase") == "Available"

        await net.until(served)
        (pod,) = await pods_of(net["bob"], "bob")
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["run"] and "args" not in container
        assert "A" not in {each["name"] for each in container["env"]}
        assert container["resources"]["limits"] == {"cpu": "500m"}
        assert container["workingDir"] == "/work"
        template = (await serving(net["bob"]))["spec"]["parties"][1]["template"]
        taken = {"name": "main", "workingDir": "", "resources": {"limits": {"cpu": "500m"}}}
        assert template == {"replicas": 1, "spec": {"containers": [taken]}}


async def test_a_deployment_waits_for_a_person_and_a_changed_one_waits_again() -> None:
    async with partners() as net:
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await deployment_says(net, "AwaitingApproval", "waiting for the approval of bob: there is no policy for alice")
        assert not await pods_of(net["bob"], "bob")
        digest = deployment_digest(deployment_taken((await serving(net["bob"]))["spec"]))
        patch = {"metadata": {"annotations": {labels.COTERIE_APPROVED: digest}}}
        await net["bob"].client.patch(KD, "s", CROSS_DOMAIN, patch)

        async def served() -> bool:
            return (await serving_status(net["alice"])).get("phase") == "Available"

        await net.until(served)
        before = [pod["metadata"]["uid"] for pod in await pods_of(net["bob"], "bob")]
        await net["alice"].client.patch(KD, "s", CROSS_DOMAIN, {"spec": {"inputConfig": '{"other": 1}'}})

        async def noticed() -> bool:
            parties = (await serving_status(net["alice"])).get("partyDeploymentStatuses") or {}
            entries = parties.get("bob", {}).values()
            return any(c["reason"] == "AwaitingApproval" for entry in entries for c in entry.get("conditions", ()))

        await net.until(noticed)
        assert [pod["metadata"]["uid"] for pod in await pods_of(net["bob"], "bob")] == before


async def test_a_deployment_outside_the_policy_is_refused_and_one_inside_runs() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"], kinds=["Job"], outside="Refuse")
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await deployment_says(net, "RefusedByPolicy", "refused: alice may not begin a deployment")
        assert not await pods_of(net["bob"], "bob")
        await put_policy(net, appImages=["engine"])

        async def served() -> bool:
            return (await serving_status(net["alice"])).get("phase") == "Available"

        await net.until(served)
        # Who changes its mind takes it away again.
        digest = deployment_digest(deployment_taken((await serving(net["bob"]))["spec"]))
        marks = {labels.COTERIE_APPROVED: None, labels.COTERIE_REJECTED: digest}
        await net["bob"].client.patch(KD, "s", CROSS_DOMAIN, {"metadata": {"annotations": marks}})
        await deployment_says(net, "Rejected", "bob rejected it")

        async def gone() -> bool:
            return not await pods_of(net["bob"], "bob")

        await net.until(gone)


async def test_a_deployment_beyond_the_quota_waits() -> None:
    async with partners() as net:
        await put_policy(net, appImages=["*"], quota={"pods": 1})
        await net["alice"].client.create(JOB, a_job(a_task("a")))

        async def runs() -> bool:
            return len((await net["bob"].client.list(POD)).items) == 1

        await net.until(runs)
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await deployment_says(net, "QuotaExceeded", "alice may have 1 pods here at once, and this would make 2")
        await put_policy(net, appImages=["*"])

        async def served() -> bool:
            return (await serving_status(net["alice"])).get("phase") == "Available"

        await net.until(served)
