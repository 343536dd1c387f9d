"""What pods leave behind: old output, and directories of pods that nobody knows any more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes import directories

log = logger("agent.garbage")
_DAY = 86400.0


class NodeGarbageCollector:
    """A Runnable."""

    name = "pod-garbage"

    def __init__(self, settings: AgentSettings, known: Callable[[], set[str]], clock: Clock) -> None:
        """`known`: uids of the pods that are still somebody's."""
        self.ready = asyncio.Event()
        self._settings = settings
        self._known = known
        self._clock = clock

    async def run(self) -> None:
        self.ready.set()
        while True:
            await self._clock.sleep(self._settings.logs.gc_seconds)
            await self.collect()

    async def collect(self) -> int:
        """One round; returns how many directories went."""
        now = self._clock.now().timestamp()
        limit = now - self._settings.logs.max_age_days * _DAY
        known = self._known()
        old = old_outputs(self._settings.paths.stdout / "pods", known, limit)[: self._settings.logs.gc_batch]
        left = abandoned(self._settings.pods_directory, known)
        for directory in left:
            for volume in (directory / "volumes").glob("*"):
                directories.unmount(volume)
        if old or left:
            await asyncio.to_thread(_remove, [*old, *left])
            log.info("Removed what pods left behind", outputs=len(old), directories=len(left))
        return len(old) + len(left)


def old_outputs(directory: Path, known: set[str], limit: float) -> list[Path]:
    """Output directories (`<namespace>_<pod>_<uid>`) of unknown pods that nothing wrote to since `limit`, oldest first."""
    found = []
    for path in _directories(directory):
        if path.name.rpartition("_")[2] in known:
            continue
        newest = max((file.stat().st_mtime for file in path.rglob("*")), default=path.stat().st_mtime)
        if newest < limit:
            found.append((newest, path))
    return [path for _, path in sorted(found)]


def abandoned(directory: Path, known: set[str]) -> list[Path]:
    return [path for path in _directories(directory) if path.name not in known]


def _directories(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
