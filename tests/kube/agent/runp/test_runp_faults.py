"""Agents and supervisors killed without warning, disks that are full, supervisors of other versions."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runp_kit import RunpHarness, find_shepherd, log_text

from coterie.kube.agent.runtimes.protocol import Mount
from coterie.kube.agent.runtimes.runp import supervisor as shepherd_module
from coterie.kube.agent.runtimes.runp import wire
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime

AGENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from runp_kit import RunpHarness
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

async def main():
    root = Path(sys.argv[1])
    harness = RunpHarness(root, RunpSettings(root / "runp", root / "images", "test", hidden=(root / "runp",)))
    await harness.runtime.open()
    print("ready", flush=True)
    while True:
        # Something is always under way when the end comes.
        session = await harness.runtime.exec("uid-1", "long0", ["true"], stdin=False, tty=False)
        await session.wait()
        await session.close()
        await harness.start("sleep 0.01", f"extra{sys.argv[2]}", attempt=0)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_agents_killed_twenty_times_under_thirty_containers(runp, tmp_path):
    longs = [f"long{i}" for i in range(18)]
    ends = {f"short{i}": (i, 2 + 0.5 * i) for i in range(12)}
    for name in longs:
        await runp.start("echo begin; sleep 600", name)
    for name, (code, seconds) in ends.items():
        await runp.start(f"echo begin; sleep {seconds}; echo end; exit {code}", name)
    before = {name: runp.state(name) for name in longs}
    shepherd = runp.shepherd
    await runp.runtime.close()
    chance = random.Random(7)
    began = time.monotonic()
    for number in range(20):
        agent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            AGENT,
            str(tmp_path),
            str(number),
            str(Path(__file__).parent),
            stdout=asyncio.subprocess.PIPE,
        )
        assert agent.stdout is not None
        assert await asyncio.wait_for(agent.stdout.readline(), 20) == b"ready\n"
        await asyncio.sleep(chance.random() * 0.2)
        agent.kill()
        await agent.wait()
    runp.runtime = RunpRuntime(runp.settings)
    await runp.runtime.open()
    assert runp.shepherd == shepherd
    for name in longs:
        assert runp.state(name) == before[name]
    for name, (code, _) in ends.items():
        state = await runp.ended(name)
        assert (state.exit_code, state.attempt) == (code, 0)
        assert log_text(state.log_path) == "begin\nend\n"
    assert time.monotonic() - began < 55


async def test_a_killed_shepherd_costs_neither_containers_nor_logs_nor_codes(runp):
    if not runp.powers["namespaces"]:
        pytest.skip("exit codes survive the shepherd only with a pid namespace, or on Linux 6.15")
    talks = await runp.start("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 6", "talks")
    await runp.start("sleep 0.25; exit 5", "short")
    await runp.start("sleep 600", "long")
    before = runp.state("long")
    await runp.until(lambda: "line 3" in log_text(talks.log_path))
    os.kill(runp.shepherd, signal.SIGKILL)
    for name, code in (("short", 5), ("talks", 6)):
        state = await runp.ended(name)
        assert (state.exit_code, state.reason) == (code, "Error")
    assert log_text(talks.log_path).splitlines() == [f"line {i}" for i in range(40)]
    assert runp.state("long") == before
    session = await runp.runtime.exec("uid-1", "long", ["sh", "-c", "exit 3"], stdin=False, tty=False)
    assert await session.wait() == 3
    await session.close()
    await runp.runtime.stop_container("uid-1", "long", 5)
    assert runp.state("long").exit_code == 143


async def test_what_ended_without_a_shepherd_is_known(runp):
    if not runp.powers["namespaces"]:
        pytest.skip("no pid namespace, so no init that takes notes")
    await runp.start("sleep 0.3; exit 8", "noted")
    await runp.start("sleep 600", "vanished")
    vanished = next(run for run in runp.runtime._runs["uid-1"].values() if run["name"] == "vanished")
    await runp.runtime.close()
    os.kill(runp.shepherd, signal.SIGKILL)
    os.kill(vanished["init"], signal.SIGKILL)
    await asyncio.sleep(0.6)
    runp.runtime = RunpRuntime(runp.settings)
    await runp.runtime.open()
    assert (runp.state("noted").exit_code, runp.state("noted").reason) == (8, "Error")
    state = runp.state("vanished")
    assert (state.exit_code, state.reason) == (137, "ContainerStatusUnknown")


async def test_an_exec_ends_when_its_agent_dies(runp):
    await runp.start("sleep 600")
    await runp.runtime.exec("uid-1", "main", ["sleep", "603"], stdin=False, tty=False)
    await runp.restart()
    session = await runp.runtime.exec(
        "uid-1",
        "main",
        ["sh", "-c", "sleep 0.2; grep -c 'sleep[^.]603' /proc/[0-9]*/cmdline | grep -c ':[1-9]'"],
        stdin=False,
        tty=False,
    )
    if runp.powers["namespaces"]:
        assert (await session.read_stdout()).strip() == b"0"
    await session.close()


@contextlib.contextmanager
def tiny_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own; skips where we may not mount one."""
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() != 0 or libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip("needs root: mounts a file system")
    try:
        yield path
    finally:
        libc.umount2(os.fsencode(path), 2)


