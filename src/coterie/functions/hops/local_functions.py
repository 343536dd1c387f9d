"""What calls between domains need of the rest of the functions process: the dispatcher and the controller."""

from __future__ import annotations

from typing import Protocol

from coterie.functions.bus.protocol import Position
from coterie.functions.messages import FunctionResponse


class LocalFunctions(Protocol):
    """None of these waits."""

    def wanted(self, pool: str, calls_per_minute: int) -> None:
        """Calls of a partner are coming, about so many a minute: an actor should start now, and for a minute there should be enough for that rate."""

    def has_room(self, pool: str, size: int) -> bool:
        """Whether another call, of so many bytes, may wait: what waits is bounded."""

    def added(self, pool: str, size: int) -> None:
        """Such a call is on the bus."""

    def version(self, pool: str, request_uid: str) -> str:
        """Of the code that is to run a request; empty: any."""

    def expected_calls(self, source: str, target: str) -> int:
        """How many calls a minute an action of ours (`source`) is likely to send to a partner's (`target`)."""

    def result_published(self, response: FunctionResponse, position: Position) -> None:
        """A request of ours has an answer, at this place of the results."""
