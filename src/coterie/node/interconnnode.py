"""InterConn of a control plane: partners' control planes are reached through our own gateway.

The partner's gateway knows us by our token and adds what its API asks for, so no credential of theirs lies here.
"""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.client.client import Client
from coterie.client.http import HttpTransport
from coterie.client.informers import Informers
from coterie.client.kubeconfig import Connection
from coterie.client.wrappers import Addressed
from coterie.control.manager import Runnable
from coterie.gateway.settings import GatewaySettings
from coterie.interconn import runnable as interconn


def interconn_group(doors: GatewaySettings, client: Client, informers: Informers, clock: Clock) -> list[Runnable]:
    def connect(host: str) -> Client:
        way = HttpTransport(Connection(server=f"http://{doors.internal}"))
        return Client(Addressed(way, f"apiserver.{host}.svc"), clock=clock)

    return interconn.make(client, informers, connect, clock=clock)
