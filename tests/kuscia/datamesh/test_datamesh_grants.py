"""Whose task may use a table: attacks on grants, each through the whole data mesh."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from datamesh_kit import PEOPLE, World, command, reading, threaded

from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS

PSI = {"sf_node_eval_param": {"domain": "data_prep", "name": "psi", "version": "1.0.0"}}
SOON = rfc3339(SYSTEM_CLOCK.now() + timedelta(hours=1))
PAST = rfc3339(SYSTEM_CLOCK.now() - timedelta(seconds=2))


async def test_without_a_grant_a_partners_task_reads_nothing(alice: World) -> None:
    await alice.table("people")
    with pytest.raises(fl.FlightUnauthorizedError, match='"bob" began the task and has no grant'):
        await reading(alice, await alice.engine("bob"), "people")


async def test_a_grant_opens_the_table_and_counts_the_use(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob")
    got = await reading(alice, await alice.engine("bob", job="job-9", input_config=PSI), "people")
    assert got.equals(PEOPLE)
    (use,) = (await alice.the_grant("to-bob")).uses
    assert (use.grant_domain, use.component) == ("bob", "data_prep/psi:1.0.0")
    assert "job-9" in use.output


async def test_uses_and_refusals_are_counted_by_partner(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob")
    for _ in range(2):
        await reading(alice, await alice.engine("bob"), "people")
    with pytest.raises(fl.FlightUnauthorizedError):
        await reading(alice, await alice.engine("carol"), "people")
    found = {family.name: dict(family.rows) for family in alice.mesh.metrics.families()}
    assert found["coterie_grant_uses_total"] == {'partner="bob"': 2}
    assert found["coterie_grant_refusals_total"] == {'partner="carol"': 1}
    assert found["coterie_datamesh_rows_total"] == {'direction="read",partner="bob"': 6}
    assert found["coterie_datamesh_streams_total"] == {'direction="read",partner="bob"': 2}


ROWS: list[Any] = [
    # limits, engine, columns asked for, why it is refused (None: it is not)
    pytest.param({}, {"initiator": "carol"}, [], "grantDomain|is for \"bob\"", id="other grantee"),
    pytest.param({"expirationTime": SOON}, {}, [], None, id="not yet ended"),
    pytest.param({"expirationTime": PAST}, {}, [], "ended at", id="ended"),
    pytest.param({"inputConfig": columns_limit(["id"])}, {}, ["id"], None, id="granted column"),
    pytest.param({"inputConfig": columns_limit(["id"])}, {}, ["id", "salary"], "column salary", id="extra column"),
    pytest.param({"inputConfig": columns_limit(["id"])}, {}, [], "column age, salary", id="all columns"),
    pytest.param({"components": ["psi"]}, {"input_config": PSI}, [], None, id="component"),
    pytest.param({"components": ["data_prep/psi"]}, {"input_config": PSI}, [], None, id="component with its domain"),
    pytest.param({"components": ["sgb_train"]}, {"input_config": PSI}, [], "component sgb_train", id="other component"),
    pytest.param({"components": ["psi"]}, {}, [], "not secretflow-image", id="no component"),
    pytest.param(
        {"components": ["psi"]}, {"input_config": {"component": "psi"}}, [], "not secretflow-image",
        id="a component that the engine does not read",
    ),
    pytest.param(
        {"components": ["psi"]}, {"input_config": PSI, "app_image": "scql", "component_field": ""}, [], "not scql",
        id="a component that the AppImage does not have",
    ),
    pytest.param({"components": ["psi"]}, {"app_image": "psi", "component_field": ""}, [], None, id="AppImage"),
    pytest.param(
        {"components": ["secretflow-image@sha256:12#psi"]}, {"input_config": PSI, "image_id": "sha256:12"}, [], None,
        id="component of a digest",
    ),
    pytest.param(
        {"components": ["secretflow-image@sha256:12"]}, {"input_config": PSI, "image_id": "sha256:34"}, [],
        "component secretflow-image@sha256:12, not data_prep/psi:1.0.0", id="another digest",
    ),
    pytest.param({"flowID": "f1"}, {"flow": "f1"}, [], None, id="flow"),
    pytest.param({"flowID": "f1"}, {"flow": "f2"}, [], 'flow "f1"', id="other flow"),
    pytest.param({"flowID": "f1"}, {}, [], 'flow "f1"', id="no flow"),
    pytest.param({"initiator": "bob"}, {}, [], None, id="initiator"),
    pytest.param({"initiator": "carol"}, {}, [], 'tasks of "carol"', id="other initiator"),
    pytest.param(
        {"initiator": "carol"}, {"initiator": "carol", "parties": ["alice", "bob", "carol"]}, [], None,
        id="the grantee takes part in a task of the named initiator",
    ),
    pytest.param(
        {"initiator": "carol"}, {"initiator": "carol", "parties": ["alice", "carol"]}, [], 'is for "bob"',
        id="the grantee does not take part",
    ),
    pytest.param({"inputConfig": '{"a": 1}'}, {"input_config": {"a": 1}}, [], None, id="input"),
    pytest.param({"inputConfig": '{"a": 1}'}, {"input_config": {"a": 2}}, [], "another task input", id="other input"),
    pytest.param({"grantMode": ["metadata"]}, {}, [], "is for metadata", id="metadata only"),
    pytest.param({"grantMode": ["normal"]}, {}, [], None, id="normal"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "engine", "columns", "why"), ROWS)
async def test_limits(
    alice: World, limit: dict[str, Any], engine: dict[str, Any], columns: list[str], why: str | None
) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", **limit)
    pair = await alice.engine(**{"initiator": "bob", **engine})
    if why is None:
        assert (await reading(alice, pair, "people", columns)).num_rows == 3
        assert len((await alice.the_grant("to-bob")).uses) == 1
    else:
        with pytest.raises(fl.FlightUnauthorizedError, match=why):
            await reading(alice, pair, "people", columns)
        assert (await alice.the_grant("to-bob")).uses == ()


async def test_the_file_itself_is_more_than_some_columns(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id", "age", "salary"]))
    with pytest.raises(fl.FlightUnauthorizedError, match="not the file"):
        await reading(alice, await alice.engine("bob"), "people", content_type=1)


async def test_only_granted_columns_are_told_of(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id"]))
    pair = await alice.engine("bob")
    told = await alice.call(pair, "QueryDomainData", domaindata_id="people")
    assert [each.name for each in told.data.columns] == ["id"]
    with alice.flight(pair) as client:
        wanted = fl.FlightDescriptor.for_command(command("CommandGetDomainDataSchema", domaindata_id="people"))
        assert (await threaded(client.get_schema, wanted)).schema.names == ["id"]


async def test_fifty_reads_at_once_use_a_grant_for_five_just_five_times(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", useCount=5)
    pair = await alice.engine("bob")
    ends = await asyncio.gather(*(reading(alice, pair, "people") for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(each, pa.Table) for each in ends) == 5
    refused = [str(each) for each in ends if isinstance(each, fl.FlightUnauthorizedError)]
    assert len(refused) == 45
    assert all("may be used 5 times" in each for each in refused)
    assert len((await alice.the_grant("to-bob")).uses) == 5


async def test_tickets_that_were_given_before_do_not_stretch_the_count(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", useCount=1)
    query = fl.FlightDescriptor.for_command(command("CommandDomainDataQuery", domaindata_id="people"))
    with alice.flight(await alice.engine("bob")) as client:
        infos = [await threaded(client.get_flight_info, query) for _ in range(2)]
        assert (await threaded(lambda: client.do_get(infos[0].endpoints[0].ticket).read_all())).num_rows == 3
        for info in infos:
            with pytest.raises(fl.FlightUnauthorizedError, match="was used 1 times"):
                await threaded(lambda info=info: client.do_get(info.endpoints[0].ticket).read_all())


async def test_a_count_holds_beside_other_writers(alice: World) -> None:
    """A controller writes the same status all the time; no use is lost and none is made up."""
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", useCount=8)
    stop = asyncio.Event()

    async def controller() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            status = {"status": {"phase": "Ready", "message": str(turn)}}
            await alice.client.patch_status(DOMAIN_DATA_GRANTS, "to-bob", "alice", status)
            await asyncio.sleep(0.001)

    writer = asyncio.create_task(controller())
    pair = await alice.engine("bob")
    ends = await asyncio.gather(*(reading(alice, pair, "people") for _ in range(12)), return_exceptions=True)
    stop.set()
    await writer
    assert sum(isinstance(each, pa.Table) for each in ends) == 8
    assert len((await alice.the_grant("to-bob")).uses) == 8


@pytest.mark.parametrize("how", ["deleted", "ended", "given to another"])
async def test_a_grant_that_goes_stops_the_read(alice: World, how: str) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob")
    alice.shelf.gate = asyncio.Event()
    query = fl.FlightDescriptor.for_command(command("CommandDomainDataQuery", domaindata_id="people"))
    with alice.flight(await alice.engine("bob")) as client:
        info = await threaded(client.get_flight_info, query)
        reader = await threaded(client.do_get, info.endpoints[0].ticket)
        assert (await threaded(reader.read_chunk)).data.num_rows == 3
        match how:
            case "deleted":
                await alice.client.delete(DOMAIN_DATA_GRANTS, "to-bob", "alice")
            case "ended":
                patch: dict[str, Any] = {"spec": {"signature": None, "limit": {"expirationTime": PAST}}}
                await alice.client.patch(DOMAIN_DATA_GRANTS, "to-bob", "alice", patch)
            case _:
                patch = {"spec": {"signature": None, "grantDomain": "carol"}}
                await alice.client.patch(DOMAIN_DATA_GRANTS, "to-bob", "alice", patch)
        with pytest.raises(fl.FlightUnauthorizedError, match="the read was stopped"):
            await threaded(reader.read_all)


async def test_a_forged_signature_is_no_grant(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", useCount=1)
    await alice.client.patch(DOMAIN_DATA_GRANTS, "to-bob", "alice", {"spec": {"limit": {"useCount": 100}}})
    with pytest.raises(fl.FlightUnauthorizedError, match="signature"):
        await reading(alice, await alice.engine("bob"), "people")


async def test_a_grant_that_somebody_else_wrote_is_none(alice: World) -> None:
    await alice.table("people")
    spec = {"author": "bob", "domainDataID": "people", "grantDomain": "bob"}
    obj = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainDataGrant",
        "metadata": {"name": "g"},
        "spec": spec,
    }
    await alice.client.create(DOMAIN_DATA_GRANTS.as_dynamic, obj, "alice")
    with pytest.raises(fl.FlightUnauthorizedError, match="has no grant"):
        await reading(alice, await alice.engine("bob"), "people")


async def test_a_grant_without_a_count_is_used_before_one_with_a_count(alice: World) -> None:
    await alice.table("people")
    await alice.grant("a-counted", "people", "bob", useCount=1)
    await alice.grant("b-free", "people", "bob")
    await reading(alice, await alice.engine("bob"), "people")
    assert [len((await alice.the_grant(name)).uses) for name in ("a-counted", "b-free")] == [0, 1]


async def test_data_of_others_is_not_here(alice: World) -> None:
    await alice.table("theirs", author="bob", vendor="grant")
    with pytest.raises(fl.FlightUnauthorizedError, match='lies at its owner "bob"'):
        await reading(alice, await alice.engine(), "theirs")


async def test_a_pod_that_ended_is_nobody(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine()
    await alice.client.patch_status(PODS, "task-1-0", "alice", {"status": {"phase": "Succeeded"}})
    with pytest.raises(fl.FlightUnauthorizedError, match="does not run any more"):
        await reading(alice, pair, "people")
