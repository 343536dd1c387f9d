"""The timeline of a job as rows of a page: job, tasks, parties and pods, each gap with its reason, each attempt apart. Pure.

    objects (timeline.py) ──┐
    usage.log of our nodes ─┼──> rows: who did what from when to when, and why it did not go on
    what partners shared ───┘

Of a partner's party without consent only the state of its task is known; its spans are those of the task, `reported`. What the
partner shares by an answered LogRequest with the source `usage` makes them its own times, and lines of its scheduler are reasons.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coterie.kube.api.meta import find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.jobs import conditions, timeline
from coterie.kuscia.api.jobs.job_state import JobState, PartyState, TaskState, job_state
from coterie.kuscia.api.jobs.timeline import (
    CREATED,
    ENDED,
    HELD,
    JOB_STEPS,
    MADE,
    PARTY_STEPS,
    RESERVE,
    RESERVED,
    RUN,
    RUNNING,
    START,
    TASK_STEPS,
    WAIT,
    Facts,
    Moment,
    Note,
    TimelineSpan,
)
from coterie.kuscia.api.task_usage import PodUsage, TaskUsage
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask, PodOfTask, TaskAttempt

JOB_ROW, TASK_ROW, PARTY_ROW, POD_ROW = "job", "task", "party", "pod"
QUEUE, PAUSE = "queue", "pause"
"""A task waits for those before it; a task that failed waits for its next attempt."""
STATE_ONLY, ASKED, SHARED = "state", "asked", "shared"
"""What a partner shows of its party: the state of the task; the same, while a request waits; stages and usage."""
_TASK_STEPS: Final = tuple((what, WAIT if kind == RESERVE else kind) for what, kind in TASK_STEPS)
_UNHELD_STEPS: Final = tuple((what, WAIT if kind == RESERVE else kind) for what, kind in PARTY_STEPS if what != HELD)
"""Where it is not known when room was held, all the time before is a wait."""
_WORKING: Final = frozenset((RUN,))
_PARTY: Final = re.compile(r"party ([a-z0-9.-]+): (.+)", re.DOTALL)
_POD: Final = re.compile(r"^pod [a-z0-9.-]+: ")
_SENTENCE: Final = re.compile(r"(Waiting for .*?)(?: \(since ([^()]+)\))?\. ([^ ].*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RowSpan:
    kind: str
    begin: float
    end: float
    going_on: bool = False
    sentence: str = ""
    """Who waits for what, as it was recorded; empty where the kind says it all."""
    next_step: str = ""
    count: int = 1
    by: str = ""
    """The partner who said so; empty: our own control plane."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    kind: str
    label: str
    spans: tuple[RowSpan, ...]
    task: str = ""
    """Alias."""
    party: str = ""
    pod: str = ""
    phase: str = ""
    message: str = ""
    attempt: int = 1
    reported: bool = False
    """Of a partner's party: its times are what the partner, or only the state of the task, says."""


@dataclass(frozen=True, slots=True)
class AttemptWindow:
    number: int
    begin: float
    end: float
    reason: str = ""
    """Why it failed; empty for the last one."""


@dataclass(frozen=True, slots=True)
class PartnerShare:
    """What a partner shows of its part of the job. `level`: STATE_ONLY, ASKED or SHARED."""

    party: str
    task: str = ""
    """Alias; empty: the whole job."""
    level: str = STATE_ONLY
    request: str = ""
    """Name of the LogRequest."""
    phase: str = ""
    message: str = ""
    until: str = ""
    lines: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRows:
    begin: float
    end: float
    rows: tuple[TimelineRow, ...]
    attempts: tuple[AttemptWindow, ...]
    """More than one only where a task was retried."""
    restarted: float | None = None
    """The job was restarted by a person; what was before is left out."""


@dataclass(frozen=True, slots=True)
class _GapReason:
    at: float
    task: str
    party: str
    sentence: str
    next_step: str
    count: int
    by: str


@dataclass(frozen=True, slots=True)
class _Known:
    job: KusciaJob
    state: JobState
    times: Mapping[Moment, float]
    own: Collection[str]
    reasons: tuple[_GapReason, ...]
    end: float
    over: bool


