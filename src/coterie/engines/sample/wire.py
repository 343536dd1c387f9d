"""As much HTTP as the engine needs, by hand: the library's own client and server would take most of the time it runs.

Each call is one connection. Partners are called at port 80 of their service's name, which leads to the own gateway;
where `http_proxy` is set, calls go there, as with any other program.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

_LONGEST_HEAD = 64 << 10
_PIECE = 1 << 18


class WireError(Exception):
    """The other end did not answer as HTTP does."""


class Head(NamedTuple):
    first: str
    """Request line or status line."""
    headers: dict[str, str]
    rest: bytes
    """What of the body came with it."""

    @property
    def length(self) -> int:
        text = self.headers.get("content-length", "0")
        if not text.isdigit():
            raise WireError("Content-Length is not a number")
        return int(text)


def call(
    url: str, body: Iterable[bytes], length: int, timeout: float, kind: str = "application/json"
) -> tuple[int, bytes]:
    """POST; the status and what was answered. Raises OSError or WireError."""
    host, path = _split(url)
    proxy = os.environ.get("http_proxy", "")
    place = _split(proxy)[0] if proxy else host
    name, _, port = place.partition(":")
    with socket.create_connection((name, int(port or 80)), timeout) as connection:
        connection.settimeout(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = url if proxy else path
        connection.sendall(
            f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n".encode()
        )
        for piece in body:
            connection.sendall(piece)
        head = read_head(connection)
        pieces: list[bytes] = []
        if "content-length" in head.headers:
            read_body(connection, head, pieces.append)
        else:
            pieces = [head.rest, *iter(lambda: connection.recv(_PIECE), b"")]
    status = head.first.split(" ")
    if len(status) < 2 or not status[1].isdigit():
        raise WireError(f"not an answer: {head.first[:60]!r}")
    return int(status[1]), b"".join(pieces)


def answer(connection: socket.socket, status: int, body: bytes) -> None:
    connection.sendall(
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


def read_head(connection: socket.socket) -> Head:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(_PIECE)
        if not piece:
            raise WireError("the connection ended before an answer" if not data else "the connection ended early")
        data += piece
        if len(data) > _LONGEST_HEAD + _PIECE:
            raise WireError("the headers do not end")
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Head(first, headers, rest)


def read_body(connection: socket.socket, head: Head, take: Callable[[bytes], object]) -> None:
    left = head.length - len(head.rest)
    take(head.rest[: head.length])
    while left > 0:
        piece = connection.recv(min(left, _PIECE))
        if not piece:
            raise WireError("the connection ended early")
        left -= len(piece)
        take(piece)


def _split(url: str) -> tuple[str, str]:
    """`http://host:port/path` -> (`host:port`, `/path`)."""
    host, _, path = url.removeprefix("http://").partition("/")
    return host, "/" + path
