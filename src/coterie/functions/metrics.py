"""What the functions process counts, by action."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.base.exposition import Family, Row, labels
from coterie.functions.messages import CallRecord
from coterie.functions.model import ActionLoad

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MAX_ACTIONS = 500


@dataclass(slots=True)
class _ActionCounts:
    calls: int = 0
    errors: int = 0
    cold_starts: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


class FunctionsMetrics:
    def __init__(self) -> None:
        self._actions: dict[str, _ActionCounts] = {}

    def _of(self, action: str) -> _ActionCounts:
        if action not in self._actions and len(self._actions) >= _MAX_ACTIONS:
            action = "other"
        return self._actions.setdefault(action, _ActionCounts())

    def ended(self, record: CallRecord) -> None:
        found, seconds = self._of(record.action), record.milliseconds / 1000
        found.calls += 1
        found.errors += record.error
        found.cold_starts += record.cold
        found.seconds += seconds
        found.buckets[bisect_left(BUCKETS, seconds)] += 1

    def gave_up(self, action: str) -> None:
        self._of(action).dead_letters += 1

    def families(
        self, loads: Mapping[str, ActionLoad], desired: Mapping[str, int], ready: Mapping[str, int], spares: int
    ) -> Sequence[Family]:
        counts = [(labels(action=name), each) for name, each in sorted(self._actions.items())]
        waiting = [(labels(action=name), each) for name, each in sorted(loads.items())]
        return [
            Family(
                "coterie_function_calls_total",
                "Calls that ended.",
                "counter",
                [(row, each.calls) for row, each in counts],
            ),
            Family(
                "coterie_function_errors_total",
                "Calls that ended with an error of the code or of its actor.",
                "counter",
                [(row, each.errors) for row, each in counts],
            ),
            Family(
                "coterie_function_cold_starts_total",
                "Calls that came when no actor was ready.",
                "counter",
                [(row, each.cold_starts) for row, each in counts],
            ),
            Family(
                "coterie_function_given_up_total",
                "Calls that became dead letters.",
                "counter",
                [(row, each.dead_letters) for row, each in counts],
            ),
            Family(
                "coterie_function_duration_seconds",
                "How long calls ran in their actors.",
                "histogram",
                [row for where, each in counts for row in _histogram(where, each)],
            ),
            Family(
                "coterie_function_waiting_calls",
                "Calls that wait or run.",
                "gauge",
                [(row, each.lag) for row, each in waiting],
            ),
            Family(
                "coterie_function_dead_letters",
                "Calls on the dead letter topic.",
                "gauge",
                [(row, each.dead_letters) for row, each in waiting],
            ),
            Family("coterie_function_desired_actors", "Actors that should run.", "gauge", _gauge(desired)),
            Family("coterie_function_ready_actors", "Actors that take calls.", "gauge", _gauge(ready)),
            Family("coterie_function_spare_actors", "Actors that wait for an action.", "gauge", [("", spares)]),
        ]


def _gauge(values: Mapping[str, int]) -> list[Row]:
    return [(labels(action=name), value) for name, value in sorted(values.items())]


def _histogram(where: str, counts: _ActionCounts) -> list[Row]:
    rows: list[Row] = []
    below = 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts.buckets, strict=True):
        below += count
        rows.append((f'_bucket {where},le="{bound}"', below))
    return [*rows, (f"_sum {where}", counts.seconds), (f"_count {where}", counts.calls)]
