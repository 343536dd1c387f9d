"""An action that the dispatcher serves, with its topic and what reads it; limits and callbacks of a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.tasks import TaskOwner
from coterie.functions.dispatcher.dead_letters import DeadCall
from coterie.functions.dispatcher.lane import ActionLane
from coterie.functions.dispatcher.load import LoadCounter
from coterie.functions.dispatcher.output_writer import PartitionOf
from coterie.functions.messages import CallRecord, Invoke, payload_size
from coterie.functions.model import ActionConfig, ActorAddress


@dataclass(frozen=True, slots=True)
class DispatcherLimits:
    max_answer: int = 6 << 20
    """Bytes of an answer, and of the body of a call to the next action."""
    max_stream: int = 64 << 20
    """Bytes of a streamed answer."""
    max_waiting: int = 50_000
    """Calls of one action that wait."""
    max_waiting_bytes: int = 1 << 30
    """Of all actions together."""
    max_dead_letters: int = 10_000
    """Of one action. Calls that are given up when there are so many are answered and not kept."""
    max_dead_letter_bytes: int = 256 << 20
    max_results: int = 1_000_000
    max_result_bytes: int = 1 << 30


async def _unknown() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class DispatcherEvents:
    """Called in the event loop; they must not block."""

    wanted: Callable[[str, str], None] = lambda action, version: None
    """A call waits and no actor of this version (empty: any) has a free place."""
    stuck: Callable[[ActorAddress], None] = lambda actor: None
    """It exceeded the action's timeout and gets no more calls: its pod has to be replaced."""
    dead_letter: Callable[[DeadCall], None] = lambda letter: None
    ended: Callable[[CallRecord, Invoke], None] = lambda record, invoke: None
    """A call is done, and what it led to is on the bus."""
    why_ended: Callable[[ActorAddress, float], Awaitable[str]] = lambda actor, seconds: _unknown()
    """Why an actor that broke off a call ended, as soon as its pod says so and within so many seconds; empty: not known."""


class ServedAction:
    """An action with its topic and what reads it."""

    def __init__(self, config: ActionConfig, counter: LoadCounter) -> None:
        self.lane = ActionLane(config)
        self.counter = counter
        self.partitions: list[PartitionOf] = []
        self.ends: Mapping[int, int] = {}
        """What is known of the ends of partitions."""
        self.waiting = 0
        """Calls that were sent here since the start, by others than actions, and are not done."""
        self.waiting_bytes = 0
        self.dead_letter_bytes = 0
        self.opened = asyncio.Event()
        """Its topic is there, and it is known which calls it holds."""
        self.room = asyncio.Event()
        self.begun = False
        self.removed = False
        """Nothing more is begun; what waits is answered by whoever removes it."""
        self.ends_asked = 0.0
        self.tasks: TaskOwner | None = None

    @property
    def lag(self) -> int:
        lag = 0
        for partition in self.partitions:
            progress = partition.progress
            lag += progress.unfinished + max(0, self.ends.get(partition.number, 0) - progress.position)
        return lag

    def done(self, invoke: Invoke) -> None:
        """The call does not wait any more."""
        if not invoke.source:
            self.waiting = max(0, self.waiting - 1)
            self.waiting_bytes = max(0, self.waiting_bytes - payload_size(invoke))

    def start(self, name: str, work: Coroutine[Any, Any, Any], *, vital: bool = True) -> asyncio.Task[Any]:
        assert self.tasks is not None, "an action is read by its tasks"
        return self.tasks.start(name, work, vital=vital)
