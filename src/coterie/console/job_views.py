"""What the page shows of one job: its tasks and parties, where the time went with the reason for every wait, and what it used.

    KusciaJob, tasks, pods, events ──┐
    usage.log of our nodes ──────────┼──> rows and curves on one axis
    answered LogRequests ────────────┘

Everything is read with the rights of the person: what may not be read is missing, and `notes` says so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from coterie.http.errors import HttpProblem
from coterie.kube.api.errors import ApiError, Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.jobs import timeline
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.jobs.job_state import JobState, progress_text
from coterie.kuscia.api.jobs.timeline import HELD, Moment, Note
from coterie.kuscia.api.jobs.timeline_rows import ASKED, SHARED, PartnerShare, job_rows
from coterie.kuscia.api.log_query import ENGINE, MAX_LINES, SCHEDULER, USAGE, LogQuery, printable
from coterie.kuscia.api.log_requests import parsed_time
from coterie.kuscia.api.task_usage import LinkCurve, PodUsage, TaskUsage, UsageLine, thinned, usage_of
from coterie.kuscia.api.types.job import KusciaJob
from coterie.kuscia.api.types.log_request import LOG_REQUESTS, OPEN, LogRequest, LogRequestPhase
from coterie.kuscia.api.types.task_resource import ReservationPhase
from coterie.kuscia.control import job_snapshots
from coterie.kuscia.control.task_logs import ApiTaskLogs

_POINTS: Final = 720
"""Of one curve in an answer: about as many as a screen has pixels for it."""
_MOST_NOTES: Final = 50
_LONGEST_NOTE: Final = 400
_PREFIX: Final = re.compile(r"^(\S+ )?\w+ +[\w.]+: ")


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What log lines say about the tasks of a job."""

    usage: list[UsageLine] = field(default_factory=list)
    held: list[tuple[Moment, float]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


async def job_view(client: Client, name: str, now: float, *, recorded: bool = True) -> Object:
    """`now`: seconds since 1970. `recorded`: with what nodes recorded, which takes longer. HttpProblem: there is no such job, or the person may not see it."""
    try:
        seen = await job_snapshots.fetch_timeline(client, name)
    except job_snapshots.ObjectShapeError as problem:
        raise HttpProblem(500, "InternalError", str(problem)) from problem
    job = seen.job
    own = own_parties(job)
    requests = _requests(client, job, own)
    if recorded:
        (lines, unread), made = await asyncio.gather(_own_lines(client, job, own), requests)
    else:
        lines, unread, made = _Recorded(), (), await requests
    shared = [_shared(request, job) for request in made if request.status.answer is not None]
    usage = usage_of(line for each in (lines, *shared) for line in each.usage)
    facts = seen.facts | dict(held for each in (lines, *shared) for held in each.held)
    notes = timeline.wait_notes(job, seen.tasks, seen.events, now)
    notes = tuple(sorted((*notes, *(note for each in shared for note in each.notes)), key=lambda note: note.at))
    rows = job_rows(job, seen.tasks, facts, own, now, notes=notes, usage=usage)
    line = timeline.timeline(job, seen.facts, now)
    aliases = _aliases(job)
    return {
        "now": now,
        "state": {**asdict(seen.state), **_progress(seen.state)},
        "timeline": {
            **asdict(rows),
            "name": name,
            "chain": line.chain,
            "trace": line.trace,
            "notes": [asdict(note) for note in notes[-_MOST_NOTES:]],
            "own": own,
            "partners": [asdict(share) for share in partner_shares(job, own, made)],
            "unread": list(unread),
        },
        "usage": [_curves(each, aliases[each.task]) for each in usage if each.task in aliases],
    }


def _progress(state: JobState) -> Object:
    return {
        "progress": state.progress,
        "progressText": progress_text(state.progress),
        "done": state.done,
        "tasks": [{**asdict(task), "progressText": progress_text(task.progress)} for task in state.tasks],
    }


def _curves(used: TaskUsage, alias: str) -> Object:
    return {
        "task": alias,
        "pods": [_pod_curve(pod) for pod in used.pods],
        "links": [_link_curve(link) for link in used.links],
    }


def _pod_curve(pod: PodUsage) -> Object:
    points = thinned(list(pod.points), _POINTS)
    return {"party": pod.party, "pod": pod.pod, "reason": pod.reason, "points": _rounded(points)}


def _link_curve(link: LinkCurve) -> Object:
    points = thinned(list(link.points), _POINTS)
    return {"party": link.party, "peer": link.peer, "sent": link.sent, "received": link.received,
            "points": _rounded(points)}  # fmt: skip


def _rounded(points: Iterable[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    return [(round(at, 2), round(one, 4), round(two, 1)) for at, one, two in points]


# Our own nodes.


async def _own_lines(client: Client, job: KusciaJob, own: Sequence[str]) -> tuple[_Recorded, tuple[str, ...]]:
    """What our nodes and our scheduler recorded about the job's tasks, and what could not be read."""
    made = parsed_time(job.metadata.creation_timestamp or "")
    query = LogQuery(job=job.metadata.name, since=made, sources=(SCHEDULER, USAGE), limit=MAX_LINES)
    try:
        page = await ApiTaskLogs(client, own).query(query)
    except Forbidden:
        return _Recorded(), (f"what tasks used is not shown: that needs `get pods/log` in {', '.join(own)}",)
    except ApiError as problem:
        return _Recorded(), (f"what tasks used could not be read: {problem.message}",)
    aliases = _aliases(job)
    found = _Recorded()
    for line in page.lines:
        at = _moment(line.at)
        if at is not None and line.source == USAGE:
            found.usage.append(UsageLine(at, line.party, line.task, line.text))
        elif at is not None and (held := _held(at, _facts(line.text), aliases, own)) is not None:
            found.held.append(held)
    return found, page.notes


def _aliases(job: KusciaJob) -> dict[str, str]:
    return {template.task_id: template.alias for template in job.spec.tasks if template.task_id}


def _moment(stamp: str) -> float | None:
    """Of a log line, which has nanoseconds."""
    found = parsed_time(f"{stamp[:26]}Z" if len(stamp) > 27 else stamp)
    return found.timestamp() if found is not None else None


def _facts(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _held(
    at: float, facts: Mapping[str, str], aliases: Mapping[str, str], parties: Collection[str]
) -> tuple[Moment, float] | None:
    """The scheduler writes when room is held; its TaskResource is gone when the task has ended."""
    task, party = facts.get("task", "").rpartition("/")[2], facts.get("party", "")
    if facts.get("phase") != ReservationPhase.RESERVED or task not in aliases or party not in parties:
        return None
    return Moment(HELD, aliases[task], party), at


# Partners.


async def _requests(client: Client, job: KusciaJob, own: Collection[str]) -> list[LogRequest]:
    """Made by our parties about this job, the newest first; none where they may not be read."""
    found: list[LogRequest] = []
    for party in own:
        try:
            listed = (await client.list(LOG_REQUESTS, party)).items
        except (Forbidden, ApiError):
            continue
        found += [each for each in listed if each.spec.requester == party and each.spec.job == job.metadata.name]
    return sorted(found, key=lambda each: each.metadata.creation_timestamp or "", reverse=True)


def partner_shares(job: KusciaJob, own: Collection[str], requests: Sequence[LogRequest]) -> list[PartnerShare]:
    """Of each partner, about the whole job and about each task that it takes part in."""
    out = []
    for party in job.spec.party_domains:
        if party in own:
            continue
        out.append(_share(party, "", [each for each in requests if not each.spec.task]))
        for task in job.spec.tasks:
            if any(each.domain_id == party for each in task.parties):
                about = [each for each in requests if each.spec.task in ("", task.alias)]
                out.append(_share(party, task.alias, about))
    return out


def _share(party: str, task: str, requests: Iterable[LogRequest]) -> PartnerShare:
    """`requests`: the newest first. An answer that is still there counts more than a newer request without one."""
    mine = [each for each in requests if each.spec.owner == party]
    answered = next((each for each in mine if each.status.phase == LogRequestPhase.ANSWERED), None)
    chosen = answered or next(iter(mine), None)
    if chosen is None:
        return PartnerShare(party, task)
    status, answer = chosen.status, chosen.status.answer
    share = PartnerShare(
        party,
        task,
        request=chosen.metadata.name,
        phase=status.phase,
        message=printable(status.message)[:_LONGEST_NOTE],
        until=status.expire_time,
        lines=answer.lines if answer is not None else 0,
        sources=chosen.spec.sources or (ENGINE,),
    )
    if answered is not None:
        return replace(share, level=SHARED)
    return replace(share, level=ASKED) if status.phase in OPEN else share


def _shared(request: LogRequest, job: KusciaJob) -> _Recorded:
    """Of what a partner sent: usage of its pods, and what its scheduler said. Nothing else of it is believed."""
    aliases, owner, found = _aliases(job), request.spec.owner, _Recorded()
    for line in (request.status.answer.text if request.status.answer is not None else "").splitlines():
        stamp, _, rest = line.partition(" ")
        where, _, message = rest.partition(" ")
        at, source, facts = _moment(stamp), where.partition("/")[0], _facts(message)
        task = facts.get("task", "").rpartition("/")[2]
        if at is None or task not in aliases:
            continue
        if source == USAGE:
            found.usage.append(UsageLine(at, owner, task, message))
        elif source == SCHEDULER and (held := _held(at, facts, aliases, (owner,))) is not None:
            found.held.append(held)
        elif source == SCHEDULER and len(found.notes) < _MOST_NOTES:
            words = _sentence(message)
            about = f"{aliases[task]}, {owner}"
            found.notes.append(Note(at, at, about, words, 1, aliases[task], owner, by=owner))
    return found


def _sentence(line: str) -> str:
    """Of a log line: what it says, without the time, the level and the component."""
    return printable(_PREFIX.sub("", line))[:_LONGEST_NOTE]
