"""The process that serves: `python -m coterie.kuscia.datamesh --domain ... --api <socket>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from coterie.base import child_logging, listener_handover, memory, trace_socket
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.client.client import Client
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY
from coterie.kube.control.child_metrics import ChildMetricsServer, metrics_socket
from coterie.kuscia.datamesh.grpc_server import quiet
from coterie.kuscia.datamesh.server import DataMesh
from coterie.kuscia.datamesh.settings import MeshSettings, proxies_of
from coterie.kuscia.sources.source_registry import open_source

_KEPT = 64 << 20
"""Messages of a few megabytes come and go."""


async def serve(settings: MeshSettings, api: Path, listeners: Mapping[str, socket.socket]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    transport = child_transport(api)
    try:
        client = Client(transport, field_manager="datamesh")
        forwarded = trace_socket.forward_from()
        async with (
            DataMesh.of(settings, client, open_source, SYSTEM_CLOCK, api.parent, listeners, forwarded) as mesh,
            ChildMetricsServer(metrics_socket(api), mesh.metrics.families),
        ):
            await notify_parent(transport, READY)
            async with child_logging.following():
                await stop.wait()
    finally:
        await transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="coterie.kuscia.datamesh", description="serves a domain's data to its engines"
    )
    for name in ("--domain", "--address"):
        parser.add_argument(name, required=True)
    for name in ("--home", "--api"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--http", "--grpc"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--names", default="", help="further names of the certificate, with commas")
    parser.add_argument("--listeners", type=listener_handover.inherited, required=True)
    parser.add_argument("--direct-grpc", choices=("yes", "no"), default="no")
    parser.add_argument("--netns", type=Path, help="the network namespace in which gRPC opens its port")
    parser.add_argument("--node", default="", help="the node on which it runs")
    parser.add_argument("--evidence", type=Path, help="the socket of the evidence log")
    parser.add_argument("--data-proxies", type=proxies_of, default=(), help="dataMesh.dataProxyList, as JSON")
    parser.add_argument("--only-data-directory", choices=("yes", "no"), default="no")
    chosen = parser.parse_args()
    child_logging.configure()
    quiet()
    memory.raise_trim_threshold(_KEPT)
    settings = MeshSettings(
        chosen.domain,
        DomainPaths(chosen.home),
        chosen.address,
        chosen.http,
        chosen.grpc,
        names=tuple(filter(None, chosen.names.split(","))),
        direct_grpc=chosen.direct_grpc == "yes",
        netns=chosen.netns,
        only_data_directory=chosen.only_data_directory == "yes",
        node=chosen.node,
        evidence=chosen.evidence,
        proxies=chosen.data_proxies,
    )
    asyncio.run(serve(settings, chosen.api, chosen.listeners))


if __name__ == "__main__":
    main()
