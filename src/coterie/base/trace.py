"""Traces: what happened to one job, when, as spans of one trace. A bounded ring per process, off unless switched on.

    trace id   sha256("coterie-trace/" + initiator + "/" + job id)[:16]: all parties derive the same one from the job
    span id    derived from the object that the span is about (`span_id`), or random (`new_span_id`)

    if RING.on:                                         # all that a process pays that records nothing
        RING.record(Span(trace, new_span_id(), parent, "data read", begin, end, {"coterie.task": task}))

Readers (a file, an exporter) follow the ring by number; a reader that is more than SIZE spans behind has lost the oldest. So
recording never waits, and needs no lock: the event loop records and reads.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

SIZE = 4096
NO_SPAN = ""
_NO_TRACE = "0" * 32
_NO_SPAN_ID = "0" * 16
_LONGEST_TEXT = 512
_MOST_ATTRIBUTES = 32
_MOST_LINKS = 8
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

Value = str | int | float | bool


def trace_id(initiator: str, job: str) -> str:
    """32 hexadecimal digits, the same at every party of the job."""
    found = hashlib.sha256(f"coterie-trace/{initiator}/{job}".encode()).hexdigest()[:32]
    return found if found != _NO_TRACE else "0" * 31 + "1"


@lru_cache(maxsize=1024)
def span_id(*about: str) -> str:
    """16 hexadecimal digits for the span about one thing, named by uids: whoever knows it can name the span as parent."""
    found = hashlib.sha256("/".join(("coterie-span", *about)).encode()).hexdigest()[:16]
    return found if found != _NO_SPAN_ID else "0" * 15 + "1"


def new_span_id() -> str:
    return f"{random.getrandbits(64) or 1:016x}"


def traceparent(trace: str, span: str) -> str:
    """W3C Trace Context, flagged as recorded: whether an engine records is its own configuration."""
    return f"00-{trace}-{span}-01"


class TraceParent(NamedTuple):
    trace: str
    span: str


def parse_traceparent(text: str) -> TraceParent | None:
    """None for what W3C Trace Context calls invalid."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or found[1] == "ff" or found[2] == _NO_TRACE or found[3] == _NO_SPAN_ID:
        return None
    if found[1] == "00" and found[5]:
        return None
    return TraceParent(found[2], found[3])


class Span(NamedTuple):
    trace: str
    span: str
    parent: str
    """A span id of the same trace; empty: none."""
    name: str
    begin: int
    """Nanoseconds since 1970."""
    end: int
    attributes: Mapping[str, Value] = {}
    error: str = ""
    """Why it failed; empty: it did not."""
    links: Sequence[TraceParent] = ()
    """Spans of others that have to do with it, such as what a partner sent."""


def bounded(span: Span) -> Span:
    """Texts, attributes and links cut to a size that a reader can rely on."""
    attributes = dict(list(span.attributes.items())[:_MOST_ATTRIBUTES])
    for key, value in attributes.items():
        if isinstance(value, str) and len(value) > _LONGEST_TEXT:
            attributes[key] = value[:_LONGEST_TEXT]
    return span._replace(
        name=span.name[:_LONGEST_TEXT],
        attributes=attributes,
        error=span.error[:_LONGEST_TEXT],
        links=tuple(span.links)[:_MOST_LINKS],
        end=max(span.begin, span.end),
    )


def span_from_wire(values: Any) -> Span:
    """What `json` makes of a Span. ValueError when it is none."""
    match values:
        case [
            str(trace),
            str(span),
            str(parent),
            str(name),
            int(begin),
            int(end),
            dict(marks),
            str(error),
            list(links),
        ]:
            if parse_traceparent(f"00-{trace}-{span}-00") is None:
                raise ValueError("no trace id or no span id")
            found = [TraceParent(*map(str, each)) for each in links if isinstance(each, list) and len(each) == 2]
            attributes = {str(key): each for key, each in marks.items() if isinstance(each, (str, int, float, bool))}
            return Span(trace, span, parent, name, begin, end, attributes, error, found)
    raise ValueError("no span")


class TraceRing:
    """The newest spans of this process. `on` is read by all who could record; `record` only when it is true."""

    __slots__ = ("_kept", "dropped", "on", "recorded")

    def __init__(self, size: int = SIZE) -> None:
        self.on = False
        self.recorded = 0
        """Spans that came in so far; the number of the newest."""
        self.dropped: dict[str, int] = {}
        """By reason: spans that a reader did not get out."""
        self._kept: deque[Span] = deque(maxlen=size)

    def record(self, span: Span) -> None:
        self.recorded += 1
        self._kept.append(span)

    def drop(self, why: str, count: int = 1) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + count

    def __len__(self) -> int:
        return len(self._kept)

    def after(self, number: int, most: int = SIZE) -> tuple[list[Span], int, int]:
        """Spans that came after the `number`th, at most so many; how many are lost; the number to ask with next."""
        oldest = self.recorded - len(self._kept)
        lost = max(0, oldest - number)
        first = max(number, oldest) - oldest
        found = [self._kept[at] for at in range(first, min(len(self._kept), first + most))]
        return found, lost, oldest + first + len(found)

    def clear(self) -> None:
        self._kept.clear()
        self.recorded = 0
        self.dropped.clear()


RING = TraceRing()
"""Of this process."""


def now() -> int:
    return time.time_ns()


@contextmanager
def recorded(
    parent: TraceParent | None, name: str, attributes: Mapping[str, Value], ring: TraceRing = RING
) -> Iterator[None]:
    """What happens inside as one span of this process. Not for hot paths: those test `RING.on` themselves."""
    if parent is None or not ring.on:
        yield
        return
    begin, error = now(), "cancelled"
    try:
        yield
        error = ""
    except Exception as problem:
        error = str(problem) or type(problem).__name__
        raise
    finally:
        ring.record(Span(parent.trace, new_span_id(), parent.span, name, begin, now(), attributes, error))
