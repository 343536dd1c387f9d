"""Sockets on the machine whose connections and datagrams are carried into the domain's network namespace.

    client ──> socket of the machine ── this process ──> socket of the domain's namespace ──> pod

Everything is bounded: connections of a port and of all ports, datagram flows of a port, and how long either may be idle.
The pod sees the address of the node in the pod network, not the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from coterie.base import listener_handover
from coterie.base.log import logger
from coterie.kube.network.ports.plan import Destination, Listening
from coterie.kube.network.services.plan import Backend

log = logger("network.ports")

CONNECTIONS_OF_A_PORT = 1024
CONNECTIONS = 4096
IDLE_SECONDS = 24 * 3600.0
"""Of a TCP connection, as Kubernetes has it; peers that are gone are noticed by keepalive much earlier."""
CONNECT_SECONDS = 10.0
FLOWS_OF_A_PORT = 1024
FLOW_IDLE_SECONDS = 60.0
"""Of the datagrams of one client."""
_WAITING_DATAGRAMS = 16
_ATTEMPTS = 3
"""Endpoints that a connection tries."""
_AHEAD = 4
"""Sockets of the domain's namespace that are made ahead of their use, once there was one."""
_HIGH_WATER = 256 << 10
_AFFINITY_CLIENTS = 65535
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class InnerSockets(Protocol):
    """Makes sockets of the domain's network namespace; each call may block and raises OSError."""

    def stream(self) -> socket.socket: ...

    def udp(self, address: str, port: int) -> socket.socket: ...


class BackendChooser:
    """One of the endpoints at random; with session affinity the one that the client had before."""

    def __init__(self, now: Callable[[], float], chosen: random.Random | None = None) -> None:
        self._now = now
        self._random = chosen or random.Random()
        self._clients: dict[str, tuple[Backend, float]] = {}

    def choose(self, client: str, destination: Destination) -> list[Backend]:
        """All endpoints in the order in which they are to be tried."""
        order = self._random.sample(destination.backends, len(destination.backends))
        if not destination.affinity_seconds or not order:
            return order
        known = self._clients.pop(client, None)
        if known is not None and known[1] > self._now() and known[0] in order:
            order.remove(known[0])
            order.insert(0, known[0])
        self.remember(client, order[0], destination)
        return order

    def remember(self, client: str, backend: Backend, destination: Destination) -> None:
        if not destination.affinity_seconds:
            return
        while len(self._clients) >= _AFFINITY_CLIENTS:
            del self._clients[next(iter(self._clients))]
        self._clients.pop(client, None)
        self._clients[client] = (backend, self._now() + destination.affinity_seconds)


class PortListeners:
    """The open sockets. `inner`: the domain's namespace; `gateway`: the node's address there."""

    def __init__(self, inner: InnerSockets, gateway: str) -> None:
        self._inner = inner
        self._gateway = gateway
        self._open: dict[Listening, _TcpPort | _UdpPort] = {}
        self._streams: deque[socket.socket] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._making: set[asyncio.Future[socket.socket]] = set()
        self.connections = 0
        """Of all ports."""

    def __contains__(self, listening: Listening) -> bool:
        return listening in self._open

    async def set(self, listening: Listening, destination: Destination | None) -> None:
        """Open the socket or change where its connections go; None: close it. Raises OSError."""
        found = self._open.get(listening)
        if destination is None:
            if found is not None:
                del self._open[listening]
                found.close()
            return
        if found is not None:
            found.set_destination(destination)
            return
        made: _TcpPort | _UdpPort
        if listening.protocol == "TCP":
            made = _TcpPort(self, destination)
            await made.open(listener_handover.listen(listening.address, listening.port, wait=0))
        else:
            made = _UdpPort(self, destination)
            await made.open(_bound_udp(listening.address, listening.port))
        self._open[listening] = made

    async def close(self) -> None:
        """Close all sockets and end all connections."""
        for each in self._open.values():
            each.close(abort=True)
        self._open.clear()
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.gather(self._refill, return_exceptions=True)
        await asyncio.gather(*self._making, return_exceptions=True)
        while self._streams:
            self._streams.pop().close()

    async def stream(self) -> socket.socket:
        made = self._streams.popleft() if self._streams else await self._made(self._inner.stream)
        if len(self._streams) < _AHEAD // 2 and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._make_ahead(), name="sockets ahead")
        return made

    async def _make_ahead(self) -> None:
        with contextlib.suppress(OSError):  # whoever needs one is told
            while len(self._streams) < _AHEAD:
                self._streams.append(await self._made(self._inner.stream))

    async def datagrams(self) -> socket.socket:
        return await self._made(partial(self._inner.udp, self._gateway, 0))

    async def _made(self, make: Callable[[], socket.socket]) -> socket.socket:
        """What a thread makes. A socket for which nobody waits any more when it comes is closed."""
        making = asyncio.ensure_future(asyncio.to_thread(make))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_result)
            raise


