"""Tasks that failed or stalled are begun again at all parties, as often as was agreed. Control planes in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from interconn_kit import Network, network
from job_world import JOB, JOB_PLANE, POD, TASK, JobWorld, a_job, a_task, by_task, job_world

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import COTERIE_IDLE, COTERIE_IDLE_SECONDS
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASK_SUMMARIES
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciatask import controller
from coterie.kuscia.interconn.job_mirror import HOST_TASK_UID

SUMMARY = KUSCIA_TASK_SUMMARIES.as_dynamic


class Failing:
    """Pods of the first `times` attempts fail; later ones succeed, or do what `then` says."""

    def __init__(self, times: int, then: str = "Succeeded") -> None:
        self._times, self._then = times, then
        self.uids: list[str] = []

    def __call__(self, pod: Object) -> str:
        uid = pod["metadata"]["uid"]
        if uid not in self.uids:
            self.uids.append(uid)
        return "Failed" if self.uids.index(uid) < self._times else self._then


def retried(count: int, **more: Any) -> Object:
    return a_task("a", taskID="t", scheduleConfig={"retry": {"count": count, **more}})


async def test_a_task_that_fails_twice_succeeds_and_both_sides_know_the_attempts() -> None:
    async with network("alice", "bob") as net:
        net["bob"].outcome = failing = Failing(2)
        net["alice"].outcome = beside = Failing(0, "Running")
        await net["alice"].client.create(JOB, a_job(retried(3, backoffSeconds=4)))
        await net.until(lambda: _count(failing, 3))
        net["alice"].outcome = by_task()
        alice, bob = await net.until_phase("Succeeded")
        assert len(beside.uids) == 3, "each attempt has pods of its own at both sides"
        attempts = alice["taskAttempts"]["t"]
        assert [each["attempt"] for each in attempts] == [1, 2]
        assert all(each["reason"] == "TaskFailed" and "party bob: pod" in each["message"] for each in attempts)
        assert bob["taskAttempts"] == alice["taskAttempts"]
        pauses = [_seconds(each["retryTime"]) - _seconds(each["endTime"]) for each in attempts]
        assert pauses[0] == pytest.approx(4, abs=1.5) and pauses[1] == pytest.approx(8, abs=1.5)
        for plane in net.planes.values():
            assert (await plane.tasks())["a"]["metadata"]["annotations"][labels.COTERIE_ATTEMPT] == "3"
        await net.until_clean()


async def test_a_pause_before_a_retry_is_told_on_both_sides() -> None:
    async with network("alice", "bob") as net:
        net["alice"].outcome = Failing(1)
        await net["alice"].client.create(JOB, a_job(retried(1, backoffSeconds=30)))
        await _says(net["alice"], "attempt 2 of task a at ", "coterie job stop j")
        await _says(net["bob"], "Waiting for ", "task a")
        await net["bob"].order("Stop", 1, trigger="bob")
        for status in await net.until_phase("Failed"):
            assert "execute the cmd: Stop" in status["message"]
        await net.settle(60)
        assert [len(await plane.list(TASK, CROSS_DOMAIN)) for plane in net.planes.values()] == [1, 1], (
            "no retry any more"
        )


async def test_retries_end_and_a_person_may_restart_afterwards() -> None:
    async with network("alice", "bob") as net:
        net["bob"].outcome = failing = Failing(100)
        await net["alice"].client.create(JOB, a_job(retried(2)))
        for status in await net.until_phase("Failed"):
            assert [("retryTime" in each) for each in status["taskAttempts"]["t"]] == [True, True, False]
        assert len(failing.uids) == 3
        net["bob"].outcome = by_task()
        await net["alice"].order("Restart", 1)
        for status in await net.until_phase("Succeeded"):
            assert "taskAttempts" not in status


async def test_retries_in_one_control_plane() -> None:
    async with job_world() as world:
        failing = Failing(2)
        world.outcome = lambda pod: failing(pod) if pod["metadata"]["namespace"] == "bob" else "Running"
        await world.client.create(JOB, a_job(retried(2)))
        await world.until(lambda: _count(failing, 3))
        world.outcome = by_task()
        status = await world.until_phase("Succeeded")
        assert len(status["taskAttempts"]["t"]) == 2
        await world.until_clean()


async def test_a_task_without_retry_and_a_task_that_was_stopped_are_not_begun_again() -> None:
    async with job_world() as world:
        world.outcome = by_task(a="Failed", b="Running")
        spec = {"retry": {"count": 3, "backoffSeconds": 60}}
        job = a_job(a_task("a", taskID="ta"), a_task("b", taskID="tb", scheduleConfig=spec))
        await world.client.create(JOB, job)
        status = await world.until_phase("Failed")
        assert "taskAttempts" not in status
        await world.settle(90)
        assert {name for name in await world.tasks()} == {"a", "b"}
        assert (await world.task_status("b"))["reason"] == "KusciaJobStopped"


async def test_a_host_cannot_make_a_member_begin_a_task_more_often_than_the_job_says() -> None:
    """The host's summaries are what a member believes; a hostile host writes new ones for ever."""
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(retried(1)))
        await net.until_phase("Running")
        net["bob"].outcome = seen = Failing(0, "Running")
        alice = net["alice"].client
        for number in range(8):
            await net.settle(6)
            found = await alice.get(SUMMARY, "t", "bob")
            found["metadata"]["labels"][HOST_TASK_UID] = f"00000000-0000-0000-0000-00000000000{number}"
            patch = {"metadata": {"labels": found["metadata"]["labels"]}}
            await alice.patch(SUMMARY, "t", "bob", patch)
        await net.settle(6)
        assert len(seen.uids) <= 4, seen.uids


