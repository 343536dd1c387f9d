"""From one store into another, through a file or not: `coterie store backup|restore|migrate|check`.

A backup is what exists at one revision, without history. Restored, it gets new revisions, higher than all that clients may
have seen: none is used twice, and whoever asks for an older one is told that it is gone (410) and lists anew. Objects
under a lease (Events) are left out.

The file: a line of JSON with format, revision and number of records, a line for each record, a line with the SHA-256 of all
lines before. It holds every Secret in plain text.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson

from coterie.base.files import write_atomic
from coterie.base.lazy_import import lazy_import
from coterie.base.store_address import StoreAddress
from coterie.kube.store.blobs import FileBlobs
from coterie.kube.store.protocol import StoreError, StoreRecord
from coterie.kube.store.sqlite_file import StoreFile

if TYPE_CHECKING:
    from coterie.kube.store import etcd, kine, mysql, postgresql
else:
    etcd = lazy_import("coterie.kube.store.etcd")
    kine = lazy_import("coterie.kube.store.kine")
    mysql = lazy_import("coterie.kube.store.mysql")
    postgresql = lazy_import("coterie.kube.store.postgresql")

FORMAT = "coterie-store-1"
LOST_REVISIONS = 1_000_000_000
"""More than a store may have given out since a backup that is restored."""
_PAGE = 2000
_OBJECTS = "/registry/"


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    revision: int
    records: Sequence[StoreRecord]
    compacted: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What a store of somebody else holds and we do not take, and how many."""

    @property
    def lasting(self) -> list[StoreRecord]:
        return [record for record in self.records if not record.lease]


async def read_snapshot(address: StoreAddress, foreign: Collection[str] = ()) -> StoreSnapshot:
    """All that exists. A SQLite file may be in use meanwhile. `foreign`: what to take from kine's table, as "group/plural"."""
    if address.kind == "sqlite":
        return await asyncio.to_thread(_read_file, Path(address.path))
    if address.kind == "mysql":
        found = await asyncio.to_thread(_read_kine, address, foreign)
        if found is not None:
            return found
    store = _shared(address)
    await store.open()
    try:
        records: list[StoreRecord] = []
        page = await store.scan("", limit=_PAGE)
        while page.more:
            records += page.records
            page = await store.scan("", revision=page.revision, after=records[-1].key, limit=_PAGE)
        return StoreSnapshot(page.revision, records + page.records, store.compacted)
    finally:
        await store.close()


async def write_snapshot(address: StoreAddress, snapshot: StoreSnapshot, *, replace: bool) -> int:
    """Put the snapshot in place of what is there; refuses where something is, unless `replace`. Returns the revision."""
    above = snapshot.revision + LOST_REVISIONS
    if address.kind == "sqlite":
        return await asyncio.to_thread(_write_file, Path(address.path), snapshot.lasting, above, replace)
    if dict(address.options).get("table"):
        raise StoreError(f"{address.label}: kine's table is only read; leave `table` out to write to tables of our own")
    store = _shared(address, restoring=True)
    await store.open()
    try:
        if not replace and (await store.scan(_OBJECTS, limit=1)).records:
            raise StoreError(f"{address.label} is not empty")
        return await store.replace(snapshot.lasting, above)
    finally:
        await store.close()


def _shared(
    address: StoreAddress, *, restoring: bool = False
) -> etcd.EtcdStore | mysql.MysqlStore | postgresql.PostgresqlStore:
    if address.kind == "etcd":
        return etcd.EtcdStore(address, restoring=restoring)
    if address.kind == "mysql":
        return mysql.MysqlStore(address, following=True)
    return postgresql.PostgresqlStore(address)


def _read_kine(address: StoreAddress, wanted: Collection[str]) -> StoreSnapshot | None:
    line = kine.kine_connection(address)
    if line is None:
        return None
    try:
        found = kine.read_kine(line, wanted)
    finally:
        line.close()
    return StoreSnapshot(found.revision, found.records, skipped=dict(sorted(found.skipped.items())))


# SQLite.


def _read_file(path: Path) -> StoreSnapshot:
    if not path.is_file():
        raise StoreError(f"{path} is no file")
    blobs = FileBlobs(path.with_name(path.name + ".blobs"))
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=5.0)
    except sqlite3.Error as problem:
        raise StoreError(f"{path} cannot be read: {problem}") from problem
    try:
        connection.execute("BEGIN")
        (newest,) = connection.execute("SELECT coalesce(max(revision), 0) FROM log").fetchone()
        (mark,) = connection.execute("SELECT number FROM meta WHERE name = 'compacted'").fetchone()
        rows = connection.execute(
            """SELECT log.key, log.value, log.digest, log.revision, log.created, log.lease
               FROM (SELECT key, max(revision) AS newest FROM log GROUP BY key ORDER BY key)
               CROSS JOIN log ON log.revision = newest WHERE NOT log.deleted"""
        )
        records = [
            StoreRecord(key, blobs.get(digest) if digest is not None else value or b"", revision, created, lease)
            for key, value, digest, revision, created, lease in rows
        ]
        return StoreSnapshot(max(newest, mark), records, mark)
    except sqlite3.Error as problem:
        raise StoreError(f"{path} cannot be read: {problem}") from problem
    finally:
        connection.close()


