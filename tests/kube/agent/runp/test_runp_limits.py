"""Limits hold, and are reported as what they are; nothing of a container is left behind."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.pods.disk_usage import Pace
from coterie.kube.agent.pods.storage_monitor import measure_pod
from coterie.kube.agent.runtimes.protocol import ContainerLimits, ContainerWarning, RuntimeFailure
from coterie.kube.agent.runtimes.runp import cgroups, processes

HOG = "import time\nd = []\nwhile True:\n  d.append(bytearray(4 << 20)); time.sleep(0.002)\n"
SPIN = "import time\nend = time.time() + 1.0\nwhile time.time() < end: pass\nprint(time.process_time())\n"
DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "  os.setsid()\n"
    "  if os.fork() == 0:\n"
    "    os.close(1); os.close(2)\n"
    "    time.sleep(600)\n"
    "  os._exit(0)\n"
    "os.wait(); print('daemon is there', flush=True)\n"
)


@pytest.fixture
def grouped(runp: RunpHarness) -> RunpHarness:
    if not runp.powers["cgroup"]:
        pytest.skip("control groups cannot be made on this machine")
    return runp


def pids_tree() -> Path:
    v1, v2 = cgroups.mounts(Path("/proc/self/mounts").read_text())
    return Path(v1.get("pids") or v2)


def python(code: str) -> dict[str, object]:
    return {"image": PYTHON_IMAGE, "command": (), "args": ("-c", code)}


async def test_a_memory_hog_is_killed_and_told(grouped):
    await grouped.start("", limits=ContainerLimits(memory_bytes=64 << 20), **python(HOG))
    state = await grouped.ended(seconds=30)
    assert (state.exit_code, state.signal, state.reason) == (137, 9, "OOMKilled")
    assert state.message == "Container main exceeded its memory limit of 64Mi"


async def test_containers_share_the_memory_of_their_pod(grouped):
    pod = ContainerLimits(memory_bytes=96 << 20)
    half = "d = bytearray(60 << 20)\nprint('there', flush=True)\nimport time; time.sleep(600)"
    spec = await grouped.start("", "first", pod_limits=pod, **python(half))
    await grouped.until(lambda: "there" in log_text(spec.log_path))
    await grouped.start("", "second", **python(HOG))
    await grouped.until(lambda: not (grouped.state("first").running and grouped.state("second").running), 30)
    ended = next(state for state in map(grouped.state, ("first", "second")) if not state.running)
    assert (ended.reason, ended.message) == ("OOMKilled", "The pod exceeded its memory limit of 96Mi")


async def test_files_in_memory_are_memory(grouped):
    fill = "f = open('/dev/shm/x', 'wb')\nfor i in range(100): f.write(bytes(4 << 20))"
    await grouped.start("", pod_limits=ContainerLimits(memory_bytes=64 << 20), **python(fill))
    assert (await grouped.ended(seconds=30)).reason == "OOMKilled"


async def test_a_child_out_of_memory_is_told_too(grouped):
    import_free = f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {HOG!r}]).returncode and 3)"
    await grouped.start("", limits=ContainerLimits(memory_bytes=64 << 20), **python(import_free))
    state = await grouped.ended(seconds=30)
    assert state.reason == "OOMKilled" and state.exit_code in (3, 137)


GROW = """
import os, time
d = [bytearray(40 << 20)]
print('first', flush=True)
while not os.path.exists('/tmp/go'):
    time.sleep(0.02)
d.append(bytearray(60 << 20))
print('second', flush=True)
while True:
    d.append(bytearray(4 << 20))
    time.sleep(0.01)
