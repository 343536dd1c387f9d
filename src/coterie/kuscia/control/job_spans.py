"""Spans of jobs, from the changes of their objects: nothing is asked of anybody, and no controller knows of it.

    informers (jobs, tasks, TaskResources, pods of this node) ──changed──> stages of the object ──ended──> ring

A stage begins and ends when its change is seen, if the object's own time, in whole seconds, agrees with that; so spans are
precise where the process was there, and true where it was not. What ended before the process started was recorded by the one
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from coterie.base.clock import Clock
from coterie.base.trace import Span, TraceRing
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs import stages, trace_context
from coterie.kuscia.api.jobs.stages import Stage
from coterie.kuscia.api.jobs.trace_context import PodTrace
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource

_SECOND = 1_000_000_000
_AGREES = 2.0
"""Seconds by which an object's time, which is rounded down, may lie before the moment its change is seen."""


class _Open(NamedTuple):
    begin: int
    stage: Stage


class _Followed:
    """One object: its stages that have begun, and those that are recorded."""

    __slots__ = ("done", "open", "trace")

    def __init__(self, trace: str) -> None:
        self.trace = trace
        self.open: dict[str, _Open] = {}
        self.done: set[str] = set()


class _Seen(NamedTuple):
    """When a stage was seen to begin or end in other objects than its own, which is often written later."""

    begin: int | None = None
    end: int | None = None


class ActiveTask(NamedTuple):
    """A task that this node takes part in, for those who see only its name."""

    trace: str
    uid: str
    job: str
    domain: str
    """The party; empty: known from the task itself."""


