"""Versions of engines in jobs of several organisations: agreed on, pinned, kept through upgrades, and refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from domain_world import DOMAIN
from interconn_kit import network
from job_world import IMAGE, JOB, NODE, POD, TASK, JobWorld, a_job, a_task, an_image, by_task, job_world

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES

POLICY = PARTNER_POLICIES.as_dynamic
_MANY = 50


def digest(word: str) -> str:
    return f"sha256:{word * 64}"[:71]


def a_version(number: str, *, name: str = "", id: str = "", **marks: str) -> Object:
    """Of the engine `psi`."""
    image = an_image(name or f"psi-{number}")
    annotations = {labels.COTERIE_ENGINE: "psi", labels.COTERIE_ENGINE_VERSION: number}
    annotations |= {f"coterie.io/{key}": value for key, value in marks.items()}
    image["metadata"]["annotations"] = annotations
    image["spec"]["image"] = {"name": "team/psi", "tag": number, **({"id": id} if id else {})}
    return image


def psi_job(text: str = "psi", *, parties: tuple[str, ...] = ("alice", "bob"), name: str = "j") -> Object:
    first = a_task("a", parties=parties, appImage=text)
    second = a_task("b", "a", parties=parties, appImage=text)
    return a_job(first, second, name=name)


async def add(plane: JobWorld, *images: Object) -> None:
    for image in images:
        await plane.client.create(IMAGE, image)


async def engines_of(plane: JobWorld) -> dict[str, dict[str, Any]]:
    """By alias, the parties of its KusciaTask."""
    return {
        alias: {party["domainID"]: party for party in task["spec"]["parties"]}
        for alias, task in (await plane.tasks()).items()
    }


async def test_the_newest_common_version_is_pinned_on_both_sides() -> None:
    async with network("alice", "bob") as net:
        alice, bob = net["alice"], net["bob"]
        await add(alice, a_version("2.0", speaks=">=1.5", id=digest("a")), a_version("3.0", speaks=">=3"))
        await add(bob, a_version("1.4"), a_version("1.5", id=digest("b")))
        await alice.client.create(JOB, psi_job())
        statuses = await net.until_phase("Succeeded")
        for status in statuses:
            pins = status["enginePins"]["b"]
            assert (pins["alice"]["version"], pins["alice"]["digest"]) == ("2.0", digest("a"))
            assert (pins["bob"]["version"], pins["bob"]["digest"]) == ("1.5", digest("b"))
        # Each side names its own AppImages only, and its agents get the digest.
        assert statuses[0]["enginePins"]["a"]["alice"]["appImage"] == "psi-2.0"
        assert "appImage" not in statuses[0]["enginePins"]["a"]["bob"]
        for alias in ("a", "b"):
            here, there = (await engines_of(alice))[alias], (await engines_of(bob))[alias]
            assert (here["alice"]["appImageRef"], here["alice"]["imageDigest"]) == ("psi-2.0", digest("a"))
            assert here["bob"]["appImageRef"] == "psi-2.0" and "imageDigest" not in here["bob"]
            assert (there["bob"]["appImageRef"], there["bob"]["imageDigest"]) == ("psi-1.5", digest("b"))


async def test_the_digest_that_nodes_report_is_agreed_on_and_required_of_the_pod() -> None:
    async with network("alice", "bob") as net:
        for name in ("alice", "bob"):
            plane = net[name]
            plane.outcome = by_task(a="Running")
            await add(plane, a_version("1.0"))
            found = {"names": ["team/psi:1.0", f"team/psi@{digest(name[0])}"], "sizeBytes": 0}
            await plane.client.patch_status(NODE, f"{name}-0", "", {"status": {"images": [found]}})
        await net.settle(1)
        await net["alice"].client.create(JOB, psi_job())
        await net.until_phase("Running")
        await net.settle(3)
        pods = (await net["bob"].client.list(POD)).items
        assert [pod["metadata"]["annotations"][labels.KUSCIA_IMAGE_ID] for pod in pods] == [digest("b")]
        assert {pod["metadata"]["annotations"][labels.COTERIE_ENGINE] for pod in pods} == {"psi"}


@pytest.mark.parametrize("asks", [False, True], ids=["at once", "before a person is asked"])
async def test_a_mismatch_rejects_the_job_on_both_sides_with_the_sentence(asks: bool) -> None:
    sentence = "alice has 1.14, bob 1.11; psi 1.14 speaks >=1.13: bob must add psi >=1.13 (coterie engine upgrade psi)"
    async with network("alice", "bob") as net:
        if asks:
            policy = {"metadata": {"name": "alice"}, "spec": {"outside": "Ask"}}
            await net["bob"].client.create(POLICY, policy)
        await add(net["alice"], a_version("1.14", speaks=">=1.13"))
        await add(net["bob"], a_version("1.11"))
        await net["alice"].client.create(JOB, psi_job())
        for status in await net.until_phase("ApprovalReject"):
            assert sentence in status["message"]
        assert not await net["alice"].tasks() and not await net["bob"].tasks()


async def test_three_parties_that_do_not_go_together_all_end_the_job() -> None:
    async with network("alice", "bob", "carol") as net:
        await add(net["alice"], a_version("1.0"))
        await add(net["bob"], a_version("2.0", protocols="x/2"))
        await add(net["carol"], a_version("3.0", protocols="x/3"))
        await net["alice"].client.create(JOB, psi_job(parties=("alice", "bob", "carol")))
        for status in await net.until_phase("ApprovalReject"):
            assert "x/2" in status["message"] and "x/3" in status["message"]


async def test_a_range_that_no_version_is_in_is_told_by_the_domain_that_lacks_it() -> None:
    async with network("alice", "bob") as net:
        await add(net["alice"], a_version("2.0"))
        await add(net["bob"], a_version("1.0"))
        await net["alice"].client.create(JOB, psi_job("psi>=2"))
        for status in await net.until_phase("Failed"):
            assert "no version of the engine psi is in >=2: there is 1.0" in status["message"]


async def test_a_domain_pins_what_it_uses_and_a_policy_narrows_it() -> None:
    async with network("alice", "bob") as net:
        for plane in (net["alice"], net["bob"]):
            await add(plane, a_version("1.0"), a_version("2.0"), a_version("3.0"))
        pinned = {"metadata": {"annotations": {labels.COTERIE_ENGINE_PINS: "psi<3"}}}
        await net["alice"].client.patch(DOMAIN, "alice", "", pinned)
        policy = {"metadata": {"name": "alice"}, "spec": {"appImages": ["psi:1.0"], "outside": "Refuse"}}
        await net["bob"].client.create(POLICY, policy)
        await net.settle(1)
        await net["alice"].client.create(JOB, psi_job())
        for status in await net.until_phase("Succeeded"):
            assert {party: pin["version"] for party, pin in status["enginePins"]["a"].items()} == {
                "alice": "2.0",
                "bob": "1.0",
            }
            offered = status["partyStatements"]["bob"]["tasks"]["a"]["engines"]
            assert [each["version"] for each in offered] == ["1.0"]


async def test_a_partner_is_not_told_of_versions_that_its_policy_does_not_name() -> None:
    async with network("alice", "bob") as net:
        await add(net["alice"], a_version("9.0"))
        await add(net["bob"], a_version("1.0"), a_version("7.7"))
        policy = {"metadata": {"name": "alice"}, "spec": {"appImages": ["psi:1.0"], "outside": "Refuse"}}
        await net["bob"].client.create(POLICY, policy)
        await net.settle(1)
        await net["alice"].client.create(JOB, psi_job("psi>=9"))
        for status in await net.until_phase("Failed"):
            assert "there is 1.0 (" in status["message"] and "7.7" not in str(status)


async def test_a_partner_that_lies_about_its_engine_changes_nothing_that_we_run() -> None:
    """Its statement decides its own pin alone; ours is a version and digest that we offered."""
    async with network("alice", "bob") as net:
        await add(net["alice"], a_version("1.0", id=digest("a")))
        await add(net["bob"], a_version("1.0", id=digest("f")), a_version("1.0", name="psi-other", id=digest("e")))
        await net["alice"].client.create(JOB, psi_job())
        status = (await net.until_phase("Succeeded"))[0]
        party = (await engines_of(net["alice"]))["a"]["alice"]
        assert (party["appImageRef"], party["imageDigest"]) == ("psi-1.0", digest("a"))
        assert status["enginePins"]["a"]["bob"]["digest"] in (digest("e"), digest("f"))


async def test_a_job_of_one_control_plane_is_pinned_in_its_first_task_already() -> None:
    async with job_world() as plane:
        await add(plane, a_version("1.0", id=digest("a")), a_version("2.0", id=digest("b")))
        await plane.client.create(JOB, psi_job("psi<2"))
        status = await plane.until_phase("Succeeded")
        for alias in ("a", "b"):
            assert {pin["appImage"] for pin in status["enginePins"][alias].values()} == {"psi-1.0"}
            parties = (await engines_of(plane))[alias].values()
            assert [(each["appImageRef"], each["imageDigest"]) for each in parties] == [("psi-1.0", digest("a"))] * 2
        agreed = {each["tasks"]["a"]["agreement"] for each in status["partyStatements"].values()}
        assert agreed == {(await plane.tasks())["a"]["metadata"]["annotations"][labels.COTERIE_AGREEMENT]}


async def test_appimages_without_versions_run_as_in_kuscia() -> None:
    async with network("alice", "bob") as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        statuses = await net.until_phase("Succeeded")
        for name, status in zip(("alice", "bob"), statuses, strict=True):
            assert all(not pin.get("version") for pin in status["enginePins"]["a"].values())
            parties = (await engines_of(net[name]))["a"].values()
            assert [(each["appImageRef"], each.get("imageDigest")) for each in parties] == [("engine", None)] * 2
        # Nothing is pinned to them, so they can be changed and removed at any time.
        await net["alice"].client.delete(IMAGE, "engine")


@pytest.mark.timeout(300)
async def test_an_upgrade_during_many_jobs_touches_none_of_them() -> None:
    """All are in their first task when the new version comes; the second task still begins with the old one."""
    async with network("alice", "bob", cpu="64") as net:
        planes = (net["alice"], net["bob"])
        for plane in planes:
            plane.outcome = by_task(a="Running")
            await add(plane, a_version("1.0"))
        names = [f"j{number}" for number in range(_MANY)]
        for name in names:
            await net["alice"].client.create(JOB, psi_job(name=name))

        async def all_run() -> bool:
            found = [await plane.list(JOB, CROSS_DOMAIN) for plane in planes]
            return all(
                len(jobs) == _MANY and all((job.get("status") or {}).get("taskStatus") for job in jobs)
                for jobs in found
            )

        await net.until(all_run, 300)
        for plane in planes:
            await add(plane, a_version("2.0"))
            with pytest.raises(Forbidden, match=r"jobs j0, j1, j10 and 47 more are pinned to it; remove it when"):
                await plane.client.delete(IMAGE, "psi-1.0")
            with pytest.raises(Forbidden, match="add the new version under another name"):
                changed = {"spec": {"image": {"name": "team/psi", "tag": "1.0", "id": digest("c")}}}
                await plane.client.patch(IMAGE, "psi-1.0", "", changed)
            plane.outcome = by_task()
        await net["alice"].client.create(JOB, psi_job(name="new"))
        for name in (*names, "new"):
            expected = "2.0" if name == "new" else "1.0"
            for status in await net.until_phase("Succeeded", job=name, seconds=600):
                assert {pin["version"] for pins in status["enginePins"].values() for pin in pins.values()} == {expected}
        for plane in planes:
            used: dict[str, set[str]] = {}
            for task in await plane.list(TASK, CROSS_DOMAIN):
                job = task["metadata"]["annotations"][labels.KUSCIA_JOB_ID]
                used.setdefault(job, set()).update(party["appImageRef"] for party in task["spec"]["parties"])
            assert used == {**{name: {"psi-1.0"} for name in names}, "new": {"psi-2.0"}}
            await plane.client.delete(IMAGE, "psi-1.0")
