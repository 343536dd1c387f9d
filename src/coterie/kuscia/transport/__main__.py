"""The process that serves: `python -m coterie.kuscia.transport --domain ... --api <socket>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import uvloop

from coterie.base import child_logging, listener_handover
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.kube.client.client import Client
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY, USED
from coterie.kube.control.child_metrics import ChildMetricsServer, metrics_socket
from coterie.kuscia.transport.parties import TaskParties
from coterie.kuscia.transport.server import TransportServer
from coterie.kuscia.transport.settings import QueueLimits


async def serve(
    domain: str,
    limits: QueueLimits,
    directory: Path,
    api: Path,
    listeners: Mapping[str, socket.socket],
    interval: float,
) -> None:
    stop = asyncio.Event()
    to_node = child_transport(api)

    async def notify_use() -> None:
        await notify_parent(to_node, USED)

    parties = TaskParties(Client(to_node, field_manager="transport"), domain, SYSTEM_CLOCK)
    server = TransportServer(domain, limits, directory, parties.of, SYSTEM_CLOCK, notify_use, interval)

    def end() -> None:
        server.stopping = True
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        async with ChildMetricsServer(metrics_socket(api), server.families), TaskOwner("transport") as owner:
            await server.serve(listeners)
            owner.start("server", server.run(), endless=True)
            await notify_parent(to_node, READY)
            async with child_logging.following():
                await stop.wait()
            await server.stop()
    finally:
        await to_node.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.kuscia.transport", description="serves the message queue of engines")
    parser.add_argument("--domain", required=True)
    for name in ("--directory", "--api"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--limits", required=True)
    parser.add_argument("--beat", type=float, required=True)
    parser.add_argument("--listeners", type=listener_handover.inherited, required=True)
    chosen = parser.parse_args()
    child_logging.configure()
    limits = msgspec.json.decode(chosen.limits, type=QueueLimits)
    uvloop.run(serve(chosen.domain, limits, chosen.directory, chosen.api, chosen.listeners, chosen.beat))


if __name__ == "__main__":
    main()
