"""A lite and its master over real sockets: joining, believing, restarting, mending."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from master_kit import Lite, Master, document, linked, running
from registration_kit import PLANE, Plane, eventually, key, logged, plane

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.registration import master_connection, master_trust, registration_files
from coterie.kuscia.gateway.registration.client import JoinFault


class Hasty:
    """The system's clock, in a hurry: waits are a hundredth of what they should be."""

    now = staticmethod(SYSTEM_CLOCK.now)
    monotonic = staticmethod(SYSTEM_CLOCK.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


@pytest.fixture
async def center() -> AsyncIterator[Plane]:
    async with plane() as made:
        yield made


@pytest.fixture
async def master(center: Plane, tmp_path: Path) -> AsyncIterator[Master]:
    made = Master(center, tmp_path)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def lite(tmp_path: Path) -> Lite:
    return Lite(tmp_path, "alice", Hasty())


async def test_a_lite_joins_and_has_a_route(center: Plane, master: Master, lite: Lite) -> None:
    token = await center.add_domain("alice")
    async with running(lite.link(master.port, token)) as joining:
        await linked(joining)
        route = joining.route
        assert route is not None and joining.stage is master_connection.LinkStage.LINKED and joining.problem == ""
        assert (route.source, route.destination, route.aliases) == ("alice", PLANE, ("master",))
        assert route.tokens == (master.tokens[1],)
        assert (route.host, route.ports[0].port, route.ports[0].tls) == ("127.0.0.1", master.port, True)
        assert route.certificates == (center.identity.certificate,)
    issued = lite.paths.domain_certificate.read_text()
    assert pki.signed_by(
        pki.load_certificate(issued.encode()), pki.load_certificate(center.identity.certificate.encode())
    )
    assert registration_files.master_key_file(lite.paths).read_bytes() == center.identity.public_key_pem
    assert registration_files.registration_file(lite.paths).stat().st_mode & 0o777 == 0o600
    assert lite.changes >= 2


async def test_a_restart_needs_no_master_and_no_token(center: Plane, master: Master, lite: Lite) -> None:
    async with running(lite.link(master.port, await center.add_domain("alice"))) as joining:
        await linked(joining)
        before = joining.route
    await master.close()
    async with running(lite.link(master.port, None)) as again:
        assert again.ready.is_set() and again.route == before
        await eventually(lambda: _told(again, "nothing answers"))
        await master.open()
        await eventually(lambda: _told(again, ""))
    assert master.seen("/register") == 1 and again.route == before


async def _told(joining: master_connection.MasterLink, problem: str) -> bool:
    return (problem in joining.problem) if problem else joining.problem == ""


async def test_a_master_that_forgot_our_token_gets_a_new_one(center: Plane, master: Master, lite: Lite) -> None:
    async with running(lite.link(master.port, await center.add_domain("alice"))) as joining:
        await linked(joining)
        master.tokens.clear()
        await eventually(lambda: _has_token(joining, master, 2))
    assert document(registration_files.registration_file(lite.paths))["revision"] == 2


async def _has_token(joining: master_connection.MasterLink, master: Master, revision: int) -> bool:
    return joining.route is not None and joining.route.tokens == (master.tokens.get(revision),)


async def test_a_master_that_refuses_handshakes_is_asked_to_register_us_again(
    center: Plane, master: Master, lite: Lite
) -> None:
    token = await center.add_domain("alice")
    master.refuses_handshakes = True
    async with running(lite.link(master.port, token)) as joining:
        await eventually(lambda: _registered(master, 2))
        assert "refuses the handshake: DomainRoute not found" in joining.problem
        master.refuses_handshakes = False
        await linked(joining)
    assert len(await center.states("alice")) == 2, "the second time no token was used up"


async def _registered(master: Master, times: int) -> bool:
    return master.seen("/register") >= times


async def test_newer_tokens_of_the_route_are_kept_and_older_ones_are_not(
    center: Plane, master: Master, lite: Lite
) -> None:
    async with running(lite.link(master.port, await center.add_domain("alice"))) as joining:
        await linked(joining)
        joining.observe(SecretValue("rolled"), 7)
        joining.observe(SecretValue("late"), 6)
        master.tokens[7] = SecretValue("rolled")
    kept = registration_files.load(lite.paths, lite.identity)
    assert kept is not None and kept.agreed == registration_files.MasterToken(SecretValue("rolled"), 7)
    assert "rolled" not in repr(kept)


# ---- whom to believe ----


async def test_a_pin_behind_the_token_is_compared_before_anything_is_sent(
    center: Plane, master: Master, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    token = await center.add_domain("alice")
    assert master.certificate is not None
    async with running(lite.link(master.port, f"{token}.{'ab' * 32}")) as refused:
        await eventually(lambda: _told(refused, "is not trusted"))
    assert not master.requests, "not even the token was sent"
    with caplog.at_level(logging.WARNING):
        async with running(lite.link(master.port, master_trust.with_pin(token, master.certificate))) as joining:
            await linked(joining)
    assert "trusted on first use" not in logged(caplog.records)


async def test_without_a_pin_the_first_certificate_is_believed_aloud(
    center: Plane, master: Master, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    token = await center.add_domain("alice")
    with caplog.at_level(logging.DEBUG):
        async with running(lite.link(master.port, token)) as joining:
            await linked(joining)
    told = logged(caplog.records)
    assert master.certificate is not None
    assert "trusted on first use" in told and pki.fingerprint(master.certificate) in told
    assert token not in told and joining.route is not None and joining.route.tokens[0].reveal() not in told


async def test_somebody_in_between_who_passes_everything_on_is_noticed(
    center: Plane, master: Master, lite: Lite
) -> None:
    """He has a certificate of his own; the key in the answer does not vouch for it."""
    await master.close()
    mallory = pki.self_signed_ca(PLANE, key("mallory"), now=datetime.now(UTC)).certificate
    await master.open(mallory, "mallory")
    async with running(lite.link(master.port, await center.add_domain("alice"))) as joining:
        await eventually(lambda: _told(joining, "somebody may stand in between"))
        assert joining.route is None
    assert not registration_files.master_key_file(lite.paths).exists()


async def test_a_port_with_the_organisations_certificate_needs_its_pin(
    center: Plane, master: Master, lite: Lite
) -> None:
    await master.close()
    own = pki.self_signed_ca("gw.example.com", key("organisation"), now=datetime.now(UTC)).certificate
    await master.open(own, "organisation")
    token = await center.add_domain("alice")
    async with running(lite.link(master.port, master_trust.with_pin(token, own))) as joining:
        await linked(joining)
        assert joining.route is not None and joining.route.certificates == (pki.certificate_pem(own).decode(),)


async def test_after_registration_another_key_is_refused_and_a_new_certificate_of_the_same_is_not(
    center: Plane, master: Master, lite: Lite
) -> None:
    async with running(lite.link(master.port, await center.add_domain("alice"))) as joining:
        await linked(joining)
        await master.close()
        mallory = pki.self_signed_ca(PLANE, key("mallory"), now=datetime.now(UTC)).certificate
        await master.open(mallory, "mallory")
        before = len(master.requests)
        await eventually(lambda: _told(joining, "remove master.pub"))
        assert len(master.requests) == before, "nothing was sent to it"
        await master.close()
        # As Kuscia does at each start: a fresh certificate, signed by the domain's key.
        authority = pki.Authority(pki.load_certificate(center.identity.certificate.encode()), key(PLANE))
        fresh = pki.issue_server(authority, f"{PLANE}_ENVOY_EXTERNAL", key("port").public_key(), names=(), now=datetime.now(UTC))  # fmt: skip
        await master.open(fresh, "port")
        await eventually(lambda: _told(joining, ""))
        assert joining.route is not None and joining.route.certificates == (pki.certificate_pem(fresh).decode(),)


async def test_a_new_key_of_the_lite_still_knows_its_master(center: Plane, master: Master, lite: Lite) -> None:
    token = await center.add_domain("alice")
    async with running(lite.link(master.port, token)) as joining:
        await linked(joining)
    for path in (lite.paths.domain_key, lite.paths.domain_certificate, lite.paths.ca_key, lite.paths.ca_certificate):
        path.unlink()
    pki.save_key(lite.paths.domain_key, key("alice#2"), pkcs1=True)
    async with running(lite.link(master.port, token)) as again:
        assert not again.ready.is_set()
        await eventually(lambda: _told(again, "was used; alice's key is not the one it registered with"))
    async with running(lite.link(master.port, await center.unused_token("alice", token))) as again:
        await linked(again)


async def test_plain_text_works_where_it_was_asked_for_and_says_so(
    center: Plane, tmp_path: Path, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    master = Master(center, tmp_path)
    await master.open(tls=False)
    try:
        with caplog.at_level(logging.WARNING):
            async with running(lite.link(master.port, await center.add_domain("alice"), tls=False)) as joining:
                await linked(joining)
                assert joining.route is not None and not joining.route.ports[0].tls
        assert "plain text" in logged(caplog.records)
    finally:
        await master.close()


# ---- what is wrong ----


async def test_what_stands_in_the_way_is_told_apart(center: Plane, master: Master, lite: Lite, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with running(lite.link(port, "t")) as joining:
            await eventually(lambda: _told(joining, "nothing answers at"))
    async with running(lite.link(master.port, "t", host="a" * 70)) as joining:
        await eventually(lambda: _told(joining, "cannot be resolved"))
    async with running(lite.link(master.port, "t", tls=False)) as joining:
        await eventually(lambda: _told(joining, "no answer from"))
    plain = Master(center, tmp_path)
    await plain.open(tls=False)
    async with running(lite.link(plain.port, "t")) as joining:
        await eventually(lambda: _told(joining, "no TLS with"))
    await plain.close()
    master.greeting = (200, [])
    async with running(lite.link(master.port, "t")) as joining:
        await eventually(lambda: _told(joining, "is no gateway of a control plane"))
    master.greeting, master.namespace = (401, [("Kuscia-Error-Message", "x")]), ""
    async with running(lite.link(master.port, "t")) as joining:
        await eventually(lambda: _told(joining, "is not a control plane's"))
    master.namespace = PLANE
    async with running(lite.link(master.port, "t")) as joining:
        await eventually(lambda: _told(joining, f"domain alice not found at {PLANE}"))


@pytest.mark.parametrize(
    ("given", "token", "pin"),
    [
        (None, None, ""),
        ("plain", "plain", ""),
        (f"tok.{'aB' * 32}", "tok", "ab" * 32),
        (f"tok.{':'.join(['AB'] * 32)}", "tok", "ab" * 32),
        (f"tok.{'ab' * 31}", f"tok.{'ab' * 31}", ""),
        (f".{'ab' * 32}", f".{'ab' * 32}", ""),
        (" spaced\n", "spaced", ""),
    ],
    ids=["none", "Kuscia's", "pinned", "as openssl prints it", "short pin", "no token", "spaces"],
)
def test_tokens_and_pins(given: str | None, token: str | None, pin: str) -> None:
    found = master_trust.split_token(SecretValue(given) if given is not None else None)
    assert found == (SecretValue(token) if token is not None else None, pin)


def test_a_damaged_pin_is_no_reason_to_trust_anybody(lite: Lite) -> None:
    registration_files.master_key_file(lite.paths).write_text("nonsense")
    with pytest.raises(pki.PkiError, match="remove it"):
        registration_files.load_master_key(lite.paths)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"domain": "alice"}'])
def test_a_damaged_registration_is_made_anew(lite: Lite, center: Plane, content: str) -> None:
    registration_files.master_key_file(lite.paths).write_bytes(center.identity.public_key_pem)
    registration_files.registration_file(lite.paths).write_text(content)
    assert registration_files.load(lite.paths, lite.identity) is None


# ---- a control plane of several members ----


async def test_a_lite_goes_to_the_member_that_answers(
    center: Plane, master: Master, lite: Lite, tmp_path: Path
) -> None:
    """Both have one key and one store, so neither a registration nor a token is lost."""
    token = await center.add_domain("alice")
    async with running(lite.link(_free_port(), token, others=(master.port,))) as joining:
        await linked(joining)
        assert joining.route is not None and joining.route.ports[0].port == master.port
        before, agreed = lite.changes, joining.route.tokens
        second = Master(center, tmp_path)
        second.tokens = master.tokens
        await second.open()
        await master.close()
        joining._endpoints = (*joining._endpoints, replace(joining._endpoint, port=second.port))
        await eventually(lambda: _leads_to(joining, second.port))
        assert joining.route.tokens == agreed and lite.changes > before
        await eventually(lambda: _told(joining, ""))
        await second.close()
    assert second.seen("/register") == 0


async def _leads_to(joining: master_connection.MasterLink, port: int) -> bool:
    return joining.route is not None and joining.route.ports[0].port == port


async def test_a_member_that_refuses_us_speaks_for_all(center: Plane, master: Master, lite: Lite) -> None:
    await center.add_domain("alice")
    async with running(lite.link(master.port, "wrong", others=(_free_port(),))) as joining:
        await eventually(lambda: _told(joining, "refuses to register us"))
        # On a busy machine an answer may be late, which is no refusal: the link may have been elsewhere meanwhile.
        await eventually(lambda: _at(joining, master.port))
        for status in (401, 403, 404):
            assert not joining._go_to_next(JoinFault("registration", "no", status=status))
        assert joining._endpoint.port == master.port
        assert joining._go_to_next(JoinFault("gateway", "away", status=503))


async def _at(joining: master_connection.MasterLink, port: int) -> bool:
    return joining._endpoint.port == port


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])
