"""The plan of the overlay: which nodes are peers, what changes, which ranges the machine reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.nodes import Node, NodeAddress, NodeSpec, NodeStatus
from coterie.kube.network.overlay.plan import (
    Changes,
    OverlaySettings,
    PeerNode,
    can_carry,
    changes,
    gateway_of,
    host_address_of,
    mac_of,
    outer_address,
    peers_of,
    routes_of_machine,
    routes_of_services,
)

OWN = OverlaySettings(
    node="node-1",
    address="10.0.0.1",
    pod_cidr="100.96.0.0/20",
    cluster_cidr="100.96.0.0/16",
    service_cidr="100.112.0.0/16",
    vni=0xABC,
)


def node(name: str, cidr: str = "100.96.16.0/20", *addresses: str, made: str = "2026-01-01T00:00:00Z") -> Node:
    found = [NodeAddress(type="Hostname", address=name)]
    found += [NodeAddress(type="InternalIP", address=each) for each in addresses or ("10.0.0.2",)]
    return Node(
        metadata=ObjectMeta(name=name, creation_timestamp=made),
        spec=NodeSpec(pod_cidr=cidr),
        status=NodeStatus(addresses=tuple(found)),
    )


def test_peers_are_the_other_nodes() -> None:
    found, problems = peers_of(OWN, [node("node-1", OWN.pod_cidr, OWN.address), node("node-2")])
    assert found == {"100.96.16.0/20": PeerNode("node-2", "10.0.0.2", "100.96.16.0/20")}
    assert problems == []


@pytest.mark.parametrize("incomplete", [node("node-2", ""), Node(metadata=ObjectMeta(name="node-2"))])
def test_a_node_that_is_not_registered_completely_is_no_peer_yet(incomplete: Node) -> None:
    assert peers_of(OWN, [incomplete]) == ({}, [])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (node("node-2", "nonsense"), "no range"),
        (node("node-2", "fd00::/64"), "no range"),
        (node("node-2", "100.100.0.0/20"), "outside"),
        (node("node-2", "100.96.0.0/20"), "overlaps that of node node-1"),
        (node("node-2", "100.96.0.0/16"), "overlaps that of node node-1"),
        (node("node-2", "100.96.16.0/20", "127.0.0.1"), "not one of another machine"),
        (node("node-2", "100.96.16.0/20", "10.0.0.1"), "not one of another machine"),
        (node("node-2", "100.96.16.0/20", "fd00::1"), "not one of another machine"),
    ],
)
def test_a_node_that_cannot_be_a_peer_is_named(other: Node, why: str) -> None:
    found, problems = peers_of(OWN, [other])
    assert found == {}
    assert [why in each and "node-2" in each for each in problems] == [True]


def test_of_two_nodes_with_one_range_the_older_counts() -> None:
    young = node("a-young", "100.96.16.0/20", "10.0.0.3", made="2026-02-01T00:00:00Z")
    found, problems = peers_of(OWN, [young, node("old")])
    assert [peer.node for peer in found.values()] == ["old"]
    assert len(problems) == 1


def test_of_several_addresses_the_first_that_others_reach_counts() -> None:
    found, _ = peers_of(OWN, [node("node-2", "100.96.16.0/20", "127.0.0.1", "10.0.0.2", "10.9.0.2")])
    assert [peer.outer for peer in found.values()] == ["10.0.0.2"]
    assert outer_address(["127.0.0.1", "::1"]) == "127.0.0.1"
    assert outer_address([]) == ""


def test_changes_are_what_differs() -> None:
    one, two = PeerNode("a", "10.0.0.2", "100.96.16.0/20"), PeerNode("b", "10.0.0.3", "100.96.32.0/20")
    moved, renamed = PeerNode("b", "10.0.0.9", "100.96.32.0/20"), PeerNode("c", "10.0.0.3", "100.96.32.0/20")
    before = {one.pod_cidr: one, two.pod_cidr: two}
    assert not changes(before, before)
    assert changes({}, before) == Changes((), (one, two))
    assert changes(before, {one.pod_cidr: one}) == Changes((two,), ())
    assert changes(before, {one.pod_cidr: one, two.pod_cidr: moved}) == Changes((), (moved,))
    assert not changes(before, {one.pod_cidr: one, two.pod_cidr: renamed})


@pytest.mark.parametrize(
    ("taken", "chosen", "refused"),
    [
        ([], ["100.96.0.0/16", "100.112.0.0/16"], []),
        (["0.0.0.0/0", "10.0.0.0/24"], ["100.96.0.0/16", "100.112.0.0/16"], []),
        (["100.112.7.0/24"], ["100.96.0.0/16"], ["100.112.0.0/16"]),
        (["100.64.0.0/10"], [], ["100.96.0.0/16", "100.112.0.0/16"]),
        # Without an address of its own in the pod network the machine can call no Service.
        (["100.96.0.0/20"], [], ["100.96.0.0/16", "100.112.0.0/16"]),
    ],
)
def test_ranges_that_lead_elsewhere_are_left_alone(taken: list[str], chosen: list[str], refused: list[str]) -> None:
    assert routes_of_machine(OWN, taken) == (chosen, refused)


def test_a_domain_that_shares_the_range_of_services_has_a_route_for_each() -> None:
    own = replace(OWN, each_service=True)
    assert routes_of_machine(own, []) == (["100.96.0.0/16"], [])
    services = ["100.112.0.9", "100.112.0.10", "10.0.0.1"]
    both = {"100.112.0.9/32", "100.112.0.10/32"}
    assert routes_of_services(own, services, ["0.0.0.0/0", "100.112.0.8/32"]) == (both, [])
    assert routes_of_services(own, services, ["100.112.0.10/32"]) == ({"100.112.0.9/32"}, ["100.112.0.10"])
    assert routes_of_services(own, services, ["100.112.0.0/16"]) == (set(), ["100.112.0.9", "100.112.0.10"])


def test_addresses_of_a_range() -> None:
    assert gateway_of("100.96.16.0/20") == "100.96.16.1"
    assert host_address_of("100.96.16.0/20") == "100.96.31.255"
    macs = [mac_of(f"100.96.{number}.0/20") for number in (0, 16, 32)]
    assert len(set(macs)) == 3
    assert all(mac[0] & 3 == 2 for mac in macs), "locally administered, of one device"
    assert len(OWN.host_device) < 16


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "0.0.0.0", "224.0.0.1", "fd00::1"])
def test_addresses_that_carry_nothing(address: str) -> None:
    assert not can_carry(address)
