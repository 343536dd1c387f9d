"""The child's listeners: one socket for what the gateway lets partners send, one for our own engines.

gateway ──> partners' socket   invoke, transport     the caller is who the gateway found out (`Kuscia-Source`)
        ──> engines' socket    pop, peek, release    an engine of the task of the session it names: the gateway knows it by its
                                                     address and lets each use the sessions of its own task only
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.exposition import Family
from coterie.base.tasks import TaskOwner
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer, HttpShares
from coterie.kube.client.transport import TransportError
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.calls import SESSION, PartiesOf, TransportCaller, TransportCalls
from coterie.kuscia.transport.metrics import TransportMetrics
from coterie.kuscia.transport.outbound import CONTENT_TYPE, Outbound, TransportCode, TransportRefused
from coterie.kuscia.transport.queues import MessageQueues, task_of_session
from coterie.kuscia.transport.settings import ENGINES, PARTNERS, QueueLimits

_SOURCE = "kuscia-source"
"""Set by our gateway, whatever a partner wrote into it."""
_CALL_SECONDS, _IDLE_SECONDS = 300.0, 3600.0
"""Only our own gateway connects; connections that it keeps are not closed under its hands."""

_REQUESTS_OF_ONE = 512
"""An eighth of what the gateway lets through at once (`_TRANSPORT_CALLS` there), for each partner and for each task."""

NotifyUse = Callable[[], Awaitable[None]]
"""Tells the node that we are needed. Raises TransportError."""


class TransportServer:
    """`async with`; then `report_use` for as long as it serves."""

    def __init__(
        self,
        domain: str,
        limits: QueueLimits,
        directory: Path,
        parties_of: PartiesOf,
        clock: Clock,
        notify_use: NotifyUse,
        interval: float,
    ) -> None:
        """`interval`: how often the node wants to hear that we are needed."""
        self._domain = domain
        self._clock = clock
        self._notify_use = notify_use
        self._interval = interval
        self._notified: float | None = None
        self._answered = 0
        self.stopping = False
        self.metrics = TransportMetrics()
        self.queues = MessageQueues(limits, clock, directory)
        self._servers = {
            name: HttpServer(
                TransportCalls(self.queues, recognise, parties_of, self.metrics, self._before_push).handle,
                limits=_http_limits(limits),
                problem_response=problem_response,
                shares=HttpShares(caller_of, _REQUESTS_OF_ONE, _bodies_in_flight(limits) // 2),
                cancels=True,
            )
            for name, recognise, caller_of in (
                (PARTNERS, self._partner, _partner_of),
                (ENGINES, self._engine, _task_of),
            )
        }

    async def serve(self, listeners: Mapping[str, socket.socket]) -> None:
        for name, server in self._servers.items():
            await server.serve(listeners[name])

    async def stop(self) -> None:
        self.stopping = True
        self.queues.close()
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def run(self) -> None:
        """Ends sessions that nobody uses and tells the node that we are needed; until cancelled."""
        async with TaskOwner("transport") as owner:
            owner.start("clean", self.queues.clean(), endless=True)
            owner.start("use", self._report_use(), endless=True)
            await owner.wait()

    def families(self) -> Sequence[Family]:
        return self.metrics.families(self.queues.sessions, self.queues.size, self.queues.in_memory)

    # Who calls.

    async def _partner(self, request: Request) -> TransportCaller | None:
        source = _partner_of(request.headers)
        return TransportCaller(source) if source else None

    async def _engine(self, request: Request) -> TransportCaller | None:
        task = _task_of(request.headers)
        return TransportCaller(self._domain, task) if task else None

    # Whether we are needed.

    async def _before_push(self) -> None:
        """A message that was taken in is not lost because the node thinks that nobody needs us."""
        if self._notified is None or self._clock.monotonic() - self._notified >= self._interval:
            try:
                await self._tell()
            except TransportError as problem:
                raise TransportRefused(TransportCode.UNAVAILABLE, "the node ends or begins; try again") from problem
        if self.stopping:
            raise TransportRefused(TransportCode.UNAVAILABLE, "the message queue ends; try again")

    async def _report_use(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            answered = self.metrics.answered
            if self.metrics.running or answered != self._answered or not self.queues.unused:
                self._answered = answered
                with contextlib.suppress(TransportError):  # the node hears of it the next time
                    await self._tell()

    async def _tell(self) -> None:
        await self._notify_use()
        self._notified = self._clock.monotonic()


def _partner_of(headers: Mapping[str, str]) -> str:
    return headers.get(_SOURCE, "")


def _task_of(headers: Mapping[str, str]) -> str:
    return task_of_session(headers.get(SESSION, "").strip())


def _bodies_in_flight(limits: QueueLimits) -> int:
    """Of messages that arrive or wait for room. One partner, and one task, has half of it."""
    return max(limits.memory, 4 * limits.body)


def _http_limits(limits: QueueLimits) -> HttpLimits:
    return HttpLimits(
        max_body=limits.body,
        max_body_in_flight=_bodies_in_flight(limits),
        body_timeout=_CALL_SECONDS,
        write_timeout=_CALL_SECONDS,
        idle_timeout=_IDLE_SECONDS,
    )


def problem_response(problem: HttpProblem) -> Response:
    """Of requests that never reach a queue: in the form of all answers."""
    codes = {413: TransportCode.TOO_LARGE, 429: TransportCode.BUFFER_FULL, 503: TransportCode.BUFFER_FULL}
    usual = TransportCode.SERVER_ERROR if problem.status >= 500 else TransportCode.BAD_REQUEST
    answer = Outbound(b"", codes.get(problem.status, usual), problem.message)
    return Response(body=outbound.encode(answer), content_type=CONTENT_TYPE)
