"""What `coterie route check` makes of what it found, and how it finds it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kuscia.api import labels
from coterie.kuscia.api.kuscia_wire import WEAKNESSES, KusciaWireForm
from coterie.kuscia.api.types.domain import ClusterDomainRoute
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.routes import check, model, probe, reachability
from coterie.kuscia.routes.facts import (
    Certificate,
    CheckOutcome,
    ControlPlaneLink,
    RouteCheckFacts,
    RouteFacts,
    ServiceCheck,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
SHOWN = Certificate("ab" * 32, "bob", NOW - YEAR, NOW + YEAR)
READY = RouteFacts(ready=True, reason="Success", revision=3, token_age=7.0)
LATE = replace(READY, ready=False, reason="DestinationIsNotAuthrized", message="no", revision=0, token_age=None)
GOOD = RouteCheckFacts(
    "alice",
    "bob",
    NOW,
    route=READY,
    known_domains=("alice", "bob"),
    host="b.example",
    port=1080,
    pins=(SHOWN.fingerprint,),
    addresses=("10.0.0.2",),
    tcp_problem="",
    shown=SHOWN,
    status=401,
    gateway_error="unauthenticated",
    skew=0.0,
    probe=0,
)


def test_a_good_route():
    findings = check.diagnose(GOOD)
    steps = ["route", "name", "tcp", "tls", "certificate", "gateway", "clock", "token"]
    assert [each.step for each in findings] == steps
    assert {each.verdict for each in findings} == {CheckOutcome.OK}
    assert check.sound(findings)
    assert not any(each.advice for each in findings)


WRONG = [
    (
        "no-master",
        {"masters": ControlPlaneLink("hq", "west", known=False)},
        "masters",
        "knows no domain west",
        "coterie domain add west --partner",
    ),
    (
        "masters-apart",
        {"masters": ControlPlaneLink("hq", "west", known=True, there=LATE, back=READY)},
        "masters",
        "hq -> west is not ready",
        "coterie route check hq west",
    ),
    ("no-route", {"route": None, "host": ""}, "route", "has no route", "coterie route add alice bob --endpoint"),
    ("no-domain", {"known_domains": ("alice",)}, "domain", "knows no domain bob", "coterie domain add bob --partner"),
    ("not-ready", {"route": LATE}, "route", "not ready: DestinationIsNotAuthrized: no", "steps below"),
    (
        "invalid",
        {"route": replace(LATE, reason="RouteInvalid", message="endpoint.host: give one")},
        "route",
        "endpoint.host: give one",
        "correct these fields",
    ),
    ("name", {"name_problem": "unknown"}, "name", "b.example cannot be resolved: unknown", "DNS"),
    ("tcp", {"tcp_problem": "refused"}, "tcp", "nothing answers at b.example:1080: refused", "firewall"),
    ("plain-port", {"tls_problem": "[SSL: WRONG_VERSION_NUMBER] x"}, "tls", "does not speak TLS", "NOTLS"),
    ("tls", {"tls_problem": "eof"}, "tls", "no TLS with b.example:1080: eof", "var/logs/envoy"),
    ("stranger", {"pins": ("cd" * 32,)}, "certificate", "is not that of bob: we know cdcdcdcd", "coterie domain cert"),
    ("unsigned", {"signed": False}, "certificate", "authority did not sign it", "coterie domain add bob --partner"),
    ("no-pin", {"pins": ()}, "certificate", "no certificate of bob is known", "coterie domain add bob --partner"),
    (
        "expired",
        {"shown": replace(SHOWN, ends=NOW - timedelta(days=1))},
        "certificate",
        "ended on 2026-05-31",
        "partners then need it",
    ),
    ("too-new", {"shown": replace(SHOWN, begins=NOW + YEAR)}, "certificate", "good only from 2027", "NTP"),
    ("proxy", {"status": 200, "gateway_error": ""}, "gateway", "no gateway: status 200", "proxy"),
    ("other-401", {"gateway_error": ""}, "gateway", "no gateway: status 401", "host, port and path"),
    (
        "no-http",
        {"status": 0, "http_problem": "closed", "showed": True},
        "gateway",
        "no HTTP answer from b.example:1080: closed",
        "know the certificate of alice",
    ),
    ("clock", {"skew": -400.0}, "clock", "bob's clock is 400 s behind ours", "NTP"),
    ("lost-token", {"probe": 4}, "token", "not this token: revision 3, agreed on 7 s ago", "within half a minute"),
    ("unknown", {"probe": 5}, "token", "bob has no route from alice", "at bob: coterie route add alice bob"),
    ("no-domain-there", {"probe": 1}, "token", "alice is no domain", "at bob: coterie route add alice bob"),
    ("token-not-loaded", {"probe": 3}, "token", "not loaded it", "coterie status"),
    ("odd-answer", {"probe": 77}, "token", "state 77", "log of bob"),
    ("own-gateway", {"probe": None, "probe_problem": "503"}, "token", "revision 3, agreed on 7 s ago; 503", "above"),
    (
        "never-agreed",
        {
            "route": replace(READY, revision=0, token_age=None),
            "probe": 4,
            "last_word": "bob refuses the handshake: stranger",
        },
        "token",
        "none is agreed on yet (bob refuses the handshake: stranger)",
        "coterie domain ls",
    ),
    (
        "closed-service",
        {"service": ServiceCheck("psi", 403, "denied")},
        "service",
        "psi.bob.svc answers 403: denied",
        "access-domain=alice",
    ),
    ("no-pod", {"service": ServiceCheck("psi", 503, "no endpoints")}, "service", "503: no endpoints", "ready pod"),
]


@pytest.mark.parametrize(
    ("change", "step", "said", "advice"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_each_thing_that_can_be_wrong(change, step, said, advice):
    findings = check.diagnose(replace(GOOD, **change))
    wrong = [each for each in findings if each.verdict is CheckOutcome.WRONG]
    assert [each.step for each in wrong] == [step]
    assert said in wrong[0].message
    assert advice in wrong[0].advice
    assert not check.sound(findings)


MASTERS = ControlPlaneLink("hq", "west", known=True, there=READY, back=READY)
NO_FAULT = [
    ("masters", {"masters": MASTERS}, "masters", CheckOutcome.OK, "hq and west reach each other"),
    (
        "no-master-route",
        {"masters": replace(MASTERS, back=None)},
        "masters",
        CheckOutcome.WARNING,
        "no route west -> hq",
    ),
    ("slow-clock", {"skew": 61.0}, "clock", CheckOutcome.WARNING, "61 s ahead of ours"),
    ("near-clock", {"skew": -30.0}, "clock", CheckOutcome.OK, "30 s behind ours"),
    ("plain", {"tls": False, "shown": None}, "tls", CheckOutcome.WARNING, "plain text"),
    (
        "ends-soon",
        {"shown": replace(SHOWN, ends=NOW + timedelta(days=9))},
        "certificate",
        CheckOutcome.WARNING,
        "2026-06-10",
    ),
    (
        "kuscias",
        {"shown": replace(SHOWN, begins=NOW - 60 * YEAR, ends=datetime(1970, 1, 2, tzinfo=UTC))},
        "certificate",
        CheckOutcome.OK,
        "as we know it",
    ),
    ("signed", {"signed": True, "pins": ()}, "certificate", CheckOutcome.OK, "as we know it"),
    ("mtls", {"status": 0, "http_problem": "broken pipe"}, "gateway", CheckOutcome.SKIPPED, "shows no certificate"),
    ("elsewhere", {"probe": None}, "token", CheckOutcome.SKIPPED, "only on the machine"),
    ("via", {"route": replace(READY, via="joe"), "host": ""}, "name", CheckOutcome.SKIPPED, "through joe"),
    ("tunnel", {"route": replace(READY, tunnel=True), "host": ""}, "name", CheckOutcome.SKIPPED, "bob dials us"),
    ("arriving", {"host": ""}, "name", CheckOutcome.SKIPPED, "does not dial"),
    ("open-service", {"service": ServiceCheck("psi", 405)}, "service", CheckOutcome.OK, "psi.bob.svc answers 405"),
    (
        "other-vendor",
        {"route": replace(READY, of_another_vendor=True, needs_token=False), "status": 404, "gateway_error": ""},
        "gateway",
        CheckOutcome.OK,
        "status 404",
    ),
    ("uncalled", {"service": ServiceCheck("psi", 0, "far away")}, "service", CheckOutcome.SKIPPED, "far away"),
]


@pytest.mark.parametrize(
    ("change", "step", "verdict", "said"), [row[1:] for row in NO_FAULT], ids=[row[0] for row in NO_FAULT]
)
def test_what_is_no_fault(change, step, verdict, said):
    findings = check.diagnose(replace(GOOD, **change))
    found = next(each for each in findings if each.step == step)
    assert (found.verdict, said in found.message) == (verdict, True)
    assert check.sound(findings)


def test_after_the_first_broken_step_of_the_way_the_rest_is_its_echo():
    findings = check.diagnose(replace(GOOD, tcp_problem="refused", shown=None, status=0, skew=None))
    assert [each.step for each in findings] == ["route", "name", "tcp", "token"]


# Finding it: a partner's port that is broken for real.

BROKEN = RouteCheckFacts("alice", "bob", NOW, route=READY, known_domains=("alice", "bob"))


async def dialled(host: str, port: int, *, tls: bool = True) -> RouteCheckFacts:
    facts = replace(BROKEN, host=host, port=port, tls=tls, now=datetime.now(UTC))
    return await probe.dial(facts, MasterEndpoint(host, port, tls), "", SYSTEM_CLOCK)


@contextlib.asynccontextmanager
async def answering(
    tmp_path: Path, *, tls: bool = True, status: int = 401, signer: Any = None, **headers: str
) -> AsyncIterator[int]:
    """A port that answers as it is told, under a certificate of "bob"."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers)

    context = None
    if tls:
        made = pki.self_signed_ca("bob", pki.new_key("ec"), now=datetime.now(UTC))
        shown = made.certificate
        if signer is not None:
            shown = pki.issue_server(signer, "bob", made.key.public_key(), names=["127.0.0.1"], now=datetime.now(UTC))
        pki.save_certificate(tmp_path / "bob.crt", shown)
        pki.save_key(tmp_path / "bob.key", made.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "bob.crt", tmp_path / "bob.key")
    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_a_gateway_is_looked_at(tmp_path):
    async with answering(tmp_path, **{"Kuscia-Error-Message": "no token"}) as port:
        facts = await dialled("127.0.0.1", port)
    shown = pki.load_certificate((tmp_path / "bob.crt").read_bytes())
    assert (facts.addresses, facts.tcp_problem, facts.tls_problem) == (("127.0.0.1",), "", "")
    assert facts.connect_seconds is not None and facts.connect_seconds >= 0
    assert (facts.shown.fingerprint, facts.shown.subject) == (pki.fingerprint(shown), "bob")
    assert (facts.status, facts.gateway_error) == (401, "no token")
    assert abs(facts.skew) <= 60


