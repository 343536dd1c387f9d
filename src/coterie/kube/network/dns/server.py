"""The server: UDP and TCP on one address, own names from the zone, the rest from upstream.

    packet ──known bytes?──> the same answer as before                      own names, until the zone changes
       └──> read ──> answer(question, zone) ──> write ──> remembered
                          └──forward──> Forwarder ──> write

Only clients on this machine (and networks that were named) are heard; others get nothing. What is no question gets a
header with an error at most, which is never longer than what came.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimitedLog
from coterie.base.tasks import TaskOwner
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.allowed_clients import AllowedClients, included
from coterie.kube.network.dns.answer import answer, is_reverse
from coterie.kube.network.dns.model import FAILED, REFUSED, DnsAnswer, DnsQuestion, ResponseCode, text_of
from coterie.kube.network.dns.settings import Nameserver, ServerSettings
from coterie.kube.network.dns.upstream import DnsForwarder
from coterie.kube.network.dns.zone_updater import ZoneUpdater

log = logger("dns")

_REMEMBERED = 8192
"""Answers kept ready; beyond, all are forgotten and made again."""
_REMEMBERED_OCTETS = 16 << 20
"""What they and their questions may hold together; the asker chooses how long both are."""
_TURNS = 16
"""How many orders of its addresses one answer is kept ready in."""
_LONGEST_QUESTION = 4096


class DnsServer:
    """A Runnable. The sockets are bound at once, so that a port that is taken is known before the node starts."""

    name = "dns"

    def __init__(
        self,
        settings: ServerSettings,
        zone_updater: ZoneUpdater,
        upstream: Callable[[], Sequence[Nameserver]],
        clock: Clock = SYSTEM_CLOCK,
        *,
        sockets: tuple[socket.socket, socket.socket] | None = None,
    ) -> None:
        """`sockets`: bound ones for UDP and TCP, of another network namespace; None: they are made here."""
        self.ready = asyncio.Event()
        self._settings = settings
        self._zone_updater = zone_updater
        self._upstream = upstream
        self._clock = clock
        self._stop = asyncio.Event()
        self._clients = AllowedClients(settings.clients)
        self._rate_limited_log = RateLimitedLog(log, clock)
        self._remembered: dict[bytes, deque[bytes]] = {}
        self._remembered_octets = 0
        self._turn = 0
        self._forwarder: DnsForwarder | None = None
        self._owner: TaskOwner | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """The one that has been silent for longest first."""
        self._udp, self._tcp = sockets or bound(settings.address, settings.port)
        self.port: int = self._udp.getsockname()[1]
        zone_updater.on_change(self._forget)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with TaskOwner(self.name) as owner:
            self._owner = owner
            self._forwarder = DnsForwarder(self._upstream, self._settings.forward, owner, self._clock)
            transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=self._udp)
            server = await asyncio.start_server(self._connected, sock=self._tcp)
            log.info("The domain's names are served", address=self._settings.address, port=self.port)
            try:
                await self._zone_updater.wait_synced()
                self.ready.set()
                await self._stop.wait()
            finally:
                transport.close()
                server.close()
                self._owner = None

    # Both ways of asking.

    def _is_allowed(self, address: str) -> bool:
        if self._clients.is_allowed(address):
            return True
        self._rate_limited_log.warn("Query from a client that is not allowed", peer=address, port=self.port)
        return False

    def quick(self, data: bytes, *, allowed: int, sender: str = "") -> bytes | PendingQuery | None:
        """The answer at once; None for what gets none; `PendingQuery` when others must be asked first.

        `sender`: the client's address; empty: any name may be asked for."""
        known = self._remembered.get(data[2:]) if allowed == 0 else None
        if known is not None:
            # Each question has its own turn: resolvers ask for A and AAAA in pairs, and a common one would stand still.
            known.rotate(-1)
            return data[:2] + known[0]
        if len(data) > _LONGEST_QUESTION:
            return wire.write_error(data, ResponseCode.FORMERR)
        if wire.opcode(data):
            # Updates and notices are of another form; that none is taken is to be said all the same.
            return wire.write_error(data, ResponseCode.NOTIMP)
        try:
            query = wire.read_query(data)
        except wire.MalformedMessage:
            return wire.write_error(data, ResponseCode.FORMERR)
        limit = allowed or query.size
        if query.edns_version:
            return wire.write_answer(query, DnsAnswer(ResponseCode.BADVERS), limit)
        if not self._zone_updater.synced:
            # Better to be asked again than to deny a name that exists.
            return wire.write_answer(query, FAILED, limit)
        self._turn += 1
        found = answer(query.question, self._zone_updater.zone, self._turn)
        if found.forward is None and is_reverse(query.question.name):
            # Who could ask for all addresses of the pod network in turn would learn what runs in it.
            secret = bool(sender) and included(sender, self._settings.own_names_only)
            return wire.write_answer(query, REFUSED if secret else found, limit)
        if found.forward is None:
            return self._remember(data, query, found, limit) if allowed == 0 else wire.write_answer(query, found, limit)
        if sender and included(sender, self._settings.own_names_only):
            self._rate_limited_log.warn(
                "Client may ask for own names only", peer=sender, name=text_of(found.forward.name)
            )
            return wire.write_answer(query, REFUSED, limit)
        asked = PendingQuery(query, found, found.forward, limit)
        cached = self._forwarder.remembered(found.forward) if self._forwarder is not None else None
        return asked if cached is None else asked.completed(cached)

    def _remember(self, data: bytes, query: wire.Query, found: DnsAnswer, limit: int) -> bytes:
        """All orders of the answer are made now; the next questions of the same bytes cost one look."""
        zone = self._zone_updater.zone
        turns = range(min(len(found.answers), _TURNS)) if len(found.answers) > 1 else range(1)
        made = [wire.write_answer(query, answer(query.question, zone, turn), limit) for turn in turns]
        octets = len(data) + sum(len(each) for each in made)
        if len(self._remembered) >= _REMEMBERED or self._remembered_octets + octets > _REMEMBERED_OCTETS:
            self._forget()
        self._remembered[data[2:]] = deque(each[2:] for each in made)
        self._remembered_octets += octets
        return made[0]

    def _forget(self) -> None:
        self._remembered.clear()
        self._remembered_octets = 0

    async def complete(self, asked: PendingQuery) -> bytes:
        assert self._forwarder is not None, "questions arrive only while the server runs"
        return asked.completed(await self._forwarder.resolve(asked.upstream))

    # UDP.

    def datagram(self, data: bytes, sender: tuple[str, int], send: asyncio.DatagramTransport) -> None:
        if not self._is_allowed(sender[0]):
            return
        out = self.quick(data, allowed=0, sender=sender[0])
        if isinstance(out, bytes):
            send.sendto(out, sender)
        elif out is not None and self._owner is not None and len(self._owner) < 4 * self._settings.forward.in_flight:
            self._owner.start("answer", self._send_later(out, sender, send), vital=False)

    async def _send_later(self, asked: PendingQuery, sender: tuple[str, int], send: asyncio.DatagramTransport) -> None:
        out = await self.complete(asked)
        if not send.is_closing():
            send.sendto(out, sender)

    # TCP.

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = cast("tuple[str, int] | None", writer.get_extra_info("peername"))
        if peer is None or self._owner is None or not self._is_allowed(peer[0]):
            writer.close()
            return
        if len(self._connections) >= self._settings.tcp_connections:
            # Those who only hold connections must not keep out those who ask.
            idlest = next(iter(self._connections))
            del self._connections[idlest]
            idlest.transport.abort()
        self._connections[writer] = None
        self._owner.start("connection", self._serve_connection(reader, writer, peer[0]), vital=False)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str) -> None:
        try:
            await self._converse(reader, writer, sender)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return  # the usual end of a connection
        finally:
            await self._part(writer)

    async def _part(self, writer: asyncio.StreamWriter) -> None:
        """Who does not take its answers is not waited for: until then the connection counts as one."""
        try:
            async with asyncio.timeout(0 if self._stop.is_set() else self._settings.tcp_idle):
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            self._connections.pop(writer, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str) -> None:
        while not self._stop.is_set():
            async with asyncio.timeout(self._settings.tcp_idle):
                size = int.from_bytes(await reader.readexactly(2), "big")
                if size > _LONGEST_QUESTION:
                    return
                data = await reader.readexactly(size)
            out = self.quick(data, allowed=wire.TCP_SIZE, sender=sender)
            if isinstance(out, PendingQuery):
                out = await self.complete(out)
            if out is None:
                return
            if writer in self._connections:
                self._connections[writer] = self._connections.pop(writer)
            writer.write(len(out).to_bytes(2, "big") + out)
            async with asyncio.timeout(self._settings.tcp_idle):
                await writer.drain()


