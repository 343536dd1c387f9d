"""Timestamps and durations: reading, printing and the calendar accessors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, Overload, method
from coterie.kube.api.cel.types import DURATION, INT, STRING, TIMESTAMP
from coterie.kube.api.cel.values import INT64_MAX, INT64_MIN, Duration, Timestamp
from coterie.kube.api.schema.decode import is_date_time

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"\.(\d+)", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_OFFSET: Final = re.compile(r"([+-]?)(\d{2}):(\d{2})", re.ASCII)


def parse_timestamp(text: str) -> Timestamp:
    if len(text) > 64 or not is_date_time(text):
        raise CelError(f'parsing time "{text[:64]}" as "2006-01-02T15:04:05Z07:00": cannot parse')
    found = _FRACTION.search(text)
    nanos = int(found[1][:9].ljust(9, "0")) if found else 0
    whole = _FRACTION.sub("", text, count=1).upper()
    try:
        moment = datetime.fromisoformat(whole) - _EPOCH
    except (ValueError, OverflowError) as fault:
        raise CelError(f'parsing time "{text}": out of range') from fault
    return Timestamp((moment.days * 86400 + moment.seconds) * 10**9 + nanos)


def parse_date(text: str) -> Timestamp:
    return parse_timestamp(f"{text}T00:00:00Z")


def parse_duration(text: str) -> Duration:
    """Go's spelling: `1h30m`, `-1.5s`, `100ms`, `0`."""
    body = text[1:] if text[:1] in ("+", "-") else text
    total, at = 0, 0
    if body != "0":
        if not body or len(body) > 200:
            raise CelError(f'time: invalid duration "{text[:80]}"')
        while at < len(body):
            found = _PART.match(body, at)
            if found is None:
                raise CelError(f'time: invalid duration "{text[:80]}"')
            whole, _, fraction = found[1].partition(".")
            unit = _UNIT[found[2]]
            total += int(whole or 0) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
            at = found.end()
    nanos = -total if text[:1] == "-" else total
    if not INT64_MIN <= nanos <= INT64_MAX:
        raise CelError(f'time: invalid duration "{text[:80]}"')
    return Duration(nanos)


def show_timestamp(value: Timestamp) -> str:
    seconds, nanos = divmod(value.nanos, 10**9)
    moment = _EPOCH + timedelta(seconds=seconds)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"


def show_duration(value: Duration) -> str:
    seconds, nanos = divmod(abs(value.nanos), 10**9)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{'-' if value.nanos < 0 else ''}{seconds}{fraction}s"


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC", "Z"):
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is not None:
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        if offset < timedelta(hours=24):
            return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as fault:
        raise CelError(f"unknown time zone {name[:80]}") from fault


def _moment(value: Timestamp, zone: str = "") -> datetime:
    try:
        return (_EPOCH + timedelta(seconds=value.nanos // 10**9)).astimezone(_zone(zone))
    except OverflowError as fault:
        raise CelError("timestamp overflow") from fault


_OF_MOMENT: Final[dict[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda moment: moment.year,
    "getMonth": lambda moment: moment.month - 1,
    "getDayOfYear": lambda moment: moment.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda moment: moment.day - 1,
    "getDate": lambda moment: moment.day,
    "getDayOfWeek": lambda moment: moment.isoweekday() % 7,
    "getHours": lambda moment: moment.hour,
    "getMinutes": lambda moment: moment.minute,
    "getSeconds": lambda moment: moment.second,
}


def _toward_zero(nanos: int, unit: int) -> int:
    return nanos // unit if nanos >= 0 else -(-nanos // unit)


def _accessors() -> list[Overload]:
    out: list[Overload] = []
    for name, read in _OF_MOMENT.items():
        out.append(method(name, (TIMESTAMP,), INT, lambda value, read=read: read(_moment(value))))
        out.append(method(name, (TIMESTAMP, STRING), INT, lambda value, zone, read=read: read(_moment(value, zone))))
    out += [
        method("getMilliseconds", (TIMESTAMP,), INT, lambda value: value.nanos % 10**9 // 10**6),
        method("getMilliseconds", (TIMESTAMP, STRING), INT, lambda value, zone: value.nanos % 10**9 // 10**6),
        method("getHours", (DURATION,), INT, lambda value: _toward_zero(value.nanos, 3600 * 10**9)),
        method("getMinutes", (DURATION,), INT, lambda value: _toward_zero(value.nanos, 60 * 10**9)),
        method("getSeconds", (DURATION,), INT, lambda value: _toward_zero(value.nanos, 10**9)),
        method("getMilliseconds", (DURATION,), INT, lambda value: _toward_zero(value.nanos, 10**6)),
    ]
    return out


LIBRARY: Final[Library] = tuple(_accessors())
