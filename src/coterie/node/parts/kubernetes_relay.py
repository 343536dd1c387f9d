"""Calls of partners and lites to the API of a control plane whose API server is somebody's Kubernetes.

    partner ══ mTLS, token of the route ══> gateway ── its domain's token ──> KubernetesRelay ── HTTPS ──> kube-apiserver

The gateway adds the token of the caller's service account; the cluster decides what that account may do. Nothing of our own
identity is on the way: neither our certificate nor our token, and a call without a token ends here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from coterie.base.files import private_directory
from coterie.base.log import logger
from coterie.http import plain_client
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.api.errors import ApiError, BadRequest, ServiceUnavailable, Unauthorized
from coterie.kube.api.status_response import status_response
from coterie.kube.client.http_transport import tls_context
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.control.child_api_listener import private_socket
from coterie.node.answer_relay import AnswerRelay

log = logger("node.kubernetes")

_PASSED = ("authorization", "accept", "content-type", "user-agent", "if-match", "if-none-match")
"""Headers of requests. No others: above all none that impersonates."""
_ANSWERED = ("retry-after", "warning", "audit-id")
_PATH_SAFE = "/:@!$&'()*+,;=-._~"
_ANSWER_SECONDS = 60.0
"""To the first byte. A watch begins at once and then lasts."""
_BACKLOG = 256


def upstream_headers(request: Request, host: str) -> dict[str, str]:
    """Pure: what the cluster is sent. Unauthorized without a token."""
    if not request.headers.get("authorization", "").startswith("Bearer "):
        raise Unauthorized("Unauthorized")
    passed = {name: request.headers[name] for name in _PASSED if name in request.headers}
    return {**passed, "accept-encoding": "identity", "host": host}


class KubernetesRelay:
    """A Runnable, ready when the gateway's socket is open."""

    name = "kubernetes-relay"

    def __init__(self, connection: ClusterConnection, socket: Path) -> None:
        self.ready = asyncio.Event()
        self._path = socket
        parts = urlsplit(connection.server)
        self._host = parts.netloc
        self._prefix = parts.path.rstrip("/")
        anonymous = replace(connection, certificate=b"", key=b"")
        self._pool = plain_client.Pool(
            (parts.hostname or "", parts.port or 443),
            tls=tls_context(anonymous),
            server_name=connection.tls_server_name,
        )
        self._http = HttpServer(self._handle, problem_response=status_response)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        private_directory(self._path.parent)
        try:
            await self._http.serve(private_socket(self._path, _BACKLOG))
            self.ready.set()
            await self._stop.wait()
        finally:
            await self._http.stop()
            self._path.unlink(missing_ok=True)
            await self._pool.close()

    async def _handle(self, request: Request) -> Response:
        try:
            return await self._passed_on(request)
        except ApiError as problem:
            return status_response(problem)

    async def _passed_on(self, request: Request) -> Response:
        headers = upstream_headers(request, self._host)
        if "upgrade" in request.headers:
            raise BadRequest("connections of other domains are not upgraded here")
        target = self._prefix + quote(request.path, safe=_PATH_SAFE)
        if request.query:
            target = f"{target}?{request.query}"
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._pool.request(request.method, target, headers, request.body)
        except ValueError as problem:
            raise BadRequest("the path or a header of the request has characters that cannot be passed on") from problem
        except (plain_client.HttpFailure, TimeoutError) as problem:
            log.debug("The cluster did not answer", error=problem)
            raise ServiceUnavailable("the cluster of this control plane cannot be reached", retry_after=1) from problem
        found = [(name, answer.headers[name]) for name in _ANSWERED if name in answer.headers]
        kind = answer.headers.get("content-type", "application/json")
        return Response(answer.status, content_type=kind, headers=found, stream=AnswerRelay(answer, self._http.tasks))
