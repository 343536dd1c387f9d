"""The transport to a server behind a socket: ours, K3s, any kube-apiserver. aiohttp does HTTP; the rest is here.

Connections are kept and shared. A watch holds one of its own, so their number is not limited. Whole answers have a time
limit; streams have one for silence only. A question that failed on a kept connection which the server had closed
meanwhile is asked again by aiohttp; a change is never sent twice, because nobody knows whether the first was carried
out.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.http.client_sessions import part, tcp_connector
from coterie.kube.client.credentials import Credentials, credentials_for
from coterie.kube.client.kubeconfig import Connection
from coterie.kube.client.transport import Call, Disconnected, LineSplitter, NoAnswerInTime, NotSent, Reply

_CONNECT_TIMEOUT = 10.0
_QUESTIONS = frozenset(("GET", "HEAD"))
_PATH_SAFE = "/:@!$&'()*+,;=-._~"


class HttpTransport:
    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = 30.0,
        user_agent: str = "coterie",
        credentials: Credentials | None = None,
        clock: Clock = SYSTEM_CLOCK,
        socket: Path | None = None,
    ) -> None:
        """`socket`: a Unix socket by which the server is reached, whatever the connection's address says."""
        self._connection = connection
        self._socket = socket
        self._timeout = timeout
        self._credentials = credentials or credentials_for(connection, clock)
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        if connection.impersonate:
            self._headers["Impersonate-User"] = connection.impersonate
        self._ssl = tls_context(connection) if connection.server.startswith("https://") else None
        parts = urlsplit(connection.server)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(self, call: Call) -> Reply:
        reply = await self._send_once(call)
        if reply.status == 401 and self._credentials.refused():
            reply = await self._send_once(call)
        return reply

    async def _send_once(self, call: Call) -> Reply:
        headers = {**self._headers, **call.headers}
        authorization = await self._credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        path = self._prefix + quote(call.path, safe=_PATH_SAFE)
        url = URL(f"{self._origin}{path}?{call.query}" if call.query else self._origin + path, encoded=True)
        try:
            response = await self._open_session().request(
                call.method,
                url,
                headers=headers,
                data=call.body or None,
                allow_redirects=False,
                timeout=self._timeouts(call),
                server_hostname=self._connection.tls_server_name or None,
                proxy=self._connection.proxy_url or None,
            )
            answered = {name.lower(): value for name, value in response.headers.items()}
            if call.stream and response.status < 300:
                return Reply(response.status, answered, lines=_HttpLines(response))
            async with response:
                return Reply(response.status, answered, await response.read())
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"cannot connect to {self._origin}: {error.os_error or error}") from error
        except TimeoutError as error:
            raise NoAnswerInTime(f"{call.method} {call.path}: no answer in time") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Disconnected(f"{call.method} {call.path}: {error or type(error).__name__}") from error

    def _timeouts(self, call: Call) -> aiohttp.ClientTimeout:
        limit = call.timeout if call.timeout is not None else (None if call.stream else self._timeout)
        if call.stream:
            return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=limit)
        return aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT_TIMEOUT)

    def _open_session(self) -> aiohttp.ClientSession:
        # Made at first use: a session belongs to the running event loop.
        if self._closed:
            raise NotSent("the transport is closed")
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._socket is not None:
                connector = aiohttp.UnixConnector(str(self._socket), limit=0)
            else:
                connector = tcp_connector(limit=0, ssl=self._ssl or False, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=True, read_bufsize=1 << 18, middlewares=(_change_once,)
            )
        return self._session

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await part(self._session)
            self._session = None


class _HttpLines:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._splitter = LineSplitter()

    async def chunk(self) -> bytes:
        """Bytes as they come, for streams whose lines mean nothing; empty at the end."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise NoAnswerInTime("the server was silent for too long") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Disconnected(f"the stream broke: {error or type(error).__name__}") from error

    async def read(self) -> list[bytes]:
        while True:
            chunk = await self.chunk()
            if not chunk:
                rest = self._splitter.rest()
                return [rest] if rest else []
            lines = self._splitter.feed(chunk)
            if lines:
                return lines

    async def close(self) -> None:
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        self._response.close()
        if transport is not None:
            # TLS would wait for the server's farewell, and a program that stops meanwhile would leak the socket.
            transport.abort()
        await asyncio.sleep(0)  # the socket itself is closed in the next turn of the loop


async def _change_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats PUT and DELETE over a new connection. If that one is refused, the error would say "not sent"."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        if request.method in _QUESTIONS:
            raise
        raise Disconnected(f"{request.method} {request.url.path}: {error or type(error).__name__}") from error


def tls_context(connection: Connection) -> ssl.SSLContext:
    """Who we trust and who we are. Without a CA of its own the system's authorities count."""
    if connection.ca:
        context = ssl.create_default_context(cadata=connection.ca.decode("ascii", "replace"))
    else:
        context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.certificate:
        # The ssl module reads a key only from a file; this one is private and gone before anything is sent.
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(connection.certificate + b"\n" + connection.key)
            context.load_cert_chain(pair)
    return context
