"""Spans as lines of a file beside the logs: each line is one OTLP request in JSON, with spans of one trace.

A collector reads such files (OpenTelemetry's `otlpjsonfile` receiver), and so do `grep` and `jq`: all of a job are the lines
with its trace id. The file is moved aside between two lines when it is full; `node/log_files.py` compresses and removes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from coterie.base import otlp
from coterie.base.log_rotation import Rotation, is_full, move_aside, open_log
from coterie.base.trace import Span, TraceRing, Value

TRACE_FILE = "traces.jsonl"


class TraceFile:
    def __init__(
        self, path: Path, ring: TraceRing, resource: Mapping[str, Value], version: str, rotation: Rotation
    ) -> None:
        self._path = path
        self._ring = ring
        self._resource = resource
        self._version = version
        self._rotation = rotation
        self._number = ring.recorded

    @property
    def behind(self) -> bool:
        return self._number < self._ring.recorded

    def write(self) -> None:
        """All that is new. OSError leaves it for the next time."""
        spans, lost, number = self._ring.after(self._number)
        traces: dict[str, list[Span]] = {}
        for span in spans:
            traces.setdefault(span.trace, []).append(span)
        lines = [otlp.encode(otlp.export_request(each, self._resource, self._version)) for each in traces.values()]
        if is_full(self._path, self._rotation):
            move_aside(self._path, self._rotation)
        target = open_log(self._path)
        try:
            for line in lines:
                os.write(target, line + b"\n")
        finally:
            os.close(target)
        self._number = number
        if lost:
            self._ring.drop("file", lost)
