"""A network namespace with the addresses of pods, held by a process; sockets are made in it and used from here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aiohttp import web

import root_kit
from coterie.kuscia.gateway.addresses import SocketAddress

T = TypeVar("T")

needs_root = root_kit.needs_root("makes a network namespace")


class Namespace:
    def __init__(self, path: Path) -> None:
        self.path = path

    def inside(self, make: Callable[[], T]) -> T:
        """Called in a thread of its own that has entered the namespace; a socket made there stays there."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._entered, make).result()

    def _entered(self, make: Callable[[], T]) -> T:
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(handle, 0x40000000) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(handle)
        return make()

    def connected(self, source: str, target: SocketAddress) -> socket.socket:
        """A connection from that address, which is one of the namespace's."""
        return self.inside(lambda: socket.create_connection((target.host, target.port), 10, (source, 0)))

    @contextlib.asynccontextmanager
    async def echo(self, host: str) -> AsyncIterator[SocketAddress]:
        """A service inside: says which path and headers it got."""

        async def handle(request: web.Request) -> web.Response:
            return web.json_response(
                {"path": request.path, "headers": {k.lower(): v for k, v in request.headers.items()}}
            )

        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        bound = self.inside(lambda: socket.create_server((host, 0)))
        await web.SockSite(runner, bound).start()
        try:
            yield SocketAddress(host, bound.getsockname()[1])
        finally:
            await runner.cleanup()


@contextlib.contextmanager
def namespace(directory: Path, addresses: Sequence[str]) -> Iterator[Namespace]:
    """Named by a link to /proc, as a node does it."""
    commands = ["ip link set lo up", *(f"ip addr add {each}/32 dev lo" for each in addresses), "echo ready", "exec cat"]
    holder = subprocess.Popen(
        ["unshare", "-n", "sh", "-ec", "\n".join(commands)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
        link = directory / f"netns-{os.stat(f'/proc/{holder.pid}/ns/net').st_ino}"
        link.symlink_to(f"/proc/{holder.pid}/ns/net")
        yield Namespace(link)
    finally:
        holder.kill()
        holder.communicate()
