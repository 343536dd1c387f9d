"""What a domain has, reserved and uses; what can never be met; and the gauges of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.base.exposition import render
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import limited_party
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, domain_bandwidth, never_met
from coterie.kuscia.api.bandwidth_report import BandwidthReport, LinkBandwidth, NodeBandwidth, bandwidth_report
from coterie.kuscia.api.types.domain import DomainRoute, Gateway, LinkUsage
from coterie.kuscia.api.types.task_resource import TaskResource
from coterie.kuscia.control.bandwidth_metrics import bandwidth_families

M = 1_000_000


def node(name: str = "n", domain: str = "alice", mbit: int = 100) -> Node:
    amounts = {labels.KUSCIA_BANDWIDTH: str(mbit)}
    left = {labels.KUSCIA_BANDWIDTH: str(mbit - 10)}
    meta = {"name": name, "labels": {labels.KUSCIA_NODE_NAMESPACE: domain}}
    return msgspec.convert({"metadata": meta, "status": {"capacity": amounts, "allocatable": left}}, Node)


def pod(task: str, mbit: int, phase: str = "Running") -> Pod:
    resources = {"requests": {labels.KUSCIA_BANDWIDTH: str(mbit)}} if mbit else {}
    return msgspec.convert(
        {
            "metadata": {"name": f"{task}-0", "namespace": "alice", "annotations": {labels.KUSCIA_TASK_ID: task}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": resources}]},
            "status": {"phase": phase},
        },
        Pod,
    )


def gateway(namespace: str = "alice", name: str = "gw", **sent: int) -> Gateway:
    usage = [
        {"task": task, "peer": "bob", "sentBitsPerSecond": mbit * M, "sentBytes": 5} for task, mbit in sent.items()
    ]
    links = [{"peer": "bob", "sentBitsPerSecond": sum(sent.values()) * M}]
    lasting = {"address": "", "uptime": "", "heartbeatTime": "", "publicKey": "", "version": ""}
    status = {**lasting, "usage": usage, "links": links}
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "status": status}, Gateway)


def link(text: str, source: str = "alice", destination: str = "bob", namespace: str = "alice") -> DomainRoute:
    annotations = {labels.COTERIE_LINK_BANDWIDTH: text}
    meta = {"name": f"{source}-{destination}", "namespace": namespace, "annotations": annotations}
    spec = {"source": source, "destination": destination, "authenticationType": "Token"}
    return msgspec.convert({"metadata": meta, "spec": spec}, DomainRoute)


def reservation(task: str, request: str, phase: str = "Schedulable") -> TaskResource:
    meta = {"name": f"{task}-x", "namespace": "alice", "annotations": {labels.KUSCIA_TASK_ID: task}}
    spec = {"bandwidthRequest": request, "peers": ["bob"]}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, TaskResource)


def test_the_larger_of_reserved_and_used_is_taken() -> None:
    found = bandwidth_report(
        "alice",
        [node(), node("theirs", "bob")],
        [pod("a", 40), pod("b", 20), pod("done", 20, "Succeeded")],
        [gateway(a=60), gateway(name="second", b=5), gateway("mallory", a=1000)],
        [link("100Mbps"), link("80Mbps", "bob", "alice"), link("1Mbps", namespace="bob")],
        [reservation("a", "40Mbps"), reservation("b", "20Mbps"), reservation("c", "50Mbps", "Reserving")],
    )
    assert found.nodes == (NodeBandwidth("n", 100 * M, 90 * M, 60 * M, 65 * M, 10 * M),)
    assert found.links == (LinkBandwidth("bob", 80 * M, 60 * M, 65 * M, 0),), "the smaller of both routes"
    assert [(each.task, each.reserved, each.sent, each.sent_bytes) for each in found.tasks] == [
        ("a", 40 * M, 60 * M, 5),
        ("b", 20 * M, 5 * M, 5),
    ]


def test_an_idle_domain_has_its_nodes_only() -> None:
    found = bandwidth_report("alice", [node()], [], [], [], [])
    assert found == BandwidthReport("alice", (NodeBandwidth("n", 100 * M, 90 * M, 0, 0, 90 * M),))


HAS = DomainBandwidth({"small": 10 * M, "great": 90 * M}, {"bob": 50 * M})


@pytest.mark.parametrize(
    ("pod_bits", "link_bits", "peers", "why"),
    [
        (90 * M, 50 * M, ["bob"], ""),
        (91 * M, 10 * M, ["bob"], "no node of alice has more than 90 Mbit/s (great)"),
        (10 * M, 51 * M, ["bob"], "the link alice-bob, which has 50 Mbit/s"),
        (10 * M, 500 * M, ["carol"], ""),
    ],
    ids=["fits", "node", "link", "other-link"],
)
def test_what_can_never_be_met(pod_bits: int, link_bits: int, peers: list[str], why: str) -> None:
    found = never_met("alice", HAS, pod_bits, link_bits, peers)
    assert why in found and bool(why) == bool(found)


def test_a_domain_without_nodes_refuses_nothing() -> None:
    assert never_met("alice", domain_bandwidth("alice", [node("x", "bob")], []), 10**12, 10**12, ["bob"]) == ""


def test_a_limit_is_changed_for_its_own_party_only() -> None:
    alice: dict[str, Any] = {"domainID": "alice", "bandwidthLimits": [{"destinationID": "carol", "limitKBps": 5}]}
    assert limited_party(alice, "alice", "bob", 7)["bandwidthLimits"] == [
        {"destinationID": "carol", "limitKBps": 5},
        {"destinationID": "bob", "limitKBps": 7},
    ]
    assert limited_party(alice, "alice", "carol", 0)["bandwidthLimits"] == []
    assert limited_party(alice, "bob", "carol", 1) == alice


def test_the_gauges_have_the_names_of_the_seed() -> None:
    report = bandwidth_report(
        "alice", [node()], [pod("a", 40)], [gateway(a=60)], [link("100Mbps")], [reservation("a", "40Mbps")]
    )
    page = render(bandwidth_families([report])).splitlines()
    for line in (
        'node_bandwidth_total_bits{domain="alice",node="n"} 100000000',
        'node_bandwidth_available_bits{domain="alice",node="n"} 30000000',
        'coterie_link_capacity_bits{domain="alice",peer="bob"} 100000000',
        'coterie_link_reserved_bits{domain="alice",peer="bob"} 40000000',
        'coterie_link_used_bits{domain="alice",peer="bob"} 60000000',
        'coterie_task_bandwidth_reserved_bits{domain="alice",task="a",peer="bob"} 40000000',
        'coterie_task_bandwidth_used_bits{domain="alice",task="a",peer="bob"} 60000000',
    ):
        assert line in page


def test_what_a_gateway_makes_up_becomes_no_row() -> None:
    """A lite writes the status of its gateway: tasks and partners that its domain does not have would be rows without end."""
    forged = gateway(a=5, **{f"forged-{number}": 1 for number in range(50)})
    status = msgspec.structs.replace(forged.status, links=[LinkUsage(peer="nobody", sent_bits_per_second=1)])
    elsewhere = gateway(name="second", a=1)
    usage = [msgspec.structs.replace(each, peer="nobody") for each in elsewhere.status.usage]
    gateways = [
        msgspec.structs.replace(forged, status=status),
        msgspec.structs.replace(elsewhere, status=msgspec.structs.replace(elsewhere.status, usage=usage, links=None)),
    ]
    found = bandwidth_report("alice", [node()], [pod("a", 1)], gateways, [link("100Mbps")], [])
    assert [(each.task, each.peer) for each in found.tasks] == [("a", "bob")]
    assert [each.peer for each in found.links] == ["bob"]
