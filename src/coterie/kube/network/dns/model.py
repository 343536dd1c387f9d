"""Questions, records and answers as plain data. Nothing here knows how they look on the wire.

A name is a tuple of lower-case labels, the leftmost first: `web.alice.svc` is (b"web", b"alice", b"svc"). Labels are
bytes because DNS does not say what they mean; ours are ASCII.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum

Name = tuple[bytes, ...]

IN = 1


class RecordType(IntEnum):
    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    DNAME = 39
    OPT = 41
    IXFR = 251
    AXFR = 252
    ANY = 255


class ResponseCode(IntEnum):
    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    name: Name
    type: int
    klass: int = IN


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """`data` is as on the wire with all names in it written out."""

    name: Name
    type: int
    ttl: int
    data: bytes
    klass: int = IN


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    code: int = ResponseCode.NOERROR
    answers: tuple[ResourceRecord, ...] = ()
    authority: tuple[ResourceRecord, ...] = ()
    additional: tuple[ResourceRecord, ...] = ()
    authoritative: bool = False
    forward: DnsQuestion | None = None
    """What upstream must be asked to complete this: its records follow ours, and its code is the answer's."""


REFUSED = DnsAnswer(ResponseCode.REFUSED)
FAILED = DnsAnswer(ResponseCode.SERVFAIL)


def name_of(text: str) -> Name:
    return tuple(text.lower().rstrip(".").encode("ascii", "replace").split(b".")) if text.rstrip(".") else ()


def text_of(name: Name) -> str:
    return b".".join(name).decode("ascii", "backslashreplace") or "."


def packed_name(name: Name) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in name) + b"\0"


def address_record(name: Name, address: str, ttl: int) -> ResourceRecord:
    parsed = ipaddress.ip_address(address)
    return ResourceRecord(name, RecordType.A if parsed.version == 4 else RecordType.AAAA, ttl, parsed.packed)


def srv_record(name: Name, port: int, target: Name, ttl: int) -> ResourceRecord:
    return ResourceRecord(name, RecordType.SRV, ttl, struct.pack("!HHH", 0, 100, port) + packed_name(target))


def ptr_record(name: Name, target: Name, ttl: int) -> ResourceRecord:
    return ResourceRecord(name, RecordType.PTR, ttl, packed_name(target))


def soa_record(zone: Name, serial: int, ttl: int) -> ResourceRecord:
    """`ttl` is also how long a "no such name" may be remembered."""
    names = packed_name((b"ns", b"dns", *zone)) + packed_name((b"hostmaster", *zone))
    return ResourceRecord(
        zone, RecordType.SOA, ttl, names + struct.pack("!5I", serial & 0xFFFFFFFF, 7200, 1800, 86400, ttl)
    )
