"""Whether a partner's certificate counts today. Pure.

It is pinned as a whole, so its dates decide nothing about who somebody is; they decide for how long its owner wanted to be
known by it. Clocks may differ as much as in a handshake. Masters of Kuscia write 1970 and 1980 into the certificates that they issue
to lites: those were never valid, nobody means anything by their dates, and they count.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache

from coterie.base.pki import PkiError, load_certificate

_TOLERANCE = timedelta(minutes=15)
_KUSCIAS_FIRST, _KUSCIAS_LAST = 1970, 1980


def out_of_date(pem: str, now: datetime) -> str:
    """What is wrong with its dates, as the end of a sentence about it; empty when it counts."""
    span = _span(pem)
    if span is None:
        return ""
    begins, ends = span
    if now < begins - _TOLERANCE:
        return f"is not valid before {begins:%Y-%m-%d %H:%M} UTC"
    return f"ended at {ends:%Y-%m-%d %H:%M} UTC" if now > ends + _TOLERANCE else ""


def next_change(certificates: Iterable[str], now: datetime) -> datetime | None:
    """When the next of them begins or ceases to count."""
    spans = (span for pem in certificates if (span := _span(pem)) is not None)
    moments = (each for begins, ends in spans for each in (begins - _TOLERANCE, ends + _TOLERANCE))
    return min((each for each in moments if each >= now), default=None)


def is_undated(pem: str) -> bool:
    return _dates(pem) is not None and _span(pem) is None


def _span(pem: str) -> tuple[datetime, datetime] | None:
    """None where the dates mean nothing, also because it cannot be read, which others complain about."""
    dates = _dates(pem)
    if dates is None or (dates[0].year == _KUSCIAS_FIRST and dates[1].year <= _KUSCIAS_LAST):
        return None
    return dates


@lru_cache(maxsize=4096)
def _dates(pem: str) -> tuple[datetime, datetime] | None:
    try:
        found = load_certificate(pem.encode())
    except PkiError:
        return None
    return found.not_valid_before_utc, found.not_valid_after_utc
