"""Where the time of a job went: for the job, its tasks and their parties, what they did from when to when. Pure.

    job     created ──check──> valid ──agree──> running ──run──> ended
    task    created ──prepare──> made ──reserve──> reserved ──start──> running ──run──> ended
    party                        made ──wait──> held ──reserve──> scheduled ──start, pull──> running ──run──> ended

`facts` reads which of these moments have come and, where the objects tell, when. Objects tell whole seconds. Whoever
looks on while a job runs can do better: a `PhaseTimes` notes when each moment was first seen. Of a partner's party only the
phase is known, which the partner reports: its bar has the times of the task and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from coterie.base.trace import trace_id
from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs import conditions
from coterie.kuscia.api.jobs.job_state import job_state
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import GroupPhase, JobPhase, KusciaJob, KusciaTask, TaskPhase, TaskResourceGroup
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource
from coterie.kuscia.api.waiting import waiting_since


class Moment(NamedTuple):
    what: str
    task: str = ""
    party: str = ""


Facts = Mapping[Moment, float | None]

CREATED, VALID, MADE, RESERVED, RUNNING, ENDED = "created", "valid", "made", "reserved", "running", "ended"
HELD, PULLING, PULLED, CLEANED = "held", "pulling", "pulled", "cleaned"
CHECK, AGREE, PREPARE, RESERVE, START, RUN = "check", "agree", "prepare", "reserve", "start", "run"
WAIT, PULL, CALL, DATA, END = "wait", "pull", "call", "data", "end"
KINDS = {
    CHECK: "the job is checked",
    AGREE: "the parties accept it and create it on their side",
    PREPARE: "ports, services and pods are made",
    WAIT: "the scheduler looks for room",
    RESERVE: "room is reserved at all parties",
    PULL: "the image is pulled",
    START: "the engine is started",
    RUN: "the engine works (a job: its tasks)",
    END: "pods and services are removed",
    CALL: "engines call each other",
    DATA: "data is read or written",
}
JOB_STEPS = ((VALID, CHECK), (RUNNING, AGREE), (ENDED, RUN))
TASK_STEPS = ((MADE, PREPARE), (RESERVED, RESERVE), (RUNNING, START), (ENDED, RUN))
PARTY_STEPS = ((HELD, WAIT), (RESERVED, RESERVE), (PULLING, START), (PULLED, PULL), (RUNNING, START), (ENDED, RUN))
_BEFORE_RUNNING = ("", JobPhase.INITIALIZED, JobPhase.AWAITING_APPROVAL, JobPhase.PENDING)


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    kind: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    depth: int
    spans: tuple[TimelineSpan, ...]
    reported: bool = False
    """A partner's party: what it reported. Where nobody looked on, the times are those of the task."""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about a wait: what the scheduler or another part said, and from when to when."""

    at: float
    until: float
    about: str
    """The task, or the party of a task."""
    sentence: str
    count: int = 1
    task: str = ""
    """Alias."""
    party: str = ""
    by: str = ""
    """The partner who said so; empty: our own control plane."""


@dataclass(frozen=True, slots=True)
class Timeline:
    name: str
    phase: str
    begin: float
    end: float
    bars: tuple[Bar, ...]
    exact: bool
    """The moments were seen as they came; else they are the objects' whole seconds."""
    chain: tuple[str, ...] = ()
    """The tasks that had to come one after the other for the job to take as long as it did."""
    trace: str = ""
    """The trace id of the job."""
    notes: tuple[Note, ...] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.begin


# Which moments have come.


def facts(
    job: KusciaJob,
    tasks: Iterable[KusciaTask],
    pods: Iterable[Pod] = (),
    groups: Iterable[TaskResourceGroup] = (),
    reservations: Iterable[TaskResource] = (),
    events: Iterable[Object] = (),
) -> dict[Moment, float | None]:
    """`pods`, `groups` and `reservations` are gone soon after a task ends, and `events` after an hour: with them a looker-on
    sees more."""
    phase = job.status.phase
    out: dict[Moment, float | None] = {Moment(CREATED): _time(job.metadata.creation_timestamp)}
    if phase not in ("", JobPhase.INITIALIZED):
        validated = find_condition(job.status.conditions, conditions.VALIDATED)
        out[Moment(VALID)] = _time(validated.last_transition_time) if validated is not None else None
    aliases = {template.task_id: template.alias for template in job.spec.tasks if template.task_id}
    own = [task for task in tasks if task.metadata.name in aliases]
    if own or phase not in _BEFORE_RUNNING:
        out[Moment(RUNNING)] = min((_time(task.metadata.creation_timestamp) or 0.0 for task in own), default=None)
    reserved = {group.metadata.name for group in groups if group.status.phase == GroupPhase.RESERVED}
    for task in own:
        _task_facts(out, task, aliases[task.metadata.name], task.metadata.name in reserved)
    for pod in pods:
        alias = aliases.get((pod.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, ""))
        if alias is not None:
            _pod_facts(out, pod, alias)
    for reservation in reservations:
        alias = aliases.get((reservation.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, ""))
        if alias is not None:
            _reservation_facts(out, reservation, alias)
    pods_of = _pods_by_name(own, aliases)
    for event in events:
        _pull_facts(out, event, pods_of)
    if job_state(job, ()).over:
        out[Moment(ENDED)] = _time(job.status.completion_time)
    return out


