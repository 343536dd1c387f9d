"""One step of a job: what is counted, how it stands, which pods are made and removed. Pure.

Counting is exact although pods may be deleted at any time. A pod carries a finalizer until it is counted:

    ended, has the finalizer      its uid is written into `uncountedTerminatedPods`, then the finalizer is taken off
    noted, finalizer is gone      the counter goes up and the uid out, in one write

so a crash between any two writes loses nothing and counts nothing twice. Indexes need no notes: they are a set.

A job that is decided first says so (`SuccessCriteriaMet`, `FailureTarget`), its last pods go, and when they are gone and
all is counted it is `Complete` or `Failed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import FINALIZER_JOB_TRACKING
from coterie.kube.api.pod_state import is_active, is_ready, parse_time
from coterie.kube.api.types.batch import Job, JobCondition, JobStatus, UncountedPods
from coterie.kube.api.types.pods import Pod
from coterie.kube.controllers.job import failures, indexes
from coterie.kube.controllers.job.bodies import INDEX_FAILURES

NOTED_AT_ONCE = 500
"""Uids that are noted in one write: the status must not grow without bound."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    outcome: str
    """Complete or Failed."""
    reason: str
    message: str


REACHED = JobOutcome("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
_INTERIM = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}


@dataclass(frozen=True, slots=True)
class NewPod:
    index: int | None = None
    index_failures: int | None = None


@dataclass(slots=True)
class Plan:
    status: JobStatus
    release: list[Pod] = field(default_factory=list)
    """Take the finalizer off, after the status is written."""
    delete: list[Pod] = field(default_factory=list)
    withdraw: list[Pod] = field(default_factory=list)
    """Delete without counting: the finalizer goes first."""
    create: list[NewPod] = field(default_factory=list)
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    """Events: type, reason, message."""
    after: float | None = None


def tracked(pod: Pod) -> bool:
    return pod.metadata.has_finalizer(FINALIZER_JOB_TRACKING)


def plan(job: Job, pods: Sequence[Pod], now: datetime) -> Plan:
    return _JobPlanner(job, pods, now).take()


def expires_in(job: Job, now: datetime) -> float | None:
    """Seconds until a finished job is removed; None: it stays."""
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None or not job.finished:
        return None
    ended = parse_time(job.status.completion_time)
    if ended is None:
        over = (c for c in job.status.conditions or () if c.type == job.finished and c.status == "True")
        ended = next((parse_time(c.last_transition_time) for c in over), None)
    if ended is None:
        return None
    return max(0.0, (ended + timedelta(seconds=ttl) - now).total_seconds())


