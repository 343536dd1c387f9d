"""What the tasks of a job printed: which pods there are, and where their output is.

A pod that failed stays and is asked through the API. One that succeeded has been removed by then, but the machine it
ran on keeps its output for some days (`var/stdout/pods/<party>_<pod>_<uid>/<container>/<run>.log`): there it is read
when that machine is this one, and otherwise the user is told which it is. Of a partner's pods nothing is known here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.container_logs import LogOptions, last_runs, read
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask

_BEGUN = ("Running", "Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodOfJob:
    party: str
    task: str
    name: str
    phase: str
    node: str = ""
    termination_message: str = ""
    short: str = ""
    """The name without the task's id, which every line would repeat."""
    task_id: str = ""

    @property
    def begun(self) -> bool:
        return self.phase in _BEGUN

    @property
    def label(self) -> str:
        return f"{self.party}/{self.task}/{self.short}"


def pods_of(job: KusciaJob, tasks: Iterable[KusciaTask], alias: str = "", party: str = "") -> list[PodOfJob]:
    """In the order of the job's tasks; `alias` and `party` choose some."""
    by_name = {task.metadata.name: task for task in tasks}
    out = []
    for template in job.spec.tasks:
        task = by_name.get(template.task_id)
        if task is None or (alias and template.alias != alias):
            continue
        for _, pod in sorted((task.status.pod_statuses or {}).items()):
            if not party or pod.namespace == party:
                short = pod.pod_name.removeprefix(f"{template.task_id}-")
                out.append(
                    PodOfJob(
                        pod.namespace,
                        template.alias,
                        pod.pod_name,
                        pod.pod_phase,
                        pod.node_name,
                        pod.termination_log,
                        short,
                        template.task_id,
                    )
                )
    return out


def elsewhere(job: KusciaJob, alias: str = "") -> tuple[str, ...]:
    """Parties whose pods another control plane runs."""
    own = set(own_parties(job))
    named = (party.domain_id for task in job.spec.tasks if not alias or task.alias == alias for party in task.parties)
    return tuple(dict.fromkeys(party for party in named if party not in own))


def kept_output(root: Path, pod: PodOfJob) -> dict[str, Path]:
    """The kept output of a pod on this machine: container -> file of its last run. A task that was done again has the
    same names for its pods; the newest counts."""
    found = sorted(
        root.glob(f"*/var/stdout/pods/{pod.party}_{pod.name}_*"), key=lambda each: each.stat().st_mtime_ns, reverse=True
    )
    for directory in found:
        if runs := last_runs(directory):
            return runs
    return {}


async def read_kept(file: Path, tail: int | None, timestamps: bool) -> AsyncIterator[bytes]:
    async for data in read(file, LogOptions(tail=tail, timestamps=timestamps), lambda: False, SYSTEM_CLOCK):
        yield data