def _close_result(made: asyncio.Future[socket.socket]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _bound_udp(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


# --- TCP ------------------------------------------------------------------------------------------------------------


class _TcpPort:
    def __init__(self, ports: PortListeners, destination: Destination) -> None:
        self.ports = ports
        self.destination = destination
        self.chooser = BackendChooser(asyncio.get_running_loop().time)
        self.ends: set[_End] = set()
        """Of clients, also of those whose endpoint is not connected yet."""
        self._server: asyncio.Server | None = None

    async def open(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Client(self), sock=listener)

    def set_destination(self, destination: Destination) -> None:
        self.destination = destination

    def close(self, *, abort: bool = False) -> None:
        """Open connections live on, unless they are to be aborted."""
        if self._server is not None:
            self._server.close()
        if abort:
            for each in list(self.ends):
                each.abort()


class _End(asyncio.Protocol):
    """One of the two sides of a connection."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: _End | None = None
        self.last_used = 0.0
        self._early: list[bytes] = []
        self._ended = False
        """Nothing more comes from here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        _tune(self.transport.get_extra_info("socket"))
        self.last_used = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.last_used = asyncio.get_running_loop().time()
        if self.other is not None:
            self.other.transport.write(data)
        else:
            # The loop may read once although reading is paused.
            self._early.append(data)
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        if self.other is not None:
            self._pass_end(self.other)
        return True

    def _pass_end(self, other: _End) -> None:
        if not other._ended:
            other.transport.write_eof()
            return
        # Both directions have ended: what is still to be written is written before the sockets close.
        self.transport.close()
        other.transport.close()

    def link(self, other: _End) -> None:
        """From now on what comes here goes to the other side."""
        self.other = other
        for data in self._early:
            other.transport.write(data)
        self._early.clear()
        if self._ended:
            self._pass_end(other)
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, problem: Exception | None) -> None:
        other, self.other = self.other, None
        if other is not None and not other.transport.is_closing():
            if problem is None:
                other.transport.close()
            else:
                other.abort()

    def abort(self) -> None:
        """The peer sees a reset, not an end."""
        if self.transport is None or self.transport.is_closing():
            return
        made = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()


class _Client(_End):
    def __init__(self, port: _TcpPort) -> None:
        super().__init__()
        self._port = port
        self._connecting: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        port = self._port
        if len(port.ends) >= CONNECTIONS_OF_A_PORT or port.ports.connections >= CONNECTIONS:
            self.abort()
            return
        port.ends.add(self)
        port.ports.connections += 1
        # Nothing is read before there is somebody to give it to.
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="published port")

    async def _connect(self) -> None:
        port, peer = self._port, self.transport.get_extra_info("peername")
        client = str(peer[0]) if peer else ""
        for backend in port.chooser.choose(client, port.destination)[:_ATTEMPTS]:
            try:
                upstream = await self._dial(backend)
            except (OSError, TimeoutError) as problem:
                log.debug("An endpoint does not answer", endpoint=f"{backend.address}:{backend.port}", error=problem)
                continue
            port.chooser.remember(client, backend, port.destination)
            if self.transport.is_closing():
                upstream.abort()
                return
            self.link(upstream)
            upstream.link(self)
            self._watch_idle()
            return
        self.abort()

    async def _dial(self, backend: Backend) -> _End:
        loop = asyncio.get_running_loop()
        made = await self._port.ports.stream()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(made, (backend.address, backend.port))
                _, end = await loop.create_connection(_Upstream, sock=made)
        except BaseException:
            made.close()
            raise
        return end

    def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        last = max(self.last_used, self.other.last_used if self.other is not None else 0.0)
        left = last + IDLE_SECONDS - loop.time()
        if left <= 0:
            self.abort()
        else:
            self._idle = loop.call_later(left, self._watch_idle)

    def connection_lost(self, problem: Exception | None) -> None:
        if self in self._port.ends:
            self._port.ends.remove(self)
            self._port.ports.connections -= 1
        if self._connecting is not None:
            self._connecting.cancel()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(problem)


