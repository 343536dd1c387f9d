"""InterConn of a control plane: partners' control planes are reached through our own gateway.

The partner's gateway knows us by our token and adds what its API asks for, so no credential of theirs lies here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.wrappers import FixedHost
from coterie.kube.control.manager import Runnable
from coterie.kuscia.bfia import controller as bfia
from coterie.kuscia.bfia.client import BfiaClient
from coterie.kuscia.gateway.names import ERROR
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.interconn import runnable as interconn


class _BfiaConnections:
    """The connections of requests to BFIA partners, closed when the node stops. A Runnable."""

    name = "bfia-calls"

    def __init__(self, client: BfiaClient) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        try:
            await self._stop.wait()
        finally:
            await self._client.close()


def bfia_group(places: GatewayPaths, domain: str, client: Client, informers: Informers, clock: Clock) -> list[Runnable]:
    """Our requests to partners that speak BFIA."""
    calls = BfiaClient(Path(places.node_socket.host), domain, ERROR, clock)
    return [
        _BfiaConnections(calls),
        *bfia.make(client, informers, calls, clock=clock),
    ]


def interconn_group(places: GatewayPaths, client: Client, informers: Informers, clock: Clock) -> list[Runnable]:
    def connect(host: str) -> Client:
        limits = ResponseLimits()
        way = HttpTransport(
            ClusterConnection(server="http://gateway"), socket=Path(places.node_socket.host), limits=limits
        )
        return Client(FixedHost(way, f"apiserver.{host}.svc"), field_validation="Ignore", clock=clock, limits=limits)

    return interconn.make(client, informers, connect, clock=clock)
