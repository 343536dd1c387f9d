"""Kubernetes' DNS-based service discovery, version 1.1.0: its record forms, section by section, in every local namespace.

The zone is alice's. `default` and `shop` are namespaces of the same cluster; `bob` is another domain, whose namespace this
cluster has too.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from dns_kit import endpoints, pod, question, service, shown

from coterie.kube.network.dns.answer import answer
from coterie.kube.network.dns.model import RecordType, ResponseCode, name_of, text_of
from coterie.kube.network.dns.zone import Zone, zone_of
from coterie.kuscia.extensions.dns import GATEWAY_LABEL, HOST_SERVICES

GATEWAY = ("100.96.0.1",)
VIRTUAL = ipaddress.ip_network("100.112.0.0/16")
PODS = ipaddress.ip_network("100.96.0.0/12")
HTTPS = {"name": "https", "port": 443, "protocol": "TCP"}
TARGET = {"name": "https", "port": 8443, "protocol": "TCP"}


def made() -> Zone:
    zone = zone_of(
        "alice",
        GATEWAY,
        GATEWAY,
        services=[
            service("kubernetes", "default", clusterIP="100.112.0.1", ports=[HTTPS, {"port": 81}]),
            service("headless", "default", clusterIP="None", ports=[HTTPS]),
            service("waiting", "default", clusterIP="None", ports=[HTTPS]),
            service("foo", "default", type="ExternalName", externalName="www.example.com"),
            service("loop", "default", type="ExternalName", externalName="loop.default.svc.cluster.local"),
            service("inside", "default", type="ExternalName", externalName="web.shop.svc.cluster.local"),
            service("abroad", "default", type="ExternalName", externalName="x.bob.svc"),
            service("datamesh", "default", clusterIP="100.112.0.9"),
            service("routed", "default", clusterIP="None", labels=dict([GATEWAY_LABEL])),
            service("web", "shop", clusterIP="100.112.0.2", ports=[HTTPS]),
            service("web", "alice", clusterIP="100.112.0.3", ports=[HTTPS]),
            service("task", "alice", clusterIP="None", ports=[HTTPS]),
            service("label", "alice", clusterIP="10.9.0.1", ports=[HTTPS]),
            service("web", "bob", clusterIP="100.112.0.4", ports=[HTTPS]),
        ],
        endpoints=[
            endpoints("kubernetes", "100.96.0.9", ports=[TARGET], namespace="default"),
            endpoints("headless", "100.96.0.2", ports=[TARGET], namespace="default", hostname="my-pet"),
            endpoints("waiting", waiting=["100.96.0.7"], ports=[TARGET], namespace="default"),
            endpoints("routed", "100.96.0.6", namespace="default"),
            endpoints("web", "100.96.0.4", ports=[TARGET], namespace="shop"),
            endpoints("web", "100.96.0.5", ports=[TARGET]),
            endpoints("task", "100.96.0.2", "100.96.0.3", ports=[TARGET]),
            endpoints("label", "100.96.0.5", ports=[TARGET]),
            endpoints("web", "100.96.0.99", namespace="bob"),
        ],
        pods=[
            pod("a", "100.96.0.2", namespace="default", hostname="my-pet", subdomain="headless"),
            pod("b", "100.96.0.7", namespace="default", hostname="early", subdomain="waiting"),
            pod("c", "100.96.0.8", namespace="default", phase="Succeeded"),
            pod("d", "100.96.0.99", namespace="bob"),
        ],
        gateway_label=GATEWAY_LABEL,
        namespaces=["alice", "default", "shop"],
        virtual=VIRTUAL,
    )
    return replace(zone, networks=(PODS, VIRTUAL), host_services=frozenset(HOST_SERVICES))


A, SRV, PTR, TXT = RecordType.A, RecordType.SRV, RecordType.PTR, RecordType.TXT


@pytest.mark.parametrize(
    ("name", "type_", "expected"),
    [
        pytest.param("dns-version.cluster.local", TXT, ["TXT 1.1.0"], id="2.2-schema-version"),
        pytest.param("kubernetes.default.svc.cluster.local", A, ["A 100.112.0.1"], id="2.3.1-cluster-ip"),
        pytest.param("kubernetes.default.svc", A, ["A 100.112.0.1"], id="2.3.1-without-the-clusters-domain"),
        pytest.param("kubernetes.default", A, ["A 100.112.0.1"], id="2.3.1-service-and-namespace"),
        pytest.param(
            "_https._tcp.kubernetes.default.svc.cluster.local",
            SRV,
            ["SRV 443 kubernetes.default.svc.cluster.local"],
            id="2.3.2-named-port",
        ),
        pytest.param("1.0.112.100.in-addr.arpa", PTR, ["PTR kubernetes.default.svc.cluster.local"], id="2.3.3-ptr"),
        pytest.param("headless.default.svc.cluster.local", A, ["A 100.96.0.2"], id="2.4.1-headless"),
        pytest.param("my-pet.headless.default.svc.cluster.local", A, ["A 100.96.0.2"], id="2.4.1-host-name"),
        pytest.param(
            "_https._tcp.headless.default.svc.cluster.local",
            SRV,
            ["SRV 8443 my-pet.headless.default.svc.cluster.local"],
            id="2.4.2-port-of-each-endpoint",
        ),
        pytest.param(
            "2.0.96.100.in-addr.arpa",
            PTR,
            ["PTR 100-96-0-2.task.alice.svc.cluster.local", "PTR my-pet.headless.default.svc.cluster.local"],
            id="2.4.3-ptr-of-endpoints",
        ),
        pytest.param("foo.default.svc.cluster.local", RecordType.CNAME, ["CNAME www.example.com"], id="2.5-external"),
        pytest.param("100-96-0-2.default.pod.cluster.local", A, ["A 100.96.0.2"], id="2.6-pod"),
        pytest.param("inside.default.svc", A, ["CNAME web.shop.svc.cluster.local", "A 100.112.0.2"], id="chain"),
        pytest.param("abroad.default.svc", A, ["CNAME x.bob.svc", "A 100.96.0.1"], id="to-another-domain"),
        pytest.param("web.alice.svc", A, ["A 100.112.0.3"], id="own-domain-cluster-ip"),
        pytest.param("web.alice.svc.cluster.local", A, ["A 100.112.0.3"], id="own-domain-in-the-clusters-domain"),
        pytest.param("web", A, ["A 100.112.0.3"], id="bare-names-are-the-own-domains"),
        pytest.param("task.alice.svc", A, ["A 100.96.0.2", "A 100.96.0.3"], id="own-domain-headless"),
        pytest.param("label.alice.svc", A, ["A 100.96.0.5"], id="an-address-that-nothing-leads-on-is-not-given"),
        pytest.param("web.shop.svc", A, ["A 100.112.0.2"], id="another-namespace"),
        pytest.param("datamesh.default.svc", A, ["A 100.112.0.9"], id="names-of-the-node-are-the-domains-only"),
        pytest.param("routed.default.svc", A, ["A 100.96.0.6"], id="so-is-the-label-of-the-gateway"),
        pytest.param("web.bob.svc", A, ["A 100.96.0.1"], id="another-domains-names-lead-to-the-gateway"),
        pytest.param("web.nowhere.svc", A, ["A 100.96.0.1"], id="so-do-unknown-ones"),
    ],
)
def test_records(name: str, type_: int, expected: list[str]) -> None:
    found = answer(question(name, type_), made())
    assert [shown(record) for record in found.answers] == expected
    assert (found.code, found.authoritative, found.forward) == (ResponseCode.NOERROR, True, None)


NODATA, NXDOMAIN = ResponseCode.NOERROR, ResponseCode.NXDOMAIN


@pytest.mark.parametrize(
    ("name", "type_", "code", "apex"),
    [
        pytest.param("waiting.default.svc.cluster.local", A, NODATA, "cluster.local", id="no-ready-endpoints"),
        pytest.param("kubernetes.default.svc.cluster.local", RecordType.AAAA, NODATA, "cluster.local", id="no-ipv6"),
        pytest.param("kubernetes.default.svc", SRV, NODATA, "svc", id="srv-is-below"),
        pytest.param("_https._tcp.kubernetes.default.svc", A, NODATA, "svc", id="a-of-a-name-that-has-only-srv"),
        pytest.param("_tcp.kubernetes.default.svc", A, NODATA, "svc", id="between-service-and-port"),
        pytest.param("_http._tcp.kubernetes.default.svc", SRV, NXDOMAIN, "svc", id="unknown-port"),
        pytest.param("_https._udp.kubernetes.default.svc", SRV, NXDOMAIN, "svc", id="unknown-protocol"),
        pytest.param("early.waiting.default.svc", A, NXDOMAIN, "svc", id="pod-that-is-not-ready"),
        pytest.param("nobody.default.svc", A, NXDOMAIN, "svc", id="unknown-service"),
        pytest.param("default.svc", A, NODATA, "svc", id="namespace"),
        pytest.param("default.svc.cluster.local", A, NODATA, "cluster.local", id="namespace-in-the-domain"),
        pytest.param("bob.svc.cluster.local", A, NXDOMAIN, "cluster.local", id="another-domains-namespace"),
        pytest.param("web.bob.svc.cluster.local", A, NXDOMAIN, "cluster.local", id="another-domains-service"),
        pytest.param("typo.com.svc.cluster.local", A, NXDOMAIN, "cluster.local", id="searched"),
        pytest.param("typo.com.cluster.local", A, NXDOMAIN, "cluster.local", id="searched-too"),
        pytest.param("svc.cluster.local", A, NODATA, "cluster.local", id="svc"),
        pytest.param("pod.cluster.local", A, NODATA, "cluster.local", id="pod"),
        pytest.param("default.pod.cluster.local", A, NODATA, "cluster.local", id="pods-of-a-namespace"),
        pytest.param("100-96-0-9.default.pod.cluster.local", A, NXDOMAIN, "cluster.local", id="no-such-pod"),
        pytest.param("100-96-0-8.default.pod.cluster.local", A, NXDOMAIN, "cluster.local", id="pod-that-ended"),
        pytest.param("100-96-0-99.bob.pod.cluster.local", A, NXDOMAIN, "cluster.local", id="another-domains-pod"),
        pytest.param("x.y.pod.cluster.local", A, NXDOMAIN, "cluster.local", id="no-address"),
        pytest.param("dns-version.cluster.local", A, NODATA, "cluster.local", id="version-has-no-address"),
        pytest.param("9.9.96.100.in-addr.arpa", PTR, NXDOMAIN, "96.100.in-addr.arpa", id="free-address"),
        pytest.param("4.0.112.100.in-addr.arpa", PTR, NXDOMAIN, "112.100.in-addr.arpa", id="another-domains-address"),
        pytest.param("1.0.112.100.in-addr.arpa", A, NODATA, "112.100.in-addr.arpa", id="reverse-has-no-address"),
    ],
)
def test_names_without_records(name: str, type_: int, code: ResponseCode, apex: str) -> None:
    found = answer(question(name, type_), made())
    assert (found.code, found.answers, found.forward) == (code, (), None)
    assert [text_of(soa.name) for soa in found.authority] == [apex]


@pytest.mark.parametrize("name", ["nobody.shop", "x.com", "7.2.0.192.in-addr.arpa", "96.100.in-addr.arpa", "local"])
def test_other_names_are_forwarded(name: str) -> None:
    assert answer(question(name, PTR), made()).forward == question(name, PTR)


def test_a_circle_of_external_names_ends() -> None:
    assert answer(question("loop.default.svc"), made()).code == ResponseCode.SERVFAIL


def test_a_namespace_that_another_domain_has_too_is_the_domains() -> None:
    zone = replace(made(), namespaces=frozenset({"default", "shop", "bob"}))
    assert [shown(each) for each in answer(question("web.bob.svc"), zone).answers] == ["A 100.112.0.4"]
    assert [shown(each) for each in answer(question("web.bob.svc"), made()).answers] == ["A 100.96.0.1"]


def test_the_address_of_a_port_comes_with_it() -> None:
    found = answer(question("_https._tcp.kubernetes.default.svc", SRV), made())
    assert [(text_of(each.name), shown(each)) for each in found.additional] == [
        ("kubernetes.default.svc", "A 100.112.0.1")
    ]


def test_single_names_have_their_addresses_but_never_in_the_domains() -> None:
    hosts = {name_of(name): ("100.96.0.1",) for name in ("tea.example", "x.bob.svc", "web", "y.cluster.local")}
    zone = replace(made(), hosts=hosts, gateway=("192.0.2.1",))
    found = {name: answer(question(name), zone) for name in ("tea.example", "x.bob.svc", "web", "y.cluster.local")}
    assert {name: [shown(each) for each in one.answers] for name, one in found.items()} == {
        "tea.example": ["A 100.96.0.1"],
        "x.bob.svc": ["A 192.0.2.1"],
        "web": ["A 100.112.0.3"],
        "y.cluster.local": [],
    }
    assert answer(question("tea.example", RecordType.AAAA), zone).code == ResponseCode.NOERROR
