"""When a cron schedule fires. Pure.

A schedule fires at every instant whose time of day in the zone matches: an hour that daylight saving leaves out does not
fire, one that comes twice fires twice, as Kubernetes has it. Day of month and day of week both have to match when one of
them is `*`; when both are given, either is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

from coterie.kube.api.rules.cron import schedule_fault

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NAMES = {
    name: number
    for names in (
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
        ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
    )
    for number, name in enumerate(names, start=1 if names[0] == "jan" else 0)
}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_HORIZON = timedelta(days=366 * 5)
"""A schedule that does not fire within five years (30 February) never does."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    minutes: tuple[int, ...] = ()
    hours: tuple[int, ...] = ()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    either_day: bool = False
    """Day of month and day of week are both given: one of them is enough."""
    every: float = 0.0
    """Seconds between two firings, for `@every`; the rest is empty then."""

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        return (by_month or by_week) if self.either_day else (by_month and by_week)

    def _instants(self, day: date, zone: tzinfo) -> list[datetime]:
        """All firings of a day of the zone, in order."""
        out: set[datetime] = set()
        for hour in self.hours:
            for minute in self.minutes:
                for fold in (0, 1):
                    local = datetime(day.year, day.month, day.day, hour, minute, fold=fold, tzinfo=zone)
                    instant = local.astimezone(UTC)
                    back = instant.astimezone(zone)
                    if (back.hour, back.minute, back.day) == (hour, minute, day.day):
                        out.add(instant)
        return sorted(out)

    def after(self, moment: datetime, zone: tzinfo = UTC) -> Iterator[datetime]:
        """The firings after a moment, without end or until five years pass without one."""
        if self.every:
            yield from self._every_after(moment)
            return
        day = moment.astimezone(zone).date()
        last = moment
        while datetime(day.year, day.month, day.day, tzinfo=UTC) - last < _HORIZON:
            if self._on(day):
                for instant in self._instants(day, zone):
                    if instant > moment:
                        last = instant
                        yield instant
            day += _DAY

    def _every_after(self, moment: datetime) -> Iterator[datetime]:
        at = moment.replace(microsecond=0)
        step = timedelta(seconds=self.every)
        while True:
            at += step
            yield at

    def next_after(self, moment: datetime, zone: tzinfo = UTC) -> datetime | None:
        return next(self.after(moment, zone), None)

    def latest(self, after: datetime, until: datetime, zone: tzinfo = UTC) -> datetime | None:
        """The last firing in (after, until]; None when there was none."""
        if until <= after:
            return None
        if self.every:
            times = int((until - after.replace(microsecond=0)).total_seconds() // self.every)
            return after.replace(microsecond=0) + timedelta(seconds=times * self.every) if times else None
        day, first = until.astimezone(zone).date(), after.astimezone(zone).date()
        while day >= first:
            if self._on(day):
                for instant in reversed(self._instants(day, zone)):
                    if after < instant <= until:
                        return instant
            day -= _DAY
        return None


@lru_cache(maxsize=1024)
def parse(text: str) -> CronSchedule:
    """Raises ValueError for what the API would refuse too."""
    fault = schedule_fault(text)
    if fault:
        raise ValueError(fault)
    if text.startswith("@every "):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
        return CronSchedule(every=max(1.0, float(int(seconds))))
    fields = _MACROS.get(text, text).split()
    minutes, hours, days, months, weekdays = (
        _numbers(field, low, high) for field, (low, high) in zip(fields, _BOUNDS, strict=True)
    )
    return CronSchedule(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(weekdays),
        not _is_star(fields[2]) and not _is_star(fields[4]),
    )


def _is_star(field: str) -> bool:
    """`*` and `?`, also among others and in steps of one; steps of more make it a choice of days."""
    for part in field.split(","):
        bounds, _, step = part.partition("/")
        if bounds in ("*", "?") and int(step or 1) == 1:
            return True
    return False


def _numbers(field: str, low: int, high: int) -> set[int]:
    out: set[int] = set()
    for part in field.split(","):
        bounds, slash, step = part.partition("/")
        first, dash, last = bounds.partition("-")
        if bounds in ("*", "?"):
            start, end = low, high
        else:
            start = _number(first)
            # `5/15` means from five on.
            end = _number(last) if dash else (high if slash else start)
        out.update(range(start, end + 1, int(step or 1)))
    return out


def _number(text: str) -> int:
    name = text.lower()
    return _NAMES[name] if name in _NAMES else int(text)
