"""A serving child's way to the API: the socket of its node (see `apidoor`)."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.transport import Transport, TransportRequest


def child_transport(path: Path) -> HttpTransport:
    return HttpTransport(ClusterConnection(server="http://node"), socket=path)


async def notify_parent(transport: Transport, what: str) -> None:
    """READY when the doors are open, USED while they are in use."""
    await transport.send(TransportRequest("POST", what))
