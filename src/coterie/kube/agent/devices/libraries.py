"""Libraries of a driver: where they are on the machine, and where containers look for them.

They belong to the kernel module, so no image can have them. A container with a file system of its own gets each of them
mounted in the directories that the dynamic loaders of Debian's and Fedora's relatives search by default; so no cache has to
be rebuilt and no variable to be set. A container with the machine's /usr has them already; where its loader does not search their
directory, LD_LIBRARY_PATH says so.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from coterie.kube.agent.devices.protocol import DriverLibraries
from coterie.kube.agent.runtimes.protocol import Mount

_MACHINE: Final = platform.machine()
DEFAULT_DIRECTORIES: Final = (
    f"/usr/lib/{_MACHINE}-linux-gnu",
    f"/lib/{_MACHINE}-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
"""Searched by every dynamic loader, here or on another distribution."""
_TARGETS: Final = (f"/usr/lib/{_MACHINE}-linux-gnu", "/usr/lib64")
_PROGRAMS: Final = "/usr/bin"
_CACHE: Final = Path("/etc/ld.so.cache")


def directories(extra: Iterable[str], variable: str | None = None) -> list[str]:
    """Where libraries may lie: the loader's variable, the usual directories, those of the cache, and `extra`."""
    given = os.environ.get("LD_LIBRARY_PATH", "") if variable is None else variable
    found = [*given.split(":"), *DEFAULT_DIRECTORIES, *extra, *_cached()]
    return [path for path in dict.fromkeys(found) if path and os.path.isdir(path)]


def find(patterns: Sequence[str], extra: Iterable[str]) -> list[Path]:
    """The first file of each name."""
    found: dict[str, Path] = {}
    for directory in directories(extra):
        for pattern in patterns:
            for path in sorted(Path(directory).glob(pattern)):
                # `libx.so.*` also finds the file with the full version, to which libx.so.1 leads.
                if path.is_file():
                    found.setdefault(path.name, path)
    return list(found.values())


def driver(patterns: Sequence[str], programs: Sequence[str], extra: Iterable[str]) -> DriverLibraries:
    files = find(patterns, extra)
    searched = {*DEFAULT_DIRECTORIES, *_cached()}
    return DriverLibraries(
        tuple(files),
        tuple(Path(path) for name in programs if (path := shutil.which(name))),
        tuple(dict.fromkeys(str(path.parent) for path in files if str(path.parent) not in searched)),
    )


def image_mounts(driver_files: DriverLibraries) -> list[Mount]:
    """For a container with a file system of its own."""
    mounts = [
        Mount(path.resolve(), f"{directory}/{path.name}", read_only=True)
        for path in driver_files.files
        for directory in _TARGETS
    ]
    return mounts + [
        Mount(path.resolve(), f"{_PROGRAMS}/{path.name}", read_only=True) for path in driver_files.programs
    ]


def host_mounts(driver_files: DriverLibraries) -> list[Mount]:
    """For a container that sees the machine's /usr: what lies elsewhere."""
    outside = [path for path in driver_files.search if not path.startswith(("/usr/", "/lib"))]
    return [Mount(Path(path), path, read_only=True) for path in outside]


def search_path(driver_files: DriverLibraries, given: str) -> str:
    """LD_LIBRARY_PATH with the directories that the loader would not search; `given` is what it says already."""
    return ":".join(dict.fromkeys(path for path in (*given.split(":"), *driver_files.search) if path))


def _cached() -> list[str]:
    """Directories of the loader's cache, whose entries are paths that end with a zero byte."""
    try:
        data = _CACHE.read_bytes()
    except OSError:
        return []
    entries = (part for part in data.split(b"\0") if part.startswith(b"/") and b".so" in part)
    return list(dict.fromkeys(os.path.dirname(entry.decode("utf-8", "replace")) for entry in entries))
