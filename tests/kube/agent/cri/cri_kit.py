"""A containerd for one test module, a runtime on it for each test, and a thorough broom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.kube.agent.images.store import ImageStore, remove_tree
from coterie.kube.agent.runtimes.cri import daemon
from coterie.kube.agent.runtimes.cri.runtime import CriRuntime
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.protocol import ContainerSpec, ContainerState, PodNetworkClass, PodSandbox
from coterie.kube.agent.runtimes.runp import cgroups

IMAGE = "test/busybox:1"
PROGRAMS = "sh sleep cat echo true false kill ls id env mount nc wget nslookup httpd hostname grep stty touch dd tail head ps wc"


def why_not() -> str:
    """Empty: containers can be run by containerd here."""
    (runc, _) = daemon.handlers(daemon.find_programs())
    busybox = shutil.which("busybox")
    return runc.why or ("" if busybox else "busybox (static) is not installed")


needs_containerd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def add_busybox(images: Path, name: str = IMAGE) -> None:
    """An image of Debian's static busybox."""
    root = images.parent / "busybox-root"
    if not root.exists():
        for place in ("bin", "etc", "tmp", "root", "proc", "dev", "sys", "home/app"):
            (root / place).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        shutil.copy(shutil.which("busybox") or "", root / "bin/busybox")
        for program in PROGRAMS.split():
            (root / "bin" / program).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\napp:x:1000:\n")
    ImageStore(images).add_rootfs(name, root, command=["sh"])


class NoNetwork:
    """Pods on the machine's network."""

    network_directory = None

    async def expect_pod(self, sandbox: PodSandbox) -> None:
        return

    async def disconnect_pod(self, pod_uid: str) -> None:
        return

    async def dial_connected(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port)

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        return "127.0.0.1"

    def pod_ip(self, pod_uid: str) -> str:
        return "127.0.0.1"


@contextlib.contextmanager
def containerd(root: Path) -> Iterator[CriSettings]:
    """Settings for a containerd that is started by the first who needs it, and ended with all it has."""
    add_busybox(root / "images")
    settings = CriSettings(
        root / "cri",
        root / "containerd",
        root / "images",
        "test",
        f"coterie/cri-{os.getpid()}",
        root / "log",
        idle_seconds=0,
    )
    try:
        yield settings
    finally:
        sweep(settings)


def sweep(settings: CriSettings) -> None:
    pid = daemon.ContainerdDaemon(settings, daemon.find_programs(), None).pid
    if pid:
        os.kill(pid, signal.SIGKILL)
    kill_all_below(settings)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith((str(settings.state), str(settings.root))):
            subprocess.run(["umount", "-l", place], check=False)
    for _ in range(100):
        if cgroups.remove_node(settings.group):
            break
        time.sleep(0.02)
    for path in (settings.directory, settings.root):
        if path.exists():
            remove_tree(path)


def kill_all_below(settings: CriSettings) -> None:
    """Shims of this containerd, known by its address, and what is in its control groups."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if os.fsencode(settings.socket) in words and b"-address" in words:
                    os.kill(int(name), signal.SIGKILL)
    for tree in Path("/sys/fs/cgroup").glob(f"*/{settings.group}"):
        for path in tree.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in path.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)


class CriHarness:
    image = IMAGE
    handler = "runc"

    def __init__(self, root: Path, settings: CriSettings, network: Any = None, **changes: Any) -> None:
        self.root = root
        self.settings = replace(settings, **changes)
        self.network = network or NoNetwork()
        self.runtime = CriRuntime(self.settings, self.network)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, root: Path, settings: CriSettings, network: Any = None, **changes: Any) -> Any:
        harness = cls(root, settings, network, **changes)
        await harness.runtime.open()
        try:
            yield harness
        finally:
            await asyncio.gather(*(harness.runtime.remove_pod(pod.uid) for pod in harness.runtime.pods()))
            await harness.runtime.close()

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = CriRuntime(self.settings, self.network)
        await self.runtime.open()

    async def until(self, check: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, "it never came to this"
            await asyncio.sleep(0.01)

    async def finish(self, work: Awaitable[object], seconds: float = 10.0) -> object:
        return await asyncio.wait_for(work, seconds)

    # ----- short words for tests

    async def prepare(self, uid: str = "uid-1", **changes: Any) -> PodSandbox:
        pod = PodSandbox(
            uid, "alice", f"pod-{uid}", f"pod-{uid}", self.root / "pods" / uid, "10.9.8.7 friend\n", "nameserver 10.9.8.7\n",
            handler="runc",
        )  # fmt: skip
        pod = replace(pod, **changes)
        await self.runtime.prepare_pod(pod)
        return pod

    async def start(self, script: str, name: str = "main", uid: str = "uid-1", **changes: Any) -> ContainerSpec:
        if self.runtime.pod(uid) is None:
            await self.prepare(uid)
        log = self.root / "logs" / uid / f"{name}.log"
        spec = ContainerSpec(name, 0, self.image, ("sh", "-c", script), (), (), "", (), log)
        spec = replace(spec, **changes)
        await self.runtime.start_container(uid, spec)
        return spec

    def state(self, name: str = "main", uid: str = "uid-1") -> ContainerState:
        pod = self.runtime.pod(uid)
        assert pod is not None
        return [state for state in pod.containers if state.name == name][-1]

    async def ended(self, name: str = "main", uid: str = "uid-1") -> ContainerState:
        await self.until(lambda: not self.state(name, uid).running)
        return self.state(name, uid)

    async def output(self, script: str, *, code: int = 0, uid: str = "uid-1", **changes: Any) -> str:
        """What a script prints, run to its end in a container of its own."""
        pod = self.runtime.pod(uid)
        name = f"c{len(pod.containers) if pod is not None else 0}"
        return await self.output_of(name, script, code=code, uid=uid, **changes)

    async def output_of(self, name: str, script: str, *, code: int = 0, uid: str = "uid-1", **changes: Any) -> str:
        spec = await self.start(script, name, uid, **changes)
        state = await self.ended(name, uid)
        text = log_text(spec.log_path)
        assert state.exit_code == code, f"exit {state.exit_code}: {state.message} {text}"
        return text


def log_text(path: Path) -> str:
    if not path.exists():
        return ""
    return "".join(line.split(" ", 3)[3] + "\n" for line in path.read_text().splitlines())
