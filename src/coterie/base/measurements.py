"""Distributions for metrics: a histogram, and a summary with quantiles of the last minutes.

Adding a value is a search in a short tuple and two additions: cheap enough for every reconcile and every commit. Rows are made
when somebody scrapes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from coterie.base.exposition import Row, number

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""Bounds for the duration of internal work."""
QUANTILES = (0.5, 0.9, 0.99)
_WINDOW = 600.0
"""Seconds after which a value no longer counts for quantiles, as in Prometheus' own client library."""
_KEPT = 500


class Histogram:
    """Counts of values up to each bound: the rows of one family for one set of labels."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def rows(self, where: str = "") -> list[Row]:
        before = f"{where}," if where else ""
        found: list[Row] = []
        so_far = 0
        for bound, count in zip((*map(number, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            found.append((f'_bucket {before}le="{bound}"', so_far))
        return [*found, (f"_sum {where}".rstrip(), round(self.total, 6)), (f"_count {where}".rstrip(), so_far)]


class QuantileSummary:
    """Quantiles of the last ten minutes (of at most 500 values), sum and count since the start."""

    __slots__ = ("_recent", "count", "total")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.count = 0
        self.total = 0.0

    def add(self, value: float, now: float) -> None:
        """`now`: monotonic seconds."""
        self._recent.append((now, value))
        self.count += 1
        self.total += value

    def rows(self, where: str, now: float) -> list[Row]:
        recent = sorted(value for at, value in self._recent if now - at <= _WINDOW)
        before = f"{where}," if where else ""
        found: list[Row] = [
            (f'{before}quantile="{number(each)}"', recent[math.ceil(each * len(recent)) - 1] if recent else math.nan)
            for each in QUANTILES
        ]
        return [*found, (f"_sum {where}".rstrip(), round(self.total, 6)), (f"_count {where}".rstrip(), self.count)]