def cluster_route(wire: str = "", **spec: Any) -> ClusterDomainRoute:
    given = {"source": "alice", "destination": "bob", "authenticationType": "Token"} | spec
    body = {"metadata": {"name": "alice-bob", "annotations": {labels.COTERIE_KUSCIA_WIRE: wire}}, "spec": given}
    return msgspec.convert(body, ClusterDomainRoute)


@pytest.mark.parametrize("form", list(KusciaWireForm))
def test_each_weaker_form_of_kuscias_wire_is_named_and_is_no_fault(form: KusciaWireForm) -> None:
    facts = replace(GOOD, route=replace(probe.route_facts(cluster_route(str(form)), NOW), ready=True, revision=3))
    findings = check.diagnose(facts)
    (wire,) = [each for each in findings if each.step == "wire"]
    assert (wire.verdict, wire.message) == (CheckOutcome.WARNING, WEAKNESSES[form])
    assert check.sound(findings)


def test_a_route_to_another_vendors_node_is_known() -> None:
    bfia = {"interConnProtocol": "bfia", "authenticationType": "MTLS"}
    for route, expected in (
        (cluster_route(**bfia), True),
        (cluster_route(interConnProtocol="bfia"), False),
        (cluster_route(authenticationType="MTLS"), False),
    ):
        assert probe.route_facts(route, NOW).of_another_vendor is expected


