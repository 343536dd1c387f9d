"""What pods leave behind: old output, and directories of pods that nobody knows any more."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_rotation import compress
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes import directories

log = logger("agent.garbage")
_DAY = 86400.0
_ROTATED = re.compile(r"\d+\.log\.\d+")


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """Output of a pod that is gone (`<namespace>_<pod>_<uid>`)."""

    path: Path
    newest: float
    """When something was written to it last."""
    size: int
    rotated: tuple[Path, ...] = ()
    """Files that can be compressed."""


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
        rules, known = self._settings.logs, self._known()
        limit = self._clock.now().timestamp() - rules.max_age_days * _DAY
        kept = await asyncio.to_thread(kept_outputs, self._settings.paths.stdout / "pods", known)
        old = removable(kept, limit, rules.max_total_bytes)[: rules.gc_batch]
        left = abandoned(self._settings.pods_directory, known)
        for directory in left:
            for volume in (directory / "volumes").glob("*"):
                directories.unmount(volume)
        if old or left:
            await asyncio.to_thread(_remove, [*old, *left])
            log.info("Removed what pods left behind", outputs=len(old), directories=len(left))
        rotated = [file for each in kept if each.path not in old for file in each.rotated][: rules.gc_batch]
        if rotated:
            await asyncio.to_thread(_compress, rotated)
        return len(old) + len(left)


def kept_outputs(directory: Path, known: set[str]) -> list[KeptOutput]:
    """Of pods that nobody knows any more, oldest first."""
    found = [_kept(path) for path in _directories(directory) if path.name.rpartition("_")[2] not in known]
    return sorted(found, key=lambda each: (each.newest, each.path))


def _kept(path: Path) -> KeptOutput:
    newest, size, rotated = 0.0, 0, list[Path]()
    for file in path.rglob("*"):
        try:
            facts = file.lstat()
        except FileNotFoundError:
            continue
        newest = max(newest, facts.st_mtime)
        if stat.S_ISREG(facts.st_mode):
            size += facts.st_size
            if _ROTATED.fullmatch(file.name):
                rotated.append(file)
    return KeptOutput(path, newest or path.stat().st_mtime, size, tuple(rotated))


def removable(kept: Iterable[KeptOutput], limit: float, max_bytes: int) -> list[Path]:
    """What nothing wrote to since `limit`, and the oldest of the rest while there is more than `max_bytes` (0: no limit).
    `kept` is sorted, oldest first."""
    kept = list(kept)
    left = sum(each.size for each in kept)
    out = []
    for each in kept:
        if each.newest < limit or (max_bytes and left > max_bytes):
            out.append(each.path)
            left -= each.size
    return out


def abandoned(directory: Path, known: set[str]) -> list[Path]:
    return [path for path in _directories(directory) if path.name not in known]


def _directories(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _compress(files: list[Path]) -> None:
    """Only of pods that are gone: nobody renames these files any more."""
    for file in files:
        try:
            compress(file)
        except OSError as problem:
            log.warning("Kept output cannot be compressed", file=file.name, why=os.strerror(problem.errno or 0))
            return
