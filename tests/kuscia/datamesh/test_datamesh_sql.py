"""Engines that send SQL, on real databases, under grants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.flight as fl
import pymysql
import pytest
import servers_kit
from datamesh_kit import Shelf, World, command, threaded, world

from coterie.kube.api.meta import Object
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATA_SOURCES
from coterie.kuscia.identity.engine_certificates import EnginePair
from coterie.kuscia.sources import conformance
from coterie.kuscia.sources.protocol import SourceInfo
from coterie.kuscia.sources.source_registry import open_source

pytestmark = pytest.mark.timeout(300)

COLUMNS = [
    {"name": "id", "type": "int64"},
    {"name": "age", "type": "int32"},
    {"name": "salary", "type": "float64"},
    {"name": "name", "type": "string"},
]
PROBLEMS = (fl.FlightError, pa.ArrowException)
SETUP = (
    "CREATE TABLE people (id BIGINT, age INT, salary DOUBLE PRECISION, name VARCHAR(40), secret VARCHAR(40))",
    "INSERT INTO people VALUES (1, 30, 10.5, 'an\"n', 's1'), (2, 41, 20.5, NULL, 's2'), (3, 52, 30.5, 'it''s', 's3')",
    "CREATE TABLE visits (id BIGINT, day DATE)",
    "INSERT INTO visits VALUES (1, '2024-01-02'), (3, '2024-01-03')",
    "CREATE TABLE private (id BIGINT)",
    "INSERT INTO private VALUES (7)",
)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[SourceInfo]:
    with servers_kit.postgresql() as server:

        async def prepare() -> None:
            info = server.info
            assert info.password is not None
            connection = await asyncpg.connect(
                host="127.0.0.1",
                port=server.port,
                user=info.user,
                password=info.password.reveal(),
                database=info.database,
            )
            for each in (*SETUP, "CREATE FUNCTION upper(bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'own' $$"):
                await connection.execute(each)
            await connection.close()

        with ThreadPoolExecutor(1) as aside:  # a loop may run here
            aside.submit(asyncio.run, prepare()).result()
        yield server.info


@pytest.fixture(scope="module")
def mysql() -> Iterator[SourceInfo]:
    with servers_kit.mariadb() as server:
        info = server.info
        assert info.password is not None
        connection = pymysql.connect(
            host="127.0.0.1", port=server.port, user=info.user, password=info.password.reveal(), database="mesh"
        )
        with connection.cursor() as cursor:
            for each in (
                *SETUP,
                "CREATE TABLE floats (f FLOAT, d DECIMAL(12,3), u BIGINT UNSIGNED, b BLOB, t DATETIME)",
            ):
                cursor.execute(each)
            cursor.execute(
                "INSERT INTO floats VALUES (1.2345678, 12.345, 18446744073709551615, x'00ff', '2024-01-02 03:04:05')"
            )
        connection.commit()
        connection.close()
        yield info


@pytest.fixture(params=["postgresql", "mysql"])
async def alice(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    info: SourceInfo = request.getfixturevalue(request.param)
    real = Shelf.open
    opener: Callable[..., Any] = lambda shelf, wanted: open_source(wanted) if wanted.database else real(shelf, wanted)  # noqa: E731
    monkeypatch.setattr(Shelf, "open", opener)
    async with world(tmp_path) as made:
        assert info.password is not None
        settings: Object = {
            "endpoint": info.endpoint, "user": info.user, "password": info.password.reveal(), "database": info.database,
        }  # fmt: skip
        await made.source("shop", request.param, settings)
        await made.source("slow", request.param, {**settings, "query_seconds": 1})
        await made.table("people", COLUMNS, dataSource="shop", relativeURI="people", fileFormat="unknown")
        visits = [{"name": "id", "type": "int64"}, {"name": "day", "type": "date32"}]
        await made.table("visits", visits, dataSource="shop", relativeURI="visits", fileFormat="unknown")
        yield made


def query(client: fl.FlightClient, sql: str, source: str) -> pa.Table:
    info = client.get_flight_info(
        fl.FlightDescriptor.for_command(command("CommandDataSourceSqlQuery", datasource_id=source, sql=sql))
    )
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table.schema == info.schema
    return table


async def querying(alice: World, pair: EnginePair, sql: str, source: str = "shop") -> pa.Table:
    with alice.flight(pair) as client:
        return await threaded(query, client, sql, source)


async def test_own_engines_query_every_table_of_the_source(alice: World) -> None:
    engine = await alice.engine()
    got = await querying(alice, engine, "SELECT id, name, secret FROM people ORDER BY salary DESC")
    assert got.to_pydict() == {"id": [3, 2, 1], "name": ["it's", None, 'an"n'], "secret": ["s3", "s2", "s1"]}
    got = await querying(alice, engine, "SELECT count(*) AS n, max(p.age) AS m FROM private JOIN people AS p ON true")
    assert got.to_pydict() == {"n": [3], "m": [52]}
    got = await querying(
        alice,
        engine,
        "WITH v AS (SELECT id, day FROM visits WHERE day > CAST('2024-01-02' AS DATE)) "
        "SELECT v.day, CASE WHEN p.name = 'it''s' THEN 'yes' ELSE 'no' END AS found FROM people p JOIN v ON v.id = p.id",
    )
    assert [str(each) for each in got.column("day").to_pylist()] == ["2024-01-03"]
    assert got.column("found").to_pylist() == ["yes"]
    assert (await querying(alice, engine, "SELECT id FROM people WHERE id > 9")).num_rows == 0


async def test_a_partners_query_needs_a_grant_for_each_table(alice: World) -> None:
    bob = await alice.engine("bob")
    text = "SELECT p.age FROM people p JOIN visits v ON v.id = p.id ORDER BY p.age"
    with pytest.raises(fl.FlightUnauthorizedError, match='no grant for "people"'):
        await querying(alice, bob, text)
    await alice.grant("people-to-bob", "people", "bob", useCount=2)
    with pytest.raises(fl.FlightUnauthorizedError, match='no grant for "visits"'):
        await querying(alice, bob, text)
    assert (await alice.the_grant("people-to-bob")).uses == ()
    await alice.grant("visits-to-bob", "visits", "bob")
    assert (await querying(alice, bob, text)).to_pydict() == {"age": [30, 52]}
    assert len((await alice.the_grant("people-to-bob")).uses) == 1
    assert len((await alice.the_grant("visits-to-bob")).uses) == 1
    await querying(alice, bob, text)
    with pytest.raises(fl.FlightUnauthorizedError, match="was used 2 times"):
        await querying(alice, bob, text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT salary FROM people",
        "SELECT * FROM people",
        "SELECT id FROM people WHERE salary > 20",
        "SELECT id FROM people ORDER BY salary",
        "SELECT count(*) FROM people GROUP BY salary",
        "SELECT a.id FROM people a JOIN people b ON a.id = b.salary",
        "SELECT id FROM (SELECT * FROM people) q",
        "SELECT id FROM people WHERE age IN (SELECT salary FROM people)",
    ],
)
async def test_a_column_that_is_not_granted_is_not_read_in_any_clause(alice: World, text: str) -> None:
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id", "age"]))
    bob = await alice.engine("bob")
    with pytest.raises(fl.FlightUnauthorizedError, match="does not give column"):
        await querying(alice, bob, text)
    assert (await alice.the_grant("to-bob")).uses == ()


async def test_what_partners_cannot_reach(alice: World) -> None:
    await alice.grant("to-bob", "people", "bob")
    bob = await alice.engine("bob")
    assert (await querying(alice, bob, "SELECT * FROM people")).column_names == ["id", "age", "salary", "name"]
    for text, why in (
        ("SELECT secret FROM people", "secret"),  # a column that the DomainData does not declare
        ("SELECT id FROM private", "no DomainData of shop"),
        ("SELECT rolname FROM pg_authid", "no DomainData of shop"),
        ("SELECT 1 AS a", "reads no table"),
        ("SELECT id FROM people; SELECT 1", "one SELECT"),
    ):
        with pytest.raises(PROBLEMS, match=why):
            await querying(alice, bob, text)


async def test_server_tables_are_no_tables_of_the_source(alice: World) -> None:
    engine = await alice.engine()
    for name in ("pg_authid", "pg_class", "user", "tables", "coterie_staging_x"):
        with pytest.raises(PROBLEMS, match=r"there is no table|is being written|not understood"):
            await querying(alice, engine, f"SELECT count(*) AS n FROM {name}")


async def test_a_grant_that_ends_stops_the_query(alice: World) -> None:
    await alice.grant("to-bob", "people", "bob")
    bob = await alice.engine("bob")
    with alice.flight(bob) as client:
        asked = command("CommandDataSourceSqlQuery", datasource_id="shop", sql="SELECT id FROM people")
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(asked))
        await alice.client.delete(DOMAIN_DATA_GRANTS, "to-bob", alice.domain)
        with pytest.raises(fl.FlightUnauthorizedError, match="no grant"):
            await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())
        own = await alice.engine()
    with alice.flight(own) as client:
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(asked))
        change = {"metadata": {"annotations": {"x": "y"}}}
        await alice.client.patch(DOMAIN_DATA_SOURCES, "shop", alice.domain, change)
        with pytest.raises(PROBLEMS, match="shop changed since GetFlightInfo"):
            await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())


async def test_a_query_without_end_is_ended(alice: World) -> None:
    tables = ", ".join(f"people p{each}" for each in range(24))
    conditions = " + ".join(f"p{each}.id" for each in range(24))
    with pytest.raises(PROBLEMS, match=r"too long|took longer"):
        await querying(
            alice, await alice.engine(), f"SELECT count(*) AS n FROM {tables} WHERE {conditions} = 1", "slow"
        )


async def test_double_columns_and_sources_without_sql(alice: World) -> None:
    engine = await alice.engine()
    with pytest.raises(PROBLEMS, match=r"different names with AS|Duplicate column name"):
        await querying(alice, engine, "SELECT people.id, visits.id FROM people JOIN visits ON true")
    with pytest.raises(PROBLEMS, match="take no SQL"):
        await querying(alice, engine, "SELECT id FROM people", "default-data-source")


async def test_functions_of_the_database_are_not_found(alice: World, request: pytest.FixtureRequest) -> None:
    """`upper(bigint)` is somebody's own function; only the server's are called."""
    if "postgresql" not in request.node.callspec.id:
        pytest.skip("MySQL's own functions are always first")
    with pytest.raises(PROBLEMS, match="upper"):
        await querying(alice, await alice.engine(), "SELECT upper(id) AS x FROM people")


@pytest.mark.parametrize("alice", ["mysql"], indirect=True)
async def test_types_of_mysql(alice: World) -> None:
    got = await querying(alice, await alice.engine(), "SELECT f, d, u, b, t, sum(d) OVER () AS s FROM floats")
    row = got.to_pylist()[0]
    assert abs(row["f"] - 1.2345678) < 1e-6 and str(row["d"]) == "12.345" and row["u"] == 2**64 - 1
    assert row["b"] == b"\x00\xff" and str(row["t"]).startswith("2024-01-02") and str(row["s"]) == "12.345"


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
async def test_databases_conform(request: pytest.FixtureRequest, kind: str) -> None:
    await conformance.run_check(conformance.check_sql, request.getfixturevalue(kind), files=False)
