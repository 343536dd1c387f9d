"""The shape of a log row, in memory and on disk, and what readers see of it.

A row is one change of one key. Rows are never altered; compaction only removes them. A big value is not in its row but
kept aside, and the row has its digest instead; a row whose value is in place (or fetched) is what readers get.
"""

from __future__ import annotations

from typing import NamedTuple

from coterie.kube.store.protocol import StoreError, StoreEvent, StoreRecord


class StoreRow(NamedTuple):
    """Field order is column order: a row is bound to the SQL statement as it is."""

    revision: int
    key: str
    created: int
    previous: int
    """Revision of the row that this one supersedes; 0 if the key did not exist."""
    deleted: int
    lease: int
    value: bytes | None
    digest: bytes | None


def record_of(row: StoreRow) -> StoreRecord:
    return StoreRecord(row.key, row.value or b"", row.revision, row.created, row.lease)


def event_of(row: StoreRow) -> StoreEvent:
    return StoreEvent(row.key, row.revision, None if row.deleted else row.value or b"", row.created, row.previous)


def check_key(key: str) -> None:
    """Refuse what could not be written or found again."""
    if not key:
        raise StoreError("a key must not be empty")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise StoreError("a key must be valid Unicode text") from error


def prefix_end(prefix: str) -> str | None:
    """The smallest text that sorts after everything that starts with `prefix`; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at]) + 1
        if 0xD800 <= code <= 0xDFFF:  # surrogates are no characters and cannot be bound to a statement
            code = 0xE000
        if code <= 0x10FFFF:
            return prefix[:at] + chr(code)
    return None
