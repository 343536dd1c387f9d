"""Connections that the API server opens to servers of its users: admission and conversion webhooks, aggregated servers.

    outgoing = Outgoing(services, slices, endpoints, dial)
    where = destination(client_config)                 # of a webhook; for an APIService: service_destination(...)
    answer = await outgoing.post(where, ca_bundle, body, timeout=10)
    connection = await outgoing.connect(where, tls_context(ca_bundle), timeout=10)   # streams and upgrades

A Service is dialled at one of its ready endpoints, through the dialler of the node, which knows the way into the pod network.
The certificate must be valid for `<service>.<namespace>.svc`, or for the host of the URL, and be signed by the CA bundle.
Addresses of the machine itself (loopback, link-local) are reached by a URL only, which takes the rights of an administrator.
Not here: redirects, proxies of the environment, connections that are kept. Time and size of an answer are bounded.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import random
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects a TCP socket to an address of the pod network. Raises OSError."""

MAX_ANSWER: Final = 3 << 20
"""Bytes: no object of the API may be larger, and a patch of one is smaller."""
SERVICE_PORT: Final = 443
CONNECT_SECONDS: Final = 10.0
_MAX_HEAD = 64 << 10
_CHUNK = 64 << 10
_ATTEMPTS = 3
"""Endpoints that one connection tries."""
_CONTEXTS = 32


class OutgoingError(Exception):
    """Why there is no answer, worded for the client whose request needed it."""


class OutgoingTimeout(OutgoingError):
    def __init__(self) -> None:
        super().__init__("context deadline exceeded")


