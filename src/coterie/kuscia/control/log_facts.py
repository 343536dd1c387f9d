"""What log lines about a job or task say besides: by this they are found (`log_search.py`)."""

from __future__ import annotations

from coterie.base.trace import trace_id
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask


def facts_of_job(name: str, job: KusciaJob | None) -> dict[str, str]:
    return {"job": name, **({"trace_id": trace_id(job.spec.initiator, name)} if job is not None else {})}


def facts_of_task(name: str, task: KusciaTask | None) -> dict[str, str]:
    job = (task.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, "") if task is not None else ""
    if task is None or not job:
        return {"task": name}
    return {"job": job, "task": name, "trace_id": trace_id(task.spec.initiator, job)}
