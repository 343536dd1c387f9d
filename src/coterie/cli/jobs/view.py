"""A job as lines of text: the picture that `watch` redraws, the lines that a log gets, the rows of `ls`. Pure.

The picture has a head (name, phase, bar), then a line for each task beside the drawing of who waits for whom. What does
not fit is left out in the order in which it is missed least: first what a task waits for, then the bars, then parties
go to a line of their own. A picture never has more lines than the terminal, or redrawing it would tear it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coterie.cli.jobs import graph
from coterie.cli.live_display import columns
from coterie.cli.terminal_format import TerminalFormat, cut, padded, safe
from coterie.kube.api.pod_state import parse_time
from coterie.kube.apiserver.tables.ages import human_duration
from coterie.kuscia.api.jobs.job_state import NOT_RUN, WAITING, JobState, PartyState, TaskState, progress_text
from coterie.kuscia.api.types.job import REJECTED, JobPhase, TaskPhase

_ROOMY, _NARROW = 100, 64
_MOST_LANES = 24
"""Columns; a wider drawing is replaced by the numbers of the layers."""


# The picture.


def picture(job: JobState, paper: TerminalFormat, now: float) -> list[str]:
    head = list(_head(job, paper, now))
    blocks = _blocks(job, paper, now)
    room = paper.height - len(head) if paper.height else 0
    body = _fitting(job, blocks, room, paper) if paper.height else [line for _, lines in blocks for line in lines]
    lines = [*head, *body]
    return lines[: paper.height] if paper.height else lines


def _head(job: JobState, paper: TerminalFormat, now: float) -> Iterator[str]:
    took = _took(job.created, job.ended, now)
    rest = f"  {job.done}/{len(job.tasks)} tasks"
    bar = f"  {paper.meter(job.progress)}"
    tail = f"  {took}" if took else ""
    room = paper.width - columns(job.phase) - 2
    least = min(12, columns(job.name))
    if room - columns(rest + bar + tail) < least:
        bar = ""
    if room - columns(rest + tail) < least:
        rest = ""
    name = cut(job.name, max(4, room - columns(rest + bar + tail)), paper.dots)
    line = f"{name}  {job.phase}{rest}{bar}{tail}"
    if columns(line) > paper.width:
        yield cut(line, paper.width, paper.dots)
    else:
        yield f"{paper.strong(name)}  {paper.paint(job.phase, job.phase)}{rest}{bar}{tail}"
    message = safe(_aged(job.message, job.waiting_since, now))
    if message:
        yield paper.paint(cut(message, paper.width, paper.dots), job.phase)


def _blocks(job: JobState, paper: TerminalFormat, now: float) -> list[tuple[TaskState | None, list[str]]]:
    rows = graph.lanes(job.tasks)
    wide = graph.width(rows)
    if wide > min(_MOST_LANES, paper.width // 3):
        digits = len(str(max((task.layer for task in job.tasks), default=0) + 1))
        rows = [graph.GraphRow(f"{task.layer + 1:>{digits}}  ", task, digits + 1) for task in job.tasks]
        wide = digits + 2
    longest = max((columns(safe(task.alias)) for task in job.tasks), default=0)
    alias = min(longest, max(8, (paper.width - wide) // 3))
    return [(row.task, _row(row, wide, alias, paper, now)) for row in rows]


def _row(row: graph.GraphRow, wide: int, alias: int, paper: TerminalFormat, now: float) -> list[str]:
    drawn, under = padded(row.lanes, wide + 2), padded(row.below, wide + 2)
    if not paper.letters:
        drawn, under = graph.plain_letters(drawn), graph.plain_letters(under)
    if row.task is None:
        return [paper.faint(drawn.rstrip())]
    task = row.task
    left = (
        paper.faint(drawn[: row.at])
        + paper.paint(paper.mark(task.phase), task.phase)
        + paper.faint(drawn[row.at + 1 :])
    )
    room = paper.width - wide - 2
    line, whole = _main_line(task, alias, room, paper, now)
    parties, more = _parties(task.parties, paper), []
    if not whole:
        fits = columns(parties.text) <= room - 2
        more.append(parties.painted if fits else cut(parties.text, room - 2, paper.dots))
    if message := safe(_aged(_why(task), task.waiting_since, now)):
        more.append(paper.paint(cut(message, room - 2, paper.dots), task.phase))
    return [(left + line).rstrip(), *(f"{paper.faint(under)}  {each}".rstrip() for each in more)]


def _main_line(task: TaskState, alias: int, room: int, paper: TerminalFormat, now: float) -> tuple[str, bool]:
    """As many pieces as there is room for, and whether the parties are among them."""
    pieces = _pieces(task, alias, paper, now)
    if columns(pieces[0].text) > room:
        return cut(pieces[0].text.rstrip(), room, paper.dots), False
    used = columns(pieces[0].text)
    kept = [pieces[0]]
    for piece in pieces[1:]:
        if used + 2 + columns(piece.text) <= room:
            kept.append(piece)
            used += 2 + columns(piece.text)
    parties = _parties(task.parties, paper)
    whole = used + 2 + columns(parties.text) <= room
    while not whole and not kept[-1].text.strip():
        kept.pop()
    if not whole:
        kept[-1] = replace(kept[-1], text=kept[-1].text.rstrip())
    line = "  ".join(paper.paint(piece.text, piece.phase) for piece in kept)
    if not whole:
        return line, False
    used += 2 + columns(parties.text)
    after = ("← " if paper.letters else "<- ") + ", ".join(task.after)
    shown = task.after and paper.width >= _ROOMY and used + 2 + columns(after) <= room
    return f"{line}  {parties.painted}" + (f"  {paper.faint(after)}" if shown else ""), True


def _why(task: TaskState) -> str:
    """What a task waits for, or what it ended by; one that ended well needs no word."""
    if task.phase not in (TaskPhase.FAILED, TaskPhase.PENDING, TaskPhase.RUNNING):
        return ""
    tolerated = task.tolerable and task.phase == TaskPhase.FAILED
    words = ["tolerated"] * tolerated + ["Stalled"] * task.stalled
    if task.failed_attempts and task.phase != TaskPhase.FAILED:
        words.append(f"attempt {task.failed_attempts + 1}")
    return "; ".join([*words, *([task.message] if task.message else [])])


def _aged(message: str, since: str, now: float) -> str:
    """A sentence with how long it holds already in place of since when: nobody writes that."""
    began = parse_time(since)
    if began is None:
        return message
    return message.replace(f"(since {since})", f"(for {human_duration(max(0.0, now - began.timestamp()))})")


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    phase: str = ""


def _pieces(task: TaskState, alias: int, paper: TerminalFormat, now: float) -> list[_Piece]:
    name = cut(safe(task.alias), alias, paper.dots)
    out = [_Piece(padded(name, alias)), _Piece(padded(task.phase, 9), task.phase)]
    if paper.width >= _NARROW:
        begun = task.phase in (TaskPhase.RUNNING, TaskPhase.SUCCEEDED)
        out.append(_Piece(paper.meter(task.progress) if begun else " " * columns(paper.meter(0))))
    took = _took(task.began, task.ended, now) if task.began is not None else ""
    out.append(_Piece(f"{took:>5}"))
    return out


@dataclass(frozen=True, slots=True)
class _Parties:
    text: str
    painted: str


def _parties(parties: Sequence[PartyState], paper: TerminalFormat) -> _Parties:
    texts = [f"{party.name} {paper.mark(party.phase)}" for party in parties]
    painted = [f"{party.name} {paper.paint(paper.mark(party.phase), party.phase)}" for party in parties]
    return _Parties("  ".join(texts), "  ".join(painted))


def _took(began: float | None, ended: float | None, now: float) -> str:
    if began is None:
        return ""
    return human_duration(max(0.0, (now if ended is None else ended) - began))


_INTEREST = (TaskPhase.FAILED, TaskPhase.RUNNING, TaskPhase.PENDING, WAITING, TaskPhase.SUCCEEDED, NOT_RUN)


def _fitting(
    job: JobState, blocks: Sequence[tuple[TaskState | None, list[str]]], room: int, paper: TerminalFormat
) -> list[str]:
    """All of it, or the most interesting tasks and a line that counts the others."""
    if sum(len(lines) for _, lines in blocks) <= room:
        return [line for _, lines in blocks for line in lines]
    own = {task.alias: lines for task, lines in blocks if task is not None}
    ranked = sorted(
        job.tasks, key=lambda task: _INTEREST.index(task.phase) if task.phase in _INTEREST else len(_INTEREST)
    )
    shown: set[str] = set()
    left = room - 1
    for task in ranked:
        if len(own[task.alias]) > left:
            break
        shown.add(task.alias)
        left -= len(own[task.alias])
    hidden = Counter(task.phase for task in job.tasks if task.alias not in shown)
    summary = ", ".join(f"{hidden[phase]} {phase}" for phase in _INTEREST if hidden[phase])
    body = [line for task in job.tasks if task.alias in shown for line in own[task.alias]]
    return [*body, paper.faint(cut(f"{paper.dots} and {summary}", paper.width, paper.dots))]


# Lines for a log.


def changes(before: JobState | None, after: JobState) -> list[str]:
    """What happened between two looks at a job, one line for each thing."""
    out = []
    if before is None or (before.phase, before.message) != (after.phase, after.message):
        message = safe(after.message)
        out.append(f"job {after.name} is {after.phase}" + (f": {message}" if message else ""))
    known = dict(before.approvals) if before is not None else {}
    for party, word in after.approvals:
        # Where nobody is asked, everybody has accepted from the start.
        asked = before is not None and before.phase == JobPhase.AWAITING_APPROVAL
        if asked and known.get(party) != word:
            out.append(f"{party} {'rejected' if word == REJECTED else 'accepted'} job {after.name}")
    earlier = {task.alias: task for task in before.tasks} if before is not None else {}
    for task in after.tasks:
        out += _task_changes(earlier.get(task.alias), task)
    # The job's own end comes last: whoever reads upwards finds it first.
    return [*out[1:], out[0]] if after.over and out and out[0].startswith("job ") else out


def _task_changes(before: TaskState | None, after: TaskState) -> Iterator[str]:
    if before is None:
        if after.phase in (WAITING, NOT_RUN):
            return
        before = replace(after, phase=WAITING, message="", progress=0.0, parties=())
    was = {(party.domain, party.role): party.phase for party in before.parties}
    moved = [
        f"{party.name} {party.phase}"
        for party in after.parties
        if was.get((party.domain, party.role), WAITING) != party.phase
    ]
    message = safe(_why(after))
    if before.phase != after.phase or (message and message != safe(_why(before))):
        details = f" ({', '.join(moved)})" if moved else ""
        yield f"task {after.alias} is {after.phase}{details}" + (f": {message}" if message else "")
    elif moved:
        yield f"task {after.alias}: {', '.join(moved)}"
    elif int(before.progress * 10) < int(after.progress * 10) and after.phase == TaskPhase.RUNNING:
        yield f"task {after.alias} is {progress_text(after.progress)} done"


# Rows of `ls`.

LIST_COLUMNS = ("NAME", "INITIATOR", "PHASE", "TASKS", "PROGRESS", "AGE", "DURATION", "MESSAGE")


def list_row(job: JobState, now: float) -> tuple[str, ...]:
    return (
        job.name,
        job.initiator,
        job.phase,
        f"{job.done}/{len(job.tasks)}",
        progress_text(job.progress),
        _took(job.created, None, now),
        _took(job.created, job.ended, now),
        safe(_aged(job.message, job.waiting_since, now)),
    )
