"""Containers by runc, crun and runsc for tests, of an image that is little more than busybox."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest
from image_kit import entry, folder, link, oci, tar
from runp_kit import RunpHarness

from coterie.kube.agent.images import archive
from coterie.kube.agent.images.store import ImageStore

PROGRAMS = {"runc": "runc", "crun": "crun", "gvisor": "runsc"}
IMAGE = "busybox:test"
_APPLETS = (
    "cat", "chmod", "cut", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mknod",
    "mount", "nc", "ps", "readlink", "rm", "seq", "setsid", "sh", "sleep", "stat", "stty", "test", "touch", "tr", "true", "tty",
    "umount", "unshare", "wc", "wget",
)  # fmt: skip


def require(handler: str) -> None:
    """Skip where the handler's program is not installed, or nobody may run it."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    for program in (PROGRAMS[handler], "busybox"):
        if shutil.which(program, path=path) is None:
            pytest.skip(f"{program} is not installed (scripts/get-runtimes)")


def add_image(images: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    entries = [folder("bin"), folder("etc"), folder("work"), folder("root", 0o700)]
    entries += [entry("bin/busybox", Path(busybox).read_bytes(), mode=0o755)]
    entries += [link(f"bin/{name}", "busybox") for name in _APPLETS]
    entries += [entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1234:1235::/:/bin/sh\n")]
    archive.load(ImageStore(images), io.BytesIO(oci([tar(entries)], IMAGE)))


class OciHarness(RunpHarness):
    image = IMAGE
