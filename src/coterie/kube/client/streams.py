"""Streams with a pod: its log as bytes, and commands that run in it.

    async for data in log_stream(client, "pod", "ns", follow=True): ...

    async with exec_stream(connection, "pod", "ns", ["sh"], stdin=True) as remote:
        await remote.write(b"echo hello\\n")
        while (piece := await remote.read()) is not None:
            channel, data = piece
        code = remote.exit_code()

A remote command is a WebSocket of the protocol `v5.channel.k8s.io`: the first byte of a message names the channel.
It has a connection of its own with the settings of the kubeconfig.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httptools
import orjson

from coterie.http.errors import ProtocolError
from coterie.http.websocket import WebSocket, accept_key, new_key
from coterie.kube.api.errors import from_status
from coterie.kube.api.types.kind import builtin
from coterie.kube.apiserver.agent_connection import Body
from coterie.kube.client.client import Client, error_of
from coterie.kube.client.credentials import Credentials, credentials_for
from coterie.kube.client.http_transport import tls_context
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.requests import path, query
from coterie.kube.client.transport import (
    ByteStream,
    Disconnected,
    NotSent,
    ResponseTimeout,
    TransportRequest,
    TransportResponse,
)

STDIN, STDOUT, STDERR, ERROR, RESIZE = 0, 1, 2, 3, 4
_CLOSE: Final = 255
_V5: Final = "v5.channel.k8s.io"
_PROTOCOLS: Final = (_V5, "v4.channel.k8s.io")
_PODS: Final = builtin("pods")
_MAX_HEAD: Final = 64 * 1024
_READ_SIZE: Final = 256 * 1024
_MAX_REFUSAL: Final = 256 * 1024


# Logs.


async def log_stream(
    client: Client,
    pod: str,
    namespace: str,
    *,
    container: str = "",
    follow: bool = False,
    previous: bool = False,
    timestamps: bool = False,
    tail: int | None = None,
    since_seconds: int | None = None,
    since_time: str = "",
) -> AsyncIterator[bytes]:
    """The log of a container, byte for byte. While it is followed the server may be silent as long as it likes."""
    asked = query(
        container=container,
        follow=follow,
        previous=previous,
        timestamps=timestamps,
        tailLines=tail,
        sinceSeconds=since_seconds,
        sinceTime=since_time,
    )
    call = TransportRequest("GET", path(_PODS, namespace, pod, "log"), asked, {"Accept": "*/*"}, stream=True)
    stream = await client.stream(call)
    try:
        if isinstance(stream, ByteStream):
            while data := await stream.chunk():
                yield data
        else:
            while lines := await stream.read():
                yield b"".join(line + b"\n" for line in lines)
    finally:
        await stream.close()


# Remote commands.


class _StreamConnection:
    """The two ends of an asyncio stream as what a WebSocket stands on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(_READ_SIZE)

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        """The other side may be gone or not answer, so waiting is bounded."""
        self._writer.close()
        await asyncio.wait({asyncio.ensure_future(self._closed())}, timeout=1)

    async def _closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _disconnected(problem: OSError) -> Disconnected:
    reason = problem if isinstance(problem, ProtocolError) else problem.strerror or type(problem).__name__
    return Disconnected(f"the stream broke: {reason}")


class Remote:
    """A command that runs in a container."""

    def __init__(self, connection: _StreamConnection, protocol: str) -> None:
        self._socket = WebSocket(connection, client=True)
        self._connection = connection
        self._protocol = protocol
        self._status: dict[str, Any] | None = None

    async def read(self) -> tuple[int, bytes] | None:
        """(STDOUT or STDERR, bytes) as they come; None when the command has ended."""
        while (message := await self._receive()) is not None:
            if not message:
                continue
            channel, data = message[0], message[1:]
            if channel == ERROR and data:
                self._status = _read_status(data)
            elif channel in (STDOUT, STDERR) and data:
                return channel, data
        return None

    async def write(self, data: bytes) -> None:
        """To its standard input."""
        await self._send(bytes((STDIN,)) + data)

    async def end_input(self) -> None:
        """Its standard input has ended. Servers that speak only v4 cannot be told."""
        if self._protocol == _V5:
            await self._send(bytes((_CLOSE, STDIN)))

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(bytes((RESIZE,)) + orjson.dumps({"Width": columns, "Height": rows}))

    async def close(self) -> None:
        self._socket.close()
        await self._connection.close()

    async def _receive(self) -> bytes | None:
        try:
            return await self._socket.receive()
        except OSError as problem:
            raise _disconnected(problem) from problem

    async def _send(self, message: bytes) -> None:
        """Waits while the other side is slow."""
        self._socket.send(message)
        try:
            await self._socket.drain()
        except OSError as problem:
            raise _disconnected(problem) from problem

    def exit_code(self) -> int:
        """After `read` answered None. Raises the ApiError of a command that could not be run."""
        status = self._status
        if status is None:
            raise Disconnected("the connection ended before the command did")
        if status.get("status") == "Success":
            return 0
        if status.get("reason") == "NonZeroExitCode":
            for cause in (status.get("details") or {}).get("causes") or ():
                if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
                    return int(cause["message"])
        raise from_status(status, int(status.get("code") or 500))


