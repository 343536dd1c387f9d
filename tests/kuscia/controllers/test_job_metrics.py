"""Jobs and tasks as metrics: Kuscia's names, phases, and how long tasks stay in each stage."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from job_world import JOB, JOB_PLANE, a_job, a_task, job_world

from coterie.base.clock import VirtualClock
from coterie.kube.api.meta import ObjectKey, ObjectMeta
from coterie.kube.client.informer import ObjectChange
from coterie.kube.control.controller import Controller
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kube.scheduler import scheduler
from coterie.kube.scheduler.metrics import SchedulerSource
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource, TaskResourceStatus
from coterie.kuscia.control.job_metrics import (
    JobMetrics,
    JobStateSource,
    KusciaControllerSource,
    TaskStages,
    WorkloadCounts,
)
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.controllers.kusciatask import controller as kusciatask
from coterie.kuscia.gangs.plugin import GangPlugin


def by_name(families: Any) -> dict[str, dict[str, float]]:
    return {family.name: dict(family.rows) for family in families}


async def test_a_job_that_runs() -> None:
    counts, sources, scheduling = JobMetrics(), [], SchedulerSource()

    def states(client: Any, informers: Any, clock: Any) -> Any:
        sources.append(JobStateSource(informers, clock))
        return scheduler.make(client, informers, clock=clock, plugins=[GangPlugin()], metrics=scheduling)

    makes = (
        *(each for each in JOB_PLANE if isinstance(each, tuple) and "domain" in each[0]),
        ("kusciajob-controller", partial(kusciajob.make, metrics=counts)),
        ("kusciatask-controller", partial(kusciatask.make, metrics=counts)),
        *(each for each in JOB_PLANE[-3:-2]),
        states,
        *JOB_PLANE[-1:],
    )
    async with job_world(makes=makes) as world:
        await world.client.create(JOB, a_job(a_task("one")))
        await world.until_phase("Succeeded")
        found = by_name(await sources[0].families())
        assert found["coterie_jobs"]['phase="Succeeded"'] == 1
        assert found["coterie_jobs"]['phase="Running"'] == 0
        assert found["coterie_job_oldest_seconds"]['phase="Pending"'] == 0
        assert found["coterie_tasks"] == {
            'phase="Pending"': 0,
            'phase="Running"': 0,
            'phase="Succeeded"': 1,
            'phase="Failed"': 0,
        }
        stages = found["coterie_task_stage_seconds"]
        for stage in ("waiting", "reserved", "starting"):
            assert stages[f'_count stage="{stage}"'] == 1, stage
        source = KusciaControllerSource(counts, ControllerMetrics(), world.clock)
        kuscia = by_name(await source.families())
        assert kuscia["kuscia_job_result_stats"] == {'result="succeeded"': 1, 'result="failed"': 0}
        assert kuscia["kuscia_task_result_stats"] == {'result="succeeded"': 1, 'result="failed"': 0}
        assert kuscia["kuscia_job_sync_durations_seconds"]['_count phase="Running",result="succeeded"'] >= 1
        assert kuscia["kuscia_task_sync_durations_seconds"]['_count condition="Running",status="succeeded"'] >= 1
        assert kuscia["kuscia_job_worker_queue_size"] == {"": 0}
        assert kuscia["domain_worker_queue_size"] == {"": 0}
        assert kuscia["task_resource_group_worker_queue_size"] == {"": 0}
        attempts = by_name(await scheduling.families())["coterie_scheduler_attempts_total"]
        assert attempts['result="scheduled"'] >= 2


async def test_requeues_are_rows_while_the_object_lives() -> None:
    clock = VirtualClock()

    async def reconcile(key: ObjectKey) -> None: ...

    controller: Controller[ObjectKey] = Controller("kusciajob", reconcile, [], clock=clock)
    source = KusciaControllerSource(JobMetrics(), ControllerMetrics([controller]), clock)
    controller.queue.retry(ObjectKey("cross-domain", "psi"))
    controller.queue.retry(ObjectKey("cross-domain", "psi"))
    assert by_name(await source.families())["kuscia_job_requeue_count"] == {'job_name="psi"': 2}
    change: Any = ObjectChange("deleted", TaskResource(metadata=ObjectMeta(name="psi", namespace="cross-domain")))
    watch: Any = type("W", (), {"keys": staticmethod(lambda obj: [obj.key]), "informer": None})
    controller._handler(watch)(change)
    assert by_name(await source.families())["kuscia_job_requeue_count"] == {}


async def test_a_phase_of_a_partner_is_no_label() -> None:
    counts, clock = WorkloadCounts(), VirtualClock()

    async def fails(key: ObjectKey) -> None:
        raise ValueError("no")

    timed = counts.timed(fails, lambda key: "Invented" + key.name, clock)
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="no"):
            await timed(ObjectKey("", name))
    assert list(counts.syncs) == [("other", "failed")]


def a_change(phase: str, created: str, kind: str = "updated") -> Any:
    task = {
        "metadata": {"name": "t", "uid": "u", "creationTimestamp": created},
        "spec": {"initiator": "alice", "taskInputConfig": "", "parties": []},
        "status": {"phase": phase},
    }
    return ObjectChange(kind, msgspec.convert(task, KusciaTask))  # type: ignore[arg-type]


def a_reservation(phase: str) -> Any:
    meta = ObjectMeta(name="t-1", annotations={labels.KUSCIA_TASK_RESOURCE_GROUP: "t"})
    return ObjectChange("updated", TaskResource(metadata=meta, status=TaskResourceStatus(phase=phase)))


async def test_stages_of_a_task() -> None:
    clock = VirtualClock()
    stages = TaskStages(clock)
    now = clock.now().isoformat()
    for seconds, step, change in (
        (1, stages.task_changed, a_change("", now)),
        (2, stages.reservation_changed, a_reservation("Reserving")),
        (3, stages.reservation_changed, a_reservation("Reserved")),
        (4, stages.reservation_changed, a_reservation("Schedulable")),
        (5, stages.reservation_changed, a_reservation("Schedulable")),
        (6, stages.task_changed, a_change("Running", now)),
        (7, stages.task_changed, a_change("Running", now)),
        (8, stages.task_changed, a_change("Succeeded", now)),
        (9, stages.task_changed, a_change("Succeeded", now)),
    ):
        await clock.advance(seconds)
        step(change)
    assert {stage: (each.count, each.total) for stage, each in stages.histograms.items()} == {
        "waiting": (1, 5.0),
        "reserved": (1, 4.0),
        "starting": (1, 11.0),
        "running": (1, 15.0),
    }
    assert stages._tasks == {}


async def test_what_was_under_way_at_the_start_is_not_measured_from_there() -> None:
    clock = VirtualClock()
    stages = TaskStages(clock)
    stages.task_changed(a_change("Running", "2001-01-01T00:00:00Z", "added"))
    await clock.advance(10)
    stages.task_changed(a_change("Failed", "2001-01-01T00:00:00Z"))
    assert {stage: each.count for stage, each in stages.histograms.items()} == {
        "waiting": 0,
        "reserved": 0,
        "starting": 0,
        "running": 0,
    }
