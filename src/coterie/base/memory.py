"""Memory that was used once goes back to the machine. The C library keeps it otherwise, for a next time that may never come."""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Some C libraries have none."""


def give_back() -> None:
    """Takes milliseconds."""
    if _trim is not None:
        _trim(0)
