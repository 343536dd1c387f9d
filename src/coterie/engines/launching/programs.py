"""Child processes of a launcher. They end with it, and it ends when one of them does that should not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

_GRACE = 10.0


class Programs:
    """Use it with `with`: at the end, and at SIGTERM, all that were started are stopped, with what they started."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Programs:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _end)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running.values():
            _signal_group(each, signal.SIGTERM)
        for each in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(_GRACE)
            _signal_group(each, signal.SIGKILL)
            each.wait()

    def start(self, name: str, words: Sequence[str], *, output: bool = True) -> subprocess.Popen[bytes]:
        """Its output goes to the log of the task; `output` False: into a file, of which `tail` gives the end."""
        with contextlib.ExitStack() as files:
            target = None if output else files.enter_context((self._folder / f"{name}.log").open("ab"))
            process = subprocess.Popen(
                list(words),
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=target and subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def ended(self) -> tuple[str, int] | None:
        """The name and the status of one that has ended."""
        for name, each in self._running.items():
            status = each.poll()
            if status is not None:
                return name, status
        return None

    def forget(self, name: str) -> None:
        """It may end."""
        self._running.pop(name, None)

    def tail(self, name: str, lines: int = 20) -> str:
        try:
            text = (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def environment(**added: str) -> dict[str, str]:
    """Of programs that talk to loopback only: without the proxy by which partners are reached."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {**kept, "NO_PROXY": "*", "no_proxy": "*", "PYTHONUNBUFFERED": "1", **added}


def until(happened: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Whether it happened within this time."""
    waiting = threading.Event()
    for _ in range(max(1, round(seconds / pause))):
        if happened():
            return True
        waiting.wait(pause)
    return happened()


def listens(port: int) -> bool:
    """Whether somebody takes connections there, on loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def fail(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return status


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end(*_: int | FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
