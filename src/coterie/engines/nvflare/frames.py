"""What NVFlare's programs send each other, as far as it has to be read to let it pass. Pure.

A connection is a WebSocket; each of its messages is one frame of NVFlare's F3:

    length 4 | length of headers 2 | type 1 | 1 | flags 2 | application 2 | stream 2 | number 2 | headers | payload

Headers are a map in MessagePack. Only what can be read in one way is taken: a reader that understands it differently
would be let something through.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

DATA, HELLO, READY, PING, PONG = 1, 4, 5, 6, 7
_PREFIX = struct.Struct(">IHBBHHHH")
_DEPTH = 8


class BadFrame(Exception):
    """Not what NVFlare sends."""


class F3Frame(NamedTuple):
    type: int
    headers: dict[str, Any]
    """Of a message, or what a handshake says."""


def read(data: bytes) -> F3Frame:
    if len(data) < _PREFIX.size:
        raise BadFrame("a frame without its prefix")
    length, headers_length, kind, _, _, _, _, _ = _PREFIX.unpack_from(data)
    end = _PREFIX.size + headers_length
    if length != len(data) or end > length:
        raise BadFrame("the length of a frame is wrong")
    if kind in (PING, PONG):
        return F3Frame(kind, {})
    if kind == DATA:
        return F3Frame(kind, unpacked(data[_PREFIX.size : end]) if headers_length else {})
    if kind in (HELLO, READY) and not headers_length:
        return F3Frame(kind, unpacked(data[end:]))
    raise BadFrame(f"a frame of type {kind}")


def unpacked(data: bytes) -> dict[str, Any]:
    """A map in MessagePack and nothing behind it."""
    try:
        found, end = _value(data, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError) as problem:
        raise BadFrame("headers that end early or are no text") from problem
    if end != len(data) or not isinstance(found, dict):
        raise BadFrame("headers that are no map")
    return found


_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value, and where it ends."""
    if depth > _DEPTH:
        raise BadFrame("headers that are nested too deep")
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        return _number(data, at, _NUMBERS[first])
    if first < 0x90:
        return _map(data, at, first & 0x0F, depth)
    if first < 0xA0:
        return _list(data, at, first & 0x0F, depth)
    if first < 0xC0:
        return _text(data, at, first & 0x1F)
    for kinds, reader in ((_MAPS, _map), (_LISTS, _list)):
        if first in kinds:
            size, at = _number(data, at, kinds[first])
            return reader(data, at, int(size), depth)
    if first in _TEXTS:
        size, at = _number(data, at, _TEXTS[first])
        return _text(data, at, int(size))
    if first in _BYTES:
        size, at = _number(data, at, _BYTES[first])
        return _piece(data, at, int(size))
    raise BadFrame("headers with a type of value that NVFlare does not send")


def _number(data: bytes, at: int, form: str) -> tuple[Any, int]:
    (found,) = struct.unpack_from(form, data, at)
    return found, at + struct.calcsize(form)


def _piece(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise BadFrame("headers that end early or are no text")
    return data[at : at + size], at + size


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    found, at = _piece(data, at, size)
    return found.decode(), at


def _list(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(size):
        value, at = _value(data, at, depth + 1)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, size: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    for _ in range(size):
        key, at = _value(data, at, depth + 1)
        if not isinstance(key, str) or key in found:
            raise BadFrame("headers with a name that is no text or comes twice")
        found[key], at = _value(data, at, depth + 1)
    return found, at
