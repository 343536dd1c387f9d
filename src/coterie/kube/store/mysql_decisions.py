"""What the holder of a MySQL store decides: which writes of a batch hold, and what they become. Pure.

Also the writes and answers that go through `coterie_requests`, as JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from coterie.kube.store.protocol import (
    CompareFailed,
    DeleteOp,
    LeaseNotFound,
    Op,
    PutOp,
    StoreError,
    StoreRecord,
)
from coterie.kube.store.rows import StoreRow, record_of

KeyHead = tuple[int, int, int]
"""Revision, created and lease of a key that exists."""
_ANY = -1
_NOTHING: KeyHead = (0, 0, 0)


@dataclass(slots=True)
class CompareRefusal:
    index: int
    op: Op
    actual: int


@dataclass(slots=True)
class LeaseRefusal:
    lease: int


Verdict = list[int] | CompareRefusal | LeaseRefusal


@dataclass(slots=True)
class DecidedBatch:
    rows: list[StoreRow] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    """One for each write: its revisions, or why it was refused."""

    @property
    def refused_at(self) -> set[int]:
        """Revisions of what stands in the way, where it was there before this batch."""
        own = {row.revision for row in self.rows}
        return {v.actual for v in self.verdicts if isinstance(v, CompareRefusal) and v.actual} - own


def decide(
    heads: Mapping[str, KeyHead], writes: Sequence[Sequence[Op]], base: int, leases: Collection[int]
) -> DecidedBatch:
    """Each write, all of it or nothing, after those before it."""
    batch = DecidedBatch()
    changed: dict[str, KeyHead] = {}
    for ops in writes:
        tried: dict[str, KeyHead] = {}
        rows: list[StoreRow] = []
        verdict: Verdict = []
        revision = base + len(batch.rows)
        for index, op in enumerate(ops):
            key = op.key
            old = tried.get(key) or changed.get(key) or heads.get(key, _NOTHING)
            actual, created, _ = old
            revision += 1
            if (op.expect is not None and op.expect != actual) or (isinstance(op, DeleteOp) and not actual):
                verdict = CompareRefusal(index, op, actual)
                break
            if isinstance(op, DeleteOp):
                rows.append(StoreRow(revision, key, created, actual, 1, 0, None, None))
                tried[key] = _NOTHING
                continue
            if op.lease and op.lease not in leases:
                verdict = LeaseRefusal(op.lease)
                break
            created = created if actual else revision
            rows.append(StoreRow(revision, key, created, actual, 0, op.lease, op.value, None))
            tried[key] = (revision, created, op.lease)
        else:
            verdict = [row.revision for row in rows]
            batch.rows += rows
            changed.update(tried)
        batch.verdicts.append(verdict)
    return batch


def error_of(verdict: CompareRefusal | LeaseRefusal, records: Mapping[int, StoreRecord]) -> StoreError:
    if isinstance(verdict, LeaseRefusal):
        return lease_gone(verdict.lease)
    op = verdict.op
    expected = _ANY if op.expect is None else op.expect
    return CompareFailed(verdict.index, op.key, expected, verdict.actual, records.get(verdict.actual))


def lease_gone(lease: int) -> LeaseNotFound:
    return LeaseNotFound(f"lease {lease} expired, was revoked or never existed")


def records_of(rows: Sequence[StoreRow]) -> dict[int, StoreRecord]:
    return {row.revision: record_of(row) for row in rows if not row.deleted}


# Through the table.


def write_to_json(ops: Sequence[Op]) -> bytes:
    return orjson.dumps(
        [
            {"key": op.key, "expect": op.expect, "lease": op.lease, "value": base64.b64encode(op.value).decode()}
            if isinstance(op, PutOp)
            else {"key": op.key, "expect": op.expect}
            for op in ops
        ]
    )


def write_from_json(body: bytes) -> list[Op]:
    ops: list[Op] = []
    for each in orjson.loads(body):
        if "value" in each:
            ops.append(PutOp(each["key"], base64.b64decode(each["value"]), each["expect"], each["lease"]))
        else:
            ops.append(DeleteOp(each["key"], each["expect"]))
    return ops


def answer_to_json(answer: list[int] | StoreError) -> bytes:
    if isinstance(answer, list):
        return orjson.dumps({"revisions": answer})
    if isinstance(answer, CompareFailed):  # without the record, which may be large: who asked reads it
        refused = {"index": answer.index, "key": answer.key, "expected": answer.expected, "actual": answer.actual}
        return orjson.dumps({"compare": refused})
    if isinstance(answer, LeaseNotFound):
        return orjson.dumps({"lease": str(answer)})
    return orjson.dumps({"error": str(answer)})


def answer_from_json(text: bytes) -> list[int] | StoreError:
    answer = orjson.loads(text)
    if "revisions" in answer:
        revisions: list[int] = answer["revisions"]
        return revisions
    if "compare" in answer:
        return CompareFailed(**answer["compare"])
    if "lease" in answer:
        return LeaseNotFound(answer["lease"])
    return StoreError(answer["error"])
