"""Asks other servers what is not ours.

One question goes out on a socket of its own: the kernel picks the port, takes answers from the asked address alone, and
the answer must repeat a random number and the question. A server that does not answer is followed by the next, and is
asked last for a while. The same question is asked once however many want to know, which also ends circles: two servers
that forward to each other find the question already under way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.cache import AnswerCache
from coterie.kube.network.dns.model import FAILED, DnsAnswer, DnsQuestion, ResponseCode, text_of
from coterie.kube.network.dns.settings import ForwardSettings, Nameserver

log = logger("dns")

_UNWELL = frozenset((ResponseCode.FORMERR, ResponseCode.SERVFAIL, ResponseCode.NOTIMP, ResponseCode.REFUSED))
"""Answers that say nothing about the name: the next server may know."""


class UpstreamError(Exception):
    """A server gave no usable answer; the message says why."""


class DnsForwarder:
    def __init__(
        self, servers: Callable[[], Sequence[Nameserver]], settings: ForwardSettings, owner: TaskOwner, clock: Clock
    ) -> None:
        """`servers` is asked each time: the machine's resolver file may change."""
        self._servers = servers
        self._settings = settings
        self._owner = owner
        self._clock = clock
        self._cache = AnswerCache(settings.cache_entries, settings.cache_seconds)
        self._under_way: dict[DnsQuestion, asyncio.Task[DnsAnswer]] = {}
        self._resting: dict[Nameserver, float] = {}

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def remembered(self, question: DnsQuestion) -> DnsAnswer | None:
        return self._cache.get(question, self._clock.monotonic())

    async def resolve(self, question: DnsQuestion) -> DnsAnswer:
        """Never raises: what cannot be found out is SERVFAIL."""
        found = self.remembered(question)
        if found is not None:
            return found
        task = self._under_way.get(question)
        if task is None:
            if len(self._under_way) >= self._settings.in_flight:
                return FAILED
            task = self._owner.start(f"ask {text_of(question.name)}", self._ask_all(question), vital=False)
            self._under_way[question] = task
            task.add_done_callback(lambda _: self._under_way.pop(question, None))
        # Whoever gives up waiting must not take the answer from the others.
        return await asyncio.shield(task)

    async def _ask_all(self, question: DnsQuestion) -> DnsAnswer:
        last: DnsAnswer = FAILED
        for _ in range(self._settings.rounds):
            for server in self._in_order():
                try:
                    answer = await self._ask(server, question)
                except (UpstreamError, OSError, TimeoutError) as problem:
                    if server not in self._resting:
                        why = str(problem) or "it did not answer in time"
                        log.warning(
                            "Upstream name server does not respond", server=f"{server.host}:{server.port}", why=why
                        )
                    self._resting[server] = self._clock.monotonic() + self._settings.rest
                    continue
                self._resting.pop(server, None)
                if answer.code in _UNWELL:
                    last = answer
                    continue
                self._cache.put(question, answer, self._clock.monotonic())
                return answer
            if last is not FAILED:
                break
        return last

    def _in_order(self) -> list[Nameserver]:
        now = self._clock.monotonic()
        return sorted(self._servers(), key=lambda server: self._resting.get(server, 0.0) > now)

    async def _ask(self, server: Nameserver, question: DnsQuestion) -> DnsAnswer:
        id_ = secrets.randbits(16)
        packet = wire.write_query(id_, question)
        async with asyncio.timeout(self._settings.timeout):
            reply = await _by_udp(server, packet, id_, question)
        if reply.truncated:
            async with asyncio.timeout(self._settings.timeout):
                reply = await _by_tcp(server, packet, id_, question)
        return DnsAnswer(reply.code, reply.answers, reply.authority)


class _Asking(asyncio.DatagramProtocol):
    """Waits for the one right answer; others' are not even looked at twice."""

    def __init__(self, id_: int, question: DnsQuestion) -> None:
        self.reply: asyncio.Future[wire.DnsReply] = asyncio.get_running_loop().create_future()
        self._id = id_
        self._question = question

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        reply = _fitting(data, self._id, self._question)
        if reply is not None and not self.reply.done():
            self.reply.set_result(reply)

    def error_received(self, exc: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(UpstreamError(str(exc)))


async def _by_udp(server: Nameserver, packet: bytes, id_: int, question: DnsQuestion) -> wire.DnsReply:
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_datagram_endpoint(
        lambda: _Asking(id_, question), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(packet)
        return await asking.reply
    finally:
        transport.close()


async def _by_tcp(server: Nameserver, packet: bytes, id_: int, question: DnsQuestion) -> wire.DnsReply:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(len(packet).to_bytes(2, "big") + packet)
        size = int.from_bytes(await reader.readexactly(2), "big")
        reply = _fitting(await reader.readexactly(size), id_, question)
    except asyncio.IncompleteReadError as problem:
        raise UpstreamError("it closed the connection") from problem
    finally:
        writer.close()
    if reply is None or reply.truncated:
        raise UpstreamError("it sent something else than an answer")
    return reply


def _fitting(data: bytes, id_: int, question: DnsQuestion) -> wire.DnsReply | None:
    try:
        reply = wire.read_reply(data)
    except wire.MalformedMessage:
        return None
    return reply if reply.id == id_ and reply.question == question else None
