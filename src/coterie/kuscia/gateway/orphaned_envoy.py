"""An Envoy that outlived the process which started it: recognised, watched, ended. It is nobody's child any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path


def running(pid_file: Path, config: Path) -> int | None:
    """The process of that file, if it still is an Envoy with that configuration and not a stranger with its number."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(config).encode() in command else None


async def ended(pid: int) -> None:
    """Until a process that is not our child is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def end(pid: int, grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended(pid), grace)
            return
