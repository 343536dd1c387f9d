"""The part of etcd's v3 API that a store needs, as bytes both ways. Pure. Field numbers stand beside their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coterie.base.protobuf_wire import bytes_field, fields, varint_field

RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
COMPACT = "/etcdserverpb.KV/Compact"
WATCH = "/etcdserverpb.Watch/Watch"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
STATUS = "/etcdserverpb.Maintenance/Status"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
PROGRESS_REQUEST = bytes_field(3, b"")

_EQUAL, _GREATER = 0, 1
_MOD = 2


@dataclass(frozen=True, slots=True)
class EtcdRecord:
    key: bytes
    created: int = 0
    revision: int = 0
    version: int = 0
    value: bytes = b""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class EtcdHeader:
    cluster: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class EtcdRange:
    header: EtcdHeader
    records: list[EtcdRecord]
    more: bool = False


@dataclass(frozen=True, slots=True)
class EtcdTxn:
    header: EtcdHeader
    succeeded: bool
    ranges: list[EtcdRange]
    """Of the operations that were ranges."""


@dataclass(frozen=True, slots=True)
class EtcdEvent:
    deleted: bool
    record: EtcdRecord
    previous: EtcdRecord | None


@dataclass(frozen=True, slots=True)
class EtcdWatch:
    header: EtcdHeader
    created: bool = False
    canceled: bool = False
    compacted: int = 0
    reason: str = ""
    events: list[EtcdEvent] = field(default_factory=list)


# Writing.


def _number(number: int, value: int) -> bytes:
    return varint_field(number, value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return bytes_field(number, value) if value else b""


def range_request(
    key: bytes,
    end: bytes = b"",
    *,
    revision: int = 0,
    limit: int = 0,
    keys_only: bool = False,
    count_only: bool = False,
) -> bytes:
    return (
        _bytes(1, key)
        + _bytes(2, end)
        + _number(3, limit)
        + _number(4, revision)
        + _number(8, keys_only)
        + _number(9, count_only)
    )


def revision_is(key: bytes, revision: int) -> bytes:
    """A condition: the key was last changed then (0: it does not exist)."""
    return varint_field(1, _EQUAL) + varint_field(2, _MOD) + bytes_field(3, key) + varint_field(6, revision)


def exists(key: bytes) -> bytes:
    return varint_field(1, _GREATER) + varint_field(2, _MOD) + bytes_field(3, key) + varint_field(6, 0)


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    return bytes_field(2, bytes_field(1, key) + _bytes(2, value) + _number(3, lease))


def delete(key: bytes, end: bytes = b"") -> bytes:
    return bytes_field(3, bytes_field(1, key) + _bytes(2, end))


def read(key: bytes) -> bytes:
    return bytes_field(1, range_request(key))


def txn_request(conditions: Iterable[bytes], then: Iterable[bytes], otherwise: Iterable[bytes]) -> bytes:
    return b"".join(
        (
            *(bytes_field(1, each) for each in conditions),
            *(bytes_field(2, each) for each in then),
            *(bytes_field(3, each) for each in otherwise),
        )
    )


def compact_request(revision: int) -> bytes:
    return varint_field(1, revision)


def watch_request(key: bytes, end: bytes, start: int, *, previous: bool = False) -> bytes:
    inner = _bytes(1, key) + _bytes(2, end) + _number(3, start) + _number(6, previous)
    return bytes_field(1, inner)


def lease_grant_request(ttl: int) -> bytes:
    return varint_field(1, ttl)


def lease_request(lease: int) -> bytes:
    return varint_field(1, lease)


def authenticate_request(name: str, password: str) -> bytes:
    return bytes_field(1, name.encode()) + bytes_field(2, password.encode())


# Reading.

_Fields = dict[int, list["int | memoryview"]]


def _read(message: bytes | memoryview) -> _Fields:
    found: _Fields = {}
    for number, _, value in fields(memoryview(message)):
        found.setdefault(number, []).append(value)
    return found


def _int(found: _Fields, number: int) -> int:
    value = found.get(number, (0,))[-1]
    return value if isinstance(value, int) else 0


def _view(found: _Fields, number: int) -> memoryview:
    value = found.get(number, (b"",))[-1]
    return memoryview(b"") if isinstance(value, int) else memoryview(value)


def _views(found: _Fields, number: int) -> list[memoryview]:
    return [value for value in found.get(number, ()) if not isinstance(value, int)]


# `shift` is added to all revisions that are read.


def header_of(message: bytes | memoryview, shift: int) -> EtcdHeader:
    """Of any answer: it is always the first field."""
    return _header(_read(message), shift)


def _header(found: _Fields, shift: int) -> EtcdHeader:
    header = _read(_view(found, 1))
    return EtcdHeader(_int(header, 1), _int(header, 3) + shift)


def _record(message: memoryview, shift: int) -> EtcdRecord:
    key, created, revision, version, value, lease = b"", 0, 0, 0, b"", 0
    for number, _, content in fields(message):
        if isinstance(content, int):
            if number == 2:
                created = content
            elif number == 3:
                revision = content
            elif number == 4:
                version = content
            elif number == 6:
                lease = content
        elif number == 1:
            key = bytes(content)
        elif number == 5:
            value = bytes(content)
    return EtcdRecord(key, created + shift if created else 0, revision + shift, version, value, lease)


def range_response(message: bytes | memoryview, shift: int) -> EtcdRange:
    found = _read(message)
    records = [_record(each, shift) for each in _views(found, 2)]
    return EtcdRange(_header(found, shift), records, bool(_int(found, 3)))


def txn_response(message: bytes, shift: int) -> EtcdTxn:
    found = _read(message)
    ranges = [range_response(inner, shift) for each in _views(found, 3) for inner in _views(_read(each), 1)]
    return EtcdTxn(_header(found, shift), bool(_int(found, 2)), ranges)


def watch_response(message: bytes, shift: int) -> EtcdWatch:
    found = _read(message)
    compacted = _int(found, 5)
    return EtcdWatch(
        _header(found, shift),
        bool(_int(found, 3)),
        bool(_int(found, 4)),
        compacted + shift if compacted else 0,
        bytes(_view(found, 6)).decode("utf-8", "replace"),
        [_event(each, shift) for each in _views(found, 11)],
    )


def _event(message: memoryview, shift: int) -> EtcdEvent:
    found = _read(message)
    previous = _views(found, 3)
    before = _record(previous[-1], shift) if previous else None
    return EtcdEvent(bool(_int(found, 1)), _record(_view(found, 2), shift), before)


def lease_response(message: bytes) -> tuple[int, int]:
    """Id and seconds of a lease that was granted or kept alive."""
    found = _read(message)
    seconds = _int(found, 3)
    return _int(found, 2), seconds if seconds < 1 << 63 else 0


def version_of(message: bytes) -> str:
    return bytes(_view(_read(message), 2)).decode("ascii", "replace")


def token_of(message: bytes) -> str:
    return bytes(_view(_read(message), 2)).decode("ascii", "replace")
