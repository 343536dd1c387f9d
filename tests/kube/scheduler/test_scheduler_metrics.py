"""What the scheduler counts: attempts by result, and what pods wait for in few words."""

from __future__ import annotations

import pytest
from scheduling_kit import GangEngine, bound, gang_pod, node, pod, task

from coterie.kube.scheduler.effects import Bind
from coterie.kube.scheduler.metrics import SchedulerSource, wait_reason


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were not ready.", "InsufficientCPU"),
        ("0/2 nodes are available: 2 Insufficient memory.", "InsufficientMemory"),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "InsufficientDevices"),
        ("no nodes available to schedule pods", "NoNodes"),
        ("0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.", "Volumes"),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "Affinity"),
        ("0/1 nodes are available: 1 node(s) were not ready.", "NodeNotReady"),
        ('namespace "bob" belongs to a partner', "NamespaceRefused"),
        ('waiting for task resource "alice/t"', "Reservation"),
        ("something new", "Other"),
    ],
)
def test_a_sentence_becomes_a_word(message: str, expected: str) -> None:
    assert wait_reason("Unschedulable", message) == expected
    assert wait_reason("BandwidthInsufficient", message) == "BandwidthInsufficient"


async def test_attempts_and_what_pods_wait_for() -> None:
    source = SchedulerSource()
    assert list(await source.families()) == [], "before the first pod"
    engine = source.engine = GangEngine(lambda: 0.0)
    engine.node_seen(node("n", cpu="2"))
    small, big = pod("small", "1"), pod("big", "9")
    for each in (small, big, gang_pod("t-0", "t")):
        engine.pod_seen(each)

    async def found() -> dict[str, dict[str, float]]:
        return {family.name: dict(family.rows) for family in await source.families()}

    assert (await found())["coterie_pending"] == {'reason="Queued"': 3}
    effects = engine.run()
    page = await found()
    assert page["coterie_scheduler_attempts_total"] == {
        'result="scheduled"': 1,
        'result="unschedulable"': 2,
        'result="error"': 0,
    }
    assert page["coterie_pending"] == {
        'reason="InsufficientCPU"': 1,
        'reason="Reservation"': 1,
        'reason="Reserved"': 1,
    }
    assert page["coterie_scheduler_waits_total"] == {'reason="InsufficientCPU"': 1, 'reason="Reservation"': 1}
    assert page["coterie_scheduler_queue"]['state="waiting"'] == 2
    assert [effect.node for effect in effects if isinstance(effect, Bind)] == ["n"]
    engine.pod_seen(bound(small, "n"))
    engine.pod_gone(big)
    assert (await found())["coterie_pending"] == {'reason="Reservation"': 1}
    engine.task_seen(task("t"))
    engine.run()
    assert (await found())["coterie_pending"] == {'reason="Reserved"': 1}, "room is held for it"


async def test_a_failed_binding_is_an_error() -> None:
    source = SchedulerSource()
    engine = source.engine = GangEngine(lambda: 0.0)
    engine.node_seen(node("n"))
    engine.pod_seen(pod("a"))
    (effect,) = engine.run()
    assert isinstance(effect, Bind)
    engine.bind_failed(effect.pod)
    assert engine.state.metrics.attempts["error"] == 1
