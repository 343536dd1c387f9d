"""The syntax of cron schedules, as the library that Kubernetes uses reads it: five fields or `@hourly` and friends."""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_MACROS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")


def schedule_fault(schedule: str) -> str:
    """What is wrong with a schedule; empty when nothing is."""
    if schedule.startswith("@"):
        return _macro_fault(schedule)
    fields = schedule.split()
    if len(fields) != 5:
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for text, (low, high, names) in zip(fields, _FIELDS, strict=True):
        for part in text.split(","):
            if fault := _part_fault(part, low, high, names):
                return fault
    return ""


def _macro_fault(schedule: str) -> str:
    if schedule in _MACROS:
        return ""
    if schedule.startswith("@every "):
        duration = schedule.removeprefix("@every ")
        return "" if _DURATION.fullmatch(duration) else f"failed to parse duration {schedule}"
    return f"unrecognized descriptor: {schedule}"


def _part_fault(part: str, low: int, high: int, names: tuple[str, ...]) -> str:
    bounds, slash, step = part.partition("/")
    if slash and (not step.isdecimal() or len(step) > 9):
        return f"failed to parse int from {step}"
    if slash and int(step) == 0:
        return f"step of range should be a positive number: {part}"
    if bounds in ("*", "?"):
        return ""
    first, dash, last = bounds.partition("-")
    start = _number(first, low, names)
    end = _number(last, low, names) if dash else start
    if start is None or end is None:
        return f"failed to parse int from {first if start is None else last}"
    if start < low:
        return f"beginning of range ({start}) below minimum ({low}): {part}"
    if end > high:
        return f"end of range ({end}) above maximum ({high}): {part}"
    if start > end:
        return f"beginning of range ({start}) beyond end of range ({end}): {part}"
    return ""


def _number(text: str, low: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + low
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
