"""Deployments of two and three autonomous domains: each runs its own part, all know how the whole is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from interconn_kit import Network, network
from job_world import IMAGE, POD, an_image
from serving_world import (
    KD,
    SERVING_PLANE,
    a_party,
    a_serving,
    change_party,
    left_of,
    pods_of,
    serving,
    serving_status,
)
from workload_world import DEPLOYMENT

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENT_SUMMARIES
from coterie.kuscia.api.types.job import CROSS_DOMAIN

SUMMARY = KUSCIA_DEPLOYMENT_SUMMARIES.as_dynamic


@asynccontextmanager
async def running(*names: str) -> AsyncIterator[Network]:
    async with network(*names, makes=SERVING_PLANE) as net:
        for plane in net.planes.values():
            plane.outcome = lambda pod: "Running"
        yield net


async def until(net: Network, phase: str, *names: str) -> list[Object]:
    async def reached() -> bool:
        found = [await serving_status(net[name]) for name in names or net.planes]
        return all(status.get("phase") == phase for status in found)

    await net.until(reached)
    return [await serving_status(net[name]) for name in names or net.planes]


async def until_gone(net: Network) -> None:
    async def gone() -> bool:
        for plane in net.planes.values():
            if await left_of(plane) or (await plane.client.list(SUMMARY)).items:
                return False
        return True

    await net.until(gone)


async def test_each_side_runs_its_own_parties_and_knows_of_all() -> None:
    async with running("alice", "bob", "carol") as net:
        body = a_serving("alice", a_party("bob", template={"replicas": 2}), "carol")
        body["metadata"]["labels"] = {labels.KUSCIA_APP_TYPE: "serving"}
        await net["alice"].client.create(KD, body)
        for status in await until(net, "Available"):
            assert (status["totalParties"], status["availableParties"]) == (3, 3)
            parties = status["partyDeploymentStatuses"]
            assert {name: each["s"]["availableReplicas"] for name, each in parties.items()} == {
                "alice": 1,
                "bob": 2,
                "carol": 1,
            }
        for name in net.planes:
            pods = (await net[name].client.list(POD)).items
            assert {pod["metadata"]["namespace"] for pod in pods} == {name}
        copy = await serving(net["bob"])
        marks = copy["metadata"]["annotations"]
        assert marks[labels.KUSCIA_INITIATOR_MASTER_DOMAIN] == "alice"
        assert marks[labels.KUSCIA_SELF_AS_INITIATOR] == "false"
        assert marks[labels.KUSCIA_INTERCONN_SELF_PARTIES] == "bob"
        assert copy["metadata"]["labels"][labels.KUSCIA_APP_TYPE] == "serving"
        own = (await serving(net["alice"]))["metadata"]["annotations"]
        assert own[labels.KUSCIA_INTERCONN_KUSCIA_PARTIES] == "bob_carol"


async def test_changes_reach_the_partner() -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await until(net, "Available")
        await net["alice"].client.patch(KD, "s", CROSS_DOMAIN, {"spec": {"inputConfig": "other"}})
        await change_party(net["alice"], 1, template={"replicas": 3})

        async def changed() -> bool:
            pods = await pods_of(net["bob"], "bob")
            told = [{each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]} for pod in pods]
            seen = (await serving_status(net["alice"]))["partyDeploymentStatuses"]["bob"]["s"]
            right = [each["INPUT_CONFIG"] for each in told] == ["other"] * 3
            return right and seen["availableReplicas"] == seen["updatedReplicas"] == 3

        await net.until(changed)
        await until(net, "Available")


@pytest.mark.parametrize("away", [False, True], ids=["", "while the partner is away"])
async def test_deleting_it_deletes_the_partners_part(away: bool) -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await until(net, "Available")
        if away:
            await net["bob"].stop()
        await net["alice"].client.delete(KD, "s", CROSS_DOMAIN)
        if away:
            await net.settle(3)
            await net["bob"].start()
        await until_gone(net)


async def test_a_partner_that_lacks_the_engine_fails_it_for_all_until_it_has_it() -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(IMAGE, an_image("late"))
        await net["alice"].client.create(KD, a_serving(a_party("alice", image="late"), a_party("bob", image="late")))
        theirs, ours = (await until(net, "Failed", "alice"))[0], (await until(net, "Failed", "bob"))[0]
        assert theirs["reason"] == "domainID: bob, reason: BuildPartyKitInfoFailed"
        assert theirs["message"] == 'there is no AppImage "late"'
        assert ours["reason"] == "BuildPartyKitInfoFailed"
        await net["bob"].client.create(IMAGE, an_image("late"))
        await until(net, "Available")


async def test_what_a_partner_does_not_get_running_is_told_without_what_it_printed() -> None:
    async with running("alice", "bob") as net:
        net["bob"].outcome = lambda pod: "Pending"
        await net["alice"].client.create(KD, a_serving("alice", "bob"))

        async def there() -> bool:
            return len(await pods_of(net["bob"], "bob")) == 1

        await net.until(there)
        (pod,) = await pods_of(net["bob"], "bob")
        state = {"terminated": {"exitCode": 3, "reason": "Error", "message": "secret words"}}
        container = {"name": "main", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": state}
        status = {"status": {"phase": "Running", "containerStatuses": [container]}}
        await net["bob"].client.patch_status(POD, pod["metadata"]["name"], "bob", status)

        async def told() -> bool:
            return "exited with 3" in (await serving_status(net["alice"])).get("message", "")

        await net.until(told)
        assert "secret words" in (await serving_status(net["bob"]))["message"]
        assert "secret words" not in str([each for each in (await net["alice"].client.list(SUMMARY)).items])
        assert "secret words" not in str(await serving_status(net["alice"]))


async def test_a_partner_may_leave_and_is_not_asked_again() -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await until(net, "Available")
        await net["bob"].client.delete(KD, "s", CROSS_DOMAIN)
        (status,) = await until(net, "Failed", "alice")
        assert status["reason"] == "domainID: bob, reason: WithdrawnByParty"
        await net.settle(5)
        assert not await left_of(net["bob"])
        assert (await net["alice"].get(DEPLOYMENT, "s", "alice"))["status"]["availableReplicas"] == 1
        await net["alice"].client.delete(KD, "s", CROSS_DOMAIN)
        await until_gone(net)


async def test_another_deployment_of_that_name_is_left_alone() -> None:
    async with running("alice", "bob") as net:
        await net["bob"].client.create(KD, a_serving("bob", initiator="bob"))
        await until(net, "Available", "bob")
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        (status,) = await until(net, "Failed", "alice")
        assert 'bob has another deployment named "s"' in status["message"]
        assert (await serving_status(net["bob"]))["phase"] == "Available"


@pytest.mark.parametrize("initiator", ["bob", "carol"])
async def test_a_host_cannot_begin_one_for_others(initiator: str) -> None:
    async with running("alice", "bob", "carol") as net:
        meta = {
            "name": "forged",
            "namespace": "bob",
            "annotations": {labels.KUSCIA_INITIATOR: initiator, labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "bob"},
        }
        spec = a_serving("bob", "carol", initiator=initiator)["spec"]
        await net["alice"].client.create(KD, {"metadata": meta, "spec": spec})
        await net["alice"].client.create(SUMMARY, {"metadata": meta})

        async def refused() -> bool:
            found = await net["alice"].get(SUMMARY, "forged", "bob")
            return "RefusedByParty" in str(found.get("status"))

        await net.until(refused)
        assert not await left_of(net["bob"])


async def test_a_break_of_the_network_changes_nothing_and_is_made_up_for() -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(KD, a_serving("alice", "bob"))
        await until(net, "Available")
        net.cut("bob", "alice")
        await change_party(net["alice"], 1, template={"replicas": 2})
        await net.settle(10)
        assert (await serving_status(net["bob"]))["phase"] == "Available"
        net.cut("bob", "alice", down=False)

        async def caught_up() -> bool:
            return len(await pods_of(net["bob"], "bob")) == 2

        await net.until(caught_up)
        await until(net, "Available")


def a_version(number: str, speaks: str = "") -> Object:
    image = an_image(f"psi-{number}")
    marks = {labels.COTERIE_ENGINE: "psi", labels.COTERIE_ENGINE_VERSION: number, labels.COTERIE_SPEAKS: speaks}
    image["metadata"]["annotations"] = marks
    image["spec"]["image"] = {"name": "team/psi", "tag": number}
    return image


async def images_of(net: Network) -> dict[str, set[str]]:
    return {
        name: {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in await pods_of(net[name], name)}
        for name in net.planes
    }


async def test_versions_of_an_engine_are_agreed_on_and_stay_while_others_are_added() -> None:
    async with running("alice", "bob") as net:
        alice, bob = net["alice"].client, net["bob"].client
        for number in ("0.6", "0.7"):
            await alice.create(IMAGE, a_version(number))
        await bob.create(IMAGE, a_version("0.5", speaks="<0.7"))
        parties = (a_party("alice", image="psi>=0.5"), a_party("bob", image="psi>=0.5"))
        await alice.create(KD, a_serving(*parties))
        await until(net, "Available")
        assert await images_of(net) == {"alice": {"0.6"}, "bob": {"0.5"}}
        with pytest.raises(Forbidden, match="deployment s is pinned to it"):
            await bob.delete(IMAGE, "psi-0.5")
        await bob.create(IMAGE, a_version("0.8"))
        await net.settle(5)
        assert await images_of(net) == {"alice": {"0.6"}, "bob": {"0.5"}}
        for place in (0, 1):
            await change_party(net["alice"], place, appImageRef="psi>=0.7")

        async def upgraded() -> bool:
            return await images_of(net) == {"alice": {"0.7"}, "bob": {"0.8"}}

        await net.until(upgraded)
        await until(net, "Available")


async def test_versions_that_do_not_work_together_start_nothing_and_both_say_who_must_act() -> None:
    async with running("alice", "bob") as net:
        await net["alice"].client.create(IMAGE, a_version("0.7", speaks=">=0.7"))
        await net["bob"].client.create(IMAGE, a_version("0.6"))
        await net["alice"].client.create(KD, a_serving(*(a_party(each, image="psi") for each in ("alice", "bob"))))
        for status in await until(net, "Failed"):
            assert "bob must add psi >=0.7 (coterie engine upgrade psi)" in status["message"]
        assert await images_of(net) == {"alice": set(), "bob": set()}
        await net["bob"].client.create(IMAGE, a_version("0.7"))
        await until(net, "Available")
        assert await images_of(net) == {"alice": {"0.7"}, "bob": {"0.7"}}