@dataclass(frozen=True, slots=True)
class OutgoingDestination:
    """Where a server is reached."""

    host: str
    """The name that its certificate must have."""
    port: int
    path: str = "/"
    service: tuple[str, str] | None = None
    """Namespace and name, where it is reached through a Service."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.authority}{self.path}"


def service_destination(namespace: str, name: str, port: int | None = None, path: str = "") -> OutgoingDestination:
    return OutgoingDestination(
        f"{name}.{namespace}.svc", port or SERVICE_PORT, "/" + path.lstrip("/"), service=(namespace, name)
    )


def destination(client_config: Object) -> OutgoingDestination:
    """Of the `clientConfig` of a webhook. Raises OutgoingError."""
    service = client_config.get("service")
    if service:
        return service_destination(
            service.get("namespace") or "", service.get("name") or "", service.get("port"), service.get("path") or ""
        )
    url = client_config.get("url") or ""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise OutgoingError(f"parse {url!r}: {problem}") from problem
    if parts.scheme != "https" or not host:
        raise OutgoingError(f"{url!r} is no https URL with a host")
    path = parts.path or "/"
    return OutgoingDestination(host, port or 443, f"{path}?{parts.query}" if parts.query else path)


def tls_context(
    ca_bundle: bytes, *, insecure: bool = False, certificate: tuple[str, str] | None = None
) -> ssl.SSLContext:
    """`ca_bundle`: PEM; empty for the authorities that the machine trusts. `certificate`: files of ours that are shown.

    Raises OutgoingError.
    """
    try:
        context = ssl.create_default_context(cadata=ca_bundle.decode("ascii") if ca_bundle else None)
        if certificate is not None:
            context.load_cert_chain(*certificate)
    except (ssl.SSLError, OSError, ValueError) as problem:
        raise OutgoingError(f"unable to load root certificates: {problem}") from problem
    # As in Go: every certificate of the bundle is trusted, also one that signed nothing, and old extensions may be absent.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(slots=True)
class OutgoingConnection:
    destination: OutgoingDestination
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        """At once: the other side need not agree."""
        self.writer.transport.abort()


class Outgoing:
    def __init__(
        self, services: Collection, slices: Collection, endpoints: Collection, dial: Dial | None = None
    ) -> None:
        """`slices`: EndpointSlices. Without `dial` endpoints are dialled in the network of the machine."""
        self._services = services
        self._slices = slices
        self._endpoints = endpoints
        self._dial = dial or dial_machine
        self._contexts: OrderedDict[bytes, ssl.SSLContext] = OrderedDict()

    async def post(
        self,
        where: OutgoingDestination,
        ca_bundle: bytes,
        body: bytes,
        *,
        timeout: float,
        content_type: str = "application/json",
        limit: int = MAX_ANSWER,
    ) -> bytes:
        """The body of the answer, which must be 200. Raises OutgoingError."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self.connect(where, self._context(ca_bundle), timeout=timeout)
                try:
                    status, answer = await _exchange(connection, body, content_type, limit)
                finally:
                    connection.abort()
        except TimeoutError as problem:
            raise OutgoingTimeout from problem
        if 300 <= status < 400:
            raise OutgoingError(f"the server answered {status}; redirects are not followed")
        if status != 200:
            text = answer[:1024].decode("utf-8", "replace").strip()
            raise OutgoingError(f"the server answered {status}" + (f": {text}" if text else ""))
        return answer

    async def get(
        self,
        where: OutgoingDestination,
        tls: ssl.SSLContext,
        headers: Sequence[tuple[str, str]],
        *,
        timeout: float,
        limit: int = MAX_ANSWER,
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OutgoingError."""
        lines = {
            "Host": where.host,
            "User-Agent": "coterie-apiserver",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        try:
            async with asyncio.timeout(timeout):
                connection = await self.connect(where, tls, timeout=timeout)
                try:
                    head = request_head("GET", where.path, lines | dict(headers))
                    return await _send(connection, head, limit)
                finally:
                    connection.abort()
        except TimeoutError as problem:
            raise OutgoingTimeout from problem

    async def connect(
        self, where: OutgoingDestination, tls: ssl.SSLContext | None, *, timeout: float = CONNECT_SECONDS
    ) -> OutgoingConnection:
        """A connection with TLS done and the name checked. Raises OutgoingError."""
        try:
            async with asyncio.timeout(timeout):
                made = await self._reach(where)
                try:
                    reader, writer = await asyncio.open_connection(
                        sock=made, ssl=tls, server_hostname=where.host if tls is not None else None, limit=_MAX_HEAD
                    )
                except BaseException:
                    made.close()
                    raise
        except TimeoutError as problem:
            raise OutgoingTimeout from problem
        except ssl.SSLCertVerificationError as problem:
            raise OutgoingError(f"tls: failed to verify certificate: x509: {problem.verify_message}") from problem
        except ssl.SSLError as problem:
            raise OutgoingError(f"tls: {problem.reason or problem}") from problem
        except ConnectionError as problem:
            raise OutgoingError(f"tls: {os.strerror(problem.errno).lower() if problem.errno else 'EOF'}") from problem
        except (OSError, ValueError) as problem:
            raise OutgoingError(str(problem)) from problem
        return OutgoingConnection(where, reader, writer)

    def _context(self, ca_bundle: bytes) -> ssl.SSLContext:
        found = self._contexts.pop(ca_bundle, None)
        if found is None:
            found = tls_context(ca_bundle)
            if len(self._contexts) >= _CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts[ca_bundle] = found
        return found

    async def _reach(self, where: OutgoingDestination) -> socket.socket:
        if where.service is None:
            return await _first_connected([(where.host, where.port)], dial_machine)
        addresses, external = self._addresses(where)
        if external:
            found = await _resolved(external, where.port)
            return await _first_connected([pair for pair in found if is_remote(pair[0])], dial_machine, external)
        random.shuffle(addresses)
        return await _first_connected(addresses[:_ATTEMPTS], self._dial)

    def _addresses(self, where: OutgoingDestination) -> tuple[list[tuple[str, int]], str]:
        """Ready endpoints of the Service, or the name to which it refers."""
        assert where.service is not None
        namespace, name = where.service
        entry = self._services.get(namespace, name)
        if entry is None:
            raise OutgoingError(f'service "{name}" not found')
        spec = entry.load().get("spec") or {}
        if spec.get("type") == "ExternalName":
            return [], spec.get("externalName") or ""
        port = next((each for each in spec.get("ports") or () if each.get("port") == where.port), None)
        if port is None or port.get("protocol", "TCP") != "TCP":
            raise OutgoingError(f'no service port {where.port} found for service "{name}"')
        found = list(self._of_slices(namespace, name, port.get("name") or ""))
        if not found:
            found = list(self._of_endpoints(namespace, name, port.get("name") or ""))
        reachable = [pair for pair in found if is_remote(pair[0])]
        if found and not reachable:
            raise OutgoingError(f'the endpoints of service "{name}" are addresses of the machine itself')
        if not reachable:
            raise OutgoingError(f'no endpoints available for service "{name}"')
        return reachable, ""

    def _of_slices(self, namespace: str, service: str, port: str) -> Iterator[tuple[str, int]]:
        for entry in self._slices.entries(namespace):
            if (entry.labels or {}).get("kubernetes.io/service-name") != service:
                continue
            slice_ = entry.load()
            numbers = [each.get("port") for each in slice_.get("ports") or () if (each.get("name") or "") == port]
            for endpoint in slice_.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready") is not False and endpoint.get("addresses"):
                    yield from ((endpoint["addresses"][0], number) for number in numbers if number)

    def _of_endpoints(self, namespace: str, service: str, port: str) -> Iterator[tuple[str, int]]:
        entry = self._endpoints.get(namespace, service)
        for subset in (entry.load().get("subsets") or ()) if entry is not None else ():
            numbers = [each["port"] for each in subset.get("ports") or () if (each.get("name") or "") == port]
            for address in subset.get("addresses") or ():
                yield from ((address["ip"], number) for number in numbers)


def is_remote(address: str) -> bool:
    """Whether a Service may lead there: not to the machine itself, and not to what only the machine's own link reaches."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


async def dial_machine(address: str, port: int) -> socket.socket:
    """In the network of the machine; `address` may be a name. Raises OSError."""
    problem = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    for found, number in await _resolved(address, port):
        made = socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET, socket.SOCK_STREAM)
        try:
            await connect_socket(made, found, number)
        except OSError as failed:
            problem = failed
            continue
        return made
    raise problem


