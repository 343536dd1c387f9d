"""Scheduling by bandwidth: reserved or used, whichever is more, on nodes and on links."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from scheduling_kit import BANDWIDTH, GangEngine, bound, gang_pod, node, task_object

from coterie.base.clock import rfc3339
from coterie.kube.api.types.pods import Pod
from coterie.kube.scheduler.effects import Bind, Effect, Report
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DomainRoute, Gateway
from coterie.kuscia.api.types.job import KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource
from coterie.kuscia.gangs.bandwidth import BandwidthState, duration_text, link_shortage
from coterie.kuscia.gangs.effects import MarkFailed, MarkReserved, MarkWaiting

M = 1_000_000


def reservation(name: str, phase: str, request: str = "", *peers: str, namespace: str = "alice") -> TaskResource:
    body = task_object(name, phase, namespace)
    body["metadata"]["annotations"][labels.KUSCIA_TASK_ID] = name
    body["spec"]["bandwidthRequest"] = request
    body["spec"]["peers"] = list(peers or ("bob",))
    return msgspec.convert(body, TaskResource)


def link(bits: str, namespace: str = "alice", peer: str = "bob") -> DomainRoute:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"{namespace}-{peer}",
                "namespace": namespace,
                "annotations": {labels.COTERIE_LINK_BANDWIDTH: bits},
            },
            "spec": {"source": namespace, "destination": peer, "authenticationType": "Token"},
        },
        DomainRoute,
    )


def measured(namespace: str = "alice", /, **tasks: int) -> Gateway:
    """By task, what it sends to bob, in Mbit/s."""
    usage = [
        {"task": name.replace("_", "-"), "peer": "bob", "sentBitsPerSecond": mbit * M} for name, mbit in tasks.items()
    ]
    lasting = {"address": "", "uptime": "", "heartbeatTime": "", "publicKey": "", "version": ""}
    body = {"metadata": {"name": "gw", "namespace": namespace}, "status": {**lasting, "usage": usage}}
    return msgspec.convert(body, Gateway)


class Domain:
    """alice's scheduler, with one node and a link to bob."""

    def __init__(self, capacity: str = "100Mbps", node_mbit: int = 1000) -> None:
        self.now = 0.0
        self.engine = GangEngine(lambda: self.now)
        self.gangs = self.engine.gangs
        self.engine.node_seen(node("n", "64", "64Gi", bandwidth=node_mbit))
        self.pods: dict[str, Pod] = {}
        if capacity:
            self.gangs._route_seen(link(capacity))

    def begin(self, name: str, request: str, mbit: int = 1, *peers: str) -> list[Effect]:
        pod = gang_pod(f"{name}-0", name, requests={BANDWIDTH: mbit})
        self.pods[name] = pod
        self.engine.task_seen(reservation(name, "Reserving", request, *peers))
        self.engine.pod_seen(pod)
        return self.engine.run()

    def start(self, name: str, request: str, mbit: int = 1) -> None:
        """Reserves, becomes schedulable and runs."""
        assert any(isinstance(each, MarkReserved) for each in self.begin(name, request, mbit))
        self.let_run(name, request)

    def let_run(self, name: str, request: str) -> None:
        self.engine.task_seen(reservation(name, "Schedulable", request))
        (binding,) = [each for each in self.engine.run() if isinstance(each, Bind)]
        self.pods[name] = bound(self.pods[name], binding.node)
        self.engine.pod_seen(self.pods[name])

    def end(self, name: str) -> list[Effect]:
        self.engine.pod_gone(self.pods.pop(name))
        self.engine.task_gone(reservation(name, "Schedulable").key)
        return self.engine.run()

    def measure(self, **tasks: int) -> list[Effect]:
        self.gangs.gateway_seen(measured(**tasks))
        return self.engine.run()


def waits(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(each.reason, each.message) for each in effects if isinstance(each, Report)]


def reserves(effects: list[Effect], name: str) -> bool:
    return any(isinstance(each, MarkReserved) and each.key.name == name for each in effects)


def test_a_third_task_waits_for_the_link_and_starts_when_it_frees() -> None:
    alice = Domain()
    alice.start("a", "40Mbps")
    alice.start("b", "40Mbps")
    effects = alice.begin("c", "30Mbps")
    ((reason, message),) = waits(effects)
    assert reason == "BandwidthInsufficient"
    assert message.startswith("link alice-bob has 100 Mbit/s, 80 Mbit/s of it are taken")
    assert "requests 30 Mbit/s" in message and "not known" in message
    (mark,) = [each for each in effects if isinstance(each, MarkWaiting)]
    assert mark.message == f"BandwidthInsufficient: {message}"
    assert reserves(alice.end("a"), "c")


def test_over_use_counts_and_is_forgiven_when_it_ends() -> None:
    alice = Domain()
    alice.start("a", "40Mbps")
    alice.measure(a=80)
    ((reason, message),) = waits(alice.begin("c", "30Mbps"))
    assert reason == "BandwidthInsufficient" and "80 Mbit/s of it are taken" in message
    assert reserves(alice.measure(a=41), "c"), "five per cent are the error of the measurement"


