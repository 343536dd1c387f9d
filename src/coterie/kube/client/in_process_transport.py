"""Calls the API server's handler directly: no socket, no TLS, no HTTP parsing.

A request made here carries its user with it, so the server skips authentication but still authorises. A watch's
stream writes into a `_Pipe`; bytes stay `pending` there until the reader takes them, so the server sees a slow reader
here exactly as it sees one behind a socket, and drops or waits for it by the same rule.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping

from coterie.base.lean_event import LeanEvent
from coterie.http.messages import Handler, Peer, Request, Response, Stream, UserInfo
from coterie.kube.client.transport import (
    Disconnected,
    LineSplitter,
    ResponseTimeout,
    TransportRequest,
    TransportResponse,
)

_LOW_WATER = 64 * 1024


class InProcessTransport:
    def __init__(self, handler: Handler, user: UserInfo, *, timeout: float | None = 30.0) -> None:
        self._handler = handler
        self._user = user
        self._timeout = timeout
        self._peer = Peer("in-process", encrypted=True)
        self._pipes: set[_Pipe] = set()
        self._closed = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        if self._closed:
            raise Disconnected("the transport is closed")
        request = Request(
            call.method, call.path, call.query, _lower(call.headers), call.body, peer=self._peer, user=self._user
        )
        # As behind a socket, a request is a point where others may run: a loop of requests that are all answered at
        # once would otherwise keep watches, and so the caches it looks at, from moving on. It must stand before the
        # call: an answered watch misses nothing only if its stream is opened at once.
        await asyncio.sleep(0)
        answer = self._handler(request)
        if inspect.isawaitable(answer):
            timeout = call.timeout if call.timeout is not None else self._timeout
            try:
                async with asyncio.timeout(timeout):
                    answer = await answer
            except TimeoutError as error:
                raise ResponseTimeout(f"{call.method} {call.path}: no answer within {timeout} s") from error
        return await self._reply(call, answer)

    async def _reply(self, call: TransportRequest, response: Response) -> TransportResponse:
        headers = {name.lower(): value for name, value in response.headers}
        headers.setdefault("content-type", response.content_type)
        if response.stream is None:
            if call.stream and response.status < 300:
                return TransportResponse(response.status, headers, lines=_Finished(response.body))
            return TransportResponse(response.status, headers, response.body)
        pipe = _Pipe(response.stream, self._pipes)
        self._pipes.add(pipe)
        response.stream.opened(pipe)
        reader = _Reader(pipe)
        if call.stream and response.status < 300:
            return TransportResponse(response.status, headers, lines=reader)
        try:
            return TransportResponse(response.status, headers, await reader.read_all())
        finally:
            pipe.close()

    async def close(self) -> None:
        self._closed = True
        for pipe in tuple(self._pipes):
            pipe.abort()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class _Finished:
    """A stream that was complete when it came."""

    def __init__(self, body: bytes) -> None:
        self._lines = [line for line in body.split(b"\n") if line]

    async def read(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines

    async def close(self) -> None:
        self._lines = []


class _Pipe:
    """The server's `Sink`: holds what was written until the reader takes it."""

    def __init__(self, stream: Stream, siblings: set[_Pipe]) -> None:
        self._stream = stream
        self._siblings = siblings
        self._chunks: list[bytes] = []
        self._taken: asyncio.Event | None = None
        """While somebody waits in `drain`: few ever do, and an event is larger than the rest of a pipe."""
        self.pending = 0
        self.readable = LeanEvent()
        self.ended = False
        self.broken = False

    def write(self, chunk: bytes) -> None:
        if self.ended or not chunk:
            return
        self._chunks.append(chunk)
        self.pending += len(chunk)
        self.readable.set()

    async def drain(self) -> None:
        while self.pending > _LOW_WATER and not self.ended:
            if self._taken is None:
                self._taken = asyncio.Event()
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.readable.set()
        if self._taken is not None:
            self._taken.set()
        self._siblings.discard(self)
        self._stream.closed()

    def abort(self) -> None:
        self.broken = self.broken or not self.ended
        self.close()

    def take(self) -> bytes:
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self.pending = 0
        if self._taken is not None:
            self._taken.set()
        if not self.ended:
            self.readable.clear()
        return data


class _Reader:
    """The client's end of a pipe."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._splitter = LineSplitter()

    async def read(self) -> list[bytes]:
        pipe = self._pipe
        while True:
            if pipe.pending:
                lines = self._splitter.feed(pipe.take())
                if lines:
                    return lines
            elif pipe.broken:
                raise Disconnected("the server broke the stream off")
            elif pipe.ended:
                rest = self._splitter.rest()
                return [rest] if rest else []
            else:
                await pipe.readable.wait()

    async def read_all(self) -> bytes:
        parts: list[bytes] = []
        while not self._pipe.ended:
            await self._pipe.readable.wait()
            parts.append(self._pipe.take())
        parts.append(self._pipe.take())
        if self._pipe.broken:
            raise Disconnected("the server broke the stream off")
        return b"".join(parts)

    async def close(self) -> None:
        self._pipe.close()
