"""The yardstick: the least that a Python server on this machine can do for a request.

asyncio, TLS and httptools as in the API server, and one constant answer. How the API server compares with it tells slow
code from a slow machine.

    python -m benchmarks.bare PORT CERTIFICATE KEY BYTES
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import cast

import httptools
import uvloop


class Answering(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(self._answer)


async def serve(port: int, certificate: str, key: str, size: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (size, b"x" * size)
    server = await asyncio.get_running_loop().create_server(
        lambda: Answering(answer), "127.0.0.1", port, ssl=context, backlog=1024
    )
    async with server:
        await server.serve_forever()


def main() -> None:
    port, certificate, key, size = sys.argv[1:]
    uvloop.run(serve(int(port), certificate, key, int(size)))


if __name__ == "__main__":
    main()
