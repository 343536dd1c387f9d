"""Whether pods that ask for it do anything: pure rules, and what the agent writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_kit import phase, pod, world

from coterie.kube.agent.pods import idleness
from coterie.kube.agent.pods.idleness import IdleRules, PodActivity
from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.runtimes.runp.usage import device_bytes, network_bytes
from coterie.kube.api.labels import COTERIE_IDLE, COTERIE_IDLE_SECONDS

RULES = IdleRules(busy_cpu=0.05, busy_bytes=1000)
SECOND = 1_000_000_000


def _after(cpu: int, network: int = 0, *, at: float = 100.0, idle: bool = False, active: float = 0.0) -> PodActivity:
    return idleness.measured(PodActivity(at - 10, 0, 0, active, idle), at, cpu, network, 60, RULES)


@pytest.mark.parametrize(
    ("cpu", "network", "busy"),
    [
        (0, 0, False),
        (int(0.04 * 10 * SECOND), 0, False),
        (int(0.06 * 10 * SECOND), 0, True),
        (0, 9_000, False),
        (0, 11_000, True),
        (-1, 0, True),
    ],
)
def test_cpu_or_traffic_is_activity(cpu: int, network: int, busy: bool) -> None:
    after = _after(cpu, network, active=0.0)
    assert (after.active_at == 100.0) is busy and after.idle is not busy


def test_a_pod_is_idle_after_its_time_and_at_once_active_again() -> None:
    assert not _after(0, active=41.0).idle
    assert _after(0, active=40.0).idle
    again = _after(SECOND, active=40.0, idle=True)
    assert not again.idle and again.active_at == 100.0


def test_an_agent_that_restarts_goes_on_where_it_was() -> None:
    told = {"type": COTERIE_IDLE, "status": "True", "lastTransitionTime": "1970-01-01T00:00:50Z"}
    known = idleness.first({"metadata": {}, "status": {"conditions": [told]}}, 1000.0, 5, 0)
    assert known.idle and known.active_at == 50.0
    assert idleness.measured(known, 1010.0, 5, 0, 300, RULES).idle


@pytest.mark.parametrize(("limits", "seconds"), [([], 15.0), ([300.0], 15.0), ([20.0, 300.0], 5.0), ([1.0], 1.0)])
def test_small_limits_are_measured_more_often(limits: list[float], seconds: float) -> None:
    assert idleness.period(limits, RULES) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("300", 300.0), ("", None), ("0", None), ("-5", None), ("soon", None)])
def test_only_pods_with_a_number_are_watched(text: str, seconds: float | None) -> None:
    assert idleness.idle_seconds({"metadata": {"annotations": {COTERIE_IDLE_SECONDS: text}}}) == seconds


def test_devices_are_summed_up_without_loopback() -> None:
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n"
        "    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 23 1 0 0 0 0 0 0\n"
    )
    assert device_bytes(text) == 123
    assert network_bytes(os.getpid()) is None, "our own network is everybody's"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace")
def test_traffic_of_another_network_namespace_is_read() -> None:
    with subprocess.Popen(
        ["unshare", "-n", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        assert network_bytes(child.pid) == 0
        child.stdin.close()
    assert network_bytes(child.pid) is None, "it is gone"


async def test_an_idle_pod_is_written_once_and_a_busy_one_never(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_agent()
        silent, busy = (pod(name) for name in ("silent", "busy"))
        for each in (silent, busy):
            each["metadata"]["annotations"] = {COTERIE_IDLE_SECONDS: "20"}
            await w.create(each)
        uids = {name: (await w.pod_until(name, phase("Running")))["metadata"]["uid"] for name in ("silent", "busy")}
        used = 0
        versions: list[str] = []
        for _ in range(60):
            used += SECOND // 2
            w.machine.usage[uids["silent"]] = ContainerUsage(7, 1, 1)
            w.machine.usage[uids["busy"]] = ContainerUsage(used, 1, 1)
            await w.settle(1)
            versions.append((await w.pod("silent"))["metadata"]["resourceVersion"])
        told = _idle(await w.pod("silent"))
        assert told is not None and told["status"] == "True" and told["reason"] == "NoActivity"
        assert len(set(versions)) == 2, "written once"
        assert _idle(await w.pod("busy")) is None
        w.machine.usage[uids["silent"]] = ContainerUsage(60 * SECOND, 1, 1)
        await w.settle(10)
        told = _idle(await w.pod("silent"))
        assert told is not None and told["status"] == "False"


def _idle(found: Any) -> Any:
    return next((each for each in found["status"].get("conditions") or () if each["type"] == COTERIE_IDLE), None)
