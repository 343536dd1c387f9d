"""From API objects to what the gateway is told: plain data in, plain data out."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_kit import pem

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kube.api.types import network
from coterie.kuscia.api.labels import COTERIE_PARTNER_CERTIFICATE
from coterie.kuscia.api.types.domain import Domain, DomainRoute, DomainRouteStatus, Gateway
from coterie.kuscia.gateway.addresses import PodNetwork, Protocol, SocketAddress
from coterie.kuscia.gateway.clusters import clusters
from coterie.kuscia.gateway.heartbeat import members_of, network_status
from coterie.kuscia.gateway.model import Route, RoutePort, ServiceProtocol, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import ORIGIN, SOURCE
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.routes import external_routes
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.gateway.snapshot import snapshot
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects, InputCache, api_callers, inputs_of
from coterie.kuscia.gateway.watched_objects import (
    can_be_called,
    domain_matters,
    endpoints_matter,
    route_matters,
    service_matters,
)
from coterie.kuscia.identity.domain_identity import DomainIdentity

PLACES = GatewayPaths(Path("/x/gateway"), Path("/x/run"), Path("/x/logs"))
SETTINGS = GatewaySettings("bob", "gw-0")
LITE = replace(SETTINGS, control_plane=False, master=MasterEndpoint("hq.example.com", 1080, tls=True, prefix="/bob"))
API = SocketAddress("127.0.0.1", 6443)


@cache
def identity() -> DomainIdentity:
    key = pki.new_key("rsa")
    made = pki.self_signed_ca("bob", key, now=datetime.now(UTC))
    text = pki.certificate_pem(made.certificate).decode()
    return DomainIdentity("bob", Path("/x/domain.crt"), Path("/x/domain.key"), text, key)  # type: ignore[arg-type]


def cert(name: str) -> str:
    return base64.b64encode(pem(name).encode()).decode()


def a_domain(name: str, **spec: Any) -> Domain:
    given = spec if "cert" in spec else {"cert": cert(name), **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": given}, Domain)


def a_route(source: str, destination: str, namespace: str = "bob", annotations: Any = None, **spec: Any) -> DomainRoute:
    body = {
        "source": source,
        "destination": destination,
        "authenticationType": "Token",
        "tokenConfig": {"tokenGenMethod": "RSA-GEN"},
        **spec,
    }
    meta = {"name": f"{source}-{destination}", "namespace": namespace, "annotations": annotations or {}}
    return msgspec.convert({"metadata": meta, "spec": body}, DomainRoute)


ENDPOINT = {"host": "alice.example.com", "ports": [{"name": "http", "protocol": "HTTP", "port": 1080, "isTLS": True}]}


def a_service(name: str, **more: Any) -> network.Service:
    spec = {"ports": [{"name": "http", "port": 80}]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "bob", **more}, "spec": spec}, network.Service)


def endpoints(name: str, *ports: int) -> network.Endpoints:
    subset = {"addresses": [{"ip": "10.0.0.7"}], "ports": [{"name": "http", "port": port} for port in ports]}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "bob"}, "subsets": [subset] if ports else []}, network.Endpoints
    )


def made(world: GatewayObjects, settings: GatewaySettings = SETTINGS) -> SnapshotInputs:
    inputs, problems = inputs_of(world, settings, identity(), PLACES)
    assert problems == []
    return inputs


def refused(world: GatewayObjects, settings: GatewaySettings = SETTINGS) -> list[SnapshotProblem]:
    return inputs_of(world, settings, identity(), PLACES)[1]


def test_services_have_the_addresses_of_their_endpoints() -> None:
    inputs = made(
        GatewayObjects(
            services=[a_service("echo"), a_service("empty"), a_service("local", labels={"kuscia.secretflow/port-scope": "Local"})],
            endpoints={"echo": endpoints("echo", 8080)},
        ),
        LITE,
    )  # fmt: skip
    assert [(each.name, each.endpoints) for each in inputs.services] == [
        ("echo", (SocketAddress("10.0.0.7", 8080),)),
        ("empty", ()),
    ]


def test_a_route_has_its_tokens_and_the_partners_certificate() -> None:
    token = SecretValue("t1")
    world = GatewayObjects(
        routes=[a_route("alice", "bob"), a_route("bob", "alice", endpoint=ENDPOINT), a_route("x", "y")],
        domains={"alice": a_domain("alice")},
        tokens={"alice-bob": ((3, token),)},
    )
    inbound, outbound = made(world).routes
    assert (inbound.source, inbound.tokens, inbound.certificates) == ("alice", (token,), (pem("alice"),))
    assert inbound.revisions == (3,)
    assert (outbound.host, outbound.certificates, outbound.tokens) == ("alice.example.com", (pem("alice"),), ())


def test_a_lite_reads_the_certificate_from_the_route() -> None:
    route = a_route("alice", "bob", annotations={COTERIE_PARTNER_CERTIFICATE: cert("alice")})
    assert made(GatewayObjects(routes=[route]), LITE).routes[0].certificates == (pem("alice"),)


def test_an_authority_takes_the_place_of_the_pin_where_we_dial() -> None:
    config = {"tlsCA": cert("joe")}
    world = GatewayObjects(
        routes=[a_route("bob", "alice", endpoint=ENDPOINT, mTLSConfig=config)], domains={"alice": a_domain("alice")}
    )
    route = made(world).routes[0]
    assert (route.authority, route.certificates) == (pem("joe"), ())


def test_a_lite_finds_its_control_plane_by_its_configuration() -> None:
    route = made(GatewayObjects(routes=[a_route("bob", "hq")]), LITE).routes[0]
    assert (route.host, route.aliases) == ("hq.example.com", ("master",))
    assert route.ports == (RoutePort("http", 1080, tls=True, path_prefix="/bob"),)


@pytest.mark.parametrize(
    ("objects", "tokens"),
    [([], {}), (["hq"], {}), (["hq"], {"bob-hq": ((1, SecretValue("older")),)})],
    ids=["no-object", "object-without-token", "object-with-token"],
)
def test_the_way_to_the_control_plane_is_as_the_link_knows_it(objects: list[str], tokens: Any) -> None:
    agreed = Route("bob", "hq", host="agreed", tokens=(SecretValue("newest"),))
    world = GatewayObjects(routes=[a_route("bob", name) for name in objects], tokens=tokens, master=agreed)
    assert [(each.host, each.tokens) for each in made(world, LITE).routes] == [("agreed", (SecretValue("newest"),))]


def test_only_a_control_plane_is_called_master_and_lets_newcomers_in() -> None:
    plane, lite = made(GatewayObjects()), made(GatewayObjects(), LITE)
    assert (plane.aliases, plane.newcomers) == (("master",), True)
    assert (lite.aliases, lite.newcomers) == ((), False)
    assert made(GatewayObjects(), replace(SETTINGS, protocol=Protocol.TLS)).newcomers is False


def test_a_lite_lets_those_in_who_show_no_certificate_only_where_a_route_to_it_says_so() -> None:
    settings = replace(SETTINGS, control_plane=False)
    weak = {"coterie.io/kuscia-wire": "no-client-certificate"}
    to_us, from_us = (
        a_route("alice", "bob", annotations=weak),
        a_route("bob", "alice", annotations=weak, endpoint=ENDPOINT),
    )
    assert made(GatewayObjects(routes=[to_us]), settings).newcomers is True
    assert made(GatewayObjects(routes=[from_us]), settings).newcomers is False


def test_a_route_that_asks_for_an_unknown_form_is_not_used() -> None:
    world = GatewayObjects(routes=[a_route("alice", "bob", annotations={"coterie.io/kuscia-wire": "trust-everybody"})])
    (problem,) = refused(world)
    assert problem.about == "route alice-bob" and "'trust-everybody' is none of" in problem.message
    assert inputs_of(world, SETTINGS, identity(), PLACES)[0].routes == ()


@pytest.mark.parametrize(
    ("domain", "route", "allowed"),
    [
        (a_domain("alice"), a_route("alice", "bob"), True),
        (a_domain("alice", role="partner", interConnProtocols=["kuscia"]), a_route("alice", "bob"), True),
        (a_domain("alice", role="partner"), a_route("alice", "bob"), True),
        (a_domain("alice", role="partner", interConnProtocols=["bfia"]), a_route("alice", "bob"), False),
        (a_domain("alice", role="partner", master="zed"), a_route("alice", "bob"), False),
        (a_domain("alice"), a_route("bob", "alice", endpoint=ENDPOINT), False),
        (a_domain("alice"), a_route("alice", "bob", transit={"domain": {"domainID": "joe"}}), False),
        (a_domain("carol"), a_route("alice", "bob"), False),
    ],
    ids=["lite", "partner", "partner-silent", "bfia", "partner-lite", "other-way", "carried", "unknown"],
)
def test_who_may_call_the_api(domain: Domain, route: DomainRoute, allowed: bool) -> None:
    assert api_callers([route], {domain.metadata.name: domain}, "bob") == ({"alice"} if allowed else set())


@pytest.mark.parametrize(
    ("headers", "bearers", "credential"),
    [
        ({}, {"alice": SecretValue("own")}, "Bearer own"),
        ({"Authorization": "Bearer written"}, {"alice": SecretValue("own")}, "Bearer written"),
        ({}, {}, None),
    ],
    ids=["asked-for", "written", "not-yet"],
)
def test_the_api_is_a_service_with_a_credential_per_caller(
    headers: dict[str, str], bearers: dict[str, SecretValue], credential: str | None
) -> None:
    world = GatewayObjects(
        routes=[a_route("alice", "bob", **({"requestHeadersToAdd": headers} if headers else {}))],
        domains={"alice": a_domain("alice")},
        bearers=bearers,
        api=API,
    )
    service = made(world).services[-1]
    assert (service.name, service.endpoints, service.protocol) == ("apiserver", (API,), ServiceProtocol.HTTP)
    expected = () if credential is None else (("alice", SecretValue(credential)),)
    assert service.credentials == expected
    assert service.access == frozenset(name for name, _ in expected)
    assert not any("written" in repr(part) or "own" in repr(part) for part in (service.credentials or ()))


def test_a_credential_goes_only_to_the_api_and_only_with_who_speaks_for_itself() -> None:
    world = GatewayObjects(
        routes=[a_route("alice", "bob")],
        services=[a_service("echo")],
        endpoints={"echo": endpoints("echo", 8080)},
        domains={"alice": a_domain("alice")},
        tokens={"alice-bob": ((1, SecretValue("t")),)},
        bearers={"alice": SecretValue("own")},
        api=API,
    )
    table = snapshot(made(world)).files["rds-external.json"][0]
    hosts = {each["name"]: each for each in table["virtual_hosts"]}
    assert "Bearer own" not in str({**hosts, "service-apiserver-external": None})
    allowed, otherwise = hosts["service-apiserver-external"]["routes"]
    assert {each["name"]: each["string_match"]["exact"] for each in allowed["match"]["headers"]} == {
        "kuscia-source": "alice",
        "kuscia-origin-source": "alice",
    }
    assert allowed["request_headers_to_add"][0]["header"] == {"key": "authorization", "value": "Bearer own"}
    assert otherwise["direct_response"]["status"] == 403
    assert hosts["service-apiserver-external"]["domains"] == ["apiserver.bob.svc", "apiserver.master.svc"]


@pytest.mark.parametrize(
    ("world", "about", "words"),
    [
        (GatewayObjects(services=[a_service("apiserver")], api=API), "service apiserver", "the control plane's own"),
        (
            GatewayObjects(routes=[a_route("alice", "bob", annotations={COTERIE_PARTNER_CERTIFICATE: "?"})]),
            "route alice-bob",
            "not base64",
        ),
        (
            GatewayObjects(services=[a_service("odd", annotations={"kuscia.secretflow/protocol": "smtp"})]),
            "service odd",
            "is none of",
        ),
    ],
    ids=["taken-name", "certificate", "protocol"],
)
def test_what_cannot_be_read_is_said(world: GatewayObjects, about: str, words: str) -> None:
    assert [(each.about, words in each.message) for each in refused(world)] == [(about, True)]


def test_sisters_are_reached_at_the_internal_port() -> None:
    status = {"address": "10.0.0.8", "uptime": "", "heartbeatTime": "", "publicKey": "", "version": ""}
    sister = msgspec.convert({"metadata": {"name": "gw-1"}, "status": status}, Gateway)
    silent = msgspec.convert({"metadata": {"name": "gw-2"}}, Gateway)
    assert made(GatewayObjects(peer_gateways=[sister, silent])).peer_gateways == (SocketAddress("10.0.0.8", 80),)


def test_unchanged_objects_are_not_read_again_and_changed_ones_are() -> None:
    memory = InputCache()
    echo, other, route = a_service("echo"), a_service("other"), a_route("alice", "bob")
    world = GatewayObjects(routes=[route], services=[echo, other], domains={"alice": a_domain("alice")})
    first, _ = inputs_of(world, SETTINGS, identity(), PLACES, memory=memory)
    later = replace(world, tokens={"alice-bob": ((1, SecretValue("t")),)}, endpoints={"echo": endpoints("echo", 1)})
    second, _ = inputs_of(later, SETTINGS, identity(), PLACES, memory=memory)
    assert first.services[1] is second.services[1]
    assert second.services[0].endpoints == (SocketAddress("10.0.0.7", 1),)
    assert second.routes[0].tokens == (SecretValue("t"),)
    gone, _ = inputs_of(replace(later, services=[other], routes=[]), SETTINGS, identity(), PLACES, memory=memory)
    assert [each.name for each in gone.services] == ["other"]
    assert second == inputs_of(later, SETTINGS, identity(), PLACES)[0]


# ---- which changes are news ----


def with_status(heartbeat: str, token: str = "a") -> DomainRoute:
    tokens = [{"isReady": True, "token": token, "revision": 1, "heartBeatTime": heartbeat}]
    status = {"isDestinationAuthorized": True, "isDestinationUnreachable": False, "tokenStatus": {"tokens": tokens}}
    return msgspec.structs.replace(a_route("alice", "bob"), status=msgspec.convert(status, DomainRouteStatus))


@pytest.mark.parametrize(
    ("matters", "old", "new", "news"),
    [
        (route_matters, with_status("2026-01-01T00:00:00Z"), with_status("2026-01-01T00:00:15Z"), False),
        (route_matters, with_status("2026-01-01T00:00:00Z"), with_status("2026-01-01T00:00:00Z", "b"), True),
        (route_matters, a_route("alice", "bob"), a_route("alice", "bob", sourceWhiteIPList=["10.0.0.1"]), True),
        (service_matters, a_service("echo"), a_service("echo", resourceVersion="2"), False),
        (service_matters, a_service("echo"), a_service("echo", annotations={"kuscia.secretflow/access-domain": ""}), True),
        (endpoints_matter, endpoints("echo", 1), endpoints("echo", 1), False),
        (endpoints_matter, endpoints("echo", 1), endpoints("echo", 2), True),
        (domain_matters, a_domain("alice"), a_domain("alice"), False),
        (domain_matters, a_domain("alice"), a_domain("alice", cert=cert("joe")), True),
    ],
    ids=[
        "heartbeat", "token", "route-spec", "service-version", "service-access", "endpoints-same", "endpoints",
        "domain-same", "domain-cert",
    ],
)  # fmt: skip
def test_heartbeats_are_no_news(matters: Any, old: Any, new: Any, news: bool) -> None:
    assert matters(old, new) is news


def test_a_service_without_endpoints_can_wait() -> None:
    outside = msgspec.structs.replace(
        a_service("s"), spec=network.ServiceSpec(type="ExternalName", external_name="x.y")
    )
    assert can_be_called(outside, None)
    assert can_be_called(a_service("s"), endpoints("s", 1))
    assert not can_be_called(a_service("s"), endpoints("s"))
    assert not can_be_called(a_service("s"), None)


# ---- heartbeat ----


def test_envoys_counts_become_the_network_status() -> None:
    stats = "\n".join(
        f"cluster.{name}.membership_{what}: {count}"
        for name, total, healthy in (
            ("bob-to-alice-http", 2, 1), ("service-echo", 3, 3), ("service-outside", 1, 0), ("handshake", 1, 1),
            ("direct", 7, 7),
        )
        for what, count in (("total", total), ("healthy", healthy))
    )  # fmt: skip
    outside = msgspec.structs.replace(
        a_service("outside"), spec=msgspec.convert({"type": "ExternalName", "externalName": "x.y"}, network.ServiceSpec)
    )
    told = network_status(
        members_of(stats),
        [a_route("bob", "alice", endpoint=ENDPOINT), a_route("alice", "bob", endpoint=ENDPOINT)],
        [a_service("echo"), outside, a_service("single"), a_service("empty")],
        [endpoints("echo", 1), endpoints("unknown", 1), endpoints("single", 1), endpoints("empty")],
        "bob",
    )
    assert [(each["type"], each["name"], each["totalEndpointsCount"], each["healthyEndpointsCount"]) for each in told] == [
        ("DomainRoute", "bob-to-alice-http", 2, 1),
        ("Endpoints", "echo", 3, 3),
        ("Endpoints", "single", 1, 1),
        ("Service", "outside", 1, 0),
    ]  # fmt: skip


def test_the_reporter_is_a_service_for_the_lites_of_a_control_plane() -> None:
    world = GatewayObjects(
        routes=[a_route("alice", "bob"), a_route("carol", "bob")],
        services=[a_service("reporter")],
        domains={"alice": a_domain("alice"), "carol": a_domain("carol", role="partner")},
    )
    there = SocketAddress("127.0.0.1", 8050)
    inputs, problems = inputs_of(world, replace(SETTINGS, reporter=there), identity(), PLACES)
    assert [(each.about, "take another one" in each.message) for each in problems] == [("service reporter", True)]
    found = [each for each in inputs.services if each.name == "reporter"]
    assert [(each.endpoints, each.protocol, each.access) for each in found] == [
        ((there,), ServiceProtocol.HTTP, frozenset({"alice"}))
    ]
    assert all(each.endpoints != (there,) for each in made(world, LITE).services)


def test_kuscia_api_is_a_socket_for_the_lites_of_a_control_plane() -> None:
    world = GatewayObjects(
        routes=[a_route("alice", "bob"), a_route("carol", "bob")],
        services=[a_service("kusciaapi")],
        domains={"alice": a_domain("alice"), "carol": a_domain("carol", role="partner")},
    )
    there = SocketAddress("/run/coterie/kapi.sock", 0)
    inputs, problems = inputs_of(world, replace(SETTINGS, kuscia_api=there), identity(), PLACES)
    assert [each.about for each in problems] == ["service kusciaapi"]
    (found,) = [each for each in inputs.services if each.name == "kusciaapi"]
    assert (found.endpoints, found.access) == ((there,), frozenset({"alice"}))
    (led,) = [each for each in clusters(inputs)[0] if each["name"] == "service-kusciaapi"]
    (endpoint,) = led["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"] == {"pipe": {"path": str(there)}}
    assert "type" not in led


def test_checkpoints_are_for_partners_control_planes() -> None:
    """Not for lites, of ours or of a partner, not for who has no route, not at a lite."""
    world = GatewayObjects(
        routes=[a_route(name, "bob") for name in ("alice", "carol", "dave", "erin")] + [a_route("bob", "frank")],
        domains={
            "alice": a_domain("alice", role="partner"),
            "carol": a_domain("carol"),
            "dave": a_domain("dave", role="partner", master="alice", cert=""),
            "frank": a_domain("frank", role="partner", cert=""),
        },
    )
    inbox = inputs_of(world, SETTINGS, identity(), PLACES)[0].evidence
    assert inbox is not None
    assert (inbox.callers, inbox.socket) == (frozenset({"alice"}), PLACES.witness_socket)
    assert inputs_of(world, LITE, identity(), PLACES)[0].evidence is None
    assert made(GatewayObjects()).evidence is None


def test_the_message_queue_is_for_partners_with_a_route_of_their_own() -> None:
    """At lites too; nowhere without a network of the pods, which is how engines are known."""
    world = GatewayObjects(routes=[a_route("alice", "bob"), a_route("bob", "frank"), a_route("bob", "bob")])
    network = PodNetwork("100.96.0.0/16", "100.96.128.0/17", SocketAddress("100.96.0.1", 80))
    for settings in (SETTINGS, LITE):
        served = replace(settings, transport=True, pods=network)
        inbox = inputs_of(world, served, identity(), PLACES)[0].transport
        assert inbox is not None and inbox.callers == {"alice"}
        assert (inbox.partners, inbox.engines) == (PLACES.transport_socket, PLACES.transport_engines_socket)
        assert inputs_of(world, replace(served, pods=None), identity(), PLACES)[0].transport is None
        assert inputs_of(world, replace(served, transport=False), identity(), PLACES)[0].transport is None


def test_bfia_requests_are_for_partners_that_speak_it() -> None:
    """Seven paths, each with its method, under the name that our gateway gives; not for who has no route, not at a lite."""
    speaks = {"role": "partner", "interConnProtocols": ["bfia"]}
    world = GatewayObjects(
        routes=[a_route(name, "bob") for name in ("alice", "carol")],
        domains={
            "alice": a_domain("alice", **speaks),
            "carol": a_domain("carol", role="partner"),
            "dave": a_domain("dave", cert="", **speaks),
        },
    )
    inputs = inputs_of(world, SETTINGS, identity(), PLACES)[0]
    assert inputs.bfia is not None
    assert (inputs.bfia.callers, inputs.bfia.socket) == (frozenset({"alice"}), PLACES.bfia_socket)
    assert inputs_of(world, LITE, identity(), PLACES)[0].bfia is None
    assert made(GatewayObjects()).bfia is None
    (host,) = [
        each for each in external_routes(inputs, frozenset())["virtual_hosts"] if each["name"] == "interconn-scheduler"
    ]
    *opened, closed = host["routes"]
    assert closed["direct_response"]["status"] == 403
    found = {}
    for each in opened:
        headers = {match["name"]: match["string_match"]["exact"] for match in each["match"]["headers"]}
        assert (headers[SOURCE], headers[ORIGIN]) == ("alice", "alice")
        found[each["match"]["path"].removeprefix("/v1/interconn/schedule/")] = headers[":method"]
    posts = ("job/create", "job/start", "job/stop", "task/start", "task/stop", "task/poll")
    assert found == {**dict.fromkeys(posts, "POST"), "job/status_all": "GET"}
    assert "bfia" in [each["name"] for each in clusters(inputs)[0]]
