"""The configuration file while a node runs: a new `logLevel` takes effect at once, all else at the next start.

The file is looked at every few seconds, and on SIGHUP. A file that cannot be used changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from coterie.base.clock import Clock
from coterie.base.log import level_number, logger
from coterie.node import config

PERIOD = 5.0
LEVEL_KEY = "logLevel"

log = logger("node.config")

Stamp = tuple[int, int, int]


@runtime_checkable
class LogsAtLevel(Protocol):
    """A part of a node that has a log level of its own, such as Envoy."""

    def log_at(self, level: str) -> None: ...


class ConfigWatch:
    """A Runnable. `apply` is called with each new level."""

    name = "configuration"

    def __init__(
        self, file: Path, root: Path | None, settings: config.NodeSettings, apply: Callable[[str], None], clock: Clock
    ) -> None:
        """`settings`: what the file came to when the node started."""
        self.ready = asyncio.Event()
        self._file = file
        self._root = root
        self._level = settings.log_level
        self._apply = apply
        self._clock = clock
        self._asked = asyncio.Event()
        self._stamp = _stamp(file)
        self._started_with = _document(file)

    def reload(self) -> None:
        """Whether or not the file looks changed."""
        self._asked.set()

    async def run(self) -> None:
        self.ready.set()
        while True:
            await self._pause()
            asked, stamp = self._asked.is_set(), _stamp(self._file)
            self._asked.clear()
            if asked or (stamp is not None and stamp != self._stamp):
                self._stamp = stamp
                self._read()

    async def _pause(self) -> None:
        waits = [asyncio.ensure_future(self._clock.sleep(PERIOD)), asyncio.ensure_future(self._asked.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _read(self) -> None:
        try:
            document = config.read(self._file)
            settings = config.parse(document, self._root)
        except config.ConfigError as problem:
            log.error("The changed configuration cannot be used; the node goes on with the old one", why=str(problem))
            return
        self._use(settings.log_level)
        others = [key for key in config.changed_keys(self._started_with, document) if key != LEVEL_KEY]
        if others:
            log.warning("Keys of the configuration changed that take effect at the next start", keys=others)

    def _use(self, level: str) -> None:
        if level == self._level:
            return
        old, self._level = self._level, level
        quieter = level_number(level) > level_number(old)
        # Said at whichever level shows it.
        if quieter:
            log.info("The log level changes", old=old, new=level)
        self._apply(level)
        if not quieter:
            log.info("The log level changes", old=old, new=level)


def _stamp(file: Path) -> Stamp | None:
    """None: not there, perhaps just being replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _document(file: Path) -> Any:
    try:
        return config.read(file)
    except config.ConfigError:
        return {}
