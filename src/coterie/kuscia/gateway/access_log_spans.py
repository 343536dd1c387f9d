"""Spans of what a task's engines said to each other through the gateway, from the access logs that Envoy writes anyway.

    internal.log   calls of our engines to the others        connect, calls
    external.log   calls of partners to our engines          calls

A call has no span of its own: an engine may make thousands. Of each task, side and host there is `connect`, from the first
attempt to the first answer, and `calls`, from the first to the last, with how many, how many failed, and how many bytes came
back. What a caller sends as `traceparent`, a partner above all, is a link of the span and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from coterie.base.clock import parse_rfc3339
from coterie.base.trace import Span, TraceParent, TraceRing, Value, new_span_id, parse_traceparent, span_id

IDLE = 60.0
"""Seconds after which calls that stopped are recorded; later ones are a span of their own."""
_MOST_HOPS = 1024
_MOST_LINKS = 4
_SECOND, _MILLISECOND = 1_000_000_000, 1_000_000
_LINE = re.compile(
    r'\S+ - \[([^\]]{20,35})\] (\S+) (\S+) "[^"]*" \S+ \S+ (\d{1,3}) \S+ \S+ (\d+|-) (\d+)(?: [\d-]+){0,3} - - \S+(?: (\S+))?'
)


class LoggedCall(NamedTuple):
    begin: int
    """Nanoseconds since 1970."""
    end: int
    source: str
    host: str
    status: int
    received: int
    sender: TraceParent | None
    """What the caller sent as `traceparent`."""


def parse_line(line: str) -> LoggedCall | None:
    found = _LINE.match(line)
    if found is None:
        return None
    try:
        begin = int(parse_rfc3339(found[1]).timestamp() * _SECOND)
    except ValueError:
        return None
    return LoggedCall(
        begin=begin,
        end=begin + int(found[6]) * _MILLISECOND,
        source=found[2],
        host=found[3],
        status=int(found[4]),
        received=int(found[5]) if found[5] != "-" else 0,
        sender=parse_traceparent(found[7]) if found[7] else None,
    )


class TracedTask(Protocol):
    @property
    def trace(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def job(self) -> str: ...


@dataclass(slots=True)
class _Hop:
    task: str
    trace: str
    parent: str
    job: str
    source: str
    begin: int
    end: int
    seen: float
    calls: int = 0
    failed: int = 0
    received: int = 0
    answered: bool = False
    links: list[TraceParent] = field(default_factory=list)


class GatewayHops:
    """What was read of the access logs so far, and not recorded."""

    def __init__(self, ring: TraceRing, domain: str) -> None:
        self._ring = ring
        self._domain = domain
        self._hops: dict[tuple[str, bool, str], _Hop] = {}

    def read(self, line: str, tasks: Mapping[str, TracedTask], now: float, *, outbound: bool) -> None:
        """`tasks` by name; lines about nothing of theirs are left. `now`: any clock in seconds."""
        found = parse_line(line)
        name = task_of(found.host, tasks) if found is not None else ""
        if found is None or not name:
            return
        task = tasks[name]
        key = (task.uid, outbound, found.host if outbound else found.source)
        hop = self._hops.get(key)
        if hop is None:
            if len(self._hops) >= _MOST_HOPS:
                self._ring.drop("hops")
                return
            parent = span_id("party", task.uid, self._domain)
            hop = _Hop(name, task.trace, parent, task.job, found.source, found.begin, found.end, now)
            self._hops[key] = hop
        hop.seen = now
        hop.begin, hop.end = min(hop.begin, found.begin), max(hop.end, found.end)
        hop.calls += 1
        hop.received += found.received
        hop.failed += found.status >= 500 or found.status == 0
        if found.sender is not None and len(hop.links) < _MOST_LINKS and found.sender not in hop.links:
            hop.links.append(found.sender)
        if outbound and not hop.answered and 0 < found.status < 500:
            hop.answered = True
            self._record(hop, f"connect to {found.host}", found.end, {"coterie.attempts": hop.calls})

    def flush(self, tasks: Mapping[str, TracedTask], now: float) -> None:
        """Record what is over: calls of tasks that are no longer there, and those that stopped."""
        known = {task.uid for task in tasks.values()}
        for key, hop in list(self._hops.items()):
            uid, outbound, peer = key
            if uid in known and now - hop.seen < IDLE:
                continue
            del self._hops[key]
            about = {"coterie.calls": hop.calls, "coterie.failed_calls": hop.failed, "coterie.bytes": hop.received}
            error = "" if hop.failed < hop.calls else "no call was answered"
            self._record(hop, f"calls {'to' if outbound else 'from'} {peer}", hop.end, about, error, hop.links)

    def _record(
        self,
        hop: _Hop,
        name: str,
        end: int,
        about: Mapping[str, int],
        error: str = "",
        links: list[TraceParent] | None = None,
    ) -> None:
        marks: dict[str, Value] = {
            "coterie.job": hop.job,
            "coterie.task": hop.task,
            "coterie.domain": self._domain,
            **about,
        }
        self._ring.record(
            Span(hop.trace, new_span_id(), hop.parent, name, hop.begin, end, marks, error, tuple(links or ()))
        )


def task_of(host: str, tasks: Mapping[str, TracedTask]) -> str:
    """The task whose service has this host: services begin with the task's name. Empty: none of these."""
    label = host.partition(".")[0]
    at = label.rfind("-")
    while at > 0:
        if label[:at] in tasks:
            return label[:at]
        at = label.rfind("-", 0, at)
    return ""
