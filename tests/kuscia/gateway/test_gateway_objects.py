"""API objects as the gateway reads them, and Envoy's answers."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from gateway_kit import pem

from coterie.base.secret import SecretValue
from coterie.kube.api.types import network
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.admin import pending, read_stats, refusals
from coterie.kuscia.gateway.model import (
    Affinity,
    Authentication,
    DomainService,
    Route,
    RoutePort,
    SnapshotProblem,
    TaskBandwidthLimit,
)
from coterie.kuscia.gateway.objects import limits_of, route_of, service_of

K = "kuscia.secretflow/"


def service(
    annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> network.Service:
    metadata = {"name": "s", "namespace": "alice", "annotations": annotations or {}, "labels": labels or {}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, network.Service)


ENDPOINTS = msgspec.convert(
    {
        "metadata": {"name": "s"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}],
                "notReadyAddresses": [{"ip": "10.0.0.3"}],
                "ports": [{"name": "spu", "port": 8080}, {"name": "metrics", "port": 9090}],
            }
        ],
    },
    network.Endpoints,
)
OWN: frozenset[str] = frozenset()
SPU = {"ports": [{"name": "spu", "port": 80}]}
TWO = (SocketAddress("10.0.0.1", 8080), SocketAddress("10.0.0.2", 8080))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (service(**SPU), DomainService("s", TWO, access=OWN)),
        (service({f"{K}access-domain": "*"}, **SPU), DomainService("s", TWO, access=None)),
        (
            service({f"{K}access-domain": "bob, carol"}, **SPU),
            DomainService("s", TWO, access=frozenset({"bob", "carol"})),
        ),
        (service({f"{K}access-domain": ""}, **SPU), DomainService("s", TWO, access=frozenset())),
        (service(labels={f"{K}port-scope": "Domain"}, **SPU), DomainService("s", TWO, access=OWN, domain_only=True)),
        (service(labels={f"{K}port-scope": "Local"}, **SPU), None),
        (service({f"{K}protocol": "SOAP"}, **SPU), SnapshotProblem),
        (
            service(type="ExternalName", externalName="db.example"),
            DomainService("s", (SocketAddress("db.example", 80),), access=OWN),
        ),
        (
            service(sessionAffinity="ClientIP", **SPU),
            DomainService("s", TWO, access=OWN, affinity=Affinity(client_address=True)),
        ),
        (
            service({f"{K}sticky-session-cookie": "C", f"{K}sticky-session-ttl": "60s"}, **SPU),
            DomainService("s", TWO, access=OWN, affinity=Affinity(cookie="C", cookie_seconds=60)),
        ),
        (service({f"{K}sticky-session-cookie": "C%; x"}, **SPU), DomainService("s", TWO, access=OWN)),
    ],
    ids=[
        "plain is the domain's own",
        "access everybody",
        "access",
        "access nobody",
        "domain",
        "local",
        "protocol",
        "external",
        "affinity",
        "cookie",
        "no cookie",
    ],
)
def test_services(given: network.Service, expected: Any) -> None:
    read = service_of(given, ENDPOINTS)
    assert isinstance(read, SnapshotProblem) if expected is SnapshotProblem else read == expected


def test_a_service_without_endpoints_has_none() -> None:
    read = service_of(service(**SPU), None)
    assert isinstance(read, DomainService)
    assert read.endpoints == ()


def test_limits_of_a_task_are_one_each_destination() -> None:
    found = limits_of(
        [
            service({f"{K}task-id": "t", f"{K}bandwidth-limit-bob": "20", f"{K}bandwidth-limit-joe": "0"}),
            service({f"{K}task-id": "t", f"{K}bandwidth-limit-bob": "10"}),
            service({f"{K}bandwidth-limit-bob": "5"}),
        ]
    )
    assert found == (TaskBandwidthLimit("t", "bob", 10),)


def domain_route(namespace: str = "alice", **spec: Any) -> dict[str, Any]:
    base = {"source": "alice", "destination": "bob", "authenticationType": "Token", **spec}
    return {"metadata": {"name": "alice-bob", "namespace": namespace}, "spec": base}


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_whole_route() -> None:
    given = domain_route(
        endpoint={
            "host": "bob.example",
            "ports": [{"name": "h", "protocol": "HTTP", "port": 1080, "isTLS": True, "pathPrefix": "/x"}],
        },
        sourceWhiteIPList=["10.0.0.0/8"],
        requestHeadersToAdd={"b": "2", "a": "1"},
        bodyEncryption={"algorithm": "AES"},
        mTLSConfig={"tlsCA": b64(pem("bob")), "sourceClientCert": b64(pem("alice"))},
    )
    assert route_of(given, tokens=[SecretValue("t")], certificates=["pin"]) == Route(
        "alice",
        "bob",
        host="bob.example",
        ports=(RoutePort("h", 1080, tls=True, path_prefix="/x"),),
        tokens=(SecretValue("t"),),
        certificates=("pin",),
        authority=pem("bob"),
        source_addresses=("10.0.0.0/8",),
        headers=(("a", "1"), ("b", "2")),
        body_encryption="AES",
    )


def test_the_destination_pins_the_sources_client_certificate() -> None:
    given = domain_route("bob", authenticationType="MTLS", mTLSConfig={"sourceClientCert": b64(pem("alice"))})
    read = route_of(given)
    assert isinstance(read, Route)
    assert (read.authentication, read.certificates) == (Authentication.MTLS, (pem("alice"),))


@pytest.mark.parametrize(
    ("transit", "via", "tunnel"),
    [
        ({"domain": {"domainID": "joe"}}, "joe", False),
        ({"transitMethod": "THIRD-DOMAIN", "domain": {"domainID": "joe"}}, "joe", False),
        ({"transitMethod": "REVERSE-TUNNEL"}, "", True),
        ({"transitMethod": "THIRD-DOMAIN"}, None, False),
    ],
)
def test_transit(transit: dict[str, Any], via: str | None, tunnel: bool) -> None:
    read = route_of(domain_route(transit=transit))
    if via is None:
        assert isinstance(read, SnapshotProblem)
    else:
        assert isinstance(read, Route)
        assert (read.via, read.tunnel) == (via, tunnel)


@pytest.mark.parametrize(
    ("said", "expected"), [({}, None), ("hop-by-hop", True), ("end-to-end", False), ("otherwise", None)]
)
def test_how_a_route_is_carried(said: Any, expected: bool | None) -> None:
    given = domain_route(transit={"domain": {"domainID": "joe"}})
    given["metadata"]["annotations"] = {"coterie.io/transit": said} if said else None
    read = route_of(given)
    assert isinstance(read, Route)
    assert read.hop_by_hop is expected


@pytest.mark.parametrize("spec", [{"authenticationType": "Word"}, {"mTLSConfig": {"tlsCA": "%%%"}}])
def test_unreadable_routes_are_problems(spec: dict[str, Any]) -> None:
    assert isinstance(route_of(domain_route(**spec)), SnapshotProblem)


# ---- Envoy's answers ----

STATS = """\
cluster_manager.cds.version_text: "new"
cluster_manager.cds.update_rejected: 2
cluster_manager.cds.update_failure: 1
listener_manager.lds.version_text: ""
sds.peers.version_text: "old"
sds.peers.update_rejected: 0
server.live: 1
server.total_connections: 7
"""


def test_reading_back() -> None:
    seen = read_stats(STATS)
    assert (seen.live, seen.connections, seen.refusals) == (True, 7, 3)
    assert pending({"cds.json": "new", "lds.json": "x", "sds-own.json": "y", "sds-peers.json": "z"}, seen) == (
        "lds.json",
        "sds-peers.json",
    )


def test_reasons_do_not_repeat_what_was_refused() -> None:
    log = 'a warning config: update rejected: field is bad\nUnable to parse JSON as proto (INVALID): {"token": "secret"}\n'
    assert refusals(log + log) == ("rejected: field is bad", "Unable to parse JSON as proto (INVALID):")
