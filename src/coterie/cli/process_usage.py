"""How much memory and processor time the processes of a domain take together; memory that is shared counts by its part
(PSS).

Processes of a domain are those whose command line names a file of it, and all that they started.

What is shared is costly for the kernel to find out, so it is asked for only when the plain sum (RSS), which is cheap,
has grown: a measurement must not take the time of what it measures.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_EVERY = 0.5
_GROWN = 1.03
_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (OSError, ValueError, IndexError)


class MemoryPeaks:
    """Looks again and again while it is entered; `mb` is the most that was seen, by domain, and `cpu` the seconds
    used."""

    def __init__(self, homes: Mapping[str, Path]) -> None:
        self.mb = dict.fromkeys(homes, 0.0)
        self.cpu = dict.fromkeys(homes, 0.0)
        self._homes = homes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="footprint", daemon=True)

    def __enter__(self) -> MemoryPeaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        highest = dict.fromkeys(self._homes, 0)
        before = {pid: cpu_seconds(pid) for pid in processes()}
        used: dict[str, dict[int, float]] = {name: {} for name in self._homes}
        while not self._over.wait(_EVERY):
            table = processes()
            for name, home in self._homes.items():
                members = belonging(table, f"{home}/")
                plain = sum(rss_kb(pid) for pid in members)
                if plain > highest[name] * _GROWN:
                    highest[name] = plain
                    self.mb[name] = max(self.mb[name], sum(pss_kb(pid) for pid in members) / 1024)
                # Whoever is gone keeps what was seen of it last.
                used[name] |= {pid: cpu_seconds(pid) - before.get(pid, 0.0) for pid in members}
                self.cpu[name] = sum(used[name].values())


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command line by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(*_GONE):
            # The name of the program, in brackets, may hold anything.
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            found[int(entry.name)] = (parent, (entry / "cmdline").read_bytes().decode(errors="replace"))
    return found


def belonging(table: Mapping[int, tuple[int, str]], word: str) -> set[int]:
    """Those that name `word`, and their descendants. Pure."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left: Sequence[int] = [pid for pid, (_, line) in table.items() if word in line]
    while left:
        found.update(left)
        left = [child for pid in left for child in children.get(pid, ()) if child not in found]
    return found


def cpu_seconds(pid: int) -> float:
    with suppress(*_GONE):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def rss_kb(pid: int) -> int:
    with suppress(*_GONE):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    return 0


def pss_kb(pid: int) -> int:
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
