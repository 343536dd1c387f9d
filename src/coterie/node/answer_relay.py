"""Copies the answer of another API server to a caller, also one without end (a watch, a followed log)."""

from __future__ import annotations

import asyncio
import contextlib

from coterie.base.log import logger
from coterie.http import plain_client
from coterie.http.messages import Sink
from coterie.http.server import Tasks

log = logger("node.api")


class AnswerRelay:
    """Copies the body of the control plane's answer, also of one without end."""

    def __init__(self, answer: plain_client.PlainResponse, tasks: Tasks) -> None:
        self._answer = answer
        self._tasks = tasks
        self._copying: asyncio.Task[None] | None = None

    def opened(self, sink: Sink) -> None:
        self._copying = self._tasks.create_task(self._copy(sink), name="relayed answer")

    def closed(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
        self._answer.close()

    async def _copy(self, sink: Sink) -> None:
        try:
            while data := await self._answer.chunk():
                sink.write(data)
                await sink.drain()
        except (plain_client.Broken, OSError) as problem:
            log.debug("An answer of the control plane broke off", error=problem)
            self._copying = None
            with contextlib.suppress(OSError):
                sink.abort()
            return
        self._copying = None
        sink.close()
