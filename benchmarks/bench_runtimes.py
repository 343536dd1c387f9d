"""Each runtime handler against the bare program that it uses: a pod of `true` from its start to its end, and its memory.

    a pod            prepare, start, end as the runtime tells it: network of the machine, users, control groups, logs, records
    the bare program `PROGRAM run` on the same files, from fork to exit: nothing of a pod but the container

The kinds take turns, so whatever else the machine does meets them all alike. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodSandbox
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.halt import halt
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

_NODE = "bench-runtimes"
_IMAGE = "bench:1"
_PER_KIND = 4
"""One start of each kind for so many that the plan says."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LINUX = {"namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "network")]}
BARE: dict[str, Callable[[Path], list[str]]] = {
    "plain fork": lambda place: [str(place / "rootfs/bin/true")],
    "bwrap": lambda place: [
        "bwrap", "--unshare-all", "--bind", str(place / "rootfs"), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"
    ],
    "runc": lambda place: ["runc", "--root", str(place / "state"), "run", "--bundle", str(place), _id()],
    "crun": lambda place: [*_without_hybrid(), "crun", "--root", str(place / "state"), "--cgroup-manager=disabled", "run",
                           "--bundle", str(place), _id()],
    "runsc": lambda place: [
        "runsc", "--root", str(place / "state"), "--platform=ptrace", "--network=none", "--ignore-cgroups", "run",
        "--bundle", str(place), _id(),
    ],
}  # fmt: skip
HANDLERS = {"runp": "plain fork", "bubblewrap": "bwrap", "crun": "crun", "runc": "runc", "gvisor": "runsc"}
"""With the bare program that each is compared with."""


def _without_hybrid() -> list[str]:
    """crun refuses machines with both versions of control groups; two milliseconds of its time are this."""
    if not Path("/sys/fs/cgroup/unified").is_dir():
        return []
    hide = 'umount /sys/fs/cgroup/unified; exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]


def _id() -> str:
    return f"bench-{time.monotonic_ns()}"


def runtimes(bench: Bench) -> list[Row]:
    if os.getuid() != 0 or shutil.which("busybox") is None:
        return [Row("runtimes: not measured", 0, "", note="needs root and busybox")]
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(_measured(bench, Path(place)))


async def _measured(bench: Bench, place: Path) -> list[Row]:
    _make_bundle(place / "bare")
    count = max(2, bench.plan.pod_starts // _PER_KIND)
    found = {name for name in BARE if name == "plain fork" or shutil.which(name, path=_PATH)}
    bare: dict[str, list[float]] = {name: [] for name in BARE if name in found}
    pods: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    async with _runtime(place) as runtime:
        handlers = [each.name for each in runtime.handlers() if each.available and each.name in HANDLERS]
        for number in range(count):
            for name, times in bare.items():
                times.append(_bare_run(BARE[name](place / "bare")))
            for handler in handlers:
                pods.setdefault(handler, []).append(await _pod_run(runtime, place, handler, number))
        for handler in handlers:
            memory[handler] = await _memory(runtime, place, handler)
    rows = []
    for handler, times in pods.items():
        yardstick = bare.get(HANDLERS[handler])
        note = f"p99 {_percentile(times, 99):.1f} ms, least {min(times):.1f}; {memory[handler]:.1f} MiB a sleeping pod (PSS)"
        if yardstick:
            note += f"; bare {HANDLERS[handler]} {statistics.median(yardstick):.1f} ms, least {min(yardstick):.1f}"
        rows.append(Row(f"pod of `true` by {handler}, start to end, p50", statistics.median(times), "ms", note=note))
    return rows


def _percentile(times: list[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def _make_bundle(place: Path) -> None:
    root = place / "rootfs"
    for name in ("bin", "proc", "dev", "etc", "tmp", "sys"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin/busybox")
    for name in ("sh", "sleep", "true"):
        (root / "bin" / name).symlink_to("busybox")
    process: dict[str, Any] = {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/"}
    proc = {"type": "proc", "destination": "/proc", "source": "proc"}
    config = {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}, "mounts": [proc], "linux": _LINUX}
    (place / "config.json").write_text(json.dumps(config))


def _bare_run(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, check=True, env={"PATH": _PATH}, stdin=subprocess.DEVNULL, capture_output=True)
    return (time.perf_counter() - began) * 1000


@contextlib.asynccontextmanager
async def _runtime(root: Path) -> AsyncIterator[RunpRuntime]:
    settings = RunpSettings(directory=root / "runp", images=root / "images", node=_NODE, hidden=(root / "runp",))
    runtime = RunpRuntime(settings)
    await runtime.open()
    try:
        runtime.store.add_rootfs(_IMAGE, root / "bare/rootfs", command=("/bin/true",))
        yield runtime
    finally:
        await runtime.close()
        await halt(settings.directory, _NODE, 0.0, forget=True)


async def _begin(runtime: RunpRuntime, root: Path, handler: str, uid: str, *command: str) -> None:
    sandbox = PodSandbox(uid, "bench", uid, "bench", root / "pods" / uid, "127.0.0.1 localhost\n", handler=handler)
    await runtime.prepare_pod(sandbox)
    spec = ContainerSpec("main", 0, _IMAGE, command, (), (), "", (), root / "logs" / f"{uid}.log")
    await runtime.start_container(uid, spec)


async def _pod_run(runtime: RunpRuntime, root: Path, handler: str, number: int) -> float:
    uid = f"{handler}-{number}"
    events = runtime.events()
    began = time.perf_counter()
    await _begin(runtime, root, handler, uid, "/bin/true")
    while _runs(runtime, uid):
        await anext(events)
    taken = (time.perf_counter() - began) * 1000
    await runtime.remove_pod(uid)
    return taken


def _runs(runtime: RunpRuntime, uid: str) -> bool:
    pod = runtime.pod(uid)
    return pod is not None and any(container.running for container in pod.containers)


async def _memory(runtime: RunpRuntime, root: Path, handler: str) -> float:
    """MiB of all processes of a pod that sleeps, pages that they share with others in parts."""
    uid = f"{handler}-sleeps"
    await _begin(runtime, root, handler, uid, "/bin/sleep", "600")
    await asyncio.sleep(1.0)
    pod = runtime.pod(uid)
    assert pod is not None
    group = group_of(_NODE, root / "runp")
    pids = {pod.containers[0].pid, _parent(pod.containers[0].pid)}
    pids |= _in_group(f"{group}/{uid}/main.0")
    total = sum(_proportional(pid) for pid in pids)
    await runtime.stop_pod(uid, 0)
    await runtime.remove_pod(uid)
    return total / 1024


def _in_group(group: str) -> set[int]:
    top = Path("/sys/fs/cgroup")
    files = [*top.glob(f"{group}/cgroup.procs"), *top.glob(f"*/{group}/cgroup.procs")]
    return {int(number) for path in files for number in path.read_text().split()}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _proportional(pid: int) -> int:
    """KiB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
