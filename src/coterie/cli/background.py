"""Nodes that run in the background: start one, know whether it runs, stop it, read the end of its log.

A node is known by the file `var/run/coterie.pid` of its domain, which holds its process id and the moment it began, so
a stranger who got the same number later is never taken for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from coterie.base.files import write_atomic
from coterie.base.log_rotation import open_log
from coterie.base.paths import DomainPaths

_POLL_SECONDS = 0.02
FORKING = "coterie.cli.forking"
"""The module that starts several nodes."""


def config_file(paths: DomainPaths) -> Path:
    return paths.etc / "coterie.yaml"


def log_file(paths: DomainPaths) -> Path:
    return paths.log("coterie")


def pid_file(paths: DomainPaths) -> Path:
    return paths.run / "coterie.pid"


def start(paths: DomainPaths, environ: Mapping[str, str]) -> int:
    """Run the node whose configuration lies in its directory; answers its process id."""
    command = [
        sys.executable,
        "-m",
        "coterie",
        "start",
        "-c",
        str(config_file(paths)),
        "--root",
        str(paths.home.parent),
    ]
    with open_node_log(log_file(paths)) as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it is to live on when this terminal is closed
            cwd="/",
            env=dict(environ),
        )
    child.returncode = 0  # nobody waits for it here, and Python need not warn about that
    write_atomic(pid_file(paths), f"{child.pid} {_began(child.pid)}\n", durable=False)
    return child.pid


def start_together(many: Sequence[tuple[DomainPaths, str]], environ: Mapping[str, str]) -> None:
    """Run several nodes, each given with its mode. They share what they have in common (`forking.py`)."""
    if len(many) == 1:
        start(many[0][0], environ)
        return
    modes = ",".join(sorted({mode for _, mode in many}))
    root = str(many[0][0].home.parent)
    configs = [str(config_file(paths)) for paths, _ in many]
    with open_node_log(log_file(many[0][0])) as log:
        command = [sys.executable, "-m", FORKING, "--modes", modes, "--root", root, *configs]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=dict(environ),
            check=False,
        )
    for (paths, _), pid in zip(many, map(int, done.stdout.split()), strict=False):
        write_atomic(pid_file(paths), f"{pid} {_began(pid)}\n", durable=False)


def open_node_log(path: Path) -> IO[bytes]:
    """The node itself keeps it within its limits (node/log_files.py)."""
    return os.fdopen(open_log(path), "ab")


def running(paths: DomainPaths) -> int:
    """The process id of the node that was started in the background, 0 when it does not run."""
    try:
        pid, began = pid_file(paths).read_text().split()
        number = int(pid)
    except (FileNotFoundError, ValueError):
        return 0
    with contextlib.suppress(ChildProcessError):
        os.waitpid(number, os.WNOHANG)  # one that we started ourselves is not gone before it is reaped
    return number if began and began == _began(number) else 0


def _began(pid: int) -> str:
    """The process's start in clock ticks since boot; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # Its first thread may be gone while another still waits for a disk, and as long holds files and ports open.
    return "" if fields[0] in "ZX" and int(fields[17]) <= 1 else fields[19]


def stop(many: Sequence[DomainPaths], grace: float) -> list[DomainPaths]:
    """Stop nodes, all at once: SIGTERM, and SIGKILL to those that are still there after the grace.

    Answers those that ran. Raises PermissionError for a process of another user.
    """
    ran = [paths for paths in many if running(paths)]
    left = _signal(ran, signal.SIGTERM, grace)
    left = _signal(left, signal.SIGKILL, grace)
    if left:
        raise PermissionError(f"process {running(left[0])} cannot be ended")
    for paths in many:
        pid_file(paths).unlink(missing_ok=True)
    return ran


def _signal(many: Sequence[DomainPaths], number: int, grace: float) -> list[DomainPaths]:
    """Those that are still there."""
    for paths in many:
        pid = running(paths)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    deadline = time.monotonic() + grace
    left = [paths for paths in many if running(paths)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [paths for paths in left if running(paths)]
    return left


def log_tail(paths: DomainPaths, lines: int = 10) -> list[str]:
    try:
        with log_file(paths).open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []
