"""Health and metrics of a control plane's controllers, on Kuscia's port 8090 of the loopback interface."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from coterie.base.exposition import CONTENT_TYPE
from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.control.manager import Runnable
from coterie.kube.metrics.sources import MetricsPage, MetricsSource
from coterie.node.parts.context import NodeContext

log = logger("node")
_LOOPBACK = "127.0.0.1"


def build(node: NodeContext) -> list[list[Runnable]]:
    address, port = _address(node.settings.metrics.address), node.settings.controllers.health_port
    try:
        bound = socket.create_server((address, port), family=_family(address), backlog=16)
    except OSError as problem:
        log.warning(
            "There is no health port of the controllers: it cannot be opened; set controllers.healthPort, 0 for none",
            address=f"{address}:{port}",
            error=problem,
        )
        return []
    sources = node.get("controller_metrics", list)
    return [[ControllerHealth(bound, node.get("controllers", list), sources)]]


def _address(chosen: str) -> str:
    """The node's own loopback address, where it has one; the port is never open to other machines."""
    return chosen if ipaddress.ip_address(chosen).is_loopback else _LOOPBACK


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class ControllerHealth:
    """A Runnable. `/healthz` says which controllers have not started yet."""

    name = "controller-health"

    def __init__(self, bound: socket.socket, controllers: Sequence[Runnable], sources: Sequence[MetricsSource]) -> None:
        self.ready = asyncio.Event()
        self._socket = bound
        self._controllers = controllers
        self._page = MetricsPage(sources)
        self._stop = asyncio.Event()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        http = HttpServer(self.handle)
        await http.serve(self._socket)
        self.ready.set()
        try:
            await self._stop.wait()
        finally:
            await http.stop()

    async def handle(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"only GET is possible\n", "text/plain", headers=[("Allow", "GET, HEAD")])
        match request.path:
            case "/metrics":
                return Response(200, (await self._page.text()).encode(), CONTENT_TYPE)
            case "/healthz" | "/livez" | "/readyz":
                missing = [each.name for each in self._controllers if not each.ready.is_set()]
                if missing:
                    return Response(503, f"not ready: {', '.join(missing)}\n".encode(), "text/plain")
                return Response(200, b"ok", "text/plain")
        return Response(404, b"the pages are /healthz and /metrics\n", "text/plain")
