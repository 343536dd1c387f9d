"""What is special about files: staying below the root, CSV's dialects, raw bytes, full disks, killed writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from sources_suite import SMALL, fetch, files_below, options_of, rows_of, small, store

from coterie.kuscia.sources import confined_files
from coterie.kuscia.sources.formats import RAW_SCHEMA
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    DataSource,
    FileFormat,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
    TableWriteOptions,
)
from coterie.kuscia.sources.source_registry import open_source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture(params=["openat2", "step-by-step"])
def resolving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "step-by-step":
        monkeypatch.setattr(confined_files, "_OPENAT2", 999)  # no such call
    return str(request.param)


@pytest.fixture
async def source(root: Path) -> AsyncIterator[DataSource]:
    async with open_source(SourceInfo(kind="localfs", path=str(root))) as opened:
        yield opened


OUTSIDE = ("../secret.csv", "a/../../secret.csv", "link.csv", "folder/secret.csv", "chain.csv")


@pytest.mark.parametrize("uri", [*OUTSIDE, "/etc/passwd", "", ".", "a\0b", "pipe"])
async def test_nothing_outside_is_read(source: DataSource, root: Path, resolving: str, uri: str) -> None:
    (root.parent / "secret.csv").write_text("id,name\n1,secret\n")
    (root / "a").mkdir()
    (root / "link.csv").symlink_to(root.parent / "secret.csv")
    (root / "folder").symlink_to("..")
    (root / "chain.csv").symlink_to("folder/secret.csv")
    os.mkfifo(root / "pipe")
    with pytest.raises((SourceForbidden, DataNotFound)):
        await fetch(source, DataLocation(uri), SMALL)
    with pytest.raises((SourceForbidden, DataNotFound)):
        await source.schema(DataLocation(uri))


@pytest.mark.parametrize("uri", ["../new.csv", "folder/new.csv", "/tmp/new.csv", "folder/deep/new.csv"])
async def test_nothing_outside_is_written(source: DataSource, root: Path, resolving: str, uri: str) -> None:
    (root / "folder").symlink_to("..")
    before = files_below(root.parent)
    with pytest.raises(SourceError):
        await store(source, DataLocation(uri), small(0, 1))
    assert files_below(root.parent) == before


async def test_link_that_stays_inside_is_followed(source: DataSource, root: Path) -> None:
    await store(source, DataLocation("real/people.csv"), small(0, 1))
    (root / "alias").symlink_to("real")
    assert rows_of(await fetch(source, DataLocation("alias/people.csv"), SMALL)) == [(0, "n0")]


@pytest.mark.parametrize("target", [".", "../other", "circle"])
async def test_a_table_of_several_files_has_no_links_to_folders(source: DataSource, root: Path, target: str) -> None:
    await store(source, DataLocation("table/a.csv"), small(0, 1))
    await store(source, DataLocation("other/b.csv"), small(1, 1))
    for name in ("circle", "again"):
        (root / "table" / name).symlink_to(target)
    with pytest.raises(SourceForbidden):
        await fetch(source, DataLocation("table"), SMALL)
    with pytest.raises(SourceForbidden):
        await source.delete(DataLocation("table"))
    assert rows_of(await fetch(source, DataLocation("other"), SMALL)) == [(1, "n1")]


async def test_writing_over_a_link_replaces_the_link(source: DataSource, root: Path) -> None:
    outside = root.parent / "outside.csv"
    outside.write_text("untouched")
    (root / "out.csv").symlink_to(outside)
    await store(source, DataLocation("out.csv"), small(0, 1))
    assert outside.read_text() == "untouched"
    assert rows_of(await fetch(source, DataLocation("out.csv"), SMALL)) == [(0, "n0")]


async def test_a_folder_is_not_overwritten(source: DataSource, root: Path) -> None:
    (root / "folder").mkdir()
    with pytest.raises(SourceForbidden):
        await store(source, DataLocation("folder"), small(0, 1))
    assert files_below(root) == []


async def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreachable):
        async with open_source(SourceInfo(kind="localfs", path=str(tmp_path / "none"))):
            pass


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        pytest.param("a,b\n1,x\n", {"b": pa.string(), "a": pa.int8()}, [("x", 1)], id="by-name-not-place"),
        pytest.param("\ufeffa\n1\n", {"a": pa.int64()}, [(1,)], id="byte-order-mark"),
        pytest.param("a,b\r\n1,x\r\n", {"a": pa.int64(), "b": pa.string()}, [(1, "x")], id="crlf"),
        pytest.param('a\n"x\ny"\n', {"a": pa.string()}, [("x\ny",)], id="newline-in-quotes"),
        pytest.param('a\n"say ""hi"""\n', {"a": pa.string()}, [('say "hi"',)], id="doubled-quotes"),
        pytest.param("a,b\nNULL,NULL\n", {"a": pa.int64(), "b": pa.string()}, [(None, None)], id="null"),
        pytest.param("a,b\nnull,null\n", {"a": pa.int64(), "b": pa.string()}, [(None, None)], id="small-null"),
        pytest.param("a,b\n,\n", {"a": pa.int64(), "b": pa.string()}, [(None, "")], id="empty-by-type"),
        pytest.param('a\n"NULL"\n', {"a": pa.string()}, [("NULL",)], id="quoted-null-is-text"),
        pytest.param("a\n 7 \n", {"a": pa.int64()}, [(7,)], id="blanks-around-a-number"),
        pytest.param("a\nTRUE\nf\n1\n", {"a": pa.bool_()}, [(False,), (True,), (True,)], id="booleans"),
        pytest.param("a\nnan\n", {"a": pa.float64()}, ["nan"], id="nan"),
        pytest.param("a\n\u4e2d\u6587\n", {"a": pa.large_string()}, [("\u4e2d\u6587",)], id="unicode"),
        pytest.param("a,b\n", {"a": pa.int64()}, [], id="header-only"),
        pytest.param("a\n1", {"a": pa.int64()}, [(1,)], id="no-last-newline"),
    ],
)
async def test_reading_csv(
    source: DataSource, root: Path, text: str, schema: dict[str, pa.DataType], expected: list[object]
) -> None:
    (root / "t.csv").write_bytes(text.encode())
    found = await fetch(source, DataLocation("t.csv"), pa.schema(list(schema.items())))
    assert (["nan"] if expected == ["nan"] else rows_of(found)) == expected
    assert found.num_rows == len(expected)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        pytest.param("a\n1\nx\n", pa.int64(), 'column "a", row 2', id="text-for-int"),
        pytest.param("a\n300\n", pa.int8(), 'column "a", row 1', id="too-large"),
        pytest.param("a\n-1\n", pa.uint32(), 'column "a", row 1', id="negative"),
        pytest.param("a\n1\n2\n3.5\n", pa.int64(), 'column "a", row 3', id="fraction"),
        pytest.param("a\n2024-13-01\n", pa.date32(), 'column "a", row 1', id="no-such-month"),
        pytest.param("a\nmaybe\n", pa.bool_(), 'column "a", row 1', id="no-boolean"),
        pytest.param("a\n25:00:00\n", pa.time32("s"), 'column "a", row 1', id="no-such-hour"),
        pytest.param("a,b\n1\n", pa.int64(), "columns", id="too-few-cells"),
        pytest.param("b\n1\n", pa.int64(), "a", id="missing-column"),
        pytest.param("", pa.int64(), "CSV", id="empty-file"),
    ],
)
async def test_csv_that_does_not_fit(source: DataSource, root: Path, text: str, kind: pa.DataType, words: str) -> None:
    (root / "t.csv").write_text(text)
    with pytest.raises(SourceError, match=words):
        await fetch(source, DataLocation("t.csv"), pa.schema([("a", kind)]))


