"""The configuration as plain data: order, refusals, and what must never be in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import identity, pem
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.pki import fingerprint, load_certificate
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import PodNetwork, Protocol, SocketAddress
from coterie.kuscia.gateway.model import (
    Affinity,
    Authentication,
    DomainService,
    PodCaller,
    Route,
    RoutePort,
    ServiceProtocol,
    SnapshotInputs,
    SnapshotProblem,
    TaskBandwidthLimit,
    TransitGrant,
)
from coterie.kuscia.gateway.snapshot import EnvoyResources, NoIdentity, pod_rules_file, snapshot
from coterie.kuscia.gateway.xds import bridged, render

HERE = SnapshotInputs(
    domain="alice",
    internal=SocketAddress("127.0.1.1", 80),
    external=SocketAddress("127.0.1.1", 1080),
    handshake=SocketAddress("/run/gateway/handshake.sock", 0),
    node_socket=SocketAddress("/run/gateway/gw.sock", 0),
    directory=Path("/xds"),
    logs=Path("/logs"),
    identity=identity("alice"),
)
TO_BOB = Route(
    "alice", "bob", host="bob.example", ports=(RoutePort("http", 1080, tls=True),), tokens=(SecretValue("out-1"), SecretValue("out-2")),
    certificates=(pem("bob"),),
)  # fmt: skip
FROM_BOB = Route("bob", "alice", tokens=(SecretValue("in-1"), SecretValue("in-2")), certificates=(pem("bob"),))
PIN = fingerprint(load_certificate(pem("bob").encode()))


def made(**changes: Any) -> EnvoyResources:
    return snapshot(replace(HERE, **changes))


def text(resources: EnvoyResources, file: str = "") -> str:
    return json.dumps(resources.files[file] if file else resources.files)


def host(resources: EnvoyResources, side: str, name: str) -> dict[str, Any]:
    (table,) = resources.files[f"rds-{side}.json"]
    return next(each for each in table["virtual_hosts"] if each["name"] == name)


def cluster(resources: EnvoyResources, name: str) -> dict[str, Any]:
    return next(each for each in resources.clusters if each["name"] == name)


# ---- order ----

services = st.builds(
    DomainService,
    st.sampled_from(["a", "b", "c", "d"]),
    st.tuples(st.builds(SocketAddress, st.sampled_from(["10.0.0.1", "10.0.0.2"]), st.integers(1, 9))),
    st.sampled_from(list(ServiceProtocol)),
    access=st.none() | st.frozensets(st.sampled_from(["bob", "carol", "joe"])),
    domain_only=st.booleans(),
)
routes = st.builds(
    Route,
    st.sampled_from(["alice", "bob", "carol"]),
    st.sampled_from(["alice", "bob", "carol"]),
    st.sampled_from(list(Authentication)),
    host=st.sampled_from(["", "10.0.0.1"]),
    ports=st.sampled_from([(), (RoutePort("http", 1),), (RoutePort("h", 1, tls=True), RoutePort("g", 2, grpc=True))]),
    via=st.sampled_from(["", "joe", "bob"]),
    tunnel=st.booleans(),
    tokens=st.sampled_from([(), (SecretValue("t"),)]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(routes, max_size=5, unique_by=lambda each: (each.source, each.destination)),
    st.lists(services, max_size=4, unique_by=lambda each: each.name),
    st.randoms(use_true_random=False),
)
def test_the_order_of_what_comes_in_does_not_matter(
    listed: list[Route], served: list[DomainService], random: Any
) -> None:
    one = made(routes=tuple(listed), services=tuple(served))
    random.shuffle(listed)
    random.shuffle(served)
    other = made(routes=tuple(listed), services=tuple(served))
    assert render(one.files.values()) == render(other.files.values())
    assert one.problems == other.problems
    for side in ("external", "internal"):
        (table,) = one.files[f"rds-{side}.json"]
        domains = [domain for each in table["virtual_hosts"] for domain in each["domains"]]
        assert len(domains) == len(set(domains))
        known = {each["name"] for each in one.clusters}
        routed = [
            route["route"]["cluster"] for each in table["virtual_hosts"] for route in each["routes"] if "route" in route
        ]
        assert set(routed) <= known


def test_files_are_written_before_those_that_name_them() -> None:
    order = list(made(routes=(TO_BOB, FROM_BOB)).files)
    assert order == [
        "sds-own.json", "sds-peers.json", "sds-tunnels.json", "ecds-auth.json", "ecds-pods.json", "cds.json",
        "rds-external.json", "rds-internal.json", "lds.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"routes": (TO_BOB, FROM_BOB)},
        {"routes": (replace(FROM_BOB, tokens=(SecretValue("x"),), source_addresses=("10.0.0.0/8",)),)},
        {"services": (DomainService("a", (SocketAddress("10.0.0.1", 1),)),)},
        {"limits": (TaskBandwidthLimit("t", "bob", 1),)},
    ],
    ids=["routes", "tokens", "services", "limits"],
)
def test_nothing_in_operation_changes_a_listener(changes: dict[str, Any]) -> None:
    assert made(**changes).listeners == made().listeners


def test_secrets_are_not_shown_and_keys_are_only_named() -> None:
    resources = made(routes=(TO_BOB, FROM_BOB))
    assert "out-2" not in repr(resources)
    assert "PRIVATE" not in text(resources)
    assert str(identity("alice").key) in text(resources, "sds-own.json")


def test_the_newest_token_is_sent_and_all_are_accepted() -> None:
    resources = made(routes=(TO_BOB, FROM_BOB))
    assert "out-2" in text(resources, "rds-internal.json")
    assert "out-1" not in text(resources)
    accepted = text(resources, "ecds-auth.json")
    assert f"{PIN}|bob|in-1" in accepted
    assert f"{PIN}|bob|in-2" in accepted


# ---- refusals ----

NO_PIN = replace(FROM_BOB, certificates=())
REFUSED = {
    "MTLS without a pin": ((NO_PIN,), {}, "no certificate of bob is known"),
    "certificates nobody asks for": (
        (replace(FROM_BOB, authentication=Authentication.MTLS),), {"protocol": Protocol.TLS}, "does not ask",
    ),
    "noop as a token": ((replace(FROM_BOB, tokens=(SecretValue("noop"),)),), {}, "is no token"),
    "no certificate": ((replace(FROM_BOB, certificates=("x",)),), {}, "not a certificate"),
    "not an address": ((replace(FROM_BOB, source_addresses=("x",)),), {}, "neither address nor CIDR"),
    "TLS to anybody": ((replace(TO_BOB, certificates=()),), {}, "neither a certificate of bob"),
    "body encryption": ((replace(TO_BOB, body_encryption="AES"),), {}, "nothing is sent in clear"),
    "tunnel of anybody": ((replace(TO_BOB, tunnel=True, certificates=()),), {}, "no certificate of bob is known"),
    "tunnel to nowhere": ((replace(TO_BOB, tunnel=True),), {"external": None}, "no public port either"),
    "no address": ((replace(TO_BOB, host=""),), {}, "no address of bob"),
    "no carrier": ((replace(TO_BOB, via="joe"),), {}, "no direct route to joe"),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "changes", "why"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_done_safely_is_told_and_not_done(
    listed: tuple[Route, ...], changes: dict[str, Any], why: str
) -> None:
    resources = made(routes=listed, **changes)
    assert any(why in problem.message for problem in resources.problems), resources.problems
    if listed[0].source == "alice":
        assert all("direct_response" in each for each in host(resources, "internal", "alice-to-bob")["routes"])
    elif "x" not in listed[0].source_addresses:
        assert "|bob|" not in text(resources, "ecds-auth.json")


def test_an_unreadable_address_list_allows_nobody() -> None:
    rules = text(made(routes=(replace(FROM_BOB, source_addresses=("x",)),)), "ecds-auth.json")
    assert '"DENY"' in rules
    assert '"ALLOW"' not in rules


def test_tls_needs_a_certificate_and_plain_text_none() -> None:
    with pytest.raises(NoIdentity):
        made(identity=None)
    assert "transport_socket" not in text(made(identity=None, protocol=Protocol.NOTLS))


# ---- pods with a network of their own ----

PODS = PodNetwork(
    "100.96.0.0/16",
    "100.96.128.0/17",
    SocketAddress("100.96.0.1", 80),
    cluster="100.96.0.0/14",
    namespace="/run/netns-1",
)


def test_an_engine_pod_changes_one_file() -> None:
    service = DomainService("psi", (SocketAddress("100.96.128.2", 8080),))
    before = made(pods=PODS, services=(service,), routes=(TO_BOB, FROM_BOB))
    callers = (PodCaller("100.96.128.2", frozenset({"psi.bob.svc"})),)
    after = made(pods=PODS, services=(service,), routes=(TO_BOB, FROM_BOB), callers=callers)
    assert [name for name in after.files if after.files[name] != before.files[name]] == ["ecds-pods.json"]
    assert (pod_rules_file(replace(HERE, pods=PODS, callers=callers))) == {
        "ecds-pods.json": after.files["ecds-pods.json"]
    }


def test_the_pods_namespace_is_used_for_pods_only() -> None:
    inside = {"address": "0.0.0.0", "port_value": 0, "network_namespace_filepath": "/run/netns-1"}
    services = (
        DomainService("pod", (SocketAddress("100.96.0.2", 1),)),
        DomainService("grpc", (SocketAddress("100.96.0.2", 1),), ServiceProtocol.GRPC),
        DomainService("tls", (SocketAddress("100.96.0.2", 1),), ServiceProtocol.HTTPS),
        DomainService("other-node", (SocketAddress("100.98.128.2", 1),)),
        DomainService("machine", (SocketAddress("10.0.0.1", 1),)),
        DomainService("named", (SocketAddress("db.example", 1),)),
        DomainService("socket", (SocketAddress("/run/x.sock", 0),)),
    )
    resources = made(pods=PODS, services=services, routes=(TO_BOB, FROM_BOB))
    used = {
        each.name: host(resources, "internal", f"service-{each.name}-internal")["routes"][0]["route"]["cluster"]
        for each in services
    }
    bound = {name for name, found in used.items() if "upstream_bind_config" in cluster(resources, found)}
    assert bound == {"pod", "grpc", "tls", "other-node"}
    assert cluster(resources, used["grpc"])["upstream_bind_config"] == {"source_address": inside}
    assert "upstream_bind_config" not in cluster(resources, "alice-to-bob-http")
    (listener,) = (each for each in resources.listeners if each["name"] == "internal")
    assert listener["address"] == {
        "socket_address": {"address": "100.96.0.1", "port_value": 80, "network_namespace_filepath": "/run/netns-1"}
    }
    # Inside it there is nothing to enter.
    assert "network_namespace_filepath" not in text(made(pods=replace(PODS, namespace=""), services=services))


def test_endpoints_inside_and_outside_the_pods_network() -> None:
    mixed = DomainService("both", (SocketAddress("100.96.0.2", 1), SocketAddress("10.0.0.1", 2)))
    resources = made(pods=PODS, services=(mixed,))
    assert [each.about for each in resources.problems] == ["service both"]
    assert "10.0.0.1:2" in resources.problems[0].message
    assert "10.0.0.1" not in text(resources, "cds.json")
    assert made(services=(mixed,)).problems == ()


def test_without_a_public_port_there_is_no_external_listener() -> None:
    assert [each["name"] for each in made(external=None).listeners] == ["internal", "node"]


@pytest.mark.parametrize(
    ("authentication", "protocol", "key"),
    [
        (Authentication.TOKEN, Protocol.MTLS, f"{PIN}|bob|in-1"),
        (Authentication.TOKEN, Protocol.TLS, '"|bob|in-1"'),
        (Authentication.MTLS, Protocol.MTLS, f"{PIN}|bob|noop"),
        (Authentication.NONE, Protocol.NOTLS, '"|bob|noop"'),
    ],
    ids=["token-mtls", "token-tls", "mtls", "none"],  # not from the key: it is another one in every process
)
def test_keys(authentication: Authentication, protocol: Protocol, key: str) -> None:
    resources = made(protocol=protocol, routes=(replace(FROM_BOB, authentication=authentication),))
    assert key in text(resources, "ecds-auth.json")
    assert not resources.problems


# ---- TLS ----


def test_a_pinned_partner_is_known_by_its_whole_certificate() -> None:
    context = cluster(made(routes=(TO_BOB,)), "alice-to-bob-http")["transport_socket"]["typed_config"]
    assert context["sni"] == "bob.example"
    assert context["common_tls_context"]["validation_context"]["verify_certificate_hash"] == [PIN]


def test_mtls_believes_nobody_when_it_knows_nobody() -> None:
    (secret,) = made().files["sds-peers.json"]
    assert secret["validation_context"]["verify_certificate_hash"] == ["00" * 32]


# ---- routes ----


def ports_of(resources: EnvoyResources) -> list[tuple[str, bool, str]]:
    listed = host(resources, "internal", "alice-to-bob")["routes"]
    return [
        (each["route"]["cluster"], "grpc" in each["match"], each["route"].get("prefix_rewrite", ""))
        for each in listed
        if "headers" not in each["match"]
    ]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ((RoutePort("http", 1),), [("alice-to-bob-http", False, "")]),
        ((RoutePort("g", 1, grpc=True),), [("alice-to-bob-g", False, "")]),
        (
            (RoutePort("http", 1, path_prefix="/a/"), RoutePort("g", 2, grpc=True)),
            [("alice-to-bob-g", True, ""), ("alice-to-bob-http", False, "/a/")],
        ),
    ],
    ids=["http", "grpc", "both"],
)
def test_ports(ports: tuple[RoutePort, ...], expected: list[tuple[str, bool, str]]) -> None:
    assert ports_of(made(routes=(replace(TO_BOB, ports=ports),))) == expected


def test_a_task_whose_name_begins_with_another_is_matched_first() -> None:
    limits = (
        TaskBandwidthLimit("t", "bob", 10),
        TaskBandwidthLimit("t-1", "bob", 20),
        TaskBandwidthLimit("t", "carol", 30),
    )
    listed = host(made(routes=(TO_BOB,), limits=limits), "internal", "alice-to-bob")["routes"]
    limited = [
        (
            each["match"]["headers"][0]["string_match"]["prefix"],
            each["typed_per_filter_config"]["bandwidth"]["limit_kbps"],
        )
        for each in listed
        if "typed_per_filter_config" in each
    ]
    assert limited == [("t-1-", 20), ("t-", 10)]


def test_a_lite_reaches_its_master_by_both_names() -> None:
    resources = made(routes=(replace(TO_BOB, aliases=("master",)),))
    assert host(resources, "internal", "alice-to-bob")["domains"] == ["*.bob.svc", "*.master.svc"]


def test_a_master_is_known_by_both_names() -> None:
    resources = made(aliases=("master",), services=(DomainService("api", (SocketAddress("10.0.0.1", 1),)),))
    assert host(resources, "external", "service-api-external")["domains"] == ["api.alice.svc", "api.master.svc"]
    assert host(resources, "external", "handshake")["domains"] == [
        "kuscia-handshake.alice.svc",
        "kuscia-handshake.master.svc",
    ]


def test_services_of_the_domain_have_no_door_outside() -> None:
    resources = made(services=(DomainService("own", (SocketAddress("10.0.0.1", 1),), domain_only=True),))
    assert "service-own-external" not in text(resources)
    assert host(resources, "internal", "service-own-internal")


def test_only_the_handshake_sees_tokens() -> None:
    services = (DomainService("s", (SocketAddress("10.0.0.1", 1),)), DomainService("t", access=frozenset({"bob"})))
    (table,) = made(routes=(TO_BOB, FROM_BOB), services=services, transit=(TransitGrant("carol", "bob"),)).files[
        "rds-external.json"
    ]
    kept = [
        each["name"]
        for each in table["virtual_hosts"]
        if not {"kuscia-token", "x-coterie-peer-key"} <= {*each["request_headers_to_remove"]}
    ]
    assert len(table["virtual_hosts"]) >= 4 and kept == ["handshake"]


def test_sessions_stay_at_one_endpoint() -> None:
    two = (SocketAddress("10.0.0.1", 1), SocketAddress("10.0.0.2", 1))
    service = DomainService("s", two, ServiceProtocol.GRPCS, affinity=Affinity(True, "KUSCIA_SESSION", 60))
    resources = made(services=(service,))
    made_cluster = cluster(resources, "service-s")
    assert made_cluster["lb_policy"] == "RING_HASH"
    assert made_cluster["transport_socket"]["name"] == "envoy.transport_sockets.tls"
    (action,) = (each["route"] for each in host(resources, "external", "service-s-external")["routes"])
    assert [next(iter(each)) for each in action["hash_policy"]] == [
        "header",
        "cookie",
        "connection_properties",
        "header",
    ]
    keys = [
        each["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"]
        for each in made_cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert len(set(keys)) == 2 and "10.0.0" not in str(keys), "callers do not learn where endpoints are"
    (route,) = host(resources, "external", "service-s-external")["routes"]
    (cookie,) = route["response_headers_to_add"]
    assert cookie["header"]["value"].startswith("KUSCIA_SESSION=%UPSTREAM_METADATA(")
    assert "; Max-Age=60;" in cookie["header"]["value"]


def test_calls_have_no_end_and_are_repeated_only_when_they_never_arrived() -> None:
    one, two = SocketAddress("10.0.0.1", 1), SocketAddress("10.0.0.2", 1)
    services = (
        DomainService("s", (one,)),
        DomainService("g", (one,), ServiceProtocol.GRPC),
        DomainService("t", (one, two)),
    )
    resources = made(routes=(TO_BOB,), services=services)
    for side in ("external", "internal"):
        (table,) = resources.files[f"rds-{side}.json"]
        for each in (route["route"] for host in table["virtual_hosts"] for route in host["routes"] if "route" in route):
            assert each["timeout"] == "0s"
            # A route without a word of its own follows its cluster's.
            options = cluster(resources, each["cluster"]).get("typed_extension_protocol_options") or {}
            policies = [each.get("retry_policy"), *(made.get("retry_policy") for made in options.values())]
            (policy,) = [policy for policy in policies if policy is not None]
            assert policy["retry_on"] == "connect-failure,refused-stream,reset-before-request"


@pytest.mark.parametrize(
    ("service", "shared"),
    [
        (DomainService("s", (SocketAddress("10.0.0.1", 1),)), "direct"),
        (DomainService("s", (SocketAddress("10.0.0.1", 1),), ServiceProtocol.GRPC), "direct-http2"),
        (DomainService("s", (SocketAddress("fd00::1", 1),)), "direct"),
        (DomainService("s", (SocketAddress("10.0.0.1", 1),), ServiceProtocol.HTTPS), ""),
        (DomainService("s", (SocketAddress("db.example", 1),)), ""),
        (DomainService("s", (SocketAddress("10.0.0.1", 1), SocketAddress("10.0.0.2", 1))), ""),
    ],
    ids=["one-address", "grpc", "ipv6", "tls", "host-name", "two-addresses"],
)
def test_a_service_with_one_address_needs_no_cluster_of_its_own(service: DomainService, shared: str) -> None:
    before, after = made(), made(services=(service,))
    assert (before.clusters == after.clusters) is bool(shared)
    for side in ("external", "internal"):
        (action,) = (each["route"] for each in host(after, side, f"service-s-{side}")["routes"])
        assert action["cluster"] == (shared or "service-s")
        # The shared cluster goes to what stands in Host: that must never be the caller's.
        assert action.get("host_rewrite_literal") == (str(service.endpoints[0]) if shared else None)


def test_transit_needs_a_grant() -> None:
    assert "transit-bob" not in text(made(routes=(TO_BOB,)))
    resources = made(routes=(TO_BOB,), transit=(TransitGrant("carol", "bob"),))
    assert host(resources, "external", "transit-bob")["domains"] == ["*.bob.svc"]


def test_headers_to_add_may_hold_a_per_cent_sign() -> None:
    route = replace(FROM_BOB, headers=(("authorization", "50%"),))
    service = DomainService("s", (SocketAddress("10.0.0.1", 1),))
    decorated, plain = host(made(routes=(route,), services=(service,)), "external", "service-s-external")["routes"]
    assert decorated["request_headers_to_add"][0]["header"] == {"key": "authorization", "value": "50%%"}
    assert "request_headers_to_add" not in plain


def test_clusters_that_vanish_stay_until_routes_let_go() -> None:
    old, new = made(routes=(TO_BOB,)).clusters, made().clusters
    both = bridged(old, new)
    assert both is not None
    assert {each["name"] for each in both} == {each["name"] for each in old}
    assert bridged(new, old) is None


def test_problems_are_told_once_and_sorted() -> None:
    resources = made(routes=(replace(TO_BOB, tunnel=True), NO_PIN))
    assert list(resources.problems) == sorted(set(resources.problems))
    assert all(isinstance(each, SnapshotProblem) for each in resources.problems)
