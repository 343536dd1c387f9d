"""Source plug-ins: found, loaded only when used, refused clearly; the example under the suite that authors run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from datamesh_kit import World
from plugin_kit import install, install_example

from coterie.cli.app import CliError
from coterie.cli.commands.data import source_settings
from coterie.cli.data_access import DataAccess
from coterie.kuscia.datamesh.errors import NotPermitted
from coterie.kuscia.sources import conformance, sealed_sources
from coterie.kuscia.sources.protocol import DataLocation, SourceError, SourceInfo
from coterie.kuscia.sources.source_registry import PluginFault, kinds, open_source

OPENS_NOTHING = "def open_it(info):\n    return 'nothing'\n"


@pytest.fixture
def sqlite_info(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SourceInfo:
    install_example(monkeypatch, tmp_path / "packages")
    return SourceInfo(kind="sqlite", path=str(tmp_path / "t.db"))


# Found and loaded.


def test_a_plug_in_is_loaded_only_when_its_kind_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "raise ImportError('libtape.so.3 is not there')\n"
    install(monkeypatch, tmp_path, "tape-drives", {"tape": "tape_drives:open_it"}, code)
    assert "tape" in kinds()
    with pytest.raises(SourceError, match=r"no source of kind 'disc' is known; there are .*tape"):
        open_source(SourceInfo(kind="disc"))
    assert "tape_drives" not in sys.modules
    with pytest.raises(
        PluginFault, match=r"plug-in tape-drives 1\.0 .*'tape' cannot be loaded from tape_drives:open_it: .*libtape"
    ):
        open_source(SourceInfo(kind="tape"))


@pytest.mark.parametrize(
    ("value", "code", "sentence"),
    [
        ("drives_of_faults:absent", "x = 1\n", "cannot be loaded"),
        ("drives_of_faults:open_it", "open_it = 3\n", "is not a function that takes a SourceInfo"),
        ("drives_of_faults:open_it", OPENS_NOTHING, "gave a str without __aenter__, "),
        ("drives_of_faults:open_it", "def open_it(info):\n    raise KeyError(info.path)\n", "failed with KeyError"),
    ],
    ids=["absent", "not callable", "no source", "fails"],
)
def test_a_plug_in_that_is_wrong_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, code: str, sentence: str
) -> None:
    install(monkeypatch, tmp_path, "drives-of-faults", {"tape": value}, code)
    monkeypatch.delitem(sys.modules, "drives_of_faults", raising=False)
    with pytest.raises(PluginFault, match=sentence) as caught:
        open_source(SourceInfo(kind="tape", path="/the/secret/place"))
    assert "drives-of-faults 1.0" in str(caught.value) and "/the/secret/place" not in str(caught.value)
    monkeypatch.delitem(sys.modules, "drives_of_faults", raising=False)


def test_a_kind_that_two_packages_claim_is_opened_by_neither(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("tape-one", "tape-two"):
        install(monkeypatch, tmp_path, name, {"tape": f"{name.replace('-', '_')}:open_it"}, OPENS_NOTHING)
    with pytest.raises(PluginFault, match=r"tape-one 1\.0 and tape-two 1\.0 both open"):
        open_source(SourceInfo(kind="tape"))


def test_a_kind_of_ours_is_not_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "tape-three", {"localfs": "tape_three:open_it"}, OPENS_NOTHING)
    assert type(open_source(SourceInfo(kind="localfs", path=str(tmp_path)))).__name__ == "FileSource"


def test_secrets_of_plug_ins_are_not_printed() -> None:
    settings = {"endpoint": "e", "drive": "7", "secrets": {"token": "s3cr3t"}, "odd_password": "0dd"}
    info = sealed_sources.settings_info("tape", settings)
    assert info.secrets["token"].reveal() == "s3cr3t" and info.extra == {"drive": "7", "odd_password": "0dd"}
    assert "s3cr3t" not in repr(info) and "0dd" not in repr(info)
    with pytest.raises(SourceError, match="must be names with their values"):
        sealed_sources.settings_info("tape", {"secrets": "s3cr3t"})


# The suite that authors run.


@pytest.mark.parametrize("check", conformance.checks(read_only=False), ids=lambda each: each.__name__)
async def test_the_example_conforms(sqlite_info: SourceInfo, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, sqlite_info, files=False)


@pytest.mark.parametrize("check", conformance.checks(read_only=False), ids=lambda each: each.__name__)
async def test_local_files_conform(tmp_path: Path, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, SourceInfo(kind="localfs", path=str(tmp_path)), ending=".parquet", files=True)


def test_the_program_that_authors_run(sqlite_info: SourceInfo, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"path": sqlite_info.path}))
    done = subprocess.run(
        [sys.executable, "-m", "coterie.kuscia.sources.conformance", "sqlite", "--settings", str(settings)],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 of 17 checks passed" in done.stdout


async def test_a_source_that_does_wrong_fails_its_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Writes are visible at once, a wrong kind of error is raised, and a secret is told."""
    code = """
from contextlib import asynccontextmanager
TABLES = {}
class Wrong:
    def __init__(self, info): self.info = info
    def __repr__(self): return self.info.secrets["token"].reveal()
    async def __aenter__(self): return self
    async def __aexit__(self, *problem): pass
    async def schema(self, place): return TABLES[place.uri][0].schema
    @asynccontextmanager
    async def read(self, place, schema, options=None):
        async def batches():
            for each in TABLES[place.uri]: yield each
        yield batches()
    @asynccontextmanager
    async def write(self, place, schema, options=None):
        class Sink:
            async def put(self, batch): TABLES.setdefault(place.uri, []).append(batch)
        yield Sink()
    async def delete(self, place): TABLES.pop(place.uri, None)
"""
    install(monkeypatch, tmp_path, "wrong-tape", {"wrong": "wrong_tape:Wrong"}, code)
    info = sealed_sources.settings_info("wrong", {"secrets": {"token": "s3cr3t"}})
    results = await conformance.run_checks(info)
    told = {each.name: each.problem for each in results}
    assert "KeyError is raised" in told["DataNotFound for a table that is not there"]
    assert told["A write that fails leaves what was there"] and told["A write replaces rows and columns"]
    assert "more rows than batch_rows" in told["No batch has more rows than asked for, and no row is lost"]
    assert "s3cr3t" not in str(told)


