"""The tasks of a job as a drawing of lanes, as `git log --graph` draws commits, and as a Mermaid diagram. Pure.

    ●    split
    ├─┐
    ● │  train-a
    │ ●  train-b
    ├─┘
    ●    merge

Every lane is a dependency that is still open. A task stands on the first lane that leads to it; the others join it
in the line above, and one lane for each task that waits for it leaves in the line below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coterie.kuscia.api.jobs.job_state import NOT_RUN, JobState, TaskState
from coterie.kuscia.api.types.job import TaskPhase

_ASCII = str.maketrans({"│": "|", "─": "-", "├": "+", "┐": "+", "┘": "+", "┬": "+", "┴": "+", "┼": "-"})


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One line of the drawing: of a task, where `at` is the column of its mark, or between two."""

    lanes: str
    task: TaskState | None = None
    at: int = 0
    below: str = ""
    """The lanes that go on under a task, for lines between it and the next row."""


def lanes(tasks: Sequence[TaskState]) -> list[GraphRow]:
    """`tasks`: each after those it waits for. Lines are as wide as their lanes; nothing is padded."""
    known = {task.alias for task in tasks}
    waiting: dict[str, list[str]] = {}
    for task in tasks:
        for other in task.after:
            waiting.setdefault(other, []).append(task.alias)
    open_: list[str] = []
    """By column: the task a lane leads to; empty where there is none."""
    rows: list[GraphRow] = []
    for task in tasks:
        arriving = [i for i, target in enumerate(open_) if target == task.alias]
        at = arriving[0] if arriving else _free(open_, 0)
        if len(arriving) > 1:
            rows.append(GraphRow(_joint(open_, at, arriving[1:], "┘", "┴")))
            for i in arriving[1:]:
                open_[i] = ""
        open_[at] = task.alias
        here = _plain(open_)
        onward = [alias for alias in waiting.get(task.alias, ()) if alias in known]
        open_[at] = onward[0] if onward else ""
        rows.append(GraphRow(here, task, 2 * at, _plain(open_)))
        fresh = []
        for alias in onward[1:]:
            fresh.append(_free(open_, at + 1))
            open_[fresh[-1]] = alias
        if fresh:
            rows.append(GraphRow(_joint(open_, at, fresh, "┐", "┬")))
        while open_ and not open_[-1]:
            open_.pop()
    return rows


def _free(open_: list[str], start: int) -> int:
    for i in range(start, len(open_)):
        if not open_[i]:
            return i
    open_.append("")
    return len(open_) - 1


def _plain(open_: Sequence[str]) -> str:
    return " ".join("│" if target else " " for target in open_).rstrip()


def _joint(open_: Sequence[str], at: int, others: Sequence[int], last: str, middle: str) -> str:
    """A line in which the lane `at` meets the lanes `others`, all of them to its right."""
    end = max(others)
    out = []
    for i, target in enumerate(open_):
        inside = at <= i < end
        if i == at:
            sign = "├"
        elif i in others:
            sign = last if i == end else middle
        elif inside:
            sign = "┼" if target else "─"
        else:
            sign = "│" if target else " "
        out.append(sign + ("─" if inside else " "))
    return "".join(out).rstrip()


def plain_letters(text: str) -> str:
    return text.translate(_ASCII)


def width(rows: Iterable[GraphRow]) -> int:
    return max((len(row.lanes) for row in rows), default=0)


# Mermaid.

_CLASSES = {
    TaskPhase.SUCCEEDED: "done",
    TaskPhase.FAILED: "failed",
    TaskPhase.RUNNING: "running",
    TaskPhase.PENDING: "pending",
    NOT_RUN: "never",
}
_DEFINITIONS = (
    "classDef done fill:#d3f2d8,stroke:#2f7d3b,color:#123",
    "classDef failed fill:#f9d2d0,stroke:#b3261e,color:#123",
    "classDef running fill:#d5e6fb,stroke:#2457a6,color:#123",
    "classDef pending fill:#fcefc7,stroke:#9a6b00,color:#123",
    "classDef never fill:#eeeeee,stroke:#999999,color:#666",
)


def mermaid(job: JobState) -> str:
    """A flowchart that renderers of Mermaid understand; tasks are numbered because aliases may hold anything."""
    return "\n".join(_mermaid(job)) + "\n"


def _mermaid(job: JobState) -> Iterator[str]:
    number = {task.alias: f"t{i}" for i, task in enumerate(job.tasks)}
    yield "flowchart TD"
    used = set()
    for task in job.tasks:
        parties = ", ".join(party.name for party in task.parties)
        shape = _CLASSES.get(task.phase, "")
        used.add(shape)
        label = f"{_escaped(task.alias)}<br/>{_escaped(parties)}<br/>{task.phase}"
        yield f'  {number[task.alias]}["{label}"]' + (f":::{shape}" if shape else "")
    for task in job.tasks:
        for other in task.after:
            if other in number:
                yield f"  {number[other]} --> {number[task.alias]}"
    for definition in _DEFINITIONS:
        if definition.split()[1] in used:
            yield f"  {definition}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
