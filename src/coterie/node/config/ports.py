"""Which ports this process, and the Envoy it starts, may open: those below 1024 are not everybody's."""

from __future__ import annotations

import os
from pathlib import Path

_FIRST_FREE = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_STATUS = Path("/proc/self/status")
_BIND_SERVICE = 10
"""The number of CAP_NET_BIND_SERVICE."""
_USUAL = 1024


def lowest_port() -> int:
    """The first port that can be opened; 0 when all can."""
    if _holds_capability():
        return 0
    try:
        return int(_FIRST_FREE.read_text())
    except (OSError, ValueError):
        return _USUAL


def _holds_capability() -> bool:
    # A child of root keeps what root has; that of somebody else only what is ambient, and Envoy is a child.
    wanted = "CapEff:" if os.geteuid() == 0 else "CapAmb:"
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return os.geteuid() == 0
    for line in lines:
        if line.startswith(wanted):
            return bool(int(line.split()[1], 16) >> _BIND_SERVICE & 1)
    return False
