"""How the API server reaches the endpoints of Services: pods live in a network namespace that it is not in."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Protocol

from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    from coterie.kube.apiserver import outgoing
else:
    outgoing = lazy_import("coterie.kube.apiserver.outgoing")


class StreamSockets(Protocol):
    def stream(self) -> socket.socket:
        """A TCP socket of the domain's network namespace; may block and raises OSError."""


class PodDialler:
    """Connects from inside the domain's namespace to what is in a range of pods, from the machine to everything else."""

    def __init__(self) -> None:
        self._sockets: StreamSockets | None = None
        self._ranges: tuple[ipaddress.IPv4Network, ...] = ()

    def attach(self, sockets: StreamSockets, *ranges: str) -> None:
        """The node has a pod network, with these ranges of addresses."""
        self._sockets = sockets
        self._ranges = tuple(ipaddress.IPv4Network(each) for each in ranges)

    async def __call__(self, address: str, port: int) -> socket.socket:
        if self._sockets is None or not self._is_pod(address):
            return await outgoing.dial_machine(address, port)
        made = await asyncio.to_thread(self._sockets.stream)
        await outgoing.connect_socket(made, address, port)
        return made

    def _is_pod(self, address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return any(parsed in each for each in self._ranges)
