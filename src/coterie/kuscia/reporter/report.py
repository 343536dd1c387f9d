"""One report: may this domain make it, does it tell anything new, and the writing of it."""

from __future__ import annotations

import msgspec

from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS, KusciaTask
from coterie.kuscia.reporter.messages import INVALID, NOT_WRITTEN, OK, ReportStatus

log = logger("reporter")

IGNORED = "ignored"


def rejection(task: KusciaTask, domain: str, progress: float) -> ReportStatus | None:
    """Why the report changes nothing; None: it is to be written."""
    if domain not in {party.domain_id for party in task.spec.parties}:
        # The same words as for a task that is not there: nobody learns from us which there are.
        return unknown(task.metadata.name)
    if task.status.phase in TASK_ENDED:
        return ReportStatus(OK, f"{IGNORED}: the task has ended")
    if progress <= task.status.progress:
        return ReportStatus(OK, f"{IGNORED}: the progress is known to be {task.status.progress:g} already")
    return None


def unknown(name: str) -> ReportStatus:
    return ReportStatus(INVALID, f'the domain takes part in no task "{name}"')


async def report(client: Client, name: str, domain: str, progress: float) -> ReportStatus:
    verdict: ReportStatus | None = None

    def changed(task: KusciaTask) -> KusciaTask:
        nonlocal verdict
        verdict = rejection(task, domain, progress)
        if verdict is not None:
            return task
        return msgspec.structs.replace(task, status=msgspec.structs.replace(task.status, progress=progress))

    try:
        await client.modify_status(KUSCIA_TASKS, name, CROSS_DOMAIN, changed)
    except NotFound:
        return unknown(name)
    except (ApiError, TransportError) as error:
        log.warning("A task's progress could not be written", task=name, error=error)
        return ReportStatus(NOT_WRITTEN, "the progress could not be written; try again later")
    return verdict or ReportStatus(OK, "success")
