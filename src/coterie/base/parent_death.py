"""Helpers of ours, written in Python, that are to live no longer than who started them.

    subprocess.run((sys.executable, "-m", ...), env={**os.environ, **parent.named()})     # who starts one
    parent.follow()                                                                       # first thing in there

Else one whose parent was killed goes on writing into directories that somebody removes meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_VARIABLE = "COTERIE_PARENT"
_PR_SET_PDEATHSIG = 1


def parent_environment() -> dict[str, str]:
    return {_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Linux: the kernel ends this process when its parent dies, even by SIGKILL."""
    parent = os.environ.get(_VARIABLE, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the wish was made.
    if os.getppid() != int(parent):
        os._exit(1)
