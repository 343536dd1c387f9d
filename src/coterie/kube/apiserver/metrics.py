"""What the server counts, in Prometheus' text form, under the names that dashboards for Kubernetes know."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

from coterie.base.exposition import Family, Row, escaped, render

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAGE = resource.getpagesize()
_MAX_KEYS = 300
"""Kinds of requests that are counted apart: each has up to nineteen rows. What is more is counted as `other`."""

Gauge = Callable[[], Iterable[tuple[str, float]]]
"""Yields (labels, value) pairs when the page is asked for."""


class _Series:
    __slots__ = ("buckets", "codes", "total")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.buckets = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def rows(self, where: str) -> list[Row]:
        found: list[Row] = []
        so_far = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.buckets, strict=True):
            so_far += count
            found.append((f'_bucket {where},le="{bound}"', so_far))
        return [*found, (f"_sum {where}", round(self.total, 6)), (f"_count {where}", so_far)]


class Metrics:
    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, str, str], _Series] = {}
        self._gauges: list[tuple[str, str, str, Gauge]] = []
        self._started = time.time()

    def request(self, verb: str, about: tuple[str, str, str], code: int, seconds: float) -> None:
        """`about`: group, resource and sub-resource."""
        key = (verb, *about)
        series = self._requests.get(key)
        if series is None:
            if len(self._requests) >= _MAX_KEYS:
                # Paths that do not exist must not grow the page without bound.
                key = (verb, "", "other", "")
            series = self._requests.setdefault(key, _Series())
        series.codes[code] = series.codes.get(code, 0) + 1
        if verb != "watch":
            series.buckets[bisect_left(_BUCKETS, seconds)] += 1
            series.total += seconds

    def gauge(self, name: str, help_text: str, read: Gauge, kind: str = "gauge") -> None:
        self._gauges.append((name, help_text, kind, read))

    def families(self) -> list[Family]:
        answered = [
            (f'{_labels(key)},code="{code}"', count)
            for key, series in self._requests.items()
            for code, count in sorted(series.codes.items())
        ]
        took = [row for key, series in self._requests.items() if key[0] != "watch" for row in series.rows(_labels(key))]
        words = "Time from the request to its answer; watches left out."
        return [
            Family(
                "apiserver_request_total", "Requests answered, by verb, resource and HTTP code.", "counter", answered
            ),
            Family("apiserver_request_duration_seconds", words, "histogram", took),
            *(Family(name, text, kind, list(read())) for name, text, kind, read in self._gauges),
        ]

    def render(self) -> str:
        return render([*self.families(), *_process(self._started)])


def _labels(key: tuple[str, str, str, str]) -> str:
    verb, group, resource_name, subresource = (escaped(part) for part in key)
    return f'verb="{verb}",group="{group}",resource="{resource_name}",subresource="{subresource}"'


def _process(started: float) -> list[Family]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return [
        Family("process_cpu_seconds_total", "CPU time used.", "counter", [("", used.ru_utime + used.ru_stime)]),
        Family("process_resident_memory_bytes", "Resident memory.", "gauge", [("", pages * _PAGE)]),
        Family("process_open_fds", "Open file descriptors.", "gauge", [("", len(os.listdir("/proc/self/fd")))]),
        Family("process_start_time_seconds", "Start of the process since 1970.", "gauge", [("", started)]),
    ]
