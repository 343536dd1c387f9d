"""How long ago: times as people read them, worded exactly as Kubernetes words them."""

from __future__ import annotations

from datetime import datetime

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY

UNKNOWN = "<unknown>"
INVALID = "<invalid>"


def human_duration(seconds: float) -> str:
    """A duration in one or two units, the coarser the longer it is: 119s, 9m59s, 3h20m, 2d4h, 45d, 3y10d."""
    whole = int(seconds)
    if whole < 2 * MINUTE:
        # Clocks differ a little: up to a second in the future still counts as now.
        return INVALID if whole < -1 else f"{max(whole, 0)}s"
    if whole < 10 * MINUTE:
        return _two(whole, MINUTE, "m", 1, "s")
    if whole < 3 * HOUR:
        return f"{whole // MINUTE}m"
    if whole < 8 * HOUR:
        return _two(whole, HOUR, "h", MINUTE, "m")
    if whole < 2 * DAY:
        return f"{whole // HOUR}h"
    if whole < 8 * DAY:
        return _two(whole, DAY, "d", HOUR, "h")
    if whole < 2 * YEAR:
        return f"{whole // DAY}d"
    if whole < 8 * YEAR:
        return _two(whole, YEAR, "y", DAY, "d")
    return f"{whole // YEAR}y"


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_name}{rest}{small_name}" if rest else f"{whole // large}{large_name}"


def parse_time(text: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None when it is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # fromisoformat also takes dates, other separators and times without a zone; RFC 3339 does not.
    if moment.tzinfo is None or text[10:11] not in ("T", "t"):
        return None
    return moment.timestamp()


def age(text: object, now: float) -> str:
    """How long ago a time stamp of an object was."""
    if not text:
        return UNKNOWN
    moment = parse_time(text)
    return INVALID if moment is None else human_duration(now - moment)
