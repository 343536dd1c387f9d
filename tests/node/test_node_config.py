"""The keys of the configuration file that decide how patient nodes are with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.node import api_identity, config, join_bundle
from coterie.node.parts import join
from coterie.node.parts.engine_parts import engine_settings
from coterie.node.parts.evidence import switched_off

_MASTER = {"mode": "master", "domainID": "alice"}


def test_patience_with_nodes(tmp_path: Path) -> None:
    given = {**_MASTER, "controllers": {"nodeGraceSeconds": 5, "podEvictionSeconds": 0}}
    assert config.parse(given, tmp_path).controllers == config.ControllerSettings(5, 0)
    assert config.parse(_MASTER, tmp_path).controllers == config.ControllerSettings(32, 5)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        pytest.param({"nodeGraceSeconds": 1}, "controllers.nodeGraceSeconds", id="too-hasty"),
        pytest.param({"podEvictionSeconds": -1}, "controllers.podEvictionSeconds", id="negative"),
        pytest.param({"podEvictionSeconds": "5"}, "controllers.podEvictionSeconds", id="text"),
        pytest.param({"portRange": [1]}, "controllers.portRange", id="one port"),
        pytest.param({"portRange": [9, 8]}, "controllers.portRange", id="backwards"),
        pytest.param({"portRange": [True, 8]}, "controllers.portRange", id="no number"),
        pytest.param({"podEviction": 5}, "controllers.podEviction: is not a known key", id="unknown"),
    ],
)
def test_refused(tmp_path: Path, block: dict[str, object], told: str) -> None:
    with pytest.raises(config.ConfigError, match=told.replace(".", r"\.")):
        config.parse({**_MASTER, "controllers": block}, tmp_path)


def test_a_node_that_joins_is_named_by_its_file(tmp_path: Path) -> None:
    document = {"mode": "lite", "domainID": "alice", "join": "a.join"}
    settings = config.parse(document, tmp_path)
    assert settings.agent is not None and settings.agent.node_name == ""
    paths = DomainPaths.of(tmp_path, "plane")
    paths.prepare()
    api_identity.ensure(paths, ("127.0.0.1",), SYSTEM_CLOCK)
    bundle = join_bundle.make_bundle(paths, "node-2", ("127.0.0.1",), "https://127.0.0.1:1", SYSTEM_CLOCK)
    assert join.named_by(bundle, settings.agent).node_name == "node-2"
    other = config.parse({**document, "agent": {"nodeName": "node-3"}}, tmp_path).agent
    assert other is not None
    with pytest.raises(config.ConfigError, match='is for "node-2", not "node-3"'):
        join.named_by(bundle, other)


@pytest.mark.parametrize("protocol", ["NOTLS", "TLS", "MTLS"])
def test_templates_get_the_protocol_of_kusciaapi_not_the_gateways(tmp_path: Path, protocol: str) -> None:
    other = "MTLS" if protocol != "MTLS" else "NOTLS"
    document = {"mode": "autonomy", "domainID": "alice", "protocol": other, "kusciaAPI": {"protocol": protocol}}
    settings = config.parse(document, tmp_path, lowest_port=0)
    assert settings.agent is not None
    assert engine_settings(settings, settings.agent).built_in(())["KUSCIA_API_PROTOCOL"] == protocol


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({}, "127.0.0.1"),
        ({"apiServer": {"host": "10.0.0.5"}}, "127.0.0.1"),
        ({"apiServer": {"host": "127.0.1.2"}}, "127.0.1.2"),
        ({"dns": {"host": "10.0.0.5"}}, "127.0.0.1"),
        ({"console": {"host": "10.0.0.5"}}, "10.0.0.5"),
    ],
)
def test_the_console_is_on_loopback_unless_the_configuration_says_so(more: dict[str, Any], address: str) -> None:
    assert config.parse({**_MASTER, **more}, Path("/r")).console.address == address


@pytest.mark.parametrize(
    "more",
    [
        {"gateway": {"ingress": {"httpPort": 8088}}},
        {"gateway": {"external": {"port": 8088}}},
        {"apiServer": {"port": 8088}},
        {"kusciaAPI": {"HTTPPort": 8088}},
        {"metrics": {"port": 8088}},
    ],
)
def test_the_console_leaves_its_usual_port_to_whom_it_was_given(more: dict[str, Any]) -> None:
    """A node that was configured before there was a console starts as it did."""
    assert config.parse({**_MASTER, **more}, Path("/r")).console.port == 0
    assert config.parse({**_MASTER, **more, "console": {"port": 9188}}, Path("/r")).console.port == 9188


@pytest.mark.parametrize(
    ("document", "off"),
    [
        ({}, []),
        ({"protocol": "NOTLS"}, ["protocol: NOTLS", "kusciaAPI.protocol: NOTLS"]),
        ({"protocol": "NOTLS", "kusciaAPI": {"protocol": "MTLS"}}, ["protocol: NOTLS"]),
        ({"enableWorkloadApprove": False}, ["enableWorkloadApprove: false"]),
        (
            {"dataMesh": {"dataProxyList": [{"endpoint": "p:1", "dataSourceTypes": ["odps"]}]}},
            ["dataMesh.dataProxyList without clientTLSConfig"],
        ),
    ],
)
def test_protections_that_are_switched_off_are_evidence(
    tmp_path: Path, document: dict[str, Any], off: list[str]
) -> None:
    assert switched_off(config.parse({"mode": "autonomy", "domainID": "alice", **document}, tmp_path)) == off


def test_data_proxies(tmp_path: Path) -> None:
    tls = {"caFile": "/ca", "certFile": "/c", "keyFile": "/k"}
    proxies = [
        {"endpoint": "proxy:8023", "dataSourceTypes": ["odps", "hive"], "clientTLSConfig": tls, "mode": "direct"},
        {"endpoint": "other:8023", "dataSourceTypes": ["dameng"]},
    ]
    made = config.parse({"mode": "autonomy", "domainID": "alice", "dataMesh": {"dataProxyList": proxies}}, tmp_path)
    first, second = made.data_mesh.proxies
    assert (first.endpoint, first.types, first.secure, first.direct) == ("proxy:8023", ("odps", "hive"), True, True)
    assert (second.types, second.secure) == (("dameng",), False)


@pytest.mark.parametrize(
    ("proxy", "sentence"),
    [
        ({"dataSourceTypes": ["odps"]}, "endpoint: is missing"),
        ({"endpoint": "http://proxy:1/x", "dataSourceTypes": ["odps"]}, "must be host:port"),
        ({"endpoint": "proxy:1"}, "dataSourceTypes: is missing"),
        ({"endpoint": "proxy:1", "dataSourceTypes": ["localfs"]}, "cannot have localfs"),
        ({"endpoint": "proxy:1", "dataSourceTypes": ["odps", "odps"]}, "names the type odps twice"),
        ({"endpoint": "proxy:1", "dataSourceTypes": ["odps"], "mode": "both"}, "must be one of direct, proxy"),
        ({"endpoint": "p:1", "dataSourceTypes": ["odps"], "clientTLSConfig": {"certFile": "/c"}}, "belong together"),
        ({"endpoint": "p:1", "dataSourceTypes": ["odps"], "clientTLSConfig": {"caFile": "ca"}}, "whole path"),
    ],
)
def test_data_proxies_that_are_wrong(tmp_path: Path, proxy: dict[str, Any], sentence: str) -> None:
    document = {"mode": "autonomy", "domainID": "alice", "dataMesh": {"dataProxyList": [proxy]}}
    with pytest.raises(config.ConfigError, match=sentence):
        config.parse(document, tmp_path)
