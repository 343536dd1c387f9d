"""Delta tables: the suite of all sources, on tables that the library itself wrote, and logs that mean ill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from coterie.kuscia.sources import conformance, delta
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
)
from coterie.kuscia.sources.source_registry import open_source

deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

FIRST = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "ds": ["x", "x", "y"]})


@pytest.fixture
def info(tmp_path: Path) -> SourceInfo:
    root = tmp_path / "tables"
    folder = root / "deep" / "people"
    deltalake.write_deltalake(str(folder), FIRST, partition_by=["ds"])
    return SourceInfo(kind="delta", path=str(root))


async def fetch(info: SourceInfo, place: DataLocation | str, schema: pa.Schema | None = None) -> list[tuple[Any, ...]]:
    found = DataLocation(place) if isinstance(place, str) else place
    async with open_source(info) as source, source.read(found, schema) as stream:
        rows = [row async for batch in stream for row in batch.to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


def entry(info: SourceInfo, path: str) -> None:
    """One more version, whose log names a file."""
    added = {"path": path, "partitionValues": {"ds": "x"}, "size": 10, "modificationTime": 1, "dataChange": True}
    log = Path(info.path) / "deep" / "people" / "_delta_log" / f"{1:020}.json"
    log.write_text(json.dumps({"add": added}) + "\n")


def data_files(info: SourceInfo) -> list[Path]:
    return list(Path(info.path).rglob("*.parquet"))


@pytest.mark.parametrize("check", conformance.checks(read_only=True), ids=lambda each: each.__name__)
async def test_delta_tables_conform(info: SourceInfo, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, info, "deep/people", files=True)


async def test_the_newest_version_is_read(info: SourceInfo) -> None:
    folder = f"{info.path}/deep/people"
    deltalake.write_deltalake(folder, pa.table({"id": [4], "name": ["d"], "ds": ["y"]}), mode="append")
    deltalake.DeltaTable(folder).delete("id = 1")
    assert await fetch(info, "deep/people") == [(2, None, "x"), (3, "c", "y"), (4, "d", "y")]


async def test_a_partition_alone(info: SourceInfo) -> None:
    assert await fetch(info, DataLocation("deep/people", partition="ds=y")) == [(3, "c", "y")]
    with pytest.raises(SourceError, match="no column day"):
        await fetch(info, DataLocation("deep/people", partition="day=y"))


async def test_values_that_do_not_fit(info: SourceInfo) -> None:
    with pytest.raises(SourceError, match='column "name", row 1'):
        await fetch(info, "deep/people", pa.schema([("name", pa.int64())]))
    with pytest.raises(SourceError, match="no column age"):
        await fetch(info, "deep/people", pa.schema([("age", pa.int64())]))


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "file://{root}/deep/secret.parquet", "{root}/deep/secret.parquet"]
)
async def test_a_log_that_names_files_elsewhere(info: SourceInfo, path: str) -> None:
    parquet.write_table(pa.table({"id": [666], "name": ["secret"]}), f"{info.path}/deep/secret.parquet")
    entry(info, path.format(root=info.path))
    with pytest.raises(SourceError) as caught:
        await fetch(info, "deep/people")
    assert info.path not in str(caught.value)


@pytest.mark.parametrize("where", ["data", "log", "table"])
async def test_links_that_lead_out(info: SourceInfo, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    parquet.write_table(pa.table({"id": [666], "name": ["secret"]}), outside / "secret.parquet")
    folder = Path(info.path) / "deep" / "people"
    if where == "data":
        (folder / "link.parquet").symlink_to(outside / "secret.parquet")
        entry(info, "link.parquet")
    elif where == "log":
        (outside / "log.json").write_text("{}")
        (folder / "_delta_log" / f"{1:020}.json").symlink_to(outside / "log.json")
    else:
        folder.rename(outside / "people")
        folder.symlink_to(outside / "people")
    with pytest.raises(SourceForbidden, match="outside of its directory"):
        await fetch(info, "deep/people")


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"add": {"path": 3}}\n', "\0\0"])
async def test_broken_logs(info: SourceInfo, text: str) -> None:
    log = Path(info.path) / "deep" / "people" / "_delta_log" / f"{0:020}.json"
    log.write_text(text)
    with pytest.raises(SourceError):
        await fetch(info, "deep/people")


async def test_files_that_are_gone_or_no_tables(info: SourceInfo) -> None:
    for each in data_files(info):
        each.write_bytes(b"no table")
    with pytest.raises(SourceError, match="cannot be read"):
        await fetch(info, "deep/people")
    for each in data_files(info):
        each.unlink()
    with pytest.raises(SourceError):
        await fetch(info, "deep/people")
    with pytest.raises(DataNotFound):
        await fetch(info, "deep")


async def test_settings_that_cannot_be_right(tmp_path: Path) -> None:
    for wrong in (
        SourceInfo(kind="delta"),
        SourceInfo(kind="delta", path="here"),
        SourceInfo(kind="delta", path="/x", extra={"region": "x"}),
    ):
        with pytest.raises(SourceError):
            open_source(wrong)
    with pytest.raises(SourceUnreachable, match="not there"):
        await fetch(SourceInfo(kind="delta", path=str(tmp_path / "none")), "people")


async def test_without_the_library_it_is_named(info: SourceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'deltalake'")

    monkeypatch.setattr(delta, "deltalake", Missing())
    with pytest.raises(SourceUnreachable, match=r"pip install coterie\[delta\]"):
        await fetch(info, "deep/people")