def _task_facts(out: dict[Moment, float | None], task: KusciaTask, alias: str, reserved: bool) -> None:
    status = task.status
    out[Moment(CREATED, alias)] = _time(task.metadata.creation_timestamp)
    for what, type_ in (
        (MADE, conditions.RESOURCE_CREATED),
        (RUNNING, conditions.RUNNING),
        (ENDED, conditions.SUCCESS),
    ):
        condition = find_condition(status.conditions, type_)
        if condition is not None and (condition.status == "True" or (what == ENDED and status.phase in TASK_ENDED)):
            out[Moment(what, alias)] = _time(condition.last_transition_time)
    if status.phase in TASK_ENDED and (cleaned := _time(status.completion_time)) is not None:
        out[Moment(CLEANED, alias)] = cleaned
    pods = list((status.pod_statuses or {}).values())
    scheduled = [found for pod in pods if (found := _time(pod.schedule_time)) is not None]
    if reserved or (pods and len(scheduled) == len(pods)):
        out[Moment(RESERVED, alias)] = max(scheduled, default=None)
    for pod in pods:
        _note(out, Moment(MADE, alias, pod.namespace), _time(pod.create_time))
        if pod.schedule_time:
            _note(out, Moment(RESERVED, alias, pod.namespace), _time(pod.schedule_time))
        if pod.pod_phase in ("Running", "Succeeded"):
            _note(out, Moment(RUNNING, alias, pod.namespace), _time(pod.ready_time) or _time(pod.start_time))
    for party in status.party_task_status or ():
        # Of a partner's party this is all that is known.
        if party.phase in (TaskPhase.RUNNING, TaskPhase.SUCCEEDED):
            _note(out, Moment(RUNNING, alias, party.domain_id), None)
        if party.phase in TASK_ENDED:
            _note(out, Moment(ENDED, alias, party.domain_id), out.get(Moment(ENDED, alias)))


def _pod_facts(out: dict[Moment, float | None], pod: Pod, alias: str) -> None:
    party = pod.metadata.namespace
    _note(out, Moment(MADE, alias, party), _time(pod.metadata.creation_timestamp))
    if pod.spec.node_name:
        scheduled = find_condition(pod.status.conditions, "PodScheduled")
        _note(
            out,
            Moment(RESERVED, alias, party),
            _time(scheduled.last_transition_time) if scheduled is not None else None,
        )
    if pod.status.phase in ("Running", "Succeeded", "Failed"):
        _note(out, Moment(RUNNING, alias, party), None)
    if pod.status.phase in ("Succeeded", "Failed"):
        _note(out, Moment(ENDED, alias, party), None)


def _reservation_facts(out: dict[Moment, float | None], reservation: TaskResource, alias: str) -> None:
    """From when on room is held: of one that went on, that is when it was no longer Reserving."""
    found, namespace = reservation.status.conditions, reservation.metadata.namespace
    held, before = find_condition(found, ReservationPhase.RESERVED), find_condition(found, ReservationPhase.RESERVING)
    if held is not None and held.status == "True":
        _note(out, Moment(HELD, alias, namespace), _time(held.last_transition_time))
    elif held is not None and before is not None and before.status == "False":
        _note(out, Moment(HELD, alias, namespace), _time(before.last_transition_time))