class _JobPlanner:
    def __init__(self, job: Job, pods: Sequence[Pod], now: datetime) -> None:
        self.job = job
        self.now = now
        self.pods = pods
        status = job.status
        self.plan = Plan(status)
        self.conditions = tuple(status.conditions or ())
        self.succeeded, self.failed = status.succeeded, status.failed
        uncounted = status.uncounted_terminated_pods or UncountedPods()
        self.noted_succeeded = dict.fromkeys(uncounted.succeeded or ())
        self.noted_failed = dict.fromkeys(uncounted.failed or ())
        self.total = job.spec.completions or 0
        self.done = indexes.parse(status.completed_indexes, self.total) if job.indexed else set()
        self.lost = indexes.parse(status.failed_indexes, self.total) if job.indexed else set()
        self.per_index = job.spec.backoff_limit_per_index
        self.start_time = status.start_time
        self.completion_time = status.completion_time
        self.verdict: JobOutcome | None = None
        self.active = [pod for pod in pods if is_active(pod)]

    def take(self) -> Plan:
        self._count_noted()
        self._note_ended()
        self.verdict = self._decided() or self.verdict or self._outcome()
        if self.verdict is not None:
            self._finish(self.verdict)
        elif self.job.metadata.deleting:
            pass  # nothing new for a job that goes away
        elif self.job.spec.suspend:
            self._suspend()
        else:
            self._resume()
            self._manage()
        self.plan.status = self._status()
        return self.plan

    # Counting.

    def _count_noted(self) -> None:
        held = {pod.metadata.uid: pod for pod in self.pods if tracked(pod)}
        for uid in list(self.noted_succeeded):
            if uid in held:
                self.plan.release.append(held[uid])
            else:
                del self.noted_succeeded[uid]
                self.succeeded += 1
        for uid in list(self.noted_failed):
            if uid in held:
                self.plan.release.append(held[uid])
            else:
                del self.noted_failed[uid]
                self.failed += 1

    def _note_ended(self) -> None:
        for pod in self.pods:
            uid = pod.metadata.uid
            if not tracked(pod) or uid in self.noted_succeeded or uid in self.noted_failed:
                continue
            if len(self.noted_succeeded) + len(self.noted_failed) >= NOTED_AT_ONCE:
                self.plan.after = 0.1
                return
            if pod.status.phase == "Succeeded":
                self._note_success(pod)
            elif failures.counts_as_failed(self.job, pod):
                self._note_failure(pod)
            elif self.job.metadata.deleting and pod.metadata.deleting:
                self.plan.release.append(pod)

    def _note_success(self, pod: Pod) -> None:
        self.plan.release.append(pod)
        if not self.job.indexed:
            self.noted_succeeded[pod.metadata.uid] = None
            return
        index = indexes.of_pod(pod)
        if index is not None and index < self.total:
            self.done.add(index)
            self.lost.discard(index)

    def _note_failure(self, pod: Pod) -> None:
        self.plan.release.append(pod)
        ruling = failures.rule(self.job, pod)
        if ruling.action == "Ignore":
            return
        self.noted_failed[pod.metadata.uid] = None
        if ruling.action == "FailJob" and self.verdict is None:
            self.verdict = JobOutcome("Failed", "PodFailurePolicy", ruling.message)
        index = indexes.of_pod(pod)
        if self.per_index is None or index is None or index >= self.total or index in self.done:
            return
        if ruling.action == "FailIndex" or _index_failures(pod) + 1 > self.per_index:
            self.lost.add(index)

    # Verdict.

    def _decided(self) -> JobOutcome | None:
        for outcome, interim in _INTERIM.items():
            found = self._condition(interim)
            if found is not None and found.status == "True":
                return JobOutcome(outcome, found.reason, found.message)
        return None

    def _outcome(self) -> JobOutcome | None:
        job, failed = self.job, self.failed + len(self.noted_failed)
        if failures.over_the_limit(job, failed, self.pods):
            return JobOutcome("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if self._out_of_time():
            return JobOutcome("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        limit = job.spec.max_failed_indexes
        if limit is not None and len(self.lost) > limit:
            message = "Job has exceeded the specified maximal number of failed indexes"
            return JobOutcome("Failed", "MaxFailedIndexesExceeded", message)
        if self.lost and len(self.lost) + len(self.done) >= self.total:
            return JobOutcome("Failed", "FailedIndexes", "Job has failed indexes")
        if job.spec.completions is None:
            # A queue of work: one success says that the work is done, the others may end their part.
            running = any(not pod.ended for pod in self.pods)
            return REACHED if self._succeeded() and not running else None
        return REACHED if self._succeeded() >= self.total and not job.spec.suspend else None

    def _succeeded(self) -> int:
        return len(self.done) if self.job.indexed else self.succeeded + len(self.noted_succeeded)

    def _out_of_time(self) -> bool:
        deadline, started = self.job.spec.active_deadline_seconds, parse_time(self.start_time)
        if deadline is None or started is None or self.job.spec.suspend:
            return False
        left = (started + timedelta(seconds=deadline) - self.now).total_seconds()
        if left <= 0:
            return True
        self._wake(left)
        return False

    def _finish(self, verdict: JobOutcome) -> None:
        self.plan.delete += self.active
        interim = _INTERIM[verdict.outcome]
        self._put(interim, "True", verdict.reason, verdict.message)
        running = any(not pod.ended for pod in self.pods)
        if running or self.noted_succeeded or self.noted_failed:
            return
        self._put(verdict.outcome, "True", verdict.reason, verdict.message)
        if verdict.outcome == "Complete":
            self.completion_time = rfc3339(self.now)
            self.plan.notes.append(("Normal", "Completed", "Job completed"))
        else:
            self.plan.notes.append(("Warning", verdict.reason, verdict.message))

    # Pods.

    def _suspend(self) -> None:
        self.plan.withdraw += self.active
        self.start_time = None
        if self._put("Suspended", "True", "JobSuspended", "Job suspended"):
            self.plan.notes.append(("Normal", "Suspended", "Job suspended"))

    def _resume(self) -> None:
        found = self._condition("Suspended")
        if found is not None and found.status == "True":
            self._put("Suspended", "False", "JobResumed", "Job resumed")
            self.plan.notes.append(("Normal", "Resumed", "Job resumed"))
            self.start_time = None
        if self.start_time is None:
            self.start_time = rfc3339(self.now)
            if self.job.spec.active_deadline_seconds is not None:
                self._wake(float(self.job.spec.active_deadline_seconds))

    def _manage(self) -> None:
        surplus = self._odd_ones()
        useful = [pod for pod in self.active if pod not in surplus]
        wanted = self._desired_active(len(useful))
        if len(useful) > wanted:
            surplus += sorted(useful, key=_goes_first)[: len(useful) - wanted]
        self.plan.withdraw += surplus
        ending = [pod for pod in self.pods if pod.metadata.deleting and not pod.ended]
        held_back = len(ending) if failures.waits_for_the_end(self.job) else 0
        missing = wanted - len(useful) - held_back
        if missing <= 0:
            return
        if self.job.indexed:
            busy = {indexes.of_pod(pod) for pod in (*useful, *(ending if held_back else ()))}
            self._create_indexed(missing, busy)
            return
        pause = failures.pause(self.pods, self.now)
        if pause > 0:
            self._wake(pause)
        else:
            self.plan.create += [NewPod()] * missing

    def _desired_active(self, active: int) -> int:
        parallel = 1 if self.job.spec.parallelism is None else self.job.spec.parallelism
        if self.job.spec.completions is None:
            return min(active, parallel) if self._succeeded() else parallel
        return max(0, min(parallel, self.total - self._succeeded() - len(self.lost)))

    def _odd_ones(self) -> list[Pod]:
        """Active pods of an indexed job that do nobody's work: done already, out of range, or the second of an index."""
        if not self.job.indexed:
            return []
        taken: set[int] = set()
        odd: list[Pod] = []
        for pod in sorted(self.active, key=_goes_first, reverse=True):
            index = indexes.of_pod(pod)
            if index is None or index >= self.total or index in self.done or index in self.lost or index in taken:
                odd.append(pod)
            else:
                taken.add(index)
        return odd

    def _create_indexed(self, missing: int, busy: set[int | None]) -> None:
        pause = 0.0 if self.per_index is not None else failures.pause(self.pods, self.now)
        if pause > 0:
            self._wake(pause)
            return
        for index in range(self.total):
            if missing <= 0:
                return
            if index in self.done or index in self.lost or index in busy:
                continue
            missing -= 1
            if self.per_index is None:
                self.plan.create.append(NewPod(index))
                continue
            mine = [pod for pod in self.pods if indexes.of_pod(pod) == index]
            pause = failures.pause(mine, self.now)
            if pause > 0:
                self._wake(pause)
                continue
            before = max((_index_failures(pod) + 1 for pod in mine if self._failure_counts(pod)), default=0)
            self.plan.create.append(NewPod(index, before))

    def _failure_counts(self, pod: Pod) -> bool:
        return failures.counts_as_failed(self.job, pod) and failures.rule(self.job, pod).action != "Ignore"

    # Small things.

    def _wake(self, seconds: float) -> None:
        self.plan.after = seconds if self.plan.after is None else min(self.plan.after, seconds)

    def _condition(self, type_: str) -> JobCondition | None:
        for found in self.conditions:
            if found.type == type_:
                return found
        return None

    def _put(self, type_: str, word: str, reason: str, message: str) -> bool:
        """True when the condition has another status now."""
        known = self._condition(type_)
        if known is not None and known.status == word:
            return False
        now = rfc3339(self.now)
        new = JobCondition(
            type=type_, status=word, reason=reason, message=message, last_probe_time=now, last_transition_time=now
        )
        self.conditions = (*(found for found in self.conditions if found.type != type_), new)
        return True

    def _status(self) -> JobStatus:
        uncounted = None
        if self.noted_succeeded or self.noted_failed:
            uncounted = UncountedPods(
                succeeded=tuple(self.noted_succeeded) or None, failed=tuple(self.noted_failed) or None
            )
        return msgspec.structs.replace(
            self.job.status,
            active=len(self.active),
            ready=sum(is_ready(pod) for pod in self.active),
            terminating=sum(pod.metadata.deleting and not pod.ended for pod in self.pods),
            succeeded=len(self.done) if self.job.indexed else self.succeeded,
            failed=self.failed,
            start_time=self.start_time,
            completion_time=self.completion_time,
            completed_indexes=indexes.write(self.done) if self.job.indexed else "",
            failed_indexes=indexes.write(self.lost) if self.per_index is not None else None,
            uncounted_terminated_pods=uncounted,
            conditions=self.conditions or None,
        )


def _index_failures(pod: Pod) -> int:
    text = (pod.metadata.annotations or {}).get(INDEX_FAILURES, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _goes_first(pod: Pod) -> tuple[object, ...]:
    """Of pods that are too many: not placed, not running, not ready, then the youngest."""
    made = parse_time(pod.metadata.creation_timestamp)
    return (
        bool(pod.spec.node_name),
        pod.status.phase == "Running",
        is_ready(pod),
        -made.timestamp() if made is not None else 0.0,
        pod.metadata.uid,
    )
