"""Controllers and their work queues as families for Prometheus.

Controller.run ──adds itself──> RUNNING ──on a scrape──> rows, labelled with the controller's name
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.exposition import Family, Row, labels

if TYPE_CHECKING:
    from coterie.kube.control.controller import Controller

RUNNING: list[Controller[Any]] = []
"""The controllers that run in this process. A process is one node; many controllers are made inside of other parts, so no
part of the node knows all of them."""


class ControllerMetrics:
    """A source of metrics. Controllers that were not needed yet do not run, and have no rows."""

    name = "controllers"

    def __init__(self, running: Sequence[Controller[Any]] = RUNNING) -> None:
        self._running = running

    def find(self, name: str) -> Controller[Any] | None:
        """The controller of this name that runs."""
        return next((each for each in self._running if each.name == name), None)

    async def families(self) -> Sequence[Family]:
        found = [(labels(controller=each.name), each) for each in self._running]

        def rows(value: Callable[[Controller[Any]], float]) -> list[Row]:
            return [(where, value(each)) for where, each in found]

        return [
            Family("coterie_queue_depth", "Keys that wait in a work queue.", "gauge", rows(lambda c: len(c.queue))),
            Family(
                "coterie_queue_delayed",
                "Keys that come back at a later time.",
                "gauge",
                rows(lambda c: c.queue.delayed),
            ),
            Family(
                "coterie_queue_oldest_seconds",
                "Time since the longest-running reconcile began; 0 when none runs.",
                "gauge",
                rows(lambda c: c.queue.oldest_work()),
            ),
            Family("coterie_queue_adds_total", "Keys that entered.", "counter", rows(lambda c: c.queue.counters.adds)),
            Family(
                "coterie_queue_retries_total",
                "Keys that were tried again after a failure.",
                "counter",
                rows(lambda c: c.queue.counters.retries),
            ),
            Family(
                "coterie_queue_wait_seconds_total",
                "Time that keys spent waiting.",
                "counter",
                rows(lambda c: c.queue.counters.waited),
            ),
            Family(
                "coterie_reconcile_seconds",
                "Duration of reconciles.",
                "histogram",
                [row for where, each in found for row in each.queue.durations.rows(where)],
            ),
            Family(
                "coterie_reconcile_errors_total",
                "Reconciles that failed, conflicts left out.",
                "counter",
                rows(lambda c: c.counters.failed - c.counters.conflicts),
            ),
            Family(
                "coterie_reconcile_conflicts_total",
                "Reconciles that met an object that had changed meanwhile.",
                "counter",
                rows(lambda c: c.counters.conflicts),
            ),
        ]
