"""Pressure on memory, disk and processes: when it begins and ends, who goes, who is not let in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NODES, World, phase, pod, world

from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.node.pressure import (
    DISK_PRESSURE,
    MEMORY,
    MEMORY_PRESSURE,
    NO_PRESSURE,
    PID_PRESSURE,
    PIDS,
    MetThreshold,
    advance,
    met,
)
from coterie.kube.agent.pods.eviction import RunningPod, refusal, running_pod, victim
from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.settings import GIB, MIB, EvictionSettings, PressureSettings, PressureThreshold

RULES = EvictionSettings()
PLENTY = MachineUsage(4 * GIB, 8 * GIB, 100 * GIB, 50 * GIB, 1000, 900, 100, 1000)
NO_MEMORY = replace(PLENTY, memory_used=8 * GIB - 50 * MIB)
NO_PIDS = replace(PLENTY, pids=950)
SOFT = PressureSettings(soft_memory=PressureThreshold(GIB), soft_grace_seconds=60)
SHORT_OF_MEMORY = MetThreshold(MEMORY, 100 * MIB, 50 * MIB)
SHORT_OF_PIDS = MetThreshold(PIDS, 100, 50)


# When.


@pytest.mark.parametrize(
    ("usage", "condition"),
    [
        (PLENTY, ""),
        (NO_MEMORY, MEMORY_PRESSURE),
        (NO_PIDS, PID_PRESSURE),
        (replace(PLENTY, disk_free=2 * GIB), DISK_PRESSURE),
        (replace(PLENTY, disk_free=4 * GIB), ""),
        (replace(PLENTY, inodes_free=50), DISK_PRESSURE),
        (replace(PLENTY, memory_total=0, memory_used=0, pids_limit=0), ""),
    ],
)
def test_signals(usage: MachineUsage, condition: str) -> None:
    assert {each.condition for each in met(usage, PressureSettings())} == ({condition} if condition else set())


def test_a_threshold_of_nothing_is_off() -> None:
    off = PressureSettings(memory=PressureThreshold(), pids=PressureThreshold(), disk=PressureThreshold())
    assert met(replace(NO_MEMORY, pids=1000, disk_free=0), off) == []


def test_a_condition_stays_for_the_transition_period() -> None:
    rules = PressureSettings(transition_seconds=300)
    state = advance(NO_PRESSURE, NO_MEMORY, rules, 1000.0)
    assert state.conditions == {MEMORY_PRESSURE} and [each.signal for each in state.acting] == [MEMORY]
    state = advance(state, PLENTY, rules, 1010.0)
    assert state.conditions == {MEMORY_PRESSURE} and state.acting == ()
    state = advance(state, NO_MEMORY, rules, 1200.0)
    state = advance(state, PLENTY, rules, 1499.0)
    assert state.conditions == {MEMORY_PRESSURE}
    assert advance(state, PLENTY, rules, 1500.0).conditions == frozenset()


def test_a_soft_threshold_has_a_grace() -> None:
    low = replace(PLENTY, memory_used=8 * GIB - 500 * MIB)
    state = advance(NO_PRESSURE, low, SOFT, 0.0)
    assert state.conditions == {MEMORY_PRESSURE} and state.acting == ()
    assert advance(state, low, SOFT, 59.0).acting == ()
    recovered = advance(state, PLENTY, SOFT, 30.0)
    assert advance(recovered, low, SOFT, 61.0).acting == (), "the grace begins anew"
    (acting,) = advance(state, low, SOFT, 60.0).acting
    assert acting.soft and acting.least == GIB
    # The hard threshold does not wait.
    assert [each.soft for each in advance(state, NO_MEMORY, SOFT, 1.0).acting] == [False]


# Who.


def using(uid: str, memory: int, request: int = 0, priority: int = 0, pids: int = 1) -> RunningPod:
    return RunningPod(uid, {"main": ContainerUsage(0, memory, pids)}, {"main": request}, priority)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([using("a", GIB), using("b", 2 * GIB)], "b"),
        ([using("a", GIB), using("b", 2 * GIB, request=3 * GIB)], "a"),
        ([using("a", GIB, priority=10), using("b", 100 * MIB)], "b"),
        ([using("a", GIB, priority=10), using("b", 100 * MIB, request=GIB)], "a"),
        ([using("a", 3 * GIB, request=2 * GIB), using("b", 2 * GIB)], "b"),
        ([using("a", 3 * GIB, priority=2_000_001_000), using("b", GIB, request=2 * GIB)], "b"),
        ([using("a", 3 * GIB, priority=2_000_001_000)], "a"),
        ([using("a", MIB)], None),
        ([], None),
    ],
    ids=[
        "largest",
        "above-request",
        "lowest-priority",
        "above-request-before-priority",
        "excess-counts",
        "critical-last",
        "critical-alone",
        "too-small-to-help",
        "nobody",
    ],
)
def test_who_goes_for_memory(pods: list[RunningPod], expected: str | None) -> None:
    chosen = victim(pods, SHORT_OF_MEMORY, RULES)
    assert (chosen[0] if chosen else None) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([using("a", 0, pids=100), using("b", 0, pids=200)], "b"),
        ([using("a", 0, pids=100), using("b", 0, pids=200, priority=1)], "a"),
        ([using("a", 0, pids=100, priority=2_000_000_000), using("b", 0, pids=20, priority=5)], "b"),
        ([using("a", 0, pids=2)], None),
    ],
)
def test_who_goes_for_processes(pods: list[RunningPod], expected: str | None) -> None:
    chosen = victim(pods, SHORT_OF_PIDS, RULES)
    assert (chosen[0] if chosen else None) == expected


def test_the_messages() -> None:
    chosen = victim([using("a", 600 * MIB, request=100 * MIB, pids=30)], SHORT_OF_MEMORY, RULES)
    assert chosen is not None and chosen[1] == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 600Mi, request is 100Mi, has larger consumption of memory."
    )
    chosen = victim([using("a", 0, pids=30)], SHORT_OF_PIDS, RULES)
    assert chosen is not None and chosen[1] == (
        "The node was low on resource: pids. Threshold quantity: 100, available: 50. The pod was using 30."
    )


def test_requests_are_those_of_containers_that_run() -> None:
    about = pod("p")
    about["metadata"]["uid"] = "u"
    about["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    about["spec"]["initContainers"] = [{"name": "init", "resources": {"requests": {"memory": "8Gi"}}}]
    name = about["spec"]["containers"][0]["name"]
    found = running_pod(about, {name: ContainerUsage(0, 2 * GIB, 3)})
    assert (found.excess, found.pids) == (GIB, 3)


@pytest.mark.parametrize(
    ("spec", "pressures", "refused"),
    [
        ({}, (), False),
        ({}, (MEMORY_PRESSURE,), True),
        (
            {"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]},
            (MEMORY_PRESSURE,),
            False,
        ),
        ({"tolerations": [{"operator": "Exists"}]}, (MEMORY_PRESSURE,), False),
        ({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}, (MEMORY_PRESSURE,), True),
        ({"containers": [{"resources": {"requests": {"memory": "1Mi"}}}]}, (MEMORY_PRESSURE,), False),
        ({"containers": [{"resources": {"requests": {"memory": "1Mi"}}}]}, (MEMORY_PRESSURE, DISK_PRESSURE), True),
        ({"tolerations": [{"operator": "Exists"}]}, (DISK_PRESSURE,), True),
        ({"tolerations": [{"operator": "Exists"}]}, (PID_PRESSURE,), True),
        ({"priority": 2_000_000_000}, (DISK_PRESSURE, PID_PRESSURE), False),
    ],
)
def test_who_is_let_in(spec: dict[str, Any], pressures: tuple[str, ...], refused: bool) -> None:
    why = refusal({"metadata": {}, "spec": {"containers": [{"name": "c"}], **spec}}, frozenset(pressures))
    assert bool(why) == refused
    if refused:
        assert all(each in why for each in pressures)


# What the agent does.


async def uid_of(here: World, name: str) -> str:
    return str((await here.pod_until(name, phase("Running")))["metadata"]["uid"])


def measuring(here: World, usage: MachineUsage) -> None:
    assert here.agent is not None
    here.agent.storage.measure = here.agent.node._measure = lambda: usage


async def condition(here: World, type_: str) -> tuple[str, str]:
    found = (await here.user.get(NODES, "node-1"))["status"]["conditions"]
    return next((each["status"], each["reason"]) for each in found if each["type"] == type_)


@pytest.mark.parametrize(
    ("short", "type_", "resource", "reason"),
    [
        (NO_MEMORY, MEMORY_PRESSURE, "memory", "KubeletHasInsufficientMemory"),
        (NO_PIDS, PID_PRESSURE, "pids", "KubeletHasInsufficientPID"),
    ],
)
async def test_pressure_evicts_one_refuses_new_ones_and_ends(
    tmp_path: Path, short: MachineUsage, type_: str, resource: str, reason: str
) -> None:
    async with world(tmp_path) as here:
        here.settings = replace(here.settings, pressure=PressureSettings(transition_seconds=30))
        await here.start_agent()
        measuring(here, PLENTY)
        for name in ("small", "large"):
            await here.create(pod(name, policy="Never"))
        here.machine.usage[await uid_of(here, "small")] = ContainerUsage(0, 20 * MIB, 20)
        here.machine.usage[await uid_of(here, "large")] = ContainerUsage(0, GIB, 500)
        measuring(here, short)
        ended = await here.pod_until("large", phase("Failed"), seconds=30)
        assert ended["status"]["reason"] == "Evicted"
        assert ended["status"]["message"].startswith(f"The node was low on resource: {resource}.")
        assert await condition(here, type_) == ("True", reason)
        measuring(here, PLENTY)
        await here.create(pod("new", policy="Never"))
        refused = await here.pod_until("new", phase("Failed"))
        assert refused["status"]["message"] == f"The node had condition: [{type_}]."
        assert phase("Running")(await here.pod("small"))
        agent = here.agent
        assert agent is not None
        await here.until(lambda: not agent.pods.pressures, seconds=60)
        await here.create(pod("later", policy="Never"))
        await here.pod_until("later", phase("Running"))
        assert (await condition(here, type_))[0] == "False"


async def test_pods_go_one_by_one_until_there_is_enough(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.start_agent()
        measuring(here, PLENTY)
        for name in ("a", "b", "c"):
            await here.create(pod(name, policy="Never"))
        for number, name in enumerate(("a", "b", "c"), 1):
            here.machine.usage[await uid_of(here, name)] = ContainerUsage(0, number * 100 * MIB, 1)
        measuring(here, NO_MEMORY)
        await here.pod_until("c", phase("Failed"), seconds=30)
        await here.pod_until("b", phase("Failed"), seconds=30)
        measuring(here, PLENTY)
        await here.settle(20)
        assert phase("Running")(await here.pod("a"))
