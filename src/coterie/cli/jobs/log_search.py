"""`coterie job logs` with a query: pages of all sources, printed in the order of time, followed until the job has ended.

Pages come newest first. Lines are collected until there are as many as wanted, and printed oldest first.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from coterie.kuscia.api.log_query import ENGINE, LogLine, LogQuery, TaskLogs, printable

OVERLAP: Final = timedelta(seconds=15)
"""Following asks again for this much: the gateway writes its lines seconds after their time."""
_MAX_REMEMBERED: Final = 100_000


async def collect(
    logs: TaskLogs, query: LogQuery, most: int, note: Callable[[str], None]
) -> tuple[list[LogLine], bool]:
    """The newest `most` lines (0: all), oldest first; whether there are more. `note` gets what could not be read, once."""
    pages: deque[tuple[LogLine, ...]] = deque()
    count, noted = 0, set[str]()
    while True:
        page = await logs.query(query)
        for each in page.notes:
            if each not in noted:
                noted.add(each)
                note(each)
        pages.appendleft(page.lines)
        count += len(page.lines)
        if not page.cursor or (most and count >= most):
            lines = [line for lines in pages for line in lines]
            cut = bool(most) and len(lines) > most
            return (lines[-most:] if cut else lines), cut or bool(page.cursor)
        query = replace(query, cursor=page.cursor)


@dataclass(slots=True)
class Followed:
    """Gives each line once, although queries overlap."""

    query: LogQuery
    since: datetime | None = None
    _seen: dict[LogLine, None] = field(default_factory=dict)

    def next_query(self) -> LogQuery:
        return replace(self.query, since=self.since or self.query.since, cursor="")

    def fresh(self, lines: list[LogLine]) -> list[LogLine]:
        out = [line for line in lines if line not in self._seen]
        self._seen.update(dict.fromkeys(out))
        newest = max((moment for line in lines if (moment := time_of(line)) is not None), default=None)
        if newest is not None:
            begin = newest - OVERLAP
            if self.since is None or begin > self.since:
                self.since = begin
                kept = [line for line in self._seen if (time_of(line) or begin) >= begin]
                self._seen = dict.fromkeys(kept[-_MAX_REMEMBERED:])
        return out


def time_of(line: LogLine) -> datetime | None:
    try:
        return datetime.fromisoformat(line.at[:26]).replace(tzinfo=UTC)
    except ValueError:
        return None


def label_of(line: LogLine, aliases: dict[str, str]) -> str:
    """`party/task/pod` of engines, `party/task/source` of all else."""
    task = aliases.get(line.task, line.task) or "-"
    last = line.pod.removeprefix(f"{line.task}-") if line.source == ENGINE else line.source
    return f"{line.party or '-'}/{task}/{last}"


def text_of(line: LogLine, *, terminal: bool) -> list[str]:
    """The lines of it as they are printed."""
    lines = line.text.split("\n")
    return [printable(each) for each in lines] if terminal else lines


def json_of(line: LogLine, *, terminal: bool) -> str:
    """One line; on a terminal it has ASCII characters only."""
    known = {name: value for name, value in asdict(line).items() if value or name in ("at", "source", "text")}
    return json.dumps(known, ensure_ascii=terminal)
