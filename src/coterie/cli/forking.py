"""Several nodes from one process: `python -m coterie.cli.forking --modes M,... --root DIR CONFIG...` loads what they need, forks a
node for each configuration, prints their process ids and ends. `coterie up` starts its nodes this way.

A node made like this is `coterie start` in all that matters: its own session, its own log, the same command line.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.cli import background
from coterie.cli.main import main as coterie
from coterie.node.preload import preload


def main(words: Sequence[str]) -> int:
    modes, root, configs = words[1], words[3], words[4:]
    preload(modes.split(","))
    for config in configs:
        if not (pid := os.fork()):
            return _node(config, root)
        os.write(1, f"{pid}\n".encode())  # at once: what waits in a buffer would be the next child's, too
    return 0


def _node(config: str, root: str) -> int:
    os.setsid()  # it is to live on when the terminal is closed
    paths = DomainPaths(Path(config).parent.parent)
    with background.open_node_log(background.log_file(paths)) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    words = ("start", "-c", config, "--root", root)
    _show_as((sys.executable, "-m", "coterie", *words))
    return coterie(words)


def _show_as(command: Sequence[str]) -> None:
    """What `ps` and everybody who looks for a domain's processes see. The kernel shows the memory that held our own arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"".join(os.fsencode(word) + b"\0" for word in command)
    # Our own arguments were longer: they named the same files, and a longer module.
    if 0 < len(shown) <= end - start:
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