def job_rows(
    job: KusciaJob,
    tasks: Iterable[KusciaTask],
    facts: Facts,
    own: Collection[str],
    now: float,
    *,
    notes: Sequence[Note] = (),
    usage: Iterable[TaskUsage] = (),
) -> JobRows:
    """`own`: parties whose pods are ours. `usage`: of any party, by the ids of tasks."""
    made = list(tasks)
    state = job_state(job, made)
    used = {each.task: each for each in usage}
    aliases = {template.task_id: template.alias for template in job.spec.tasks if template.task_id}
    times = {what: when for what, when in facts.items() if when is not None}
    for task_id, found in used.items():
        if task_id in aliases:
            _add_measured(times, aliases[task_id], found.pods)
    restarted = _restarted(job)
    begin = times.get(Moment(CREATED), min(times.values(), default=now))
    if restarted is not None:
        begin = max(begin, restarted)
        times[Moment(CREATED)] = begin
    end = max(times.get(Moment(ENDED), now if not state.over else begin), begin)
    known = _Known(job, state, times, own, _gap_reasons(notes, own), end, state.over)
    by_alias = {aliases[task.metadata.name]: task for task in made if task.metadata.name in aliases}
    job_spans = timeline.stage_spans(times, "", "", (CREATED,), JOB_STEPS, end)
    rows = [
        TimelineRow(JOB_ROW, state.name, _with_reasons(known, job_spans, "", "", state.over), phase=state.phase, message=state.message)
    ]  # fmt: skip
    for each in state.tasks:
        attempts = (job.status.task_attempts or {}).get(each.id, ())
        last = _last_number(attempts)
        rows += _earlier(each, attempts[: last - 1], now)
        pods = used[each.id].pods if each.id in used else ()
        rows += _task_rows(known, each, by_alias.get(each.alias), pods, last)
    last_end = max((span.end for row in rows for span in row.spans), default=end)
    return JobRows(begin, max(end, last_end), tuple(rows), _windows(rows, begin, max(end, last_end)), restarted)


def _add_measured(times: dict[Moment, float], alias: str, pods: Sequence[PodUsage]) -> None:
    """What an agent saw is more exact than the whole seconds of objects. A party is as far as the last of its pods."""
    for party in dict.fromkeys(pod.party for pod in pods):
        found = [pod for pod in pods if pod.party == party]
        for what, moments in (
            (MADE, [pod.made for pod in found]),
            (RESERVED, [pod.scheduled for pod in found]),
            (RUNNING, [pod.began for pod in found]),
            (ENDED, [pod.ended for pod in found]),
        ):
            seen = [each for each in moments if each is not None]
            if len(seen) == len(found):
                key = Moment(what, alias, party)
                times[key] = min(seen) if what == MADE else max(seen)


def _restarted(job: KusciaJob) -> float | None:
    again = find_condition(job.status.conditions, conditions.RESTARTED)
    return _seconds(again.last_transition_time) if again is not None else None


# Tasks.


def _task_rows(
    known: _Known, task: TaskState, obj: KusciaTask | None, pods: Sequence[PodUsage], attempt: int
) -> list[TimelineRow]:
    alias, times = task.alias, known.times
    spans = timeline.with_end(timeline.stage_spans(times, alias, "", (CREATED,), _TASK_STEPS, known.end), times, alias)
    queued = _queued(known, task, spans[0].begin if spans else known.end, attempt)
    shown = (*queued, *_with_reasons(known, spans, alias, "", task.over))
    rows = [TimelineRow(TASK_ROW, alias, shown, task=alias, phase=task.phase, message=task.message, attempt=attempt)]
    until = times.get(Moment(ENDED, alias), known.end)
    for party in task.parties:
        if any(row.party == party.domain and row.kind == PARTY_ROW for row in rows):
            continue  # the same domain in another role: its pods are in one row
        own = party.domain in known.own
        steps = PARTY_STEPS if Moment(HELD, alias, party.domain) in times else _UNHELD_STEPS
        inner = timeline.stage_spans(times, alias, party.domain, (MADE,), steps, until)
        if not inner and not own:
            # Of a partner's party: what the task knows. All parties have reserved before one of them starts.
            inner = timeline.stage_spans(times, alias, "", (MADE, CREATED), _TASK_STEPS[1:], until)
        names = sorted(pod.pod_name for pod in _pods(obj) if pod.namespace == party.domain)
        names = names or sorted(pod.pod for pod in pods if pod.party == party.domain)
        rows.append(
            TimelineRow(
                PARTY_ROW,
                party.domain,
                _with_message(_with_reasons(known, inner, alias, party.domain, task.over), party, own),
                task=alias,
                party=party.domain,
                pod=names[0] if len(names) == 1 else "",
                phase=party.phase,
                message=party.message,
                attempt=attempt,
                reported=not own,
            )
        )
        if len(names) > 1:
            rows += [_pod_row(known, task, party.domain, name, obj, pods, until, attempt) for name in names]
    return rows


