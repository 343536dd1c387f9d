"""The functions process: `python -m coterie.functions --domain ... --api <socket>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from coterie.base import child_logging, listener_handover, trace_socket
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.files import private_directory
from coterie.base.paths import DomainPaths
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.factory import open_bus
from coterie.functions.server import FunctionsServer
from coterie.functions.settings import BUS_VARIABLE, EMBEDDED, HOPS, FunctionsSettings
from coterie.functions.spare_plan import SparePolicy
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY
from coterie.kube.control.child_metrics import ChildMetricsServer, metrics_socket


async def serve(settings: FunctionsSettings, api: Path, listeners: Mapping[str, socket.socket]) -> None:
    transport = child_transport(api)
    bus = await open_bus(settings.bus, private_directory(settings.directory) / "bus.db", f"{settings.domain}.")
    try:
        server = FunctionsServer(
            settings,
            Client(transport, field_manager="functions"),
            bus,
            SYSTEM_CLOCK,
            traces=trace_socket.forward_from(),
            partners=listeners.get(HOPS),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        async with (
            TaskOwner("functions") as owner,
            ChildMetricsServer(metrics_socket(api), server.families),
            child_logging.following(),
        ):
            running = owner.start("server", server.run())
            owner.start("ready", _announce(server, transport), vital=False)
            await asyncio.wait((running,))
    finally:
        await bus.close()
        await transport.close()


async def _announce(server: FunctionsServer, transport: Transport) -> None:
    await server.ready.wait()
    await notify_parent(transport, READY)


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.functions", description="runs the functions of a domain")
    for name in ("--domain", "--image"):
        parser.add_argument(name, required=True)
    for name in ("--home", "--api"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--max-body", "--min-gateways", "--max-gateways", "--spare-actors"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--spare-idle-seconds", type=float, required=True)
    parser.add_argument("--netns", type=Path, help="the network namespace of the domain's pods")
    parser.add_argument("--gateway", type=Path, help="the socket of our own gateway for calls to partners")
    parser.add_argument("--evidence", type=Path, help="the socket of the evidence log")
    parser.add_argument("--own-network", choices=("yes", "no"), required=True)
    parser.add_argument("--listeners", type=listener_handover.inherited, required=True)
    chosen = parser.parse_args()
    child_logging.configure()
    settings = FunctionsSettings(
        chosen.domain,
        DomainPaths(chosen.home),
        os.environ.pop(BUS_VARIABLE, EMBEDDED),
        chosen.image,
        chosen.max_body,
        chosen.min_gateways,
        chosen.max_gateways,
        SparePolicy(chosen.spare_actors, chosen.spare_idle_seconds),
        chosen.netns,
        chosen.gateway,
        chosen.own_network == "yes",
        evidence=chosen.evidence,
    )
    asyncio.run(serve(settings, chosen.api, chosen.listeners))


if __name__ == "__main__":
    main()
