"""Volumes that must not be found by their paths: mounted where only the node can write, while containerd starts a container.

A container that has a volume can put a link in place of a subPath at any moment. containerd and runc look paths up again, so
they are given a mount of what was checked. When the container runs it has a mount of its own, and this one goes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coterie.base.files import private_directory
from coterie.kube.agent.runtimes.protocol import ContainerSpec, Mount, RuntimeFailure
from coterie.kube.agent.runtimes.runp import filesystem, linux


class StagedVolumes:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def clear(self) -> None:
        """What an agent left that was killed."""
        for stage in list(self._directory.glob("*")):
            _remove(stage)

    @contextlib.contextmanager
    def staged(self, spec: ContainerSpec, containerd: int) -> Iterator[ContainerSpec]:
        """The specification with other sources. `containerd`: its pid. Raises RuntimeFailure."""
        if not any(mount.resolved for mount in spec.mounts):
            yield spec
            return
        private_directory(self._directory)
        stage = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            mounts = tuple(
                replace(mount, source=_staged(mount, stage / str(number), containerd)) if mount.resolved else mount
                for number, mount in enumerate(spec.mounts)
            )
            yield replace(spec, mounts=mounts)
        finally:
            _remove(stage)


def _staged(mount: Mount, place: Path, containerd: int) -> Path:
    try:
        handle = filesystem.clone_resolved(str(mount.source))
    except FileNotFoundError as problem:
        raise RuntimeFailure("CreateContainerError", f"volume source {mount.source} does not exist") from problem
    except filesystem.SetupError as problem:
        raise RuntimeFailure("CreateContainerError", str(problem)) from problem
    try:
        linux.set_attributes(handle, 0)
        filesystem.mount_point(str(place), directory=stat.S_ISDIR(os.fstat(handle).st_mode))
        linux.attach(handle, str(place))
        seen = os.stat(f"/proc/{containerd}/root{place}")
        if not os.path.samestat(os.fstat(handle), seen):
            raise RuntimeFailure(
                "CreateContainerError",
                "containerd has another view of the machine's mounts than the agent; end it (`coterie down`) and start again",
            )
    except OSError as problem:
        raise RuntimeFailure("CreateContainerError", f"volume source {mount.source}: {problem}") from problem
    finally:
        os.close(handle)
    return place


def _remove(stage: Path) -> None:
    """Only what is empty: what cannot be unmounted is somebody's volume."""
    for place in list(stage.glob("*")):
        with contextlib.suppress(OSError):
            linux.unmount(str(place))
        with contextlib.suppress(OSError):
            if place.is_dir():
                place.rmdir()
            elif not place.stat().st_size:
                place.unlink()  # a place that is still mounted is busy
    with contextlib.suppress(OSError):
        stage.rmdir()