def _queued(known: _Known, task: TaskState, begin: float, attempt: int) -> tuple[RowSpan, ...]:
    """From when on the job ran until the task was made."""
    since = known.times.get(Moment(RUNNING))
    if since is None or attempt > 1 or begin - since < 0.5 or (not task.id and known.over):
        return ()
    waits = [each for each in task.after if known.times.get(Moment(ENDED, each), known.end) > since or not known.over]
    names = ", ".join(waits or task.after)
    sentence = f"Waiting for task {names}" if names else "Waiting for other tasks: the job runs only so many at a time"
    return (RowSpan(QUEUE, since, begin, begin >= known.end and not known.over, sentence),)


def _pods(task: KusciaTask | None) -> Iterable[PodOfTask]:
    return (task.status.pod_statuses or {}).values() if task is not None else ()


def _pod_row(
    known: _Known,
    task: TaskState,
    party: str,
    name: str,
    obj: KusciaTask | None,
    measured: Sequence[PodUsage],
    until: float,
    attempt: int,
) -> TimelineRow:
    listed = next((pod for pod in _pods(obj) if (pod.namespace, pod.pod_name) == (party, name)), None)
    used = next((pod for pod in measured if (pod.party, pod.pod) == (party, name)), None)
    made = (used.made if used else None) or (_seconds(listed.create_time) if listed else None)
    placed = (used.scheduled if used else None) or (_seconds(listed.schedule_time) if listed else None)
    began = used.began if used else None
    if began is None and listed is not None and listed.pod_phase not in ("", "Pending"):
        began = _seconds(listed.ready_time) or _seconds(listed.start_time)
    ended = used.ended if used else None
    times = {
        Moment(what, task.alias, party): when
        for what, when in ((MADE, made), (RESERVED, placed), (RUNNING, began), (ENDED, ended))
        if when is not None
    }
    spans = timeline.stage_spans(
        times, task.alias, party, (MADE,), ((RESERVED, WAIT), (RUNNING, START), (ENDED, RUN)), until
    )
    phase = listed.pod_phase if listed is not None else ""
    message = (listed.message or listed.reason) if listed is not None else ""
    return TimelineRow(
        POD_ROW,
        name,
        _with_reasons(known, spans, task.alias, party, task.over),
        task=task.alias,
        party=party,
        pod=name,
        phase=phase,
        message=message,
        attempt=attempt,
        reported=party not in known.own,
    )  # fmt: skip


# Reasons.


def _with_reasons(
    known: _Known, spans: Sequence[TimelineSpan], task: str, party: str, over: bool
) -> tuple[RowSpan, ...]:
    out = []
    for span in spans:
        going_on = not over and span is spans[-1] and span.end >= known.end
        out.append(_explained(RowSpan(span.kind, span.begin, span.end, going_on), known.reasons, task, party))
    return tuple(out)


def _explained(span: RowSpan, reasons: Iterable[_GapReason], task: str, party: str) -> RowSpan:
    """With what was said for the longest part of its time, about this party or else about its task. A sentence that says what
    to do goes first."""
    if span.kind in _WORKING:
        return span
    fitting = sorted(
        (each for each in reasons if (each.task, span.begin - 1 <= each.at <= span.end) == (task, True)),
        key=lambda each: each.at,
    )
    closest = [each for each in fitting if each.party == party] or [each for each in fitting if not each.party]
    if not closest:
        return span
    # What was said holds until something else is said.
    ends = [*(each.at for each in closest[1:]), span.end]
    chosen = max(zip(closest, ends, strict=True), key=lambda each: (bool(each[0].next_step), each[1] - each[0].at))[0]
    return replace(span, sentence=chosen.sentence, next_step=chosen.next_step, count=chosen.count, by=chosen.by)