async def test_row_numbers_count_over_batches(source: DataSource, root: Path) -> None:
    (root / "t.csv").write_text("a\n" + "1\n" * 5000 + "x\n")
    with pytest.raises(SourceError, match="row 5001"):
        await fetch(source, DataLocation("t.csv"), pa.schema([("a", pa.int64())]), TableReadOptions(batch_rows=100))


@pytest.mark.parametrize(
    ("attributes", "text", "expected"),
    [
        ({"NullStrs": '["-", "n/a"]'}, "a,b\n-,n/a\n1,NULL\n", [(1, "NULL"), (None, None)]),
        ({"NullStrs": '[""]'}, "a,b\n1,\n", [(1, None)]),
        ({"delimiter": ";"}, "a;b\n1;x,y\n", [(1, "x,y")]),
        ({"delimiter": "\\t"}, "a\tb\n1\tx\n", [(1, "x")]),
    ],
    ids=["null-strings", "empty-is-null", "semicolon", "tab"],
)
async def test_attributes(
    source: DataSource, root: Path, attributes: dict[str, str], text: str, expected: list[object]
) -> None:
    (root / "t.csv").write_text(text)
    place = DataLocation("t.csv", attributes=attributes)
    assert rows_of(await fetch(source, place, pa.schema([("a", pa.int64()), ("b", pa.string())]))) == expected


