"""Children are restarted, stopped with patience, and never outlive their supervisor."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest

from coterie.base.backoff import Policy
from coterie.base.log_rotation import Rotation
from coterie.base.process import ProcessExit, ProcessSpec, Supervised

QUICK = Policy(first=0.005, factor=1.5, limit=0.02, jitter=0)


def shell(script: str, **more) -> ProcessSpec:
    return replace(ProcessSpec("child", ("/bin/sh", "-c", script), restart=QUICK, stop_grace=5), **more)


async def until(condition, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_child_that_ends_is_started_again(tmp_path):
    log = tmp_path / "child.log"
    exits: list[ProcessExit] = []
    child = Supervised(shell("echo hello; echo err >&2; exit 3", log_file=log), on_exit=exits.append)
    task = asyncio.create_task(child.run())
    await until(lambda: len(exits) >= 3)
    await child.stop()
    await task
    assert {each.code for each in exits[:3]} == {3}
    assert exits[0].describe == "exit code 3"
    assert child.restarts >= 2
    assert log.read_text().startswith("hello\nerr\nhello\nerr\n")
    assert log.stat().st_mode & 0o777 == 0o600


async def test_stop_lets_the_child_finish(tmp_path):
    mark = tmp_path / "mark"
    ready = tmp_path / "ready"
    child = Supervised(shell(f"trap 'echo bye > {mark}; exit 0' TERM; touch {ready}; while :; do sleep 0.01; done"))
    task = asyncio.create_task(child.run())
    await until(ready.exists)
    await child.stop()
    await task
    assert mark.read_text() == "bye\n"
    assert child.pid is None and child.last_exit is not None and child.last_exit.code == 0


async def test_a_deaf_child_is_killed_with_its_group(tmp_path):
    ready = tmp_path / "ready"
    child = Supervised(shell(f"trap '' TERM; sleep 60 & echo $! > {ready}; wait; sleep 60", stop_grace=0.05))
    task = asyncio.create_task(child.run())
    await until(lambda: ready.exists() and ready.read_text().strip())
    grandchild = int(ready.read_text())
    await child.stop()
    await task
    assert child.last_exit is not None and child.last_exit.describe == "SIGKILL"
    await until(lambda: not alive(grandchild))


async def test_cancelling_the_run_ends_the_child():
    pids: list[int] = []
    child = Supervised(shell("exec sleep 60"), on_start=pids.append)
    task = asyncio.create_task(child.run())
    await until(lambda: bool(pids))
    assert child.pid == pids[0] and alive(pids[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pids[0])


async def test_a_missing_program_is_tried_again():
    child = Supervised(ProcessSpec("none", ("/does/not/exist",), restart=QUICK))
    task = asyncio.create_task(child.run())
    await until(lambda: child.restarts >= 2)
    await child.stop()
    await task
    assert child.pid is None


async def test_stop_before_and_during_a_pause_is_quick():
    child = Supervised(shell("exit 1", restart=Policy(first=100, limit=100)))
    await child.stop()  # nothing runs
    task = asyncio.create_task(child.run())
    await until(lambda: child.restarts == 1)
    await asyncio.wait_for(child.stop(), 2)
    await task


async def test_a_signal_reaches_the_child(tmp_path):
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    child = Supervised(shell(f"trap 'touch {mark}' HUP; touch {ready}; while :; do sleep 0.01; done"))
    assert not child.signal(signal.SIGHUP)
    task = asyncio.create_task(child.run())
    await until(ready.exists)
    assert child.signal(signal.SIGHUP)
    await until(mark.exists)
    await child.stop()
    await task


async def test_a_large_log_is_moved_aside(tmp_path):
    log = tmp_path / "child.log"
    log.write_text("x" * 100)
    child = Supervised(shell("exec sleep 60", log_file=log, log_rotation=Rotation(max_bytes=50)))
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid is not None)
    await child.stop()
    await task
    assert (tmp_path / "child.log.1").read_text() == "x" * 100
    assert log.read_text() == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a Linux wish")
async def test_child_dies_with_its_parent(tmp_path):
    mark = tmp_path / "pid"
    program = (
        "import asyncio, os, sys, pathlib\n"
        "from coterie.base.process import ProcessSpec, Supervised\n"
        "def told(pid): pathlib.Path(sys.argv[1]).write_text(str(pid))\n"
        "spec = ProcessSpec('c', ('sleep', '60'), die_with_parent=True)\n"
        "asyncio.run(Supervised(spec, on_start=told).run())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(mark))
    await until(lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await until(lambda: not alive(pid))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces of Linux")
@pytest.mark.parametrize("prefix", [("env", "A=1"), ("unshare", "--user", "--map-root-user")])
async def test_a_child_behind_a_prefix_gets_descriptors_and_dies_with_its_supervisor(tmp_path, prefix):
    if await (await asyncio.create_subprocess_exec(*prefix, "true")).wait() != 0:
        pytest.skip("needs user namespaces")
    mark = tmp_path / "pid"
    program = (
        "import asyncio, os, sys\n"
        "from coterie.base.process import ProcessSpec, Supervised\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "argv = ('/bin/sh', '-c', f'echo $$ >&{file}; exec sleep 60')\n"
        "spec = ProcessSpec('c', argv, die_with_parent=True, pass_fds=(file,), prefix=sys.argv[2:])\n"
        "asyncio.run(Supervised(spec).run())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(mark), *prefix)
    await until(lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await until(lambda: not alive(pid))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a Linux wish")
async def test_a_helper_follows_who_started_it(tmp_path):
    mark = tmp_path / "pid"
    helper = (
        "import os, pathlib, sys, time\n"
        "from coterie.base import parent_death\n"
        "parent_death.die_with_parent()\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    starter = (
        "import os, subprocess, sys\n"
        "from coterie.base import parent_death\n"
        "subprocess.run([sys.executable, '-c', *sys.argv[1:]], env={**os.environ, **parent_death.parent_environment()})\n"
    )
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", starter, helper, str(mark))
    await until(lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    os.kill(started.pid, signal.SIGKILL)
    await started.wait()
    await until(lambda: not alive(pid))


async def test_a_helper_whose_starter_is_gone_does_nothing():
    program = "from coterie.base import parent_death; parent_death.die_with_parent(); print('did it')"
    env = {**os.environ, "COTERIE_PARENT": str(2**22)}
    late = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=env)
    said, _ = await late.communicate()
    assert (late.returncode, said) == (1, b"")


def test_the_environment_is_not_shown():
    assert "hunter2" not in repr(ProcessSpec("x", ("x",), env={"TOKEN": "hunter2"}))
