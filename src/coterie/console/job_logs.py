"""Lines of a job's logs for the page: the one query of `coterie job logs`, asked with the person's rights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Final

from coterie.http.errors import HttpProblem
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.log_query import LogQuery, LogQueryRefused, log_query, printable
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.control.task_logs import ApiTaskLogs

_LINES: Final = 500
_MOST_LINES: Final = 2000
LONGEST_LINE: Final = 8192
_LONGEST_PAGE: Final = 2 << 20
"""Characters of all lines together: with many lines each may be shorter."""
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_()#%][\x20-\x7e]?)"
)
"""Colours, cursor movements and titles of terminals: a page has no use for them."""


async def log_page(client: Client, name: str, params: Mapping[str, Sequence[str]], now: datetime) -> Object:
    """`params`: task, party, source (repeated), grep, since, until, cursor, limit."""
    query = _query(name, params, now)
    job = await client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
    own = own_parties(job)
    aliases = {task.task_id: task.alias for task in job.spec.tasks if task.task_id}
    if (alias := _one(params, "task")) and alias not in aliases.values():
        raise HttpProblem(404, "NotFound", f"job {name} has no task {alias[:64]} that has begun")
    asked = replace(query, task=next((id_ for id_, each in aliases.items() if each == alias), ""))
    try:
        page = await ApiTaskLogs(client, own).query(asked)
    except Forbidden as problem:
        raise HttpProblem(403, "Forbidden", f"{problem.message} (logs need `get pods/log`)") from problem
    longest = min(LONGEST_LINE, _LONGEST_PAGE // max(len(page.lines), 1))
    return {
        "lines": [
            {**asdict(line), "task": aliases.get(line.task, line.task), "text": plain(line.text, longest)}
            for line in page.lines
        ],
        "cursor": page.cursor,
        "notes": list(page.notes),
        "parties": list(job.spec.party_domains),
        "visible": list(own),
        "tasks": [task.alias for task in job.spec.tasks],
    }  # fmt: skip


def plain(text: str, longest: int = LONGEST_LINE) -> str:
    """Without escape sequences; other control characters are shown, and a line has an end."""
    found = printable(_ESCAPES.sub("", text[: longest * 2]))
    return found if len(found) <= longest else f"{found[: longest - 1]}…"


def _query(name: str, params: Mapping[str, Sequence[str]], now: datetime) -> LogQuery:
    limit = _one(params, "limit") or str(_LINES)
    if len(limit) > 4 or not limit.isdecimal() or not 0 < int(limit) <= _MOST_LINES:
        raise HttpProblem(400, "BadRequest", f"limit: must be between 1 and {_MOST_LINES}")
    try:
        return log_query(
            now=now,
            job=name,
            party=_one(params, "party"),
            since=_one(params, "since"),
            until=_one(params, "until"),
            grep=_one(params, "grep"),
            sources=[each for text in params.get("source") or () for each in text.split(",") if each],
            limit=int(limit),
            cursor=_one(params, "cursor"),
        )
    except LogQueryRefused as problem:
        raise HttpProblem(400, "BadRequest", str(problem)) from problem


def _one(params: Mapping[str, Sequence[str]], field: str) -> str:
    return (params.get(field) or [""])[-1]
