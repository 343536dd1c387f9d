"""Answers that carry a large message: piece by piece at the speed of whoever reads them, so that no copy of it is made.

queue ──> TakenMessage ──> head │ pieces of the message │ tail ──> reader
                             └ the reader leaves before the end: the message is the oldest of its queue again
"""

from __future__ import annotations

from coterie.http.messages import Response, Stream
from coterie.http.server import Tasks
from coterie.http.streamed_body import StreamedBody, TruncatedBody
from coterie.kuscia.transport.outbound import Framing
from coterie.kuscia.transport.queues import TakenMessage

PIECE = 256 << 10
"""Bytes that are sent at a time, and from which on an answer is not made as a whole."""


class MessagePieces:
    """ByteChunks."""

    def __init__(self, taken: TakenMessage, framing: Framing) -> None:
        self._taken = taken
        self._framing = framing
        self._at = -1
        """How much of the message was given; -1: not even the head."""

    def __aiter__(self) -> MessagePieces:
        return self

    async def __anext__(self) -> bytes:
        if self._at < 0:
            self._at = 0
            return self._framing.head
        if self._at < self._taken.size:
            start, self._at = self._at, min(self._at + PIECE, self._taken.size)
            try:
                piece = await self._taken.piece(start, self._at - start)
            except OSError as problem:
                raise TruncatedBody(f"the message could not be read: {problem}") from problem
            return piece if self._at < self._taken.size else piece + self._framing.tail
        self._taken.finish()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._taken.give_back()  # unless it was handed over


def response(taken: TakenMessage, framing: Framing, content_type: str, tasks: Tasks) -> Response:
    """Its headers are the caller's to add."""
    stream: Stream = StreamedBody(MessagePieces(taken, framing), tasks, "transport answer")
    size = len(framing.head) + taken.size + len(framing.tail)
    return Response(stream=stream, stream_length=size, content_type=content_type)
