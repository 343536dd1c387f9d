"""Certificates that ended, that have not begun, and those of Kuscia's masters, whose dates mean nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import aiohttp
import msgspec
import pytest
from gateway_kit import HOSTS, call, echo, make_inputs, route, running, until_status

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.base.secret import SecretValue
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, Domain, DomainRoute
from coterie.kuscia.gateway.addresses import KeyPair, Protocol
from coterie.kuscia.gateway.certificate_validity import is_undated, next_change, out_of_date
from coterie.kuscia.gateway.handshake.pinned_certificates import PinMatch, Pins
from coterie.kuscia.gateway.model import DomainService, SnapshotInputs
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects, InputCache, inputs_of
from coterie.kuscia.gateway.tls import peers_context, upstream
from coterie.kuscia.identity.domain_identity import DomainIdentity

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE, DAY, YEAR = timedelta(minutes=1), timedelta(days=1), timedelta(days=365)
SPANS = {
    "good": (NOW - DAY, NOW + YEAR),
    "ends": (NOW - YEAR, NOW + DAY),
    "ended": (NOW - YEAR, NOW - DAY),
    "just ended": (NOW - YEAR, NOW - 10 * MINUTE),
    "begins soon": (NOW + 10 * MINUTE, NOW + YEAR),
    "begins": (NOW + DAY, NOW + YEAR),
    "kuscia": (datetime(1970, 1, 1, tzinfo=UTC), datetime(1980, 1, 1, tzinfo=UTC)),
}
_BACKDATED = 5 * MINUTE


@cache
def made(span: str) -> tuple[str, bytes]:
    """A certificate with those dates, and its key."""
    begins, ends = SPANS[span]
    at = begins + _BACKDATED
    authority = pki.self_signed_ca("alice", pki.new_key("ec"), now=at, life=ends - at)
    return pki.certificate_pem(authority.certificate).decode(), pki.key_pem(authority.key)


def pem(span: str) -> str:
    return made(span)[0]


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ("good", ""),
        ("ends", ""),
        ("ended", "ended at 2026-05-31 00:00 UTC"),
        ("just ended", ""),
        ("begins soon", ""),
        ("begins", "is not valid before 2026-06-02 00:00 UTC"),
        ("kuscia", ""),
    ],
)
def test_what_counts(span: str, told: str) -> None:
    """Clocks may differ by a quarter of an hour."""
    assert out_of_date(pem(span), NOW) == told
    assert is_undated(pem(span)) == (span == "kuscia")


def test_what_is_no_certificate_is_another_matter() -> None:
    assert out_of_date("junk", NOW) == "" and not is_undated("junk")
    assert next_change(["junk"], NOW) is None


def test_the_next_change_is_the_nearest_one_to_come() -> None:
    assert next_change(map(pem, SPANS), NOW) == NOW - 10 * MINUTE + 15 * MINUTE
    assert next_change([pem("ends"), pem("begins")], NOW) == NOW + DAY - 15 * MINUTE
    assert next_change([pem("ended"), pem("kuscia")], NOW) is None


# ---- what the gateway is told ----

SETTINGS = GatewaySettings("bob", "gw-0")
PLACES = GatewayPaths(Path("/x/gateway"), Path("/x/run"), Path("/x/logs"))
ENDPOINT = {"host": "alice.example.com", "ports": [{"name": "http", "protocol": "HTTP", "port": 1080, "isTLS": True}]}


def a_world(span: str) -> GatewayObjects:
    cert = base64.b64encode(pem(span).encode()).decode()
    domain = msgspec.convert({"metadata": {"name": "alice"}, "spec": {"cert": cert}}, Domain)
    token = {"authenticationType": "Token", "tokenConfig": {"tokenGenMethod": "RSA-GEN"}, "endpoint": ENDPOINT}
    routes = [
        msgspec.convert(
            {
                "metadata": {"name": f"{source}-{destination}", "namespace": "bob"},
                "spec": {"source": source, "destination": destination, **token},
            },
            DomainRoute,
        )
        for source, destination in (("alice", "bob"), ("bob", "alice"))
    ]
    tokens = {"alice-bob": ((1, SecretValue("in")),), "bob-alice": ((1, SecretValue("out")),)}
    return GatewayObjects(routes=routes, domains={"alice": domain}, tokens=tokens)


@cache
def bob() -> DomainIdentity:
    key = pki.new_key("rsa")
    own = pki.certificate_pem(pki.self_signed_ca("bob", key, now=NOW).certificate).decode()
    return DomainIdentity("bob", Path("/x/domain.crt"), Path("/x/domain.key"), own, key)  # type: ignore[arg-type]


@pytest.mark.parametrize(("span", "why"), [("ended", "ended at"), ("begins", "is not valid before")])
def test_who_shows_one_that_does_not_count_is_not_let_in(span: str, why: str) -> None:
    inputs, problems = inputs_of(a_world(span), SETTINGS, bob(), PLACES, now=NOW)
    inbound, outbound = inputs.routes
    assert inbound.certificates == (), "its key is in no table"
    assert outbound.certificates == (pem(span),), "Envoy compares its dates itself"
    assert [each.about for each in problems] == ["route alice-bob", "route bob-alice"]
    assert all(f"the certificate of alice {why}" in each.message for each in problems)


@pytest.mark.parametrize("span", ["good", "just ended", "kuscia"])
def test_who_shows_one_that_counts_is_let_in(span: str) -> None:
    inputs, problems = inputs_of(a_world(span), SETTINGS, bob(), PLACES, now=NOW)
    assert problems == [] and [each.certificates for each in inputs.routes] == [(pem(span),)] * 2


def test_it_is_known_when_to_look_again() -> None:
    memory = InputCache()
    for later, counts in ((timedelta(), True), (DAY + 10 * MINUTE, True), (DAY + 16 * MINUTE, False)):
        inputs, _ = inputs_of(a_world("ends"), SETTINGS, bob(), PLACES, memory=memory, now=NOW + later)
        assert bool(inputs.routes[0].certificates) is counts
        assert memory.until == (NOW + DAY + 15 * MINUTE if counts else None)


@pytest.mark.parametrize(("span", "allowed"), [("good", False), ("ended", False), ("kuscia", True)])
def test_envoy_overlooks_dates_only_where_they_mean_nothing(span: str, allowed: bool) -> None:
    inputs, _ = inputs_of(a_world(span), replace(SETTINGS, control_plane=False), bob(), PLACES)
    assert inputs.protocol is Protocol.MTLS and not inputs.newcomers
    tls, _ = upstream(inputs, inputs.routes[1], inputs.routes[1].ports[0])
    assert tls is not None
    for context in (peers_context(inputs), tls["typed_config"]["common_tls_context"]["validation_context"]):
        # A lite gets certificates put on its routes by the control plane; here there are none.
        assert context.get("allow_expired_certificate", False) is (allowed and "trusted_ca" in context)
        assert "verify_certificate_hash" in context


# ---- handshakes ----


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ("good", PinMatch.SOURCE),
        ("kuscia", PinMatch.SOURCE),
        ("just ended", PinMatch.SOURCE),
        ("ended", PinMatch.OUT_OF_DATE),
        ("begins", PinMatch.OUT_OF_DATE),
    ],
)
def test_handshakes_look_at_the_dates_too(span: str, expected: PinMatch) -> None:
    def certificates(domain: str) -> Iterable[str]:
        return (pem(span),) if domain == "alice" else ()

    body = {
        "metadata": {"name": "alice-bob", "namespace": "bob"},
        "spec": {"source": "alice", "destination": "bob", "authenticationType": "Token"},
    }
    found = DOMAIN_ROUTES.decode(json.dumps(body).encode())
    shown = pki.fingerprint(pki.load_certificate(pem(span).encode()))
    assert Pins(certificates, VirtualClock(NOW)).fits(found, shown) is expected


# ---- real Envoys ----


@pytest.mark.parametrize(("span", "passes"), [("kuscia", True), ("ended", False)])
@pytest.mark.parametrize("whose", ["alice", "bob"], ids=["the caller's", "the called one's"])
async def test_envoys_call_each_other(tmp_path: Path, span: str, passes: bool, whose: str) -> None:
    """Two gateways that pin each other's certificate, of which one has those dates, by the true clock."""
    own = KeyPair(tmp_path / "odd.crt", tmp_path / "odd.key")
    own.certificate.write_text(pem(span))
    own.key.write_bytes(made(span)[1])
    inputs = {
        each: replace(make_inputs(each, tmp_path, Protocol.MTLS), **({"identity": own} if each == whose else {}))
        for each in ("alice", "bob")
    }

    def led(me: str, there: SnapshotInputs) -> SnapshotInputs:
        known = {"certificates": (pem(span),)} if me != whose else {}
        return replace(inputs[me], routes=(route("alice", "bob", there, me, **known),))

    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(echo(HOSTS["bob"]))
        bob_ = replace(led("bob", inputs["bob"]), services=(DomainService("echo", (plain,)),))
        caller, called = await stack.enter_async_context(
            running(led("alice", inputs["bob"]), bob_, root=tmp_path, stop_seconds=1.0)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)))
        ask = lambda: call(http, f"{caller.inside}/", "echo.bob.svc")  # noqa: E731
        await until_status(200 if passes else 503, ask)
        if not passes:
            refuser, side = (called, "external") if whose == "alice" else (caller, "internal")

            async def logged() -> tuple[int, str, dict[str, str]]:
                return 200 if "certificate_has_expired" in refuser.log(side) else 0, refuser.log(side), {}

            await until_status(200, logged)