def _pods_by_name(tasks: Iterable[KusciaTask], aliases: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """(party, pod) -> alias of the task."""
    return {
        (pod.namespace, pod.pod_name): aliases[task.metadata.name]
        for task in tasks
        for pod in (task.status.pod_statuses or {}).values()
    }


def _pull_facts(out: dict[Moment, float | None], event: Object, pods: Mapping[tuple[str, str], str]) -> None:
    what = {"Pulling": PULLING, "Pulled": PULLED}.get(event.get("reason") or "")
    party, pod = _about(event)
    alias = pods.get((party, pod))
    if what is not None and alias is not None:
        out.setdefault(Moment(what, alias, party), _event_times(event)[0])


def _about(event: Object) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return about.get("namespace") or "", about.get("name") or ""


def _event_times(event: Object) -> tuple[float | None, float | None]:
    """The first and the last time."""
    first = _time(event.get("firstTimestamp") or event.get("eventTime"))
    last = _time((event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp"))
    return first, last if last is not None else first


def wait_notes(job: KusciaJob, tasks: Iterable[KusciaTask], events: Iterable[Object], now: float) -> tuple[Note, ...]:
    """What was said about waits: warnings about pods and tasks, what they waited for, and what tasks wait for now."""
    aliases = {template.task_id: template.alias for template in job.spec.tasks if template.task_id}
    own = [task for task in tasks if task.metadata.name in aliases]
    pods = _pods_by_name(own, aliases)
    found = []
    for event in events:
        party, name = _about(event)
        alias = pods.get((party, name)) or aliases.get(name)
        if alias is None and name == job.metadata.name:
            alias = ""
        first, last = _event_times(event)
        reason, message = event.get("reason") or "", event.get("message") or ""
        wanted = event.get("type") == "Warning" or reason == conditions.WAITING
        if not wanted or alias is None or first is None or last is None:
            continue
        where = party if (party, name) in pods else ""
        about = f"{alias}, {where}" if where else alias or "job"
        count = max(int(event.get("count") or 1), int((event.get("series") or {}).get("count") or 1))
        sentence = message if reason == conditions.WAITING else f"{reason}: {message}"
        found.append(Note(first, last, about, sentence.strip(), count, alias, where))
    for task in own:
        since = _time(waiting_since(task.status.conditions))
        if task.status.phase not in TASK_ENDED and task.status.message:
            begin = since if since is not None else _time(task.metadata.creation_timestamp) or now
            alias = aliases[task.metadata.name]
            found = [each for each in found if (each.task, each.sentence) != (alias, task.status.message)]
            found.append(Note(begin, now, alias, task.status.message, task=alias))
    if not own and job.status.message and not job_state(job, ()).over:
        since = _time(waiting_since(job.status.conditions) or job.metadata.creation_timestamp)
        found.append(Note(since or now, now, "job", job.status.message))
    return tuple(sorted(found, key=lambda note: note.at))


def _note(out: dict[Moment, float | None], what: Moment, when: float | None) -> None:
    """A party may have several pods: it is as far as the last of them."""
    known = out.get(what)
    out[what] = when if known is None else known if when is None else max(known, when)


def _time(text: str | None) -> float | None:
    found = parse_time(text)
    return found.timestamp() if found is not None else None


@dataclass
class PhaseTimes:
    """Notes when moments were first seen."""

    seen: dict[Moment, float] = field(default_factory=dict)

    def note(self, come: Facts, at: float) -> None:
        for what in come:
            self.seen.setdefault(what, at)


# The timeline of these moments.


def timeline(
    job: KusciaJob,
    times: Facts,
    now: float,
    *,
    exact: bool = False,
    notes: tuple[Note, ...] = (),
    details: Mapping[tuple[str, str], Sequence[Bar]] | None = None,
) -> Timeline:
    """`details`: bars that belong to a party of a task, by alias and party."""
    state = job_state(job, ())
    known = {what: when for what, when in times.items() if when is not None}
    begin = known.get(Moment(CREATED), min(known.values(), default=now))
    end = max(known.get(Moment(ENDED), now if not state.over else begin), begin)
    bars = [Bar(state.name, 0, stage_spans(known, "", "", (CREATED,), JOB_STEPS, end))]
    for task in state.tasks:
        spans = with_end(stage_spans(known, task.alias, "", (CREATED,), TASK_STEPS, end), known, task.alias)
        if not spans:
            continue
        bars.append(Bar(task.alias, 1, spans))
        placed = any(Moment(MADE, task.alias, party.domain) in times for party in task.parties)
        for party in dict.fromkeys(party.domain for party in task.parties):
            until = known.get(Moment(ENDED, task.alias), end)
            inner = stage_spans(known, task.alias, party, (MADE, RUNNING), PARTY_STEPS, until)
            # Pods of a partner are never seen.
            reported = Moment(MADE, task.alias, party) not in times
            if inner:
                bars.append(Bar(party, 2, inner, reported))
                bars += (details or {}).get((task.alias, party), ())
            elif reported and placed:
                bars.append(Bar(party, 2, reported_spans(known, task.alias, until), reported=True))
    last = max((bar.spans[-1].end for bar in bars if bar.spans), default=end)
    after = {task.alias: task.after for task in state.tasks}
    trace = trace_id(job.spec.initiator, job.metadata.name)
    whole = max(end, last)
    return Timeline(state.name, state.phase, begin, whole, tuple(bars), exact, _chain(known, after), trace, notes)


def of_task(line: Timeline, alias: str) -> Timeline:
    """Only this task: its bar, those below it, and its notes, on an axis of its own."""
    first = next((at for at, bar in enumerate(line.bars) if bar.depth == 1 and bar.label == alias), None)
    if first is None:
        return replace(line, bars=(), notes=(), chain=())
    last = next((at for at in range(first + 1, len(line.bars)) if line.bars[at].depth <= 1), len(line.bars))
    bars = tuple(line.bars[first:last])
    spans = [span for bar in bars for span in bar.spans]
    return replace(
        line,
        name=f"{line.name}/{alias}",
        begin=min((span.begin for span in spans), default=line.begin),
        end=max((span.end for span in spans), default=line.end),
        bars=bars,
        chain=(alias,),
        notes=tuple(note for note in line.notes if note.task == alias),
    )


def with_end(spans: tuple[TimelineSpan, ...], known: Mapping[Moment, float], task: str) -> tuple[TimelineSpan, ...]:
    """With the time in which its pods and services were removed."""
    ended, cleaned = known.get(Moment(ENDED, task)), known.get(Moment(CLEANED, task))
    if not spans or ended is None or cleaned is None or cleaned <= max(ended, spans[-1].end):
        return spans
    return (*spans, TimelineSpan(END, max(ended, spans[-1].end), cleaned))


def reported_spans(known: Mapping[Moment, float], task: str, end: float) -> tuple[TimelineSpan, ...]:
    """Of a partner's party: what the task knows. All parties have reserved before one of them starts."""
    return stage_spans(known, task, "", (MADE, CREATED), TASK_STEPS[1:], end)


def stage_spans(
    known: Mapping[Moment, float],
    task: str,
    party: str,
    first: tuple[str, ...],
    steps: tuple[tuple[str, str], ...],
    end: float,
) -> tuple[TimelineSpan, ...]:
    """What is not known is part of the step that follows it; what has not ended goes on to the end."""
    at = next((known[m] for what in first if (m := Moment(what, task, party)) in known), None)
    if at is None:
        return ()
    out = []
    doing = steps[0][1]
    for number, (what, kind) in enumerate(steps):
        when = known.get(Moment(what, task, party))
        if when is not None:
            when = max(when, at)
            out.append(TimelineSpan(kind, at, when))
            at = when
            doing = steps[number + 1][1] if number + 1 < len(steps) else ""
    if doing and Moment(steps[-1][0], task, party) not in known and end > at:
        out.append(TimelineSpan(doing, at, end))
    return tuple(span for span in out if span.seconds > 0) or tuple(out[-1:])


def _chain(known: Mapping[Moment, float], after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """From the task that ended last back over the dependency that kept each one waiting longest."""
    ended = {alias: known[Moment(ENDED, alias)] for alias in after if Moment(ENDED, alias) in known}
    if not ended:
        return ()
    chain = [max(ended, key=lambda alias: ended[alias])]
    while True:
        before = [alias for alias in after[chain[0]] if alias in ended and alias not in chain]
        if not before:
            return tuple(chain)
        chain.insert(0, max(before, key=lambda alias: ended[alias]))


def shares(line: Timeline) -> list[tuple[str, float]]:
    """How many seconds of the job each kind of doing took along the chain, and what is left between them."""
    wanted = {bar.label: bar for bar in line.bars if bar.depth == 1}
    own = line.bars[0].spans if line.bars else ()
    counted = dict.fromkeys(KINDS, 0.0)
    for span in own:
        if span.kind in (CHECK, AGREE):
            counted[span.kind] += span.seconds
    for alias in line.chain:
        for span in wanted[alias].spans if alias in wanted else ():
            counted[span.kind] += span.seconds
    rest = line.seconds - sum(counted.values())
    out = [(kind, seconds) for kind, seconds in counted.items() if seconds > 0]
    return [*out, ("between", rest)] if rest > 1e-6 else out
