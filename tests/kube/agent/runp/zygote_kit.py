"""A RunP runtime whose containers are forked from an interpreter with preloaded modules."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from runp_kit import RunpHarness, log_text

from coterie.kube.agent.images.store import HOST_IMAGE
from coterie.kube.agent.runtimes.protocol import ContainerSpec, ContainerState, PodSandbox
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

IMAGE = "forked:1"
_MODULES = {
    "heavy.py": "VALUE = 1\n",
    # What the tests of other containers say in the language of a shell.
    "run_shell.py": "import os, sys, heavy\nos.execvp('sh', ['sh', '-c', sys.argv[1]])\n",
    "run_code.py": "import sys, heavy\nexec(sys.argv[1], {'__name__': 'code', 'heavy': heavy})\n",
}


class ForkedRuntime(RunpRuntime):
    """Runs shell scripts in forked containers."""

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        if spec.image in (HOST_IMAGE, IMAGE) and spec.command[:2] == ("sh", "-c") and not spec.security.privileged:
            spec = replace(spec, image=IMAGE, command=(), args=("-B", "-m", "run_shell", spec.command[2]))
        return await super().start_container(pod_uid, spec)

    def forked(self, uid: str = "uid-1", name: str = "main", attempt: int = 0) -> bool:
        return bool(self._runs[uid][(name, attempt)].get("forked"))


class ForkedHarness(RunpHarness):
    image = IMAGE
    runtime: ForkedRuntime

    def __init__(self, root: Path, settings: RunpSettings, handler: str = "runp") -> None:
        super().__init__(root, settings, handler)
        self.runtime = ForkedRuntime(settings)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, root: Path, handler: str = "runp", **changes: Any) -> AsyncIterator[ForkedHarness]:
        async with super().opened(root, handler, **changes) as harness:
            assert isinstance(harness, ForkedHarness)
            harness.write_modules(_MODULES)
            harness.add_image()
            yield harness

    @property
    def library(self) -> Path:
        return self.root / "lib"

    def write_modules(self, modules: dict[str, str]) -> None:
        for name, text in modules.items():
            path = self.library / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def add_image(self, *modules: str, module: str = "run_shell", name: str = IMAGE) -> None:
        self.runtime.store.add_host(
            name,
            (sys.executable,),
            args=("-B", "-m", module),
            env=(("PYTHONPATH", str(self.library)),),
            preload=modules or ("heavy",),
        )

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = ForkedRuntime(self.settings)
        await self.runtime.open()

    async def code(
        self, text: str, name: str = "main", uid: str = "uid-1", namespace: str = "alice", **changes: Any
    ) -> str:
        """What Python code prints in a container that is not an exec away from its zygote."""
        if self.runtime.pod(uid) is None:
            directory = self.root / "pods" / uid
            await self.runtime.prepare_pod(
                PodSandbox(uid, namespace, uid, uid, directory, "10.9.8.7 friend\n", "nameserver 10.9.8.7\n")
            )
        args = changes.pop("args", ("-B", "-m", "run_code", text))
        changes = {"image": "code:1", "command": (), "args": args, **changes}
        spec = await self.start("", name, uid=uid, **changes)
        state = await self.ended(name, uid)
        said = log_text(spec.log_path)
        assert state.exit_code == 0, f"exit {state.exit_code}: {state.message} {said}"
        return said

    async def warm(self, image: str = IMAGE, module: str = "run_shell", namespace: str = "alice") -> None:
        """Until containers of the image are forked."""
        for i in range(200):
            uid = f"warm-{namespace}-{image.partition(':')[0]}-{i}"
            await self.runtime.prepare_pod(PodSandbox(uid, namespace, uid, uid, self.root / "pods" / uid))
            argument = "true" if module == "run_shell" else "pass"
            await self.start("", uid=uid, image=image, command=(), args=("-B", "-m", module, argument))
            await self.ended(uid=uid)
            forked = self.runtime.forked(uid)
            await self.runtime.remove_pod(uid)
            if forked:
                return
            await asyncio.sleep(0.15)
        raise AssertionError("containers are never forked")

    def memory_holds(self, pid: int, text: str) -> bool:
        """Whether the writable memory of a process has a text in it. For root."""
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split()
            if words[1].startswith("rw"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                    memory.seek(start)
                    if text.encode() in memory.read(end - start):
                        return True
        return False

    @property
    def zygotes(self) -> list[int]:
        """Pids of the zygotes of the supervisor."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                if parent == self.shepherd and b"zygote_process" in (path.parent / "cmdline").read_bytes():
                    found.append(int(path.parent.name))
        return found
