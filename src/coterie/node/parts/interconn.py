"""InterConn of a control plane: partners' control planes are reached through our own gateway.

The partner's gateway knows us by our token and adds what its API asks for, so no credential of theirs lies here.
"""

from __future__ import annotations

from pathlib import Path

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.wrappers import FixedHost
from coterie.kube.control.manager import Runnable
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.interconn import runnable as interconn


def interconn_group(places: GatewayPaths, client: Client, informers: Informers, clock: Clock) -> list[Runnable]:
    def connect(host: str) -> Client:
        limits = ResponseLimits()
        way = HttpTransport(
            ClusterConnection(server="http://gateway"), socket=Path(places.node_socket.host), limits=limits
        )
        return Client(FixedHost(way, f"apiserver.{host}.svc"), field_validation="Ignore", clock=clock, limits=limits)

    return interconn.make(client, informers, connect, clock=clock)
