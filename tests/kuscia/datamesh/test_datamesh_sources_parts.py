"""The pure parts of data sources: names of types, partitions, signatures."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.csv_text import csv_rows
from coterie.kuscia.sources.paths import partition_in, partition_of, parts_of
from coterie.kuscia.sources.protocol import SourceError, SourceForbidden
from coterie.kuscia.sources.s3_signing import S3Keys, SignableRequest, version2, version4
from coterie.kuscia.sources.sql_types import mysql_type, of_mysql, of_postgresql, postgresql_type, table_name
from coterie.kuscia.sources.types import arrow_of, kuscia_of


@pytest.mark.parametrize(
    ("name", "kind", "back"),
    [
        ("INT", pa.int64(), "int64"),
        ("uint", pa.uint64(), "uint64"),
        ("float", pa.float64(), "float64"),
        ("date", pa.date32(), "date32"),
        ("datetime", pa.date64(), "date64"),
        ("time32", pa.time32("s"), "time32"),
        ("time64", pa.time64("us"), "time64"),
        ("timestamp", pa.timestamp("s"), "timestamp"),
        ("duration", pa.duration("s"), "duration"),
        ("string", pa.string(), "str"),
        ("large_utf8", pa.large_string(), "large_string"),
        ("binary", pa.binary(), "binary"),
    ],
)
def test_names_of_types(name: str, kind: pa.DataType, back: str) -> None:
    assert (arrow_of(name), kuscia_of(kind)) == (kind, back)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.timestamp("us", "UTC"), "datetime"),
        (pa.decimal128(10, 2), "str"),
        (pa.dictionary(pa.int8(), pa.string()), "str"),
        (pa.large_binary(), "binary"),
        (pa.time32("ms"), "time64"),
    ],
    ids=str,
)
def test_nearest_names(kind: pa.DataType, name: str) -> None:
    assert kuscia_of(kind) == name
    assert arrow_of("complex") is None


@pytest.mark.parametrize(
    ("kind", "mysql", "postgresql"),
    [
        (pa.uint8(), "TINYINT UNSIGNED", "SMALLINT"),
        (pa.int8(), "TINYINT", "SMALLINT"),
        (pa.uint16(), "SMALLINT UNSIGNED", "INTEGER"),
        (pa.int16(), "SMALLINT", "SMALLINT"),
        (pa.uint32(), "INT UNSIGNED", "BIGINT"),
        (pa.int32(), "INT", "INTEGER"),
        (pa.uint64(), "BIGINT UNSIGNED", "DECIMAL(20,0)"),
        (pa.int64(), "BIGINT", "BIGINT"),
        (pa.bool_(), "TINYINT(1)", "BOOLEAN"),
        (pa.float32(), "FLOAT", "REAL"),
        (pa.float64(), "DOUBLE", "DOUBLE PRECISION"),
        (pa.string(), "TEXT", "TEXT"),
        (pa.date32(), "DATE", "DATE"),
        (pa.time32("s"), "TIME", "TIME WITHOUT TIME ZONE"),
        (pa.time64("us"), "TIME(6)", "TIME WITHOUT TIME ZONE"),
        (pa.timestamp("s"), "TIMESTAMP", "TIMESTAMPTZ"),
        (pa.duration("s"), "BIGINT", "INTERVAL"),
    ],
    ids=str,
)
def test_types_in_sql_are_kuscias(kind: pa.DataType, mysql: str, postgresql: str) -> None:
    assert (mysql_type(kind), postgresql_type(kind)) == (mysql, postgresql)


def test_types_from_sql() -> None:
    assert of_mysql("int", "int(10) unsigned") == pa.uint32()
    assert of_mysql("tinyint", "tinyint(1)") == pa.bool_()
    assert of_mysql("decimal", "decimal(10,2)") == pa.decimal128(10, 2)
    assert of_mysql("geometry", "geometry") == pa.string()
    assert of_postgresql("numeric", "numeric(20,0)") == pa.uint64()
    assert of_postgresql("numeric", "numeric") == pa.string()
    assert of_postgresql("uuid", "uuid") == pa.string()
    with pytest.raises(SourceError, match="list"):
        mysql_type(pa.list_(pa.int8()))


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0b", " padded", "coterie_staging_x"])
def test_names_that_are_no_tables(name: str) -> None:
    with pytest.raises(SourceForbidden):
        table_name(name, 63)


TEXTS = [
    "plain",
    "two words",
    "annulled",
    "日本",
    None,
    "",
    "NULL",
    "null",
    " x",
    "x ",
    "a,b",
    'say "hi"',
    "a\nb",
    "\ufeffx",
]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("beside", ["plain", 'say "hi"'], ids=["quick", "quoted"])
def test_text_is_written_alike_in_either_way(text: str | None, beside: str) -> None:
    """Where no cell of a batch needs quotes another writer does the work; what is beside a cell changes nothing of it."""
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.date64(), pa.binary(), pa.duration("s")]
    rows = [[text, beside], [1, None], [0.1, None], [True, None], [86400000, None], [b"\0", None], [3, None]]
    batch = pa.RecordBatch.from_arrays([pa.array(*each) for each in zip(rows, kinds, strict=True)], list("abcdefg"))
    cells = {None: b"NULL", "": b'""', "NULL": b'"NULL"', "null": b'"null"', " x": b'" x"', "x ": b'"x "'}
    cells |= {"a,b": b'"a,b"', 'say "hi"': b'"say ""hi"""', "a\nb": b'"a\nb"', "\ufeffx": '"\ufeffx"'.encode()}
    first = cells.get(text, (text or "").encode())
    written = bytes(csv_rows(batch.slice(0, 1))) + bytes(csv_rows(batch.slice(1)))
    assert csv_rows(batch) == written
    assert bytes(csv_rows(batch)).startswith(first + b",1,0.1,true,1970-01-02 00:00:00.000,AA==,3\n")


def test_partitions() -> None:
    assert partition_of("ds=2024-01-01, region='x'") == {"ds": "2024-01-01", "region": "x"}
    assert partition_of("") == {}
    assert partition_in(("ds=1", "plain", "x=2")) == {"ds": "1", "x": "2"}
    for wrong in ("ds", "ds=..", "1a=2", "ds=a\\b"):
        with pytest.raises(SourceError):
            partition_of(wrong)
    assert parts_of("./a//b.csv") == ("a", "b.csv")


def test_signature_of_version_2() -> None:
    """The example of the store's documents."""
    keys = S3Keys("AKIAIOSFODNN7EXAMPLE", SecretValue("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"))
    request = SignableRequest("GET", "h", "/photos/puppy.jpg", {}, "/awsexamplebucket1/photos/puppy.jpg")
    headers = version2(request, keys, datetime(2007, 3, 27, 19, 36, 42, tzinfo=UTC), {})
    assert headers["authorization"] == "AWS AKIAIOSFODNN7EXAMPLE:qgk2+6Sv9/oM7G3qLEjTH1a1l1g="


def test_signature_of_version_4() -> None:
    """The example of the store's documents: a range of an object."""
    keys = S3Keys("AKIAIOSFODNN7EXAMPLE", SecretValue("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), "us-east-1")
    request = SignableRequest("GET", "examplebucket.s3.amazonaws.com", "/test.txt", {}, "/examplebucket/test.txt")
    headers = version4(request, keys, datetime(2013, 5, 24, tzinfo=UTC), b"", {"range": "bytes=0-9"})
    assert headers["authorization"].endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")
