"""A RunP runtime for one test, and a thorough broom for after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.kube.agent.images.store import HOST_IMAGE, remove_tree
from coterie.kube.agent.runtimes.protocol import ContainerLimits, ContainerSpec, ContainerState, PodSandbox
from coterie.kube.agent.runtimes.runp import cgroups, pod_networks
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import RunpSettings


class RunpHarness:
    image = HOST_IMAGE

    def __init__(self, root: Path, settings: RunpSettings, handler: str = "runp") -> None:
        self.handler = handler
        self.root = root
        self.settings = settings
        self.runtime = RunpRuntime(settings)
        self.group = group_of(settings.node, settings.directory)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, root: Path, handler: str = "runp", **changes: Any) -> AsyncIterator[RunpHarness]:
        settings = RunpSettings(directory=root / "runp", images=root / "images", node="test", hidden=(root / "runp",))
        harness = cls(root, replace(settings, **changes), handler)
        try:
            await harness.runtime.open()
            yield harness
        finally:
            await harness.runtime.close()
            harness.sweep()

    # ----- the suite's harness

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = RunpRuntime(self.settings)
        await self.runtime.open()

    async def until(self, check: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, "it never came to this"
            await asyncio.sleep(0.01)

    async def finish(self, work: Awaitable[object], seconds: float = 10.0) -> object:
        return await asyncio.wait_for(work, seconds)

    # ----- short words for tests

    @property
    def powers(self) -> dict[str, Any]:
        return self.runtime._powers

    async def start(
        self,
        script: str,
        name: str = "main",
        attempt: int = 0,
        uid: str = "uid-1",
        *,
        pod_limits: ContainerLimits | None = None,
        **changes: Any,
    ) -> ContainerSpec:
        if self.runtime.pod(uid) is None:
            await self.runtime.prepare_pod(
                PodSandbox(
                    uid,
                    "alice",
                    f"pod-{uid}",
                    f"pod-{uid}",
                    self.root / "pods" / uid,
                    "10.9.8.7 friend\n",
                    "nameserver 10.9.8.7\n",
                    limits=pod_limits or NO_LIMITS,
                    handler=self.handler,
                )
            )
        spec = ContainerSpec(
            name,
            attempt,
            self.image,
            ("sh", "-c", script),
            (),
            (),
            "",
            (),
            self.root / "logs" / uid / f"{name}.{attempt}.log",
        )
        spec = replace(spec, **changes)
        await self.runtime.start_container(uid, spec)
        return spec

    def state(self, name: str = "main", uid: str = "uid-1") -> ContainerState:
        pod = self.runtime.pod(uid)
        assert pod is not None
        return [state for state in pod.containers if state.name == name][-1]

    async def ended(self, name: str = "main", uid: str = "uid-1", seconds: float = 15.0) -> ContainerState:
        await self.until(lambda: not self.state(name, uid).running, seconds)
        return self.state(name, uid)

    async def output(self, script: str, *, code: int = 0, **changes: Any) -> str:
        """What a script prints, run to its end in a container of its own."""
        name = f"c{len(self.runtime.pod('uid-1').containers) if self.runtime.pod('uid-1') else 0}"  # type: ignore[union-attr]
        spec = await self.start(script, name, **changes)
        state = await self.ended(name)
        text = log_text(spec.log_path)
        assert state.exit_code == code, f"exit {state.exit_code}: {state.message} {text}"
        return text

    @property
    def shepherd(self) -> int:
        return find_shepherd(self.settings.directory)

    # ----- the broom

    def sweep(self) -> None:
        shepherd = self.shepherd
        if shepherd:
            os.kill(shepherd, signal.SIGKILL)
        pod_networks.release(str(self.settings.directory))
        sweep_group(self.group)
        for pid in marked_below(self.settings.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        remove_groups(self.group)
        remove_tree(self.root / "runp") if (self.root / "runp").exists() else None


def find_shepherd(directory: Path) -> int:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if b"--root" in words and os.fsencode(directory) in words:
                    return int(name)
    return 0


def marked_below(directory: Path) -> list[int]:
    """Inits and programs of the containers that the supervisor of `directory` wrote down."""
    found = []
    for path in directory.glob("state/*/*.json"):
        if path.name != "pod.json":
            text = path.read_text()
            for key in ('"init":', '"pid":'):
                number = int(text.split(key)[1].split(",")[0])
                if number:
                    found.append(number)
    return found


def _trees(group: str) -> list[str]:
    v1, v2 = cgroups.mounts(Path("/proc/self/mounts").read_text())
    trees = [*v1.values(), v2] if v2 else list(v1.values())
    trees += [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if "name=systemd" in line]
    return [f"{tree}/{group}" for tree in trees if os.path.isdir(f"{tree}/{group}")]


def sweep_group(group: str) -> None:
    for tree in _trees(group):
        for at, _, _ in os.walk(tree):
            with contextlib.suppress(OSError):
                for pid in Path(f"{at}/cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)


def remove_groups(group: str) -> None:
    for _ in range(50):
        left = False
        for tree in _trees(group):
            for at, _, _ in os.walk(tree, topdown=False):
                try:
                    os.rmdir(at)
                except OSError:
                    left = True
        if not left:
            return
        time.sleep(0.02)


def log_text(path: Path) -> str:
    if not path.exists():
        return ""
    out = []
    for line in path.read_text().splitlines():
        _, _, tag, text = line.split(" ", 3)
        out.append(text + ("\n" if tag == "F" else ""))
    return "".join(out)


NO_LIMITS = ContainerLimits()
