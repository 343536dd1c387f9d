"""Talking to node agents: where they listen, and plain HTTP/1.1 with them, one connection for each request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import orjson

from coterie.base.log import logger
from coterie.kube.api import errors

log = logger("apiserver.agents")

Object = dict[str, Any]
CHUNK = 64 * 1024
_CONNECT_TIMEOUT = 10.0
_HEAD_TIMEOUT = 60.0
_ERROR_TIMEOUT = 5.0
_MAX_HEAD = 64 * 1024
_MAX_ERROR_BODY = 64 * 1024


Check = Callable[[bytes, str], str]
"""From the certificate (DER) and the host to what is wrong with it; empty when nothing is."""


@dataclass(frozen=True, slots=True)
class AgentAddress:
    node: str
    host: str
    port: int


def address_of(node: Object) -> AgentAddress:
    """Where the agent of a node listens, from its status."""
    status = node.get("status") or {}
    name = node["metadata"]["name"]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    # Of several addresses of one type the first counts.
    by_type = {each.get("type"): each.get("address") for each in reversed(status.get("addresses") or ())}
    host = by_type.get("InternalIP") or by_type.get("ExternalIP") or by_type.get("Hostname")
    if not host or not port:
        raise errors.ServiceUnavailable(f"node {name} has not reported an address and port of its agent yet")
    return AgentAddress(name, host, int(port))


class AgentNotVerified(errors.ServiceUnavailable):
    """Something answers at the agent's address, and nothing says that it is the agent."""


async def connect(address: AgentAddress, tls: ssl.SSLContext | None, check: Check | None = None) -> AgentConnection:
    """`check` looks at the certificate where the context does not; it is asked before anything is sent."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host, address.port, ssl=tls, limit=_MAX_HEAD),
            _CONNECT_TIMEOUT,
        )
    except ssl.SSLCertVerificationError as problem:
        raise _not_verified(address, problem.verify_message) from problem
    except (OSError, TimeoutError) as problem:
        raise errors.ServiceUnavailable(
            f"the agent of node {address.node} does not answer at {address.host}:{address.port} "
            f"({type(problem).__name__}); check that the node is running"
        ) from problem
    if check is not None and (fault := check(_peer_certificate(writer), address.host)):
        writer.close()
        raise _not_verified(address, fault)
    return AgentConnection(address, reader, writer)


def _peer_certificate(writer: asyncio.StreamWriter) -> bytes:
    session = writer.get_extra_info("ssl_object")
    return (session.getpeercert(binary_form=True) if session is not None else None) or b""


def _not_verified(address: AgentAddress, why: str) -> AgentNotVerified:
    return AgentNotVerified(
        f"what answers at {address.host}:{address.port} is not shown to be the agent of node {address.node} ({why})"
    )


class AgentConnection:
    def __init__(self, address: AgentAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer

    async def request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Send a request; returns status and headers of the answer."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address.host}:{self.address.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), _HEAD_TIMEOUT)
            first, *rest = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ", 2)[1])
        except asyncio.CancelledError:
            self.close()
            raise
        except (
            OSError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ValueError,
            IndexError,
        ) as problem:
            raise self._broken(problem) from problem
        answered: dict[str, str] = {}
        for line in rest:
            name, separator, value = line.partition(":")
            if separator:
                answered[name.strip().lower()] = value.strip()
        return status, answered

    def body(self, status: int, headers: dict[str, str]) -> Body:
        try:
            return Body(status, headers)
        except httptools.HttpParserError as problem:
            raise self._broken(problem) from problem

    async def read(self, body: Body, most: int) -> bytes:
        """The body as far as it comes, cut after `most` bytes."""
        parts, size = [], 0
        while not body.complete and size < most and (data := await self.reader.read(CHUNK)):
            parts.append(body.feed(data))
            size += len(parts[-1])
        return b"".join(parts)[:most]

    async def refusal(self, status: int, headers: dict[str, str]) -> errors.ApiError:
        """What the agent said instead of doing it."""
        text, body = b"", self.body(status, headers)
        try:
            async with asyncio.timeout(_ERROR_TIMEOUT):
                text = await self.read(body, _MAX_ERROR_BODY)
        except (OSError, TimeoutError, httptools.HttpParserError) as problem:
            log.debug("Response aborted while refusing a request", node=self.address.node, problem=str(problem))
        finally:
            self.close()
        message = text.decode("utf-8", "replace").strip() or f"the agent answered {status}"
        try:
            answered = orjson.loads(text)
        except orjson.JSONDecodeError:
            answered = None
        if isinstance(answered, dict) and answered.get("kind") == "Status":
            return errors.from_status(answered, status)
        return errors.from_status({"message": message, "code": status}, status)

    def _broken(self, problem: Exception) -> errors.ServiceUnavailable:
        self.close()
        return errors.ServiceUnavailable(
            f"the agent of node {self.address.node} broke off ({type(problem).__name__}); try again"
        )

    def close(self) -> None:
        self.writer.close()


class Body:
    """Takes the body of an agent's answer out of its framing."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.complete = False
        self.open_ended = "content-length" not in headers and "transfer-encoding" not in headers
        """Only the end of the connection ends the body."""
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._parser.feed_data(f"HTTP/1.1 {status} OK\r\n{lines}\r\n".encode("latin-1"))

    def feed(self, data: bytes) -> bytes:
        self._parser.feed_data(data)
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = True
