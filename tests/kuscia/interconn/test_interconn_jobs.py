"""Jobs of two and three autonomous domains: nobody hosts anybody else, all come to the same end."""

from __future__ import annotations

import pytest
from interconn_kit import network
from job_world import IMAGE, JOB, POD, TASK, a_job, a_task, by_task
from workload_world import QUOTA

from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOB_SUMMARIES,
    KUSCIA_TASK_SUMMARIES,
    KusciaTaskStatus,
    PartyTaskStatus,
)
from coterie.kuscia.interconn import job_mirror

SUMMARY, TASK_SUMMARY = KUSCIA_JOB_SUMMARIES.as_dynamic, KUSCIA_TASK_SUMMARIES.as_dynamic


async def test_two_parties_carry_out_a_job_each_on_its_own_side() -> None:
    async with network("alice", "bob") as net:
        await net["alice"].client.create(JOB, a_job(a_task("one"), a_task("two", "one")))
        await net.until_phase("Succeeded")
        ids = [
            [task["taskID"] for task in (await plane.job())["spec"]["tasks"]] for plane in (net["alice"], net["bob"])
        ]
        assert ids[0] == ids[1] and all(ids[0])
        copy = await net["bob"].job()
        marks = copy["metadata"]["annotations"]
        assert marks[labels.KUSCIA_INITIATOR_MASTER_DOMAIN] == "alice"
        assert marks[labels.KUSCIA_SELF_AS_INITIATOR] == "false"
        for name in ("alice", "bob"):
            status = await net[name].task_status("two")
            assert [(p["domainID"], p["phase"]) for p in status["partyTaskStatus"]] == [
                ("alice", "Succeeded"),
                ("bob", "Succeeded"),
            ]
        await net.until_clean()


async def test_each_side_starts_only_its_own_pods() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a")))

        async def both_run() -> bool:
            found = [
                [pod["metadata"]["namespace"] for pod in (await plane.client.list(POD)).items if pod["status"].get("phase") == "Running"]
                for plane in (net["alice"], net["bob"])
            ]  # fmt: skip
            return found == [["alice"], ["bob"]]

        await net.until(both_run)


async def test_three_parties() -> None:
    async with network("alice", "bob", "carol") as net:
        task = a_task("a", parties=("alice", "bob", "carol"))
        await net["bob"].client.create(JOB, a_job(task, a_task("b", "a", parties=("bob", "carol")), initiator="bob"))
        await net.until_phase("Succeeded")
        assert await net["alice"].task_status("a") and "b" in await net["carol"].tasks()
        await net.until_clean()


@pytest.mark.parametrize("who", ["alice", "bob"])
async def test_a_failure_on_either_side_ends_the_job_on_both_and_keeps_its_log_at_home(who: str) -> None:
    async with network("alice", "bob") as net:
        net["alice"].outcome = by_task(a="Failed" if who == "alice" else "Running")
        net["bob"].outcome = by_task(a="Failed" if who == "bob" else "Running")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        for status in await net.until_phase("Failed"):
            assert f"party {who}: pod" in status["message"] and "exited with 1" in status["message"]
        await net.until_clean()


@pytest.mark.parametrize("who", ["alice", "bob"])
@pytest.mark.parametrize(("stage", "phase"), [("Stop", "Failed"), ("Cancel", "Cancelled"), ("Suspend", "Suspended")])
async def test_commands_of_either_side_take_effect_on_both(who: str, stage: str, phase: str) -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("Running")
        await net.settle(5)
        await net[who].order(stage, 1, trigger=who)
        for status in await net.until_phase(phase):
            assert stage == "Suspend" or f"Party: {who} execute the cmd: {stage}." == status["message"]
        await net.until_clean()
        if phase == "Cancelled":
            return
        for plane in net.planes.values():
            plane.outcome = by_task()
        await net[who].order("Restart", 2, trigger=who)
        await net.until_phase("Succeeded")
        await net.until_clean()


async def test_deleting_the_job_deletes_the_partners_copy() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("Running")
        await net["alice"].client.delete(JOB, "j", CROSS_DOMAIN)

        async def gone() -> bool:
            for plane in net.planes.values():
                for kind in (JOB, TASK, POD, SUMMARY, TASK_SUMMARY):
                    if (await plane.client.list(kind)).items:
                        return False
            return True

        await net.until(gone)
        await net.until_clean()


async def test_deleting_the_partners_copy_stops_the_job() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("Running")
        await net.settle(3)
        await net["bob"].client.delete(JOB, "j", CROSS_DOMAIN)
        (status,) = await net.until_phase("Failed", "alice")
        assert status["message"] == "Party: bob execute the cmd: Stop."
        await net.settle(10)
        assert not await net["bob"].list(JOB, CROSS_DOMAIN)
        await net.until_clean()


async def test_a_partner_that_is_away_is_waited_for() -> None:
    async with network("alice", "bob") as net:
        net.cut("bob", "alice")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.settle(60)
        assert (await net["alice"].job_status())["phase"] == "AwaitingApproval"
        net.cut("bob", "alice", down=False)
        await net.until_phase("Succeeded", seconds=180)


