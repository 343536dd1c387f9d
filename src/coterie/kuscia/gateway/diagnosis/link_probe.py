"""Measures the link from a domain to another: calls `diagnose.<destination>.svc` through the domain's own gateway, on the way
that its engines' calls take.

    hello ─> round trips, clock ─> gRPC ─> chunks ─> bodies of growing size ─> rate ─> an answer that is held back

Every step has a time limit and stops early on a slow link. What a Kuscia gateway can answer is asked in Kuscia's format. Only
the command line and the process of `reverse_probe.py` import this: it needs aiohttp and gRPC.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import grpc
import grpc.aio
import msgspec

from coterie.kuscia.gateway.diagnosis import messages
from coterie.kuscia.gateway.diagnosis.messages import LinkReport, MockRequest, ProbePlan
from coterie.kuscia.gateway.names import ERROR, SOURCE

_CALL_SECONDS = 10.0
_ROUND_TRIPS = 10
_ECHO_SECONDS = 3.0
_RATE_SECONDS = 3.0
_SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20)
_NARROWING = 5
"""Steps between the largest body that passed and the smallest that did not."""
_SLOW_SECONDS = 5.0
"""A body that would take longer than this is not tried."""
_UPLOAD_SECONDS = 20.0
_PIECE = 64 << 10
_LONGEST_ANSWER = 256 << 10
_FIRST_RATE = 256 << 10
"""Bytes after which the rate is measured: the beginning of a connection is slow."""
_Decoded = TypeVar("_Decoded")
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Status 0: there was no answer, and `problem` says why."""

    status: int
    body: bytes = b""
    problem: str = ""
    seconds: float = 0.0


