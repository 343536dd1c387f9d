"""Logs of containers on containerd, which writes them but does not rotate them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def rotate(path: Path, most_bytes: int, most_files: int) -> bool:
    """Move a log that is full to `<path>.1`, `<path>.2`, ...; then containerd has to open it again. False: it is not full."""
    try:
        if path.stat().st_size <= most_bytes:
            return False
    except OSError:
        return False
    if most_files <= 1:
        path.unlink(missing_ok=True)
        return True
    for number in range(most_files - 1, 0, -1):
        older = f"{path}.{number - 1}" if number > 1 else path
        with contextlib.suppress(FileNotFoundError):
            os.replace(older, f"{path}.{number}")
    return True
