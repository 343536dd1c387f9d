"""What tasks used while they ran: lines of `usage.log`, and what they say together. Pure.

    2026-01-02T03:04:05.678Z info  usage: starting job=j task=j-psi pod=j-psi-0 made=... scheduled=...
    2026-01-02T03:04:06.678Z info  usage: sample job=j task=j-psi pod=j-psi-0 cpu=1.25 memory=52428800
    2026-01-02T03:04:06.680Z info  usage: link task=j-psi peer=bob sent=1048576 received=2048
    2026-01-02T03:04:09.001Z info  usage: ended job=j task=j-psi pod=j-psi-0 began=... reason=Completed code=0 finished=...

They have the form of our own logs, so that they are searched, rotated and, with the owner's consent, sent to a partner as other
log lines are: the source `usage` (`log_query.py`). `cpu` is in CPUs over the time since the line before, `memory` in bytes, and
`sent` and `received` are bytes since the task began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from coterie.base.clock import parse_rfc3339

STARTING, SAMPLE, LINK, ENDED = "starting", "sample", "link", "ended"
MOST_POINTS: Final = 3600
"""Of one curve."""
_STEPS: Final = ((60.0, 1.0), (600.0, 2.0), (3600.0, 10.0))
_LAST_STEP: Final = 60.0
_LINE: Final = re.compile(r"(?:\S+ )?\w+ +usage: (starting|sample|link|ended)((?: [a-z]+=\S+)*)\s*")


def step_seconds(age: float) -> float:
    """Between two samples of something that has run for so long: a day takes about two thousand."""
    return next((step for until, step in _STEPS if age < until), _LAST_STEP)


def usage_line(now: datetime, what: str, facts: Mapping[str, object]) -> str:
    """Empty values are left out. Values are names, numbers and times: none has a space."""
    stamp = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"
    written = "".join(f" {key}={_value(value)}" for key, value in facts.items() if value not in ("", None))
    return f"{stamp} info  usage: {what}{written}"


def _value(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return re.sub(r"[\s\"=]", "_", text)


@dataclass(frozen=True, slots=True)
class PodUsage:
    party: str
    pod: str
    points: tuple[tuple[float, float, float], ...] = ()
    """(seconds since 1970, CPUs, bytes of memory)"""
    made: float | None = None
    scheduled: float | None = None
    began: float | None = None
    ended: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkCurve:
    party: str
    peer: str
    points: tuple[tuple[float, float, float], ...]
    """(seconds since 1970, bits per second sent, received) since the point before"""
    sent: int
    received: int
    """Bytes in all."""


@dataclass(frozen=True, slots=True)
class TaskUsage:
    task: str
    pods: tuple[PodUsage, ...] = ()
    links: tuple[LinkCurve, ...] = ()


@dataclass
class _Pod:
    points: list[tuple[float, float, float]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """`text`: the line, with or without its time."""

    at: float
    party: str
    task: str
    text: str


def usage_of(lines: Iterable[UsageLine]) -> tuple[TaskUsage, ...]:
    """By task. Lines of other form, also those that a partner invented, say nothing."""
    pods: dict[tuple[str, str, str], _Pod] = {}
    links: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for line in sorted(lines, key=lambda each: each.at):
        found = _LINE.fullmatch(line.text)
        if found is None:
            continue
        facts = dict(each.split("=", 1) for each in found[2].split())
        what, name = found[1], facts.get("peer" if found[1] == LINK else "pod", "")
        if not name:
            continue
        if what == LINK:
            totals = (_number(facts.get("sent")), _number(facts.get("received")))
            links.setdefault((line.task, line.party, name), []).append((line.at, *totals))
            continue
        pod = pods.setdefault((line.task, line.party, name), _Pod())
        pod.facts |= facts
        if what == SAMPLE:
            pod.points.append((line.at, _number(facts.get("cpu")), _number(facts.get("memory"))))
        elif what == ENDED:
            pod.ended = _moment(facts.get("finished")) or line.at
    tasks = dict.fromkeys(key[0] for key in (*pods, *links))
    return tuple(
        TaskUsage(
            task,
            tuple(_pod(key, pod) for key, pod in pods.items() if key[0] == task),
            tuple(_curve(key, totals) for key, totals in links.items() if key[0] == task),
        )
        for task in tasks
    )


def _pod(key: tuple[str, str, str], pod: _Pod) -> PodUsage:
    made, scheduled, began = (_moment(pod.facts.get(name)) for name in ("made", "scheduled", "began"))
    reason = pod.facts.get("reason", "")
    return PodUsage(key[1], key[2], tuple(thinned(pod.points)), made, scheduled, began, pod.ended, reason)


def _curve(key: tuple[str, str, str], totals: list[tuple[float, float, float]]) -> LinkCurve:
    """Totals that fell are those of a gateway that was restarted: they count from zero."""
    points = []
    sent = received = 0.0
    for number, (at, out, back) in enumerate(totals):
        before, last_out, last_back = totals[number - 1] if number else (at - 2.0, 0.0, 0.0)
        seconds = max(at - before, 0.5)
        more = (out - last_out if out >= last_out else out, back - last_back if back >= last_back else back)
        sent, received = sent + more[0], received + more[1]
        points.append((at, 8 * more[0] / seconds, 8 * more[1] / seconds))
    return LinkCurve(key[1], key[2], tuple(thinned(points)), int(sent), int(received))


def thinned(points: list[tuple[float, float, float]], most: int = MOST_POINTS) -> list[tuple[float, float, float]]:
    """At most so many: of neighbours the higher one stays, so that no peak is lost."""
    while len(points) > most:
        pairs = [points[at : at + 2] for at in range(0, len(points), 2)]
        points = [max(pair, key=lambda each: (each[1], each[2])) for pair in pairs]
    return points


def _number(text: str | None) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if 0 <= found < 1e18 else 0.0


def _moment(text: str | None) -> float | None:
    try:
        return parse_rfc3339(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None
