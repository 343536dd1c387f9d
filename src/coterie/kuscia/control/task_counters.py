"""Counts of stalled tasks and of retries, as a source of metrics. Incremented by the controllers of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coterie.base.exposition import Family


@dataclass(slots=True)
class TaskCounters:
    """A source of metrics."""

    stalls: int = 0
    """Times that a task became Stalled."""
    stall_failures: int = 0
    """Tasks that were ended because they were Stalled."""
    retries: int = 0
    """Attempts that failed and were followed by another."""

    @property
    def name(self) -> str:
        return "task_counters"

    async def families(self) -> Sequence[Family]:
        return [
            Family("coterie_task_stalls_total", "Times that a task became stalled.", "counter", [("", self.stalls)]),
            Family(
                "coterie_task_stall_failures_total",
                "Tasks that were ended because they were stalled.",
                "counter",
                [("", self.stall_failures)],
            ),
            Family("coterie_task_retries_total", "Failed tasks begun again.", "counter", [("", self.retries)]),
        ]


TASK_COUNTERS: Final = TaskCounters()
