"""Reads log lines for a LogRequest and cuts secrets out of them.

The lines that are sent are those that contain the asked text *after* redaction: otherwise a partner could learn a secret by asking
for lines that contain a guess of it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from coterie.base.redaction import Redactor
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kuscia.api.log_query import LogLine, LogQuery, TaskLogs, printable
from coterie.kuscia.api.log_requests import MOST_BYTES, LogBounds, bounds_of, excerpt_of, readable_tasks, times_of
from coterie.kuscia.api.secret_values import secret_values
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequestSpec

_PAGES: Final = 20
"""Pages that are read for one task at most: each is bounded in time."""
_ALL_PAGES: Final = 40
"""For all tasks of a request together."""
_MOST_TEXT: Final = 4 * MOST_BYTES
"""Characters that are held before redaction."""
_SLICE_SECONDS: Final = 0.01
"""After which other work has its turn."""
_SOURCES_OF_SECRETS: Final = (SECRETS, CONFIG_MAPS, DOMAIN_ROUTES)
_PODS = Kind.dynamic(builtin("pods"))


async def read_excerpt(
    logs: TaskLogs,
    spec: LogRequestSpec,
    job: KusciaJob,
    own: Mapping[str, KusciaTask],
    redactor: Redactor,
    now: datetime,
    generation: int,
) -> LogExcerpt:
    """`own`: see `tasks_of_job`."""
    bounds = bounds_of(spec)
    found: list[LogLine] = []
    notes: list[str] = []
    more = False
    tasks = readable_tasks(job, spec, own)
    pages = max(1, min(_PAGES, _ALL_PAGES // max(1, len(tasks))))
    for task in tasks:
        lines, left, unread = await _lines_of_task(logs, spec, job, task.task_id, bounds, pages)
        notes += unread
        kept = _newest((*found, *lines), bounds.lines)
        more = more or left or len(kept) < len(found) + len(lines)
        found = kept
    shown, redactions = await _redacted(found, spec.grep, redactor)
    return excerpt_of(
        shown,
        bounds,
        now,
        redactions=redactions,
        # Also what is said about lines that do not leave would confirm a guess of what stands in them.
        truncated=more and bool(shown),
        notes=dict.fromkeys(redactor.line(note) for note in notes),
        generation=generation,
    )


async def _lines_of_task(
    logs: TaskLogs, spec: LogRequestSpec, job: KusciaJob, task: str, bounds: LogBounds, pages: int
) -> tuple[list[LogLine], bool, list[str]]:
    """The newest lines, whether there may be more, and what could not be read."""
    since, until = times_of(spec, job)
    lines: list[LogLine] = []
    notes: list[str] = []
    cursor = ""
    for _ in range(pages):
        query = LogQuery(
            job=spec.job,
            task=task,
            party=spec.owner,
            since=since,
            until=until,
            grep=re.escape(spec.grep),
            sources=bounds.sources,
            limit=bounds.lines - len(lines),
            cursor=cursor,
        )
        page = await logs.query(query)
        notes += page.notes
        # Whatever answers: lines of others, of other jobs and tasks and of other sources do not leave.
        chosen = [
            line
            for line in page.lines
            if line.party == spec.owner
            and line.task == task
            and line.job in ("", spec.job)
            and line.source in bounds.sources
        ]
        lines = _newest((*chosen, *lines), bounds.lines)
        cursor = page.cursor
        if not cursor or len(lines) >= bounds.lines:
            break
    return lines, bool(cursor), notes


def _newest(lines: Sequence[LogLine], most: int) -> list[LogLine]:
    """Oldest first, as many as one answer may need: whoever writes a log chooses how long its lines are."""
    kept: list[LogLine] = []
    size = 0
    for line in reversed(sorted(lines, key=lambda each: each.at)[-most:]):
        size += len(line.text)
        if size > _MOST_TEXT:
            break
        kept.append(line)
    return kept[::-1]


async def _redacted(lines: Sequence[LogLine], grep: str, redactor: Redactor) -> tuple[list[str], int]:
    """What may be shown, and how often something was cut out of that."""
    out: list[str] = []
    redactions = 0
    began = time.monotonic()
    for line in lines:
        before = redactor.total
        text = printable(redactor.line(line.text, f"{line.source}/{line.pod}/{line.container}"))
        if not grep or grep in text:
            where = "/".join(each for each in (line.source, line.pod) if each)
            out.append(f"{line.at or '-'} {where} {text}")
            redactions += redactor.total - before
        if time.monotonic() - began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.monotonic()
    return out, redactions


async def known_secrets(client: Client, domain: str, job: KusciaJob) -> tuple[str, ...]:
    """What the control plane itself knows to be a credential of this domain, and what the job's input says to be one."""
    objects: list[Object] = []
    for kind in _SOURCES_OF_SECRETS:
        page = await client.list(kind.as_dynamic, domain)
        objects += ({**item, "kind": kind.resource.kind} for item in page.items)
    objects += (await client.list(_PODS, domain)).items
    # Deploy tokens of all domains that joined: the log of a gateway may name any.
    objects += (await client.list(DOMAINS.as_dynamic)).items
    # The job last: a partner writes it, and the number of values is limited.
    return secret_values((*objects, {"spec": msgspec.to_builtins(job.spec)}))
