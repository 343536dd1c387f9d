"""Durations and ages, worded as Kubernetes words them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.kube.apiserver.tables.ages import age, human_duration, parse_time

M, H, D, Y = 60, 3600, 86400, 365 * 86400

ROWS = [
    (-3, "<invalid>"), (-2, "<invalid>"), (-1.9, "0s"), (-1, "0s"), (-0.5, "0s"), (0, "0s"), (0.9, "0s"), (1, "1s"),
    (119, "119s"), (119.9, "119s"), (120, "2m"), (121, "2m1s"), (5 * M + 30, "5m30s"), (9 * M + 59, "9m59s"),
    (10 * M, "10m"), (10 * M + 59, "10m"), (179 * M + 59, "179m"), (3 * H, "3h"), (3 * H + 20 * M, "3h20m"),
    (3 * H + 59, "3h"), (7 * H + 59 * M, "7h59m"), (8 * H, "8h"), (8 * H + 59 * M, "8h"), (47 * H + 59 * M, "47h"),
    (2 * D, "2d"), (2 * D + 4 * H, "2d4h"), (7 * D + 23 * H, "7d23h"), (8 * D, "8d"), (8 * D + 5 * H, "8d"),
    (45 * D, "45d"), (2 * Y - 1, "729d"), (2 * Y, "2y"), (3 * Y + 10 * D, "3y10d"), (3 * Y + 23 * H, "3y"),
    (8 * Y - D, "7y364d"), (8 * Y, "8y"), (9 * Y + 100 * D, "9y"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "told"), ROWS, ids=[told + f"-{s}" for s, told in ROWS])
def test_human_duration(seconds: float, told: str) -> None:
    assert human_duration(seconds) == told


@given(st.integers(0, 20 * Y))
def test_what_is_told_is_never_more_than_the_duration_and_close_to_it(seconds: int) -> None:
    units = {"s": 1, "m": M, "h": H, "d": D, "y": Y}
    total, digits = 0, ""
    for char in human_duration(seconds):
        if char.isdigit():
            digits += char
        else:
            total += int(digits) * units[char]
            digits = ""
    assert total <= seconds
    assert seconds - total <= max(seconds * 0.13, 1)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("2026-11-15T09:00:00Z", True),
        ("2026-11-15T09:00:00.123456Z", True),
        ("2026-11-15T10:00:00+01:00", True),
        ("2026-11-15T09:00:00", False),
        ("2026-11-15", False),
        ("2026-11-15 09:00:00Z", False),
        ("yesterday", False),
        ("", False),
        (None, False),
        (17, False),
    ],
)
def test_parse_time(text: object, good: bool) -> None:
    assert (parse_time(text) is not None) is good


def test_age() -> None:
    now = datetime(2026, 11, 15, 9, 0, tzinfo=UTC).timestamp()
    assert age("2026-11-15T08:00:00Z", now) == "60m"
    assert age("2026-11-15T09:00:00+01:00", now) == "60m"
    assert age(None, now) == "<unknown>"
    assert age("soon", now) == "<invalid>"
    assert age("2026-11-15T09:01:00Z", now) == "<invalid>"
