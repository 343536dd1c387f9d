"""Tickets: what was asked and allowed in GetFlightInfo, kept until DoGet or DoPut brings it. Each is its asker's
alone."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.base.clock import Clock
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.errors import MeshError, MeshErrorCode

LIFE = 600.0
_MOST = 20_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    what: T
    uid: str
    ends: float


class Tickets(Generic[T]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept[T]] = {}

    def __len__(self) -> int:
        self._sweep()
        return len(self._kept)

    def issue(self, caller: EngineCaller, what: T) -> bytes:
        self._sweep()
        if len(self._kept) >= _MOST:
            self._kept.pop(next(iter(self._kept)))
        name = str(uuid.uuid4())
        self._kept[name] = _Kept(what, caller.uid, self._clock.monotonic() + LIFE)
        return name.encode()

    def redeem(self, caller: EngineCaller, ticket: bytes) -> T:
        """May be done again until it ends. Raises MeshProblem; somebody else's ticket is like one that never was."""
        found = self._kept.get(ticket.decode("ascii", "replace"))
        if found is None or found.ends <= self._clock.monotonic() or found.uid != caller.uid:
            raise MeshError(
                MeshErrorCode.INVALID, "the ticket is unknown or older than ten minutes; call GetFlightInfo again"
            )
        return found.what

    def _sweep(self) -> None:
        """They all live equally long, so the oldest stand first."""
        now = self._clock.monotonic()
        while self._kept and (oldest := next(iter(self._kept))) and self._kept[oldest].ends <= now:
            del self._kept[oldest]
