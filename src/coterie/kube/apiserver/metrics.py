"""What the server counts, in Prometheus' text form, under the names that dashboards for Kubernetes know."""

from __future__ import annotations

import math
import os
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAGE = resource.getpagesize()

Gauge = Callable[[], Iterable[tuple[str, float]]]
"""Yields (labels, value) pairs when the page is asked for."""


class _Series:
    __slots__ = ("buckets", "codes", "total")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.buckets = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0


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
            if len(self._requests) > 5000:
                # Paths that do not exist must not grow the page without bound.
                key = (verb, "", "other", "")
            series = self._requests.setdefault(key, _Series())
        series.codes[code] = series.codes.get(code, 0) + 1
        if verb != "watch":
            series.buckets[bisect_left(_BUCKETS, seconds)] += 1
            series.total += seconds

    def gauge(self, name: str, help_text: str, read: Gauge, kind: str = "gauge") -> None:
        self._gauges.append((name, help_text, kind, read))

    def render(self) -> str:
        lines = [
            "# HELP apiserver_request_total Requests answered, by verb, resource and HTTP code.",
            "# TYPE apiserver_request_total counter",
        ]
        for key, series in self._requests.items():
            labels = _labels(key)
            lines += [
                f'apiserver_request_total{{{labels},code="{code}"}} {n}' for code, n in sorted(series.codes.items())
            ]
        lines += [
            "# HELP apiserver_request_duration_seconds Time from the request to its answer; watches left out.",
            "# TYPE apiserver_request_duration_seconds histogram",
        ]
        for key, series in self._requests.items():
            if key[0] == "watch":
                continue
            labels, sum_so_far = _labels(key), 0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), series.buckets, strict=True):
                sum_so_far += count
                lines.append(f'apiserver_request_duration_seconds_bucket{{{labels},le="{bound}"}} {sum_so_far}')
            lines.append(f"apiserver_request_duration_seconds_sum{{{labels}}} {series.total:.6f}")
            lines.append(f"apiserver_request_duration_seconds_count{{{labels}}} {sum_so_far}")
        for name, help_text, kind, read in (*self._gauges, *_process(self._started)):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{{{labels}}} {number(value)}" if labels else f"{name} {number(value)}"
                for labels, value in read()
            ]
        return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """All digits, in a form that Prometheus reads: `%g` keeps six, which moves the start of a process by hours."""
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def _labels(key: tuple[str, str, str, str]) -> str:
    verb, group, resource_name, subresource = (_escaped(part) for part in key)
    return f'verb="{verb}",group="{group}",resource="{resource_name}",subresource="{subresource}"'


def _escaped(text: str) -> str:
    return text[:100].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _process(started: float) -> list[tuple[str, str, str, Gauge]]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    cpu, files = used.ru_utime + used.ru_stime, len(os.listdir("/proc/self/fd"))
    return [
        ("process_cpu_seconds_total", "CPU time used.", "counter", lambda: [("", cpu)]),
        ("process_resident_memory_bytes", "Resident memory.", "gauge", lambda: [("", pages * _PAGE)]),
        ("process_open_fds", "Open file descriptors.", "gauge", lambda: [("", files)]),
        ("process_start_time_seconds", "Start of the process since 1970.", "gauge", lambda: [("", started)]),
    ]
