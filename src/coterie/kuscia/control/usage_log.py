"""`usage.log` of a node: what its tasks use, a line each few seconds while they run (`kuscia/api/task_usage.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_rotation import STANDARD, Rotation, is_full, move_aside, open_log
from coterie.kuscia.api.task_usage import LINK, step_seconds, usage_line
from coterie.kuscia.api.types.domain import TaskLinkUsage

USAGE_LOG: Final = "usage"
MAX_BYTES: Final = 16 << 20
"""Of one file, where logs may be larger: a hundred thousand lines."""

log = logger("usage")


class UsageLog:
    def __init__(self, path: Path, clock: Clock, rotation: Rotation = STANDARD) -> None:
        self._path = path
        self._clock = clock
        self._rotation = replace(rotation, max_bytes=min(rotation.max_bytes, MAX_BYTES))
        self._failed = False
        self._links: dict[tuple[str, str], tuple[float, float]] = {}
        """When a link of a task was first seen, and written last."""

    def write(self, what: str, facts: Mapping[str, object]) -> None:
        self._append([usage_line(self._clock.now(), what, facts)])

    def links(self, found: Iterable[TaskLinkUsage]) -> None:
        """Of the tasks that run now, as the gateway measured them."""
        now, stamp = self._clock.monotonic(), self._clock.now()
        known, lines = self._links, []
        self._links = {}
        for each in found:
            key = (each.task, each.peer)
            first, last = known.get(key, (now, float("-inf")))
            # Both are measured by timers: one that comes a little early is not left out.
            due = now - last >= step_seconds(now - first) - 0.2
            self._links[key] = (first, now if due else last)
            if due:
                facts = {"task": each.task, "peer": each.peer, "sent": each.sent_bytes, "received": each.received_bytes}
                lines.append(usage_line(stamp, LINK, facts))
        self._append(lines)

    def _append(self, lines: list[str]) -> None:
        """What cannot be written is lost: no task depends on it."""
        if not lines:
            return
        try:
            if is_full(self._path, self._rotation):
                move_aside(self._path, self._rotation)
            target = open_log(self._path)
            try:
                os.write(target, "".join(f"{line}\n" for line in lines).encode())
            finally:
                os.close(target)
            self._failed = False
        except OSError as problem:
            if not self._failed:
                log.warning("What tasks use cannot be written", path=str(self._path), error=problem)
            self._failed = True
