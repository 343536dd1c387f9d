"""The links of the functions process to all gateways: calls in, answers out.

Each gateway has a return topic, read by one listener that sends what comes over the link. What the gateway has received is committed, so after a
broken link or a restart the rest comes again. The topic of a gateway that is gone is removed after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.protocol import Bus, BusError, Commit, UnknownTopic
from coterie.functions.dispatcher.dispatcher import CallDispatcher, TooManyWaiting, UnknownAction
from coterie.functions.gateway.link_messages import (
    ALIVE_SECONDS,
    DONE,
    LINK_PATH,
    MAX_MESSAGE,
    PENDING,
    SILENT_SECONDS,
    UNKNOWN,
    AnswerArrived,
    AnswerReceived,
    CallAccepted,
    CallNotAccepted,
    CallQuery,
    CallSent,
    CallState,
    FromGateway,
    GatewayLinkMessage,
    LinkAlive,
    PartTaken,
    RawAnswer,
    RecordSent,
    RecordWritten,
    RouteTable,
    TriggerRoute,
    decode_from_gateway,
    encode_message,
)
from coterie.functions.messages import return_topic
from coterie.functions.pod_connections import ConnectToPod
from coterie.functions.topic_records import NobodyReads, RecordTooLarge, TooManyRecords, TopicRecords
from coterie.http.errors import ProtocolError
from coterie.http.websocket import WebSocket, accept_key, new_key

log = logger("functions.links")

_RETURN_PREFIX = return_topic("")
_GONE_SECONDS = 120.0
"""A gateway that is not named for so long has no more clients that wait."""
_COMMIT_SECONDS = 1.0
_KEEP_ANSWERS = 10 * 60 * 1000
_READ = 100
_MOST_SUBMITS = 2000
_CONNECT_SECONDS = 5.0
_RETRY = Policy(first=0.1, factor=2.0, limit=3.0, jitter=0.3)
_MAX_HEAD = 16 * 1024


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    uid: str
    """Of the pod: its return topic is named by it."""
    host: str
    port: int
    """LINK_PORT, where it waits for the link."""
    token: str = field(repr=False)


class RouteLike(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def action(self) -> str: ...

    @property
    def methods(self) -> tuple[str, ...]: ...

    @property
    def key(self) -> str: ...


class LinkRefused(Exception):
    """What answered is no gateway of ours."""


class GatewayLinks:
    """A Runnable."""

    name = "gateway-links"

    def __init__(
        self,
        bus: Bus,
        dispatcher: CallDispatcher,
        connect: ConnectToPod,
        clock: Clock = SYSTEM_CLOCK,
        *,
        records: TopicRecords | None = None,
    ) -> None:
        """`records`: of topics; None: there are none."""
        self.ready = asyncio.Event()
        self._bus = bus
        self._dispatcher = dispatcher
        self._connect = connect
        self._clock = clock
        self._records = records or TopicRecords(bus, clock)
        self._routes: RouteTable | None = None
        """None: they are not known yet. A gateway takes calls when it has them."""
        self._addresses: dict[str, GatewayAddress] = {}
        self._named = False
        self._changed = asyncio.Event()
        self._links: dict[str, _GatewayLink] = {}
        self._absent: dict[str, float] = {}
        """Return topics without a gateway, and since when."""

    def set_gateways(self, gateways: Sequence[GatewayAddress]) -> None:
        """All gateway pods that run."""
        self._addresses = {each.uid: each for each in gateways}
        self._named = True
        self._changed.set()

    def set_routes(self, routes: Iterable[RouteLike]) -> None:
        """The HTTP triggers of the domain."""
        table = [
            TriggerRoute(path=each.path, action=each.action, methods=each.methods, key=each.key) for each in routes
        ]
        self._routes = RouteTable(routes=table)
        for link in self._links.values():
            link.send_routes(self._routes)

    @property
    def connected(self) -> int:
        """Links that are open."""
        return sum(link.connected for link in self._links.values())

    async def run(self) -> None:
        async with TaskOwner("gateway links") as owner:
            owner.start("topics", self._remove_topics(), endless=True)
            owner.start("gateways", self._follow(), endless=True)
            self.ready.set()
            await owner.wait()

    async def _follow(self) -> None:
        try:
            async with TaskOwner("gateways") as owner:
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    for uid in [uid for uid, link in self._links.items() if self._addresses.get(uid) != link.address]:
                        link = self._links.pop(uid)
                        if link.task is not None:
                            link.task.cancel()
                            await asyncio.wait((link.task,))
                    for uid, address in self._addresses.items():
                        if uid not in self._links:
                            link = self._links[uid] = _GatewayLink(
                                address,
                                self._bus,
                                self._dispatcher,
                                self._connect,
                                self._clock,
                                lambda: self._routes,
                                self._records,
                            )
                            link.task = owner.start(f"gateway {uid}", link.run(), endless=True)
        finally:
            self._links.clear()

    async def _remove_topics(self) -> None:
        while True:
            await self._clock.sleep(_GONE_SECONDS / 4)
            if not self._named:
                continue
            try:
                await self._look_at_topics()
            except BusError as problem:
                log.warning("Return topics cannot be looked at", error=problem)

    async def _look_at_topics(self) -> None:
        now = self._clock.monotonic()
        there = {topic for topic in await self._bus.topics() if topic.startswith(_RETURN_PREFIX)}
        wanted = {return_topic(uid) for uid in self._addresses}
        self._absent = {topic: self._absent.get(topic, now) for topic in there - wanted}
        for topic, since in self._absent.items():
            if now - since >= _GONE_SECONDS:
                await self._bus.delete_topic(topic)
        before = int(self._clock.now().timestamp() * 1000) - _KEEP_ANSWERS
        for topic in there & wanted:
            await self._bus.trim(topic, before)


class _GatewayLink:
    def __init__(
        self,
        address: GatewayAddress,
        bus: Bus,
        dispatcher: CallDispatcher,
        connect: ConnectToPod,
        clock: Clock,
        routes: Callable[[], RouteTable | None],
        records: TopicRecords,
    ) -> None:
        self.address = address
        self.connected = False
        self.task: asyncio.Task[None] | None = None
        self._topic = return_topic(address.uid)
        self._group = f"GatewayConsumerGroup-{self._topic}"
        self._bus = bus
        self._dispatcher = dispatcher
        self._connect = connect
        self._clock = clock
        self._routes = routes
        self._records = records
        self._socket: WebSocket | None = None
        self._received = 0
        """Offsets below were received by the gateway."""
        self._committed = 0
        self._slots = asyncio.Semaphore(_MOST_SUBMITS)

    def send_routes(self, table: RouteTable | None) -> None:
        if self._socket is not None and table is not None:
            self._socket.send(encode_message(table))

    async def run(self) -> None:
        backoff = Backoff(_RETRY)
        while True:
            try:
                await self._prepare()
                await self._open(backoff)
            except (
                OSError,
                TimeoutError,
                ProtocolError,
                LinkRefused,
                BusError,
                asyncio.IncompleteReadError,
            ) as problem:
                log.info("No link to a gateway", gateway=self.address.uid, error=problem)
            await self._clock.sleep(backoff.failed())

    async def _prepare(self) -> None:
        await self._bus.create_topic(self._topic, 1)
        found = await self._bus.committed(self._group, self._topic)
        self._committed = found.get(0, 0)
        self._received = max(self._received, self._committed)

    async def _open(self, backoff: Backoff) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            made = await self._connect(self.address.host, self.address.port)
            reader, writer = await asyncio.open_connection(sock=made, limit=1 << 20)
        transport = _StreamTransport(reader, writer)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await _upgrade(reader, writer, self.address.token)
            self._socket = socket = WebSocket(transport, client=True, limit=MAX_MESSAGE)
            self.connected = True
            backoff.succeeded()
            log.info("Link opened", gateway=self.address.uid)
            self.send_routes(self._routes())
            async with TaskOwner(f"link {self.address.uid}") as owner:
                listening = owner.start("answers", self._send_answers(socket), vital=False)
                owner.start("alive", self._keep_alive(socket), vital=False)
                owner.start("commits", self._commit_received(), vital=False)
                receiving = owner.start("calls", self._receive(socket, owner), vital=False)
                await asyncio.wait((listening, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.connected = False
            self._socket = None
            writer.transport.abort()

    # -- from the gateway -----------------------------------------------------------------------------------------

    async def _receive(self, socket: WebSocket, owner: TaskOwner) -> None:
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    data = await socket.receive()
            except (TimeoutError, ConnectionError) as problem:
                log.info("Link broke", gateway=self.address.uid, error=problem)
                return
            if data is None:
                return
            try:
                message: FromGateway = decode_from_gateway(data)
            except msgspec.DecodeError as problem:
                log.error("A gateway sent something else than the protocol", gateway=self.address.uid, error=problem)
                return
            match message:
                case CallSent():
                    await self._slots.acquire()
                    owner.start("call", self._submit(socket, message), vital=False)
                case AnswerReceived():
                    self._received = max(self._received, message.offset + 1)
                case PartTaken():
                    self._dispatcher.part_taken(message.uid, message.part)
                case CallQuery():
                    owner.start("query", self._tell_state(socket, message), vital=False)
                case RecordSent():
                    await self._slots.acquire()
                    owner.start("record", self._write(socket, message), vital=False)
                case LinkAlive():
                    pass

    async def _write(self, socket: WebSocket, message: RecordSent) -> None:
        def refuse(status: int, why: str) -> None:
            _send(socket, RecordWritten(query=message.query, status=status, message=why))

        try:
            position = await self._records.write(message.topic, message.key, message.value)
        except NobodyReads as problem:
            refuse(404, str(problem))
        except RecordTooLarge as problem:
            refuse(413, str(problem))
        except TooManyRecords as problem:
            refuse(503, str(problem))
        except BusError as problem:
            log.warning("A record could not be written", topic=message.topic, error=problem)
            refuse(503, "it is not known whether the record was written; try again")
        else:
            _send(socket, RecordWritten(query=message.query, partition=position.partition, offset=position.offset))
        finally:
            self._slots.release()

    async def _submit(self, socket: WebSocket, message: CallSent) -> None:
        # What a gateway may not decide: who called, where the answer goes, which version.
        invoke = msgspec.structs.replace(
            message.invoke,
            return_topic=self._topic if message.wait else "",
            origin="",
            source="",
            hop=0,
            version="",
            attempt=0,
        )
        uid = invoke.request_uid
        try:
            accepted = await self._dispatcher.submit(invoke, repeated=message.repeated)
        except UnknownAction as problem:
            _send(socket, CallNotAccepted(uid=uid, status=404, message=str(problem)))
            return
        except TooManyWaiting as problem:
            _send(socket, CallNotAccepted(uid=uid, status=503, message=str(problem)))
            return
        except BusError as problem:
            log.warning("A call could not be accepted", request=uid, error=problem)
            _send(socket, CallNotAccepted(uid=uid, status=503, message="the call could not be written down; try again"))
            return
        finally:
            self._slots.release()
        _send(socket, CallAccepted(uid=uid, repeated=accepted.repeated))
        if accepted.repeated and message.wait:
            # Its answer may go, or have gone, to another gateway.
            response = accepted.response or await self._dispatcher.wait_result(uid)
            _send(socket, AnswerArrived(response=response))

    async def _tell_state(self, socket: WebSocket, query: CallQuery) -> None:
        try:
            response = await self._dispatcher.result(query.uid)
        except BusError as problem:
            log.warning("A result could not be read", request=query.uid, error=problem)
            response = None
        if response is not None:
            _send(socket, CallState(query=query.query, state=DONE, response=response))
        else:
            pending = await self._dispatcher.is_pending(query.uid)
            _send(socket, CallState(query=query.query, state=PENDING if pending else UNKNOWN))

    # -- to the gateway -------------------------------------------------------------------------------------------

    async def _send_answers(self, socket: WebSocket) -> None:
        """The one listener of the return topic."""
        offset = self._received
        while True:
            try:
                records = await self._bus.read(self._topic, 0, offset, _READ, SILENT_SECONDS)
            except BusError as problem:
                log.warning("A return topic cannot be read", gateway=self.address.uid, error=problem)
                return
            for record in records:
                offset = record.offset + 1
                socket.send(encode_message(RawAnswer(response=msgspec.Raw(record.value), offset=record.offset)))
            try:
                await socket.drain()
            except ConnectionError:
                return

    async def _keep_alive(self, socket: WebSocket) -> None:
        while True:
            _send(socket, LinkAlive())
            await self._clock.sleep(ALIVE_SECONDS)

    async def _commit_received(self) -> None:
        while True:
            await self._clock.sleep(_COMMIT_SECONDS)
            if self._received > self._committed:
                received = self._received
                try:
                    await self._bus.publish([], [Commit(self._group, self._topic, 0, received)])
                    self._committed = received
                except UnknownTopic:
                    return
                except BusError as problem:
                    log.warning("What a gateway received could not be written down", error=problem)


def _send(socket: WebSocket, message: GatewayLinkMessage) -> None:
    socket.send(encode_message(message))


class _StreamTransport:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(256 * 1024)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()


async def _upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    key = new_key()
    lines = (
        f"GET {LINK_PATH} HTTP/1.1",
        "Host: gateway",
        f"Authorization: Bearer {token}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    status, *headers = head[:_MAX_HEAD].decode("latin-1").split("\r\n")
    answered = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    if status.split(" ")[1:2] != ["101"] or answered.get("sec-websocket-accept") != accept_key(key):
        raise LinkRefused(f"the gateway does not open a link: {status[:100]}")