class _Upstream(_End):
    """The endpoint's side. Nothing is read before both sides know each other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()


def _tune(made: socket.socket | None) -> None:
    if made is None or made.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it is gone already
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- UDP ------------------------------------------------------------------------------------------------------------


class _UdpPort(asyncio.DatagramProtocol):
    def __init__(self, ports: PortListeners, destination: Destination) -> None:
        self.ports = ports
        self.destination = destination
        self.transport: Any = None
        self._chooser = BackendChooser(asyncio.get_running_loop().time)
        self._flows: dict[Any, _Flow] = {}

    async def open(self, made: socket.socket) -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=made)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        flow = self._flows.get(addr)
        if flow is None:
            order = self._chooser.choose(str(addr[0]), self.destination)
            if not order or len(self._flows) >= FLOWS_OF_A_PORT:
                return
            flow = self._flows[addr] = _Flow(self, addr, order[0])
        flow.send(data)

    def set_destination(self, destination: Destination) -> None:
        self.destination = destination
        for flow in [each for each in self._flows.values() if each.backend not in destination.backends]:
            flow.close()

    def forget(self, addr: Any) -> None:
        self._flows.pop(addr, None)

    def close(self, *, abort: bool = False) -> None:
        for flow in list(self._flows.values()):
            flow.close()
        if self.transport is not None:
            self.transport.abort()


class _Flow(asyncio.DatagramProtocol):
    """The datagrams of one client: a socket of its own, so that answers find their way."""

    def __init__(self, port: _UdpPort, client: Any, backend: Backend) -> None:
        self.backend = backend
        self._port = port
        self._client = client
        self._transport: Any = None
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_DATAGRAMS)
        loop = asyncio.get_running_loop()
        self._last_used = loop.time()
        self._idle = loop.call_later(FLOW_IDLE_SECONDS, self._check_idle)
        self._opening = loop.create_task(self._open(), name="published port")

    async def _open(self) -> None:
        try:
            made = await self._port.ports.datagrams()
        except OSError as problem:
            log.debug("No socket for datagrams", error=problem)
            self.close()
            return
        try:
            made.connect((self.backend.address, self.backend.port))
            self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=made)
        except OSError as problem:
            made.close()
            log.debug("An endpoint does not answer", endpoint=f"{self.backend.address}", error=problem)
            self.close()
            return
        while self._waiting:
            self._transport.sendto(self._waiting.popleft())

    def send(self, data: bytes) -> None:
        self._last_used = asyncio.get_running_loop().time()
        if self._transport is None:
            self._waiting.append(data)
        else:
            self._transport.sendto(data)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._last_used = asyncio.get_running_loop().time()
        if self._port.transport is not None and not self._port.transport.is_closing():
            self._port.transport.sendto(data, self._client)

    def error_received(self, problem: Exception) -> None:
        """The endpoint refused: the next datagram chooses again."""
        self.close()

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last_used + FLOW_IDLE_SECONDS - loop.time()
        if left <= 0:
            self.close()
        else:
            self._idle = loop.call_later(left, self._check_idle)

    def close(self) -> None:
        self._port.forget(self._client)
        self._idle.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif asyncio.current_task() is not self._opening:
            self._opening.cancel()
