"""Jobs and tasks under Kuscia's names of metrics, and how long tasks stay in each stage.

kusciajob, kusciatask controllers ──results, duration of reconciles──> JobMetrics ──> kuscia_job_*, kuscia_task_*
informers of tasks and TaskResources ──> TaskStages ──> coterie_task_stage_seconds{stage}

stage      from                                             to
waiting    the task is created                              a party here has reserved room
reserved   a party here has reserved room                   all parties have (its TaskResource is Schedulable)
starting   all parties have reserved                        the task is Running
running    the task is Running                              it ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.base.clock import Clock
from coterie.base.exposition import Family, Row, labels
from coterie.base.measurements import Histogram, QuantileSummary
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.pod_state import parse_time
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kuscia.api import labels as marks
from coterie.kuscia.api.jobs.phases import JOB_ENDED, JOB_NEW, TASK_ENDED
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, JobPhase, KusciaTask, TaskPhase
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, ReservationPhase, TaskResource

if TYPE_CHECKING:
    from coterie.kube.control.controller import Result

SUCCEEDED, FAILED = "succeeded", "failed"
STAGES = ("waiting", "reserved", "starting", "running")
_STAGE_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
_QUEUES = (
    # Kuscia's name, what it is the queue of, our controller
    ("kuscia_job_worker_queue_size", "KusciaJob", "kusciajob"),
    ("kuscia_task_worker_queue_size", "KusciaTask", "kusciatask"),
    ("domain_worker_queue_size", "Domain", "domain"),
    ("task_resource_group_worker_queue_size", "TaskResourceGroup", "taskresourcegroup"),
)
_PHASES = frozenset((*JobPhase, *TaskPhase))
_OTHER = "other"

Reconcile = Callable[[ObjectKey], Awaitable["Result | None"]]


@dataclass(slots=True)
class WorkloadCounts:
    """Of jobs, or of tasks."""

    syncs: dict[tuple[str, str], QuantileSummary] = field(default_factory=dict)
    """Duration of reconciles, by phase and result."""
    results: dict[str, int] = field(default_factory=lambda: {SUCCEEDED: 0, FAILED: 0})

    def ended(self, phase: str) -> None:
        """A job or task entered this phase."""
        if phase == JobPhase.SUCCEEDED:
            self.results[SUCCEEDED] += 1
        elif phase == JobPhase.FAILED:
            self.results[FAILED] += 1

    def timed(self, reconcile: Reconcile, phase_of: Callable[[ObjectKey], str | None], clock: Clock) -> Reconcile:
        """The same reconcile; its duration is recorded. `phase_of`: before; None: nothing is there to be reconciled."""

        async def run(key: ObjectKey) -> Result | None:
            phase = phase_of(key)
            if phase is None:
                return await reconcile(key)
            began, outcome = clock.monotonic(), FAILED
            try:
                result = await reconcile(key)
                outcome = SUCCEEDED
                return result
            finally:
                now = clock.monotonic()
                where = (known_phase(phase), outcome)
                summary = self.syncs.get(where)
                if summary is None:
                    summary = self.syncs[where] = QuantileSummary()
                summary.add(now - began, now)

        return run


@dataclass(slots=True)
class JobMetrics:
    """What the controllers of jobs and tasks count. Shared by them and the page of metrics."""

    jobs: WorkloadCounts = field(default_factory=WorkloadCounts)
    tasks: WorkloadCounts = field(default_factory=WorkloadCounts)


def known_phase(phase: str) -> str:
    """For a label: statuses of partners may hold anything."""
    if phase in JOB_NEW:
        return str(JobPhase.PENDING)
    return phase if phase in _PHASES else _OTHER


class KusciaControllerSource:
    """A source of metrics: controllers under Kuscia's names."""

    name = "kuscia-controllers"

    def __init__(self, counts: JobMetrics, controllers: ControllerMetrics, clock: Clock) -> None:
        self._counts = counts
        self._controllers = controllers
        self._clock = clock

    async def families(self) -> Sequence[Family]:
        now = self._clock.monotonic()
        jobs, tasks = self._counts.jobs, self._counts.tasks
        return [
            *(
                Family(name, f"Size of the work queue of {kind}s.", "gauge", [("", self._depth(controller))])
                for name, kind, controller in _QUEUES
            ),
            self._requeues("kuscia_job_requeue_count", "job_name", "kusciajob"),
            self._requeues("kuscia_task_requeue_count", "task_name", "kusciatask"),
            Family(
                "kuscia_job_sync_durations_seconds",
                "Duration of reconciles of KusciaJobs.",
                "summary",
                _summaries(jobs, "phase", "result", now),
            ),
            Family(
                "kuscia_task_sync_durations_seconds",
                "Duration of reconciles of KusciaTasks.",
                "summary",
                _summaries(tasks, "condition", "status", now),
            ),
            Family("kuscia_job_result_stats", "KusciaJobs that ended, by result.", "counter", _results(jobs)),
            Family("kuscia_task_result_stats", "KusciaTasks that ended, by result.", "counter", _results(tasks)),
        ]

    def _depth(self, name: str) -> int:
        found = self._controllers.find(name)
        return len(found.queue) if found is not None else 0

    def _requeues(self, family: str, label: str, controller: str) -> Family:
        found = self._controllers.find(controller)
        counted = found.queue.requeues if found is not None else {}
        rows: list[Row] = [(labels(**{label: key.name}), count) for key, count in counted.items()]
        return Family(family, "Retries of a reconcile, by object; the newest 200 that had any.", "counter", rows)


