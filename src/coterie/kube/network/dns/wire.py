"""DNS messages as bytes (RFC 1035, 3597, 6891). Strict: what is not a well-formed message is a `MalformedMessage`.

Reading takes time linear in the message: a compression pointer must lead to before the name that holds it, a name has at
most 127 of them, and it ends after 255 octets. Writing compresses names, adds an OPT record when the asker sent one, and never writes more than
it is allowed: what does not fit is left out whole and marked as truncated, so that the asker comes again by TCP.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from coterie.kube.network.dns.model import (
    DnsAnswer,
    DnsQuestion,
    Name,
    RecordType,
    ResourceRecord,
    ResponseCode,
    packed_name,
)

UDP_SIZE = 1232
"""What fits through every network unfragmented; we offer and use no more."""
PLAIN_SIZE = 512
TCP_SIZE = 65535

_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_QR, _AA, _TC, _RD, _RA = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_MAX_NAME = 255
_MOST_POINTERS = 127
"""A name has no more labels than that, and nobody needs a pointer for less than one."""
_POINTED = 0x4000
_NAME_AFTER = {
    RecordType.NS: 0,
    RecordType.CNAME: 0,
    RecordType.PTR: 0,
    RecordType.DNAME: 0,
    RecordType.MX: 2,
    RecordType.SRV: 6,
}
"""Octets before the name inside the data of these types, which old senders may compress."""


class MalformedMessage(Exception):
    """The bytes are no DNS message."""


@dataclass(frozen=True, slots=True)
class Query:
    """`echo` is the question as it came: its upper and lower case letters go back unchanged."""

    id: int
    question: DnsQuestion
    echo: bytes
    recursion: bool
    opcode: int = 0
    edns: bool = False
    edns_version: int = 0
    size: int = PLAIN_SIZE


@dataclass(frozen=True, slots=True)
class DnsReply:
    id: int
    code: int
    truncated: bool
    question: DnsQuestion
    answers: tuple[ResourceRecord, ...]
    authority: tuple[ResourceRecord, ...]


def read_query(data: bytes) -> Query:
    id_, flags, questions, answers, authority, additional = _header(data)
    if flags & _QR:
        raise MalformedMessage("is an answer")
    if questions != 1 or answers or authority > 1 or additional > 4:
        raise MalformedMessage("does not hold exactly one question")
    name, at = _read_name(data, 12, pointers=False)
    type_, klass = _unpack(_QUESTION, data, at)
    at += 4
    echo = data[12:at]
    if authority:
        if type_ != RecordType.IXFR:
            raise MalformedMessage("brings records along")
        _, at = _read_record(data, at)  # which state of the zone the asker has
    edns, version, size = False, 0, PLAIN_SIZE
    for _ in range(additional):
        owner, at = _read_name(data, at)
        kind, udp_size, ttl, length = _unpack(_RECORD, data, at)
        at += 10 + length
        if kind == RecordType.OPT:
            if edns or owner:
                raise MalformedMessage("has a wrong OPT record")
            edns, version, size = True, ttl >> 16 & 0xFF, min(max(udp_size, PLAIN_SIZE), UDP_SIZE)
    if at != len(data):
        raise MalformedMessage("has bytes after its end")
    return Query(id_, DnsQuestion(name, type_, klass), echo, bool(flags & _RD), flags >> 11 & 15, edns, version, size)


def write_query(id_: int, question: DnsQuestion) -> bytes:
    """A question of ours to another server."""
    out = bytearray(_HEADER.pack(id_, _RD, 1, 0, 0, 1))
    out += packed_name(question.name)
    out += _QUESTION.pack(question.type, question.klass)
    out += b"\0" + _RECORD.pack(RecordType.OPT, UDP_SIZE, 0, 0)
    return bytes(out)


def read_reply(data: bytes) -> DnsReply:
    id_, flags, questions, answers, authority, _ = _header(data)
    if not flags & _QR or flags >> 11 & 15 or questions != 1:
        raise MalformedMessage("is no answer to one question")
    name, at = _read_name(data, 12)
    type_, klass = _unpack(_QUESTION, data, at)
    at += 4
    truncated = bool(flags & _TC)
    sections: list[tuple[ResourceRecord, ...]] = []
    for count in (0, 0) if truncated else (answers, authority):
        records = []
        for _ in range(count):
            record, at = _read_record(data, at)
            records.append(record)
        sections.append(tuple(records))
    return DnsReply(id_, flags & 15, truncated, DnsQuestion(name, type_, klass), *sections)


def opcode(data: bytes) -> int:
    """What is asked for, known before anything else can be read; 0 (a question) for what is too short to say."""
    return data[2] >> 3 & 15 if len(data) >= 12 else 0


def write_answer(query: Query, answer: DnsAnswer, limit: int) -> bytes:
    """`limit`: most octets, the asker's for UDP."""
    whole = _write(query, answer, truncated=False)
    return whole if len(whole) <= limit else _write(query, DnsAnswer(answer.code), truncated=True)


