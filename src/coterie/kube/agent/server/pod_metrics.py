"""One metric of one pod, read from the Prometheus text endpoint that the pod serves.

    queue_length               the values of that name, as they are
    http_requests_per_second   the rate of the counter http_requests_total (or http_requests) since it was read last

The text is the exposition format 0.0.4: `name{label="value"} 1.5`, comments begin with `#`. What is not understood is left out.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httptools

from coterie.base.clock import Clock, rfc3339
from coterie.kube.agent.runtimes.protocol import PodAccess, RuntimeFailure
from coterie.kube.api import errors

_TIMEOUT = 2.0
_MAX_BODY = 4 * 1024 * 1024
_MAX_HEAD = 64 * 1024
_UNFIT_PATH = re.compile(r"[^\x21-\x7e]")
_MAX_SERIES = 1000
_REMEMBERED = 10_000
_PER_SECOND = "_per_second"
_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class _Counted:
    at: float
    value: float


class PodMetricsReader:
    """Remembers counters, so that the next reading makes a rate."""

    def __init__(self, runtime: PodAccess, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._counters: OrderedDict[tuple[str, str, tuple[tuple[str, str], ...]], _Counted] = OrderedDict()

    async def read(self, pod_uid: str, port: int, path: str, metric: str) -> dict[str, Any]:
        """Raises ServiceUnavailable when the pod does not answer."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                text = await fetch_page(self._runtime, pod_uid, port, path)
        except RuntimeFailure as problem:
            raise errors.ServiceUnavailable(problem.message) from problem
        except (OSError, TimeoutError, EOFError, ValueError, httptools.HttpParserError) as problem:
            words = str(problem) or type(problem).__name__
            raise errors.ServiceUnavailable(f"port {port} of the pod does not answer {path}: {words}") from problem
        samples = [
            {"labels": dict(labels), "value": value, "windowSeconds": round(window, 3)}
            for labels, value, window in self._samples(pod_uid, metric, text)
        ]
        return {"time": rfc3339(self._clock.now()), "samples": samples}

    def _samples(self, uid: str, metric: str, text: str) -> Iterator[tuple[tuple[tuple[str, str], ...], float, float]]:
        counter = metric.removesuffix(_PER_SECOND) if metric.endswith(_PER_SECOND) else ""
        names = {metric, *((counter, f"{counter}_total") if counter else ())}
        found = list(parse(text, names))
        for series in found:
            if series.name == metric:
                yield series.labels, series.value, 0.0
        if counter and not any(series.name == metric for series in found):
            for series in found:
                rate = self._rate((uid, series.name, series.labels), series.value)
                if rate is not None:
                    yield series.labels, *rate

    def _rate(self, key: tuple[str, str, tuple[tuple[str, str], ...]], value: float) -> tuple[float, float] | None:
        """For each second, and the seconds it is over; None for the first reading, also after a restart."""
        now = self._clock.monotonic()
        before = self._counters.pop(key, None)
        self._counters[key] = _Counted(now, value)
        if len(self._counters) > _REMEMBERED:
            self._counters.popitem(last=False)
        if before is None or now <= before.at or value < before.value:
            return None
        return (value - before.value) / (now - before.at), now - before.at


async def fetch_page(runtime: PodAccess, pod_uid: str, port: int, path: str, limit: int = _MAX_BODY) -> str:
    """`GET path` from a port of the pod, through the pod's network; the caller sets a time limit. Redirects are not followed.

    Raises RuntimeFailure, OSError, EOFError, ValueError or httptools.HttpParserError; ValueError for a page above `limit` bytes.
    """
    target = path if path.startswith("/") else f"/{path}"
    if _UNFIT_PATH.search(target):
        raise ValueError("the path has characters that no URL has")
    reader, writer = await runtime.dial(pod_uid, port)
    try:
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("latin-1"))
        await writer.drain()
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        received = 0
        while not answer.complete and (data := await reader.read(65536)):
            received += len(data)
            parser.feed_data(data)
            if answer.size > limit or received > 2 * limit + _MAX_HEAD:
                raise ValueError(f"the page has more than {limit} bytes")
        if (status := parser.get_status_code()) != 200:
            raise ValueError(f"status {status}")
    finally:
        writer.close()
    return b"".join(answer.parts).decode("utf-8", "replace")


class _Answer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)

    def on_message_complete(self) -> None:
        self.complete = True


def parse(text: str, names: set[str]) -> Iterator[Series]:
    """The series of these names, at most a thousand."""
    count = 0
    for line in text.splitlines():
        if not line or line[0] == "#" or not line.startswith(tuple(names)):
            continue
        found = _SERIES.fullmatch(line)
        if found is None or found[1] not in names:
            continue
        value = _number(found[3])
        if value is None:
            continue
        labels = tuple(sorted((key, _unescaped(given)) for key, given in _LABEL.findall(found[2] or "")))
        yield Series(found[1], labels, value)
        count += 1
        if count >= _MAX_SERIES:
            return


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text) if "\\" in text else text
