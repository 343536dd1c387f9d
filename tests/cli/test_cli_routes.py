"""Domains and routes as objects, and as lines of a table."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from functools import cache

import pytest

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kuscia.api.domainroutes import route_faults
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.registration.master_trust import split_token
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.routes import model

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BOB = MasterEndpoint("10.0.0.2", 1080, True)


@cache
def certificate(name: str) -> str:
    made = pki.self_signed_ca(name, pki.new_key("ec"), now=NOW)
    return pki.certificate_pem(made.certificate).decode()


def a_route(obj, status=None):
    return CLUSTER_DOMAIN_ROUTES.decode(json.dumps({**obj, "status": status or {}}).encode())


# Domains.


def test_a_partner_is_known_by_its_certificate():
    made = DOMAINS.decode(json.dumps(model.partner("bob", certificate("bob"))).encode())
    assert (made.partner, made.protocol, model.certificate_of(made)) == (True, "kuscia", certificate("bob"))
    assert base64.b64decode(made.spec.cert).decode() == certificate("bob")


def test_a_member_joins_with_a_token_bound_to_its_control_plane():
    spec = model.member("carol")
    tokens = [{"token": "old", "state": "used"}, {"token": "new", "state": "unused"}]
    made = DOMAINS.decode(json.dumps({**spec, "status": {"deployTokenStatuses": tokens}}).encode())
    assert (made.partner, made.spec.auth_center.token_gen_method) == (False, "RSA-GEN")
    assert model.unused_token(made) == "new"
    token, pin = split_token(SecretValue(model.pinned_token("new", certificate("hq"))))
    assert (token.reveal(), pin) == ("new", pki.fingerprint(pki.load_certificate(certificate("hq").encode())))


@pytest.mark.parametrize(
    "text", ["", "%%%", base64.b64encode(b"\xff\xfe").decode()], ids=["none", "no base64", "no text"]
)
def test_what_is_no_certificate_is_none(text):
    assert model.decoded(text) == ""


# Routes.


@pytest.mark.parametrize(
    ("made", "dials"),
    [
        (model.route("alice", "bob", BOB), True),
        (model.route("alice", "bob", BOB, body_encryption=True), True),
        (model.route("alice", "bob", via="joe"), True),
        (model.route("alice", "bob", tunnel=True), True),
        (model.route("bob", "alice"), False),
    ],
    ids=["direct", "encrypted", "via", "tunnel", "arriving"],
)
def test_routes_that_are_made_here_are_sound(made, dials):
    assert route_faults(a_route(made).spec, dials=dials) == []


def test_where_a_route_leads():
    spec = a_route(model.route("alice", "bob", MasterEndpoint("b.example", 443, True, "/kuscia"))).spec
    port = spec.endpoint.ports[0]
    assert (spec.endpoint.host, port.port, port.is_tls, port.path_prefix) == ("b.example", 443, True, "/kuscia")
    assert spec.token_config.rolling_update_period == model.ROLLING_SECONDS


@pytest.mark.parametrize(
    ("external", "protocol", "url"),
    [
        (SocketAddress("127.0.1.2", 1080), Protocol.MTLS, "https://127.0.1.2:1080"),
        (SocketAddress("0.0.0.0", 1081), Protocol.TLS, "https://127.0.0.1:1081"),
        (SocketAddress("::", 1080), Protocol.NOTLS, "http://[::1]:1080"),
        (None, Protocol.MTLS, None),
    ],
    ids=["its own address", "everywhere", "plain text", "no port"],
)
def test_how_neighbours_reach_a_gateway(external, protocol, url):
    found = model.endpoint_of(GatewaySettings("bob", "gw", external=external, protocol=protocol))
    assert (model.url_of(found) if found is not None else None) == url


# Lines.


def token(revision, ready=True, at="2026-01-02T03:03:05Z"):
    return {"token": "x", "revision": revision, "isReady": ready, "revisionTime": at}


@pytest.mark.parametrize(
    ("made", "status", "row"),
    [
        (
            model.route("alice", "bob", BOB),
            {
                "conditions": [{"type": "Ready", "status": "True", "reason": "Success"}],
                "tokenStatus": {"sourceTokens": [token(1), token(2), token(3, ready=False)]},
            },
            ("alice", "bob", "<none>", "Token", "True", "Success", "60s"),
        ),
        (
            model.route("alice", "bob", via="joe", body_encryption=True),
            {"conditions": [{"type": "Ready", "status": "False", "reason": "TransitRouteMissing"}]},
            ("alice", "bob", "joe", "Token+AES", "False", "TransitRouteMissing", "<none>"),
        ),
        (
            model.route("alice", "bob", tunnel=True),
            {},
            ("alice", "bob", "tunnel", "Token", "False", "NotLookedAtYet", "<none>"),
        ),
    ],
    ids=["ready", "via", "new"],
)
def test_lines(made, status, row):
    assert model.line_of(a_route(made, status), NOW).row == row


def test_lines_are_sorted_and_can_be_told_to_programs():
    found = model.lines_of([a_route(model.route("bob", "alice")), a_route(model.route("alice", "bob", BOB))], NOW)
    assert [line.name for line in found] == ["alice -> bob", "bob -> alice"]
    assert found[0].document()["tokenAgeSeconds"] is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "<none>"), (0.4, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200000, "2d")],
)
def test_ages(seconds, text):
    assert model.age_text(seconds) == text