def _write_file(path: Path, records: Sequence[StoreRecord], above: int, replace: bool) -> int:
    file = StoreFile(path)
    try:
        if file.content.heads and not replace:
            raise StoreError(f"{path} is not empty")
        base = max(file.content.revision, above) + 1
        reached = base + len(records)
        rows = [(base + n, each.key, base + n, 0, 0, 0, each.value, None) for n, each in enumerate(records, 1)]
        connection = file.connection
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM log")
        connection.execute("DELETE FROM leases")
        connection.executemany("INSERT INTO log VALUES (?,?,?,?,?,?,?,?)", rows)
        connection.execute("UPDATE meta SET number = ?", (reached,))
        connection.execute("COMMIT")
        return reached
    except (sqlite3.Error, OSError) as problem:
        raise StoreError(f"{path} cannot be written: {problem}") from problem
    finally:
        file.close()


# Files.


def save_snapshot(path: Path, snapshot: StoreSnapshot) -> int:
    """Returns how many objects were written."""
    records = snapshot.lasting
    content = b"".join(_lines(snapshot.revision, records))
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(path, content + orjson.dumps({"sha256": digest}) + b"\n")
    os.chmod(path, 0o600)
    return len(records)


def _lines(revision: int, records: Sequence[StoreRecord]) -> Iterator[bytes]:
    yield orjson.dumps({"format": FORMAT, "revision": revision, "records": len(records)}) + b"\n"
    for record in records:
        value = base64.b64encode(record.value).decode()
        yield orjson.dumps({"key": record.key, "revision": record.revision, "value": value}) + b"\n"


def load_snapshot(path: Path) -> StoreSnapshot:
    """Raises StoreError for what is not a whole backup."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as problem:
        raise StoreError(f"{path} cannot be read: {problem.strerror}") from problem
    try:
        head, *rows, end = lines
        first = orjson.loads(head)
        if first["format"] != FORMAT:
            raise StoreError(f"{path} has another format than {FORMAT}")
        if orjson.loads(end)["sha256"] != hashlib.sha256(b"".join(lines[:-1])).hexdigest():
            raise StoreError(f"{path} is damaged: its content has another hash")
        records = [
            StoreRecord(row["key"], base64.b64decode(row["value"]), row["revision"], row["revision"])
            for row in map(orjson.loads, rows)
        ]
    except (ValueError, KeyError, TypeError) as problem:
        raise StoreError(f"{path} is no backup of a store, or not a whole one") from problem
    if len(records) != first["records"]:
        raise StoreError(f"{path} is not whole: {len(records)} of {first['records']} records")
    return StoreSnapshot(first["revision"], records)


# Checking.


def faults_of(snapshot: StoreSnapshot) -> list[str]:
    """What is wrong with the objects: each must be readable, and be the one that its key says."""
    found: list[str] = []
    for record in snapshot.records:
        if record.revision > snapshot.revision:
            found.append(f"{record.key}: has revision {record.revision}, newer than the newest, {snapshot.revision}")
        if record.key.startswith(_OBJECTS) and (why := _fault(record)):
            found.append(f"{record.key}: {why}")
    if snapshot.compacted > snapshot.revision:
        found.append(
            f"history is compacted up to {snapshot.compacted}, beyond the newest revision, {snapshot.revision}"
        )
    return found


def _fault(record: StoreRecord) -> str:
    try:
        obj = orjson.loads(record.value)
        metadata = obj["metadata"]
        named = (metadata.get("namespace") or "", metadata["name"])
        if not (isinstance(obj["apiVersion"], str) and isinstance(obj["kind"], str) and metadata["uid"]):
            return "has no kind or uid"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "is no object in JSON"
    parts = record.key.removeprefix(_OBJECTS).split("/")
    expected = (parts[2], parts[3]) if len(parts) == 4 else ("", parts[-1])
    return "" if named == expected else f"is {'/'.join(filter(None, named))}, as it says itself"


def counts_of(snapshot: StoreSnapshot) -> list[tuple[str, int]]:
    """Objects by group and plural."""
    found = Counter(
        "/".join(record.key.removeprefix(_OBJECTS).split("/")[:2])
        for record in snapshot.records
        if record.key.startswith(_OBJECTS)
    )
    return sorted(found.items())
