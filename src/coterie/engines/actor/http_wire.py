"""HTTP/1.1 on a blocking socket, as much of it as the actor protocol needs. Everything that a peer can make grow has a limit."""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

MOST_HEAD = 32 << 10
MOST_LINE = 8 << 10
MOST_HEADERS = 64
_PIECE = 1 << 16
_REASONS = {
    100: "Continue", 200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 409: "Conflict", 411: "Length Required", 413: "Content Too Large", 422: "Unprocessable Content",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    503: "Service Unavailable", 505: "HTTP Version Not Supported",
}  # fmt: skip
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ONCE = frozenset((b"content-length", b"transfer-encoding", b"authorization", b"host"))
_HEX = frozenset(b"0123456789abcdefABCDEF")


class WireError(Exception):
    """The peer does not speak HTTP as we do; it gets this status, and the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PeerGone(Exception):
    """In the middle of a request: there is nobody to answer."""


class RequestHead(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """Names in lower case."""

    @property
    def keep_alive(self) -> bool:
        return b"close" not in self.headers.get(b"connection", b"").lower()


class RequestReader:
    """The requests of one connection, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def head(self) -> RequestHead | None:
        """None when the connection ended between two requests."""
        buffer = self._buffer
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > MOST_HEAD:
                raise WireError(431, f"the head of a request may have {MOST_HEAD} bytes")
            piece = self._socket.recv(_PIECE)
            if not piece:
                if buffer:
                    raise PeerGone
                return None
            buffer += piece
        if end > MOST_HEAD:
            raise WireError(431, f"the head of a request may have {MOST_HEAD} bytes")
        self._buffer = buffer[end + 4 :]
        return parse_head(buffer[:end])

    def body(self, head: RequestHead, limit: int) -> bytes:
        """WireError 413 above the limit, before it was read."""
        headers = head.headers
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if coding is not None and length is not None:
            raise WireError(400, "Content-Length and Transfer-Encoding together")
        if length is not None:
            if not length.isdigit() or len(length) > 18:
                raise WireError(400, "Content-Length is not a number")
            if int(length) > limit:
                raise WireError(413, f"a body may have {limit} bytes")
            self._continue(headers)
            return self._exactly(int(length))
        if coding is None:
            return b""
        if coding.lower() != b"chunked":
            raise WireError(501, "the only Transfer-Encoding is chunked")
        self._continue(headers)
        return self._chunks(limit)

    def _continue(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"expect", b"").lower() == b"100-continue" and not self._buffer:
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _exactly(self, count: int) -> bytes:
        buffer = self._buffer
        if len(buffer) >= count:
            self._buffer = buffer[count:]
            return buffer[:count]
        pieces, missing = [buffer], count - len(buffer)
        self._buffer = b""
        while missing:
            piece = self._socket.recv(min(missing, 1 << 20))
            if not piece:
                raise PeerGone
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _chunks(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        total = 0
        while True:
            size = self._line(1024).partition(b";")[0].strip()
            if not size or len(size) > 16 or not _HEX.issuperset(size):
                raise WireError(400, "the size of a chunk is not a number")
            count = int(size, 16)
            total += count
            if total > limit:
                raise WireError(413, f"a body may have {limit} bytes")
            if not count:
                break
            pieces.append(self._exactly(count))
            if self._exactly(2) != b"\r\n":
                raise WireError(400, "a chunk is longer than it says")
        for _ in range(MOST_HEADERS):
            if not self._line(MOST_LINE):
                return b"".join(pieces)
        raise WireError(431, f"there may be {MOST_HEADERS} trailers")

    def _line(self, limit: int) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > limit:
                raise WireError(400, "a line is too long")
            piece = self._socket.recv(_PIECE)
            if not piece:
                raise PeerGone
            self._buffer += piece
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line


class Connection:
    """One client."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.reader = RequestReader(connection)
        self.trusted = False
        """It has shown the token."""
        self.idle = True

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def text(self, status: int, message: str, *, close: bool = False) -> None:
        body = f"{message}\n".encode("utf-8", "replace")
        self.send(answer_head(status, len(body), close=close) + body)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def parse_head(data: bytes) -> RequestHead:
    first, *lines = data.split(b"\r\n")
    if len(lines) > MOST_HEADERS:
        raise WireError(431, f"a request may have {MOST_HEADERS} headers")
    if len(first) > MOST_LINE or any(len(line) > MOST_LINE for line in lines):
        raise WireError(431, f"a line of the head may have {MOST_LINE} bytes")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        raise WireError(400, "the first line is not that of an HTTP request")
    method, target, version = words
    if version != b"HTTP/1.1":
        raise WireError(505, "the version of HTTP must be 1.1")
    if not method or method.translate(None, _TOKEN) or not target.startswith(b"/") or not _printable(target):
        raise WireError(400, "the first line is not that of an HTTP request")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, _TOKEN):
            raise WireError(400, "a header has no name")
        name, value = name.lower(), value.strip(b" \t")
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise WireError(400, "a header has control characters")
        if name in headers and name in _ONCE:
            raise WireError(400, f"{name.decode()} is there twice")
        headers[name] = value
    path, _, query = target.decode("ascii").partition("?")
    return RequestHead(method.decode("ascii"), path, query, headers)


def _printable(text: bytes) -> bool:
    return text.isascii() and text.decode("ascii").isprintable()


def answer_head(status: int, length: int | None, *, close: bool = False, kind: str = "text/plain") -> bytes:
    """`length` None: chunked."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    last = "Connection: close\r\n" if close else ""
    reason = _REASONS.get(status, "Unknown")
    return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{size}\r\n{last}\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
