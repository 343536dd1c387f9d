"""Reads log lines for a LogRequest and cuts secrets out of them.

The lines that are sent are those that contain the asked text *after* redaction: otherwise a partner could learn a secret by asking
for lines that contain a guess of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from coterie.base.redaction import Redactor
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kuscia.api.log_query import LogLine, LogQuery, TaskLogs, printable
from coterie.kuscia.api.log_requests import LogBounds, bounds_of, excerpt_of, shared_tasks, times_of
from coterie.kuscia.api.secret_values import secret_values
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.api.types.job import KusciaJob
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequestSpec

_PAGES: Final = 20
"""Pages that are read for one task at most: each is bounded in time."""
_SLICE: Final = 100
"""Lines after which other work has its turn."""
_SOURCES_OF_SECRETS: Final = (SECRETS, CONFIG_MAPS, DOMAIN_ROUTES)
_PODS = Kind.dynamic(builtin("pods"))


async def read_excerpt(
    logs: TaskLogs,
    spec: LogRequestSpec,
    job: KusciaJob,
    redactor: Redactor,
    now: datetime,
    generation: int,
) -> LogExcerpt:
    bounds = bounds_of(spec)
    found: list[LogLine] = []
    notes: list[str] = []
    more = False
    for task in shared_tasks(job, spec):
        if task.task_id:
            lines, left, unread = await _lines_of_task(logs, spec, task.task_id, bounds)
            found += lines
            notes += unread
            more = more or left
    found.sort(key=lambda line: line.at)
    shown = await _redacted(found, spec.grep, redactor)
    return excerpt_of(
        shown,
        bounds,
        now,
        redactions=redactor.total,
        truncated=more,
        notes=dict.fromkeys(redactor.line(note) for note in notes),
        generation=generation,
    )


async def _lines_of_task(
    logs: TaskLogs, spec: LogRequestSpec, task: str, bounds: LogBounds
) -> tuple[list[LogLine], bool, list[str]]:
    """The newest lines, whether there may be more, and what could not be read."""
    since, until = times_of(spec)
    lines: list[LogLine] = []
    notes: list[str] = []
    cursor = ""
    for _ in range(_PAGES):
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
        # Whatever answers: lines of others, of other tasks and of other sources do not leave.
        chosen = [
            line
            for line in page.lines
            if line.party == spec.owner and line.task == task and line.source in bounds.sources
        ]
        lines = [*chosen, *lines]
        cursor = page.cursor
        if not cursor or len(lines) >= bounds.lines:
            break
    return lines, bool(cursor), notes


async def _redacted(lines: Sequence[LogLine], grep: str, redactor: Redactor) -> list[str]:
    out: list[str] = []
    for number, line in enumerate(lines):
        text = printable(redactor.line(line.text, f"{line.source}/{line.pod}/{line.container}"))
        if not grep or grep in text:
            where = "/".join(each for each in (line.source, line.pod) if each)
            out.append(f"{line.at or '-'} {where} {text}")
        if number % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return out


async def known_secrets(client: Client, domain: str, job: KusciaJob) -> tuple[str, ...]:
    """What the control plane itself knows to be a credential of this domain, and what the job's input says to be one."""
    objects: list[Object] = [{"spec": msgspec.to_builtins(job.spec)}]
    for kind in _SOURCES_OF_SECRETS:
        page = await client.list(kind.as_dynamic, domain)
        objects += ({**item, "kind": kind.resource.kind} for item in page.items)
    objects += (await client.list(_PODS, domain)).items
    # Deploy tokens of all domains that joined: the log of a gateway may name any.
    objects += (await client.list(DOMAINS.as_dynamic)).items
    return secret_values(objects)
