"""pods/proxy, services/proxy, nodes/proxy: HTTP requests to a port of a pod, to a Service, to the agent of a node.

    /api/v1/namespaces/NAMESPACE/pods/[http:|https:]NAME[:PORT]/proxy/PATH
    /api/v1/namespaces/NAMESPACE/services/[http:|https:]NAME[:PORT]/proxy/PATH      PORT: name or number of a port of the Service
    /api/v1/nodes/NAME[:PORT]/proxy/PATH                                            PORT: that of the agent

Pods are reached through the agent of their node, as for port-forward: the server need not be in their network. Endpoints that
are no pods are reached as those of webhooks (`outgoing.py`), so never the machine itself. Certificates behind `https:` are not
verified, as in Kubernetes: a pod's is for no name that the server knows.
"""

from __future__ import annotations

import posixpath
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Request, Response
from coterie.http.server import Tasks
from coterie.kube.api import errors
from coterie.kube.apiserver import forwarding
from coterie.kube.apiserver.agent_connection import address_of
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.relay import RelayedConnection
from coterie.kube.apiserver.state.collection import Collection

if TYPE_CHECKING:
    from coterie.kube.apiserver import outgoing
else:
    outgoing = lazy_import("coterie.kube.apiserver.outgoing")

Object = dict[str, Any]
_SCHEMES = ("http", "https")
_ATTEMPTS = 3
"""Pods of a Service that one request tries to reach."""


def split_name(text: str) -> tuple[str, str, str] | None:
    """Scheme, name and port of `name`, `name:port` or `scheme:name:port`; None when it is none of them."""
    parts = text.split(":")
    scheme, name, port = "", "", ""
    match parts:
        case [name]:
            pass
        case [name, port]:
            pass
        case [scheme, name, port]:
            if scheme not in _SCHEMES:
                return None
        case _:
            return None
    return (scheme, name, port) if name else None