@pytest.mark.parametrize("own", [True, False])
async def test_a_certificate_made_at_each_start_is_right_when_the_domains_key_signed_it(
    tmp_path: Path, own: bool
) -> None:
    domain, other = (pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC)) for name in ("bob", "bob"))
    async with answering(tmp_path, signer=domain if own else other, **{"Kuscia-Error-Message": "no token"}) as port:
        pem = pki.certificate_pem(domain.certificate).decode()
        facts = replace(GOOD, host="127.0.0.1", port=port, now=datetime.now(UTC), shown=None)
        endpoint = MasterEndpoint("127.0.0.1", port, True)
        facts = await probe.dial(facts, endpoint, model.encoded(pem), SYSTEM_CLOCK)
    (found,) = [each for each in check.diagnose(facts) if each.step == "certificate"]
    assert facts.signed is own
    assert found.verdict is (CheckOutcome.OK if own else CheckOutcome.WRONG)


async def test_a_closed_port():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    facts = await dialled("127.0.0.1", port)
    assert facts.tcp_problem and facts.connect_seconds is None
    assert (facts.shown, facts.status) == (None, 0)


async def test_a_name_that_cannot_be():
    facts = await dialled("no..such..name", 1080)
    assert facts.name_problem and facts.tcp_problem is None


