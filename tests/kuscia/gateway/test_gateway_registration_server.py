"""Registration on a real API server, one process: what is stored, what is used up, what is refused and logged."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator

import pytest
from registration_kit import PLANE, ROUTE, Plane, an_application, answer, key, logged, plane, posted

from coterie.base import pki
from coterie.http.messages import Request
from coterie.kube.api.errors import Conflict
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.gateway.registration import messages
from coterie.kuscia.gateway.registration.rules import REGISTERED_WITH
from coterie.kuscia.gateway.registration.server import RegistrationServer, peer_of


@pytest.fixture
async def center() -> AsyncIterator[Plane]:
    async with plane() as made:
        yield made


async def test_a_lite_with_an_unused_token_becomes_the_domain(center: Plane) -> None:
    token = await center.add_domain("alice")
    told = answer(await center.join("alice", token))
    stored = await center.domain("alice")
    certificate = pki.load_certificate(told["cert"].encode())
    assert base64.b64decode(stored.spec.cert).decode() == told["cert"]
    assert certificate.public_key() == key("alice").public_key()
    assert told["master_pubkey"] == center.identity.public_key_pem.decode()
    assert told["master_pubkey"].startswith("-----BEGIN RSA PUBLIC KEY-----")
    assert (await center.states("alice"))[token] == "used"
    assert await center.unused_token("alice", other_than=token)
    route = (await center.client.get(ROUTE, f"alice-{PLANE}"))["spec"]
    assert (route["source"], route["destination"], route["authenticationType"]) == ("alice", PLANE, "Token")
    assert route["tokenConfig"]["rollingUpdatePeriod"] == 86400


async def test_a_route_is_made_where_the_domain_says_nothing_of_authentication(center: Plane) -> None:
    await center.client.create(DOMAINS.as_dynamic, {"metadata": {"name": "alice"}, "spec": {}})
    answer(await center.join("alice", await center.unused_token("alice")))
    made = await center.client.get(ROUTE, f"alice-{PLANE}")
    assert made["spec"]["tokenConfig"] == {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 86400}
    assert made["metadata"]["ownerReferences"][0]["name"] == "alice"


async def test_the_same_key_comes_again_without_a_token_and_gets_the_same_certificate(center: Plane) -> None:
    first = answer(await center.join("alice", await center.add_domain("alice")))
    version = (await center.domain("alice")).spec.cert
    assert answer(await center.join("alice", None)) == first
    assert (await center.domain("alice")).spec.cert == version


async def test_a_used_token_admits_no_other_key_and_the_next_one_does(
    center: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    token = await center.add_domain("alice")
    answer(await center.join("alice", token))
    with caplog.at_level(logging.WARNING):
        refused = await center.join("alice", token, signer="mallory")
    assert refused.status == 500 and b"kubectl get domain alice" in refused.body
    told = logged(caplog.records)
    assert "10.0.0.9" in told and "used-token" in told
    assert token not in told + refused.body.decode()
    fresh = await center.unused_token("alice", other_than=token)
    mine = answer(await center.join("alice", fresh, signer="mallory"))
    assert pki.load_certificate(mine["cert"].encode()).public_key() == key("mallory").public_key()
    # Whoever held the domain before is out.
    assert (await center.join("alice", fresh)).status == 500


async def test_a_lost_key_is_replaced_after_the_operator_cleared_the_certificate(center: Plane) -> None:
    token = await center.add_domain("alice")
    answer(await center.join("alice", token))
    await center.client.patch(DOMAINS, "alice", "", {"spec": {"cert": None}})
    assert (await center.join("alice", token, signer="alice#2")).status == 500
    answer(await center.join("alice", await center.unused_token("alice", other_than=token), signer="alice#2"))


async def test_one_token_admits_one_of_many_keys_that_come_at_once(center: Plane) -> None:
    token = await center.add_domain("alice")
    signers = [f"racer-{number}" for number in range(6)]
    ready = [an_application("alice", token, center.clock.now(), signer=name) for name in signers]
    answers = await asyncio.gather(*(center.register(*each, f"10.0.0.{n}") for n, each in enumerate(ready)))
    won = [name for name, response in zip(signers, answers, strict=True) if response.status == 200]
    assert len(won) == 1 and {response.status for response in answers} == {200, 500}
    stored = pki.load_certificate(base64.b64decode((await center.domain("alice")).spec.cert))
    assert stored.public_key() == key(won[0]).public_key()


async def test_a_token_stays_used_when_we_die_before_its_state_is_written(
    center: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await center.add_domain("alice")
    request, jwt = an_application("alice", token, center.clock.now())

    class Died(Exception):
        pass

    async def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(RegistrationServer, "_mark_used", die)
        with pytest.raises(Died):
            await center.register(request, jwt)
    assert (await center.states("alice"))[token] == "unused"
    assert (await center.join("alice", token, signer="mallory")).status == 500
    answer(await center.join("alice", token))
    assert (await center.states("alice"))[token] == "used"


async def test_the_same_request_twice_is_refused_and_a_new_one_is_not(center: Plane) -> None:
    token = await center.add_domain("alice")
    request, jwt = an_application("alice", token, center.clock.now())
    answer(await center.register(request, jwt))
    again = await center.register(request, jwt, "10.0.0.66")
    assert (again.status, again.content_type.split(";")[0]) == (400, "text/plain")
    assert b"before" in again.body
    answer(await center.join("alice", token))


async def test_a_request_that_was_refused_may_come_again(center: Plane) -> None:
    request, jwt = an_application("alice", None, center.clock.now())
    assert (await center.register(request, jwt)).status == 500
    made = base64.b64encode(pki.certificate_pem(pki.self_signed_ca("alice", key("alice"), now=center.clock.now()).certificate))  # fmt: skip
    await center.add_domain("alice", cert=made.decode())
    told = answer(await center.register(request, jwt))
    assert told["cert"].encode() == base64.b64decode(made), (
        "the domain's own certificate, which partners may have pinned"
    )


@pytest.mark.parametrize(
    ("name", "spec"),
    [("alice", {"role": "partner"}), (PLANE, {}), ("nobody", None)],
    ids=["a partner's domain", "the control plane's own", "no domain at all"],
)
async def test_names_that_nobody_joins_under(center: Plane, name: str, spec: dict[str, str] | None) -> None:
    if spec is not None:
        await center.add_domain(name, **spec)
    assert (await center.join(name, "x" * 32, signer="mallory")).status == 500


async def test_garbage_is_answered_in_plain_text_and_logged_with_the_address(
    center: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        response = await center.registrar.register(posted(b"{", "x", "10.9.8.7"))
    assert (response.status, response.content_type) == (400, "text/plain; charset=utf-8")
    assert "10.9.8.7" in logged(caplog.records)
    assert (await center.registrar.register(Request("GET", "/register"))).status == 405


async def test_one_address_cannot_ask_for_ever_and_others_still_can(center: Plane) -> None:
    statuses = [(await center.registrar.register(posted(b"{", "x", "10.0.0.1"))).status for _ in range(12)]
    assert statuses[0] == 400 and statuses[-1] == 429
    assert (await center.registrar.register(posted(b"{", "x", "10.0.0.2"))).status == 400


async def test_a_control_plane_in_trouble_says_so_without_details(
    center: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await center.add_domain("alice")

    async def busy(*_: object, **__: object) -> None:
        raise Conflict("somebody else was here")

    monkeypatch.setattr(center.client, "patch", busy)
    response = await center.join("alice", token)
    assert response.status == 500 and b"retry" in response.body


async def test_the_hash_in_the_annotation_is_not_the_token(center: Plane) -> None:
    token = await center.add_domain("alice")
    answer(await center.join("alice", token))
    noted = ((await center.domain("alice")).metadata.annotations or {})[REGISTERED_WITH]
    assert token not in noted and len(noted) == 64


def test_the_address_is_the_one_our_gateway_saw() -> None:
    assert peer_of(posted(b"", "", "10.0.0.5")) == "10.0.0.5"
    assert peer_of(Request("POST", "/register", headers={})) == ""


def test_an_answer_without_the_masters_key_is_read() -> None:
    short = messages.RegisterAnswer("CERT", "")
    assert messages.RegisterAnswer.decode(short.encode()) == short
