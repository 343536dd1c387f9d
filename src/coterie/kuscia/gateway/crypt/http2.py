"""A gRPC server for one client, our own Envoy, over a private socket: as much of HTTP/2 as that takes.

A general library spends more time on each frame than AES does on its content. Here the client is known: every stream it
opens is one call of `Process`, so its header blocks need not be understood at all and ours are constants. What remains
is framing and flow control.

Memory is bounded by flow control in both directions. A stream may send us one window; it gets more only when what came
of it has been handed to the socket, and the socket takes what Envoy reads. So a client or service that does not read
stops its sender, wherever that is, and costs no more than two windows here.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from coterie.base.log import logger

_log = logger("gateway.crypt")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">BHBBL")  # length in 8 + 16 bits, kind, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED = 4, 8
_MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _TABLE_SIZE = 3, 4, 5, 1
_PROTOCOL_ERROR, _INTERNAL_ERROR, _FLOW_ERROR = 1, 2, 3

STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 1 << 30
"""Shared by all streams, each of which is bounded by itself."""
FRAME_BYTES = 1 << 20
_LONGEST_MESSAGE = 16 << 20
_OUR_FRAMES = 16384
_LARGEST_WINDOW = (1 << 31) - 1

# ":status: 200" from the static table, then "content-type: application/grpc" as a literal; and "grpc-status: n".
_REPLY = b"\x88\x0f\x10\x10application/grpc"


def _status(code: str) -> bytes:
    return b"\x00\x0bgrpc-status" + bytes([len(code)]) + code.encode()


class GrpcCallHandler(Protocol):
    """What a call does with its messages."""

    def __call__(self, message: memoryview) -> list[bytes]:
        """The answers. ValueError ends the call with an error."""


class _Broken(Exception):
    """The client breaks the protocol; the connection ends."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Stream:
    __slots__ = ("answered", "handler", "held", "number", "owed", "queue", "remote_ended", "window")

    def __init__(self, number: int, handler: GrpcCallHandler, window: int) -> None:
        self.number = number
        self.handler = handler
        self.window = window
        """How much we may still send."""
        self.owed = 0
        """How much was received for which no new window has been given."""
        self.held = bytearray()
        self.queue: deque[memoryview] = deque()
        self.answered = False
        self.remote_ended = False


class GrpcConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, new_call: Callable[[], GrpcCallHandler], connections: set[GrpcConnection] | None = None) -> None:
        self._new_call = new_call
        self._connections = connections if connections is not None else set()
        self._transport: asyncio.Transport | None = None
        self._input = b""
        self._greeted = False
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}
        """Streams with something to send that could not be sent yet."""
        self._newest = 0
        self._window = 65535
        self._first_window = 65535
        self._largest = _OUR_FRAMES
        self._owed = 0
        self._paused = False
        self._continued = 0

    # ---- connection ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=STREAM_WINDOW)
        self._connections.add(self)
        settings = (
            (_TABLE_SIZE, 0),
            (_MAX_STREAMS, 1 << 20),
            (_INITIAL_WINDOW, STREAM_WINDOW),
            (_MAX_FRAME, FRAME_BYTES),
        )
        self._send(_SETTINGS, 0, 0, b"".join(struct.pack(">HL", *each) for each in settings))
        self._send(_WINDOW, 0, 0, (CONNECTION_WINDOW - 65535).to_bytes(4, "big"))

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._streams.clear()
        self._waiting.clear()
        self._transport = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush_waiting()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self, kind: int, flags: int, stream: int, *content: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        size = sum(map(len, content))
        self._transport.writelines((_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream), *content))

    # ---- what comes ----

    def data_received(self, data: bytes) -> None:
        try:
            whole = self._input + data if self._input else data
            if self._greeted:
                self._read_frames(whole, 0)
            elif len(whole) < len(PREFACE):
                self._input = whole
            elif not whole.startswith(PREFACE):
                raise _Broken(_PROTOCOL_ERROR, "not HTTP/2")
            else:
                self._greeted = True
                self._read_frames(whole, len(PREFACE))
        except _Broken as error:
            _log.warning("Connection aborted", error=error)
            self._send(_GOAWAY, 0, 0, struct.pack(">LL", self._newest, error.code))
            if self._transport is not None:
                self._transport.close()

    def _read_frames(self, whole: bytes, at: int) -> None:
        view = memoryview(whole)
        while len(whole) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(whole, at)
            size = high << 16 | low
            if size > FRAME_BYTES:
                raise _Broken(_PROTOCOL_ERROR, "a frame is too long")
            end = at + _HEAD.size + size
            if len(whole) < end:
                break
            self._frame(kind, flags, stream & _LARGEST_WINDOW, view[at + _HEAD.size : end])
            at = end
        self._input = whole[at:]

    def _frame(self, kind: int, flags: int, number: int, content: memoryview) -> None:
        if self._continued and (kind != _CONTINUATION or number != self._continued):
            raise _Broken(_PROTOCOL_ERROR, "a header block is interrupted")
        if kind == _DATA:
            self._data(flags, number, content)
        elif kind == _HEADERS:
            self._headers(flags, number)
        elif kind == _CONTINUATION:
            self._continued = 0 if flags & _END_HEADERS else number
        elif kind == _WINDOW:
            self._more_window(number, int.from_bytes(content, "big") & _LARGEST_WINDOW)
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(content)
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, bytes(content))
        elif kind == _RESET:
            self._forget(number)

    def _settings(self, content: memoryview) -> None:
        for key, value in struct.iter_unpack(">HL", content):
            if key == _INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._first_window
                self._first_window = value
            elif key == _MAX_FRAME:
                self._largest = min(value, FRAME_BYTES)
        self._send(_SETTINGS, _ACK, 0)
        self._flush_waiting()

    def _headers(self, flags: int, number: int) -> None:
        self._continued = 0 if flags & _END_HEADERS else number
        if number in self._streams:  # trailers of the client: the end of what it says
            self._remote_end(self._streams[number])
            return
        if number <= self._newest or number % 2 == 0:
            raise _Broken(_PROTOCOL_ERROR, "a stream is opened out of order")
        self._newest = number
        stream = self._streams[number] = _Stream(number, self._new_call(), self._first_window)
        if flags & _END_STREAM:
            self._remote_end(stream)

    def _data(self, flags: int, number: int, content: memoryview) -> None:
        self._owed += len(content)
        if self._owed >= CONNECTION_WINDOW // 4:
            self._send(_WINDOW, 0, 0, self._owed.to_bytes(4, "big"))
            self._owed = 0
        stream = self._streams.get(number)
        if stream is None:
            return  # it was reset by us while this was on its way
        stream.owed += len(content)
        if stream.owed > STREAM_WINDOW:
            raise _Broken(_FLOW_ERROR, "more was sent than allowed")
        if flags & _PADDED:
            content = content[1 : len(content) - content[0]]
        try:
            self._messages(stream, content)
        except ValueError as error:
            _log.warning("Call aborted", error=error)
            self._reset(stream)
            return
        if flags & _END_STREAM:
            self._remote_end(stream)

    def _messages(self, stream: _Stream, content: memoryview) -> None:
        """Cut into messages: a flag of compression (never set), a length in 4 bytes, the message."""
        if stream.held:
            stream.held += content
            view = memoryview(stream.held)
        else:
            view = content
        at, size = 0, len(view)
        while size - at >= 5:
            length = int.from_bytes(view[at + 1 : at + 5], "big")
            if view[at] or length > _LONGEST_MESSAGE:
                raise ValueError("a message is compressed or too long")
            if size - at < 5 + length:
                break
            for answer in stream.handler(view[at + 5 : at + 5 + length]):
                stream.queue.append(memoryview(b"\x00" + len(answer).to_bytes(4, "big") + answer))
            at += 5 + length
        stream.held = bytearray(view[at:])
        self._flush(stream)

    # ---- what goes ----

    def _flush_waiting(self) -> None:
        for stream in list(self._waiting.values()):
            if self._paused or self._window <= 0:
                return
            self._flush(stream)

    def _flush(self, stream: _Stream) -> None:
        """Send what may be sent; give new window for what was dealt with."""
        if stream.queue and not stream.answered:
            stream.answered = True
            self._send(_HEADERS, _END_HEADERS, stream.number, _REPLY)
        while stream.queue and not self._paused:
            allowed = min(self._largest, self._window, stream.window)
            if allowed <= 0:
                break
            piece = stream.queue.popleft()
            if len(piece) > allowed:
                stream.queue.appendleft(piece[allowed:])
                piece = piece[:allowed]
            self._window -= len(piece)
            stream.window -= len(piece)
            self._send(_DATA, 0, stream.number, piece)
        if stream.queue:
            self._waiting[stream.number] = stream
            return
        self._waiting.pop(stream.number, None)
        if stream.remote_ended:
            self._finish(stream)
        elif stream.owed >= STREAM_WINDOW // 2:
            self._send(_WINDOW, 0, stream.number, stream.owed.to_bytes(4, "big"))
            stream.owed = 0

    def _more_window(self, number: int, more: int) -> None:
        if number == 0:
            self._window += more
            self._flush_waiting()
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
            if number in self._waiting:
                self._flush(stream)

    def _remote_end(self, stream: _Stream) -> None:
        stream.remote_ended = True
        self._flush(stream)

    def _finish(self, stream: _Stream) -> None:
        """Only after Envoy itself is done: to end a call in order before that would mean 'go on without me'."""
        self._forget(stream.number)
        head = b"" if stream.answered else _REPLY
        self._send(_HEADERS, _END_HEADERS | _END_STREAM, stream.number, head + _status("0"))

    def _reset(self, stream: _Stream) -> None:
        self._forget(stream.number)
        self._send(_RESET, 0, stream.number, _INTERNAL_ERROR.to_bytes(4, "big"))

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._waiting.pop(number, None)
