"""Memory that was used once goes back to the machine. The C library keeps it otherwise, for a next time that may never
come."""

from __future__ import annotations

import ctypes

# Some C libraries have neither.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_choose = getattr(ctypes.CDLL(None), "mallopt", None)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def raise_trim_threshold(most: int) -> None:
    """Pieces of up to so many bytes are not given back one by one: the kernel would clear each anew when it is taken
    again. For processes that call `trim` when they have done their work."""
    if _choose is not None:
        _choose(_M_MMAP_THRESHOLD, most)
        _choose(_M_TRIM_THRESHOLD, most)


def trim() -> None:
    """Takes milliseconds."""
    if _trim is not None:
        _trim(0)
