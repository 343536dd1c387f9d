"""How much memory the processes of a domain take together: what each shares with others counts by its part (PSS).

Processes of a domain are those whose command line names a file of it, and all that they started.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_EVERY = 0.25
_GONE = (OSError, ValueError, IndexError)


class Peaks:
    """Looks again and again while it is entered; `mb` is the most that was seen, by domain."""

    def __init__(self, homes: Mapping[str, Path]) -> None:
        self.mb = dict.fromkeys(homes, 0.0)
        self._homes = homes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="footprint", daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            table = processes()
            for name, home in self._homes.items():
                total = sum(pss_kb(pid) for pid in belonging(table, f"{home}/"))
                self.mb[name] = max(self.mb[name], total / 1024)


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


def pss_kb(pid: int) -> int:
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
