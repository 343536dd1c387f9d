"""The DNS server as a part of a node: where it listens, whom it asks, what pods are told."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport, script
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns.settings import Nameserver, without_self
from coterie.kube.network.dns.zone import Zone
from coterie.kube.network.dns.zone_updater import ZoneUpdater
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.extensions.dns import DomainNames, is_of_domain
from coterie.node import config
from coterie.node.parts import dns


def settings(tmp_path: Path, **more: Any) -> config.NodeSettings:
    document = {"mode": "autonomy", "domainID": "alice", "agent": {"nodeName": "n", "address": "127.0.1.7"}}
    return config.parse({**document, **more}, tmp_path)


def informers() -> Informers:
    return Informers(Client(FakeTransport(script())))


def test_pods_ask_the_domains_server(tmp_path: Path) -> None:
    made = dns.pod_dns(settings(tmp_path, dns={"port": 53}))
    assert (made.servers, made.search, made.hosts, made.ndots) == (("127.0.1.7",), ("alice.svc",), (), 1)
    assert (made.cluster_domain, made.domain_namespace) == ("cluster.local", "alice")


@pytest.mark.parametrize("name", ["svc", "alice.svc", "Cluster.Local", "a..b"])
def test_a_cluster_domain_that_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(config.ConfigError, match=r"dns\.clusterDomain"):
        settings(tmp_path, dns={"clusterDomain": name})


async def test_domains_and_their_namespaces_are_no_local_namespaces() -> None:
    api = FakeApi()
    api.resources.append(DOMAINS.resource)
    api.seed("domains", "bob")
    for name in ("alice", "bob", "carol", "default", "master"):
        marked = {"labels": {"kuscia.secretflow/domain-name": name}} if name == "carol" else {}
        api.seed("namespaces", name, metadata=marked)
    client = api.client()
    shared = Informers(client)
    domains = DomainNames(shared)
    updater = ZoneUpdater(Zone("alice", (), ()), shared, is_foreign=is_of_domain, wait_for=(domains.ready,))
    domains.follow(updater.set_foreign)
    async with TaskOwner("test") as owner:
        owner.start("informers", shared.run())
        await updater.wait_synced()
        assert updater.zone.namespaces == {"default"}
        api.seed("domains", "default")
        while updater.zone.namespaces:
            await asyncio.sleep(0.005)
        await client.delete(DOMAINS, "default", "")
        while not updater.zone.namespaces:
            await asyncio.sleep(0.005)
        assert updater.zone.namespaces == {"default"}


@pytest.mark.parametrize("chosen", [{"port": 10053}, {"enabled": False}], ids=["another-port", "switched-off"])
def test_pods_find_the_node_even_without_it(tmp_path: Path, chosen: dict[str, Any]) -> None:
    made = dns.pod_dns(settings(tmp_path, dns=chosen, gateway={"internal": {"host": "127.0.1.8", "port": 8000}}))
    assert (made.servers, made.search) == ((), ())
    named = dict(made.hosts)
    assert {"datamesh", "datamesh.alice.svc", "gateway"} <= set(named["127.0.1.7"])
    assert {"transport", "kuscia-handshake.alice.svc"} <= set(named["127.0.1.8"])


def test_a_server_that_is_switched_off_is_no_part_of_the_node(tmp_path: Path) -> None:
    assert dns.dns_groups(settings(tmp_path, dns={"enabled": False}), informers(), SYSTEM_CLOCK) == []


async def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = settings(tmp_path, dns={"host": "127.0.0.1", "port": port})
        with pytest.raises(config.ConfigError, match=rf"^dns: another program listens on 127.0.0.1:{port}; set "):
            dns.dns_groups(chosen, informers(), SYSTEM_CLOCK)
    chosen = settings(tmp_path, dns={"host": "192.0.2.1", "port": 10053})
    with pytest.raises(config.ConfigError, match=r"^dns.host: 192.0.2.1 is no address of this machine"):
        dns.dns_groups(chosen, informers(), SYSTEM_CLOCK)


def test_one_address_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"^dns\.host: 0\.0\.0\.0 is every address"):
        dns.dns_groups(settings(tmp_path, dns={"host": "0.0.0.0", "port": 10053}), informers(), SYSTEM_CLOCK)


def test_a_server_that_would_only_ask_itself_is_refused(tmp_path: Path) -> None:
    chosen = settings(tmp_path, dns={"host": "127.0.0.1", "port": 10053, "upstream": ["127.0.0.1:10053"]})
    with pytest.raises(config.ConfigError, match=r"^dns\.upstream: "):
        dns.dns_groups(chosen, informers(), SYSTEM_CLOCK)


@pytest.mark.parametrize(
    ("upstream", "listen", "left"),
    [
        pytest.param("127.0.0.1:53", ("127.0.0.1", 53), 0, id="itself"),
        pytest.param("127.0.0.1:53", ("127.0.0.2", 53), 1, id="another-domains"),
        pytest.param("127.0.0.1:54", ("127.0.0.1", 53), 1, id="another-port"),
        pytest.param("127.0.0.53:53", ("0.0.0.0", 53), 0, id="itself-everywhere"),
        pytest.param("[::1]:53", ("::", 53), 0, id="itself-everywhere-6"),
        pytest.param("192.0.2.1", ("0.0.0.0", 53), 1, id="a-real-one"),
    ],
)
def test_nobody_asks_himself(upstream: str, listen: tuple[str, int], left: int) -> None:
    assert len(without_self([Nameserver.parse(upstream)] * 2, *listen)) == left


@pytest.mark.parametrize("text", ["", "example.com", "192.0.2.1:0", "192.0.2.1:x", "[::1]:99999", "[::1"])
def test_no_name_server(text: str) -> None:
    with pytest.raises(ValueError, match=r"name server|port"):
        Nameserver.parse(text)


def test_the_machines_servers_follow_its_file(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    servers = dns.MachineServers(path, "127.0.1.7", 53)
    assert servers() == []
    path.write_text("nameserver 127.0.1.7\nnameserver 192.0.2.1\nnameserver oops\n")
    assert servers() == [Nameserver("192.0.2.1")]
    path.write_text("nameserver 192.0.2.2\n")
    os.utime(path, (1, 1))
    assert servers() == [Nameserver("192.0.2.2")]
    path.unlink()
    assert servers() == []