def _summaries(counts: WorkloadCounts, first: str, second: str, now: float) -> list[Row]:
    return [
        row
        for (phase, outcome), summary in sorted(counts.syncs.items())
        for row in summary.rows(labels(**{first: phase, second: outcome}), now)
    ]


def _results(counts: WorkloadCounts) -> list[Row]:
    return [(labels(result=result), count) for result, count in counts.results.items()]


@dataclass(slots=True)
class _TaskStage:
    uid: str
    stage: int
    since: float | None
    """None: it was in this stage when we came, so how long it is in it is not known."""


class TaskStages:
    """Follows tasks through their stages. Each change of an object costs a look into a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self.histograms = {stage: Histogram(_STAGE_SECONDS) for stage in STAGES}
        self._clock = clock
        self._began = clock.now()
        self._tasks: dict[str, _TaskStage] = {}

    def task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        task = change.object
        name, uid, phase = task.metadata.name, task.metadata.uid, task.status.phase
        if change.type == "deleted":
            self._tasks.pop(name, None)
            return
        known = self._tasks.get(name)
        if known is None or known.uid != uid:
            if phase in TASK_ENDED:
                return
            created = parse_time(task.metadata.creation_timestamp)
            if created is None or (created - self._began).total_seconds() < -1:
                self._tasks[name] = _TaskStage(uid, 3 if phase == TaskPhase.RUNNING else 0, None)
                return
            known = self._tasks[name] = _TaskStage(uid, 0, self._clock.monotonic())
        if phase == TaskPhase.RUNNING:
            self._reach(known, 3)
        elif phase in TASK_ENDED:
            self._reach(known, 4)
            del self._tasks[name]

    def reservation_changed(self, change: ObjectChange[TaskResource]) -> None:
        meta = change.object.metadata
        name = (meta.annotations or {}).get(marks.KUSCIA_TASK_RESOURCE_GROUP, "")  # has the name of its task
        known = self._tasks.get(name)
        if known is None or change.type == "deleted":
            return
        if change.object.status.phase == ReservationPhase.RESERVED:
            self._reach(known, 1)
        elif change.object.status.phase == ReservationPhase.SCHEDULABLE:
            self._reach(known, 2)

    def _reach(self, task: _TaskStage, stage: int) -> None:
        """Stages that were passed within one change took no time of their own."""
        if stage <= task.stage:
            return
        now = self._clock.monotonic()
        if task.since is not None:
            self.histograms[STAGES[task.stage]].add(now - task.since)
        task.stage, task.since = stage, now


class JobStateSource:
    """A source of metrics: how many jobs and tasks are in which phase, and since when the oldest is."""

    name = "jobs"

    def __init__(self, informers: Informers, clock: Clock) -> None:
        self._clock = clock
        self._jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self._informers = informers
        self.stages = TaskStages(clock)
        self._follows_reservations = False
        self._tasks.add_handler(self._task_changed)

    def _task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        if not self._follows_reservations:
            # An informer more, which a control plane without tasks does not need.
            self._follows_reservations = True
            self._informers.get(TASK_RESOURCES).add_handler(self.stages.reservation_changed)
        self.stages.task_changed(change)

    async def families(self) -> Sequence[Family]:
        now = self._clock.now()
        jobs: Counter[str] = Counter({str(each): 0 for each in JobPhase if each not in JOB_NEW})
        tasks: Counter[str] = Counter({str(each): 0 for each in TaskPhase})
        oldest = {phase: 0.0 for phase in jobs if phase not in JOB_ENDED}
        for job in self._jobs.cache:
            phase = known_phase(job.status.phase)
            jobs[phase] += 1
            if phase in oldest and (created := parse_time(job.metadata.creation_timestamp)) is not None:
                oldest[phase] = max(oldest[phase], (now - created).total_seconds())
        for task in self._tasks.cache:
            tasks[known_phase(task.status.phase)] += 1
        return [
            Family("coterie_jobs", "Jobs, by phase.", "gauge", _phases(jobs)),
            Family(
                "coterie_job_oldest_seconds",
                "Age of the oldest job that is in this phase; 0 when there is none.",
                "gauge",
                _phases(oldest),
            ),
            Family("coterie_tasks", "Tasks, by phase.", "gauge", _phases(tasks)),
            Family(
                "coterie_task_stage_seconds",
                "Time that tasks spent in a stage.",
                "histogram",
                [row for stage, each in self.stages.histograms.items() for row in each.rows(labels(stage=stage))],
            ),
        ]


def _phases(counted: Counter[str] | dict[str, float]) -> list[Row]:
    return [(labels(phase=phase), count) for phase, count in counted.items()]
