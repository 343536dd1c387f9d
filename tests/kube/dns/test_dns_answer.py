"""What the domain's server says: one row for each kind of name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dns_kit import endpoints, pod, question, service, shown

from coterie.kube.network.dns.answer import answer
from coterie.kube.network.dns.model import DnsQuestion, RecordType, ResponseCode, name_of, text_of
from coterie.kube.network.dns.zone import Zone, service_names, zone_of
from coterie.kuscia.extensions.dns import GATEWAY_LABEL, GATEWAY_SERVICES, HOST_SERVICES

GATEWAY, HOST = ("127.0.1.1", "fd00::1"), ("127.0.1.9",)
BY_GATEWAY = {"kuscia.secretflow/loadbalancer": "domainroute"}
HTTP = {"name": "http", "port": 8080, "protocol": "TCP"}


def zone(**more: Any) -> Zone:
    made = zone_of(
        "alice",
        GATEWAY,
        HOST,
        services=[
            service("web", clusterIP="10.9.0.1", ports=[{"name": "http", "port": 80}]),
            service("both", clusterIP="None"),
            service("task", clusterIP="None", labels=BY_GATEWAY, ports=[{"name": "http", "port": 80}]),
            service("empty", clusterIP="None", ports=[{"name": "http", "port": 80}]),
            service("db", type="ExternalName", externalName="DB.example.com"),
            service("chain", type="ExternalName", externalName="web.alice.svc"),
            service("abroad", type="ExternalName", externalName="x.bob.svc"),
            service("circle", type="ExternalName", externalName="circle.alice.svc"),
            service("number", type="ExternalName", externalName="192.0.2.7"),
            service("toolong", type="ExternalName", externalName="a" * 70 + ".example"),
            service("alien", "carol"),
            service("datamesh", clusterIP="None"),
        ],
        endpoints=[
            endpoints("web", "10.0.0.1", "10.0.0.2", ports=[HTTP], waiting=["10.0.0.3"]),
            endpoints("both", "10.0.0.5", "fd00::5", hostname="b-0", ports=[HTTP]),
            endpoints("task", "10.0.0.8", ports=[HTTP]),
            endpoints("datamesh", "10.6.6.6"),
        ],
        pods=[
            pod("p-0", "10.0.0.20", hostname="ray-head", subdomain="Ray"),
            pod("p-1", "10.0.0.21", subdomain="ray"),
            pod("p-2", "10.0.0.22", hostname="done", subdomain="ray", phase="Succeeded"),
            pod("p-3", "10.0.0.23", hostname="leaving", subdomain="ray", deleting=True),
            pod("p-4", "10.0.0.24", hostname="alone"),
        ],
        gateway_label=GATEWAY_LABEL,
        **more,
    )
    return replace(made, host_services=frozenset(HOST_SERVICES), gateway_services=frozenset(GATEWAY_SERVICES))


WEB = ["A 10.0.0.1", "A 10.0.0.2"]
THE_GATEWAY = ["A 127.0.1.1"]


@pytest.mark.parametrize(
    ("name", "type_", "expected"),
    [
        pytest.param("web.alice.svc", RecordType.A, WEB, id="own-cluster-service"),
        pytest.param("WEB.Alice.SVC.", RecordType.A, WEB, id="any-case"),
        pytest.param("web.svc", RecordType.A, WEB, id="short"),
        pytest.param("web", RecordType.A, WEB, id="bare"),
        pytest.param("web.alice", RecordType.A, WEB, id="without-svc"),
        pytest.param("web.alice.svc.cluster.local", RecordType.A, WEB, id="as-kubernetes-spells-it"),
        pytest.param("both.alice.svc", RecordType.A, ["A 10.0.0.5"], id="headless"),
        pytest.param("both.alice.svc", RecordType.AAAA, ["AAAA fd00::5"], id="headless-ipv6"),
        pytest.param("b-0.both.alice.svc", RecordType.AAAA, ["AAAA fd00::5"], id="endpoint-by-hostname"),
        pytest.param("10-0-0-2.web.alice.svc", RecordType.A, ["A 10.0.0.2"], id="endpoint-by-address"),
        pytest.param("task.alice.svc", RecordType.A, THE_GATEWAY, id="by-gateway"),
        pytest.param("datamesh", RecordType.A, ["A 127.0.1.9"], id="host-service"),
        pytest.param("datamesh.alice.svc", RecordType.A, ["A 127.0.1.9"], id="no-service-takes-a-host-services-name"),
        pytest.param("kusciaapi.svc", RecordType.A, ["A 127.0.1.9"], id="host-service-short"),
        pytest.param("transport.alice", RecordType.A, THE_GATEWAY, id="transport"),
        pytest.param("reporter.alice.svc", RecordType.A, THE_GATEWAY, id="served-by-the-gateway-itself"),
        pytest.param("web.bob.svc", RecordType.A, THE_GATEWAY, id="other-domain"),
        pytest.param("web.bob.svc", RecordType.AAAA, ["AAAA fd00::1"], id="other-domain-ipv6"),
        pytest.param("apiserver.master.svc", RecordType.A, THE_GATEWAY, id="master"),
        pytest.param("a.b.bob.svc", RecordType.A, THE_GATEWAY, id="deep-in-another-domain"),
        pytest.param("ray-head.ray.alice.svc", RecordType.A, ["A 10.0.0.20"], id="pod"),
        pytest.param("p-1.ray.alice.svc", RecordType.A, ["A 10.0.0.21"], id="pod-without-hostname"),
        pytest.param("number.alice.svc", RecordType.A, ["A 192.0.2.7"], id="external-address"),
        pytest.param("db.alice.svc", RecordType.CNAME, ["CNAME db.example.com"], id="external-name-itself"),
        pytest.param("chain.alice.svc", RecordType.A, ["CNAME web.alice.svc", *WEB], id="external-name-inside"),
        pytest.param(
            "abroad.svc", RecordType.A, ["CNAME x.bob.svc", *THE_GATEWAY], id="external-name-in-another-domain"
        ),
        pytest.param(
            "_http._tcp.web.alice.svc",
            RecordType.SRV,
            ["SRV 8080 10-0-0-1.web.alice.svc", "SRV 8080 10-0-0-2.web.alice.svc"],
            id="ports",
        ),
        pytest.param("_http._tcp.both.svc", RecordType.SRV, ["SRV 8080 b-0.both.alice.svc"], id="ports-short"),
        pytest.param("_http._tcp.task.alice.svc", RecordType.SRV, ["SRV 80 task.alice.svc"], id="ports-by-gateway"),
        pytest.param("svc", RecordType.SOA, ["SOA svc"], id="apex"),
        pytest.param("localhost", RecordType.A, ["A 127.0.0.1"], id="localhost"),
    ],
)
def test_names_that_have_records(name: str, type_: int, expected: list[str]) -> None:
    found = answer(question(name, type_), zone())
    assert [shown(record) for record in found.answers] == expected
    assert found.code == ResponseCode.NOERROR and found.authoritative and found.forward is None
    assert all(record.ttl == 5 for record in found.answers)


@pytest.mark.parametrize(
    ("name", "type_", "code", "apex"),
    [
        pytest.param("nobody.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="unknown-own-service"),
        pytest.param("alien.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="service-of-another-namespace"),
        pytest.param("web.alice.svc", RecordType.AAAA, ResponseCode.NOERROR, "svc", id="no-ipv6"),
        pytest.param("web.alice.svc", 16, ResponseCode.NOERROR, "svc", id="no-text"),
        pytest.param("web", RecordType.AAAA, ResponseCode.NOERROR, "web", id="bare-no-ipv6"),
        pytest.param(
            "web.alice.svc.cluster.local", RecordType.AAAA, ResponseCode.NOERROR, "cluster.local", id="long-no-ipv6"
        ),
        pytest.param("empty.alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="nobody-ready"),
        pytest.param("toolong.alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="external-name-that-is-none"),
        pytest.param(
            "_http._tcp.empty.alice.svc", RecordType.SRV, ResponseCode.NOERROR, "svc", id="ports-nobody-ready"
        ),
        pytest.param("_ftp._tcp.web.alice.svc", RecordType.SRV, ResponseCode.NXDOMAIN, "svc", id="no-such-port"),
        pytest.param("_http._udp.web.alice.svc", RecordType.SRV, ResponseCode.NXDOMAIN, "svc", id="no-such-protocol"),
        pytest.param("_http._tcp.web.alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="port-has-no-address"),
        pytest.param("_tcp.web.alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="between-port-and-service"),
        pytest.param("_udp.web.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="protocol-without-ports"),
        pytest.param("10-0-0-3.web.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="endpoint-not-ready"),
        pytest.param("ray.alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="subdomain-without-service"),
        pytest.param("done.ray.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="pod-that-ended"),
        pytest.param("leaving.ray.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="pod-that-leaves"),
        pytest.param("alone.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="pod-without-subdomain"),
        pytest.param("a.b.c.alice.svc", RecordType.A, ResponseCode.NXDOMAIN, "svc", id="deep"),
        pytest.param("alice.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="the-domain-itself"),
        pytest.param("bob.svc", RecordType.A, ResponseCode.NOERROR, "svc", id="another-domain-itself"),
        pytest.param("svc", RecordType.A, ResponseCode.NOERROR, "svc", id="apex"),
        pytest.param("web.alice.svc", RecordType.NS, ResponseCode.NOERROR, "svc", id="no-name-server-records"),
    ],
)
def test_names_that_have_none(name: str, type_: int, code: ResponseCode, apex: str) -> None:
    found = answer(question(name, type_), zone())
    assert (found.code, found.answers, found.forward) == (code, (), None)
    (soa,) = found.authority
    assert (soa.type, text_of(soa.name), soa.ttl, soa.data[-4:]) == (RecordType.SOA, apex, 5, b"\0\0\0\5")


@pytest.mark.parametrize(
    "name",
    ["example.com", "nobody", "nobody.alice", "h.ray", "alien.carol", "7.2.0.192.in-addr.arpa", "local"],
)
def test_what_is_not_ours_is_forwarded(name: str) -> None:
    found = answer(question(name), zone())
    assert found.forward == question(name) and not found.authoritative and not found.answers


def test_external_names_are_completed_upstream() -> None:
    found = answer(question("db", RecordType.AAAA), zone())
    assert [shown(record) for record in found.answers] == ["CNAME db.example.com"]
    assert found.forward == question("db.example.com", RecordType.AAAA)


def test_external_names_in_a_circle_fail() -> None:
    assert answer(question("circle.alice.svc"), zone()).code == ResponseCode.SERVFAIL


@pytest.mark.parametrize(
    ("name", "type_", "klass"),
    [
        pytest.param("web.alice.svc", RecordType.ANY, 1, id="any"),
        pytest.param("example.com", RecordType.ANY, 1, id="any-of-others"),
        pytest.param("svc", RecordType.AXFR, 1, id="transfer"),
        pytest.param("example.com", RecordType.NS, 1, id="name-servers"),
        pytest.param("version.bind", 16, 3, id="chaos"),
    ],
)
def test_what_is_refused(name: str, type_: int, klass: int) -> None:
    found = answer(DnsQuestion(name_of(name), type_, klass), zone())
    assert (found.code, found.answers, found.forward) == (ResponseCode.REFUSED, (), None)


def test_everybody_gets_all_addresses_and_another_one_first() -> None:
    orders = [[shown(record) for record in answer(question("web"), zone(), turn).answers] for turn in range(3)]
    assert orders == [WEB, WEB[::-1], WEB]


def test_ports_come_with_the_addresses_of_their_targets() -> None:
    found = answer(question("_http._tcp.web.svc", RecordType.SRV), zone())
    assert sorted((text_of(r.name), shown(r)) for r in found.additional) == [
        ("10-0-0-1.web.alice.svc", "A 10.0.0.1"),
        ("10-0-0-2.web.alice.svc", "A 10.0.0.2"),
    ]


def test_an_address_that_is_none_is_left_out() -> None:
    assert service_names(service("x"), endpoints("x", "not an address", "10.0.0.1")).addresses == ("10.0.0.1",)
