"""The reporter's port: on a loopback address, reached as `reporter.master.svc` through the gateway.

Who calls is told by the header `Kuscia-Origin-Source`, which every gateway sets itself. A call without it came from this very
machine and not through a gateway: it counts as the control plane's own domain.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket

import orjson

from coterie.base.log import logger
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.client.client import Client
from coterie.kuscia.reporter.messages import INVALID, InvalidReport, ReportStatus, encoded, progress_in
from coterie.kuscia.reporter.report import report

PORT = 8050
PATH = "/report/progress"
_ORIGIN, _SOURCE = "kuscia-origin-source", "kuscia-source"
_TASK = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LIMITS = HttpLimits(max_body=1 << 20, max_body_in_flight=16 << 20, max_connections=1000, body_timeout=20.0)
_READY = orjson.dumps({"status": {"code": 0, "message": "success", "details": []}, "data": {"ready": True}})


class Reporter:
    """A Runnable. The socket is bound at once, so that the gateway can be told where it is."""

    name = "reporter"

    def __init__(self, client: Client, domain: str, host: str = "127.0.0.1", port: int = PORT) -> None:
        """`domain`: that of the control plane. Where the usual port is taken (several control planes on one machine) any
        other serves as well: only the gateway comes here."""
        self.ready = asyncio.Event()
        self._client = client
        self._domain = domain
        self._stop = asyncio.Event()
        self._socket = _bound(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._log = logger("reporter")

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        http = HttpServer(self.handle, limits=_LIMITS, problem_response=status_response)
        try:
            await http.serve(self._socket)
            self._log.info("Engines may report their progress", address=f"{self.address[0]}:{self.address[1]}")
            self.ready.set()
            await self._stop.wait()
        finally:
            await http.stop()
            self._socket.close()

    async def handle(self, request: Request) -> Response:
        path = request.path.rstrip("/")
        if path == "/healthZ":
            return Response(200, _READY)
        if path != PATH:
            return Response(404, b"not found\n", "text/plain")
        if request.method != "POST":
            return Response(405, b"use POST\n", "text/plain", [("Allow", "POST")])
        kind = request.headers.get("content-type", "")
        body, kind = encoded(await self._report_status(request, kind), kind)
        return Response(200, body, kind)

    async def _report_status(self, request: Request, kind: str) -> ReportStatus:
        headers = request.headers
        try:
            task = request.param("task_id")
            progress = progress_in(request.body, kind)
        except (InvalidReport, HttpProblem) as problem:
            return ReportStatus(INVALID, str(problem))
        if not _TASK.fullmatch(task):
            return ReportStatus(INVALID, "say which task it is about: /report/progress?task_id=...")
        domain = headers.get(_ORIGIN) or headers.get(_SOURCE) or self._domain
        return await report(self._client, task, domain, progress)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE or not port:
            raise
        return socket.create_server((host, 0), family=family, backlog=128)
