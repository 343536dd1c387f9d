"""The listening side: TLS, limits, the sweeper that drops idle and slow clients, orderly stop.

Everything is counted against a limit that is stated here, so that no client can make the server's memory grow
without bound: connections, header and body sizes, bodies in flight, and the time a client may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from coterie.base.clock import http_date
from coterie.http.connection import CREDENTIALS, HttpConnection
from coterie.http.messages import Handler, Peer, ProblemResponse, UserInfo, plain_problem_response
from coterie.http.refusal_log import RefusalLog

_BACKLOG = 1024
"""Connections the kernel may hold for us before we take them."""
_CLOSE_TIMEOUT = 0.3
"""Seconds in which idle peers may answer the end of a TLS connection; most never do."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_body: int = 3 * 1024 * 1024
    """Largest request body in bytes; the same as Kubernetes admits."""
    max_body_in_flight: int = 128 * 1024 * 1024
    """All request bodies that are being received, together."""
    max_connections: int = 5000
    max_unknown_per_address: int = 512
    """Connections of one address on which nobody has shown yet who it is."""
    header_timeout: float = 10.0
    """Seconds from the first byte (or the connection) to the end of the headers, and for the TLS handshake; also between
    two requests of somebody who has not shown who it is."""
    body_timeout: float = 60.0
    """Seconds from the headers to the end of the body."""
    write_timeout: float = 60.0
    """Seconds a client may leave an answer unread."""
    idle_timeout: float = 300.0
    """Seconds a kept-alive connection may wait for its next request."""


@dataclass(frozen=True, slots=True)
class HttpShares:
    """Limits for each of those who call, so that none of them takes all that the server has. With them, bodies count until their request is answered."""

    caller_of: Callable[[dict[str, str]], str]
    """From the headers, which somebody vouches for."""
    max_requests: int
    """Of one caller, from their headers to their answers."""
    max_body: int
    """Bodies of one caller, together."""


class Tasks:
    """Owner of the tasks that serve requests: named, counted, cancelled at stop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def create_task(self, work: object, *, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)  # type: ignore[arg-type]
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def __len__(self) -> int:
        return len(self._running)

    async def cancel(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RequestCount:
    """Requests that came by sockets, of all servers of this process."""

    __slots__ = ("served",)

    def __init__(self) -> None:
        self.served = 0


REQUESTS = RequestCount()


class HttpServer:
    def __init__(
        self,
        handler: Handler,
        *,
        limits: HttpLimits | None = None,
        user_of: Callable[[dict[str, object]], UserInfo | None] | None = None,
        problem_response: ProblemResponse = plain_problem_response,
        credential_headers: frozenset[str] = CREDENTIALS,
        shares: HttpShares | None = None,
        cancels: bool = False,
    ) -> None:
        """`credential_headers`: who sends one and is not refused has shown who it is; empty where everybody gets pages. `cancels`: a handler is
        cancelled when its client leaves, whatever the method, and half a connection is none."""
        self.handler = handler
        self.requests = REQUESTS
        self.credential_headers = credential_headers
        self.problem_response = problem_response
        """How to answer requests that never reach the handler, and those in which it fails."""
        self.limits = limits or HttpLimits()
        self.tasks = Tasks()
        self.stopping = False
        self.body_bytes = 0
        self.now = 0.0
        """Loop time, renewed each second: exact enough for time-outs and free to read."""
        self.common_headers = b""
        self.plain_heads: dict[tuple[int, str], bytes] = {}
        """Heads of answers without headers of their own, by status and type; made anew with each Date."""
        self.refusals: RefusalLog | None = None
        """Of the last door that was opened to the network; a socket in a directory of our own has none."""
        self.shares = shares
        self.cancels = cancels
        self.requests_of: dict[str, int] = {}
        self.body_bytes_of: dict[str, int] = {}
        """By caller, where there are shares."""
        self._user_of = user_of
        self._connections: set[HttpConnection] = set()
        self._unknown: Counter[str] = Counter()
        """By address, the connections of those who have not shown who they are."""
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Event | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Start listening on an IP address; returns the bound address (port 0 picks a free one)."""
        # Bound here and not by the loop, which would load the tables of international names for an address.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        address = bound.getsockname()
        await self.serve(bound, tls)
        return address[0], address[1]

    async def serve(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """As `listen`, on a socket that is bound already."""
        if self._sweeper is None:
            self._sweep()
        if bound.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio does it for sockets whose protocol is named, and connections have that of their listener. Without it, the second of
            # two small messages waits until the other side has confirmed the first: 40 ms.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.refusals = RefusalLog(bound.getsockname()[1])
            if tls is not None:
                self.refusals.watch(tls)
        loop = asyncio.get_running_loop()
        self._listeners.append(
            await loop.create_server(
                lambda: HttpConnection(self),
                sock=bound,
                ssl=tls,
                backlog=_BACKLOG,
                ssl_handshake_timeout=self.limits.header_timeout if tls is not None else None,
            )
        )

    def connection(self) -> HttpConnection:
        """A connection that is not on a socket (for tests that play bytes)."""
        if self._sweeper is None:
            self._sweep()
        return HttpConnection(self)

    async def stop(self, grace: float = 5.0) -> None:
        """Take no new connections, end streams, let requests under way finish within `grace` seconds."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.end()
        await self._gone_within(min(grace, _CLOSE_TIMEOUT))
        for connection in list(self._connections):
            if connection.idle:
                connection.abort()  # its peer does not answer our goodbye, and nothing of it is lost
        await self._gone_within(grace - min(grace, _CLOSE_TIMEOUT))
        for connection in list(self._connections):
            connection.abort()
        await self.tasks.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for listener in self._listeners:
            await listener.wait_closed()

    async def _gone_within(self, seconds: float) -> None:
        if self._connections:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), seconds)

    # -- called by connections ----------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return len(self._connections)

    def register(self, connection: HttpConnection) -> bool:
        if self.stopping or len(self._connections) >= self.limits.max_connections:
            return False
        address = connection.peer.address  # empty: a Unix socket
        if address and self._unknown[address] >= self.limits.max_unknown_per_address:
            if self.refusals is not None:
                self.refusals.crowd(address)
            return False
        self._connections.add(connection)
        if address:
            self._unknown[address] += 1
        return True

    def unregister(self, connection: HttpConnection) -> None:
        if connection in self._connections and not connection.known:
            self.now_known(connection)
        self._connections.discard(connection)
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()

    def now_known(self, connection: HttpConnection) -> None:
        """It does not count against the limit of its address any more."""
        address = connection.peer.address
        if address:
            self._unknown[address] -= 1
            if self._unknown[address] <= 0:
                del self._unknown[address]

    def peer_of(self, transport: asyncio.Transport) -> Peer:
        name = transport.get_extra_info("peername")
        address, port = name[:2] if isinstance(name, tuple) and name else ("", 0)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            return Peer(address, connected=True, port=port)
        certificate = transport.get_extra_info("peercert")
        user = self._user_of(certificate) if certificate and self._user_of is not None else None
        if user is None:
            return Peer(address, encrypted=True, connected=True, port=port)
        until = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        return Peer(address, certificate_user=user, certificate_until=until, encrypted=True, connected=True, port=port)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        self.common_headers = b"Date: %b\r\n" % http_date(time.time()).encode()
        self.plain_heads.clear()
        for connection in list(self._connections):
            if connection.deadline and connection.deadline < self.now:
                connection.abort()
        self._sweeper = loop.call_later(1.0, self._sweep)
