"""The evidence log while this member of a control plane leads: opened before what must be recorded, handed over after it."""

from __future__ import annotations

import asyncio

from coterie.base.tasks import TaskOwner
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.evidence.shared_log import SharedEvidence


class SharedLogTerm:
    """A Runnable of one term."""

    name = "evidence-log"

    def __init__(self, service: EvidenceService, shared: SharedEvidence) -> None:
        self.ready = asyncio.Event()
        self._service = service
        self._shared = shared
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        try:
            await self._service.take()
            self.ready.set()
            async with TaskOwner(self.name) as owner:
                owner.start("requests", self._shared.serve(self._service.record), endless=True)
                await self._stop.wait()
        finally:
            await self._service.hand_over()
