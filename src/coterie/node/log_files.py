"""Keeps all logs of a node within `logrotate`, except those of pods, which their runtime rotates.

    coterie.log, where our own output goes there      moved aside; we open it anew
    datamesh, kusciaapi, transport, crypt             moved aside; the children open theirs anew (base/child_logging.py)
    envoy.log and internal, external, ingress.log     by the gateway, which asks Envoy to open them anew
    the audit log, traces.jsonl, usage.log            by its writer, between two lines
    Envoy's standard error, the supervisor's            copied and truncated: nobody can open them anew; hardly written to

What was moved aside is compressed and removed here for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_rotation import OwnOutput, Rotation, copy_and_truncate, is_full, move_aside, tidy
from coterie.base.paths import DomainPaths
from coterie.kuscia.control.usage_log import USAGE_LOG
from coterie.node.config import NodeSettings
from coterie.node.trace_file import TRACE_FILE

PERIOD = 10.0
TIDY = 600.0
"""Seconds between two passes that compress and remove."""

log = logger("node.logs")


@dataclass(frozen=True, slots=True)
class NodeLogs:
    own: Path
    followed: tuple[Path, ...]
    copied: tuple[Path, ...]
    tidied: tuple[Path, ...]
    """Rotated by others."""

    @property
    def every(self) -> tuple[Path, ...]:
        return (self.own, *self.followed, *self.copied, *self.tidied)


def logs_of(paths: DomainPaths, audit_log: str = "") -> NodeLogs:
    """`audit_log`: as in the configuration."""
    gateway = paths.logs / "envoy"
    others = (paths.logs / TRACE_FILE, paths.log(USAGE_LOG), *((paths.logs / audit_log,) if audit_log else ()))
    return NodeLogs(
        own=paths.log("coterie"),
        followed=(paths.log("datamesh"), paths.log("kusciaapi"), paths.log("transport"), gateway / "crypt.log"),
        copied=(gateway / "envoy-stderr.log", paths.run / "runp" / "shepherd.log"),
        tidied=(*(gateway / f"{name}.log" for name in ("envoy", "internal", "external", "ingress")), *others),
    )


class LogFiles:
    """A Runnable."""

    name = "log-files"

    def __init__(self, logs: NodeLogs, rotation: Rotation, clock: Clock, *, output: OwnOutput | None = None) -> None:
        self.ready = asyncio.Event()
        self._logs = logs
        self._rotation = rotation
        self._clock = clock
        self._output = output or OwnOutput(logs.own)
        self._failing = False

    async def run(self) -> None:
        self.ready.set()
        tidied_at: float | None = None
        while True:
            now = self._clock.monotonic()
            full = self._full()
            if full or tidied_at is None or now - tidied_at >= TIDY:
                tidied_at = now
                # Large files are copied and compressed.
                await asyncio.to_thread(self._work, full)
            await self._clock.sleep(PERIOD)

    def _full(self) -> list[Path]:
        own = (self._logs.own,) if self._output.is_ours else ()
        return [path for path in (*own, *self._logs.followed, *self._logs.copied) if is_full(path, self._rotation)]

    def _work(self, full: list[Path]) -> None:
        failed = [self._try(self._rotate, path) for path in full]
        failed += [self._try(self._tidy, path) for path in self._logs.every]
        self._failing = any(failed)

    def _try(self, work: Callable[[Path], None], path: Path) -> bool:
        """Whether it failed: a disk that is full, or somebody else's file. Told once."""
        try:
            work(path)
        except OSError as problem:
            if not self._failing:
                self._failing = True
                log.warning("A log cannot be rotated; it grows", file=str(path), error=problem)
            return True
        return False

    def _rotate(self, path: Path) -> None:
        if path in self._logs.copied:
            copy_and_truncate(path, self._rotation)
            return
        move_aside(path, self._rotation)
        if path == self._logs.own:
            self._output.follow()

    def _tidy(self, path: Path) -> None:
        tidy(path, self._rotation, self._clock.now().timestamp())


def log_files(settings: NodeSettings, clock: Clock) -> LogFiles:
    audit = settings.api.audit_log if settings.mode != "lite" else ""
    return LogFiles(logs_of(settings.paths, audit), settings.logrotate.of_node, clock)