class JobSpans:
    def __init__(self, ring: TraceRing, clock: Clock, domain: str) -> None:
        """`domain`: of this node."""
        self._ring = ring
        self._clock = clock
        self._domain = domain
        self._started = self._now()
        self._followed: dict[str, _Followed] = {}
        self._traces: dict[str, str] = {}
        """By uid of the task."""
        self._seen: dict[str, dict[str, _Seen]] = {}
        """By uid of the task, then by span."""
        self.tasks: dict[str, ActiveTask] = {}
        """By name: those that have not ended."""
        self._complete: set[str] = set()
        """Uids of tasks that ended and are recorded: of them nothing more is looked at."""

    def follow_control_plane(
        self, jobs: Informer[KusciaJob], tasks: Informer[KusciaTask], reservations: Informer[TaskResource]
    ) -> None:
        jobs.add_handler(self.job_changed)
        tasks.add_handler(self.task_changed)
        reservations.add_handler(self.reservation_changed)

    def follow_pods(self, pods: Informer[Object]) -> None:
        """`pods`: of this node."""
        pods.add_handler(self.pod_changed)

    def job_changed(self, change: ObjectChange[KusciaJob]) -> None:
        job = change.object
        trace = trace_context.job_trace(job)
        self._update(job.metadata.uid, trace, stages.job_stages(job), stages.job_error(job), gone=_gone(change))

    def task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        task = change.object
        meta = task.metadata
        if meta.uid in self._complete:
            if _gone(change):
                self._complete.discard(meta.uid)
                self._followed.pop(meta.uid, None)
                self._traces.pop(meta.uid, None)
            return
        trace, found = trace_context.task_trace(task), stages.task_stages(task)
        over = _gone(change) or bool(found and found[0].end is not None)
        if over:
            self.tasks.pop(meta.name, None)
        else:
            job = (meta.annotations or {}).get(labels.KUSCIA_JOB_ID, "")
            self.tasks[meta.name] = ActiveTask(trace, meta.uid, job, "")
        if _gone(change):
            self._traces.pop(meta.uid, None)
        else:
            self._traces[meta.uid] = trace
        self._update(meta.uid, trace, found, gone=_gone(change))
        if over:
            self._seen.pop(meta.uid, None)
            if not _gone(change):
                self._complete.add(meta.uid)

    def reservation_changed(self, change: ObjectChange[TaskResource]) -> None:
        reservation = change.object
        meta = reservation.metadata
        task_uid = (meta.labels or {}).get(labels.KUSCIA_TASK_UID, "")
        trace = self._traces.get(task_uid, "")
        if trace and change.type != "deleted":
            if meta.uid not in self._followed:
                self._note(task_uid, "prepare", "schedule")
                party = trace_context.party_span(task_uid, meta.namespace)
                self._seen[task_uid].setdefault(party, _Seen(begin=self._now()))
            elif reservation.status.phase == ReservationPhase.SCHEDULABLE:
                self._note(task_uid, "schedule", "start", last=True)
        if trace or meta.uid in self._followed:
            found = stages.reservation_stages(reservation)
            self._update(meta.uid, trace, found, stages.reservation_error(reservation), gone=_gone(change))

    def pod_changed(self, change: ObjectChange[Object]) -> None:
        where = trace_context.pod_trace(change.object)
        if where is None:
            return
        try:
            pod = msgspec.convert(_essence(change.object), Pod, strict=False)
        except msgspec.ValidationError:
            return
        found = stages.pod_stages(pod, where)
        if pod.ended or _gone(change):
            self._forget_task(where)
        elif where.task not in self.tasks:
            uid = (pod.metadata.labels or {}).get(labels.KUSCIA_TASK_UID, "")
            self.tasks[where.task] = ActiveTask(where.trace, uid, where.job, where.domain)
        uid = (pod.metadata.labels or {}).get(labels.KUSCIA_TASK_UID, "")
        if uid in self._traces and not pod.ended and found and found[-1].name == "run":
            self._note(uid, "start", "run")
        self._update(pod.metadata.uid, where.trace, found, gone=_gone(change))

    def _note(self, task_uid: str, ended: str, begun: str, *, last: bool = False) -> None:
        """One stage of the task is seen to end and the next to begin. `last`: the last time counts, not the first."""
        known, now = self._seen.setdefault(task_uid, {}), self._now()
        before, after = (stages.task_stage_span(name, task_uid) for name in (ended, begun))
        if last or known.get(before, _Seen()).end is None:
            known[before] = known.get(before, _Seen())._replace(end=now)
            known[after] = known.get(after, _Seen())._replace(begin=now)

    def _forget_task(self, where: PodTrace) -> None:
        """Where only pods are seen, the end of a pod is that of the task."""
        known = self.tasks.get(where.task)
        if known is not None and known.domain:
            del self.tasks[where.task]

    def _update(self, uid: str, trace: str, found: Sequence[Stage], error: str = "", *, gone: bool = False) -> None:
        """`error`: of stages that are no longer there."""
        known = self._followed.get(uid)
        if known is None:
            if gone:
                return
            known = self._followed[uid] = _Followed(trace)
        now, noted = self._now(), self._seen.get(uid, {})
        current = {each.span: each for each in found}
        for span, opened in list(known.open.items()):
            if span not in current:
                self._record(known, opened, now, error)
        for stage in found:
            if stage.span in known.done:
                continue
            before = known.open.get(stage.span)
            seen = noted.get(stage.span, _Seen())
            begin = before.begin if before is not None else seen.begin or _precise(stage.begin, now)
            opened = known.open[stage.span] = _Open(begin, stage)
            if stage.end is not None:
                self._record(known, opened, max(begin, seen.end or _precise(stage.end, now)), stage.error)
        if gone:
            for opened in list(known.open.values()):
                self._record(known, opened, now, error)
            del self._followed[uid]

    def _record(self, known: _Followed, opened: _Open, end: int, error: str) -> None:
        stage = opened.stage
        known.open.pop(stage.span, None)
        known.done.add(stage.span)
        if end < self._started or (end == opened.begin and not error):
            # Before our time; or over when it was first seen, so that nobody knows how long it took.
            return
        marks = {**stage.attributes, "coterie.domain": self._domain}
        self._ring.record(Span(known.trace, stage.span, stage.parent, stage.name, opened.begin, end, marks, error))

    def _now(self) -> int:
        return _nanoseconds(self._clock.now().timestamp())


def _gone(
    change: ObjectChange[KusciaJob] | ObjectChange[KusciaTask] | ObjectChange[TaskResource] | ObjectChange[Object],
) -> bool:
    return change.type == "deleted"


def _essence(pod: Object) -> Object:
    """What stages are about: most of a pod is its spec and who wrote which field."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "creationTimestamp", "labels") if key in meta}
    node = (pod.get("spec") or {}).get("nodeName") or ""
    return {"metadata": kept, "spec": {"nodeName": node}, "status": pod.get("status") or {}}


def _precise(seconds: float, now: int) -> int:
    """The moment of a change that is seen now and that the object dates in whole seconds."""
    dated = _nanoseconds(seconds)
    return now if 0 <= now - dated < _AGREES * _SECOND else dated


def _nanoseconds(seconds: float) -> int:
    """To the microsecond, which is what a time of day as a float has."""
    return round(seconds * 1_000_000) * 1000
