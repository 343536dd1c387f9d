"""Bandwidth of jobs, from the request to the reason why a task waits; and limits that change while it runs."""

from __future__ import annotations

from job_world import JOB, POD, RESERVATION, SERVICE, TASK, JobWorld, a_job, a_task, by_task, job_world

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES
from coterie.kuscia.api.types.job import CROSS_DOMAIN

ROUTE = DOMAIN_ROUTES.as_dynamic

REASON = "BandwidthInsufficient"


async def _set_link(world: JobWorld, domain: str, peer: str, bits: str) -> None:
    route = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainRoute",
        "metadata": {
            "name": f"{domain}-{peer}", "namespace": domain, "annotations": {labels.COTERIE_LINK_BANDWIDTH: bits},
        },
        "spec": {"source": domain, "destination": peer, "authenticationType": "Token"},
    }  # fmt: skip
    await world.client.create(ROUTE, route)


async def test_a_request_above_every_node_is_refused_at_once() -> None:
    async with job_world() as world:
        await world.client.create(JOB, a_job(a_task("a", bandwidthRequest="1Gbps")))
        status = await world.until_phase("Failed", seconds=5)
        assert "tasks[0].bandwidthRequest: 1 Gbit/s of bandwidth are requested" in status["message"]
        assert "no node of alice has more than 100 Mbit/s (alice-0)" in status["message"]
        # What fits is not refused, however little is free now.
        await world.client.create(JOB, a_job(a_task("a", bandwidthRequest="100Mbps"), name="fits"))
        await world.until_phase("Succeeded", "fits")


async def test_a_request_above_the_link_is_refused_at_once() -> None:
    async with job_world() as world:
        await _set_link(world, "alice", "bob", "20Mbps")
        await world.settle(1)
        await world.client.create(JOB, a_job(a_task("a"), bandwidthRequest="50Mbps"))
        status = await world.until_phase("Failed", seconds=5)
        assert "on the link alice-bob, which has 20 Mbit/s" in status["message"]


async def test_a_task_of_its_own_is_refused_too() -> None:
    async with job_world() as world:
        party = {"domainID": "alice", "appImageRef": "engine"}
        spec = {"initiator": "alice", "taskInputConfig": "", "parties": [party], "bandwidthRequest": "1Gbps"}
        await world.client.create(TASK, {"metadata": {"name": "t", "namespace": CROSS_DOMAIN}, "spec": spec})

        async def failed() -> bool:
            return ((await world.get(TASK, "t", CROSS_DOMAIN)).get("status") or {}).get("phase") == "Failed"

        await world.until(failed, 5)
        status = (await world.get(TASK, "t", CROSS_DOMAIN))["status"]
        assert status["reason"] == REASON and "1 Gbit/s" in status["message"]
        assert not await world.list(POD, "alice")


async def test_the_reason_stands_in_reservation_task_and_job_and_goes_when_it_frees() -> None:
    async with job_world() as world:
        world.outcome = by_task(first="Running")
        await world.client.create(JOB, a_job(a_task("first", bandwidthRequest="60Mbps"), name="one"))

        async def runs() -> bool:
            return any((pod["status"].get("phase") == "Running") for pod in await world.list(POD, "alice"))

        await world.until(runs, 30)
        asked = (await world.list(POD, "alice"))[0]["spec"]["containers"][0]["resources"]["requests"]
        assert asked[labels.KUSCIA_BANDWIDTH] == "60"
        reservation = (await world.list(RESERVATION, "alice"))[0]["spec"]
        assert (reservation["bandwidthRequest"], reservation["peers"]) == ("60Mbps", ["bob"])
        await world.client.create(JOB, a_job(a_task("second", bandwidthRequest="60Mbps"), name="two"))

        async def waits() -> bool:
            return (await world.job_status("two")).get("reason") == REASON

        await world.until(waits, 30)
        job, task = await world.job_status("two"), await world.task_status("second")
        assert task["reason"] == REASON
        for text in (job["message"], task["message"]):
            assert "has 100 Mbit/s for tasks, 60 Mbit/s of it are taken and the pod requests 60 Mbit/s" in text
        name = (await world.tasks())["second"]["metadata"]["name"]
        marked = [
            condition["reason"]
            for each in await world.list(RESERVATION, "alice")
            if each["metadata"]["annotations"][labels.KUSCIA_TASK_ID] == name
            for condition in each["status"]["conditions"]
            if condition["type"] == "Reserving"
        ]
        assert any(each.startswith(f"{REASON}: ") for each in marked), marked
        # What a partner is told names no node and no amount.
        told = {party["domainID"]: party.get("message", "") for party in task["partyTaskStatus"]}
        assert all("Mbit" not in text and "alice-0" not in text for text in told.values())
        world.outcome = by_task()
        for pod in (*await world.list(POD, "alice"), *await world.list(POD, "bob")):
            if pod["status"].get("phase") == "Running":
                body = {"status": {"phase": "Succeeded"}}
                await world.client.patch_status(POD, pod["metadata"]["name"], pod["metadata"]["namespace"], body)
        status = await world.until_phase("Succeeded", "two", seconds=120)
        assert not status.get("reason")


async def _limits(world: JobWorld, domain: str) -> list[dict[str, str]]:
    found = (await world.client.list(SERVICE, domain, labels=labels.KUSCIA_TASK_UID)).items
    prefix = labels.KUSCIA_BANDWIDTH_LIMIT_PREFIX
    return [
        {key.removeprefix(prefix): value for key, value in each["metadata"]["annotations"].items() if prefix in key}
        for each in found
    ]


async def test_limits_of_a_running_task_follow_its_spec() -> None:
    async with job_world() as world:
        world.outcome = by_task(a="Running")
        task = a_task("a")
        task["parties"][0]["bandwidthLimits"] = [{"destinationID": "bob", "limitKBps": 100}]
        await world.client.create(JOB, a_job(task))

        async def made() -> bool:
            return bool(await _limits(world, "alice"))

        await world.until(made, 30)
        assert {"bob": "100"} in await _limits(world, "alice")
        body: Object = (await world.tasks())["a"]
        parties = body["spec"]["parties"]
        for wanted in ([{"destinationID": "bob", "limitKBps": 2000}], []):
            parties[0]["bandwidthLimits"] = wanted
            patch = {"spec": {"parties": parties}}
            await world.client.patch(TASK, body["metadata"]["name"], CROSS_DOMAIN, patch)
            expected = {each["destinationID"]: str(each["limitKBps"]) for each in wanted}

            async def followed(expected: dict[str, str] = expected) -> bool:
                return all(each == expected for each in await _limits(world, "alice"))

            await world.until(followed, 2)
        assert all(not each for each in await _limits(world, "bob")), "a party's limits are its own"
