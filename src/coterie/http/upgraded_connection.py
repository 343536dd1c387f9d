"""A connection after its upgrade: bytes to read and to write, each side at the pace of the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.http.messages import TunnelSink

log = logger("agent.server")
_HIGH_WATER = 512 * 1024


class UpgradedConnection:
    """A `Tunnel` that runs `serve` as a task of its own once the connection is handed over."""

    def __init__(self, owner: TaskOwner, name: str, serve: Callable[[UpgradedConnection], Awaitable[None]]) -> None:
        self._owner = owner
        self._name = name
        self._serve = serve
        self._sink: TunnelSink | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._received_event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- called by the connection -------------------------------------------------------------------------------

    def opened(self, sink: TunnelSink) -> None:
        self._sink = sink
        self._task = self._owner.start(self._name, self._run(), vital=False)

    def received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        self._received_event.set()
        if self._size > _HIGH_WATER and self._sink is not None:
            self._sink.pause()

    def closed(self) -> None:
        self._ended = True
        self._sink = None
        self._received_event.set()

    # -- called by whoever serves -------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """The next bytes; empty when the other side is gone."""
        while not self._chunks:
            if self._ended:
                return b""
            self._received_event.clear()
            await self._received_event.wait()
        data = self._chunks.popleft()
        before, self._size = self._size, self._size - len(data)
        if before > _HIGH_WATER >= self._size and self._sink is not None:
            self._sink.resume()
        return data

    def write(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.write(data)

    async def drain(self) -> None:
        """Wait until the other side keeps up. Raises ConnectionResetError when it is gone."""
        if self._sink is None:
            raise ConnectionResetError("the client went away")
        await self._sink.drain()

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def abort(self) -> None:
        """Without waiting until the other side has taken what was written."""
        if self._sink is not None:
            self._sink.abort()

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except (ConnectionError, EOFError) as problem:
            log.debug("Stream aborted", stream=self._name, error=str(problem))
        finally:
            self.close()