"""


async def test_limits_change_while_a_container_runs(grouped):
    """Up: what would have been killed goes on. Down below what is used: refused. The message names the limit of now."""
    small, large = ContainerLimits(500, 64 << 20, 0, 500), ContainerLimits(1000, 160 << 20, 0, 1000)
    spec = await grouped.start("", limits=small, pod_limits=small, **python(GROW))
    await grouped.until(lambda: "first" in log_text(spec.log_path))
    runtime, tiny = grouped.runtime, ContainerLimits(1000, 16 << 20, 0, 1000)
    with pytest.raises(RuntimeFailure, match=r"Container main uses .* of memory, more than the new limit of 16Mi"):
        await runtime.resize_pod("uid-1", large, {"main": tiny}, final=True)
    await runtime.resize_pod("uid-1", large, {"main": large}, final=True)
    session = await runtime.exec("uid-1", "main", ["/bin/sh", "-c", "touch /tmp/go"], stdin=False, tty=False)
    assert await session.wait() == 0
    await grouped.until(lambda: "second" in log_text(spec.log_path), 30)
    state = await grouped.ended(seconds=30)
    assert state.reason == "OOMKilled" and state.message.endswith("exceeded its memory limit of 160Mi")


async def test_killed_is_not_out_of_memory(grouped):
    await grouped.start("kill -9 $$", limits=ContainerLimits(memory_bytes=64 << 20))
    assert (await grouped.ended()).reason == "Error"


async def test_who_is_stopped_did_not_run_out_of_memory(grouped):
    """Though one of its processes did, earlier."""
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print(subprocess.run([sys.executable, '-c', {HOG!r}]).returncode, flush=True)\n"
        "time.sleep(600)\n"
    )
    spec = await grouped.start("", limits=ContainerLimits(memory_bytes=64 << 20), **python(code))
    if grouped.powers["cgroup"] == 2:
        pytest.skip("all processes of a container end together with version 2")
    await grouped.until(lambda: "-9" in log_text(spec.log_path), 30)
    await grouped.runtime.stop_container("uid-1", "main", 0.1)
    state = grouped.state()
    assert (state.exit_code, state.signal, state.reason) == (137, 9, "Error")


async def test_cpu_is_limited(grouped):
    spec = await grouped.start("", limits=ContainerLimits(cpu_milli=200, cpu_shares_milli=100), **python(SPIN))
    await grouped.ended(seconds=20)
    assert float(log_text(spec.log_path)) < 0.45


BOMB = "import os, time\nwhile True:\n  try:\n    os.fork()\n  except OSError:\n    time.sleep(0.05)\n"


async def test_a_fork_bomb_is_contained(grouped):
    await grouped.start("", limits=ContainerLimits(pids=20, cpu_milli=500), **python(BOMB))
    await grouped.until(lambda: bool(grouped.state().warnings))
    assert grouped.state().warnings == (
        ContainerWarning("PidsLimitReached", "Container main reached its limit of 20 processes"),
    )
    usage = await grouped.runtime.usage("uid-1")
    assert 1 <= usage["main"].pids <= 20
    await grouped.restart()
    assert grouped.state().warnings, "a new agent knows it too"
    await asyncio.wait_for(grouped.runtime.stop_container("uid-1", "main", 0), 5)
    assert grouped.state().exit_code == 137


async def test_containers_share_the_processes_of_their_pod(grouped):
    limits = ContainerLimits(pids=30)
    await grouped.start("", "bomb", pod_limits=limits, limits=limits, **python(BOMB))
    await grouped.until(lambda: bool(grouped.state("bomb").warnings))
    await grouped.start("", "other", uid="uid-2", **python("import os; os.fork()"))
    assert (await grouped.ended("other", "uid-2")).exit_code == 0
    group = f"{grouped.group}/uid-1"
    tree = pids_tree()
    assert int((tree / group / "pids.current").read_text()) <= 30
    await asyncio.wait_for(grouped.runtime.remove_pod("uid-1"), 5)
    await grouped.until(lambda: not (tree / group).exists(), 3)


async def test_a_failure_after_a_refused_fork_says_so(grouped):
    code = (
        "import os, time\ntry:\n  while os.fork(): pass\n  time.sleep(5)\nexcept OSError: time.sleep(0.2); os._exit(3)"
    )
    await grouped.start("", limits=ContainerLimits(pids=10), **python(code))
    state = await grouped.ended()
    assert (state.exit_code, state.message) == (3, "Container main reached its limit of 10 processes")


async def test_files_are_limited(runp):
    limits = ContainerLimits(open_files=100, file_bytes=1 << 20)
    code = (
        "import os, resource\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_CORE))\n"
        "try:\n  open('file', 'wb', 0).write(b'x' * (2 << 20)); open('file', 'ab', 0).write(b'x')\n"
        "except OSError as problem: print(problem.strerror, os.path.getsize('file'))\n"
    )
    spec = await runp.start("", limits=limits, **python(code))
    assert (await runp.ended()).exit_code == 0
    assert log_text(spec.log_path) == f"100 (0, 0)\nFile too large {1 << 20}\n"


async def test_deleted_files_are_found(runp):
    code = (
        "import os, time\nf = open('file', 'wb', 0); f.write(b'x' * (3 << 20)); os.unlink('file')\n"
        "m = os.memfd_create('m'); os.write(m, b'x' * (5 << 20))\nprint('there', flush=True); time.sleep(600)"
    )
    spec = await runp.start("", **python(code))
    await runp.until(lambda: "there" in log_text(spec.log_path))
    (work,) = runp.runtime.writable_directories("uid-1")["main"]
    assert (work / "work").is_dir()
    assert 3 << 20 <= runp.runtime.deleted_files("uid-1") < 4 << 20


async def test_what_a_container_writes_is_counted(runp):
    fill = "head -c 1048576 /dev/zero > file; head -c 1048576 /dev/zero > $TMPDIR/file; echo there; sleep 600"
    if runp.powers["namespaces"]:
        fill = fill.replace("$TMPDIR", "/tmp")
    spec = await runp.start(fill)
    await runp.until(lambda: "there" in log_text(spec.log_path))
    found, _ = measure_pod(
        runp.root / "pods/uid-1",
        runp.root / "no-logs",
        runp.runtime.writable_directories("uid-1"),
        [],
        lambda: runp.runtime.deleted_files("uid-1"),
        Pace(),
    )
    assert 2 << 20 <= found.containers["main"].bytes < 3 << 20 and not found.other.bytes


async def test_processes_are_limited_without_control_groups(tmp_path):
    async with RunpHarness.opened(tmp_path, without=("groups",)) as harness:
        if not harness.powers["namespaces"] or "0 0 4294967295" in " ".join(
            (await harness.output("cat /proc/self/uid_map")).split()
        ):
            pytest.skip("containers have no user namespace of their own here")
        bomb = "import os, time\ntry:\n  while os.fork(): pass\n  time.sleep(2)\nexcept OSError: os._exit(3)"
        await harness.start("", limits=ContainerLimits(pids=20), **python(bomb))
        assert (await harness.ended()).exit_code == 3


async def test_a_pod_without_requests_has_the_least_share(grouped):
    await grouped.start("sleep 60", pod_limits=ContainerLimits(pids=100))
    v1, v2 = await asyncio.to_thread(lambda: cgroups.mounts(Path("/proc/self/mounts").read_text()))
    file, least, more = ("cpu.shares", "2", "4096") if "cpu" in v1 else ("cpu.weight", "1", "157")
    tree = Path(v1.get("cpu") or v2) / grouped.group
    if not (tree / "uid-1" / file).exists():
        pytest.skip("no control group controller for CPU")
    assert (tree / "uid-1" / file).read_text().strip() == least
    assert (tree / "shepherd" / file).read_text().strip() == more


async def test_a_flood_of_output_keeps_nobody_waiting(runp):
    flood = "import os\nd = b'y\\n' * 32768\nwhile True: os.write(1, d)"
    specs = [await runp.start("", f"flood{i}", uid="uid-2", **python(flood)) for i in range(4)]
    await runp.until(lambda: all(spec.log_path.with_name(spec.log_path.name + ".1").exists() for spec in specs), 30)
    for _ in range(3):
        await asyncio.wait_for(runp.output("echo quick"), 5)
    await asyncio.wait_for(runp.runtime.stop_pod("uid-2", 0), 10)
    kept = [path.stat().st_size for path in specs[0].log_path.parent.iterdir() if path.name.startswith("flood0.")]
    assert len(kept) <= runp.settings.log_files and sum(kept) <= runp.settings.log_files * (
        runp.settings.log_bytes + (2 << 20)
    )


async def test_groups_are_removed(grouped):
    await grouped.start("sleep 60")
    group = next(iter(grouped.runtime._runs["uid-1"].values()))["group"]
    assert grouped.runtime._groups.processes(group)
    await grouped.runtime.stop_pod("uid-1", 1)
    await grouped.runtime.remove_pod("uid-1")
    await grouped.until(lambda: grouped.runtime._groups.usage(group) is None, 3)


@pytest.mark.parametrize("ending", ["exit", "stop"])
async def test_a_daemon_ends_with_its_container(runp, ending):
    code = DAEMON + ("" if ending == "exit" else "time.sleep(600)\n")
    spec = await runp.start("", **python(code))
    await runp.until(lambda: "daemon is there" in log_text(spec.log_path))
    if ending == "stop":
        await runp.runtime.stop_container("uid-1", "main", 5)
    await runp.ended()
    assert processes.marked("uid-1/main.0") == []


async def test_who_ignores_sigterm_with_children(runp):
    spec = await runp.start(
        "trap '' TERM; sh -c \"trap '' TERM; sleep 600; sleep 600\" & echo deaf; while true; do sleep 600; done"
    )
    await runp.until(lambda: "deaf" in log_text(spec.log_path))
    began = time.monotonic()
    await runp.runtime.stop_container("uid-1", "main", 0.4)
    assert 0.35 < time.monotonic() - began < 5
    assert (runp.state().exit_code, runp.state().signal) == (137, 9)
    assert processes.marked("uid-1/main.0") == []


async def test_a_shorter_grace_wins(runp):
    spec = await runp.start("trap '' TERM; echo deaf; while true; do sleep 600; done")
    await runp.until(lambda: "deaf" in log_text(spec.log_path))
    patient = asyncio.create_task(runp.runtime.stop_container("uid-1", "main", 60))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(runp.runtime.stop_container("uid-1", "main", 0), 5)
    await asyncio.wait_for(patient, 5)


async def test_orphans_are_buried(runp):
    if not runp.powers["namespaces"]:
        pytest.skip("no pid namespace")
    text = await runp.output(
        "for i in 1 2 3 4 5; do (sh -c 'sleep 0.01 &'); done; sleep 0.3; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    )
    assert text.strip() == "0"


async def test_use_is_measured(runp):
    spec = await runp.start(
        "", **python("d = bytearray(30 << 20)\nprint('big', flush=True)\nimport time\nwhile True: sum(range(10000))")
    )
    await runp.until(lambda: "big" in log_text(spec.log_path))
    before = (await runp.runtime.usage("uid-1"))["main"]
    await asyncio.sleep(0.3)
    after = (await runp.runtime.usage("uid-1"))["main"]
    assert after.memory_bytes > 25 << 20 and after.pids == 1
    assert after.cpu_nanoseconds - before.cpu_nanoseconds > 10_000_000


async def test_a_thousand_handles_are_not_left_open(runp):
    await runp.start("sleep 60", "long")
    count = len(os.listdir(f"/proc/{runp.shepherd}/fd"))
    for i in range(5):
        await runp.start("true", f"short{i}")
        await runp.ended(f"short{i}")
    await runp.until(lambda: len(os.listdir(f"/proc/{runp.shepherd}/fd")) == count, 3)


async def test_shared_memory_is_counted_without_control_groups(tmp_path):
    async with RunpHarness.opened(tmp_path, without=("groups",)) as harness:
        script = (
            "exec python3 -c 'import mmap, time\n"
            "held = []\n"
            "for _ in range(40):\n"
            '  held.append(mmap.mmap(-1, 8 << 20)); held[-1].write(b"x" * (8 << 20))\n'
            "time.sleep(60)'"
        )
        await harness.start(script, limits=ContainerLimits(memory_bytes=96 << 20))
        state = await harness.ended(seconds=30.0)
        assert (state.reason, state.exit_code) == ("OOMKilled", 137)
        assert state.message == "Container main exceeded its memory limit of 96Mi"
