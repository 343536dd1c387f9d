"""A fake server is a function: `TransportRequest -> TransportResponse`. For tests of whatever stands on the client.

transport = FakeTransport(lambda call: json_reply({"kind": "Pod", ...}))
stream = FakeStream();  stream.send({"type": "ADDED", "object": pod});  stream.end()
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from coterie.kube.api.errors import ApiError
from coterie.kube.client.transport import Disconnected, TransportError, TransportRequest, TransportResponse

Answer = TransportResponse | Awaitable[TransportResponse]


class FakeTransport:
    """Remembers the calls; an `ApiError` raised by the function becomes the `Status` a server would send."""

    def __init__(self, answer: Callable[[TransportRequest], Answer]) -> None:
        self._answer = answer
        self.calls: list[TransportRequest] = []
        self.closed = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.calls.append(call)
        try:
            reply = self._answer(call)
            return await reply if inspect.isawaitable(reply) else reply
        except ApiError as error:
            return json_reply(error.status(), error.code)

    async def close(self) -> None:
        self.closed = True

    @property
    def requests(self) -> list[str]:
        """`GET /api/v1/pods?limit=500` for each call so far."""
        return [f"{c.method} {c.path}" + (f"?{c.query}" if c.query else "") for c in self.calls]


def script(*replies: TransportResponse | ApiError | TransportError) -> Callable[[TransportRequest], TransportResponse]:
    """Answers one after the other; a call too many is an error of the test."""
    waiting = list(replies)

    def answer(call: TransportRequest) -> TransportResponse:
        if not waiting:
            raise AssertionError(f"no answer left for {call.method} {call.path}?{call.query}")
        reply = waiting.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return answer


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> TransportResponse:
    return TransportResponse(status, {"content-type": "application/json", **(headers or {})}, orjson.dumps(value))


def stream_reply(stream: FakeStream) -> TransportResponse:
    return TransportResponse(200, {"content-type": "application/json"}, lines=stream)


class FakeStream:
    """A watch whose events a test sends when it likes."""

    def __init__(self, events: Sequence[Any] = ()) -> None:
        self._lines: list[bytes] = [orjson.dumps(event) for event in events]
        self._changed = asyncio.Event()
        self._ended = False
        self._error: TransportError | None = None
        self.closed = False

    def send(self, *events: Any) -> None:
        self._lines.extend(orjson.dumps(event) for event in events)
        self._changed.set()

    def end(self) -> FakeStream:
        self._ended = True
        self._changed.set()
        return self

    def fail(self, error: TransportError | None = None) -> None:
        self._error = error or Disconnected("the test cut the connection")
        self._changed.set()

    async def read(self) -> list[bytes]:
        while not (self._lines or self._ended or self._error or self.closed):
            self._changed.clear()
            await self._changed.wait()
        if self._lines:
            lines, self._lines = self._lines, []
            return lines
        if self._error:
            raise self._error
        return []

    async def close(self) -> None:
        self.closed = True
        self._changed.set()
