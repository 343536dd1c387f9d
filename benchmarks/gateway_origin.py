"""The service behind the gateways, and the client that moves much at once.

The service does as little as it can, because gateways are measured and not it: it looks only for the end of a request's
head. Any GET gets a hundred bytes, `GET /<n>` gets n bytes, and a POST gets its answer when its whole body has come.

    python -m benchmarks.gateway_origin ADDRESS PORT          the service
    python -m benchmarks.gateway_origin < specification       the client (`bulk`)
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from benchmarks.load import child

_PIECE = 1 << 20
_LENGTH = b"\r\ncontent-length: "
_SMALL = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 100


class Origin(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._head = b""
        self._missing = 0
        self._owed = 0
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
            if not self._missing:
                self._transport.write(_SMALL)
            return
        data = self._head + data if self._head else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return
        self._head = b""
        if data.startswith(b"GET / "):
            self._transport.write(_SMALL)
        elif data.startswith(b"GET /"):
            self._owed = int(data[5 : data.index(b" ", 5)])
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % self._owed)
            self._pay()
        else:
            at = data.lower().index(_LENGTH, 0, end) + len(_LENGTH)
            self._missing = int(data[at : data.index(b"\r", at)]) - (len(data) - end - 4)
            if not self._missing:
                self._transport.write(_SMALL)

    def _pay(self) -> None:
        while self._owed and self._may_write:
            piece = min(self._owed, _PIECE)
            self._owed -= piece
            self._transport.write(_ZEROS[:piece])

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._pay()


_ZEROS = memoryview(bytes(_PIECE))


async def serve(address: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Origin, address, port, backlog=1024)
    async with server:
        await server.serve_forever()


@dataclass(frozen=True, slots=True)
class Bulk:
    """One body of `size` bytes, up or down."""

    address: str
    port: int
    host: str
    size: int
    up: bool
    core: int


def bulk(wanted: Bulk) -> float:
    """Bytes per second, measured by a process of its own."""
    seconds: float = child("benchmarks.gateway_origin", asdict(wanted))["seconds"]
    return wanted.size / seconds


def _move(wanted: Bulk) -> float:
    with socket.create_connection((wanted.address, wanted.port), 60) as connection:
        began = time.perf_counter()
        if wanted.up:
            head = f"POST / HTTP/1.1\r\nHost: {wanted.host}\r\nContent-Length: {wanted.size}\r\n\r\n"
            connection.sendall(head.encode())
            left = wanted.size
            while left:
                left -= connection.send(_ZEROS[: min(left, _PIECE)])
            _answer(connection)
        else:
            connection.sendall(f"GET /{wanted.size} HTTP/1.1\r\nHost: {wanted.host}\r\n\r\n".encode())
            left, buffer = wanted.size - len(_answer(connection)), bytearray(_PIECE)
            while left:
                got = connection.recv_into(buffer)
                if not got:
                    raise RuntimeError(f"the answer ended {left} bytes too early")
                left -= got
        return time.perf_counter() - began


def _answer(connection: socket.socket) -> bytes:
    """What came of the body together with the head."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        got = connection.recv(65536)
        if not got:
            raise RuntimeError(f"the connection was closed instead of an answer: {seen!r}")
        seen += got
    head, _, rest = seen.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"refused: {head.decode(errors='replace')}")
    return rest


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
        return
    wanted = Bulk(**json.load(sys.stdin))
    os.sched_setaffinity(0, {wanted.core})
    print(json.dumps({"seconds": _move(wanted)}))


if __name__ == "__main__":
    main()