class PartnerLinkProbe:
    def __init__(self, gateway: Path, source: str, destination: str) -> None:
        """`gateway`: the socket at which the node of `source` calls its own gateway."""
        self._gateway = gateway
        self._source, self._destination = source, destination
        self._host = f"{messages.SERVICE}.{destination}.svc"
        self._headers = {"Host": self._host, SOURCE: source}
        self._session = aiohttp.ClientSession(
            "http://gateway",
            connector=aiohttp.UnixConnector(str(gateway)),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,  # a partner would choose how much comes of a small answer
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    # Questions.

    async def confirms(self, number: str) -> bool:
        return (await self.call("GET", f"{messages.CONFIRM}?number={number}")).status == 200

    async def announce(self, number: str) -> bool:
        body = msgspec.json.encode(messages.PairAnnouncement(number))
        return (await self.call("POST", messages.ANNOUNCE, body)).status == 200

    async def facts(self, asked: messages.FactsRequest) -> messages.PartyFacts | None:
        found = await self.call("POST", messages.FACTS, msgspec.json.encode(asked))
        return _decoded(found, messages.PartyFacts)

    async def reverse(self, plan: ProbePlan) -> LinkReport | None:
        """The link from the destination to the source, as the destination measures it. None: it does not."""
        body = msgspec.json.encode(messages.ReverseRequest(plan))
        answer = await self._measured_there(messages.REVERSE, body, plan)
        return answer.report if answer is not None else None

    async def pair(self, third: str, number: str, plan: ProbePlan) -> messages.ReverseAnswer | None:
        """The link from the destination to a third domain. None: it does not answer; without a report: the third domain did
        not confirm the number, because it was not reached or was not told."""
        body = msgspec.json.encode(messages.PairRequest(third, number, plan))
        return await self._measured_there(messages.PAIR, body, plan)

    async def _measured_there(self, path: str, body: bytes, plan: ProbePlan) -> messages.ReverseAnswer | None:
        found = await self.call("POST", path, body, limit=100 + plan.idle_seconds)
        return _decoded(found, messages.ReverseAnswer)

    async def call(
        self, method: str, path: str, body: bytes | None = None, limit: float = _CALL_SECONDS
    ) -> CallOutcome:
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                async with self._session.request(
                    method,
                    path,
                    headers=self._headers,
                    data=BytesIO(body) if body else None,
                    allow_redirects=False,
                ) as answer:
                    content = await _bounded(answer)
        except _FAILURES as error:
            return CallOutcome(0, problem=_reason(error), seconds=time.monotonic() - began)
        problem = answer.headers.get(ERROR, "")
        if not problem and answer.status >= 400:
            problem = content[:200].decode("utf-8", "replace").strip()
        return CallOutcome(answer.status, content, problem, time.monotonic() - began)

    # Measurements.

    async def measure(self, plan: ProbePlan) -> LinkReport:
        report = await self._reach()
        if not report.endpoint:
            return report
        found = msgspec.structs.asdict(report)
        found |= await self._round_trips(report)
        if plan.grpc and report.endpoint == "coterie":
            found |= await self._grpc()
        if plan.buffering:
            found |= await self._chunks()
        if plan.body_bytes:
            found |= await self._bodies(report.endpoint == "coterie", plan.body_bytes)
        if plan.bandwidth_bytes:
            found |= await self._download(plan.bandwidth_bytes)
        if plan.idle_seconds:
            found |= await self._idle(plan.idle_seconds)
        return LinkReport(**found)

    async def _reach(self) -> LinkReport:
        hello = await self.call("GET", messages.HELLO)
        if (answer := _decoded(hello, messages.Hello)) is not None:
            return LinkReport(
                reached=True,
                endpoint="coterie",
                status=200,
                version=answer.version,
                protocol=answer.protocol,
                fingerprint=answer.fingerprint,
            )
        if hello.status == 404 and f"<{self._source}/" in hello.problem:
            return LinkReport(status=404, problem=hello.problem)  # our own gateway knows no way there
        if hello.status == 404:
            healthy = await self.call("GET", messages.HEALTHY)
            if healthy.status == 200:
                return LinkReport(reached=True, endpoint="kuscia", status=200)
        # 403 comes from behind the authentication of the destination's gateway; 404 from an endpoint or a Kuscia gateway.
        # A 503 that the destination's gateway has made has passed the link too: the endpoint behind it is down.
        its_own = hello.status == 503 and f"<{self._destination}/" in hello.problem
        reached = hello.status in (403, 404, 429) or its_own
        return LinkReport(reached=reached, status=hello.status, problem=hello.problem)

    async def _round_trips(self, report: LinkReport) -> dict[str, Any]:
        path = messages.HELLO if report.endpoint == "coterie" else messages.HEALTHY
        spent, offsets = [], []
        for _ in range(_ROUND_TRIPS):
            before = time.time()
            found = await self.call("GET", path)
            if found.status != 200:
                continue
            spent.append(found.seconds)
            if (answer := _decoded(found, messages.Hello)) is not None:
                offsets.append((found.seconds, answer.now - (before + found.seconds / 2)))
        return {
            "rtt_ms": statistics.median(spent) * 1000 if spent else None,
            "clock_offset": min(offsets)[1] if offsets else None,
        }

    async def _grpc(self) -> dict[str, Any]:
        """A call with a stream in both directions, as gRPC engines make them."""
        options = [("grpc.default_authority", self._host), ("grpc.enable_retries", 0)]
        async with grpc.aio.insecure_channel(f"unix:{self._gateway}", options=options) as channel:
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(messages.GRPC_METHOD)(
                timeout=_CALL_SECONDS
            )
            try:
                await call.write(b"one")
                answered = asyncio.ensure_future(call.read())
                done, _ = await asyncio.wait((answered,), timeout=_ECHO_SECONDS)
                await call.done_writing()
                echoed = await answered
                code = await call.code()
            except grpc.RpcError as error:
                return {"grpc": False, "grpc_problem": _grpc_reason(error)}
            except asyncio.InvalidStateError as error:
                return {"grpc": False, "grpc_problem": str(error)}
        if echoed is grpc.aio.EOF and code is grpc.StatusCode.OK:
            return {}  # the endpoint is busy
        if code is not grpc.StatusCode.OK or echoed != b"one":
            return {"grpc": False, "grpc_problem": f"the call ended with {code.name}"}
        return {"grpc": True, "grpc_streams": bool(done)}

    async def _chunks(self) -> dict[str, Any]:
        """Whether pieces of an answer arrive when they are sent."""
        interval = int(messages.CHUNK_SECONDS * 1000)
        asked = MockRequest(messages.CHUNKS * messages.CHUNK_BYTES, 0, True, messages.CHUNK_BYTES, interval)
        first = last = None
        try:
            async for _ in self._stream(asked, _CALL_SECONDS):
                last = time.monotonic()
                first = last if first is None else first
        except _FAILURES as error:
            return {"buffering_problem": _reason(error)}
        if first is None or last is None:
            return {"buffering_problem": "no chunk arrived"}
        return {"chunks_apart": last - first}

    async def _stream(self, asked: MockRequest, limit: float) -> AsyncIterator[bytes]:
        async with asyncio.timeout(limit):
            request = self._session.post(
                messages.MOCK, headers=self._headers, data=asked.encode(), allow_redirects=False
            )
            async with request as answer:
                if answer.status != 200:
                    raise aiohttp.ClientPayloadError(f"status {answer.status}")
                async for piece in answer.content.iter_any():
                    yield piece

    async def _bodies(self, own: bool, largest: int) -> dict[str, Any]:
        passed, refused, problem, rate = 0, 0, "", None
        for size in (*(each for each in _SIZES if each < largest), largest):
            if rate and size * 8 / rate > _SLOW_SECONDS:
                break
            found = await self._upload(size, own)
            if found.status != 200:
                refused, problem = size, _refusal(found)
                break
            passed, rate = size, size * 8 / max(found.seconds, 1e-6)
        if problem and found.status == 429:
            refused, problem = 0, ""  # our budget at the partner is used up, which says nothing of the link
        for _ in range(_NARROWING if refused else 0):
            size = (passed + refused) // 2
            found = await self._upload(size, own)
            if found.status == 200:
                passed = size
            else:
                refused = size
        return {
            "body_passed": passed,
            "body_refused": refused,
            "body_problem": problem,
            "sent_bits_per_second": rate,
        }

    async def _upload(self, size: int, own: bool) -> CallOutcome:
        body = bytes(size) if own else MockRequest().encode(bytes(size))
        found = await self.call("POST", messages.UPLOAD if own else messages.MOCK, body, _UPLOAD_SECONDS)
        if own and found.status == 200:
            counted = _decoded(found, messages.Upload)
            if counted is None or counted.bytes != size:
                return CallOutcome(0, problem="the body did not arrive whole")
            if counted.seconds > found.seconds / 4:
                return CallOutcome(200, seconds=counted.seconds)
        return found

    async def _download(self, size: int) -> dict[str, Any]:
        asked = MockRequest(size, 0, True, _PIECE, 0)
        got, since, measured = 0, 0.0, 0
        last = began = time.monotonic()
        try:
            async for piece in self._stream(asked, _RATE_SECONDS + _CALL_SECONDS):
                last = time.monotonic()
                got += len(piece)
                if not since and got >= min(_FIRST_RATE, size // 4):
                    since, measured = last, got
                if last - began > _RATE_SECONDS:
                    break
        except _FAILURES:
            pass  # what came until then counts
        # The slow beginning of a connection matters only where all is over soon; later bursts of proxies matter more.
        if since and last > since and got > measured and last - began < 1.0:
            return {"received_bits_per_second": (got - measured) * 8 / (last - since)}
        if got and last > began:
            return {"received_bits_per_second": got * 8 / (last - began)}
        return {}

    async def _idle(self, seconds: float) -> dict[str, Any]:
        asked = MockRequest(duration=int(seconds * 1000))
        found = await self.call("POST", messages.MOCK, asked.encode(), seconds + _CALL_SECONDS)
        if found.status == 200 and found.seconds >= seconds - 0.5:
            return {"idle_held": seconds}
        if found.status == 429:
            return {}
        return {"idle_cut": found.seconds, "idle_problem": _refusal(found)}


def _decoded(found: CallOutcome, kind: type[_Decoded]) -> _Decoded | None:
    if found.status != 200:
        return None
    try:
        return msgspec.json.decode(found.body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Of an answer that the partner may make as long as it likes."""
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > _LONGEST_ANSWER:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(content)


def _refusal(found: CallOutcome) -> str:
    if not found.status:
        return found.problem
    return f"status {found.status}" + (f": {found.problem}" if found.problem else "")


def _reason(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _grpc_reason(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
