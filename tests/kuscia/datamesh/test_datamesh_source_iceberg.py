"""Iceberg tables, read-only: what is read, and what whoever wrote a table cannot reach by it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from coterie.kuscia.sources import conformance, iceberg
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
)
from coterie.kuscia.sources.source_registry import open_source

pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
pytest.importorskip("sqlalchemy", reason="tables are written with pyiceberg's SQL catalogue")

FIRST = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "ds": ["x", "x", "y"]})

pytestmark = pytest.mark.filterwarnings("default")  # the library's own


class Tables:
    """Written as others write them: through a catalogue, with its data in a directory."""

    def __init__(self, root: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

        self.root = root / "tables"
        self.root.mkdir()
        self.catalogue = SqlCatalog("t", uri=f"sqlite:///{root}/catalogue.db", warehouse=str(self.root))
        self.catalogue.create_namespace("deep")
        self.table = self.catalogue.create_table("deep.people", FIRST.schema, location=str(self.folder))
        self.table.append(FIRST)
        self.info = SourceInfo(kind="iceberg", path=str(self.root))

    @property
    def folder(self) -> Path:
        return self.root / "deep" / "people"

    @property
    def metadata(self) -> Path:
        return iceberg.newest(self.folder / "metadata", "people")

    def change(self, **fields: Any) -> None:
        self.metadata.write_text(json.dumps({**json.loads(self.metadata.read_text()), **fields}))


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


async def fetch(info: SourceInfo, place: DataLocation | str, schema: pa.Schema | None = None) -> list[tuple[Any, ...]]:
    found = DataLocation(place) if isinstance(place, str) else place
    async with open_source(info) as source, source.read(found, schema) as stream:
        rows = [row async for batch in stream for row in batch.to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("check", conformance.checks(read_only=True), ids=lambda each: each.__name__)
async def test_iceberg_tables_conform(tables: Tables, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, tables.info, "deep/people", files=True)


async def test_the_newest_snapshot_is_read(tables: Tables) -> None:
    tables.table.append(pa.table({"id": [4], "name": ["d"], "ds": ["y"]}))
    tables.table.delete("id = 1")
    assert await fetch(tables.info, "deep/people") == [(2, None, "x"), (3, "c", "y"), (4, "d", "y")]


async def test_a_partition_alone(tables: Tables) -> None:
    assert await fetch(tables.info, DataLocation("deep/people", partition="ds=y")) == [(3, "c", "y")]
    with pytest.raises(SourceError, match="no column day"):
        await fetch(tables.info, DataLocation("deep/people", partition="day=y"))


async def test_values_that_do_not_fit(tables: Tables) -> None:
    with pytest.raises(SourceError, match='column "name", row 1'):
        await fetch(tables.info, "deep/people", pa.schema([("name", pa.int64())]))
    with pytest.raises(SourceError, match="no column age"):
        await fetch(tables.info, "deep/people", pa.schema([("age", pa.int64())]))


async def test_versions(tables: Tables) -> None:
    folder = tables.folder / "metadata"
    last = tables.metadata
    (folder / "version-hint.text").write_text(last.name)
    assert len(await fetch(tables.info, "deep/people")) == 3
    for wrong in ("../../x", "77", ""):
        (folder / "version-hint.text").write_text(wrong)
        with pytest.raises(SourceError, match="names no metadata file"):
            await fetch(tables.info, "deep/people")
    (folder / "version-hint.text").unlink()
    shutil.copy(last, folder / f"{last.name.partition('-')[0]}-other.metadata.json")
    with pytest.raises(SourceError, match="two last versions"):
        await fetch(tables.info, "deep/people")


async def test_metadata_that_names_files_elsewhere(tables: Tables, tmp_path: Path) -> None:
    """The snapshot of another table, whose files are outside of the directory."""
    (tmp_path / "other").mkdir()
    other = Tables(tmp_path / "other")
    shutil.rmtree(tables.folder / "metadata")
    shutil.copytree(other.folder / "metadata", tables.folder / "metadata")
    with pytest.raises(SourceForbidden, match="outside of its directory") as caught:
        await fetch(tables.info, "deep/people")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("where", ["s3://bucket/x", "http://127.0.0.1:1/x", "//host/x", "relative", "file://host/x"])
async def test_manifests_in_other_stores(tables: Tables, where: str) -> None:
    snapshots = json.loads(tables.metadata.read_text())["snapshots"]
    tables.change(snapshots=[{**each, "manifest-list": where} for each in snapshots])
    with pytest.raises(SourceForbidden):
        await fetch(tables.info, "deep/people")


async def test_settings_in_the_metadata_load_no_code(tables: Tables) -> None:
    tables.change(properties={"py-io-impl": "nothing.of.Ours", "s3.endpoint": "http://127.0.0.1:1"})
    assert len(await fetch(tables.info, "deep/people")) == 3


@pytest.mark.parametrize("where", ["data", "metadata", "table"])
async def test_links_that_lead_out(tables: Tables, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    parquet.write_table(pa.table({"id": [666], "name": ["secret"]}), outside / "secret.parquet")
    if where == "data":
        [file] = tables.folder.rglob("*.parquet")
        file.unlink()
        file.symlink_to(outside / "secret.parquet")
    else:
        moved = tables.folder if where == "table" else tables.folder / "metadata"
        moved.rename(outside / "moved")
        moved.symlink_to(outside / "moved")
    with pytest.raises(SourceForbidden, match="outside of its directory"):
        await fetch(tables.info, "deep/people")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format-version": 9}', "\0"])
async def test_broken_metadata(tables: Tables, text: str) -> None:
    tables.metadata.write_text(text)
    with pytest.raises(SourceError):
        await fetch(tables.info, "deep/people")


async def test_files_that_are_gone_or_no_tables(tables: Tables) -> None:
    for each in tables.folder.rglob("*.parquet"):
        each.write_bytes(b"no table")
    with pytest.raises(SourceError, match="cannot be read"):
        await fetch(tables.info, "deep/people")
    for each in tables.folder.rglob("*.avro"):
        each.unlink()
    with pytest.raises(SourceError):
        await fetch(tables.info, "deep/people")
    with pytest.raises(DataNotFound):
        await fetch(tables.info, "deep")


async def test_settings_that_cannot_be_right(tmp_path: Path) -> None:
    for wrong in (
        SourceInfo(kind="iceberg"),
        SourceInfo(kind="iceberg", path="here"),
        SourceInfo(kind="iceberg", path="/x", extra={"region": "x"}),
    ):
        with pytest.raises(SourceError):
            open_source(wrong)
    with pytest.raises(SourceUnreachable, match="not there"):
        await fetch(SourceInfo(kind="iceberg", path=str(tmp_path / "none")), "people")


async def test_without_the_library_it_is_named(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'pyiceberg'")

    monkeypatch.setattr(iceberg, "iceberg_table", Missing())
    with pytest.raises(SourceUnreachable, match=r"pip install coterie\[iceberg\]"):
        await fetch(tables.info, "deep/people")
