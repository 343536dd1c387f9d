"""Connections of the functions process to pods: actors and gateways.

The process of root is in the machine's network, where Kafka is; its sockets to pods are made in the network namespace of the domain's
pods. That of an ordinary user is inside the namespace as a whole, and needs no `netns`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

from coterie.base import network_namespace

ConnectToPod = Callable[[str, int], Awaitable[socket.socket]]
"""A connected socket, or OSError."""


class PodConnections:
    def __init__(self, netns: Path | None = None) -> None:
        """`netns`: the namespace of the domain's pods; None: the one we are in."""
        self._netns = netns

    async def connect(self, host: str, port: int) -> socket.socket:
        with network_namespace.entered(self._netns) if self._netns is not None else nullcontext():
            made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(made, (host, port))
        except BaseException:
            made.close()
            raise
        return made
