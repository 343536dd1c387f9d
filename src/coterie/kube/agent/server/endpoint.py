"""Routes of the agent's endpoint, and who may use them: the API server, and administrators, by client certificate."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

import orjson

from coterie.base import container_logs
from coterie.base.clock import Clock
from coterie.base.exposition import CONTENT_TYPE, render
from coterie.base.log_pages import LogSearch
from coterie.base.tasks import TaskOwner
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response, Sink
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.http.websocket import WebSocket, accept_key
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.runtimes.protocol import ContainerState, LogSource, PodAccess, PodState, RuntimeFailure
from coterie.kube.agent.server import forward, forward_channels, logs, remote
from coterie.kube.agent.server.channels import (
    SPDY_PROTOCOLS,
    WEBSOCKET_PROTOCOLS,
    SpdyChannels,
    WebSocketChannels,
    gather_streams,
    spdy_over,
    spdy_over_websocket,
)
from coterie.kube.agent.server.pod_metrics import PodMetricsReader
from coterie.kube.agent.server.usage import UsageMeter
from coterie.kube.api import errors
from coterie.kube.api.status_response import status_response
from coterie.kube.client.transport import TransportError

API_SERVER: Final = "kube-apiserver-kubelet-client"
_ADMINS: Final = "system:masters"
_FORWARD: Final = "portforward.k8s.io"
_FORWARD_TUNNEL: Final = "SPDY/3.1+portforward.k8s.io"
_PATH: Final = re.compile(r"[!-~]+")
_DIAL_SECONDS: Final = 10.0
_TRUE: Final = frozenset(("1", "t", "true"))


class AgentEndpoint:
    """A `Handler`. Streams it starts belong to `owner`, who ends them."""

    def __init__(
        self,
        runtime: PodAccess,
        usage: UsageMeter,
        node_name: str,
        owner: TaskOwner,
        clock: Clock,
        devices: DeviceManager | None = None,
        log_search: LogSearch | None = None,
    ) -> None:
        self._runtime = runtime
        self._usage = usage
        self._pod_metrics_reader = PodMetricsReader(runtime, clock)
        self._node_name = node_name
        self._owner = owner
        self._clock = clock
        self._devices = devices
        self._log_search = log_search

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        try:
            return self._route(request)
        except (errors.ApiError, HttpProblem) as error:
            return status_response(error)

    def _route(self, request: Request) -> Response | Awaitable[Response]:
        if request.path == "/healthz":
            return Response(200, b"ok", "text/plain")
        self._authorise(request)
        match request.path.split("/")[1:]:
            case ["containerLogs", namespace, pod, container] if request.method == "GET":
                return self._logs(request, namespace, pod, container)
            case ["exec", namespace, pod, container] if request.method in ("GET", "POST"):
                return self._exec(request, namespace, pod, container)
            case ["attach", namespace, pod, container] if request.method in ("GET", "POST"):
                return self._attach(request, namespace, pod, container)
            case ["portForward", namespace, pod] if request.method in ("GET", "POST"):
                return self._forward(request, namespace, pod)
            case ["podConnect", namespace, pod] if request.method == "GET":
                return self._connect(request, namespace, pod)
            case ["podMetrics", namespace, pod] if request.method == "GET":
                return self._pod_metrics(request, namespace, pod)
            case ["podLogs", namespace] if request.method == "GET":
                return self._search_logs(request, namespace)
            case ["stats", "summary"] if request.method == "GET":
                return self._summary()
            case ["metrics", "dcgm"] if request.method == "GET":
                return self._device_metrics()
        raise errors.NotFound("this agent has no such path")

    @staticmethod
    def _authorise(request: Request) -> None:
        user = request.peer.certificate_user
        if user is None:
            raise errors.Unauthorized("the agent takes requests only with a client certificate of its control plane")
        if user.name != API_SERVER and _ADMINS not in user.groups:
            raise errors.Forbidden(f'user "{user.name}" may not use the agent')

    def _pod(self, namespace: str, name: str) -> PodState:
        for pod in self._runtime.pods():
            if pod.namespace == namespace and pod.name == name:
                return pod
        raise errors.NotFound(f'pod "{namespace}/{name}" does not run on node {self._node_name}')

    def _runs(self, namespace: str, pod: str, container: str) -> tuple[PodState, list[ContainerState]]:
        found = self._pod(namespace, pod)
        runs = [run for run in found.containers if run.name == container]
        if not runs:
            raise errors.BadRequest(f'container "{container}" in pod "{pod}" is waiting to start')
        return found, sorted(runs, key=lambda run: run.attempt)

    # -- logs ---------------------------------------------------------------------------------------------------

    def _logs(self, request: Request, namespace: str, name: str, container: str) -> Response:
        options = logs.read_options(request.params, self._clock.now())
        pod, runs = self._runs(namespace, name, container)
        if options.previous:
            if len(runs) < 2:
                raise errors.BadRequest(f'previous terminated container "{container}" in pod "{name}" not found')
            run = runs[-2]
        else:
            run = runs[-1]
        if isinstance(self._runtime, LogSource):
            pieces: AsyncIterator[bytes] = self._runtime.log(pod.uid, container, options)
            return Response(200, content_type="text/plain", stream=_Pieces(self._owner, pieces))
        if run.log_path is None:
            raise errors.BadRequest(f'container "{container}" in pod "{name}" has no log')

        def running() -> bool:
            state = self._runtime.pod(pod.uid)
            return state is not None and any(
                each.name == container and each.attempt == run.attempt and each.running for each in state.containers
            )

        pieces = container_logs.read(run.log_path, options, running, self._clock)
        return Response(200, content_type="text/plain", stream=_Pieces(self._owner, pieces))

    async def _search_logs(self, request: Request, namespace: str) -> Response:
        """Of all pods of the namespace that ran here, also of those that are gone."""
        try:
            if self._log_search is None:
                raise errors.NotFound("this agent searches no logs")
            params = {name: values[0] for name, values in request.params.items() if values}
            return Response(200, await self._log_search.search(namespace, params))
        except errors.ApiError as problem:
            return status_response(problem)

    # -- streams ------------------------------------------------------------------------------------------------

    def _exec(self, request: Request, namespace: str, name: str, container: str) -> Response:
        command = request.params.get("command", [])
        if not command:
            raise errors.BadRequest("a command must be given")
        pod, runs = self._runs(namespace, name, container)
        if not runs[-1].running:
            raise errors.BadRequest(f'container "{container}" in pod "{name}" is not running')
        stdin, tty = _flag(request, "input"), _flag(request, "tty")
        return self._remote(
            request,
            f"exec {namespace}/{name}/{container}",
            lambda: self._runtime.exec(pod.uid, container, command, stdin=stdin, tty=tty),
        )

    def _attach(self, request: Request, namespace: str, name: str, container: str) -> Response:
        pod, runs = self._runs(namespace, name, container)
        if not runs[-1].running:
            raise errors.BadRequest(f'container "{container}" in pod "{name}" is not running')
        stdin = _flag(request, "input")
        return self._remote(
            request,
            f"attach {namespace}/{name}/{container}",
            lambda: self._runtime.attach(pod.uid, container, stdin=stdin),
        )

    def _remote(self, request: Request, name: str, open_session: remote.Open) -> Response:
        stdin, tty = _flag(request, "input"), _flag(request, "tty")
        stdout, stderr = _flag(request, "output"), _flag(request, "error") and not tty
        if _upgrade(request) == "websocket":
            protocol = _choose(request.headers.get("sec-websocket-protocol", ""), WEBSOCKET_PROTOCOLS)

            async def over_websocket(pipe: UpgradedConnection) -> None:
                channels = WebSocketChannels(WebSocket(pipe), protocol)
                sorting = asyncio.ensure_future(channels.run())
                try:
                    await _until(
                        sorting,
                        remote.serve(channels, open_session, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty),
                    )
                finally:
                    sorting.cancel()
                    await asyncio.gather(sorting, return_exceptions=True)

            return _switch_websocket(request, protocol, UpgradedConnection(self._owner, name, over_websocket))
        protocol = _choose(request.headers.get("x-stream-protocol-version", ""), SPDY_PROTOCOLS)
        wanted = {"error"} | ({"stdin"} if stdin else set()) | ({"stdout"} if stdout else set())
        wanted |= ({"stderr"} if stderr else set()) | ({"resize"} if tty and protocol != "v2.channel.k8s.io" else set())

        async def over_spdy(pipe: UpgradedConnection) -> None:
            session = spdy_over(pipe)
            reading = asyncio.ensure_future(session.run())
            try:
                streams = await gather_streams(session, wanted)
                channels = SpdyChannels(streams, protocol)
                await _until(
                    reading, remote.serve(channels, open_session, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty)
                )
                # The client hangs up when it has read everything.
                await asyncio.wait([reading], timeout=10)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

        return _switch_spdy(protocol, UpgradedConnection(self._owner, name, over_spdy))

    def _forward(self, request: Request, namespace: str, name: str) -> Response:
        pod = self._pod(namespace, name)

        def dial(port: int) -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            return self._runtime.dial(pod.uid, port)

        title = f"port-forward {namespace}/{name}"
        if _upgrade(request) == "websocket":
            protocol = self._forward_protocol(request)
            ports = _ports(request) if protocol != _FORWARD_TUNNEL else []

            async def over_websocket(pipe: UpgradedConnection) -> None:
                socket = WebSocket(pipe)
                if protocol == _FORWARD_TUNNEL:
                    await forward.serve(spdy_over_websocket(socket), dial)
                else:
                    encoded = protocol == forward_channels.BASE64
                    await forward_channels.serve(socket, ports, dial, encoded=encoded)

            return _switch_websocket(request, protocol, UpgradedConnection(self._owner, title, over_websocket))
        protocol = _choose(request.headers.get("x-stream-protocol-version", ""), (_FORWARD,))

        async def over_spdy(pipe: UpgradedConnection) -> None:
            await forward.serve(spdy_over(pipe), dial)

        return _switch_spdy(protocol, UpgradedConnection(self._owner, title, over_spdy))

    async def _connect(self, request: Request, namespace: str, name: str) -> Response:
        """The bytes of one connection to a port of a pod, for the API server's proxy."""
        try:
            pod = self._pod(namespace, name)
            (port,) = _ports(request)[:1]
            if request.headers.get("upgrade", "").lower() != "tcp":
                raise errors.BadRequest("the connection must be upgraded to tcp")
            reader, writer = await asyncio.wait_for(self._runtime.dial(pod.uid, port), _DIAL_SECONDS)
        except errors.ApiError as problem:
            return status_response(problem)
        except (OSError, RuntimeFailure, TimeoutError) as problem:
            words = (
                os.strerror(problem.errno).lower() if isinstance(problem, OSError) and problem.errno else str(problem)
            )
            return status_response(errors.ServiceUnavailable(f"dial tcp port {port} of the pod: {words or 'timeout'}"))

        async def serve(pipe: UpgradedConnection) -> None:
            await forward.copy_both(pipe, reader, writer)

        headers = [("Upgrade", "tcp"), ("Connection", "Upgrade")]
        return Response(
            101, headers=headers, upgrade=UpgradedConnection(self._owner, f"connection {namespace}/{name}", serve)
        )

    @staticmethod
    def _forward_protocol(request: Request) -> str:
        """Empty: the client named none, which means plain channels."""
        offered = request.headers.get("sec-websocket-protocol", "")
        known = (_FORWARD_TUNNEL, forward_channels.PLAIN, forward_channels.BASE64)
        return _choose(offered, known) if offered.strip() else ""

    # -- usage --------------------------------------------------------------------------------------------------

    async def _summary(self) -> Response:
        return Response(200, orjson.dumps(await self._usage.summary(self._node_name)))

    async def _device_metrics(self) -> Response:
        """Of GPUs, by the names of NVIDIA's DCGM exporter; measured for this request."""
        families = await self._devices.families() if self._devices is not None else ()
        return Response(200, render(families).encode(), CONTENT_TYPE)

    async def _pod_metrics(self, request: Request, namespace: str, name: str) -> Response:
        try:
            pod = self._pod(namespace, name)
            port, path = request.param("port"), request.param("path") or "/metrics"
            if not port.isdecimal() or not 0 < int(port) < 65536 or not _PATH.fullmatch(path):
                raise errors.BadRequest("port and path must be those of an HTTP endpoint")
            found = await self._pod_metrics_reader.read(pod.uid, int(port), path, request.param("metric"))
        except errors.ApiError as problem:
            return status_response(problem)
        return Response(200, orjson.dumps(found))


