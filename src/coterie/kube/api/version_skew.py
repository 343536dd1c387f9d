"""Whether a node and a control plane of different versions may work together: one minor version apart at most, so that either
of them can be upgraded first."""

from __future__ import annotations

import re

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.|$|[-+])")
MOST = 1
"""Minor versions between a node and its control plane."""


def skew_problem(node: str, control_plane: str) -> str:
    """Why they may not; empty: they may, or one of them says no version that can be compared."""
    ours, theirs = _minor(control_plane), _minor(node)
    if ours is None or theirs is None or (ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= MOST):
        return ""
    older, target = ("node", ours) if theirs < ours else ("control plane", theirs)
    lowest = f"{target[0]}.{max(0, target[1] - MOST)}"
    return (
        f"the node has version {node.removeprefix('v')} and the control plane {control_plane.removeprefix('v')}, but they may "
        f"be one minor version apart at most; upgrade the {older} to {lowest} or later"
    )


def _minor(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None