async def test_written_csv_is_plain(source: DataSource, root: Path) -> None:
    async with source.write(DataLocation("t.csv"), SMALL, options_of(";")) as sink:
        await sink.put(pa.RecordBatch.from_pydict({"id": [1, None, 3], "name": [None, "", "a;b"]}, schema=SMALL))
    assert (root / "t.csv").read_text() == 'id;name\n1;NULL\nNULL;""\n3;"a;b"\n'


async def test_guessing_types(source: DataSource, root: Path) -> None:
    (root / "t.csv").write_text(
        "n,f,b,d,t,zip,s,e\n1,1.5,true,2024-01-01,2024-01-01 10:00:00,01234,x,\n,2,false,2024-01-02,2024-01-01 11:00:00,2,y,\n"
    )
    found = await source.schema(DataLocation("t.csv"))
    kinds = [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("s"),
        pa.string(),
        pa.string(),
        pa.string(),
    ]
    assert found.types == kinds


async def test_what_a_file_is_goes_by_its_content(source: DataSource, root: Path) -> None:
    await store(source, DataLocation("t", FileFormat.ORC), small(0, 2))
    (root / "t").rename(root / "t.csv")
    assert rows_of(await fetch(source, DataLocation("t.csv", FileFormat.CSV), SMALL)) == [(0, "n0"), (1, "n1")]
    (root / "o.csv").write_text("ORCID,id\n7,1\n")
    assert (await source.schema(DataLocation("o.csv"))).names == ["ORCID", "id"]


async def test_only_the_columns_asked_for_are_read(source: DataSource, root: Path) -> None:
    """Proved by a column that could not be read."""
    table = pa.table({"id": [1, 2], "other": [[1], [2]]})
    parquet.write_table(table, root / "t.parquet")
    schema = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    assert rows_of(await fetch(source, DataLocation("t.parquet"), schema, TableReadOptions(columns=("id",)))) == [
        (1,),
        (2,),
    ]


async def test_raw_bytes(source: DataSource, root: Path) -> None:
    content = os.urandom(3_000_000)
    (root / "model.bin").write_bytes(content)
    found = await fetch(source, DataLocation("model.bin"), None, TableReadOptions(raw=True))
    assert b"".join(found["data"].to_pylist()) == content
    async with source.write(DataLocation("copy.bin"), RAW_SCHEMA, TableWriteOptions(raw=True)) as sink:
        for batch in found.to_batches():
            await sink.put(batch)
    assert (root / "copy.bin").read_bytes() == content


async def test_an_open_reader_keeps_the_old_file(source: DataSource) -> None:
    await store(source, DataLocation("t.csv"), *(small(each * 50_000, 50_000) for each in range(4)))
    async with source.read(DataLocation("t.csv"), SMALL, TableReadOptions(batch_rows=1000)) as stream:
        ids = (await anext(stream)).column(0).to_pylist()
        await store(source, DataLocation("t.csv"), small(0, 1, "new"))
        async for batch in stream:
            ids += batch.column(0).to_pylist()
    assert ids == list(range(200_000))


WRITER = """
import asyncio
import sys
sys.path.insert(0, sys.argv[2])
from sources_suite import SMALL, small
from coterie.kuscia.sources.source_registry import open_source
from coterie.kuscia.sources.protocol import DataLocation, SourceInfo

async def main():
    async with open_source(SourceInfo(kind="localfs", path=sys.argv[1])) as source:
        async with source.write(DataLocation("t.csv"), SMALL) as sink:
            await sink.put(small(0, 10000))
            print("writing", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


def test_killed_writer_leaves_nothing(root: Path) -> None:
    here = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root), here], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    assert [name for name in files_below(root) if not name.startswith(".coterie-")] == []


@pytest.fixture
def tiny_disk(root: Path) -> Iterator[Path]:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root)], capture_output=True)
    if made.returncode:
        pytest.skip("a small file system can be mounted only by root")
    try:
        yield root
    finally:
        subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize("ending", ["csv", "parquet", "orc", "arrow"])
async def test_full_disk(tiny_disk: Path, ending: str) -> None:
    noise = pa.RecordBatch.from_pydict({"data": [os.urandom(400) for _ in range(4000)]})
    async with open_source(SourceInfo(kind="localfs", path=str(tiny_disk))) as source:
        await store(source, DataLocation(f"t.{ending}"), small(0, 1))
        with pytest.raises(SourceError, match="no space left"):
            await store(source, DataLocation(f"t.{ending}"), noise)
        assert rows_of(await fetch(source, DataLocation(f"t.{ending}"), SMALL)) == [(0, "n0")]
    assert files_below(tiny_disk) == [f"t.{ending}"]
