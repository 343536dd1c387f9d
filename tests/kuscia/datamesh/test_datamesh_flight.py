"""Rows in and out, by a client of Arrow's own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from datamesh_kit import PEOPLE, World, command, reading, threaded, writing

from coterie.base.clock import VirtualClock
from coterie.base.trace import TraceRing, trace_id
from coterie.kuscia.api.jobs.trace_context import pod_span
from coterie.kuscia.api.types.data import DOMAIN_DATA_RECORDS, DOMAIN_DATAS
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.errors import MeshError
from coterie.kuscia.datamesh.tickets import LIFE, Tickets

RESULT = [{"name": "id", "type": "int64"}, {"name": "name", "type": "str"}]


async def asked(world: World, pair: object, data: bytes) -> fl.FlightInfo:
    with world.flight(pair) as client:  # type: ignore[arg-type]
        return await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(data))


async def test_an_engine_of_an_own_job_reads_a_table(alice: World) -> None:
    await alice.table("people")
    got = await reading(alice, await alice.engine(), "people")
    assert got.equals(PEOPLE)


async def test_reads_are_spans_of_the_job_below_that_of_the_pod(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine("bob", job="psi", parties=["alice", "bob"])
    ring = alice.mesh.flight._traces = TraceRing()
    with pytest.raises(fl.FlightUnauthorizedError):
        await reading(alice, pair, "people")
    assert ring.recorded == 0
    await alice.grant("g", "people", "bob")
    assert (await reading(alice, pair, "people")).equals(PEOPLE)
    assert ring.recorded == 0, "traces are off"
    ring.on = True
    await reading(alice, pair, "people")
    alice.shelf.tables.clear()
    with pytest.raises(pa.ArrowException):
        await reading(alice, pair, "people")
    first, second = ring.after(0)[0]
    assert (first.name, first.trace) == ("data read", trace_id("bob", "psi"))
    assert first.parent == pod_span("uid-of-task-1", "task-1-0")
    assert first.attributes["coterie.data"] == "people" and int(first.attributes["coterie.bytes"]) > 100
    assert first.end > first.begin and not first.error
    assert "there is no people.csv" in second.error


async def test_columns_come_in_the_order_asked_for(alice: World) -> None:
    await alice.table("people")
    got = await reading(alice, await alice.engine(), "people", ["salary", "id"])
    assert got.equals(PEOPLE.select(["salary", "id"]))


async def test_an_empty_table_has_a_schema(alice: World) -> None:
    alice.shelf.tables["people.csv"] = PEOPLE.slice(0, 0)
    await alice.table("people")
    got = await reading(alice, await alice.engine(), "people", ["age"])
    assert (got.num_rows, got.schema.names) == (0, ["age"])


async def test_a_large_batch_comes_in_messages_that_any_client_takes(alice: World) -> None:
    big = pa.table({"id": pa.array(range(1_200_000), pa.int64())})
    alice.shelf.tables["big.csv"] = big
    await alice.table("big", [{"name": "id", "type": "int64"}])
    pair = await alice.engine()
    info = await asked(alice, pair, command("CommandDomainDataQuery", domaindata_id="big"))
    async with alice.channel(pair) as channel:
        ticket = info.endpoints[0].ticket.serialize()
        call = channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")(ticket)
        sizes = [len(message) async for message in call]
    assert sum(sizes) > big.nbytes
    assert max(sizes) < 4 << 20


async def test_what_is_written_is_there_at_once_and_says_who_wrote_it(alice: World) -> None:
    pair = await alice.engine(job="job-7")
    await alice.call(
        pair, "CreateDomainData", domaindata_id="out", name="out", type="table", columns=RESULT, file_format=1
    )
    table = pa.table({"id": pa.array([1, None], pa.int64()), "name": ["ä", None]})
    await writing(alice, pair, "out", table)
    assert alice.shelf.tables["out"].equals(table)
    (record,) = (await alice.client.list(DOMAIN_DATA_RECORDS, "alice")).items
    assert (record.spec.domain_data_id, record.spec.initiator, record.spec.written_by) == ("out", "alice", "job-7")


async def test_rows_get_the_declared_types_and_order(alice: World) -> None:
    pair = await alice.engine()
    await alice.call(pair, "CreateDomainData", domaindata_id="out", name="out", type="table", columns=RESULT)
    await writing(alice, pair, "out", pa.table({"name": ["x"], "id": pa.array([1], pa.int32())}))
    assert alice.shelf.tables["out"].equals(pa.table({"id": pa.array([1], pa.int64()), "name": ["x"]}))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        pytest.param(pa.table({"id": [1]}), "columns id were brought", id="a column is missing"),
        pytest.param(pa.table({"id": ["x"], "name": ["y"]}), "does not fit its declared type", id="no number"),
        pytest.param(
            pa.table({"id": [1], "name": pa.array(["y"]).dictionary_encode()}), "dictionary-encoded", id="dictionary"
        ),
    ],
)
async def test_what_does_not_fit_leaves_nothing(alice: World, table: pa.Table, why: str) -> None:
    pair = await alice.engine()
    await alice.call(pair, "CreateDomainData", domaindata_id="out", name="out", type="table", columns=RESULT)
    with pytest.raises(pa.ArrowInvalid, match=why):
        await writing(alice, pair, "out", table)
    assert "out" not in alice.shelf.tables


async def test_raw_bytes_go_in_one_binary_column(alice: World) -> None:
    pair = await alice.engine()
    await alice.call(pair, "CreateDomainData", domaindata_id="model", name="model", type="model", file_format=2)
    table = pa.table({"data": pa.array([b"ab", b"c"], pa.binary())})
    await writing(alice, pair, "model", table, content_type=1)
    assert (await reading(alice, pair, "model", content_type=1)).equals(table)


async def test_the_schema_is_the_declared_one(alice: World) -> None:
    columns = [{"name": "a", "type": "INT", "notNullable": True}, {"name": "b", "type": "datetime"}]
    await alice.table("t", columns)
    with alice.flight(await alice.engine()) as client:
        wanted = fl.FlightDescriptor.for_command(command("CommandGetDomainDataSchema", domaindata_id="t"))
        schema = (await threaded(client.get_schema, wanted)).schema
    assert schema.field("a") == pa.field("a", pa.int64(), nullable=False)
    assert schema.field("b") == pa.field("b", pa.date64())
    assert schema.metadata == {b"type": b"table"}


async def test_the_place_to_fetch_from_is_the_data_mesh(alice: World) -> None:
    await alice.table("people")
    info = await asked(alice, await alice.engine(), command("CommandDomainDataQuery", domaindata_id="people"))
    assert [each.uri for each in info.endpoints[0].locations] == [b"kuscia://datamesh"]


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        pytest.param(b"nonsense", pa.ArrowInvalid, "no command|Any", id="not an Any"),
        pytest.param(
            command("CommandDomainDataQuery", domaindata_id="nowhere"), KeyError, 'no DomainData "nowhere"', id="not there"
        ),
        pytest.param(
            command("CommandDomainDataQuery", domaindata_id="people", columns=["x"]), pa.ArrowInvalid, "no column x", id="column"
        ),
        pytest.param(
            command("CommandDataSourceSqlQuery", datasource_id="default-data-source", sql="SELECT 1"),
            NotImplementedError, "take no SQL", id="SQL",
        ),
        pytest.param(
            command("CommandDomainDataQuery", domaindata_id="people'; DROP TABLE people; --"), (KeyError, pa.ArrowInvalid),
            "no DomainData|name", id="SQL in a name",
        ),
    ],
)  # fmt: skip
async def test_questions_that_have_no_answer(alice: World, data: bytes, error: type[Exception], why: str) -> None:
    await alice.table("people")
    with pytest.raises(error, match=why):
        await asked(alice, await alice.engine(), data)


async def test_a_ticket_is_its_askers_alone(alice: World) -> None:
    await alice.table("people")
    info = await asked(alice, await alice.engine(), command("CommandDomainDataQuery", domaindata_id="people"))
    with alice.flight(await alice.engine()) as other, pytest.raises(pa.ArrowInvalid, match="ticket"):
        await threaded(lambda: other.do_get(info.endpoints[0].ticket).read_all())


async def test_a_ticket_is_for_what_it_was_given_for(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine()
    info = await asked(alice, pair, command("CommandDomainDataUpdate", domaindata_id="people"))
    with alice.flight(pair) as client, pytest.raises(pa.ArrowInvalid, match="for writing"):
        await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())


@pytest.mark.parametrize("how", ["deleted", "moved"])
async def test_a_ticket_is_for_the_table_as_it_was(alice: World, how: str) -> None:
    await alice.table("people")
    pair = await alice.engine()
    info = await asked(alice, pair, command("CommandDomainDataQuery", domaindata_id="people"))
    if how == "deleted":
        await alice.client.delete(DOMAIN_DATAS, "people", "alice")
    else:
        await alice.client.patch(DOMAIN_DATAS, "people", "alice", {"spec": {"relativeURI": "other.csv"}})
    with alice.flight(pair) as client, pytest.raises((KeyError, pa.ArrowInvalid), match=r"no DomainData|changed since"):
        await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())


async def test_a_ticket_ends_after_ten_minutes() -> None:
    clock = VirtualClock()
    tickets: Tickets[str] = Tickets(clock)
    caller = EngineCaller("alice", "pod", "uid", "alice")
    ticket = tickets.issue(caller, "people")
    await clock.advance(LIFE - 1)
    assert tickets.redeem(caller, ticket) == "people"
    await clock.advance(1)
    with pytest.raises(MeshError, match="ten minutes"):
        tickets.redeem(caller, ticket)
    assert len(tickets) == 0


async def test_actions_carry_the_services(alice: World) -> None:
    await alice.table("people")
    from_mesh = command("CommandGetDomainDataSchema", domaindata_id="people")
    with alice.flight(await alice.engine()) as client, pytest.raises(NotImplementedError, match="no action"):
        await threaded(lambda: list(client.do_action(fl.Action("ActionMakeCoffee", from_mesh))))
