"""A serving child's way to the API: the socket of its node (see `apidoor`)."""

from __future__ import annotations

from pathlib import Path

from coterie.client.http import HttpTransport
from coterie.client.kubeconfig import Connection
from coterie.client.transport import Call, Transport


def through(path: Path) -> HttpTransport:
    return HttpTransport(Connection(server="http://node"), socket=path)


async def tell(transport: Transport, what: str) -> None:
    """READY when the doors are open, USED while they are in use."""
    await transport.send(Call("POST", what))
