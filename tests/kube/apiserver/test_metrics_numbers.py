"""Numbers of the metrics page are whole: nothing is rounded on its way to Prometheus."""

from __future__ import annotations

import math
import re
import time

import pytest

from coterie.base.exposition import number
from coterie.kube.apiserver.metrics import Metrics


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (3.0, "3"), (-2.5, "-2.5"), (0.1, "0.1"), (1234567890, "1234567890"), (1779999999.123, "1779999999.123"),
        (2**53, "9007199254740992"), (1e-9, "1e-09"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"),
    ],
)  # fmt: skip
def test_a_number(value: float, text: str) -> None:
    assert number(value) == text


def test_the_start_of_the_process_is_exact() -> None:
    before = time.time()
    page = Metrics().render()
    found = re.search(r"^process_start_time_seconds (\S+)$", page, re.MULTILINE)
    assert found is not None
    assert before <= float(found[1]) <= time.time()


def test_gauges_with_labels_are_whole() -> None:
    metrics = Metrics()
    metrics.gauge("objects", "Objects.", lambda: [('kind="pods"', 12345678)])
    assert 'objects{kind="pods"} 12345678\n' in metrics.render()