def _gap_reasons(notes: Iterable[Note], own: Collection[str]) -> tuple[_GapReason, ...]:
    """The sentence of a task names what each party lacks: that is said about the parties too."""
    out = []
    for note in notes:
        what, next_step = split_sentence(note.sentence)
        out.append(_GapReason(note.at, note.task, note.party, what, next_step, note.count, note.by))
        if not note.task or note.party:
            continue
        for part in re.split(r"; (?=party )", what.removeprefix("Waiting for ")):
            if (found := _PARTY.fullmatch(part)) is not None:
                by = "" if found[1] in own else found[1]
                words = _POD.sub("", found[2])
                out.append(_GapReason(note.at, note.task, found[1], words, next_step, note.count, by))
    return tuple(out)


def _with_message(spans: tuple[RowSpan, ...], party: PartyState, own: bool) -> tuple[RowSpan, ...]:
    """With what the party says now about a wait."""
    last = spans[-1] if spans else None
    if last is None or last.kind in _WORKING or not last.going_on or last.sentence or not party.message:
        return spans
    return (*spans[:-1], replace(last, sentence=party.message, by="" if own else party.domain))


def split_sentence(text: str) -> tuple[str, str]:
    """What is waited for, and what to do about it; the time stands in the span."""
    found = _SENTENCE.fullmatch(text.strip())
    return (found[1], found[3].strip()) if found is not None else (text.strip(), "")


# Attempts.


def _last_number(failed: Sequence[TaskAttempt]) -> int:
    """Of the attempt that the objects show: the last failed one when there is none after it."""
    return max(1, len(failed) + (1 if not failed or failed[-1].retry_time else 0))


def _earlier(task: TaskState, failed: Sequence[TaskAttempt], now: float) -> list[TimelineRow]:
    """Rows of attempts whose objects are gone."""
    rows = []
    for each in failed:
        begin, end = _seconds(each.start_time), _seconds(each.end_time)
        if begin is None or end is None:
            continue
        again = _seconds(each.retry_time)
        spans = [RowSpan(RUN, begin, max(begin, end))]
        if again is not None and again > end:
            words = f"Waiting for attempt {each.attempt + 1}: the pause that retry.backoffSeconds asks for"
            spans.append(RowSpan(PAUSE, end, min(again, max(now, end)), again > now, words))
        message = ": ".join(part for part in (each.reason, each.message) if part)
        rows.append(
            TimelineRow(
                TASK_ROW,
                task.alias,
                tuple(spans),
                task=task.alias,
                phase="Failed",
                message=message,
                attempt=each.attempt,
            )
        )
    return rows


def _windows(rows: Sequence[TimelineRow], begin: float, end: float) -> tuple[AttemptWindow, ...]:
    """The time of each attempt without the pauses between them: all that happened before the next one began."""
    numbers = sorted({row.attempt for row in rows if row.kind == TASK_ROW})
    if len(numbers) < 2:
        return ()
    starts: dict[int, float] = {}
    for number in numbers:
        spans = [row.spans for row in rows if row.kind == TASK_ROW and row.attempt == number and row.spans]
        worked = [span.begin for each in spans for span in each if span.kind not in (QUEUE, PAUSE)]
        starts[number] = begin if number == 1 else min(worked, default=end)
    out = []
    for at, number in enumerate(numbers):
        before = starts[numbers[at + 1]] if at + 1 < len(numbers) else end
        ends = [
            min(span.end, before)
            for row in rows
            for span in row.spans
            if row.kind != JOB_ROW and span.kind not in (QUEUE, PAUSE) and starts[number] <= span.begin < before
        ]
        why = [row.message for row in rows if row.kind == TASK_ROW and row.attempt == number and row.phase == "Failed"]
        last = at + 1 == len(numbers)
        out.append(
            AttemptWindow(number, starts[number], end if last else max(ends, default=before), why[0] if why else "")
        )
    return tuple(out)


def _seconds(text: str | None) -> float | None:
    found = parse_time(text)
    return found.timestamp() if found is not None else None
