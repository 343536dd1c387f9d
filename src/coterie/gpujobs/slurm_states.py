"""What Slurm says about a job, and what it means for the GpuJob. Pure.

squeue    who is in the queue, or ended within MinJobAge: the state
scontrol  of one job: exit code, times, nodes
sacct     the same from the accounting database, where there is one; also of jobs that are long gone
exit      a file that the job's script writes last: all that remains when the rest has forgotten the job
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from coterie.gpujobs.types import FAILED, RUNNING, SUCCEEDED, WAITING

PHASES = {
    "PENDING": WAITING,
    "CONFIGURING": WAITING,
    "REQUEUED": WAITING,
    "REQUEUE_FED": WAITING,
    "REQUEUE_HOLD": WAITING,
    "SPECIAL_EXIT": WAITING,
    "RESV_DEL_HOLD": WAITING,
    "SUSPENDED": WAITING,
    "STOPPED": WAITING,
    "RUNNING": RUNNING,
    "COMPLETING": RUNNING,
    "SIGNALING": RUNNING,
    "STAGE_OUT": RUNNING,
    "RESIZING": RUNNING,
    "COMPLETED": SUCCEEDED,
    "FAILED": FAILED,
    "TIMEOUT": FAILED,
    "OUT_OF_MEMORY": FAILED,
    "NODE_FAIL": FAILED,
    "BOOT_FAIL": FAILED,
    "DEADLINE": FAILED,
    "PREEMPTED": FAILED,
    "CANCELLED": FAILED,
    "REVOKED": FAILED,
    "LAUNCH_FAILED": FAILED,
    "RECONFIG_FAIL": FAILED,
}
_TERMINAL = frozenset(state for state, phase in PHASES.items() if phase in (SUCCEEDED, FAILED))
_GPU_COUNT = re.compile(r"(?:^|,)gres[/:]gpu(?:[:/][A-Za-z0-9_.-]+)?[=:](\d+)")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A line of squeue."""

    job_id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    started: int | None = None

    @property
    def result(self) -> SlurmResult:
        """Of a job that has not ended."""
        started = self.started if PHASES.get(self.state) == RUNNING else None
        return SlurmResult(self.state, started=started, nodes=self.nodes, reason=self.reason)


@dataclass(frozen=True, slots=True)
class SlurmResult:
    """What is known of one job. `code`: of a process that a signal ended 128 + the signal, as in shells."""

    state: str
    code: int | None = None
    started: int | None = None
    """Seconds since 1970, as all times."""
    ended: int | None = None
    nodes: str = ""
    gpus: int | None = None
    reason: str = ""

    @property
    def phase(self) -> str:
        """Slurm calls a job COMPLETED when the batch script ended with 0."""
        phase = PHASES.get(self.state, WAITING)
        return FAILED if phase == SUCCEEDED and self.code not in (None, 0) else phase

    @property
    def terminal(self) -> bool:
        return self.state in _TERMINAL


def state_word(text: str) -> str:
    """`CANCELLED by 1000` -> `CANCELLED`; `NODE_FAIL+` (cut by a column) -> `NODE_FAIL`."""
    word = text.strip().split(" ")[0].rstrip("+").upper()
    return word.partition(",")[0]


def is_terminal(state: str) -> bool:
    return state in _TERMINAL


def parse_queue(text: str) -> list[QueueEntry]:
    """`squeue -h -t all -o '%i|%j|%T|%r|%N|%S'`."""
    found = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) >= 3 and cells[0][:1].isdigit():
            reason, nodes, started = (*cells[3:6], "", "", "")[:3]
            state = state_word(cells[2])
            found.append(QueueEntry(cells[0], cells[1], state, _known(reason), _known(nodes), _seconds(started)))
    return found


def parse_scontrol(text: str, name: str) -> SlurmResult | None:
    """`scontrol show job -o ID`; None when there is no such line, or it is a job of another name."""
    for line in text.splitlines():
        if not line.startswith("JobId="):
            continue
        fields = dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word)
        if fields.get("JobName") != name:
            continue
        counted = gpu_count(fields.get("TRES", "")) or gpu_count(fields.get("TresPerNode", ""))
        return SlurmResult(
            state_word(fields.get("JobState", "")),
            exit_code(fields.get("ExitCode", "")),
            _seconds(fields.get("StartTime", "")),
            _seconds(fields.get("EndTime", "")),
            _known(fields.get("NodeList", "")),
            counted,
            _known(fields.get("Reason", "")),
        )
    return None


def parse_sacct(text: str, job_id: str, name: str) -> SlurmResult | None:
    """`sacct -X -n -P -o JobIDRaw,State,ExitCode,Start,End,NodeList,AllocTRES,JobName`. A job that was requeued has several lines; the last
    holds."""
    found = None
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) < 8 or (cells[0], cells[7]) != (job_id, name):
            continue
        counted = gpu_count(cells[6])
        started, ended = _seconds(cells[3]), _seconds(cells[4])
        found = SlurmResult(state_word(cells[1]), exit_code(cells[2]), started, ended, _known(cells[5]), counted)
    return found


def parse_exit_file(text: str) -> SlurmResult | None:
    """`KEY VALUE` lines: code, started, ended. None unless it is whole."""
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    if not fields.get("code", "").isdecimal() or not fields.get("ended", "").isdecimal():
        return None
    code = int(fields["code"])
    state = "COMPLETED" if code == 0 else "FAILED"
    return SlurmResult(
        state, code, _seconds(fields.get("started", "")), int(fields["ended"]), reason=fields.get("stage", "")
    )


def exit_code(text: str) -> int | None:
    """`7:0` -> 7, `0:9` -> 137."""
    code, _, signal = text.strip().partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def gpu_count(tres: str) -> int | None:
    """`cpu=4,gres/gpu=2,gres/gpu:a100=2`, or `gres:gpu:1`: the number of GPUs, without counting types twice."""
    found = [int(match) for match in _GPU_COUNT.findall(tres)]
    return max(found) if found else None


def parse_job_id(text: str) -> str:
    """`sbatch --parsable`: `ID[;CLUSTER]`; empty when it is none."""
    word = text.strip().partition(";")[0]
    return word if word.isdecimal() else ""


def find_named(entries: Iterable[QueueEntry], name: str) -> QueueEntry | None:
    return next((entry for entry in entries if entry.name == name), None)


def _seconds(text: str) -> int | None:
    """Times are asked for in seconds (SLURM_TIME_FORMAT=%s); Unknown, None and N/A mean that there is none."""
    return int(text) if text.isdecimal() else None


def _known(text: str) -> str:
    text = text.strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned") else text
