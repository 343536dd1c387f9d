"""Rows of the route plans: token rounds, copies, readiness, and what a route may say."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from domain_world import a_domain, a_route, cert, key_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coterie.base import pki
from coterie.base.clock import VirtualClock, rfc3339
from coterie.kube.api.meta import Object
from coterie.kuscia.api.domainroutes import parse_public_key, public_key_of_certificate, route_faults
from coterie.kuscia.api.types.domain import (
    CLUSTER_DOMAIN_ROUTES,
    DOMAIN_ROUTES,
    DOMAINS,
    GATEWAYS,
    ClusterDomainRoute,
    DomainRoute,
    DomainRouteStatus,
    DomainRouteTokens,
    Gateway,
    MtlsConfig,
    RouteCondition,
    RouteSpec,
    RouteToken,
)
from coterie.kuscia.control.last_seen import LastSeen
from coterie.kuscia.controllers.clusterdomainroute import plan as copying
from coterie.kuscia.controllers.clusterdomainroute import status as judging
from coterie.kuscia.controllers.domainroute.plan import EXPIRY_GRACE, ROUND_LIMIT, Plan, plan
from coterie.kuscia.controllers.gateway import plan as forgetting

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
LIVE = {"g1": 100.0, "g2": 170.0}
PERIOD = 600


def at(seconds: float) -> str:
    return rfc3339(NOW + timedelta(seconds=seconds))


def token(revision: int, *, ready: bool = True, expires: float | None = 1200, heard: float | None = None, by: str = "") -> RouteToken:  # fmt: skip
    return RouteToken(
        is_ready=ready,
        token=f"t{revision}",
        revision=revision,
        revision_time=at(0),
        expiration_time=at(expires) if expires is not None else None,
        heart_beat_time=at(heard) if heard is not None else None,
        effective_instances=tuple(by.split()) or None,
    )


def route(namespace: str, tokens: DomainRouteTokens | None = None, **spec: Any) -> DomainRoute:
    keys = {
        "tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": PERIOD,
        "sourcePublicKey": "k", "destinationPublicKey": "k",
    }  # fmt: skip
    body = a_route("alice", "bob", **{"tokenConfig": keys, **spec})
    body["metadata"] = {"name": "alice-bob", "namespace": namespace, "uid": "r"}
    made = DOMAIN_ROUTES.decode(DOMAIN_ROUTES.as_dynamic.encode(body))
    return made if tokens is None else replace(made, status=a_status(tokens))


def a_status(tokens: DomainRouteTokens | None, authorized: bool = True, unreachable: bool = False) -> DomainRouteStatus:
    return DomainRouteStatus(
        is_destination_authorized=authorized, is_destination_unreachable=unreachable, token_status=tokens
    )


def decided(found: DomainRoute, live: Mapping[str, float] = LIVE, age: float = 0.0) -> Plan:
    made = plan(found, live, age, NOW)
    assert made is not None
    return made


PENDING = RouteToken(is_ready=False, revision=3, revision_time=at(-130))


def negotiating(who: str = "g1", *tokens: RouteToken) -> DomainRouteTokens:
    return DomainRouteTokens(revision_initializer=who, revision_token=PENDING, tokens=tokens or None)


def holding(who: str, newest: RouteToken, *others: RouteToken) -> DomainRouteTokens:
    return DomainRouteTokens(revision_initializer=who, revision_token=newest, tokens=(*others, newest))


@pytest.mark.parametrize(
    ("tokens", "live", "age", "begins", "who", "after"),
    [
        (None, LIVE, 0, True, "any", None),
        (DomainRouteTokens(tokens=(token(3),)), LIVE, 0, True, "any", None),
        (negotiating(), LIVE, 10, False, "g1", 100.0),
        (negotiating(), LIVE, 50, False, "g1", 70.0),
        (negotiating("gone"), LIVE, 10, True, "any", None),
        (negotiating(), LIVE, ROUND_LIMIT, True, "g2", ROUND_LIMIT),
        (negotiating(), {"g1": 170.0}, ROUND_LIMIT, True, "g1", ROUND_LIMIT),
        (holding("g1", token(3)), LIVE, 10, False, "g1", 100.0),
        (holding("g2", token(3)), LIVE, 590, False, "g2", 10.0),
        (holding("g1", token(3)), LIVE, PERIOD, True, "g1", 100.0),
        (holding("gone", token(3)), LIVE, PERIOD, True, "any", None),
        (holding("gone", token(3)), LIVE, 10, False, "any", None),
        (negotiating(), {}, ROUND_LIMIT, False, "g1", None),
        (holding("g1", token(3)), {}, PERIOD, False, "g1", None),
    ],
    ids=[
        "new", "wiped", "waits-for-gateway", "waits-for-limit", "initializer-dead", "timed-out", "timed-out-alone", "good",
        "nearly-due", "due", "due-and-dead", "hand-over", "nobody-live", "due-nobody-live",
    ],
)  # fmt: skip
def test_rounds_of_the_source(
    tokens: DomainRouteTokens | None, live: dict[str, float], age: float, begins: bool, who: str, after: float | None
) -> None:
    made = decided(route("alice", tokens), live, age)
    current = made.tokens.revision_token
    before = tokens.revision_token if tokens else None
    assert (current != before) is begins
    if begins:
        assert current is not None
        assert (current.is_ready, current.token, current.revision_time) == (False, "", at(0))
        assert current.revision == (before.revision if before else 0)
    assert made.tokens.revision_initializer in (live or {"g1"} if who == "any" else {who})
    assert made.tokens.tokens == (tokens.tokens if tokens else None)
    if after is not None or not live:
        assert made.after == after


def test_the_source_appends_a_finished_token_and_keeps_two() -> None:
    held = DomainRouteTokens(revision_initializer="g1", revision_token=token(3), tokens=(token(1), token(2)))
    made = decided(route("alice", held))
    assert made.tokens.tokens == (token(2), token(3))
    assert decided(route("alice", made.tokens)).tokens == made.tokens


@pytest.mark.parametrize(
    ("expires", "age", "begins"),
    [(10, 500, False), (-1, 500, True), (-1, ROUND_LIMIT - 1, False), (None, 10**6, False)],
    ids=["valid", "expired", "expired-by-a-wrong-clock", "never"],
)
def test_without_a_period_expiry_decides(expires: float | None, age: float, begins: bool) -> None:
    keys = {"tokenGenMethod": "RSA-GEN", "sourcePublicKey": "k", "destinationPublicKey": "k"}
    found = replace(
        route("alice", holding("g1", token(3, expires=expires))), spec=route("alice", tokenConfig=keys).spec
    )
    made = decided(found, LIVE, age)
    assert made.tokens.revision_token is not None
    assert made.tokens.revision_token.is_ready is not begins


def held_by(*tokens: RouteToken, revision: RouteToken | None = None) -> DomainRouteTokens:
    return DomainRouteTokens(revision_token=revision or (tokens[-1] if tokens else None), tokens=tokens or None)


FRESH = token(4, ready=False)


@pytest.mark.parametrize(
    ("tokens", "live", "revisions", "ready", "after"),
    [
        (held_by(), LIVE, [], None, None),
        (held_by(revision=FRESH), LIVE, [4], False, 100.0),
        (held_by(token(3), revision=FRESH), LIVE, [3, 4], False, 100.0),
        (held_by(token(2), token(3), revision=FRESH), LIVE, [3, 4], False, 100.0),
        (held_by(token(2, heard=-5), token(3), revision=FRESH), LIVE, [2, 3, 4], False, 100.0),
        (held_by(token(2, heard=-50), token(3, heard=-5), revision=FRESH), LIVE, [3, 4], False, 100.0),
        (held_by(token(2, heard=-20), token(3, heard=-5), revision=FRESH), LIVE, [2, 3, 4], False, 100.0),
        (held_by(token(3), replace(FRESH, effective_instances=("g1",))), LIVE, [3, 4], False, 170.0),
        (held_by(token(3), replace(FRESH, effective_instances=("g1", "g2"))), LIVE, [3, 4], True, 1320.0),
        (held_by(token(3), replace(FRESH, effective_instances=("g1",))), {"g1": 100.0}, [3, 4], True, 1320.0),
        (held_by(token(3), replace(FRESH, effective_instances=("g1", "dead"))), {"g1": 1.0}, [3, 4], True, 1320.0),
        (held_by(token(3), FRESH), {}, [3, 4], False, 1320.0),
        (held_by(token(3, expires=-121), token(4)), LIVE, [4], True, 1320.0),
        (held_by(token(3, expires=-119), token(4)), LIVE, [3, 4], True, 1.0),
        (held_by(token(4, expires=-121)), LIVE, [], None, None),
    ],
    ids=[
        "nothing", "first", "second", "third", "in-use-is-kept", "older-use-is-not", "handover", "half-loaded", "loaded", "other-died",
        "dead-one-loaded", "nobody-live", "old-expired", "old-in-grace", "newest-expired",
    ],
)  # fmt: skip
def test_rounds_of_the_destination(
    tokens: DomainRouteTokens, live: dict[str, float], revisions: list[int], ready: bool | None, after: float | None
) -> None:
    made = decided(route("bob", tokens), live)
    assert [each.revision for each in made.tokens.tokens or ()] == revisions
    if ready is not None:
        assert made.tokens.newest is not None
        assert made.tokens.newest.is_ready is ready
        assert made.tokens.revision_token is not None
        assert made.tokens.revision_token.is_ready is ready
    assert made.after == after
    assert decided(route("bob", made.tokens), live).tokens == made.tokens


@pytest.mark.parametrize(
    "found",
    [
        route("alice", authenticationType="None", tokenConfig=None),
        route("alice", tokenConfig={"tokenGenMethod": "RSA-GEN", "sourcePublicKey": "k"}),
        route("somewhere"),
    ],
    ids=["no-tokens", "no-key", "neither-end"],
)
def test_routes_without_books(found: DomainRoute) -> None:
    assert plan(found, LIVE, 0, NOW) is None


@given(st.lists(st.sampled_from(["handshake", "lost-answer", "beat", "wait"]), max_size=60))
@settings(max_examples=200, deadline=None)
def test_the_token_in_use_is_never_dropped(steps: list[str]) -> None:
    """Whatever happens to the answers of handshakes, the destination accepts what the source sends."""
    here, there = DomainRouteTokens(), DomainRouteTokens()
    live = {"g": 170.0}
    now, revision, age = NOW, 0, 0.0
    for step in ["handshake", "beat", *steps]:
        now += timedelta(seconds=15)
        age += 15
        source = plan(route("alice", here), live, age, now)
        assert source is not None
        if source.tokens.revision_token != here.revision_token:
            age = 0.0
        here = source.tokens
        if step in ("handshake", "lost-answer"):
            revision += 1
            fresh = replace(token(revision, ready=False), expiration_time=rfc3339(now + timedelta(seconds=2 * PERIOD)))
            there = replace(there, revision_token=fresh)
            for _ in range(2):
                answer = plan(route("bob", there), live, 0, now)
                assert answer is not None
                loaded = [replace(each, effective_instances=("g",)) for each in answer.tokens.tokens or ()]
                there = replace(answer.tokens, tokens=tuple(loaded))
            assert there.revision_token is not None
            assert there.revision_token.is_ready
            if step == "handshake":
                here = replace(here, revision_token=there.revision_token)
                source = plan(route("alice", here), live, 0, now)
                assert source is not None
                here, age = source.tokens, 0.0
        used = here.newest
        assert used is not None
        if step in ("beat", "handshake"):
            there = replace(
                there,
                tokens=tuple(
                    replace(each, heart_beat_time=rfc3339(now)) if each.revision == used.revision else each
                    for each in there.tokens or ()
                ),
            )
        accepted = {each.revision for each in there.tokens or () if each.is_ready}
        expires = datetime.fromisoformat(used.expiration_time or "")
        assert used.revision in accepted or now >= expires + EXPIRY_GRACE
        assert len(there.tokens or ()) <= 4


# Copies.


def cdr(**spec: Any) -> ClusterDomainRoute:
    body = a_route("alice", "bob", **spec)
    body["metadata"] |= {"uid": "cdr", "labels": {"a": "b"}}
    return CLUSTER_DOMAIN_ROUTES.decode(CLUSTER_DOMAIN_ROUTES.as_dynamic.encode(body))


def an_end(name: str, role: str | None = "") -> copying.RouteEndDomain:
    if role is None:
        return copying.end(name, None, "hq")
    body = a_domain(name, role=role)
    return copying.end(name, DOMAINS.decode(DOMAINS.as_dynamic.encode(body)), "hq")


@pytest.mark.parametrize(
    ("source", "destination", "namespaces"),
    [
        (an_end("alice"), an_end("bob"), ["alice", "bob"]),
        (an_end("alice"), an_end("bob", "partner"), ["alice"]),
        (an_end("alice", "partner"), an_end("bob"), ["bob"]),
        (an_end("alice", "partner"), an_end("bob", "partner"), []),
        (an_end("alice"), an_end("bob", None), []),
        (an_end("alice"), an_end("hq", None), ["alice", "hq"]),
    ],
    ids=["both", "to-partner", "from-partner", "partners", "unknown", "own-plane-without-object"],
)
def test_where_copies_lie(
    source: copying.RouteEndDomain, destination: copying.RouteEndDomain, namespaces: list[str]
) -> None:
    wanted = copying.copies(cdr(), source, destination, {}, ())
    assert [copy.metadata.namespace for copy in wanted.create] == namespaces


def copy_of(found: ClusterDomainRoute, namespace: str = "alice") -> DomainRoute:
    made = copying.copies(found, an_end("alice"), an_end("bob"), {}, ()).create
    return next(each for each in made if each.metadata.namespace == namespace)


KEYED = {"tokenGenMethod": "RSA-GEN", "sourcePublicKey": "a", "destinationPublicKey": "b"}
OTHER_KEY = {**KEYED, "sourcePublicKey": "c"}
WITH_TOKENS = a_status(holding("g", token(1)))


@pytest.mark.parametrize(
    ("there", "field"),
    [
        (copy_of(cdr(tokenConfig=KEYED)), "good"),
        (copy_of(cdr(tokenConfig=KEYED, endpoint={"host": "elsewhere"})), "change"),
        (copy_of(cdr(tokenConfig=OTHER_KEY)), "change"),
        (replace(copy_of(cdr(tokenConfig=OTHER_KEY)), status=WITH_TOKENS), "renew"),
        (replace(copy_of(cdr(tokenConfig=KEYED, endpoint={"host": "x"})), status=WITH_TOKENS), "change"),
        (replace(copy_of(cdr(tokenConfig=KEYED)), metadata=replace(copy_of(cdr()).metadata, labels=None)), "change"),
        (replace(copy_of(cdr(tokenConfig=KEYED)), metadata=replace(copy_of(cdr()).metadata, owner_references=None)), "conflicts"),
    ],
    ids=["equal", "endpoint", "key-before-tokens", "key", "endpoint-with-tokens", "labels", "not-ours"],
)  # fmt: skip
def test_what_becomes_of_a_copy(there: DomainRoute, field: str) -> None:
    made = copying.copies(cdr(tokenConfig=KEYED), an_end("alice"), an_end("bob", "partner"), {"alice": there}, ())
    filled = [name for name in ("create", "change", "renew", "delete", "good", "conflicts") if getattr(made, name)]
    assert filled == [field]


def test_how_and_whom_to_carry_is_copied_and_withdrawn() -> None:
    said = {
        "coterie.io/carry-for": "carol",
        "coterie.io/transit": "hop-by-hop",
        "coterie.io/kuscia-wire": "no-client-certificate",
        "other": "x",
    }
    found = cdr()
    there = copy_of(replace(found, metadata=replace(found.metadata, annotations=said)))
    assert there.metadata.annotations is not None
    assert {key for key in there.metadata.annotations if key in said} == said.keys() - {"other"}
    made = copying.copies(found, an_end("alice"), an_end("bob", "partner"), {"alice": there}, ())
    ((_, patch),) = made.change
    assert patch["metadata"]["annotations"] == dict.fromkeys(said.keys() - {"other"})


def test_copies_that_no_longer_belong_are_removed() -> None:
    stray = copy_of(cdr(), "bob")
    made = copying.copies(cdr(), an_end("alice"), an_end("bob", "partner"), {}, [stray])
    assert list(made.delete) == [stray]


def test_the_private_key_stays_with_the_source() -> None:
    found = cdr(mTLSConfig={"sourceClientPrivateKey": "c2VjcmV0", "sourceClientCert": "x"})
    of_source, of_destination = copy_of(found, "alice").spec.mtls_config, copy_of(found, "bob").spec.mtls_config
    assert of_source is not None
    assert of_source.source_client_private_key
    assert of_destination == MtlsConfig(source_client_cert="x")
    assert "c2VjcmV0" not in repr(found)


# Readiness.


def a_gateway(**reports: bool) -> Gateway:
    entries = [
        {
            "name": f"alice-to-bob-{port}",
            "type": "DomainRoute",
            "totalEndpointsCount": 1,
            "healthyEndpointsCount": int(up),
        }
        for port, up in reports.items()
    ]
    status = {"address": "", "uptime": at(0), "heartbeatTime": at(0), "publicKey": "", "version": "", "networkStatus": entries}  # fmt: skip
    body = {"metadata": {"name": "g", "namespace": "alice"}, "status": status}
    return GATEWAYS.decode(GATEWAYS.as_dynamic.encode(body))


def dr(tokens: DomainRouteTokens | None, authorized: bool = True, unreachable: bool = False) -> DomainRoute:
    return replace(route("alice"), status=a_status(tokens, authorized, unreachable))


GOOD = judging.RouteView(
    route=cdr(),
    source=an_end("alice"),
    destination=an_end("bob"),
    source_copy=dr(holding("g", token(3))),
    destination_copy=dr(holding("", token(3, heard=0))),
    source_gateways=[a_gateway(http=True)],
    destination_gateways=[a_gateway()],
    heartbeat_age=1.0,
)
OUR_END = {"destination": an_end("bob", "partner"), "destination_copy": None, "destination_gateways": ()}
THEIR_END = {"source": an_end("alice", "partner"), "source_copy": None, "source_gateways": ()}
BAD_CERT = replace(an_end("bob").domain, spec=replace(an_end("bob").domain.spec, cert="bm8="))  # type: ignore[union-attr, type-var]
NO_CERT = replace(BAD_CERT, spec=replace(BAD_CERT.spec, cert=""))
READY_ROUTE = replace(cdr(), status=replace(cdr().status, conditions=(RouteCondition(type="Ready", status="True"),)))


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({}, "Success", ""),
        (OUR_END, "Success", ""),
        (THEIR_END, "Success", ""),
        ({"faults": ["transit: no", "x: y"]}, "RouteInvalid", "transit: no; x: y"),
        ({"destination": an_end("bob", None)}, "DomainNotFound", "bob"),
        ({"source": an_end("alice", "partner"), "destination": an_end("bob", "partner")}, "NoDomainHosted", "both partners"),
        ({"destination": copying.end("bob", NO_CERT, "hq")}, "DomainCertificateMissing", "bob"),
        ({"destination": copying.end("bob", BAD_CERT, "hq")}, "DomainCertificateInvalid", "bob"),
        ({"conflicts": {"alice": "nobody"}}, "DomainRouteConflict", "alice/alice-bob"),
        ({"source_copy": None}, "DomainRouteNotCreated", "alice/alice-bob"),
        ({"destination_copy": None}, "DomainRouteNotCreated", "bob/alice-bob"),
        ({"source_gateways": ()}, "GatewayNotAlive", "alice (source)"),
        ({"destination_gateways": ()}, "GatewayNotAlive", "bob (destination)"),
        ({"needed": [(("alice", "joe"), None)]}, "TransitRouteMissing", "from alice to joe"),
        ({"needed": [(("alice", "joe"), cdr())]}, "TransitRouteNotReady", "from alice to joe"),
        ({"needed": [(("alice", "joe"), READY_ROUTE)]}, "Success", ""),
        ({"source_gateways": [a_gateway(http=False)]}, "EndpointUnreachable", "bob.example.com:1080"),
        ({"source_gateways": [a_gateway(http=False), replace(a_gateway(http=True), metadata=replace(a_gateway().metadata, name="g2"))]}, "Success", ""),
        ({"source_gateways": [a_gateway()]}, "Success", ""),
        ({"source_copy": dr(holding("g", token(3)), unreachable=True)}, "DestinationUnreachable", "three probes"),
        ({"source_copy": dr(negotiating("g"), authorized=False)}, "DestinationIsNotAuthrized", "gateway g"),
        ({"source_copy": dr(None, authorized=False)}, "DestinationIsNotAuthrized", "not begun"),
        ({"source_copy": dr(holding("g", token(3)), authorized=False)}, "DestinationIsNotAuthrized", "does not accept"),
        ({"source_copy": dr(None)}, "TokenNotGenerate", "at present"),
        ({"source_copy": dr(holding("g", token(3, expires=-1)))}, "TokenExpired", "revision 3"),
        ({"destination_copy": dr(None)}, "TokenNotGenerate", "bob holds no token of alice"),
        ({"destination_copy": dr(held_by(FRESH))}, "TokenNotReady", "revision 4"),
        ({"destination_copy": dr(held_by(token(4), token(5)))}, "TokenRevisionNotMatch", "alice uses token revision 3"),
        ({"destination_copy": dr(held_by(token(3), FRESH))}, "Success", ""),
        ({"heartbeat_age": 31.0}, "HeartBeatTimeout", "30 s"),
        ({"heartbeat_age": None}, "Success", ""),
        ({**THEIR_END, "heartbeat_age": 31.0}, "HeartBeatTimeout", "alice"),
    ],
    ids=lambda value: value if isinstance(value, str) and value and " " not in value else None,
)  # fmt: skip
def test_readiness(changes: dict[str, Any], reason: str, says: str) -> None:
    fields = {name: getattr(GOOD, name) for name in judging.RouteView.__dataclass_fields__}
    verdict = judging.readiness(judging.RouteView(**{**fields, **changes}), NOW)
    assert verdict.reason == reason
    assert says in verdict.message


def test_routes_without_tokens_are_judged_by_what_is_left() -> None:
    open_route = cdr(authenticationType="None", tokenConfig=None)
    fields = {name: getattr(GOOD, name) for name in judging.RouteView.__dataclass_fields__}
    view = judging.RouteView(
        **{**fields, "route": open_route, "source_copy": dr(None, False), "destination_copy": dr(None)}
    )
    assert judging.readiness(view, NOW) is judging.SUCCESS


def test_the_transition_time_moves_with_the_word_only() -> None:
    first = judging.status(GOOD, NOW, "t1")
    fields = {name: getattr(GOOD, name) for name in judging.RouteView.__dataclass_fields__}

    def again(before: Any, stamp: str, **changes: Any) -> Any:
        view = judging.RouteView(**{**fields, **changes, "route": replace(cdr(), status=before)})
        return judging.status(view, NOW, stamp)

    assert again(first, "t2") == first
    broken = again(first, "t2", heartbeat_age=99.0)
    assert [(c.status, c.last_update_time, c.last_transition_time) for c in broken.conditions] == [
        ("False", "t2", "t2")
    ]
    worse = again(broken, "t3", destination_gateways=())
    assert [(c.reason, c.last_update_time, c.last_transition_time) for c in worse.conditions] == [
        ("GatewayNotAlive", "t3", "t2")
    ]
    later = again(first, "t4", destination_copy=dr(holding("", token(3, heard=59))))
    assert later == first
    assert again(first, "t4", destination_copy=dr(holding("", token(3, heard=60)))) != first


@pytest.mark.parametrize(
    ("protocol", "master", "role", "token_there", "plane", "made"),
    [
        ("", "", "partner", True, "alice", True),
        ("kuscia", "bob", "partner", True, "alice", True),
        ("", "theirs", "partner", True, "alice", False),
        ("bfia", "", "partner", True, "alice", False),
        ("", "", "", True, "alice", False),
        ("", "", "partner", False, "alice", False),
        # The partner lets hq read its own namespace there, and mirrors into that what concerns the lite alice.
        ("", "", "partner", True, "hq", False),
    ],
    ids=["partner", "own-master", "partner-lite", "bfia", "ours", "no-token", "route-of-a-lite"],
)
def test_interop_configs(protocol: str, master: str, role: str, token_there: bool, plane: str, made: bool) -> None:
    body = a_domain("bob", role=role, master=master)
    destination = copying.end("bob", DOMAINS.decode(DOMAINS.as_dynamic.encode(body)), plane)
    wanted = copying.interop(cdr(interConnProtocol=protocol), an_end("alice"), destination, plane, token_there)
    assert (wanted is not None) is made


# What a route may say.

CLIENT_KEY = base64.b64encode(pki.key_pem(key_pair("alice")[0])).decode()
OTHER_CLIENT_KEY = base64.b64encode(pki.key_pem(key_pair("bob")[0])).decode()


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, None),
        ({"endpoint": {"ports": [{"name": "a", "protocol": "HTTP", "port": 1}]}}, "endpoint.host"),
        ({"endpoint": {"host": "x"}}, "endpoint.ports"),
        ({"endpoint": {"host": "x", "ports": [{"name": "a", "protocol": "HTTP", "port": 1}] * 2}}, "endpoint.ports"),
        ({"endpoint": {"host": "x", "ports": [{"name": "a", "protocol": "HTTP", "port": 1, "pathPrefix": "p"}]}}, "endpoint.ports[a].pathPrefix"),
        ({"destination": "alice"}, "destination"),
        ({"source": ""}, "source"),
        ({"transit": {"transitMethod": "THIRD-DOMAIN"}}, "transit.domain.domainID"),
        ({"transit": {"domain": {"domainID": "bob"}}}, "transit.domain.domainID"),
        ({"transit": {"domain": {"domainID": "joe"}}, "endpoint": None}, None),
        ({"transit": {"transitMethod": "REVERSE-TUNNEL"}, "endpoint": None}, None),
        ({"transit": {"transitMethod": "REVERSE-TUNNEL", "domain": {"domainID": "joe"}}}, "transit.domain"),
        ({"tokenConfig": None}, "tokenConfig"),
        ({"authenticationType": "None", "tokenConfig": None}, None),
        ({"authenticationType": "None", "tokenConfig": None, "bodyEncryption": {"algorithm": "AES"}}, "tokenConfig"),
        ({"bodyEncryption": {"algorithm": "SM4"}}, "bodyEncryption.algorithm"),
        ({"tokenConfig": {"tokenGenMethod": "RSA-GEN", "sourcePublicKey": "?"}}, "tokenConfig.sourcePublicKey"),
        ({"tokenConfig": {"tokenGenMethod": "RSA-GEN", "destinationPublicKey": "bm8="}}, "tokenConfig.destinationPublicKey"),
        ({"authenticationType": "MTLS", "tokenConfig": None}, "mTLSConfig.sourceClientCert"),
        ({"authenticationType": "MTLS", "mTLSConfig": {"sourceClientCert": cert("alice")}}, None),
        ({"authenticationType": "MTLS", "mTLSConfig": {"sourceClientCert": "bm8="}}, "mTLSConfig.sourceClientCert"),
        ({"authenticationType": "MTLS", "mTLSConfig": {"sourceClientCert": cert("alice"), "tlsCA": "bm8="}}, "mTLSConfig.tlsCA"),
        ({"authenticationType": "MTLS", "mTLSConfig": {"sourceClientCert": cert("alice"), "sourceClientPrivateKey": CLIENT_KEY}}, None),
        ({"authenticationType": "MTLS", "mTLSConfig": {"sourceClientCert": cert("alice"), "sourceClientPrivateKey": OTHER_CLIENT_KEY}}, "mTLSConfig.sourceClientPrivateKey"),
        ({"sourceWhiteIPList": ["10.1.2.3", "10.0.0.1/8", "::1"]}, None),
        ({"sourceWhiteIPList": ["ten"]}, "sourceWhiteIPList[0]"),
        ({"requestHeadersToAdd": {"Authorization": "Bearer x"}}, None),
        ({"requestHeadersToAdd": {"Kuscia-Source": "eve"}}, "requestHeadersToAdd"),
        ({"requestHeadersToAdd": {"a b": "x"}}, "requestHeadersToAdd"),
        ({"requestHeadersToAdd": {"a": "x\r\nKuscia-Source: eve"}}, "requestHeadersToAdd"),
    ],
)  # fmt: skip
def test_route_faults(spec: dict[str, Any], field: str | None) -> None:
    faults = route_faults(_spec(spec), dials=True)
    assert [fault.partition(":")[0] for fault in faults] == ([field] if field else [])


def _spec(changes: Object) -> RouteSpec:
    body = a_route("alice", "bob")["spec"]
    body |= changes
    made = {key: value for key, value in body.items() if value is not None}
    return DOMAIN_ROUTES.decode(DOMAIN_ROUTES.as_dynamic.encode({"metadata": {}, "spec": made})).spec


def test_an_endpoint_is_needed_only_to_dial() -> None:
    assert route_faults(_spec({"endpoint": None}), dials=False) == []


def test_keys_are_written_as_kuscia_writes_them() -> None:
    text = public_key_of_certificate(cert("alice"))
    assert base64.b64decode(text).startswith(b"-----BEGIN RSA PUBLIC KEY-----\n")
    assert parse_public_key(text).public_numbers() == key_pair("alice")[0].public_key().public_numbers()


# Ages.


async def test_ages_count_from_our_own_sight() -> None:
    clock = VirtualClock(NOW)
    seen = LastSeen(clock)
    assert seen.age("a", "x", NOW - timedelta(seconds=40)) == 40
    assert seen.age("b", "x", NOW + timedelta(seconds=40)) == 0
    await clock.advance(10)
    assert seen.age("a", "x", None) == 50
    assert seen.age("a", "y", NOW - timedelta(days=1)) == 0
    seen.forget("a")
    assert seen.age("a", "y", NOW) == 10


@pytest.mark.parametrize(
    ("beat", "watched", "left"),
    [(-10, 0, 3590), (-3599, 500, 1), (-3600, 180, 0), (-7200, 0, 180), (-7200, 179, 1), (-7200, 180, 0)],
    ids=["fresh", "nearly", "over", "old-but-just-seen", "still-watching", "old"],
)
def test_when_gateways_are_forgotten(beat: float, watched: float, left: float) -> None:
    body = a_gateway()
    assert body.status is not None
    found = replace(body, status=replace(body.status, heartbeat_time=at(beat)))
    assert forgetting.until_forgotten(found, watched, 180, forgetting.Settings(), NOW) == left