class _Pieces:
    """A stream made of what an iterator yields."""

    def __init__(self, owner: TaskOwner, pieces: Any) -> None:
        self._owner = owner
        self._pieces = pieces
        self._task: asyncio.Task[None] | None = None

    def opened(self, sink: Sink) -> None:
        self._task = self._owner.start("log", self._copy(sink), vital=False)

    def closed(self) -> None:
        if self._task is not None and not self._task.done() and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _copy(self, sink: Sink) -> None:
        try:
            async for piece in self._pieces:
                sink.write(piece)
                await sink.drain()
        except (ConnectionError, OSError):
            sink.abort()
            return
        except (errors.ApiError, TransportError) as problem:
            # The answer has begun, so only its reader can be told.
            sink.write(f"[coterie] the log cannot be read: {problem}\n".encode())
        sink.close()


async def _until(leaving: asyncio.Future[None], work: Awaitable[None]) -> None:
    """Do the work, but not longer than the client is there."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            # It may be gone because it has all it wanted: a short moment for the end to come through.
            await asyncio.wait([working], timeout=0.5)
    finally:
        if not working.done():
            working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _flag(request: Request, name: str) -> bool:
    return request.param(name).lower() in _TRUE


def _ports(request: Request) -> list[int]:
    given = [text for value in request.params.get("port", []) for text in value.split(",")]
    if not given:
        raise errors.BadRequest('query parameter "ports" is required')
    if len(given) > forward_channels.MAX_PORTS:
        raise errors.BadRequest(f"at most {forward_channels.MAX_PORTS} ports can be forwarded at once")
    try:
        ports = [int(text) for text in given]
    except ValueError:
        ports = [0]
    if not all(0 < port < 65536 for port in ports):
        raise errors.BadRequest(f"ports must be numbers from 1 to 65535, not {', '.join(given)}")
    return ports


def _upgrade(request: Request) -> str:
    asked = request.headers.get("upgrade", "").lower()
    if asked not in ("websocket", "spdy/3.1"):
        raise errors.BadRequest("the connection must be upgraded to WebSocket or SPDY/3.1")
    return asked


def _choose(offered: str, known: tuple[str, ...]) -> str:
    """The best protocol both sides know."""
    names = {name.strip() for name in offered.split(",")}
    for name in known:
        if name in names:
            return name
    raise errors.Forbidden(f"no common stream protocol; this agent speaks {', '.join(known)}")


def _switch_websocket(request: Request, protocol: str, pipe: UpgradedConnection) -> Response:
    key = request.headers.get("sec-websocket-key", "")
    if not key:
        raise errors.BadRequest("Sec-WebSocket-Key is missing")
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept_key(key)),
        *([("Sec-WebSocket-Protocol", protocol)] if protocol else []),
    ]
    return Response(101, headers=headers, upgrade=pipe)


def _switch_spdy(protocol: str, pipe: UpgradedConnection) -> Response:
    headers = [("Upgrade", "SPDY/3.1"), ("Connection", "Upgrade"), ("X-Stream-Protocol-Version", protocol)]
    return Response(101, headers=headers, upgrade=pipe)
