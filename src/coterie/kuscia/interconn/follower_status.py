"""How following a partner's control plane goes, as an annotation of the InteropConfig that names it.

Only what is wrong is written: a kind that cannot be read at the moment, objects that were left out, a follower that
stopped and is started again. `coterie status` and `coterie route check` show it. A partner chooses how often this
changes, so it is written at most every `WRITE_SECONDS`, and only a few names are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coterie.base.clock import Clock, rfc3339
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind

WRITE_SECONDS = 5.0
_NAMES = 10
"""Left-out objects that are named; of the others only the number is."""
_MESSAGE = 300
_MESSAGES = 5


class LeftOut(msgspec.Struct, frozen=True):
    object: str
    why: str


class FollowerReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Of one member domain that follows one host."""

    problem: str = ""
    """Why the host is not followed at the moment; empty: it is."""
    since: str = ""
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0


_reports = msgspec.json.Decoder(dict[str, FollowerReport])


def encode_reports(reports: Mapping[str, FollowerReport]) -> str:
    """The annotation's value; empty when there is nothing to say."""
    known = {member: report for member, report in sorted(reports.items()) if report != FollowerReport()}
    return msgspec.json.encode(known).decode() if known else ""


def decode_reports(text: str) -> dict[str, FollowerReport]:
    """By member. What cannot be read says nothing."""
    try:
        return _reports.decode(text) if text else {}
    except msgspec.MsgspecError:
        return {}


def problem_sentences(host: str, reports: Mapping[str, FollowerReport]) -> list[str]:
    """What does not work, one sentence for each member domain."""
    return [
        f"{member} does not follow {host} since {report.since}: {report.problem}"
        for member, report in sorted(reports.items())
        if report.problem
    ]


def left_out_sentences(host: str, reports: Mapping[str, FollowerReport]) -> list[str]:
    return [
        f"{member} left out {report.left_out_count} object(s) of {host}: "
        + "; ".join(f"{each.object}: {each.why}" for each in report.left_out)
        for member, report in sorted(reports.items())
        if report.left_out
    ]


class FollowerStatus:
    """A FollowObserver of all informers of one follower."""

    def __init__(self, clock: Clock, changed: Callable[[], None], on_left_out: Callable[[str, str], None]) -> None:
        """`on_left_out`: the object's name and why, once for each."""
        self._clock = clock
        self._changed = changed
        self._on_left_out = on_left_out
        self._failing: dict[str, str] = {}
        self._since = ""
        self._left_out: list[LeftOut] = []
        self._left_out_count = 0
        self.stops = 0
        """How often the follower ended."""

    @property
    def working(self) -> bool:
        """Whether everything of the host can be read."""
        return not self._failing

    @property
    def left_out_count(self) -> int:
        return self._left_out_count

    def failed(self, kind: Kind[Any], why: str) -> None:
        self._set(str(kind), why)

    def recovered(self, kind: Kind[Any]) -> None:
        self._clear(str(kind))

    def stopped(self, why: str) -> None:
        """The follower itself ended; it is started again."""
        self.stops += 1
        self._set("", why)

    def started(self) -> None:
        self._failing.clear()
        self._since = ""
        self._changed()

    def left_out(self, kind: Kind[Any], key: ObjectKey, why: str) -> None:
        name = f"{kind} {key.name or '(without a name)'}"
        self._left_out_count += 1
        if len(self._left_out) < _NAMES:
            self._left_out.append(LeftOut(name, why[:_MESSAGE]))
        self._on_left_out(name, why[:_MESSAGE])
        self._changed()

    def report(self) -> FollowerReport:
        problems = [f"{kind}: {why}" if kind else why for kind, why in sorted(self._failing.items())]
        return FollowerReport(
            problem="; ".join(problems[:_MESSAGES]),
            since=self._since,
            left_out=tuple(self._left_out),
            left_out_count=self._left_out_count,
        )

    def _set(self, what: str, why: str) -> None:
        if not self._failing:
            self._since = rfc3339(self._clock.now())
        self._failing[what] = why[:_MESSAGE]
        self._changed()

    def _clear(self, what: str) -> None:
        if self._failing.pop(what, None) is not None:
            if not self._failing:
                self._since = ""
            self._changed()
