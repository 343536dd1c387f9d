"""DomainDataGrantService: every code, both roles, each mode; signatures as the controller wants them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import definitions_kit
import pytest
from google.protobuf import json_format
from kuscia.proto.api.v1alpha1.kusciaapi import domaindatagrant_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.base import signatures
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api.grants import signed_text
from coterie.kuscia.api.types.data import DEFAULT_SOURCE, DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainDataGrant
from coterie.kuscia.api.types.domain import DOMAINS, Domain, DomainSpec
from coterie.kuscia.controllers.domaindatagrant import plan
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.grants import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode

SECOND = 10**9
ENDS = 4102444800 * SECOND
"""2100-01-01, in nanoseconds."""
LIMIT = {
    "expiration_time": ENDS, "use_count": 3, "flow_id": "f", "components": ["psi", "glm"], "initiator": "bob",
    "input_config": '{"columns": ["id"]}',
}  # fmt: skip


async def entry(world: World, name: str, domain: str = "alice", author: str = "", **spec: Any) -> None:
    full = {
        "author": author or domain,
        "name": name,
        "type": "model",
        "relativeURI": name,
        "dataSource": DEFAULT_SOURCE,
    }
    marks = {"kuscia.secretflow/owner-references": name} if author else {}
    obj = {"metadata": {"name": name, "labels": marks}, "spec": {**full, **spec}}
    await world.client.create(DOMAIN_DATAS.as_dynamic, obj, domain)


async def furnished(world: World) -> World:
    for name in ("alice", "bob"):
        await world.client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": {}})
        await entry(world, "table", name)
    return world


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path, namespaces=["bob"]) as world:
        yield await furnished(world)


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **request)


async def made(world: World, name: str = "g", **request: Any) -> str:
    given = {"domain_id": "alice", "domaindata_id": "table", "grant_domain": "bob", **request}
    answer = await call(world, "CreateDomainDataGrant", domaindatagrant_id=name, **given)
    assert answer.status.code == 0, answer.status.message
    return str(answer.data.domaindatagrant_id)


async def kept(world: World, name: str = "g", domain: str = "alice") -> DomainDataGrant:
    found: DomainDataGrant = await world.client.get(DOMAIN_DATA_GRANTS, name, domain)
    return found


def phase(world: World, grant: DomainDataGrant) -> tuple[str, str]:
    """What the controller says of it."""
    cert = base64.b64encode(world.here.identity.certificate.encode()).decode()
    status = plan.status(grant, Domain(spec=DomainSpec(cert=cert)), True, SYSTEM_CLOCK.now())
    return status.phase, status.message


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(domaindatagrant_pb2) == []


# Creating.


async def test_what_was_granted_is_told(alice: World) -> None:
    await made(alice, limit=LIMIT, description={"why": "<research> & more"})
    found = (await call(alice, "QueryDomainDataGrant", domain_id="alice", domaindatagrant_id="g")).data
    data = found.data
    assert (data.domaindatagrant_id, data.author, data.domain_id) == ("g", "alice", "alice")
    assert (data.domaindata_id, data.grant_domain, dict(data.description)) == (
        "table",
        "bob",
        {"why": "<research> & more"},
    )
    told = json_format.MessageToDict(data.limit, preserving_proto_field_name=True)
    assert told == {**LIMIT, "expiration_time": str(ENDS)}
    assert (found.status.phase, list(found.status.records)) == ("", [])


async def test_what_is_kept_is_what_the_controller_expects(alice: World) -> None:
    await made(alice, limit=LIMIT)
    grant = await kept(alice)
    data = await alice.client.get(DOMAIN_DATAS, "table", "alice")
    assert grant.metadata.labels == {
        "kuscia.secretflow/interconn-protocol-type": "kuscia",
        "kuscia.secretflow/domaindataid": "table",
        "kuscia.secretflow/domaindatagrant-domain": "bob",
    }
    assert grant.metadata.annotations == {"kuscia.secretflow/initiator": "alice"}
    [owner] = grant.metadata.owner_references or ()
    assert (owner.kind, owner.name, owner.uid) == ("DomainData", "table", data.metadata.uid)
    assert (grant.limit.expiration_time, grant.limit.grant_mode) == ("2100-01-01T00:00:00Z", ("normal",))
    assert phase(alice, grant) == ("Ready", "")


async def test_names_are_made_and_limits_may_be_absent(alice: World) -> None:
    name = await made(alice, "")
    assert name.startswith("domaindatagrant-")
    grant = await kept(alice, name)
    assert (grant.spec.limit, grant.spec.description) == (None, None)
    assert phase(alice, grant) == ("Ready", "")


async def test_a_name_that_is_taken(alice: World) -> None:
    await made(alice)
    request = {"domain_id": "alice", "domaindata_id": "table", "grant_domain": "carol", "domaindatagrant_id": "g"}
    assert (await call(alice, "CreateDomainDataGrant", **request)).status.code == 11704
    assert (await kept(alice)).spec.grant_domain == "bob"


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        pytest.param({"domain_id": ""}, 11100, "domain_id: must be given", id="no domain"),
        pytest.param({"domain_id": "carol"}, 11305, "carol", id="unknown domain"),
        pytest.param({"grant_domain": ""}, 11100, "grant_domain: must be given", id="to nobody"),
        pytest.param({"grant_domain": "alice"}, 11100, "grant_domain: must name another", id="to itself"),
        pytest.param({"grant_domain": "B ob"}, 11100, "grant_domain: ", id="to no domain"),
        pytest.param({"domaindata_id": ""}, 11100, "domaindata_id: must be given", id="nothing"),
        pytest.param({"domaindata_id": "none"}, 11100, "domaindata_id: there is no", id="unknown data"),
        pytest.param({"domaindata_id": "lent"}, 11100, "domaindata_id: is of bob", id="data of others"),
        pytest.param({"domaindatagrant_id": "G!"}, 11100, "domaindatagrant_id: ", id="no name"),
        pytest.param({"limit": {"expiration_time": -1}}, 11100, "limit.expiration_time: ", id="before all time"),
        pytest.param({"limit": {"use_count": -1}}, 11100, "limit.use_count: ", id="less than no use"),
        pytest.param({"signature": "bm9uZQ=="}, 11100, "signature: is not alice's", id="a wrong signature"),
        pytest.param({"signature": "%"}, 11100, "signature: is not alice's", id="no signature at all"),
    ],
)
async def test_refused(alice: World, change: dict[str, Any], code: int, why: str) -> None:
    await entry(alice, "lent", author="bob")
    request = {"domain_id": "alice", "domaindata_id": "table", "grant_domain": "bob", "domaindatagrant_id": "g"}
    answer = await call(alice, "CreateDomainDataGrant", **{**request, **change})
    assert answer.status.code == code, answer.status.message
    assert why in answer.status.message
    assert (await alice.client.list(DOMAIN_DATA_GRANTS, "alice")).items == []


async def test_a_good_signature_is_kept(alice: World) -> None:
    await made(alice, "first", limit=LIMIT)
    theirs = (await kept(alice, "first")).spec.signature
    await made(alice, "second", limit=LIMIT, signature=theirs)
    assert (await kept(alice, "second")).spec.signature == theirs


# Changing.


async def update(world: World, **request: Any) -> Any:
    return await call(world, "UpdateDomainDataGrant", **{"domain_id": "alice", "domaindatagrant_id": "g", **request})


async def test_an_update_keeps_the_limits_it_does_not_speak_of(alice: World) -> None:
    await made(alice, limit=LIMIT)
    answer = await update(alice, domaindata_id="table", grant_domain="bob", description={"now": "more"})
    assert answer.status.code == 0
    grant = await kept(alice)
    assert (grant.limit.use_count, grant.spec.description) == (3, {"now": "more"})
    assert phase(alice, grant) == ("Ready", "")


async def test_limits_that_are_given_replace_all(alice: World) -> None:
    await made(alice, limit=LIMIT)
    assert (await update(alice, limit={"use_count": 9})).status.code == 0
    grant = await kept(alice)
    assert (grant.limit.use_count, grant.limit.expiration_time, grant.limit.components) == (9, None, None)
    assert phase(alice, grant) == ("Ready", "")
    assert (await update(alice, limit={})).status.code == 0
    assert (await kept(alice)).limit.use_count == 0


async def test_what_a_query_told_can_be_sent_back_changed(alice: World) -> None:
    await made(alice, limit=LIMIT)
    told = (await call(alice, "QueryDomainDataGrant", domain_id="alice", domaindatagrant_id="g")).data.data
    assert (await update(alice, signature=told.signature, limit={"use_count": 1})).status.code == 0
    grant = await kept(alice)
    assert grant.spec.signature not in ("", told.signature)
    assert phase(alice, grant) == ("Ready", "")


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        pytest.param({"domaindata_id": "other"}, 11100, "domaindata_id: is table", id="other data"),
        pytest.param({"grant_domain": "carol"}, 11100, "grant_domain: is bob", id="another domain"),
        pytest.param({"signature": "bm9uZQ=="}, 11100, "signature: ", id="a wrong signature"),
        pytest.param({"domaindatagrant_id": "none"}, 11705, 'no DomainDataGrant "none"', id="unknown"),
        pytest.param({"domaindatagrant_id": "lent"}, 11701, "is of bob", id="a grant of others"),
        pytest.param({"limit": {"expiration_time": -9}}, 11100, "limit.expiration_time: ", id="a bad limit"),
    ],
)
async def test_changes_refused(alice: World, change: dict[str, Any], code: int, why: str) -> None:
    await made(alice, limit=LIMIT)
    spec = {"author": "bob", "domainDataID": "t", "grantDomain": "alice"}
    await alice.client.create(DOMAIN_DATA_GRANTS.as_dynamic, {"metadata": {"name": "lent"}, "spec": spec}, "alice")
    before = await kept(alice)
    answer = await update(alice, **change)
    assert answer.status.code == code, answer.status.message
    assert why in answer.status.message
    assert await kept(alice) == before
    if code == 11701:
        assert (await call(alice, "DeleteDomainDataGrant", domain_id="alice", **change)).status.code == 11703


async def test_deleted_is_gone(alice: World) -> None:
    await made(alice)
    request = {"domain_id": "alice", "domaindatagrant_id": "g"}
    assert (await call(alice, "DeleteDomainDataGrant", **request)).status.code == 0
    assert (await call(alice, "DeleteDomainDataGrant", **request)).status.code == 11705
    assert (await call(alice, "QueryDomainDataGrant", **request)).status.code == 11705


# Several.


async def test_a_batch_tells_what_it_found_and_what_it_did_not(alice: World) -> None:
    for name in ("a", "b"):
        await made(alice, name)
    asked = [{"domain_id": "alice", "domaindatagrant_id": name} for name in ("b", "a")]
    whole = await call(alice, "BatchQueryDomainDataGrant", data=asked)
    assert (whole.status.code, [each.data.domaindatagrant_id for each in whole.data]) == (0, ["b", "a"])
    missing = {"domain_id": "alice", "domaindatagrant_id": "none"}
    part = await call(alice, "BatchQueryDomainDataGrant", data=[asked[0], missing, asked[1]])
    assert (part.status.code, part.status.message[:18]) == (11702, "1 of 3 grants were")
    [detail] = part.status.details
    why = messages.Status()
    assert detail.Unpack(why)
    assert (why.code, '"none" of alice' in why.message) == (11705, True)
    assert [each.data.domaindatagrant_id for each in part.data] == ["b", "a"]
    assert (await call(alice, "BatchQueryDomainDataGrant")).status.code == 11100


async def listed(world: World, **request: Any) -> tuple[list[str], str]:
    answer = await call(world, "ListDomainDataGrant", data={"domain_id": "alice", **request})
    assert answer.status.code == 0, answer.status.message
    return [each.data.domaindatagrant_id for each in answer.data.domaindatagrant_list], answer.data.next_page_token


async def test_lists_are_filtered(alice: World) -> None:
    await entry(alice, "made", vendor="secretflow")
    await made(alice, "g1")
    await made(alice, "g2", grant_domain="carol", domaindata_id="made")
    await made(alice, "g3", domaindata_id="made")
    assert await listed(alice) == (["g1", "g2", "g3"], "")
    assert await listed(alice, grant_domain="bob") == (["g1", "g3"], "")
    assert await listed(alice, domaindata_vendor="secretflow") == (["g2", "g3"], "")
    assert await listed(alice, domaindata_vendor="secretflow", grant_domain="bob") == (["g3"], "")
    assert (await call(alice, "ListDomainDataGrant", data={"domain_id": "carol"})).status.code == 11305


async def test_pages_go_on_after_what_was_told(alice: World) -> None:
    for index in range(5):
        await made(alice, f"g{index}")
    first, token = await listed(alice, page_size=2)
    await call(alice, "DeleteDomainDataGrant", domain_id="alice", domaindatagrant_id="g1")
    await made(alice, "g0a")
    second, token = await listed(alice, page_size=2, page_token=token)
    third, end = await listed(alice, page_size=2, page_token=token)
    assert (first, second, third, end) == (["g0", "g1"], ["g2", "g3"], ["g4"], "")
    bad = await call(alice, "ListDomainDataGrant", data={"domain_id": "alice", "page_token": "%"})
    assert (bad.status.code, bad.status.message[:16]) == (11100, "data.page_token:")


async def test_uses_are_told(alice: World) -> None:
    await made(alice)
    records = [{"use_time": "2026-01-01T00:00:00Z", "grant_domain": "bob", "component": "psi", "output": "o"}]
    status = {"phase": "Unavailable", "message": "UseCount is exhausted", "use_records": records}
    await alice.client.patch_status(DOMAIN_DATA_GRANTS, "g", "alice", {"status": status})
    found = (await call(alice, "QueryDomainDataGrant", domain_id="alice", domaindatagrant_id="g")).data.status
    assert (found.phase, found.message) == ("Unavailable", "UseCount is exhausted")
    [record] = found.records
    assert (record.use_time, record.grant_domain) == (1767225600 * SECOND, "bob")
    assert (record.component, record.output) == ("psi", "o")


# Where, and who.


async def test_a_master_keeps_what_the_owner_signed(tmp_path: Path, alice: World) -> None:
    """It has the key of nobody; the controller looks at the signature."""
    await made(alice, limit=LIMIT)
    theirs = (await kept(alice)).spec
    async with here(tmp_path / "m", mode=Mode.MASTER, domain="master", namespaces=["alice", "bob"]) as master:
        await furnished(master)
        await made(master, limit=LIMIT, signature=theirs.signature)
        await made(master, "unsigned", domain_id="bob", grant_domain="alice")
        grant = await kept(master)
        assert signatures.is_valid(
            base64.b64decode(grant.spec.signature), signed_text(grant.spec), alice.here.identity.key.public_key()
        )
        assert (await kept(master, "unsigned", "bob")).spec.signature == ""


async def test_a_lite_grants_only_its_own(alice: World, tmp_path: Path) -> None:
    async with here(tmp_path / "lite", mode=Mode.LITE, client=alice.client) as lite:
        await made(lite)
        assert phase(lite, await kept(lite)) == ("Ready", "")
        answer = await call(lite, "QueryDomainDataGrant", domain_id="bob", domaindatagrant_id="g")
        assert (answer.status.code, "must be alice" in answer.status.message) == (11100, True)


@pytest.mark.parametrize("method", [each.method for each in OPERATIONS])
async def test_domains_do_not_come_to_grants_through_the_gateway(alice: World, method: str) -> None:
    assert (await call(alice, method, caller=domain_caller("alice"))).status.code == 11102
