"""How a node takes its place in the pod network of its domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.node import config
from coterie.node.config import AgentConfig, NetworkConfig, NodeSettings
from coterie.node.join_bundle import Bundle
from coterie.node.parts.join import network_of
from coterie.node.parts.pod_network import cluster_of, outer_address


def bundle(**more: Any) -> Bundle:
    return Bundle("https://10.0.0.1:6443", "node-2", b"", b"", b"", b"", b"", **more)


def parsed(tmp_path: Path, **document: Any) -> tuple[NodeSettings, AgentConfig]:
    settings = config.parse({"domainID": "alice", "agent": {}, **document}, tmp_path)
    assert settings.agent is not None
    return settings, settings.agent


def test_the_first_node_has_the_first_part_of_the_range(tmp_path: Path) -> None:
    found = cluster_of(*parsed(tmp_path, mode="autonomy"))
    assert (found.cidr, found.node_prefix, found.between_machines) == ("100.96.0.0/12", 20, True)


@pytest.mark.parametrize("cidr", ["100.96.0.0/16", "10.1.0.0/20"])
def test_a_node_whose_range_does_not_fit_is_alone(tmp_path: Path, cidr: str) -> None:
    found = cluster_of(*parsed(tmp_path, mode="autonomy", agent={"podCIDR": cidr}))
    assert (found.cidr, f"/{found.node_prefix}", found.between_machines) == (cidr, cidr[-3:], False)


def test_a_lite_that_registers_is_alone(tmp_path: Path) -> None:
    document = {"mode": "lite", "masterEndpoint": "https://10.0.0.1:1080", "liteDeployToken": "t"}
    found = cluster_of(*parsed(tmp_path, **document, agent={"podCIDR": "100.97.0.0/20"}))
    assert (found.cidr, found.between_machines) == ("100.97.0.0/20", False)


def test_a_node_that_joins_has_the_ranges_of_its_control_plane() -> None:
    given = bundle(cluster_cidr="10.8.0.0/16", node_mask_size=24, service_cidr="10.9.0.0/16")
    assert network_of(given, NetworkConfig()) == NetworkConfig("10.8.0.0/16", 24, "10.9.0.0/16")
    assert network_of(bundle(), NetworkConfig()) == NetworkConfig()


def test_packets_between_machines_have_the_address_that_others_reach() -> None:
    agent = AgentConfig("node-2")
    assert outer_address(agent, bundle(addresses=("10.0.0.2", "10.9.0.2"))) == "10.0.0.2"
    assert outer_address(AgentConfig("node-2", address="10.9.0.2"), bundle(addresses=("10.0.0.2",))) == "10.9.0.2"
    assert outer_address(agent, None) == "127.0.0.1"
