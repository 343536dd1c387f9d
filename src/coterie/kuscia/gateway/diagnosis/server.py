"""The diagnostic endpoint: a private Unix socket, to which only our own Envoy leads, and only authenticated partners.

A call costs what it measures and no more: bodies are dropped as they come, answers are zeros, and each partner has a budget
(`limits.py`). Nothing that a partner sends is kept, run or passed on. The only calls that we make ourselves lead to the
caller (`reverse`), or to a third domain that has itself been told by the caller to expect them (`pair`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimit, RateLimitedLog, TokenBucket
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.gateway.crypt.http2 import GrpcConnection
from coterie.kuscia.gateway.diagnosis import messages
from coterie.kuscia.gateway.diagnosis.grpc_echo import EchoConnection
from coterie.kuscia.gateway.diagnosis.http1 import MAX_HEAD, PIECE, IncomingCall, MalformedCall, read_call
from coterie.kuscia.gateway.diagnosis.limits import Announcements, DiagnosticBudgets, DiagnosticLimits, PartnerBudget
from coterie.kuscia.gateway.names import DOWNSTREAM_PROTOCOL, ORIGIN, PEER_FINGERPRINT, SOURCE

FactsOf = Callable[[messages.FactsRequest], Awaitable[messages.PartyFacts]]
MeasureLink = Callable[[str, messages.ProbePlan, str], Awaitable[messages.LinkReport | None]]
"""From here to a domain; with a number, only if that domain confirms it."""

_ZEROS = bytes(PIECE)
_SMALL = 64 << 10
_KEPT = 4 << 10
"""First bytes of a body of Kuscia's, in which the numbers stand."""
_HEAD_SECONDS = 10.0
_ALIVE_SECONDS = 1.0
_CHUNK_COST = 4 << 10
"""Bytes of the budget that a chunk costs at least: a small one is as much work as a large one."""
_CONNECTIONS = 256
_ECHOES = RateLimit(200, 5)
_NO_PROBES = "too many measurements; try again in a minute"