async def connect_socket(made: socket.socket, address: str, port: int) -> None:
    """Closes the socket when it cannot be connected."""
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise


async def _resolved(host: str, port: int) -> list[tuple[str, int]]:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(str(each[4][0]), port) for each in found]
    return [(host, port)]


async def _first_connected(addresses: list[tuple[str, int]], dial: Dial, name: str = "") -> socket.socket:
    problem = f"{name} is an address of the machine itself" if name else "no address"
    for address, port in addresses:
        try:
            return await dial(address, port)
        except socket.gaierror as failed:
            problem = f"lookup {address}: {failed.strerror}"
        except (OSError, UnicodeError) as failed:
            reason = os.strerror(failed.errno) if isinstance(failed, OSError) and failed.errno else str(failed)
            shown = f"[{address}]" if ":" in address else address
            problem = f"dial tcp {shown}:{port}: connect: {reason.lower()}"
    raise OutgoingError(problem)


async def _exchange(connection: OutgoingConnection, body: bytes, content_type: str, limit: int) -> tuple[int, bytes]:
    """POST, and the whole answer."""
    where = connection.destination
    head = request_head(
        "POST",
        where.path,
        {
            "Host": where.authority if where.port != 443 else where.host,
            "User-Agent": "coterie-apiserver",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Connection": "close",
        },
    )
    return await _send(connection, head + body, limit)


async def _send(connection: OutgoingConnection, request: bytes, limit: int) -> tuple[int, bytes]:
    """The whole answer to a request."""
    answer = _Answer(limit)
    try:
        connection.writer.write(request)
        await connection.writer.drain()
        while not answer.complete and (data := await connection.reader.read(_CHUNK)):
            answer.feed(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
        raise OutgoingError(f"the answer is not HTTP: {problem}") from problem
    except OSError as problem:
        raise OutgoingError(os.strerror(problem.errno).lower() if problem.errno else str(problem)) from problem
    if not answer.status or not (answer.complete or answer.ends_with_connection):
        raise OutgoingError("EOF" if not answer.status else "unexpected EOF")
    return answer.status, b"".join(answer.parts)


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Raises OutgoingError for what would break the framing."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any(mark in line for line in lines for mark in ("\r", "\n", "\0")) or " " in target:
        raise OutgoingError("the path and the headers of a request may hold no line ends, and the path no spaces")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


class _Answer:
    """Status and body of an answer; `feed` raises OutgoingError when there is too much of it."""

    def __init__(self, limit: int) -> None:
        self.status = 0
        self.complete = False
        self.ends_with_connection = True
        self.parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._limit = limit
        self._announced = self._size = self._other = 0

    def feed(self, data: bytes) -> None:
        before = self._size
        self._parser.feed_data(data)
        if max(self._size, self._announced) > self._limit:
            raise OutgoingError(f"the answer is larger than {self._limit} bytes")
        # Headers, trailers and the marks between chunks.
        self._other += len(data) - (self._size - before)
        if self._other > _MAX_HEAD + self._size:
            raise OutgoingError(f"the answer has more than {_MAX_HEAD} bytes of headers")

    # httptools calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self.ends_with_connection = False
        if name == b"content-length" and value.isdigit():
            self._announced = int(value[:20])

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self.parts.append(data)

    def on_message_complete(self) -> None:
        # 100 Continue and the like: the answer is still to come.
        self.complete = bool(self.status)
