"""The reporter's server: on a private Unix socket, reached as `reporter.master.svc` through the gateway.

Who calls is told by the header `Kuscia-Origin-Source`, which every gateway sets itself. Only our own gateway and the node
itself reach the socket, so a call without it is the node's: it counts as the control plane's own domain.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson

from coterie.base.log import logger
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.client.client import Client
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.reporter.messages import INVALID, InvalidReport, ReportStatus, encoded, progress_in
from coterie.kuscia.reporter.report import report

PATH = "/report/progress"
_ORIGIN, _SOURCE = "kuscia-origin-source", "kuscia-source"
_TASK = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LIMITS = HttpLimits(max_body=1 << 20, max_body_in_flight=16 << 20, max_connections=1000, body_timeout=20.0)
_READY = orjson.dumps({"status": {"code": 0, "message": "success", "details": []}, "data": {"ready": True}})


class Reporter:
    """A Runnable; ready when it listens."""

    name = "reporter"

    def __init__(self, client: Client, domain: str, path: Path) -> None:
        """`domain`: that of the control plane. `path`: of the socket."""
        self.ready = asyncio.Event()
        self._client = client
        self._domain = domain
        self._stop = asyncio.Event()
        self.path = path
        self._log = logger("reporter")

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        http = HttpServer(self.handle, limits=_LIMITS, problem_response=status_response)
        try:
            await http.serve(private_socket(self.path, 128))
            self._log.info("Engines may report their progress", socket=str(self.path))
            self.ready.set()
            await self._stop.wait()
        finally:
            await http.stop()
            self.path.unlink(missing_ok=True)

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