class DiagnosticServer:
    """A Runnable; ready when it listens."""

    name = "diagnostic-server"

    def __init__(
        self,
        domain: str,
        path: Path,
        grpc_path: Path,
        facts: FactsOf,
        measure: MeasureLink,
        *,
        version: str = "",
        limits: DiagnosticLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ready = asyncio.Event()
        self._domain = domain
        self._path, self._grpc_path = path, grpc_path
        self._facts, self._measure = facts, measure
        self._version = version
        self._clock = clock
        self._budgets = DiagnosticBudgets(clock, limits)
        self._announced = Announcements(clock)
        self._echoes = TokenBucket(_ECHOES, clock)
        self._stop = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._log = logger("gateway.diagnosis")
        self._refusals = RateLimitedLog(self._log, clock)
        self._handlers: dict[tuple[str, str], Callable[[IncomingCall, str, PartnerBudget], Awaitable[None]]] = {
            ("GET", messages.HEALTHY): self._healthy,
            ("POST", messages.MOCK): self._mock,
            ("GET", messages.HELLO): self._hello,
            ("POST", messages.UPLOAD): self._upload,
            ("POST", messages.FACTS): self._party_facts,
            ("POST", messages.REVERSE): self._reverse,
            ("POST", messages.ANNOUNCE): self._announce,
            ("GET", messages.CONFIRM): self._confirm,
            ("POST", messages.PAIR): self._pair,
        }

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        connections: set[GrpcConnection] = set()
        loop = asyncio.get_running_loop()
        http = await asyncio.start_unix_server(self._accepted, sock=private_socket(self._path), limit=MAX_HEAD)
        echo = await loop.create_unix_server(
            lambda: EchoConnection(self._echoes.take, connections), sock=private_socket(self._grpc_path)
        )
        try:
            self.ready.set()
            await self._stop.wait()
        finally:
            http.close()
            echo.close()
            for connection in list(connections):
                connection.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            for path in (self._path, self._grpc_path):
                path.unlink(missing_ok=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= _CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="diagnose-call")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                call = await read_call(reader, writer)
            await self._answer(call)
            with contextlib.suppress(OSError):
                writer.write_eof()
            await call.linger()
        except (MalformedCall, OSError, TimeoutError):
            pass  # the caller left, or is too slow
        finally:
            writer.transport.abort()

    async def _answer(self, call: IncomingCall) -> None:
        partner = call.headers.get(ORIGIN) or call.headers.get(SOURCE) or ""
        # A proxy in front may leave a prefix on the path.
        path = call.path[max(0, call.path.rfind(messages.PREFIX)) :].rstrip("/")
        handler = self._handlers.get((call.method, path))
        if not messages.is_domain(partner) or partner == self._domain:
            await call.answer(403, b'{"message":"only partners may diagnose"}')
        elif handler is None:
            await call.answer(404, b'{"message":"not found"}')
        elif (budget := self._budgets.begin_call(partner)) is None:
            self._refusals.warn("A partner asks for more diagnosis than it may", partner=partner)
            await call.answer(429, b'{"message":"too many calls; try again in a minute"}')
        else:
            try:
                await handler(call, partner, budget)
            except (MalformedCall, msgspec.ValidationError, msgspec.DecodeError) as error:
                await call.answer(400, msgspec.json.encode({"message": str(error)}))
            finally:
                self._budgets.end_call(budget)

    # What a call measures.

    async def _healthy(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        await call.answer(200, messages.mock_head(0), "application/x-protobuf")

    async def _hello(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        hello = messages.Hello(
            self._version,
            self._clock.now().timestamp(),
            partner,
            call.headers.get(DOWNSTREAM_PROTOCOL, ""),
            call.headers.get(PEER_FINGERPRINT, "").lower(),
        )
        await call.answer(200, msgspec.json.encode(hello))

    async def _upload(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        first = last = None
        async with asyncio.timeout(self._budgets.limits.stream_seconds):
            async for piece in call.body():
                last = self._clock.monotonic()
                first = last if first is None else first
                budget.bytes.spend(len(piece))
                if await self._too_much(call, budget):
                    return
        spent = last - first if first is not None and last is not None else 0.0
        await call.answer(200, msgspec.json.encode(messages.Upload(call.read, spent)))

    async def _too_much(self, call: IncomingCall, budget: PartnerBudget) -> bool:
        if call.read > self._budgets.limits.body_bytes:
            await call.answer(400, b'{"message":"the body is longer than this endpoint reads"}')
            return True
        if not budget.bytes.left():
            await call.answer(429, b'{"message":"too many bytes; try again in a minute"}')
            return True
        return False

    async def _mock(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        limits = self._budgets.limits
        begin = bytearray()
        async with asyncio.timeout(limits.stream_seconds):
            async for piece in call.body():
                if len(begin) < _KEPT:
                    begin += piece[: _KEPT - len(begin)]
                budget.bytes.spend(len(piece))
                if await self._too_much(call, budget):
                    return
        asked = messages.decode_mock(bytes(begin))
        if asked.chunked:
            async with asyncio.timeout(limits.stream_seconds + 1):
                await self._chunks(call, asked, budget)
            return
        if asked.duration:
            await self._hold(call, min(asked.duration / 1000, limits.hold_seconds))
        size = min(asked.size, limits.response_bytes, budget.bytes.left())
        budget.bytes.spend(size)
        head = messages.mock_head(size)
        call.begin(200, "application/x-protobuf", len(head) + size)
        call.writer.write(head)
        async with asyncio.timeout(limits.stream_seconds):
            while size > 0:
                call.writer.write(_ZEROS[:size])
                size -= len(_ZEROS)
                await call.writer.drain()
                await asyncio.sleep(0)  # `drain` gives nobody else a turn while Envoy reads as fast as we write

    async def _hold(self, call: IncomingCall, seconds: float) -> None:
        """Until then, or until the caller leaves."""
        leaving = asyncio.ensure_future(call.gone())
        waiting = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((leaving, waiting), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise MalformedCall("the caller left")
        finally:
            for each in (leaving, waiting):
                each.cancel()
            await asyncio.gather(leaving, waiting, return_exceptions=True)

    async def _chunks(self, call: IncomingCall, asked: messages.MockRequest, budget: PartnerBudget) -> None:
        """So many bytes or for so long, whichever was asked for, and never more than the budget allows."""
        limits = self._budgets.limits
        size = max(1, min(asked.chunk_size or PIECE, PIECE))
        left = min(limits.response_bytes, asked.size if not asked.duration else limits.response_bytes)
        end = self._clock.monotonic() + min(asked.duration / 1000 or limits.stream_seconds, limits.stream_seconds)
        call.begin(200, "text/plain", None)
        cost = max(size, _CHUNK_COST)
        while left > 0 and self._clock.monotonic() < end and budget.bytes.left() >= cost:
            budget.bytes.spend(cost)
            await call.send_chunk(_ZEROS[:size])
            await asyncio.sleep(0)
            left -= size
            if asked.interval and left > 0:
                await self._clock.sleep(min(asked.interval / 1000, limits.stream_seconds))
        await call.send_chunk(b"")

    # What a call asks.

    async def _small_body(self, call: IncomingCall) -> bytes:
        async with asyncio.timeout(self._budgets.limits.stream_seconds):
            return await call.small_body(_SMALL)

    async def _party_facts(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        asked = msgspec.json.decode(await self._small_body(call), type=messages.FactsRequest)
        if not budget.probes.take():
            await call.answer(429, msgspec.json.encode({"message": _NO_PROBES}))
            return
        await call.answer(200, msgspec.json.encode(await self._facts(asked.bounded())))

    async def _announce(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        asked = msgspec.json.decode(await self._small_body(call), type=messages.PairAnnouncement)
        if not messages.is_number(asked.number):
            raise MalformedCall("the number has 32 hexadecimal digits")
        self._announced.add(asked.number, partner)
        await call.answer(200, b"{}")

    async def _confirm(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        known = self._announced.knows(call.query.get("number", ""))
        await call.answer(200 if known else 404, b"{}")

    async def _reverse(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        asked = msgspec.json.decode(await self._small_body(call), type=messages.ReverseRequest)
        await self._measured(call, budget, partner, asked.plan, "")

    async def _pair(self, call: IncomingCall, partner: str, budget: PartnerBudget) -> None:
        asked = msgspec.json.decode(await self._small_body(call), type=messages.PairRequest)
        if not asked.valid or asked.destination in (partner, self._domain):
            raise MalformedCall("name a third domain, and the number that was announced to it")
        await self._measured(call, budget, asked.destination, asked.plan, asked.number)

    async def _measured(
        self, call: IncomingCall, budget: PartnerBudget, destination: str, plan: messages.ProbePlan, number: str
    ) -> None:
        if not self._budgets.begin_probe(budget):
            await call.answer(429, msgspec.json.encode({"message": _NO_PROBES}))
            return
        measuring = asyncio.ensure_future(self._measure(destination, plan.bounded(), number))
        try:
            call.begin(200, "application/json", None)
            while not (await asyncio.wait((measuring,), timeout=_ALIVE_SECONDS))[0]:
                await call.send_chunk(b" ")  # JSON may begin so; a path that cuts silent calls is not to cut this one
            await call.send_chunk(msgspec.json.encode(messages.ReverseAnswer(measuring.result())))
            await call.send_chunk(b"")
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)
            self._budgets.end_probe(budget)
