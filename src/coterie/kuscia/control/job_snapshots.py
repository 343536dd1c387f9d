"""A job with all that belongs to it, as the server has it now: for whatever shows jobs to people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.meta import ApiObject, Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Client
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.job_state import JobState, job_state
from coterie.kuscia.api.jobs.timeline import Moment, facts
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    KUSCIA_TASKS,
    TASK_RESOURCE_GROUPS,
    KusciaJob,
    KusciaTask,
    TaskResourceGroup,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource

PODS = Kind.dynamic(builtin("pods"))
EVENTS = Kind.dynamic(builtin("events"))
JOBS, TASKS, GROUPS = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic, TASK_RESOURCE_GROUPS.as_dynamic
RESERVATIONS = TASK_RESOURCES.as_dynamic
TASK_PODS = f"{labels.KUSCIA_CONTROLLER}={labels.KUSCIA_CONTROLLER_TASK}"
_MOST_QUERIES = 64
T = TypeVar("T")


class ObjectShapeError(Exception):
    """An object does not have the shape of its type."""


def typed(obj: Object, type_: type[T]) -> T:
    try:
        return msgspec.convert(obj, type_, strict=False)
    except msgspec.ValidationError as error:
        name = (obj.get("metadata") or {}).get("name")
        raise ObjectShapeError(f"{type_.__name__} {name} does not have the shape of its type: {error}") from error


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What the server had at one moment."""

    raw: Object
    tasks: tuple[KusciaTask, ...]
    pods: tuple[Pod, ...] = ()
    groups: tuple[TaskResourceGroup, ...] = ()
    reservations: tuple[TaskResource, ...] = ()
    events: tuple[Object, ...] = ()

    @property
    def job(self) -> KusciaJob:
        return typed(self.raw, KusciaJob)

    @property
    def state(self) -> JobState:
        return job_state(self.job, self.tasks)

    @property
    def facts(self) -> dict[Moment, float | None]:
        return facts(self.job, self.tasks, self.pods, self.groups, self.reservations, self.events)


async def fetch_snapshot(client: Client, name: str) -> JobSnapshot:
    """A job and its tasks now."""
    job = await client.get(JOBS, name, CROSS_DOMAIN)
    return JobSnapshot(job, await tasks_of(client, job))


async def fetch_timeline(client: Client, name: str) -> JobSnapshot:
    """With everything that says when something happened, as far as it is still there and may be read."""
    seen = await fetch_snapshot(client, name)
    uids = {task.metadata.uid for task in seen.tasks}
    if not uids:
        return replace(
            seen, events=tuple(await _listed(client, EVENTS, CROSS_DOMAIN, fields=f"involvedObject.name={name}"))
        )
    chosen = f"{labels.KUSCIA_TASK_UID} in ({','.join(sorted(uids))})" if len(uids) <= _MOST_QUERIES else TASK_PODS
    pods = all_typed(await _listed(client, PODS, labels=chosen), Pod)
    reservations = all_typed(await _listed(client, RESERVATIONS, labels=chosen), TaskResource)
    groups = all_typed(await _listed(client, GROUPS, labels=chosen), TaskResourceGroup)
    about = [(CROSS_DOMAIN, name), *((CROSS_DOMAIN, task.metadata.name) for task in seen.tasks)]
    about += [(pod.namespace, pod.pod_name) for task in seen.tasks for pod in (task.status.pod_statuses or {}).values()]
    events: list[Object] = []
    for namespace, object_name in dict.fromkeys(about[:_MOST_QUERIES]):
        events += await _listed(client, EVENTS, namespace, fields=f"involvedObject.name={object_name}")
    return replace(
        seen,
        pods=tuple(each for each in pods if _task_uid(each) in uids),
        groups=tuple(each for each in groups if _task_uid(each) in uids),
        reservations=tuple(each for each in reservations if _task_uid(each) in uids),
        events=tuple(events),
    )


async def _listed(
    client: Client, kind: Kind[Object], namespace: str = "", *, labels: str = "", fields: str = ""
) -> list[Object]:
    """Nothing where it may not be read."""
    try:
        return list((await client.list(kind, namespace, labels=labels, fields=fields)).items)
    except (Forbidden, NotFound):
        return []


def _task_uid(obj: ApiObject) -> str:
    return (obj.metadata.labels or {}).get(labels.KUSCIA_TASK_UID, "")


async def tasks_of(client: Client, job: Object) -> tuple[KusciaTask, ...]:
    page = await client.list(TASKS, CROSS_DOMAIN, labels=of_job(job))
    return all_typed(page.items, KusciaTask)


def of_job(job: Object) -> str:
    return f"{labels.KUSCIA_JOB_UID}={job['metadata']['uid']}"


def all_typed(objects: Iterable[Object], type_: type[T]) -> tuple[T, ...]:
    return tuple(typed(obj, type_) for obj in objects)