def write_error(data: bytes, code: ResponseCode) -> bytes | None:
    """To something of which only the header could be read; nothing to what is itself an answer."""
    if len(data) < 12 or data[2] & 0x80:
        return None
    id_, flags = struct.unpack_from("!HH", data)
    return _HEADER.pack(id_, _QR | flags & 0x7800 | flags & _RD | _RA | code, 0, 0, 0, 0)


def _write(query: Query, answer: DnsAnswer, *, truncated: bool) -> bytes:
    flags = _QR | query.opcode << 11 | _RA | (answer.code & 15)
    flags |= (_AA if answer.authoritative else 0) | (_TC if truncated else 0) | (_RD if query.recursion else 0)
    counts = (1, len(answer.answers), len(answer.authority), len(answer.additional) + query.edns)
    out = bytearray(_HEADER.pack(query.id, flags, *counts))
    out += query.echo
    known: dict[Name, int] = {}
    _remember(known, query.question.name, 12)
    for section in (answer.answers, answer.authority, answer.additional):
        for record in section:
            _write_name(out, record.name, known)
            out += _RECORD.pack(record.type, record.klass, record.ttl, len(record.data))
            out += record.data
    if query.edns:
        out += b"\0" + _RECORD.pack(RecordType.OPT, UDP_SIZE, answer.code >> 4 << 24, 0)
    return bytes(out)


def _remember(known: dict[Name, int], name: Name, at: int) -> None:
    """From now on `name` and what it ends in can be pointed to."""
    for index, label in enumerate(name):
        if at >= _POINTED:
            return
        known.setdefault(name[index:], at)
        at += 1 + len(label)


def _write_name(out: bytearray, name: Name, known: dict[Name, int]) -> None:
    for index in range(len(name)):
        target = known.get(name[index:])
        if target is not None:
            break
        if len(out) < _POINTED:
            known[name[index:]] = len(out)
        out.append(len(name[index]))
        out += name[index]
    else:
        out.append(0)
        return
    out += (0xC000 | target).to_bytes(2, "big")


def _header(data: bytes) -> tuple[int, int, int, int, int, int]:
    if len(data) < 12:
        raise MalformedMessage("is shorter than a header")
    return _HEADER.unpack_from(data)


def _unpack(shape: struct.Struct, data: bytes, at: int) -> tuple[int, ...]:
    if at + shape.size > len(data):
        raise MalformedMessage("ends early")
    return shape.unpack_from(data, at)


def _read_record(data: bytes, at: int) -> tuple[ResourceRecord, int]:
    name, at = _read_name(data, at)
    type_, klass, ttl, length = _unpack(_RECORD, data, at)
    at += 10
    end = at + length
    if end > len(data):
        raise MalformedMessage("ends early")
    # RFC 2181: a TTL with the highest bit set counts as none.
    return ResourceRecord(name, type_, 0 if ttl >> 31 else ttl, _written_out(data, type_, at, end), klass), end


def _written_out(data: bytes, type_: int, at: int, end: int) -> bytes:
    """The data of a record without pointers into the message it came in."""
    if type_ == RecordType.SOA:
        first, after = _read_name(data, at)
        second, after = _read_name(data, after)
        if after + 20 != end:
            raise MalformedMessage("has a wrong SOA record")
        return packed_name(first) + packed_name(second) + data[after:end]
    skipped = _NAME_AFTER.get(type_)  # type: ignore[call-overload]
    if skipped is None:
        return data[at:end]
    name, after = _read_name(data, at + skipped)
    if after != end:
        raise MalformedMessage("has a record that ends elsewhere than it says")
    return data[at : at + skipped] + packed_name(name)


def _read_name(data: bytes, at: int, *, pointers: bool = True) -> tuple[Name, int]:
    """(the name in lower case, where it ends)."""
    labels: list[bytes] = []
    size, after, before, here = 1, -1, at, at
    end, pointers_left = len(data), _MOST_POINTERS
    while True:
        if here >= end:
            raise MalformedMessage("ends inside a name")
        length = data[here]
        if length == 0:
            return tuple(labels), here + 1 if after < 0 else after
        if length >= 0xC0:
            if not pointers or here + 1 >= end:
                raise MalformedMessage("has a pointer where none may be")
            if after < 0:
                after = here + 2
            here = (length & 0x3F) << 8 | data[here + 1]
            if here >= before or not pointers_left:
                raise MalformedMessage("has a pointer that does not lead back to a name")
            before = here
            pointers_left -= 1
            continue
        if length > 63:
            raise MalformedMessage("has a label of an unknown kind")
        size += 1 + length
        if size > _MAX_NAME or here + 1 + length > end:
            raise MalformedMessage("has a name that is too long")
        labels.append(data[here + 1 : here + 1 + length].lower())
        here += 1 + length
