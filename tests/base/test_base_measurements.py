from __future__ import annotations

import math

from coterie.base.exposition import Family, render
from coterie.base.measurements import Histogram, QuantileSummary


def test_a_histogram() -> None:
    found = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        found.add(value)
    page = render([Family("x", "Help.", "histogram", [*found.rows('a="b"'), *Histogram((1.0,)).rows()])])
    assert page.splitlines()[2:] == [
        'x_bucket{a="b",le="0.1"} 2',
        'x_bucket{a="b",le="1"} 3',
        'x_bucket{a="b",le="+Inf"} 4',
        'x_sum{a="b"} 7.65',
        'x_count{a="b"} 4',
        'x_bucket{le="1"} 0',
        'x_bucket{le="+Inf"} 0',
        "x_sum 0",
        "x_count 0",
    ]


def test_a_summary_forgets_old_values_but_not_their_sum() -> None:
    found = QuantileSummary()
    found.add(1000.0, now=0.0)
    for value in range(1, 101):
        found.add(float(value), now=700.0)
    assert dict(found.rows("", 700.0)) == {
        'quantile="0.5"': 50.0,
        'quantile="0.9"': 90.0,
        'quantile="0.99"': 99.0,
        "_sum": 6050.0,
        "_count": 101,
    }
    assert all(math.isnan(value) for where, value in found.rows("", 9000.0) if where.startswith("quantile"))


def test_a_summary_is_bounded() -> None:
    found = QuantileSummary()
    for value in range(2000):
        found.add(float(value), now=1.0)
    assert dict(found.rows("", 1.0))['quantile="0.5"'] == 1749.0
