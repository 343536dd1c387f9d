"""The process that serves: `python -m coterie.kuscia.kusciaapi --domain ... --api <socket>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import uvloop

from coterie.base import child_logging, listener_handover
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport, TransportError
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY, USED
from coterie.kube.control.child_metrics import ChildMetricsServer, metrics_socket
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.grpc_frontend import quiet
from coterie.kuscia.kusciaapi.operations import Mode, OperationContext
from coterie.kuscia.kusciaapi.server import KusciaApiServer
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Protection, Timeouts
from coterie.kuscia.kusciaapi.table import CONF_MANAGER, OPERATIONS


async def serve(
    settings: KusciaApiSettings, api: Path, listeners: Mapping[str, socket.socket], interval: float
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    transport = child_transport(api)
    here = OperationContext(
        Client(transport, field_manager="kusciaapi", field_validation="Ignore"),
        settings.domain,
        Mode(settings.mode),
        settings.paths,
        identities.load(settings.paths, settings.domain),
        SYSTEM_CLOCK,
        settings.node,
    )
    try:
        async with (
            KusciaApiServer(settings, here, OPERATIONS, CONF_MANAGER, run=api.parent, listeners=listeners) as server,
            ChildMetricsServer(metrics_socket(api), server.dispatcher.metrics.families),
        ):
            await notify_parent(transport, READY)
            telling = asyncio.create_task(notify_use(server.dispatcher, transport, interval), name="use")
            try:
                async with child_logging.following():
                    await stop.wait()
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
    finally:
        await transport.close()


async def notify_use(dispatcher: Dispatcher, transport: Transport, interval: float) -> None:
    """Only we know whether somebody calls: connections come to us directly."""
    seen = 0
    while True:
        await asyncio.sleep(interval)
        if dispatcher.under_way or dispatcher.served != seen:
            seen = dispatcher.served
            with contextlib.suppress(TransportError):  # the node hears of it the next time
                await notify_parent(transport, USED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.kuscia.kusciaapi", description="serves KusciaAPI and ConfManager")
    for name in ("--domain", "--mode", "--address", "--conf-address"):
        parser.add_argument(name, required=True)
    for name in ("--home", "--api"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--http", "--grpc", "--conf-http", "--conf-grpc"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--protection", type=Protection, required=True)
    parser.add_argument("--beat", type=float, required=True)
    for name in ("--timeouts", "--conf-timeouts"):
        parser.add_argument(name, type=Timeouts.parse, default=Timeouts())
    for name in ("--gateway", "--node"):
        parser.add_argument(name, default="")
    parser.add_argument("--listeners", type=listener_handover.inherited, required=True)
    chosen = parser.parse_args()
    child_logging.configure()
    quiet()
    settings = KusciaApiSettings(
        chosen.domain,
        chosen.mode,
        DomainPaths(chosen.home),
        chosen.address,
        chosen.http,
        chosen.grpc,
        chosen.protection,
        chosen.conf_address,
        chosen.conf_http,
        chosen.conf_grpc,
        gateway=chosen.gateway,
        timeouts=chosen.timeouts,
        conf_timeouts=chosen.conf_timeouts,
        node=chosen.node,
    )
    uvloop.run(serve(settings, chosen.api, chosen.listeners, chosen.beat))


if __name__ == "__main__":
    main()
