"""How parts of a node write evidence: in its own process, or from a child over a private socket (`kuscia/evidence` is the log)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import msgspec

from coterie.http.plain_client import HttpFailure, Pool
from coterie.kuscia.api.evidence import EventRequest, EvidenceError

RECORD_PATH = "/record"
_SECONDS = 20.0
_ANSWER_LIMIT = 4096


class EvidenceRecorder(Protocol):
    async def record(self, *requests: EventRequest) -> None:
        """On disk when it returns; only then may happen what they record. Raises EvidenceError."""


class EvidenceSocket:
    """The end of a child."""

    def __init__(self, path: Path) -> None:
        self._pool = Pool(path)

    async def record(self, *requests: EventRequest) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                answer = await self._pool.request(
                    "POST", RECORD_PATH, {"host": "evidence"}, msgspec.json.encode(requests)
                )
                content = await answer.read(_ANSWER_LIMIT)
        except (OSError, HttpFailure) as problem:
            raise EvidenceError(f"the evidence log cannot be reached: {problem}") from problem
        if answer.status != 200:
            raise EvidenceError(content.decode(errors="replace"))

    async def close(self) -> None:
        await self._pool.close()