# The example itself.


async def test_tables_of_other_programs(sqlite_info: SourceInfo) -> None:
    with sqlite3.connect(sqlite_info.path) as connection:
        connection.execute(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR(9), size REAL NOT NULL, face BLOB)"
        )
        connection.execute("INSERT INTO people VALUES (1, 'a', 1.5, x'00ff')")
    connection.close()
    async with open_source(sqlite_info) as source:
        schema = await source.schema(DataLocation("people"))
        assert schema.types == [pa.int64(), pa.string(), pa.float64(), pa.binary()]
        async with source.read(DataLocation("people"), schema) as stream:
            rows = [row async for batch in stream for row in batch.to_pylist()]
        assert [tuple(row.values()) for row in rows] == [(1, "a", 1.5, b"\x00\xff")]
        for name in ("sqlite_master", 'people" WHERE 1=1 --', "people\0"):
            with pytest.raises(SourceError):
                await source.schema(DataLocation(name))


async def test_values_that_are_not_of_the_columns_type(sqlite_info: SourceInfo) -> None:
    with sqlite3.connect(sqlite_info.path) as connection:
        connection.execute("CREATE TABLE people (id INTEGER)")
        connection.execute("INSERT INTO people VALUES ('not a number, and secret')")
    connection.close()
    async with open_source(sqlite_info) as source:
        with pytest.raises(SourceError, match='column "id" has values') as caught:
            async with source.read(DataLocation("people"), None):
                pass
        assert "secret" not in str(caught.value)


# In a domain.


async def test_a_source_of_a_plug_in_is_created_registered_and_read(alice: World, sqlite_info: SourceInfo) -> None:
    file = alice.paths.data / "shop.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
        connection.execute("INSERT INTO orders VALUES (7, 'x')")
    connection.close()
    data = DataAccess(SimpleNamespace(domain="alice"), alice.client, alice.mesh.catalogue)  # type: ignore[arg-type]
    assert not await data.put_source("shop", "sqlite", {"path": str(file)})
    assert await data.put_source("shop", "sqlite", {"path": str(file)})
    made = await data.register("orders", "orders", "shop")
    assert [each["name"] for each in made["columns"]] == ["id", "name"]
    assert (await data.head(await data.catalogue.data("orders"), 5)).to_pylist() == [{"id": 7, "name": "x"}]
    with pytest.raises(SourceError, match="needs `path`"):
        await data.put_source("shop", "sqlite", {})
    with pytest.raises(SourceError, match="no source of kind 'tape'"):
        await data.put_source("shop", "tape", {})


async def test_files_of_plug_ins_are_confined_as_local_ones_are(alice: World, sqlite_info: SourceInfo) -> None:
    await alice.source("keys", "sqlite", {"path": str(alice.paths.home / "var" / "certs" / "x.db")})
    with pytest.raises(NotPermitted, match="keys among them"):
        await alice.mesh.catalogue.source_info("keys")


def test_settings_files_are_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("endpoint: e\nsecrets: {token: x}\n")
    assert source_settings(file) == {"endpoint": "e", "secrets": {"token": "x"}}
    for text in ("s3cr3t", "a: [s3cr3t", "[s3cr3t]", "1: s3cr3t"):
        file.write_text(text)
        with pytest.raises(CliError, match="has no settings") as caught:
            source_settings(file)
        assert "s3cr3t" not in str(caught.value)
