"""What can be set about containers on containerd, and where their files lie.

<directory>/config.toml, containerd.json     containerd's configuration; the process that runs with it
<directory>/containerd.sock                  its socket; elsewhere where this path would be too long for one
<directory>/state/                           what containerd forgets at a reboot
<directory>/cni/                             our network plugin and its configuration
<directory>/pods/<uid>.json                  pods that were prepared
<directory>/exec/                            pipes of execs
<root>/                                      images and containers of containerd
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

_LONGEST_SOCKET = 100
"""The kernel has 107 characters for the path of a socket; containerd makes a second one with a longer name."""
_ELSEWHERE = Path("/run/coterie")


@dataclass(frozen=True, slots=True)
class CriSettings:
    directory: Path
    """The runtime's own, one for each node; nobody but root may look into it."""
    root: Path
    """containerd's persistent files. On the file system of the image store, images are linked and not copied."""
    images: Path
    """The image store."""
    node: str
    """Name of the node, for messages."""
    group: str
    """The node's control group, below which pods have theirs."""
    log_file: Path
    """containerd's own output."""
    default: bool = False
    """Whether pods without a RuntimeClass run here."""
    log_bytes: int = 10 << 20
    """A container's log larger than this is rotated; 0: never."""
    log_files: int = 5
    idle_seconds: float = 300.0
    """containerd ends when there was no pod for this long, and starts again with the next; 0: it stays."""

    @classmethod
    def below(cls, run: Path, node: str, group: str) -> CriSettings:
        """Of a node whose sockets are in `run`."""
        var = run.parent
        return cls(run / "cri", var / "containerd", var / "images", node, group, var / "logs/containerd.log")

    @property
    def socket(self) -> Path:
        near = self.directory / "containerd.sock"
        if len(os.fsencode(near)) <= _LONGEST_SOCKET - len(".ttrpc"):
            return near
        return _ELSEWHERE / hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16] / "containerd.sock"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def records(self) -> Path:
        return self.directory / "pods"
