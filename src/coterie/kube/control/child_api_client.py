"""A serving child's way to the API: the socket of its node (see `apidoor`)."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import Connection
from coterie.kube.client.transport import Call, Transport


def through(path: Path) -> HttpTransport:
    return HttpTransport(Connection(server="http://node"), socket=path)


async def tell(transport: Transport, what: str) -> None:
    """READY when the doors are open, USED while they are in use."""
    await transport.send(Call("POST", what))
