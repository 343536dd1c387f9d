"""A node that joined a domain: what it takes from its join file, and where its pods find the domain's services."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.agent.runtimes.runp.network_access import PodNetworkFacts
from coterie.kuscia.engine.certificates import DomainAuthority, NodeAuthority
from coterie.kuscia.identity import domain_identity, engine_certificates
from coterie.node import api_identity, config
from coterie.node.cluster_network import ClusterNetwork, DomainServices, network_of
from coterie.node.join_bundle import Bundle, make_bundle, read_bundle
from coterie.node.parts import dns, join, pod_network
from coterie.node.parts.engine_parts import engine_settings

SERVICES = DomainServices(80, (9070, 9071), (9060, 9061), "TLS")
BUNDLE = Bundle(
    server="https://10.0.0.1:6443",
    node="node-2",
    ca=b"ca",
    certificate=b"c",
    key=b"k",
    serving_certificate=b"sc",
    serving_key=b"sk",
    pod_cidr="100.96.16.0/20",
    cluster_cidr="100.96.0.0/14",
    node_mask_size=20,
    service_cidr="100.120.0.0/16",
    vni=7,
    gateway="100.96.0.1",
    services=SERVICES,
    engines=NodeAuthority(b"authority", b"key", b"trusted"),
)
FACTS = PodNetworkFacts("100.96.16.1", "100.96.16.0/20", Path("/run/netns-1"), 1, True)


def autonomy(tmp_path: Path, **more: Any) -> config.NodeSettings:
    return config.parse({"mode": "autonomy", "domainID": "alice", "agent": {"nodeName": "node-1"}, **more}, tmp_path)


def joined(tmp_path: Path, bundle: Bundle = BUNDLE) -> config.NodeSettings:
    read = config.parse({"mode": "lite", "domainID": "alice", "join": "/n.join"}, tmp_path)
    assert read.agent is not None
    return join.joined_settings(read, read.agent, bundle)


def test_the_join_file_keeps_everything(tmp_path: Path) -> None:
    BUNDLE.write(tmp_path / "n.join")
    assert read_bundle(tmp_path / "n.join") == BUNDLE


def test_it_has_an_authority_for_the_nodes_engines(tmp_path: Path) -> None:
    now, paths = SYSTEM_CLOCK.now(), DomainPaths.of(tmp_path, "alice").prepare()
    api_identity.ensure(paths, ("127.0.0.1",), SYSTEM_CLOCK)
    server = "https://127.0.0.1:6443"
    assert not make_bundle(paths, "node-2", ("127.0.0.1",), server, SYSTEM_CLOCK).engines.able
    domain_identity.ensure(paths, "alice", None, now)
    bundle = make_bundle(paths, "node-2", ("127.0.0.1",), server, SYSTEM_CLOCK)
    assert "PRIVATE" not in repr(bundle) + repr(bundle.engines)
    made, domain = bundle.engines.load(), DomainAuthority(paths).load()
    assert pki.signed_by(made.certificate, domain.certificate)
    assert bundle.engines.trusted() == DomainAuthority(paths).trusted()
    ends = made.certificate.not_valid_after_utc
    assert ends >= pki.load_certificate(bundle.certificate).not_valid_after_utc
    assert (bundle.first_expiry(now), bundle.first_expiry(now + timedelta(days=300))) == (None, ends)
    pair = engine_certificates.issue_client_pair(made, engine_certificates.EngineIdentity("alice", "p", "u"), now)
    engine = engine_certificates.engine_of(pki.load_certificate(pair.certificate))
    assert engine is not None
    assert (engine.node, engine.issued_for("node-2"), engine.issued_for("node-1")) == ("node-2", True, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, DomainServices(80, (8070, 8071), (8060, 8061), "MTLS")),
        ({"dataMesh": {"httpPort": 9070}, "protocol": "TLS"}, DomainServices(80, (9070, 8071), (8060, 8061), "TLS")),
        ({"kusciaAPI": {"enabled": False}}, DomainServices(80, (8070, 8071), (), "MTLS")),
        ({"gateway": {"enabled": False}}, DomainServices()),
    ],
    ids=["usual", "other-ports", "no-api", "no-gateway"],
)
def test_the_control_plane_tells_what_its_node_serves(
    tmp_path: Path, more: dict[str, Any], expected: DomainServices
) -> None:
    network = network_of(autonomy(tmp_path, **more), "uid")
    assert network.services == expected
    assert ClusterNetwork.of_data(network.data()) == network


def test_a_node_that_joins_takes_the_network_of_its_file(tmp_path: Path) -> None:
    made = joined(tmp_path)
    assert made.agent is not None
    assert (made.agent.node_name, made.agent.pod_cidr) == ("node-2", "100.96.16.0/20")
    assert (made.network.pod_cidr, made.network.service_cidr) == ("100.96.0.0/14", "100.120.0.0/16")
    assert (made.remote_gateway, made.kuscia_api.protocol) == ("100.96.0.1", "TLS")
    ports = pod_network._network_settings(made, made.agent, BUNDLE)
    assert {port for _, port in ports.ports} == {53, 80, 9070, 9071}
    assert {port for _, port in ports.ports_not_for_guests} == {9060, 9061}


def test_without_a_gateway_there_are_no_services_elsewhere(tmp_path: Path) -> None:
    made = joined(tmp_path, replace(BUNDLE, services=DomainServices()))
    assert (made.remote_gateway, made.data_mesh.enabled, made.kuscia_api.enabled) == ("", False, False)
    old = joined(tmp_path, replace(BUNDLE, pod_cidr="", services=DomainServices()))
    assert (old.remote_gateway, old.data_mesh.enabled) == ("", True)


def test_names_lead_to_the_control_planes_node(tmp_path: Path) -> None:
    made = pod_network.inside(joined(tmp_path), FACTS)
    zone = dns._zone(made)
    assert (zone.gateway, zone.host) == (("100.96.0.1",), ("100.96.0.1",))
    assert dns.pod_dns(made).servers == ("100.96.16.1",)
    own = pod_network.inside(autonomy(tmp_path), replace(FACTS, gateway="100.96.0.1", cidr="100.96.0.0/20"))
    assert (dns._zone(own).gateway, dns._zone(own).host) == (("100.96.0.1",), ("100.96.0.1",))


def test_engines_get_nothing_that_the_node_has_not(tmp_path: Path) -> None:
    made = joined(tmp_path)
    assert made.agent is not None
    engines = engine_settings(made, made.agent)
    assert (engines.joined, engines.data, engines.api_token) == (True, None, None)
    own = autonomy(tmp_path)
    assert own.agent is not None
    assert engine_settings(own, own.agent).data == own.paths.data