async def test_plain_text_where_tls_was_expected(tmp_path):
    async with answering(tmp_path, tls=False) as port:
        facts = await dialled("127.0.0.1", port)
        found = check.diagnose(facts)
        plain = await dialled("127.0.0.1", port, tls=False)
    assert [each.step for each in found if each.verdict is CheckOutcome.WRONG][:1] == ["tls"]
    assert "does not speak TLS" in next(each.message for each in found if each.step == "tls")
    assert (plain.status, plain.tls_problem) == (401, "")


async def test_a_wrong_clock_is_read_from_the_date(tmp_path):
    async with answering(tmp_path, Date="Tue, 01 Jan 2019 00:00:00 GMT") as port:
        facts = await dialled("127.0.0.1", port)
    assert facts.skew < -1e8
    (clock,) = [each for each in check.diagnose(facts) if each.step == "clock"]
    assert clock.verdict is CheckOutcome.WRONG


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("Mon, 01 Jun 2026 00:00:07 GMT", 7.0),
        ("Sun, 31 May 2026 23:58:00 GMT", -120.0),
        ("", None),
        ("yesterday", None),
    ],
    ids=["ahead", "behind", "none", "nonsense"],
)
def test_skew(date, expected):
    assert probe.skew(date, NOW + timedelta(microseconds=900_000)) == expected


# Our own gateway.


def test_where_our_own_gateway_is(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    assert probe.home_of(tmp_path, "alice") == paths
    assert probe.home_of(tmp_path, "bob") is None
    assert reachability.node_socket(paths) is None
    file = GatewayPaths.of(paths).directory / "lds.json"
    file.parent.mkdir(parents=True)
    listeners = [{"name": "external"}, {"name": "node", "address": {"pipe": {"path": "/run/gw.sock"}}}]
    file.write_bytes(orjson.dumps({"resources": listeners}))
    assert reachability.node_socket(paths) == Path("/run/gw.sock")
    file.write_text("{")
    assert reachability.node_socket(paths) is None


async def test_what_our_own_gateway_says(tmp_path):
    async def handle(request: web.Request) -> web.Response:
        assert request.headers["Kuscia-Source"] == "alice"
        if request.host == "kuscia-handshake.bob.svc":
            assert request.headers["kuscia-token-revision"] == "3"
            return web.json_response({"namespace": "bob", "state": 4})
        return web.Response(status=403, headers={"Kuscia-Error-Message": "denied"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    door = tmp_path / "gw.sock"
    await web.UnixSite(runner, str(door)).start()
    try:
        facts = await probe.ask_through(BROKEN, door, "psi")
    finally:
        await runner.cleanup()
    assert (facts.probe, facts.probe_problem) == (4, "")
    assert facts.service == ServiceCheck("psi", 403, "denied")
    gone = await probe.ask_through(BROKEN, door, "psi")
    assert gone.probe is None and "does not answer" in gone.probe_problem
    assert gone.service.status == 0
    far = await probe.ask_through(BROKEN, None, "psi")
    assert (far.probe, far.probe_problem, far.service.status) == (None, "", 0)
