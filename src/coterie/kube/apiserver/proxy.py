"""log, exec, attach, port-forward: relayed to the node agent that runs the pod, on the paths of a kubelet.

The server does not speak SPDY or WebSocket itself: it checks who asks, finds the agent, passes the client's upgrade
on and then copies bytes both ways, each side at the pace of the other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httptools
import orjson

from coterie.http.messages import Response
from coterie.http.server import Tasks
from coterie.kube.api import errors
from coterie.kube.apiserver import agent_connection
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.extension import AgentVerifier
from coterie.kube.apiserver.relay import BodyRelay, ConnectionRelay
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
_MAX_JSON = 16 * 1024 * 1024
_JSON_TIMEOUT = 3.0
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


class NodeProxy:
    def __init__(
        self,
        nodes: Collection,
        tasks: Tasks,
        client_tls: Callable[[], ssl.SSLContext | None],
        verifiers: Sequence[AgentVerifier] = (),
        owner_label: str = "",
    ) -> None:
        """`verifiers`: check agents whose certificates our own authority did not sign, by the namespace that the label
        `owner_label` of their Node names."""
        self._nodes = nodes
        self._tasks = tasks
        self._client_tls = client_tls
        self._verifiers = tuple(verifiers)
        self._owner_label = owner_label

    async def stream(self, call: ResourceRequest) -> Response:
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
        connection = await self._connect(address, call.namespace)
        status, answered = await connection.request(request.method, f"{path}?{query}", headers)
        if status != 101:
            raise await connection.refusal(status, answered)
        passed = [(name, value) for name, value in answered.items() if name != "content-length"]
        return Response(101, headers=passed, upgrade=ConnectionRelay(connection, self._tasks))

    async def log(self, call: ResourceRequest) -> Response:
        pod = call.entry().load()
        request = call.request
        container = choose_container(pod, request.param("container"))
        address = self._agent_of(call, pod)
        query = urlencode([(name, request.param(name)) for name in _LOG_OPTIONS if request.param(name)])
        path = f"/containerLogs/{quote(call.namespace)}/{quote(call.name)}/{quote(container)}"
        connection = await self._connect(address, call.namespace)
        status, answered = await connection.request("GET", f"{path}?{query}" if query else path, {})
        if status != 200:
            raise await connection.refusal(status, answered)
        body = connection.body(status, answered)
        return Response(200, content_type="text/plain", stream=BodyRelay(connection, body, self._tasks))

    async def get_json(self, node: Object, path: str, *, owner: str | None = None) -> Object:
        """What an agent tells about itself; ServiceUnavailable when it does not, or not in time. `owner`: the namespace whose agent
        it must be, where its Node does not decide that."""
        if owner is None:
            connection = await self.connect_to_agent(node)
        else:
            connection = await self._connect(agent_connection.address_of(node), owner)
        try:
            status, answered = await connection.request("GET", path, {})
            if status != 200:
                raise await connection.refusal(status, answered)
            async with asyncio.timeout(_JSON_TIMEOUT):
                text = await connection.read(connection.body(status, answered), _MAX_JSON)
            answer: Object = orjson.loads(text)
            return answer
        except (OSError, TimeoutError, httptools.HttpParserError, orjson.JSONDecodeError) as problem:
            raise errors.ServiceUnavailable(f"the agent did not answer {path} ({type(problem).__name__})") from problem
        finally:
            connection.close()

    async def connect_to_pod(self, pod: Object, port: int) -> agent_connection.AgentConnection:
        """A connection to a port of a pod, through the agent of its node: bytes in both directions."""
        meta = pod["metadata"]
        connection = await self._connect(self._address_of_agent(meta["name"], pod), meta["namespace"])
        path = f"/podConnect/{quote(meta['namespace'])}/{quote(meta['name'])}?port={port}"
        status, answered = await connection.request("GET", path, {"Connection": "Upgrade", "Upgrade": "tcp"})
        if status != 101:
            raise await connection.refusal(status, answered)
        return connection

    async def connect_to_agent(self, node: Object) -> agent_connection.AgentConnection:
        """A connection to the endpoint of a node's agent."""
        labels = node["metadata"].get("labels") or {}
        return await self._connect(agent_connection.address_of(node), labels.get(self._owner_label, ""))

    async def _connect(self, address: agent_connection.AgentAddress, owner: str) -> agent_connection.AgentConnection:
        """To an agent with a certificate of our authority, or one that a verifier accepts for the owner. For a pod that is
        its own namespace: what a Node says of itself must not decide who gets to see the pod's input and output."""
        try:
            return await agent_connection.connect(address, self._client_tls())
        except agent_connection.AgentNotVerified:
            for verifier in self._verifiers:
                check = verifier.check(owner)
                if check is not None:
                    return await agent_connection.connect(address, verifier.tls(), check)
            raise

    def _agent_of(self, call: ResourceRequest, pod: Object) -> agent_connection.AgentAddress:
        return self._address_of_agent(call.name, pod)

    def _address_of_agent(self, name: str, pod: Object) -> agent_connection.AgentAddress:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            raise errors.BadRequest(f"pod {name} does not have a host assigned")
        entry = self._nodes.get("", node)
        if entry is None:
            raise errors.ServiceUnavailable(f"the node {node} of pod {name} is not registered; wait until it is back")
        return agent_connection.address_of(entry.load())


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
        listed = " ".join(main)
        raise errors.BadRequest(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    return str(main[0])