def test_traffic_of_a_task_that_reserved_nothing_counts() -> None:
    alice = Domain()
    alice.measure(greedy=90)
    assert waits(alice.begin("c", "30Mbps"))
    assert reserves(alice.measure(), "c")


def test_own_traffic_does_not_stand_in_the_way() -> None:
    """A task that begins again is measured from its earlier life for a moment."""
    alice = Domain()
    alice.measure(c=90)
    assert reserves(alice.begin("c", "30Mbps"), "c")


def test_a_link_without_capacity_takes_everything_and_one_that_grows_wakes() -> None:
    free = Domain(capacity="")
    assert reserves(free.begin("a", "900Mbps"), "a")
    alice = Domain("10Mbps")
    ((_, message),) = waits(alice.begin("a", "30Mbps"))
    assert "can never start" in message
    alice.gangs._route_seen(link("50Mbps"))
    assert reserves(alice.engine.run(), "a")


def test_pods_that_request_bandwidth_reserve_it_on_their_links_too() -> None:
    """As Kuscia's jobs do, which know no bandwidthRequest."""
    alice = Domain("100Mbps")
    alice.start("a", "", 80)
    ((reason, message),) = waits(alice.begin("b", "", 30))
    assert reason == "BandwidthInsufficient" and "link alice-bob" in message


def test_other_links_are_not_concerned() -> None:
    alice = Domain()
    alice.start("a", "90Mbps")
    assert reserves(alice.begin("c", "90Mbps", 1, "carol"), "c")


def test_over_use_of_a_node_counts_on_the_node() -> None:
    alice = Domain(capacity="", node_mbit=100)
    alice.start("a", "", 40)
    alice.measure(a=80)
    ((reason, message),) = waits(alice.begin("b", "", 30))
    assert reason == "BandwidthInsufficient"
    assert "Node n has 100 Mbit/s for tasks, 80 Mbit/s of it are taken and the pod requests 30 Mbit/s" in message
    alice.now += 2.0  # the pause after the failed attempt
    assert reserves(alice.measure(a=20), "b")


def test_measurements_of_a_gateway_that_is_gone_are_dropped() -> None:
    alice = Domain(capacity="", node_mbit=100)
    alice.start("a", "", 40)
    alice.measure(a=90)
    assert waits(alice.begin("b", "", 30))
    due = alice.engine.next_due()
    assert due is not None and due <= 60.0
    alice.now = 61.0
    assert reserves(alice.engine.run(), "b")


def test_a_gateway_speaks_for_its_own_domain_only() -> None:
    """On a control plane with several domains one of them cannot take bandwidth from another by what it reports."""
    alice = Domain()
    alice.gangs.gateway_seen(measured("mallory", a=1000))
    assert reserves(alice.begin("a", "90Mbps"), "a")


@pytest.mark.parametrize("bits", ["-5", "much", "", "99999999999Gbps"])
def test_a_capacity_that_cannot_be_read_is_none(bits: str) -> None:
    state = BandwidthState(lambda: datetime.now(UTC))
    state.route_seen(link(bits))
    assert state.link_capacity("alice", "bob") is None


def test_the_first_of_two_gangs_gets_the_link_of_one_that_only_holds_it() -> None:
    """Else two gangs, each first in one domain, would wait for each other for ever."""
    alice = Domain()
    assert reserves(alice.begin("z", "80Mbps"), "z")
    assert waits(alice.begin("a", "80Mbps"))
    alice.now = 11.0
    effects = alice.engine.run()
    assert [each.key.name for each in effects if isinstance(each, MarkFailed)] == ["z"]
    alice.engine.task_seen(reservation("z", "Failed", "80Mbps"))
    assert reserves(alice.engine.run(), "a")


def running_task(name: str, **more: Any) -> KusciaTask:
    spec: dict[str, Any] = {"initiator": "alice", "taskInputConfig": "", "parties": []}
    if "deadline" in more:
        spec["scheduleConfig"] = {"activeDeadlineSeconds": more.pop("deadline")}
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Running", **more}}, KusciaTask
    )


def test_the_expected_time_comes_from_the_progress_of_tasks() -> None:
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    state = BandwidthState(lambda: now)
    state.route_seen(link("100Mbps"))
    began = rfc3339(now - timedelta(minutes=30))
    state.task_seen(running_task("a", startTime=began, progress=0.5))
    state.task_seen(running_task("b", startTime=began, deadline=4 * 3600))
    reserved = {"a": 50 * M, "b": 50 * M}
    short = link_shortage(state, "alice", "bob", 40 * M, reserved, "c")
    assert short is not None
    assert state.expected(short.claims, 40 * M) == "expected in about 30 minutes"
    assert state.expected(short.claims, 90 * M) == "expected in about 4 hours"
    state.task_seen(running_task("a", startTime=began, progress=1.0, phase="Succeeded"))
    state.task_gone("b")
    assert "not known" in state.expected(short.claims, 40 * M)


def test_times_for_people_are_coarse() -> None:
    assert [duration_text(seconds) for seconds in (3, 89, 600, 8000)] == [
        "a minute", "a minute", "10 minutes", "2 hours",
    ]  # fmt: skip
