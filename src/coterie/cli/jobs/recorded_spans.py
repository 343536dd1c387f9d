"""What a domain on this machine recorded about a job (docs/guide/traces.md), for its timeline: exact times, and what objects do not know.

traces.jsonl ──lines with the trace id──> spans ──> moments to the millisecond
                                                ──> bars of image pulls, data reads and calls, below their party
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coterie.kuscia.api.jobs.timeline import (
    CALL,
    CREATED,
    DATA,
    ENDED,
    HELD,
    MADE,
    PULLED,
    PULLING,
    RESERVED,
    RUNNING,
    VALID,
    Bar,
    Moment,
    TimelineSpan,
)
from coterie.kuscia.api.types.job import KusciaJob

_MOST_DETAILS = 12
"""Bars of one party."""
_TASK = {"prepare": MADE, "schedule": RESERVED, "start": RUNNING, "run": ENDED}
"""The moment at which a stage of a task ends."""
_RESERVATION = {"reserve": HELD, "wait for partners": RESERVED}
_POD = {"start": RUNNING, "run": ENDED}


class RecordedSpan(NamedTuple):
    span: str
    parent: str
    name: str
    begin: float
    """Seconds since 1970."""
    end: float
    attributes: Mapping[str, str]


def read_spans(path: Path, trace: str) -> list[RecordedSpan]:
    """Of the file and the one before it; nothing where there is none, or none that may be read."""
    found: list[RecordedSpan] = []
    for each in (path.with_name(path.name + ".1"), path):
        with contextlib.suppress(OSError):
            for line in _lines(each, trace.encode()):
                found += parse_line(line, trace)
    return found


def _lines(path: Path, wanted: bytes) -> Iterator[bytes]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = text.find(wanted)
            while at >= 0:
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                yield text[text.rfind(b"\n", 0, at) + 1 : end]
                at = text.find(wanted, end)


def parse_line(line: bytes, trace: str) -> list[RecordedSpan]:
    """Nothing of a line that is cut off."""
    try:
        groups = [
            each
            for whole in json.loads(line)["resourceSpans"]
            for scope in whole["scopeSpans"]
            for each in scope["spans"]
        ]
        return [_span(each) for each in groups if each["traceId"] == trace]
    except (ValueError, KeyError, TypeError):
        return []


def _span(found: Any) -> RecordedSpan:
    attributes = {each["key"]: str(next(iter(each["value"].values()), "")) for each in found.get("attributes") or ()}
    begin, end = (int(found[key]) / 1e9 for key in ("startTimeUnixNano", "endTimeUnixNano"))
    return RecordedSpan(found["spanId"], found.get("parentSpanId") or "", found["name"], begin, end, attributes)


class RecordedJob(NamedTuple):
    moments: Mapping[Moment, float]
    details: Mapping[tuple[str, str], tuple[Bar, ...]]
    """By alias and party."""
    whole: bool
    """The job was recorded from its begin to its end."""


def recorded_job(job: KusciaJob, spans: Iterable[RecordedSpan]) -> RecordedJob:
    aliases = {template.task_id: template.alias for template in job.spec.tasks if template.task_id}
    ordered = sorted(spans, key=lambda span: span.begin)
    by_id = {span.span: span for span in ordered}
    moments: dict[Moment, float] = {}
    details: dict[tuple[str, str], list[Bar]] = {}
    whole = False
    for span in ordered:
        marks = {**(by_id[span.parent].attributes if span.parent in by_id else {}), **span.attributes}
        alias = aliases.get(marks.get("coterie.task", ""), "")
        if span.name.startswith("job "):
            whole = True
            moments |= {Moment(CREATED): span.begin, Moment(ENDED): span.end}
        elif span.name == "check":
            moments[Moment(VALID)] = span.end
        if not alias:
            continue
        party = marks.get("coterie.party") or marks.get("coterie.domain", "")
        if "k8s.pod.name" in span.attributes and span.name in _POD:
            moments[Moment(_POD[span.name], alias, party)] = span.end
        elif span.name in _RESERVATION:
            moments[Moment(_RESERVATION[span.name], alias, party)] = span.end
            if span.name == "reserve":
                moments.setdefault(Moment(MADE, alias, party), span.begin)
        elif span.name in _TASK:
            moments[Moment(_TASK[span.name], alias)] = span.end
        elif span.name.startswith("task "):
            moments[Moment(CREATED, alias)] = span.begin
            moments.setdefault(Moment(RUNNING), span.begin)
        elif span.name == "image pull":
            moments |= {Moment(PULLING, alias, party): span.begin, Moment(PULLED, alias, party): span.end}
        elif kind := _detail(span.name):
            bars = details.setdefault((alias, party), [])
            if len(bars) < _MOST_DETAILS:
                bars.append(Bar(_label(span), 3, (TimelineSpan(kind, span.begin, span.end),)))
    return RecordedJob(moments, {key: tuple(bars) for key, bars in details.items()}, whole)


def _detail(name: str) -> str:
    if name in ("data read", "data write"):
        return DATA
    return CALL if name.startswith(("connect to ", "calls ")) else ""


def _label(span: RecordedSpan) -> str:
    data = span.attributes.get("coterie.data")
    name = span.name.split(" ", 1)[1] if span.name.startswith("data ") else span.name
    return f"{name} {data}" if data else name
