"""What a follower of objects found, until the log has it.

objects ─▶ the follower: which events ─▶ add() ─▶ queue ─▶ write() ─▶ the log

The log may be unusable for a while; nothing is lost meanwhile, for objects keep what happened.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kuscia.api.evidence import EventRequest, EvidenceError
from coterie.kuscia.evidence.service import EvidenceService

log = logger("evidence")

_BACKOFF = Policy(first=0.5, factor=2.0, limit=30.0)
_MOST_AT_ONCE = 64


class QueuedRecorder(ABC):
    """A Runnable: after the log and the informers."""

    name: str

    def __init__(self, service: EvidenceService, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._service = service
        self._clock = clock
        self._waiting: deque[EventRequest] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    @abstractmethod
    async def begin(self) -> None:
        """Called once the log is there: follow the objects."""

    @abstractmethod
    async def write(self, batch: Sequence[EventRequest]) -> None:
        """Raises EvidenceError while the log takes nothing; called again with the same then."""

    def add(self, found: Iterable[EventRequest]) -> None:
        self._waiting.extend(found)
        if self._waiting:
            self._wake.set()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        async with TaskOwner(self.name) as owner:
            owner.start("writer", self._write_all(), endless=True)
            await self._stop.wait()

    async def _write_all(self) -> None:
        backoff = Backoff(_BACKOFF)
        while self._service.log is None:
            await self._clock.sleep(backoff.failed())
        await self.begin()
        backoff = Backoff(_BACKOFF)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting[index] for index in range(min(_MOST_AT_ONCE, len(self._waiting)))]
                try:
                    await self.write(batch)
                except EvidenceError as problem:
                    log.error(
                        "Events cannot be recorded yet", part=self.name, error=problem, waiting=len(self._waiting)
                    )
                    await self._clock.sleep(backoff.failed())
                    continue
                backoff = Backoff(_BACKOFF)
                for _ in batch:
                    self._waiting.popleft()