class HttpProxy:
    def __init__(
        self,
        nodes: Collection,
        pods: Collection,
        services: Collection,
        slices: Collection,
        endpoints: Collection,
        agents: NodeProxy,
        tasks: Tasks,
        dialler: Callable[[], outgoing.Outgoing],
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._services = services
        self._slices = slices
        self._endpoints = endpoints
        self._agents = agents
        self._tasks = tasks
        self._dialler = dialler

    def proxy(self, call: ResourceRequest) -> Response | Awaitable[Response]:
        request, plural = call.request, call.resource.plural
        asked = split_name(call.name)
        if asked is None:
            raise errors.BadRequest(f'invalid {plural.removesuffix("s")} request "{call.name}"')
        rest = call.target.rest
        if not rest and request.method in ("GET", "HEAD") and not forwarding.is_upgrade(request):
            # Links of a page are relative to a directory.
            where = forwarding.encoded_path(request.path) + "/" + (f"?{request.query}" if request.query else "")
            return Response(301, b"", "", [("Location", where)])
        return self._forward(call, *asked)

    async def _forward(self, call: ResourceRequest, scheme: str, name: str, port: str) -> Response:
        match call.resource.plural:
            case "nodes":
                connection, host = await self._to_node(call, scheme, name, port), name
            case "pods":
                connection, host = await self._to_pod(call, scheme, name, port)
            case _:
                connection, host = await self._to_service(call, scheme, name, port)
        request = call.request
        path = posixpath.normpath(call.target.rest or "/")
        path = "/" + path.lstrip("/") + ("/" if call.target.rest.endswith("/") and path not in ("/", "//") else "")
        target = forwarding.encoded_path(path) + (f"?{request.query}" if request.query else "")
        own_host = request.headers.get("host", "")
        forwarded = [("X-Forwarded-Uri", forwarding.encoded_path(request.path)), ("X-Forwarded-Proto", "https")]
        how = forwarding.Forwarding(
            target,
            host,
            [*forwarded, *([("X-Forwarded-Host", own_host)] if own_host else [])],
            rewrite=_rewriter(request, call, host),
        )
        try:
            return await forwarding.forward(connection, request, how, self._tasks)
        except forwarding.ForwardingFailed as problem:
            raise _unreachable(str(problem)) from problem

    async def _to_node(self, call: ResourceRequest, scheme: str, name: str, port: str) -> RelayedConnection:
        entry = self._nodes.get("", name)
        if entry is None:
            raise errors.NotFound(f'nodes "{name}" not found', name=name, kind="nodes")
        node = entry.load()
        if (port and port != str(address_of(node).port)) or scheme == "http":
            raise errors.BadRequest("address not allowed: of a node only the agent can be reached")
        return await self._agents.connect_to_agent(node)

    async def _to_pod(self, call: ResourceRequest, scheme: str, name: str, port: str) -> tuple[RelayedConnection, str]:
        entry = self._pods.get(call.namespace, name)
        if entry is None:
            raise errors.NotFound(f'pods "{name}" not found', name=name, kind="pods")
        pod = entry.load()
        if not port:
            listed = [each for spec in pod["spec"].get("containers") or () for each in spec.get("ports") or ()]
            port = str(listed[0]["containerPort"]) if listed else "443" if scheme == "https" else "80"
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise errors.BadRequest(f'invalid pod request "{call.name}"')
        address = (pod.get("status") or {}).get("podIP") or name
        return await self._tunnel(pod, int(port), scheme), f"{address}:{port}"

    async def _to_service(
        self, call: ResourceRequest, scheme: str, name: str, port: str
    ) -> tuple[RelayedConnection, str]:
        entry = self._services.get(call.namespace, name)
        if entry is None:
            raise errors.NotFound(f'services "{name}" not found', name=name, kind="services")
        spec = entry.load().get("spec") or {}
        if spec.get("type") == "ExternalName":
            # Whoever may write a Service would choose where the API server connects to.
            raise errors.ServiceUnavailable(f'no endpoints available for service "{call.name}"')
        ports = spec.get("ports") or ()
        if port.isdecimal():
            chosen = next((each for each in ports if each.get("port") == int(port)), None)
            if chosen is None:
                raise errors.ServiceUnavailable(f'no service port {port} found for service "{name}"')
        else:
            chosen = next((each for each in ports if (each.get("name") or "") == port), None)
            if chosen is None:
                raise errors.ServiceUnavailable(f'no endpoints available for service "{call.name}"')
        found = list(self._pods_of(call.namespace, name, chosen.get("name") or ""))
        random.shuffle(found)
        problem: errors.ApiError | None = None
        for pod, number in found[:_ATTEMPTS]:
            try:
                address = (pod.get("status") or {}).get("podIP") or name
                return await self._tunnel(pod, number, scheme), f"{address}:{number}"
            except errors.ServiceUnavailable as failed:
                problem = failed
        if problem is not None:
            raise problem
        where = outgoing.service_destination(call.namespace, name, chosen["port"])
        try:
            made = await self._dialler().connect(where, _unverified() if scheme == "https" else None)
        except outgoing.OutgoingError as failed_outside:
            text = str(failed_outside)
            raise errors.ServiceUnavailable(text) if "no endpoints" in text else _unreachable(text) from failed_outside
        return forwarding.OpenConnection(made.reader, made.writer), where.authority

    def _pods_of(self, namespace: str, service: str, port: str) -> Iterator[tuple[Object, int]]:
        """Ready pods of a Service, each with the number of the port."""
        seen: set[tuple[str, int]] = set()
        for name, number in (*self._in_slices(namespace, service, port), *self._in_endpoints(namespace, service, port)):
            entry = self._pods.get(namespace, name)
            if entry is not None and (name, number) not in seen:
                seen.add((name, number))
                yield entry.load(), number

    def _in_slices(self, namespace: str, service: str, port: str) -> Iterator[tuple[str, int]]:
        for entry in self._slices.entries(namespace):
            if (entry.labels or {}).get("kubernetes.io/service-name") != service:
                continue
            found = entry.load()
            numbers = [each["port"] for each in found.get("ports") or () if (each.get("name") or "") == port]
            for endpoint in found.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready") is not False:
                    yield from ((name, number) for name in _pod_name(endpoint) for number in numbers)

    def _in_endpoints(self, namespace: str, service: str, port: str) -> Iterator[tuple[str, int]]:
        entry = self._endpoints.get(namespace, service)
        for subset in (entry.load().get("subsets") or ()) if entry is not None else ():
            numbers = [each["port"] for each in subset.get("ports") or () if (each.get("name") or "") == port]
            for address in subset.get("addresses") or ():
                yield from ((name, number) for name in _pod_name(address) for number in numbers)

    async def _tunnel(self, pod: Object, port: int, scheme: str) -> RelayedConnection:
        try:
            connection = await self._agents.connect_to_pod(pod, port)
        except errors.ServiceUnavailable as problem:
            raise _unreachable(problem.message) from problem
        if scheme != "https":
            return connection
        try:
            await connection.writer.start_tls(_unverified())
        except (OSError, ssl.SSLError) as problem:
            connection.close()
            raise _unreachable(f"tls: {problem}") from problem
        except BaseException:
            connection.close()
            raise
        return connection


def _pod_name(endpoint: Object) -> list[str]:
    target = endpoint.get("targetRef") or {}
    return [target["name"]] if target.get("kind") == "Pod" and target.get("name") else []


def _unreachable(why: str) -> errors.ServiceUnavailable:
    return errors.ServiceUnavailable(f"error trying to reach service: {why}")


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _rewriter(request: Request, call: ResourceRequest, host: str) -> Callable[[str], str]:
    """Links to the server behind the proxy become links through the proxy; others stay."""
    rest = call.target.rest
    prefix = request.path.removesuffix(rest) if rest else request.path
    own = request.headers.get("host", "")

    def rewrite(link: str) -> str:
        try:
            parts = urlsplit(link)
        except ValueError:
            return link
        if (parts.netloc and parts.netloc not in (host, own)) or not parts.path.startswith("/"):
            return link
        path = parts.path if parts.path.startswith(prefix) else prefix + parts.path
        return urlunsplit(("https" if own else "", own, path, parts.query, parts.fragment))

    return rewrite
