"""DomainService: every code, both roles, each mode."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import definitions_kit
import pytest
from kuscia.proto.api.v1alpha1.kusciaapi import domain_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.base import pki
from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi.authorization import OPERATOR
from coterie.kuscia.kusciaapi.domains import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode

NOW = datetime(2026, 11, 1, tzinfo=UTC)
CENTER = {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}


@cache
def pem(name: str, kind: str = "rsa") -> str:
    return pki.certificate_pem(pki.self_signed_ca(name, pki.new_key(kind), now=NOW).certificate).decode()


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def code(answer: Any) -> tuple[int, str]:
    return answer.status.code, answer.status.message


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        await world.client.create(DOMAINS.as_dynamic, {"metadata": {"name": "alice"}, "spec": {}})
        yield world


async def spec(world: World, name: str) -> Object:
    return dict((await world.client.get(DOMAINS.as_dynamic, name))["spec"])


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(domain_pb2) == []


# Creating.


async def test_a_domain_of_ours_is_made_with_what_its_route_home_needs(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "CreateDomain", domain_id="lite1")) == (0, "success")
    assert await spec(alice, "lite1") == {"authCenter": CENTER}


async def test_a_partner_speaks_kuscias_protocol_and_keeps_its_certificate(alice: World) -> None:
    answer = await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", cert=b64(pem("bob")))
    assert code(answer) == (0, "success")
    wanted = {
        "role": "partner", "interConnProtocols": ["kuscia"], "cert": b64(pem("bob")), "authCenter": CENTER,
    }  # fmt: skip
    assert await spec(alice, "bob") == wanted


async def test_the_way_home_can_be_chosen(alice: World) -> None:
    center = {"authentication_type": "Token", "token_gen_method": "UID-RSA-GEN"}
    assert code(await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", auth_center=center))[0] == 0
    assert (await spec(alice, "bob"))["authCenter"]["tokenGenMethod"] == "UID-RSA-GEN"
    wrong = {"authentication_type": "token"}
    refused = code(await alice.call(OPERATIONS, "CreateDomain", domain_id="joe", auth_center=wrong))
    assert refused[0] == 11300
    assert "authenticationType" in refused[1]


def body(text: str) -> str:
    return "".join(text.split("-----")[2].split())


FORMS: dict[str, Callable[[str], str]] = {
    "base64 of pem": b64,
    "pem": lambda text: text,
    "pem with carriage returns": lambda text: text.replace("\n", "\r\n"),
    "base64 with line breaks": lambda text: "\r\n".join(b64(text)[at : at + 64] for at in range(0, len(b64(text)), 64)),
    "body without markers": body,
    "doubled base64": lambda text: b64(b64(text)),
    "pem with escaped line breaks": lambda text: text.replace("\n", "\\n"),
    "pem on one line": lambda text: text.replace("\n", " "),
    "pem with words before it": lambda text: f"Bag Attributes\n{text}",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_certificates_are_taken_as_people_paste_them(alice: World, form: Callable[[str], str]) -> None:
    answer = await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", cert=form(pem("bob")))
    assert code(answer) == (0, "success")
    assert (await spec(alice, "bob"))["cert"] == b64(pem("bob"))


KEY = pki.key_pem(pki.new_key("ec")).decode()
BAD = {
    "no name": ({"domain_id": ""}, 11100, "domain_id: must be given"),
    "bad name": ({"domain_id": "Bob"}, 11100, "domain_id: a lowercase RFC 1123 label"),
    "dots": ({"domain_id": "bob.example"}, 11100, "domain_id:"),
    "master": ({"domain_id": "master"}, 11100, "domain_id: master is a reserved name"),
    "reserved": ({"domain_id": "cross-domain"}, 11100, "domain_id: cross-domain is a reserved name"),
    "role": ({"domain_id": "bob", "role": "friend"}, 11100, "role: must be empty"),
    "no certificate": ({"domain_id": "bob", "cert": "bob-domain.crt"}, 11100, "cert: is not a certificate"),
    "a key": ({"domain_id": "bob", "cert": KEY}, 11100, "cert: is not a certificate"),
    "a broken one": ({"domain_id": "bob", "cert": b64("0" + pem("bob")[40:])}, 11100, "cert: is not a certificate"),
    "too long": ({"domain_id": "bob", "cert": "A" * 70_000}, 11100, "cert: is longer than"),
    "another's": ({"domain_id": "bob", "cert": pem("mallory")}, 11100, 'cert: is of "mallory", not of "bob"'),
    "not RSA": ({"domain_id": "bob", "cert": pem("bob", "ec")}, 11100, "cert: cannot be used: its key is not an RSA"),
    "no such master": ({"domain_id": "bob", "master_domain_id": "zeus"}, 11100, 'master_domain_id: there is no domain "zeus"'),
    "master of another role": ({"domain_id": "bob", "role": "partner", "master_domain_id": "alice"}, 11100, "master_domain_id: alice has the role"),
    "exists": ({"domain_id": "alice"}, 11306, 'domain "alice" exists already'),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "number", "sentence"), BAD.values(), ids=BAD.keys())
async def test_refusals_name_the_field_and_leave_nothing(
    alice: World, request_: Object, number: int, sentence: str
) -> None:
    before = (await alice.client.list(DOMAINS)).items
    refused = code(await alice.call(OPERATIONS, "CreateDomain", **request_))
    assert refused[0] == number
    assert sentence in refused[1]
    assert "PRIVATE KEY" not in refused[1]
    assert (await alice.client.list(DOMAINS)).items == before


async def test_a_partner_may_live_under_a_partner(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "CreateDomain", domain_id="zeus", role="partner"))[0] == 0
    assert code(await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", master_domain_id="zeus"))[0] == 0  # fmt: skip
    answer = await alice.call(OPERATIONS, "QueryDomain", domain_id="bob")
    assert answer.data.master_domain_id == "zeus"


# Looking.


async def furnish(world: World, name: str) -> None:
    await world.client.create(DOMAINS.as_dynamic, {"metadata": {"name": name, "annotations": {"built-in": "no"}}, "spec": {"authCenter": CENTER}})  # fmt: skip
    status = {
        "nodeStatuses": [{"name": f"{name}-node", "version": "v1", "status": "Ready", "lastHeartbeatTime": "2026-11-01T00:00:00Z"}],
        "deployTokenStatuses": [{"token": "x" * 32, "state": "unused", "lastTransitionTime": "2026-11-01T00:00:00Z"}],
    }  # fmt: skip
    await world.client.patch_status(DOMAINS, name, "", {"status": status})


async def test_a_query_tells_all_there_is(alice: World) -> None:
    await furnish(alice, "bob")
    data = (await alice.call(OPERATIONS, "QueryDomain", domain_id="bob")).data
    assert (data.domain_id, data.role, data.cert, dict(data.annotations)) == ("bob", "", "", {"built-in": "no"})
    node = data.node_statuses[0]
    assert (node.name, node.status, node.version) == ("bob-node", "Ready", "v1")
    assert (node.last_heartbeat_time, node.last_transition_time) == ("2026-11-01T00:00:00Z", "")
    assert [(each.token, each.state) for each in data.deploy_token_statuses] == [("x" * 32, "unused")]
    assert (data.auth_center.authentication_type, data.auth_center.token_gen_method) == ("Token", "RSA-GEN")


async def test_master_is_the_authority(alice: World) -> None:
    data = (await alice.call(OPERATIONS, "QueryDomain", domain_id="master")).data
    assert base64.b64decode(data.cert) == alice.here.paths.ca_certificate.read_bytes()
    lite = await alice.call(OPERATIONS, "QueryDomain", caller=domain_caller("lite1"), domain_id="master")
    assert lite.data.cert == data.cert


async def test_many_are_told_in_the_order_they_are_asked_for(alice: World) -> None:
    await furnish(alice, "bob")
    answer = await alice.call(OPERATIONS, "BatchQueryDomain", domain_ids=["bob", "alice", "bob"])
    assert [each.domain_id for each in answer.data.domains] == ["bob", "alice", "bob"]
    assert answer.data.domains[0].node_statuses[0].name == "bob-node"


async def test_one_that_is_missing_fails_a_batch(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "QueryDomain", domain_id="bob")) == (11305, 'there is no domain "bob"')
    answer = await alice.call(OPERATIONS, "BatchQueryDomain", domain_ids=["alice", "bob"])
    assert code(answer) == (11305, 'there is no domain "bob"')
    assert not answer.data.domains
    assert code(await alice.call(OPERATIONS, "BatchQueryDomain"))[0] == 11100
    assert code(await alice.call(OPERATIONS, "BatchQueryDomain", domain_ids=["alice", ""]))[1].startswith("domain_ids[1]:")  # fmt: skip


# Changing.


async def test_an_update_leaves_alone_what_it_does_not_name(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", cert=pem("bob"))
    before = await spec(alice, "bob")
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="bob"))[0] == 0
    assert await spec(alice, "bob") == before
    center = {"authentication_type": "Token", "token_gen_method": "UID-RSA-GEN"}
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="bob", role="partner", auth_center=center))[0] == 0  # fmt: skip
    assert (await spec(alice, "bob"))["authCenter"]["tokenGenMethod"] == "UID-RSA-GEN"
    assert (await spec(alice, "bob"))["cert"] == before["cert"]


@pytest.mark.parametrize("method", ["UpdateDomain", "DeleteDomain"])
async def test_what_is_not_there_cannot_be_changed(alice: World, method: str) -> None:
    assert code(await alice.call(OPERATIONS, method, domain_id="bob")) == (11305, 'there is no domain "bob"')
    assert code(await alice.call(OPERATIONS, method))[1] == "domain_id: must be given"


async def test_an_update_is_checked_like_a_new_domain(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner")
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="bob", cert=pem("mallory")))[0] == 11100
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="bob", role="x"))[0] == 11100
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="bob", master_domain_id="alice"))[0] == 11100


async def test_a_node_does_not_cut_itself_off(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "DeleteDomain", domain_id="alice"))[0] == 11304
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="alice", role="partner"))[0] == 11100
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="alice", cert=pem("alice")))[0] == 11100
    own = alice.here.identity.certificate
    assert code(await alice.call(OPERATIONS, "UpdateDomain", domain_id="alice", cert=own))[0] == 0


async def test_a_deleted_domain_is_gone(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="bob")
    assert code(await alice.call(OPERATIONS, "DeleteDomain", domain_id="bob"))[0] == 0
    assert code(await alice.call(OPERATIONS, "QueryDomain", domain_id="bob"))[0] == 11305


# Who.


async def test_a_domain_sees_and_changes_itself_only(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", cert=pem("bob"))
    bob = domain_caller("bob")
    assert code(await alice.call(OPERATIONS, "QueryDomain", caller=bob, domain_id="bob"))[0] == 0
    assert code(await alice.call(OPERATIONS, "BatchQueryDomain", caller=bob, domain_ids=["bob"]))[0] == 0
    assert code(await alice.call(OPERATIONS, "QueryDomain", caller=bob, domain_id="alice"))[0] == 11102
    assert code(await alice.call(OPERATIONS, "BatchQueryDomain", caller=bob, domain_ids=["bob", "alice"]))[0] == 11102
    assert code(await alice.call(OPERATIONS, "UpdateDomain", caller=bob, domain_id="alice"))[0] == 11102
    assert code(await alice.call(OPERATIONS, "CreateDomain", caller=bob, domain_id="joe"))[0] == 11102
    assert code(await alice.call(OPERATIONS, "DeleteDomain", caller=bob, domain_id="bob"))[0] == 11102


async def test_a_domain_that_does_not_exist_is_not_told_to_others(alice: World) -> None:
    refused = await alice.call(OPERATIONS, "QueryDomain", caller=domain_caller("bob"), domain_id="joe")
    assert code(refused)[0] == 11102


@pytest.mark.parametrize(
    "change",
    [{"auth_center": {"authentication_type": "None"}}, {"master_domain_id": "zeus"}],
    ids=["authentication", "master"],
)
async def test_a_domain_changes_nothing_of_itself(alice: World, change: Object) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="zeus", role="partner")
    await alice.call(OPERATIONS, "CreateDomain", domain_id="bob", role="partner", cert=pem("bob"))
    before = await spec(alice, "bob")
    bob = domain_caller("bob")
    assert code(await alice.call(OPERATIONS, "UpdateDomain", caller=bob, domain_id="bob", **change))[0] == 11102
    assert await spec(alice, "bob") == before
    fresh = pki.certificate_pem(pki.self_signed_ca("bob", pki.new_key("rsa"), now=NOW).certificate).decode()
    assert code(await alice.call(OPERATIONS, "UpdateDomain", caller=bob, domain_id="bob", role="partner", cert=fresh))[0] == 11102  # fmt: skip
    assert await spec(alice, "bob") == before


async def test_a_lite_is_not_shown_its_deploy_tokens(alice: World) -> None:
    """With one, whoever speaks for its node could join as the lite again and again."""
    await alice.call(OPERATIONS, "CreateDomain", domain_id="lite1")
    tokens = {"status": {"deployTokenStatuses": [{"token": "x" * 32, "state": "unused"}]}}
    await alice.client.patch_status(DOMAINS, "lite1", "", tokens)
    for caller, seen in ((OPERATOR, 1), (domain_caller("lite1"), 0)):
        answer = await alice.call(OPERATIONS, "QueryDomain", caller=caller, domain_id="lite1")
        assert len(answer.data.deploy_token_statuses) == seen


async def test_whoever_may_not_change_its_master_is_not_told_which_there_are(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="zeus", role="partner")
    await alice.call(OPERATIONS, "CreateDomain", domain_id="lite1")
    answers = [
        code(await alice.call(OPERATIONS, "UpdateDomain", caller=domain_caller("lite1"), domain_id="lite1", master_domain_id=each))
        for each in ("zeus", "nobody", "alice")
    ]  # fmt: skip
    assert {each[0] for each in answers} == {11102} and len(set(answers)) == 1


async def test_a_lite_of_ours_cannot_become_a_partner(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateDomain", domain_id="lite1")
    lite = domain_caller("lite1")
    assert code(await alice.call(OPERATIONS, "UpdateDomain", caller=lite, domain_id="lite1", role="partner"))[0] == 11102  # fmt: skip


async def test_a_lite_makes_and_deletes_no_domains(tmp_path: Path) -> None:
    async with here(tmp_path, mode=Mode.LITE) as lite:
        assert code(await lite.call(OPERATIONS, "CreateDomain", domain_id="bob"))[0] == 11104
        assert code(await lite.call(OPERATIONS, "DeleteDomain", domain_id="bob"))[0] == 11104
    assert {each.method: each.on_lite.value for each in OPERATIONS} == {
        "CreateDomain": "refuse", "DeleteDomain": "refuse",
        "QueryDomain": "forward", "UpdateDomain": "forward", "BatchQueryDomain": "forward",
    }  # fmt: skip
