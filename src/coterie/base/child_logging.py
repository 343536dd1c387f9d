"""Logging of the processes that a node starts: they write as the node does, and follow when it rotates their logs.

    node     env=child_logging.environment(log_file, paths.logging)     at the start of a child
             child_logging.write(paths.logging, LogSettings(...))       before, and whenever the level changes
    child    child_logging.configure()
             async with child_logging.following(): ...                  while it serves

A child looks at both files every few seconds. There is no signal that could hit it before it listens, and no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from coterie.base import log as logs
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.files import write_atomic
from coterie.base.log import LogSettings
from coterie.base.log_rotation import OwnOutput

LOG_FILE, SETTINGS_FILE = "COTERIE_LOG_FILE", "COTERIE_LOGGING"
"""Environment variables of a child."""
PERIOD = 5.0


def environment(log_file: Path, settings: Path | None) -> dict[str, str]:
    """`log_file`: where the child's output goes; `settings`: what `write` writes."""
    out = {LOG_FILE: str(log_file)}
    return out if settings is None else {**out, SETTINGS_FILE: str(settings)}


def write(path: Path, settings: LogSettings) -> None:
    write_atomic(path, json.dumps({"level": settings.level, "format": settings.format}), durable=False)


def configure(environ: Mapping[str, str] = os.environ) -> None:
    logs.configure(_read(environ) or LogSettings(colour=False))


def _read(environ: Mapping[str, str]) -> LogSettings | None:
    """None when there is nothing, or nothing that can be used."""
    path = environ.get(SETTINGS_FILE)
    try:
        found = json.loads(Path(path).read_bytes()) if path else None
        if found is None:
            return None
        logs.level_number(found["level"])
        return LogSettings(level=found["level"], format=found["format"], colour=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.asynccontextmanager
async def following(environ: Mapping[str, str] = os.environ, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[None]:
    task = asyncio.create_task(_follow(environ, clock), name="logging")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(environ: Mapping[str, str], clock: Clock) -> None:
    path = environ.get(LOG_FILE)
    output = OwnOutput(Path(path), known=True) if path else None
    while True:
        await clock.sleep(PERIOD)
        if output is not None:
            with contextlib.suppress(OSError):  # a full disk: the file that is open goes on
                output.follow()
        settings = _read(environ)
        if settings is not None:
            logs.set_level(settings.level)