def _read_status(data: bytes) -> dict[str, Any]:
    try:
        status = orjson.loads(data)
    except orjson.JSONDecodeError:
        status = None
    return status if isinstance(status, dict) else {"message": data.decode("utf-8", "replace")}


@contextlib.asynccontextmanager
async def exec_stream(
    connection: ClusterConnection,
    pod: str,
    namespace: str,
    command: Sequence[str],
    *,
    container: str = "",
    stdin: bool = False,
    stdout: bool = True,
    stderr: bool = True,
    tty: bool = False,
    timeout: float = 30.0,
    credentials: Credentials | None = None,
    attach: bool = False,
) -> AsyncIterator[Remote]:
    """Run a command in a container; it is ended when the block is left. `timeout` is for the beginning only. `attach`: to
    the container's own process, with no command."""
    asked = [(name, "true") for name, on in (("stdin", stdin), ("stdout", stdout), ("tty", tty)) if on]
    if stderr and not tty:
        asked.append(("stderr", "true"))  # a terminal has one output
    if container:
        asked.append(("container", container))
    asked += [("command", word) for word in command]
    where = f"{quote(path(_PODS, namespace, pod, 'attach' if attach else 'exec'))}?{urlencode(asked)}"
    try:
        async with asyncio.timeout(timeout):
            remote = await _upgrade(connection, where, credentials or credentials_for(connection))
    except TimeoutError as error:
        raise ResponseTimeout(f"exec in {pod}: no answer in time") from error
    try:
        yield remote
    finally:
        await remote.close()


async def _upgrade(connection: ClusterConnection, where: str, credentials: Credentials) -> Remote:
    """Request a WebSocket. Refusals are raised as everywhere."""
    if connection.proxy_url:
        raise NotSent("commands cannot be run through a proxy yet; use `coterie kubectl exec`")
    parts = urlsplit(connection.server)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    authorization = await credentials.authorization()
    try:
        reader, writer = await asyncio.open_connection(
            host,
            port,
            ssl=tls_context(connection) if secure else None,
            server_hostname=(connection.tls_server_name or host) if secure else None,
            limit=_MAX_HEAD,
        )
    except (OSError, ssl.SSLError) as error:
        raise NotSent(f"cannot connect to {parts.scheme}://{parts.netloc}: {error}") from error
    key = new_key()
    headers = {
        "Host": parts.netloc.rpartition("@")[2],
        "User-Agent": "coterie",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": ", ".join(_PROTOCOLS),
    }
    if authorization:
        headers["Authorization"] = authorization
    if connection.impersonate:
        headers["Impersonate-User"] = connection.impersonate
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    try:
        writer.write(f"GET {parts.path.rstrip('/')}{where} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        status, answered = _read_head(await reader.readuntil(b"\r\n\r\n"))
        if status != 101:
            raise error_of(TransportResponse(status, answered, await _read_body(reader, status, answered)))
        protocol = answered.get("sec-websocket-protocol", "")
        if answered.get("sec-websocket-accept") != accept_key(key) or protocol not in _PROTOCOLS:
            raise Disconnected("the server does not speak the protocol of remote commands")
    except (OSError, EOFError, asyncio.LimitOverrunError, httptools.HttpParserError, ValueError) as error:
        writer.close()
        raise Disconnected(f"the server broke off: {error or type(error).__name__}") from error
    except BaseException:
        writer.close()
        raise
    return Remote(_StreamConnection(reader, writer), protocol)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in rest if ":" in line)
    return int(first.split(" ", 2)[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> bytes:
    body, text = Body(status, headers), b""
    while not body.complete and len(text) < _MAX_REFUSAL and (data := await reader.read(_MAX_HEAD)):
        text += body.feed(data)
    return text
