"""A gRPC method that sends every message back at once: shows whether HTTP/2, its trailers and open streams pass a link.

It runs on the HTTP/2 server of body encryption, which does not read header blocks; the limits are therefore those of all
partners together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.kuscia.gateway.crypt.http2 import GrpcCallHandler, GrpcConnection

MOST_STREAMS = 64
MOST_BYTES = 64 << 10
"""Of one call."""
_MESSAGE_COST = 256
"""Bytes that a message counts for besides its content: an empty one is work too."""


class EchoCall:
    def __init__(self, allowed: bool) -> None:
        self._left = MOST_BYTES if allowed else 0

    def __call__(self, message: memoryview) -> list[bytes]:
        """ValueError ends a call that goes on after its limit."""
        self._left -= len(message) + _MESSAGE_COST
        if self._left < -MOST_BYTES:
            raise ValueError("the call is too long")
        return [bytes(message)] if self._left >= 0 else []


class EchoConnection(GrpcConnection):
    def __init__(self, admits: Callable[[], bool], connections: set[GrpcConnection]) -> None:
        super().__init__(self._echo, connections)
        self._admits = admits

    def _echo(self) -> GrpcCallHandler:
        return EchoCall(len(self._streams) < MOST_STREAMS and self._admits())

    def _headers(self, flags: int, number: int) -> None:
        super()._headers(flags, number)
        stream = self._streams.get(number)
        if stream is not None and len(self._streams) > MOST_STREAMS:
            self._reset(stream)

    def _messages(self, stream: Any, content: memoryview) -> None:
        # Without a line in the log: a partner would choose how many.
        if len(stream.held) + len(content) > 2 * MOST_BYTES:
            self._reset(stream)
            return
        try:
            super()._messages(stream, content)
        except ValueError:
            self._reset(stream)
