"""ODPS tables: the suite of all sources through the unmodified PyODPS, on a server that speaks the documented protocol (`odps_kit`)."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hive_kit
import odps_kit
import pyarrow as pa
import pytest
from datamesh_kit import World, api_world, reading, writing

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.datamesh.server import DataMesh
from coterie.kuscia.datamesh.settings import MeshSettings
from coterie.kuscia.sources import conformance, odps
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
)
from coterie.kuscia.sources.sealed_sources import location, settings_info
from coterie.kuscia.sources.source_registry import open_source

FIRST = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", None, "c"]})
KINDS = (("id", "BIGINT"), ("name", "STRING"))
GOOD = SourceInfo(
    kind="odps",
    endpoint="http://127.0.0.1:1/api",
    access_key_id=odps_kit.ID,
    access_key_secret=SecretValue(odps_kit.KEY),
    extra={"project": "shop"},
)


# Without the library.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"endpoint": "ftp://x"}, "address"),
        ({"endpoint": "https://user:word@x/api"}, "address"),
        ({"endpoint": ""}, "needs `endpoint`"),
        ({"extra": {}}, "needs `endpoint` and `project`"),
        ({"extra": {"project": "a/../b"}}, "needs `endpoint` and `project`"),
        ({"access_key_secret": None}, "needs `access_key_id`"),
        ({"access_key_id": ""}, "needs `access_key_id`"),
        ({"extra": {"project": "shop", "region": "x"}}, "no setting region"),
        ({"extra": {"project": "shop", "ca": "x"}}, "no certificate"),
        ({"extra": {"project": "shop", "tunnel_endpoint": "x"}}, "address"),
    ],
)
def test_settings_that_cannot_be_right(change: dict[str, Any], sentence: str) -> None:
    open_source(GOOD)
    with pytest.raises(SourceError, match=sentence):
        open_source(replace(GOOD, **change))


def test_settings_as_kuscia_spells_them() -> None:
    settings = {"endpoint": "https://o.example/api", "project": "shop", "access_key_id": "i", "access_key_secret": "s"}
    info = settings_info("odps", settings)
    assert (info.endpoint, info.extra["project"], info.access_key_id) == ("https://o.example/api", "shop", "i")
    assert "s" not in repr(info.access_key_secret).replace("Secret", "")
    open_source(info)


def test_one_place_has_one_name() -> None:
    """Also where results may be put: projects are apart, and case does not matter."""
    other = replace(GOOD, extra={"project": "stock"})
    assert location(GOOD, "People") == location(GOOD, "people") != location(other, "people")


async def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'odps'")

    monkeypatch.setattr(odps, "odps_client", Missing())
    with pytest.raises(SourceUnreachable, match=r"pip install coterie\[odps\]"):
        async with open_source(GOOD):
            pass


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.uint64(), "DECIMAL(20,0)"),
        (pa.time64("us"), "BIGINT"),
        (pa.duration("s"), "BIGINT"),
        (pa.timestamp("us"), "TIMESTAMP_NTZ"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP"),
        (pa.decimal128(10, 2), "DECIMAL(10,2)"),
    ],
)
def test_types(kind: pa.DataType, shown: str) -> None:
    assert odps.odps_type(kind) == shown


def test_a_type_that_odps_does_not_have() -> None:
    with pytest.raises(SourceError, match="no type for list"):
        odps.odps_type(pa.list_(pa.int8()))


# With it.


@pytest.fixture
def project() -> Iterator[odps_kit.Project]:
    pytest.importorskip("odps", reason="the extra `odps` is not installed")
    with odps_kit.odps_server() as found:
        found.put("people", FIRST, kinds=KINDS)
        yield found


@pytest.fixture
def info(project: odps_kit.Project) -> SourceInfo:
    return replace(GOOD, endpoint=f"http://127.0.0.1:{project.port}/api")


async def fetch(
    info: SourceInfo, place: DataLocation | str, schema: pa.Schema | None = None, **options: Any
) -> list[tuple[Any, ...]]:
    found = DataLocation(place) if isinstance(place, str) else place
    async with open_source(info) as source, source.read(found, schema, TableReadOptions(**options)) as stream:
        rows = [row async for batch in stream for row in batch.to_pylist()]
    return [tuple(row.values()) for row in rows]


async def store(info: SourceInfo, place: DataLocation, batch: pa.RecordBatch) -> None:
    async with open_source(info) as source, source.write(place, batch.schema) as sink:
        await sink.put(batch)


@pytest.mark.parametrize("check", conformance.checks(read_only=False), ids=lambda each: each.__name__)
async def test_odps_conforms(info: SourceInfo, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, info, files=False)


async def test_columns_are_chosen_by_the_server(project: odps_kit.Project, info: SourceInfo) -> None:
    assert await fetch(info, "people", None, columns=("name",)) == [("a",), (None,), ("c",)]
    assert project.columns_read == ["name"]


async def test_case_does_not_matter(info: SourceInfo) -> None:
    wanted = pa.schema([("Name", pa.string()), ("ID", pa.int32())])
    assert await fetch(info, "People", wanted) == [("a", 1), (None, 2), ("c", 3)]


async def test_partitions_are_read_one_after_the_other(project: odps_kit.Project, info: SourceInfo) -> None:
    table = project.put("parts", kinds=KINDS, keys=["ds"])
    table.rows = {"ds=x": [FIRST], "ds=y": [FIRST.slice(2)]}
    assert await fetch(info, "parts") == [(1, "a", "x"), (2, None, "x"), (3, "c", "x"), (3, "c", "y")]
    assert await fetch(info, DataLocation("parts", partition="ds=y")) == [(3, "c", "y")]
    assert await fetch(info, DataLocation("parts", partition="DS=y"), pa.schema([("ds", pa.string())])) == [("y",)]
    with pytest.raises(DataNotFound, match="no such partition"):
        await fetch(info, DataLocation("parts", partition="ds=z"))
    with pytest.raises(SourceError, match="no partitions by day"):
        await fetch(info, DataLocation("parts", partition="day=y"))


@pytest.mark.parametrize(
    "uri",
    ["stock.people", "a/b", "../people", "people`; DROP TABLE x", "", "coterie_staging_1", "Coterie_Staging_1", "a b"],
)
async def test_names_that_lead_elsewhere(project: odps_kit.Project, info: SourceInfo, uri: str) -> None:
    for work in (fetch(info, uri), store(info, DataLocation(uri), FIRST)):
        with pytest.raises(SourceForbidden):
            await work
    assert project.requests == []


@pytest.mark.parametrize("value", ["x' OR '1", "a=b", "x\\"])
async def test_partitions_that_are_no_values(project: odps_kit.Project, info: SourceInfo, value: str) -> None:
    with pytest.raises(SourceError):
        await store(info, DataLocation("parts", partition=f"ds={value}"), FIRST)
    assert project.statements == []


async def test_a_table_with_the_same_columns_is_replaced_by_one_commit(
    project: odps_kit.Project, info: SourceInfo
) -> None:
    await store(info, DataLocation("people"), FIRST.slice(1, 1))
    assert project.statements == [] and await fetch(info, "people") == [(2, None)]
    await store(info, DataLocation("people"), pa.RecordBatch.from_pydict({"id": [1.5]}))
    assert [each.split()[0] for each in project.statements] == ["CREATE", "ALTER", "ALTER", "DROP"]
    assert await fetch(info, "people") == [(1.5,)] and [*project.tables] == ["people"]


async def test_a_table_that_cannot_take_the_old_ones_place(project: odps_kit.Project, info: SourceInfo) -> None:
    """The old one has its name back, and the new one is gone."""
    run = project.execute

    def refuses(statement: str) -> None:
        if statement.rstrip(";").endswith("TO `people`") and "_old`" not in statement:
            raise KeyError(statement)
        run(statement)

    project.execute = refuses  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="refused the request"):
        await store(info, DataLocation("people"), pa.RecordBatch.from_pydict({"other": [1]}))
    assert [*project.tables] == ["people"] and await fetch(info, "people") == [(1, "a"), (2, None), (3, "c")]


async def test_a_write_that_is_cancelled_leaves_nothing(project: odps_kit.Project, info: SourceInfo) -> None:
    other = pa.RecordBatch.from_pydict({"other": [1]})
    begun = asyncio.Event()

    async def writes() -> None:
        async with open_source(info) as source, source.write(DataLocation("people"), other.schema) as sink:
            await sink.put(other)
            begun.set()
            await asyncio.Event().wait()

    cancelled = asyncio.create_task(writes(), name="cancelled")
    await begun.wait()
    assert len(project.tables) == 2
    cancelled.cancel()
    assert (await asyncio.wait({cancelled}, timeout=10))[0] and cancelled.cancelled()
    assert [*project.tables] == ["people"] and await fetch(info, "people") == [(1, "a"), (2, None), (3, "c")]


async def test_whole_and_partitioned_tables_are_not_mixed(project: odps_kit.Project, info: SourceInfo) -> None:
    project.put("parts", kinds=KINDS, keys=["ds"])
    with pytest.raises(SourceError, match="has partitions; write one"):
        await store(info, DataLocation("parts"), FIRST)
    with pytest.raises(SourceError, match="no partitions of this name"):
        await store(info, DataLocation("people", partition="ds=x"), FIRST)


async def test_views_and_lists(project: odps_kit.Project, info: SourceInfo) -> None:
    project.put("view", kinds=KINDS).view = True
    with pytest.raises(SourceError, match="is a view"):
        await fetch(info, "view")
    project.put("lists", kinds=(("id", "BIGINT"), ("many", "ARRAY<STRING>")))
    async with open_source(info) as source:
        assert (await source.schema(DataLocation("lists"))).names == ["id"]


async def test_deleting(project: odps_kit.Project, info: SourceInfo) -> None:
    async with open_source(info) as source:
        await source.delete(DataLocation("people"))
        with pytest.raises(DataNotFound):
            await source.delete(DataLocation("people"))
        table = project.put("parts", kinds=KINDS, keys=["ds"])
        table.rows = {"ds=x": [FIRST], "ds=y": [FIRST]}
        await source.delete(DataLocation("parts", partition="ds=x"))
    assert [*project.tables["parts"].rows] == ["ds=y"]


# In the data mesh.


@pytest.fixture
async def alice(info: SourceInfo, tmp_path: Path) -> AsyncIterator[World]:
    async with api_world(tmp_path) as made:
        settings = MeshSettings(made.domain, made.paths, http_port=0, grpc_port=0, recheck_seconds=0.05)
        made.mesh = DataMesh(settings, made.client, made.identity, open_source, SYSTEM_CLOCK, run=tmp_path)
        keys = {"access_key_id": odps_kit.ID, "access_key_secret": odps_kit.KEY}
        await made.source("warehouse", "odps", {"endpoint": info.endpoint, "project": "shop", **keys})
        columns = [{"name": "id", "type": "int64"}, {"name": "name", "type": "str"}]
        await made.table("people", columns, dataSource="warehouse", relativeURI="people", fileFormat="unknown")
        async with made.mesh:
            made.grpc_port = made.mesh.grpc_port
            yield made


async def test_grants_say_which_columns_odps_is_asked_for(alice: World, project: odps_kit.Project) -> None:
    bob = await alice.engine("bob")
    with pytest.raises(Exception, match="has no grant"):
        await reading(alice, bob, "people")
    assert project.requests == []
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id"]))
    assert (await reading(alice, bob, "people", ["id"])).to_pydict() == {"id": [1, 2, 3]}
    with pytest.raises(Exception, match=r"does not give column name"):
        await reading(alice, bob, "people", ["id", "name"])
    assert {*project.columns_read} == {"id"}


async def test_a_partners_task_writes_beside_our_tables_only(alice: World, project: odps_kit.Project) -> None:
    bob = await alice.engine("bob")
    fields: dict[str, Any] = {
        "name": "m", "type": "table", "datasource_id": "warehouse",
        "columns": [{"name": "id", "type": "int64"}],
    }  # fmt: skip
    project.put("unknown", FIRST, kinds=KINDS)
    for uri in ("people", "PEOPLE", "Unknown"):
        answer = await alice.call(bob, "CreateDomainData", domaindata_id="mine", relative_uri=uri, **fields)
        assert answer.status.code, uri
    answer = await alice.call(bob, "CreateDomainData", domaindata_id="out", relative_uri="out", **fields)
    assert not answer.status.code, answer.status.message
    await writing(alice, bob, "out", pa.table({"id": [7]}))
    assert (await reading(alice, bob, "out")).to_pydict() == {"id": [7]}
    assert [*project.tables] == ["people", "unknown", "out"]


# What goes wrong.


async def test_a_wrong_key(info: SourceInfo, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SourceUnreachable, match="denied") as caught:
        await fetch(replace(info, access_key_secret=SecretValue("wrong-secret")), "people")
    told = str(caught.value) + repr(open_source(info)) + caplog.text
    assert "wrong-secret" not in told and odps_kit.KEY not in told and odps_kit.ID not in told and "4711" not in told


async def test_logs_have_no_credentials(info: SourceInfo, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await fetch(info, "people")
    told = [each.getMessage() for each in caplog.records if each.name.startswith("odps")]
    assert told == [] and odps_kit.ID not in caplog.text


async def test_redirects_are_not_followed(project: odps_kit.Project, info: SourceInfo) -> None:
    with odps_kit.odps_server() as other:
        other.put("people", FIRST, kinds=KINDS)
        address = f"http://127.0.0.1:{other.port}/api/projects/shop/tables/people"
        project.trouble = lambda *_: (307, b"", {"Location": address})
        with pytest.raises(SourceUnreachable, match="redirects"):
            await fetch(info, "people")
        assert other.requests == []


async def test_certificates(tmp_path: Path) -> None:
    pytest.importorskip("odps", reason="the extra `odps` is not installed")
    pem, key, _ = hive_kit.certificate()
    (tmp_path / "both.pem").write_bytes(pem + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with odps_kit.odps_server(context) as project:
        project.put("people", FIRST, kinds=KINDS)
        info = replace(GOOD, endpoint=f"https://127.0.0.1:{project.port}/api")
        with pytest.raises(SourceUnreachable, match="does not answer: SSLError"):
            await fetch(info, "people")
        assert project.requests == []
        trusting = replace(info, extra={"project": "shop", "ca": pem.decode()})
        assert await fetch(trusting, "people") == [(1, "a"), (2, None), (3, "c")]


async def test_proxies_of_the_environment_are_not_used(info: SourceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(await fetch(info, "people")) == 3


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_is_busy_is_not_asked_forever(
    project: odps_kit.Project, info: SourceInfo, status: int
) -> None:
    project.trouble = lambda *_: (status, b"", {})
    with pytest.raises(SourceUnreachable, match=f"failed \\({status}\\)"):
        await fetch(info, "people")
    project.trouble = lambda _, path, __: (status, b"", {}) if not path.startswith("/api") else None
    with pytest.raises(SourceUnreachable, match=f"failed \\({status}\\)"):
        await fetch(info, "people")
    assert len(project.requests) < 20


async def test_nobody_listens(info: SourceInfo, project: odps_kit.Project) -> None:
    with pytest.raises(SourceUnreachable, match="does not answer"):
        await fetch(replace(info, endpoint="http://127.0.0.1:1/api"), "people")


async def test_a_read_that_stops_in_the_middle(project: odps_kit.Project, info: SourceInfo) -> None:
    many = pa.RecordBatch.from_pydict({"id": list(range(3000)), "name": [f"n{each}" for each in range(3000)]})
    project.put("many", many, kinds=KINDS)
    assert len(await fetch(info, "many")) == 3000
    project.cut = True
    with pytest.raises(SourceError, match="stopped in the middle"):
        await fetch(info, "many")


@pytest.mark.parametrize("garbage", [b"", b"{", b"<Table/>", b"[]", b"\0\xff", b'{"DownloadID": 1}'])
@pytest.mark.parametrize("tunnel", [False, True])
async def test_garbage(project: odps_kit.Project, info: SourceInfo, garbage: bytes, tunnel: bool) -> None:
    project.trouble = lambda _, path, __: (200, garbage, {}) if path.startswith("/api") != tunnel else None
    with pytest.raises(SourceError):
        await fetch(info, "people")


async def test_a_read_that_is_left_ends_at_once(project: odps_kit.Project, info: SourceInfo) -> None:
    """The server gives the first part of the table, then nothing."""
    many = pa.RecordBatch.from_pydict({"id": list(range(3000)), "name": ["x" * 20] * 3000})
    project.put("many", many, kinds=KINDS)
    project.gate = threading.Event()
    async with open_source(info) as source:
        reading = asyncio.create_task(anext(_rows_of(source)), name="left")
        while not any("rowrange" in each for each in project.requests):
            await asyncio.sleep(0.01)
        reading.cancel()
        assert (await asyncio.wait({reading}, timeout=10))[0] and reading.cancelled()
    assert not project.gate.is_set()


async def _rows_of(source: Any) -> Any:
    async with source.read(DataLocation("many"), None) as stream:
        async for batch in stream:
            yield batch
