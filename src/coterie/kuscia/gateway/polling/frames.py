"""Calls and their answers as Kuscia's reverse tunnels carry them. Pure.

    stream    = (length (4 bytes, big-endian) · RequestMessage)*        down the answer to a poll
    a reply   = ResponseMessage                                         the body of a POST

An ordinary answer is one message. One that is streamed comes as many, each with `chunk` and its place: the first has status
and headers, the last says `end`. They may arrive in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.base.protobuf_wire import (
    LENGTH,
    VARINT,
    ProtobufError,
    bytes_field,
    fields,
    varint_field,
)

MAX_FRAME = 16 << 20
_PREFIX = 4
_MAX_HEADERS = 256


class PollFault(ValueError):
    """What came is no such message; nothing of it is used."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    id: str
    host: str
    path: str
    method: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    end: bool = False
    chunk: bool = False
    index: int = 0


def encode_call(call: CallFrame) -> bytes:
    """With its length in front. Raises PollFault when it is too long."""
    texts = enumerate((call.id, call.host, call.path, call.method), 1)
    content = b"".join(bytes_field(number, _utf8(text)) for number, text in texts if text)
    content += _encoded_headers(5, call.headers) + (bytes_field(6, call.body) if call.body else b"")
    if len(content) > MAX_FRAME:
        raise PollFault(f"the call has more than {MAX_FRAME >> 20} MiB")
    return len(content).to_bytes(_PREFIX, "big") + content


def decode_call(data: bytes | memoryview) -> CallFrame:
    texts = {number: "" for number in range(1, 5)}
    headers: dict[str, str] = {}
    body = b""
    for number, value in _fields(data, texts=(*texts, 5, 6)):
        if number in texts:
            texts[number] = _text(value)
        elif number == 5:
            _add_header(headers, value)
        elif number == 6:
            body = bytes(_view(value))
    return CallFrame(texts[1], texts[2], texts[3], texts[4], headers, body)


def encode_answer(answer: AnswerFrame) -> bytes:
    content = varint_field(1, answer.status) if answer.status else b""
    content += _encoded_headers(2, answer.headers) + (bytes_field(3, answer.body) if answer.body else b"")
    numbers = ((4, int(answer.end)), (5, int(answer.chunk)), (6, answer.index))
    return content + b"".join(varint_field(number, value) for number, value in numbers if value)


def decode_answer(data: bytes | memoryview) -> AnswerFrame:
    numbers = {1: 0, 4: 0, 5: 0, 6: 0}
    headers: dict[str, str] = {}
    body = b""
    for number, value in _fields(data, numbers=tuple(numbers), texts=(2, 3)):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number == 2:
            _add_header(headers, value)
        elif number == 3:
            body = bytes(_view(value))
    if numbers[1] and not 200 <= numbers[1] <= 599:
        raise PollFault("an answer without a status of HTTP")
    if numbers[6] >= 1 << 31:
        raise PollFault("an answer with a place that cannot be")
    return AnswerFrame(numbers[1], headers, body, bool(numbers[4]), bool(numbers[5]), numbers[6])


class FrameReader:
    """The calls in a stream that comes in pieces of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[CallFrame]:
        """Those that are complete now. Raises PollFault; nothing more may be fed then."""
        self._held += data
        found: list[CallFrame] = []
        at = 0
        while len(self._held) - at >= _PREFIX:
            size = int.from_bytes(self._held[at : at + _PREFIX], "big")
            if size > MAX_FRAME:
                raise PollFault(f"a frame of {size} bytes")
            if len(self._held) - at - _PREFIX < size:
                break
            found.append(decode_call(bytes(self._held[at + _PREFIX : at + _PREFIX + size])))
            at += _PREFIX + size
        del self._held[:at]
        return found


def _fields(
    data: bytes | memoryview, *, numbers: tuple[int, ...] = (), texts: tuple[int, ...] = ()
) -> list[tuple[int, int | memoryview]]:
    """Fields of other numbers are left out, as protobuf has it; a known one of another type is a fault."""
    found: list[tuple[int, int | memoryview]] = []
    try:
        for number, kind, value in fields(memoryview(data)):
            wanted = VARINT if number in numbers else LENGTH if number in texts else None
            if wanted is None:
                continue
            if kind != wanted:
                raise PollFault("a field of another type than its number says")
            found.append((number, value))
    except ProtobufError as error:
        raise PollFault(f"not a message of Kuscia's tunnels: {error}") from error
    return found


def _encoded_headers(number: int, headers: Mapping[str, str]) -> bytes:
    """A map is a list of pairs."""
    return b"".join(
        bytes_field(number, bytes_field(1, _utf8(key)) + bytes_field(2, _utf8(value))) for key, value in headers.items()
    )


def _add_header(headers: dict[str, str], value: int | memoryview) -> None:
    pair = dict(_fields(_view(value), texts=(1, 2)))
    if len(headers) >= _MAX_HEADERS:
        raise PollFault(f"more than {_MAX_HEADERS} headers")
    headers[_text(pair.get(1, memoryview(b""))).lower()] = _text(pair.get(2, memoryview(b"")))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(value: int | memoryview) -> str:
    try:
        return bytes(_view(value)).decode()
    except UnicodeDecodeError as error:
        raise PollFault("a text that is not UTF-8") from error


def _view(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise PollFault("a number where a text is expected")
    return value
