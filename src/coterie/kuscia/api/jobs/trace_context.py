"""Which trace a job's objects belong to, and the ids of the spans about them. Pure.

    job ──> task ──> party (a domain's part of the task) ──> pod, reservation, data reads, calls through the gateway

Ids follow from uids, which every process that works for the same control plane knows: nothing has to be passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coterie.base.trace import TraceParent, span_id, trace_id
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask

VARIABLE = "TRACEPARENT"
"""Environment variable of engines: the span of their pod."""


class PodTrace(NamedTuple):
    trace: str
    pod: str
    """The span of the pod."""
    party: str
    """The span of the domain's part of the task."""
    job: str
    task: str
    domain: str

    @property
    def parent(self) -> TraceParent:
        return TraceParent(self.trace, self.pod)


def job_trace(job: KusciaJob) -> str:
    return trace_id(job.spec.initiator, job.metadata.name)


def task_trace(task: KusciaTask) -> str:
    """A task that was made without a job is its own job."""
    job = (task.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID) or task.metadata.name
    return trace_id(task.spec.initiator, job)


def job_span(uid: str) -> str:
    return span_id("job", uid)


def task_span(uid: str) -> str:
    return span_id("task", uid)


def party_span(task_uid: str, domain: str) -> str:
    return span_id("party", task_uid, domain)


def pod_span(task_uid: str, pod: str) -> str:
    return span_id("pod", task_uid, pod)


def pod_trace(pod: Object) -> PodTrace | None:
    """Of a pod that the control plane made for a task; None for all others."""
    meta = pod["metadata"]
    return trace_of(meta.get("namespace") or "", meta["name"], meta.get("annotations") or {}, meta.get("labels") or {})


def trace_of(domain: str, pod: str, marks: Mapping[str, str], known: Mapping[str, str]) -> PodTrace | None:
    """The same, from a pod's annotations and labels."""
    task, initiator = marks.get(labels.KUSCIA_TASK_ID), marks.get(labels.KUSCIA_INITIATOR)
    uid = known.get(labels.KUSCIA_TASK_UID)
    if known.get(labels.KUSCIA_CONTROLLER) != labels.KUSCIA_CONTROLLER_TASK or not task or not initiator or not uid:
        return None
    job = marks.get(labels.KUSCIA_JOB_ID) or task
    trace = trace_id(initiator, job)
    return PodTrace(trace, pod_span(uid, pod), party_span(uid, domain), job, task, domain)
