"""What may be asked of the logs of a job, and what is answered.

A query names a job or a task. Lines come from the engine's output and from the logs of the components that worked for the
task; `source` follows from the file that a line stands in, never from its text. Pages are read from the newest line to the
oldest; each page lists its lines oldest first, and its cursor leads to the lines before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from coterie.base.clock import parse_rfc3339, rfc3339_micro
from coterie.kube.api.names import dns_subdomain_faults

ENGINE: Final = "engine"
GATEWAY: Final = "gateway"
SCHEDULER: Final = "scheduler"
DATAMESH: Final = "datamesh"
CONTROLLER: Final = "controller"
SOURCES: Final = (ENGINE, GATEWAY, SCHEDULER, DATAMESH, CONTROLLER)
"""`controller` includes interconn, KusciaAPI and the agent: whatever of the node itself is none of the others."""
USAGE: Final = "usage"
"""CPU, memory and bytes of tasks (`task_usage.py`). Only for those who name it: figures are no lines for people."""
ALL_SOURCES: Final = (*SOURCES, USAGE)

DEFAULT_LINES: Final = 1000
MAX_LINES: Final = 10_000
LONGEST_PATTERN: Final = 512

_AGO: Final = re.compile(r"(?=.)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")
_CURSOR: Final = re.compile(r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z)?")
"""The time of the oldest line of the page before; machines that clean up or restart meanwhile do not matter."""


class LogQueryRefused(ValueError):
    """The query cannot be asked; the message begins with the name of the field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Made by `log_query`, which checks it. Of `job` and `task` (a task id) at least one is set."""

    job: str = ""
    task: str = ""
    party: str = ""
    since: datetime | None = None
    until: datetime | None = None
    grep: str = ""
    """A Python regular expression over the bytes of one line."""
    sources: tuple[str, ...] = SOURCES
    limit: int = DEFAULT_LINES
    """Lines of one page."""
    cursor: str = ""
    """From the page before; empty for the newest lines."""


@dataclass(frozen=True, slots=True)
class LogLine:
    at: str
    """RFC 3339 in UTC with nine digits of a second, so that it sorts as text; empty where the line has no time."""
    source: str
    party: str
    task: str
    """The task's id; empty where the line is about the whole job."""
    pod: str
    text: str
    """Without its line break. Control characters are still in it: see `printable`."""
    job: str = ""
    container: str = ""
    node: str = ""
    level: str = ""
    """Only of components that write structured lines."""


@dataclass(frozen=True, slots=True)
class LogPage:
    lines: tuple[LogLine, ...]
    """Oldest first."""
    cursor: str = ""
    """Leads to the lines before these; empty at the end."""
    notes: tuple[str, ...] = ()
    """What could not be read, one sentence each: a node that does not answer, a source that another machine has."""


class TaskLogs(Protocol):
    async def query(self, query: LogQuery) -> LogPage:
        """One page. It may have fewer lines than asked for, or none, and still a cursor: the search is bounded in time."""
        ...


def log_query(
    *,
    now: datetime,
    job: str = "",
    task: str = "",
    party: str = "",
    since: str = "",
    until: str = "",
    grep: str = "",
    sources: Iterable[str] = (),
    limit: int = 0,
    cursor: str = "",
) -> LogQuery:
    """A query from what a person or a program wrote. Raises LogQueryRefused."""
    if not job and not task:
        raise LogQueryRefused("job", "name a job or a task")
    for field, name in (("job", job), ("task", task), ("party", party)):
        if name and (faults := dns_subdomain_faults(name)):
            raise LogQueryRefused(field, f"{name[:64]!r} is no name: {faults[0]}")
    begin, end = moment("since", since, now), moment("until", until, now)
    if begin is not None and end is not None and begin > end:
        raise LogQueryRefused("since", f"{rfc3339_micro(begin)} is after until, {rfc3339_micro(end)}")
    if limit < 0 or limit > MAX_LINES:
        raise LogQueryRefused("limit", f"must be between 1 and {MAX_LINES}, not {limit}")
    if not _CURSOR.fullmatch(cursor):
        raise LogQueryRefused("cursor", "was not given by an earlier answer")
    return LogQuery(
        job=job,
        task=task,
        party=party,
        since=begin,
        until=end,
        grep=checked_pattern(grep),
        sources=checked_sources(sources),
        limit=limit or DEFAULT_LINES,
        cursor=cursor,
    )


def moment(field: str, text: str, now: datetime) -> datetime | None:
    """`10m`, `1h30m`, `2d` ago, or a time of RFC 3339."""
    if not text:
        return None
    if found := _AGO.fullmatch(text):
        days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
        try:
            return now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        except OverflowError:
            raise LogQueryRefused(field, f"{text[:64]!r} is too long ago") from None
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):
        example = "write 10m, 2h, 1d or a time such as 2026-01-02T03:04:05Z"
        raise LogQueryRefused(field, f"{text[:64]!r} is neither a duration nor a time; {example}") from None


def checked_pattern(pattern: str) -> str:
    """Whether it can be compiled. How long it may run is bounded where it runs."""
    if len(pattern) > LONGEST_PATTERN:
        raise LogQueryRefused("grep", f"has {len(pattern)} characters; at most {LONGEST_PATTERN} are allowed")
    try:
        compiled = re.compile(pattern.encode())
    except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as problem:
        raise LogQueryRefused("grep", f"is no regular expression: {problem}") from None
    if pattern and compiled.flags & re.LOCALE:
        raise LogQueryRefused("grep", "must not depend on a locale")
    return pattern


def checked_sources(sources: Iterable[str]) -> tuple[str, ...]:
    """In the order of ALL_SOURCES, each once; SOURCES when none is named."""
    named = set(sources)
    if unknown := sorted(named.difference(ALL_SOURCES)):
        raise LogQueryRefused("source", f"{unknown[0][:64]!r} is unknown; there are {', '.join(ALL_SOURCES)}")
    return tuple(each for each in ALL_SOURCES if each in named) or SOURCES


def printable(text: str) -> str:
    r"""The text as a terminal may show it: control characters, also of Unicode's C1 range and those that change the direction
    of writing, are shown as `\x1b`. Tabs stay."""
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0]), text)


_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