class PendingQuery:
    """A question that upstream must be asked."""

    __slots__ = ("begun", "limit", "query", "upstream")

    def __init__(self, query: wire.Query, begun: DnsAnswer, upstream: DnsQuestion, limit: int) -> None:
        self.query = query
        self.begun = begun
        self.upstream = upstream
        self.limit = limit

    def completed(self, encoded: DnsAnswer) -> bytes:
        begun = self.begun
        whole = replace(
            begun,
            code=encoded.code,
            answers=(*begun.answers, *encoded.answers),
            authority=encoded.authority,
            forward=None,
        )
        return wire.write_answer(self.query, whole, self.limit)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        if not self._paused:
            self._server.datagram(data, addr, self._transport)

    def pause_writing(self) -> None:
        """Answers do not leave as quickly as questions come; those who ask will ask again."""
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def error_received(self, exc: Exception) -> None:
        """A client that went away before its answer came is no concern of ours."""


def bound(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """One UDP and one listening TCP socket on the same port; with port 0 on a free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for attempt in range(16):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((address, port))
            udp.bind((address, tcp.getsockname()[1]))
        except OSError:
            tcp.close()
            udp.close()
            if port or attempt == 15:
                raise
            continue
        tcp.listen(64)
        tcp.setblocking(False)
        udp.setblocking(False)
        return udp, tcp
    raise AssertionError("the last attempt returns or raises")
