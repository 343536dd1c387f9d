"""What a controller counts, as rows for Prometheus."""

from __future__ import annotations

import asyncio

from coterie.base.clock import VirtualClock
from coterie.base.exposition import render
from coterie.kube.api.errors import Conflict
from coterie.kube.control.controller import Controller
from coterie.kube.control.controller_metrics import RUNNING, ControllerMetrics
from coterie.kube.control.queue import MAX_REQUEUE_ROWS, WorkQueue


async def test_rows_of_a_running_controller() -> None:
    clock = VirtualClock()

    async def reconcile(key: str) -> None:
        if key == "conflict":
            raise Conflict("changed")
        if key == "bad":
            raise ValueError("no")

    controller: Controller[str] = Controller("sample", reconcile, [], workers=1, clock=clock)
    source = ControllerMetrics()
    assert source.find("sample") is None
    running = asyncio.create_task(controller.run())
    await controller.ready.wait()
    for key in ("good", "bad", "conflict"):
        controller.enqueue(key)
    while controller.queue.counters.done < 3:
        await asyncio.sleep(0)
    page = render(await source.families()).splitlines()
    assert source.find("sample") is controller
    for line in (
        'coterie_queue_depth{controller="sample"} 0',
        'coterie_queue_delayed{controller="sample"} 2',
        'coterie_queue_retries_total{controller="sample"} 2',
        'coterie_reconcile_seconds_bucket{controller="sample",le="+Inf"} 3',
        'coterie_reconcile_seconds_count{controller="sample"} 3',
        'coterie_reconcile_errors_total{controller="sample"} 1',
        'coterie_reconcile_conflicts_total{controller="sample"} 1',
    ):
        assert line in page
    controller.stop()
    await running
    assert controller not in RUNNING


def test_retries_are_counted_for_a_bounded_number_of_keys() -> None:
    queue: WorkQueue[int] = WorkQueue(clock=VirtualClock())
    for key in range(MAX_REQUEUE_ROWS + 1):
        queue.retry(key)
    queue.retry(7)
    assert len(queue.requeues) == MAX_REQUEUE_ROWS
    assert 0 not in queue.requeues, "the oldest is dropped"
    assert queue.requeues[7] == 2
