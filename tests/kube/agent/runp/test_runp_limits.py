"""Limits hold, and are reported as what they are; nothing of a container is left behind."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.runtimes.protocol import ContainerLimits
from coterie.kube.agent.runtimes.runp import processes

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


def python(code: str) -> dict[str, object]:
    return {"image": PYTHON_IMAGE, "command": (), "args": ("-c", code)}


async def test_a_memory_hog_is_killed_and_told(grouped):
    await grouped.start("", limits=ContainerLimits(memory_bytes=64 << 20), **python(HOG))
    state = await grouped.ended(seconds=30)
    assert (state.exit_code, state.signal, state.reason) == (137, 9, "OOMKilled")


async def test_a_child_out_of_memory_is_told_too(grouped):
    import_free = f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {HOG!r}]).returncode and 3)"
    await grouped.start("", limits=ContainerLimits(memory_bytes=64 << 20), **python(import_free))
    state = await grouped.ended(seconds=30)
    assert state.reason == "OOMKilled" and state.exit_code in (3, 137)


async def test_killed_is_not_out_of_memory(grouped):
    await grouped.start("kill -9 $$", limits=ContainerLimits(memory_bytes=64 << 20))
    assert (await grouped.ended()).reason == "Error"


async def test_cpu_is_limited(grouped):
    spec = await grouped.start("", limits=ContainerLimits(cpu_milli=200, cpu_shares_milli=100), **python(SPIN))
    await grouped.ended(seconds=20)
    assert float(log_text(spec.log_path)) < 0.45


async def test_a_fork_bomb_is_contained(grouped):
    bomb = "import os, time\nwhile True:\n  try:\n    os.fork()\n  except OSError:\n    time.sleep(0.05)\n"
    await grouped.start("", limits=ContainerLimits(pids=20, cpu_milli=500), **python(bomb))
    await asyncio.sleep(0.5)
    usage = await grouped.runtime.usage("uid-1")
    assert 1 <= usage["main"].pids <= 20
    began = time.monotonic()
    await grouped.runtime.stop_container("uid-1", "main", 0)
    assert time.monotonic() - began < 5 and grouped.state().exit_code == 137


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