async def test_a_full_disk_neither_stops_nor_kills(tmp_path):
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        async with RunpHarness.opened(tmp_path, directory=disk / "runp") as runp:
            share = tmp_path / "share"
            share.mkdir()
            script = (
                "seq 1 200000; touch {0}/flooded; while [ ! -e {0}/go ]; do sleep 0.02; done; echo after; exit 3"
            ).format("/share")
            spec = await runp.start(script, log_path=disk / "log", mounts=(Mount(share, "/share"),))
            await runp.start(
                "while [ ! -e /share/flooded ]; do sleep 0.02; done; exit 4", "short", mounts=(Mount(share, "/share"),)
            )
            await runp.until((share / "flooded").exists, 20)
            # A run that ends now cannot be written down, yet it is told.
            with contextlib.suppress(OSError):
                (disk / "filler").write_bytes(b"x" * (4 << 20))
            assert (await runp.ended("short")).exit_code == 4
            # In this order: with room before, the count of lost lines may be written down and cut off here.
            os.truncate(disk / "log", 1000)
            (disk / "filler").unlink()
            (share / "go").touch()
            assert (await runp.ended()).exit_code == 3
            text = spec.log_path.read_text()
            assert "[coterie]" in text and "lines were lost here" in text and "stdout F after" in text
            await asyncio.sleep(1.2)
            os.kill(runp.shepherd, signal.SIGKILL)
            await runp.until(lambda: find_shepherd(runp.settings.directory) != 0 and runp.runtime._client.connected, 10)
            assert (await runp.ended("short")).exit_code == 4


async def test_an_older_shepherd_is_kept_while_it_has_containers(runp, monkeypatch):
    await runp.start("sleep 600")
    old = runp.shepherd
    monkeypatch.setattr("coterie.__version__", "99.0")
    await runp.restart()
    assert runp.shepherd == old and runp.state().running
    await runp.runtime.stop_pod("uid-1", 1)
    await runp.restart()
    assert runp.shepherd != old


async def test_the_socket_is_private_and_nonsense_is_survived(runp):
    path = runp.settings.directory / wire.SOCKET_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    for nonsense in (
        b"\xff\xff\xff\xff",
        b"\0\0\0\5hello",
        wire.encode({"id": 1, "op": "dance"}),
        wire.encode({"id": 2, "op": "start"}),
    ):
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(nonsense)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    await runp.start("true")
    assert (await runp.ended()).exit_code == 0


async def test_an_idle_shepherd_goes(tmp_path, monkeypatch):
    async with RunpHarness.opened(tmp_path) as runp:
        await runp.start("exit 2")
        await runp.ended()
        pid = runp.shepherd
        await runp.runtime.close()
        assert shepherd_module.IDLE_SECONDS <= 10
        os.kill(pid, signal.SIGTERM)  # asked to end, with nothing running, it does so at once
        await runp.until(lambda: runp.shepherd == 0, 5)
        await runp.runtime.open()
        assert runp.state().exit_code == 2


async def test_sigterm_does_not_end_a_shepherd_that_has_containers(runp):
    await runp.start("sleep 600")
    os.kill(runp.shepherd, signal.SIGTERM)
    await asyncio.sleep(0.1)
    assert runp.shepherd and runp.state().running


async def test_a_runtime_without_pods_does_without_a_shepherd(tmp_path):
    async with RunpHarness.opened(tmp_path, idle_seconds=0.2) as runp:
        await runp.until(lambda: runp.shepherd == 0 and not runp.runtime._client.connected, 5)
        await runp.start("sleep 60")
        assert runp.shepherd and runp.state().running
        await asyncio.sleep(0.5)
        assert runp.shepherd and runp.state().running, "it stays while there is a pod"
        await runp.runtime.stop_container("uid-1", "main", 0.0)
        await runp.runtime.remove_pod("uid-1")
        await runp.until(lambda: runp.shepherd == 0, 5)
