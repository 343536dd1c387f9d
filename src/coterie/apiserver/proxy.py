"""log, exec, attach, port-forward: relayed to the node agent that runs the pod, on the paths of a kubelet.

The server does not speak SPDY or WebSocket itself: it checks who asks, finds the agent, passes the client's upgrade
on and then copies bytes both ways, each side at the pace of the other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httptools
import orjson

from coterie.api import errors
from coterie.apiserver.call import Call
from coterie.apiserver.http.messages import Response, Sink, TunnelSink
from coterie.apiserver.http.server import Tasks
from coterie.apiserver.state.collection import Collection
from coterie.base.log import logger

log = logger("apiserver.proxy")

Object = dict[str, Any]
_CONNECT_TIMEOUT = 10.0
_HEAD_TIMEOUT = 60.0
_MAX_HEAD = 64 * 1024
_MAX_ERROR_BODY = 64 * 1024
_MAX_JSON = 16 * 1024 * 1024
_JSON_TIMEOUT = 3.0
_CHUNK = 64 * 1024
_HIGH_WATER = 1024 * 1024
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_UPGRADE_HEADERS = (
    "upgrade", "connection", "sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol",
    "sec-websocket-extensions", "x-stream-protocol-version", "content-length", "content-type",
)  # fmt: skip
_STREAM_OPTIONS = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"))
_LOG_OPTIONS = (
    "follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream",
)  # fmt: skip
_TRUE = frozenset(("1", "t", "T", "true", "True", "TRUE"))


@dataclass(frozen=True, slots=True)
class AgentAddress:
    node: str
    host: str
    port: int


class NodeProxy:
    def __init__(self, nodes: Collection, tasks: Tasks, client_tls: Callable[[], ssl.SSLContext | None]) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._client_tls = client_tls

    async def stream(self, call: Call) -> Response:
        """exec, attach, portforward: an upgraded connection."""
        pod = call.entry().load()
        kind, request = call.target.subresource, call.request
        if request.headers.get("upgrade", "").lower() not in ("websocket", "spdy/3.1"):
            raise errors.BadRequest(f"{kind} needs a connection that is upgraded to WebSocket or SPDY/3.1")
        address = self._agent_of(call, pod)
        where = f"{quote(call.namespace)}/{quote(call.name)}"
        if kind == "portforward":
            query = urlencode([("port", port) for port in request.params.get("ports", [])])
            path = f"/portForward/{where}"
        else:
            container = choose_container(pod, request.param("container"))
            options = [(agent, "1") for ours, agent in _STREAM_OPTIONS if request.param(ours) in _TRUE]
            if kind == "exec":
                commands = request.params.get("command", [])
                if not commands:
                    raise errors.BadRequest("you must specify at least one command for the container")
                options += [("command", word) for word in commands]
            if not any(name != "tty" for name, _ in options if name != "command"):
                raise errors.BadRequest("you must specify at least 1 of stdin, stdout, stderr")
            query = urlencode(options)
            path = f"/{kind}/{where}/{quote(container)}"
        headers = {name: request.headers[name] for name in _UPGRADE_HEADERS if name in request.headers}
        connection = await self._open(address)
        status, answered, rest = await connection.request(request.method, f"{path}?{query}", headers)
        if status != 101:
            raise await connection.refusal(status, answered, rest)
        passed = [(name, value) for name, value in answered.items() if name != "content-length"]
        return Response(101, headers=passed, upgrade=_Pipe(connection, rest, self._tasks))

    async def log(self, call: Call) -> Response:
        pod = call.entry().load()
        request = call.request
        container = choose_container(pod, request.param("container"))
        address = self._agent_of(call, pod)
        query = urlencode([(name, request.param(name)) for name in _LOG_OPTIONS if request.param(name)])
        path = f"/containerLogs/{quote(call.namespace)}/{quote(call.name)}/{quote(container)}"
        connection = await self._open(address)
        status, answered, rest = await connection.request("GET", f"{path}?{query}" if query else path, {})
        if status != 200:
            raise await connection.refusal(status, answered, rest)
        return Response(
            200, content_type="text/plain", stream=_BodyRelay(connection, status, answered, rest, self._tasks)
        )

    async def get_json(self, node: Object, path: str) -> Object:
        """What an agent tells about itself; ServiceUnavailable when it does not, or not in time."""
        connection = await self._open(agent_address(node))
        try:
            status, answered, rest = await connection.request("GET", path, {})
            if status != 200:
                raise await connection.refusal(status, answered, rest)
            length = answered.get("content-length", "")
            if not length.isdigit() or int(length) > _MAX_JSON:
                raise errors.ServiceUnavailable(f"the agent's answer to {path} has no length that can be read")
            body = rest + await asyncio.wait_for(connection.reader.readexactly(int(length) - len(rest)), _JSON_TIMEOUT)
            answer: Object = orjson.loads(body)
            return answer
        except (OSError, TimeoutError, asyncio.IncompleteReadError, orjson.JSONDecodeError) as problem:
            raise errors.ServiceUnavailable(f"the agent did not answer {path} ({type(problem).__name__})") from problem
        finally:
            connection.close()

    def _agent_of(self, call: Call, pod: Object) -> AgentAddress:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            raise errors.BadRequest(f"pod {call.name} does not have a host assigned")
        entry = self._nodes.get("", node)
        if entry is None:
            raise errors.ServiceUnavailable(
                f"the node {node} of pod {call.name} is not registered; wait until it is back"
            )
        return agent_address(entry.load())

    async def _open(self, address: AgentAddress) -> _AgentConnection:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(address.host, address.port, ssl=self._client_tls(), limit=_MAX_HEAD),
                _CONNECT_TIMEOUT,
            )
        except (OSError, TimeoutError) as problem:
            raise errors.ServiceUnavailable(
                f"the agent of node {address.node} does not answer at {address.host}:{address.port} "
                f"({type(problem).__name__}); check that the node is running"
            ) from problem
        return _AgentConnection(address, reader, writer)


def agent_address(node: Object) -> AgentAddress:
    """Where the agent of a node listens, from its status."""
    status = node.get("status") or {}
    name = node["metadata"]["name"]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    by_type = {address.get("type"): address.get("address") for address in status.get("addresses") or ()}
    host = by_type.get("InternalIP") or by_type.get("ExternalIP") or by_type.get("Hostname")
    if not host or not port:
        raise errors.ServiceUnavailable(f"node {name} has not reported an address and port of its agent yet")
    return AgentAddress(name, host, int(port))


def choose_container(pod: Object, asked: str) -> str:
    """The container a request means; one that is not in the pod, or a choice left open, is refused."""
    spec = pod.get("spec") or {}
    groups = ("containers", "initContainers", "ephemeralContainers")
    names = [container["name"] for group in groups for container in spec.get(group) or ()]
    name = pod["metadata"]["name"]
    if asked:
        if asked not in names:
            raise errors.BadRequest(f"container {asked} is not valid for pod {name}")
        return asked
    default = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    if default in names:
        return str(default)
    main = [container["name"] for container in spec.get("containers") or ()]
    if len(main) != 1:
        raise errors.BadRequest(f"a container name must be specified for pod {name}, choose one of: {main}")
    return str(main[0])


class _AgentConnection:
    def __init__(self, address: AgentAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer

    async def request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Send a request; returns status, headers and the first bytes behind them."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address.host}:{self.address.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), _HEAD_TIMEOUT)
            first, *rest = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ", 2)[1])
        except (
            OSError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ValueError,
            IndexError,
        ) as problem:
            self.close()
            raise errors.ServiceUnavailable(
                f"the agent of node {self.address.node} broke off ({type(problem).__name__}); try again"
            ) from problem
        answered: dict[str, str] = {}
        for line in rest:
            name, separator, value = line.partition(":")
            if separator:
                answered[name.strip().lower()] = value.strip()
        return status, answered, b""

    async def refusal(self, status: int, headers: dict[str, str], rest: bytes) -> errors.ApiError:
        """What the agent said instead of doing it."""
        length = headers.get("content-length", "")
        size = min(int(length) if length.isdigit() else _MAX_ERROR_BODY, _MAX_ERROR_BODY)
        try:
            text = rest + await asyncio.wait_for(self.reader.read(size), 5.0)
        except (OSError, TimeoutError):
            text = rest
        self.close()
        message = text.decode("utf-8", "replace").strip() or f"the agent answered {status}"
        return errors.from_status({"message": message, "code": status}, status)

    def close(self) -> None:
        self.writer.close()


class _Pipe:
    """Copies bytes between a client's tunnel and an agent's connection."""

    def __init__(self, connection: _AgentConnection, rest: bytes, tasks: Tasks) -> None:
        self._connection = connection
        self._rest = rest
        self._tasks = tasks
        self._sink: TunnelSink | None = None
        self._copying: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    def opened(self, sink: TunnelSink) -> None:
        self._sink = sink
        self._copying = self._tasks.create_task(self._to_client(sink), name="tunnel to client")

    def received(self, data: bytes) -> None:
        writer = self._connection.writer
        writer.write(data)
        if self._draining is None and self._sink is not None and writer.transport.get_write_buffer_size() > _HIGH_WATER:
            self._sink.pause()
            self._draining = self._tasks.create_task(self._drain(self._sink), name="tunnel to agent")

    def closed(self) -> None:
        self._sink = None
        for task in (self._copying, self._draining):
            if task is not None:
                task.cancel()
        self._connection.close()

    async def _drain(self, sink: TunnelSink) -> None:
        try:
            await self._connection.writer.drain()
        except OSError:
            sink.close()
        self._draining = None
        sink.resume()

    async def _to_client(self, sink: TunnelSink) -> None:
        try:
            if self._rest:
                sink.write(self._rest)
            while data := await self._connection.reader.read(_CHUNK):
                sink.write(data)
                await sink.drain()
        except OSError as problem:
            log.debug("A tunnel broke", node=self._connection.address.node, problem=str(problem))
        finally:
            self._copying = None
            sink.close()


class _BodyRelay:
    """Copies the body of an agent's answer (a log, perhaps one that is followed) into our answer."""

    def __init__(
        self, connection: _AgentConnection, status: int, headers: dict[str, str], rest: bytes, tasks: Tasks
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._copying: asyncio.Task[None] | None = None
        self._done = False
        self._chunks: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._parser.feed_data(f"HTTP/1.1 {status} OK\r\n{lines}\r\n".encode("latin-1") + rest)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self._done = True

    def opened(self, sink: Sink) -> None:
        self._copying = self._tasks.create_task(self._copy(sink), name="log relay")

    def closed(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
        self._connection.close()

    async def _copy(self, sink: Sink) -> None:
        try:
            while True:
                for chunk in self._chunks:
                    sink.write(chunk)
                self._chunks.clear()
                await sink.drain()
                if self._done:
                    break
                data = await self._connection.reader.read(_CHUNK)
                if not data:
                    break
                self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as problem:
            log.debug("A log broke off", node=self._connection.address.node, problem=str(problem))
            self._copying = None
            sink.abort()
            return
        self._copying = None
        sink.close()
