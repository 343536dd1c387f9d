"""A log, or some of its events, as a text file that is handed to an auditor or a partner.

    coterie-evidence 1
    {"certificate": "-----BEGIN ...", "domain": "alice", "key": "<vkey>", "origin": "alice.coterie/evidence/1", "whole": true}
    w {"certificate": "<base64>", "key": "<vkey>"}                   a partner's log, whose key cosigned heads; its domain's RSA key signed it
    e 0 <hash of the event, hex> {"kind": "log.opened", ...}         the event as it was hashed; "-" when retention removed it
    e 1 <hash> {...}
    p 1 <hash, base64> <hash, base64> ...                            inclusion of event 1 in the last head; in files with some events
    h "alice.coterie/evidence/1\\n2\\n...\\n"                          a signed checkpoint with its cosignatures, as a JSON string
    d {"commitment": .., "salt": .., "subject": .., "value": ..}      what a commitment stands for; only what the exporter chose to show
    s {...}                                                          a task statement (DSSE)

Heads stand behind the events they cover. A reader needs no server, no network and no trust in who made the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from coterie.kuscia.evidence.log_file import Disclosure, StoredEvent

MAGIC = b"coterie-evidence 1\n"
_MAX_LINE = 1 << 20


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    domain: str
    key: str
    certificate: str
    """Of the domain, PEM."""
    whole: bool = True
    """All events from the first on; else some, each with its proof."""


class FormatError(ValueError):
    """The file is not what it should be, from this byte on."""

    def __init__(self, offset: int, sentence: str) -> None:
        super().__init__(f"byte {offset}: {sentence}")
        self.offset = offset
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class EventLine:
    offset: int
    index: int
    hash: bytes
    body: bytes | None


@dataclass(frozen=True, slots=True)
class ProofLine:
    offset: int
    index: int
    hashes: list[bytes]


@dataclass(frozen=True, slots=True)
class HeadLine:
    offset: int
    note: str


@dataclass(frozen=True, slots=True)
class WitnessLine:
    offset: int
    key: str
    certificate: str


@dataclass(frozen=True, slots=True)
class DisclosureLine:
    offset: int
    disclosure: Disclosure


@dataclass(frozen=True, slots=True)
class StatementLine:
    offset: int
    envelope: bytes


FileLine = EventLine | ProofLine | HeadLine | WitnessLine | DisclosureLine | StatementLine


class _WrittenWitness(msgspec.Struct, frozen=True):
    certificate: str
    key: str


class _WrittenDisclosure(msgspec.Struct, frozen=True):
    commitment: str
    salt: str
    value: str
    subject: str = ""


def write_header(header: FileHeader) -> bytes:
    return MAGIC + msgspec.json.encode(header, order="deterministic") + b"\n"


def write_event(event: StoredEvent) -> bytes:
    return b"e %d %s %s\n" % (event.index, event.hash.hex().encode(), b"-" if event.body is None else event.body)


def write_proof(index: int, hashes: Iterable[bytes]) -> bytes:
    return b" ".join((b"p %d" % index, *(base64.b64encode(each) for each in hashes))) + b"\n"


def write_head(note: str) -> bytes:
    return b"h " + msgspec.json.encode(note) + b"\n"


def write_witness(key: str, certificate: str) -> bytes:
    return b"w " + msgspec.json.encode(_WrittenWitness(certificate, key), order="deterministic") + b"\n"


def write_disclosure(disclosure: Disclosure) -> bytes:
    written = _WrittenDisclosure(
        disclosure.commitment, base64.b64encode(disclosure.salt).decode(), disclosure.value, disclosure.subject
    )
    return b"d " + msgspec.json.encode(written, order="deterministic") + b"\n"


def write_statement(envelope: bytes) -> bytes:
    return b"s " + json.dumps(json.loads(envelope), separators=(",", ":"), sort_keys=True).encode() + b"\n"


def read_header(file: BinaryIO) -> FileHeader:
    """Raises FormatError."""
    if file.readline(len(MAGIC) + 1) != MAGIC:
        raise FormatError(0, "this is no evidence file of version 1")
    line = file.readline(_MAX_LINE)
    try:
        return msgspec.json.decode(line, type=FileHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FormatError(len(MAGIC), f"the header cannot be read: {problem}") from None


def read_lines(file: BinaryIO) -> Iterator[FileLine]:
    """What follows the header. Raises FormatError at the first byte that cannot be read."""
    offset = file.tell()
    for line in iter(lambda: file.readline(_MAX_LINE), b""):
        if not line.endswith(b"\n"):
            raise FormatError(offset, "the line has no end: the file was cut off, or the line is too long")
        try:
            yield _parsed(line[:-1], offset)
        except (ValueError, IndexError, RecursionError) as problem:
            raise FormatError(offset, f"the line cannot be read ({problem})") from None
        offset += len(line)


def _parsed(line: bytes, offset: int) -> FileLine:
    kind, _, rest = line.partition(b" ")
    if kind == b"e":
        index, leaf, body = rest.split(b" ", 2)
        return EventLine(offset, int(index), bytes.fromhex(leaf.decode()), None if body == b"-" else body)
    if kind == b"p":
        index, *hashes = rest.split(b" ")
        return ProofLine(offset, int(index), [base64.b64decode(each, validate=True) for each in hashes])
    if kind == b"h":
        return HeadLine(offset, msgspec.json.decode(rest, type=str))
    if kind == b"w":
        written = msgspec.json.decode(rest, type=_WrittenWitness)
        return WitnessLine(offset, written.key, written.certificate)
    if kind == b"d":
        content = msgspec.json.decode(rest, type=_WrittenDisclosure)
        salt = base64.b64decode(content.salt, validate=True)
        return DisclosureLine(offset, Disclosure(content.commitment, salt, content.value, content.subject))
    if kind == b"s":
        return StatementLine(offset, rest)
    raise ValueError("unknown kind of line")