async def test_a_cut_in_the_middle_heals() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a"), a_task("b", "a")))
        await net.until_phase("Running")
        await net.settle(5)
        net.cut("bob", "alice")
        for plane in net.planes.values():
            plane.outcome = by_task()
        await net.settle(60)
        assert (await net["alice"].job_status())["phase"] == "Running"
        net.cut("bob", "alice", down=False)
        await net.until_phase("Succeeded", seconds=180)
        await net.until_clean()


async def test_a_partner_without_the_engine_says_so() -> None:
    async with network("alice", "bob") as net:
        await net["bob"].client.delete(IMAGE, "engine")
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        (status,) = await net.until_phase("Failed", "alice")
        assert "bob could not create the job" in status["message"] and 'no AppImage "engine"' in status["message"]


async def test_a_job_of_that_name_that_is_not_the_hosts_is_not_touched() -> None:
    async with network("alice", "bob") as net:
        net["bob"].outcome = by_task(own="Running")
        await net["bob"].client.create(JOB, a_job(a_task("own", parties=("bob",)), initiator="bob"))
        await net.settle(5)
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        (status,) = await net.until_phase("Failed", "alice")
        assert 'bob has another job named "j"' in status["message"]
        assert (await net["bob"].job_status())["phase"] == "Running"


async def test_controllers_that_die_in_the_middle_go_on() -> None:
    async with network("alice", "bob") as net:
        await net["alice"].client.create(JOB, a_job(a_task("a"), a_task("b", "a"), a_task("c", "b")))
        for turn in range(12):
            await net.settle(0.8)
            plane = net["alice" if turn % 2 else "bob"]
            await plane.stop()
            await plane.start()
        await net.until_phase("Succeeded", seconds=180)
        await net.until_clean()


async def test_a_member_cannot_speak_for_others() -> None:
    """What a partner writes into its summary about domains that are not its own is not taken."""
    async with network("alice", "bob", "carol") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        net.cut("carol", "alice")
        await net["alice"].client.create(JOB, a_job(a_task("a", parties=("alice", "bob", "carol"))))
        await net.settle(5)
        bob = net.connect("bob", "alice")
        forged = {"approveStatus": {"carol": "JobAccepted"}, "stageStatus": {"carol": "JobCreateStageSucceeded"}}
        await bob.patch(SUMMARY, "j", "bob", {"status": forged})
        await net.settle(10)
        status = await net["alice"].job_status()
        assert status["phase"] == "AwaitingApproval" and "carol" not in status["approveStatus"]


@pytest.mark.parametrize("claimed", ["bob", "carol"])
async def test_a_host_cannot_begin_jobs_in_others_names(claimed: str) -> None:
    """Grants are given to who begins a job: alice must not use those that bob gave to carol, or has himself."""
    async with network("alice", "bob", "carol") as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("Succeeded", "alice", "bob")
        shown = (await net["alice"].client.list(JOB, "bob")).items[0]
        forged = {
            "metadata": {**{key: shown["metadata"][key] for key in ("namespace", "annotations")}, "name": "forged"},
            "spec": {**shown["spec"], "initiator": claimed},
        }
        summary = {
            "metadata": {"name": "forged", "namespace": "bob", "annotations": shown["metadata"]["annotations"]},
            "spec": {"stage": "Create"},
            "status": {"phase": "AwaitingApproval"},
        }
        await net["alice"].client.create(JOB, forged)
        await net["alice"].client.create(SUMMARY, summary)
        await net.settle(10)
        assert [job["metadata"]["name"] for job in await net["bob"].list(JOB, CROSS_DOMAIN)] == ["j"]
        told = (await net["alice"].get(SUMMARY, "forged", "bob"))["status"]
        assert told["stageStatus"] == {"bob": "JobCreateStageFailed"}


@pytest.mark.parametrize("who", ["alice", "bob"])
async def test_a_refusal_on_either_side_ends_the_job_on_both_with_its_reason(who: str) -> None:
    async with network("alice", "bob") as net:
        full = {"metadata": {"name": "small", "namespace": who}, "spec": {"hard": {"pods": "0"}}}
        await net[who].client.create(QUOTA, full)
        task = a_task("a", scheduleConfig={"lifecycleSeconds": 30})
        await net["alice"].client.create(JOB, a_job(task))
        await net.settle(10)
        for plane in net.planes.values():
            parties = {each["domainID"]: each for each in (await plane.task_status("a"))["partyTaskStatus"]}
            assert "was refused: exceeded quota" in parties[who]["message"], "both know what is waited for"
        statuses = dict(zip(net.planes, await net.until_phase("Failed"), strict=True))
        other = "bob" if who == "alice" else "alice"
        assert "exceeded quota: small" in statuses[who]["message"], "all of it at home"
        assert "exceeded quota" in statuses[other]["message"] and "small" not in statuses[other]["message"]
        await net.until_clean()


def test_what_a_party_waited_for_is_not_overwritten_when_the_initiator_ends_the_task() -> None:
    waiting = PartyTaskStatus(domain_id="bob", phase="Pending", message="Pod t-0 was refused: exceeded quota")
    told = job_mirror.fail_own(KusciaTaskStatus(party_task_status=(waiting,)), ["bob"], "the initiator ended the task")
    assert told.party_task_status[0].phase == "Failed"
    assert told.party_task_status[0].message == "the initiator ended the task; Pod t-0 was refused: exceeded quota"