# Stalled tasks.


async def test_a_silent_task_is_stalled_on_both_sides_and_ends_when_asked() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        await net["alice"].client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig={"stallSeconds": 30})))
        await net.until(lambda: _all_running(net))
        pods = (await net["alice"].client.list(POD, "alice")).items
        assert pods[0]["metadata"]["annotations"][COTERIE_IDLE_SECONDS] == "30"
        await _set_idle(net, "alice")
        await net.settle(40)
        assert (await net["alice"].task_status("a"))["phase"] == "Running", "bob works"
        await _set_idle(net, "bob")
        alice, bob = await net.until_phase("Failed")
        assert "stallSeconds is 30" in alice["message"]
        assert (await net["alice"].task_status("a"))["reason"] == "TaskStalled"
        assert "TaskStalled" in bob["message"]


async def test_a_stalled_task_is_begun_again_when_asked() -> None:
    async with network("alice", "bob") as net:
        for plane in net.planes.values():
            plane.outcome = by_task(a="Running")
        config = {"stallSeconds": 10, "stallAction": "Restart"}
        await net["alice"].client.create(JOB, a_job(a_task("a", taskID="t", scheduleConfig=config)))
        await net.until(lambda: _all_running(net))
        first = (await net["bob"].client.list(POD, "bob")).items[0]["metadata"]["uid"]
        await net.settle(15)
        for domain in ("alice", "bob"):
            await _set_idle(net, domain)

        async def begun_again() -> bool:
            pods = (await net["bob"].client.list(POD, "bob")).items
            return bool(pods) and pods[0]["metadata"]["uid"] != first and await _all_running(net)

        await net.until(begun_again)
        for plane in net.planes.values():
            plane.outcome = by_task()
        alice, bob = await net.until_phase("Succeeded")
        assert [each["reason"] for each in alice["taskAttempts"]["t"]] == ["TaskStalled"]
        assert bob["taskAttempts"] == alice["taskAttempts"]


async def test_without_stall_seconds_a_silent_task_is_only_shown() -> None:
    async with job_world(makes=_with_default(60)) as world:
        world.outcome = by_task(a="Running")
        await world.client.create(JOB, a_job(a_task("a", taskID="t")))
        await world.until_phase("Running")
        await world.settle(30)
        for domain in ("alice", "bob"):
            await _idle_pods(world, domain, True)
        await world.settle(61)
        status = await world.task_status("a")
        (stalled,) = [each for each in status["conditions"] if each["type"] == "Stalled"]
        assert stalled["status"] == "True" and status["phase"] == "Running"
        assert "neither CPU nor network" in status["message"] and "coterie job logs j" in status["message"]
        assert "task a: the engines of alice, bob" in (await world.job_status())["message"]
        written = (await world.tasks())["a"]["metadata"]["resourceVersion"]
        await world.settle(120)
        assert (await world.tasks())["a"]["metadata"]["resourceVersion"] == written, "time alone is never written"
        await _idle_pods(world, "bob", False)
        await world.settle(3)
        status = await world.task_status("a")
        assert [each["status"] for each in status["conditions"] if each["type"] == "Stalled"] == ["False"]
        assert not status.get("message")


def _with_default(seconds: int) -> tuple[Any, ...]:
    def tasks(client: Any, informers: Any, **more: Any) -> Any:
        return controller.make(client, informers, ports=PortPool(random=Random(7)), stall_seconds=seconds, **more)

    return tuple(
        ("kusciatask-controller", tasks) if isinstance(each, tuple) and each[0] == "kusciatask-controller" else each
        for each in JOB_PLANE
    )


# Small things.


async def _count(failing: Failing, wanted: int) -> bool:
    return len(failing.uids) >= wanted


async def _all_running(net: Network) -> bool:
    for plane in net.planes.values():
        tasks = await plane.tasks()
        parties = (tasks.get("a") or {}).get("status", {}).get("partyTaskStatus") or ()
        if len(parties) != 2 or any(party.get("phase") != "Running" for party in parties):
            return False
    return True


async def _set_idle(net: Network, domain: str) -> None:
    await _idle_pods(net[domain], domain, True)


async def _idle_pods(world: JobWorld, domain: str, idle: bool) -> None:
    """What the agent reports."""
    condition = {
        "type": COTERIE_IDLE,
        "status": "True" if idle else "False",
        "lastTransitionTime": rfc3339(world.clock.now()),
    }
    for pod in (await world.client.list(POD, domain)).items:
        conditions = [each for each in pod["status"].get("conditions") or () if each["type"] != COTERIE_IDLE]
        patch = {"status": {"conditions": [*conditions, condition]}}
        await world.client.patch_status(POD, pod["metadata"]["name"], domain, patch)


async def _says(world: JobWorld, *words: str) -> None:
    async def reached() -> bool:
        message = (await world.job_status()).get("message", "")
        return all(word in message for word in words)

    question: Callable[[], Any] = reached
    await world.until(question)


def _seconds(text: str) -> float:
    found = parse_time(text)
    assert found is not None
    return found.timestamp()
