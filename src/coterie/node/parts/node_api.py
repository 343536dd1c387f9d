"""A lite that registered has the API for the other machines of its domain: HTTPS on `apiServer`, passed on to its control plane.

    joined node ── TLS, certificate of its join file ──> NodeApi ── own gateway ══ mTLS, token ══> control plane
                                                            Impersonate-User: system:node:<name of the certificate>

The control plane sees the domain's account, which acts as one of its own nodes; it decides what that node may do, in the namespace
of the domain (`kube/apiserver/auth/nodes.py`). What a caller says of itself is not passed on. Certificates are signed by an
authority that signs nothing else (`var/.../nodes/ca.crt`), so a join file is of no use anywhere but here.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.parse import quote

from coterie.base import pki_files
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.http import plain_client
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.api.errors import ApiError, BadRequest, ServiceUnavailable, Unauthorized
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver.auth.authn import user_from_certificate
from coterie.kube.apiserver.auth.nodes import NODE_PREFIX, NODES_GROUP, node_of
from coterie.kube.control.manager import Runnable
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import cluster_network, join_bundle
from coterie.node.answer_relay import AnswerRelay
from coterie.node.api_addresses import LOOPBACK, certificate_names
from coterie.node.config import ApiSettings, NodeSettings
from coterie.node.master_api import API_HOST
from coterie.node.parts.context import NodeContext

log = logger("node.api")

_PASSED = ("accept", "content-type", "user-agent", "if-match", "if-none-match")
"""Headers of requests. All others are the gateway's or the authentication's."""
_ANSWERED = ("retry-after", "warning", "audit-id")
_PATH_SAFE = "/:@!$&'()*+,;=-._~"
_ANSWER_SECONDS = 60.0
"""To the first byte. A watch begins at once and then lasts."""


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    assert settings.node_api is not None
    return [[NodeApi(settings, settings.node_api, node.clock)]]


def upstream_headers(request: Request, node: str) -> dict[str, str]:
    """Pure: what the control plane is sent for a request of this node."""
    return {
        **{name: request.headers[name] for name in _PASSED if name in request.headers},
        "accept-encoding": "identity",
        "host": API_HOST,
        "impersonate-user": f"{NODE_PREFIX}{node}",
        "impersonate-group": NODES_GROUP,
    }


class NodeApi:
    """A Runnable, ready when the port is open."""

    name = "node-api"

    def __init__(self, settings: NodeSettings, chosen: ApiSettings, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self.port = 0
        self._settings = settings
        self._chosen = chosen
        self._clock = clock
        self._stop = asyncio.Event()
        self._pool = plain_client.Pool(Path(GatewayPaths.of(settings.paths).node_socket.host))
        self._http = HttpServer(self._handle, user_of=user_from_certificate, problem_response=status_response)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        names = certificate_names(self._chosen, self._settings.agent)
        tls = self._tls(names)
        try:
            host, self.port = await self._http.listen(self._chosen.host, self._chosen.port, tls)
            self._publish(LOOPBACK.get(host, host), self.port)
            log.info("Other machines of the domain can join", address=f"https://{host}:{self.port}")
            self.ready.set()
            await self._stop.wait()
        finally:
            cluster_network.network_file(self._settings.paths).unlink(missing_ok=True)
            await self._http.stop()
            await self._pool.close()

    def _tls(self, names: tuple[str, ...]) -> ssl.SSLContext:
        directory = join_bundle.nodes_directory(self._settings.paths)
        authority = join_bundle.nodes_authority(self._settings.paths, self._clock.now())
        pair = pki_files.ensure_server(directory, "apiserver", authority, names=names, now=self._clock.now())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate_path, pair.key_path)
        context.load_verify_locations(directory / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _publish(self, host: str, port: int) -> None:
        """For `coterie node add`, which runs beside this process."""
        reached = f"[{host}]" if ":" in host else host
        master = self._settings.gateway.master
        assert master is not None
        network = cluster_network.network_of(self._settings, cluster_network.cluster_of_master(master))
        cluster_network.write_network(self._settings.paths, network, f"https://{reached}:{port}")

    async def _handle(self, request: Request) -> Response:
        try:
            return await self._passed_on(request)
        except ApiError as problem:
            return status_response(problem)

    async def _passed_on(self, request: Request) -> Response:
        user = request.peer.certificate_user
        node = node_of(user) if user is not None else ""
        if not node:
            raise Unauthorized("Unauthorized")
        if "upgrade" in request.headers:
            raise BadRequest("connections of nodes are not upgraded here")
        target = quote(request.path, safe=_PATH_SAFE)
        if request.query:
            target = f"{target}?{request.query}"
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._pool.request(request.method, target, upstream_headers(request, node), request.body)
        except ValueError as problem:
            raise BadRequest("the path or a header of the request has characters that cannot be passed on") from problem
        except (plain_client.HttpFailure, TimeoutError) as problem:
            raise _unavailable(problem) from problem
        headers = [(name, answer.headers[name]) for name in _ANSWERED if name in answer.headers]
        content_type = answer.headers.get("content-type", "application/json")
        return Response(
            answer.status, content_type=content_type, headers=headers, stream=AnswerRelay(answer, self._http.tasks)
        )


def _unavailable(problem: Exception) -> ApiError:
    log.debug("The control plane did not answer", error=problem)
    return ServiceUnavailable("the control plane cannot be reached from the first machine of the domain", retry_after=1)
