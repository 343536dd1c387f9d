"""The child process: `python -m coterie.kuscia.gateway.crypt --socket <path> --keys <path>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path

import uvloop

from coterie.base import child_logging
from coterie.base.log import logger
from coterie.kuscia.gateway.crypt.exchange import Exchange
from coterie.kuscia.gateway.crypt.http2 import GrpcCallHandler, GrpcConnection
from coterie.kuscia.gateway.crypt.keys import KeyRing
from coterie.kuscia.gateway.crypt.messages import parse

_log = logger("gateway.crypt")


async def serve(socket: Path, keys: Path, stop: asyncio.Event) -> None:
    """Until `stop`. What was left of an earlier process at this path is replaced."""
    ring = KeyRing(keys)
    connections: set[GrpcConnection] = set()

    def new_call() -> GrpcCallHandler:
        exchange = Exchange(ring.keys)
        return lambda message: exchange.react(parse(message))

    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket)
    before = os.umask(0o177)
    try:
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: GrpcConnection(new_call, connections), str(socket), backlog=1024
        )
    finally:
        os.umask(before)
    _log.info("Body encryption ready", socket=socket)
    try:
        await stop.wait()
    finally:
        server.close()
        for each in list(connections):
            each.close()


async def _main(socket: Path, keys: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with child_logging.following():
        await serve(socket, keys, stop)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="coterie.kuscia.gateway.crypt", description="encrypts bodies for a gateway's Envoy"
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--keys", type=Path, required=True)
    chosen = parser.parse_args()
    child_logging.configure()
    uvloop.run(_main(chosen.socket, chosen.keys))


if __name__ == "__main__":
    main()
