"""Containers that share the processes of another one: ephemeral containers with a target."""

from __future__ import annotations

import os

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.runtimes.protocol import RuntimeFailure, Security


@pytest.fixture
def spaced(runp: RunpHarness) -> RunpHarness:
    if not runp.powers["namespaces"]:
        pytest.skip("needs namespaces")
    return runp


def namespace(pid: int, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino


async def test_it_sees_and_signals_the_processes_of_its_target(spaced: RunpHarness) -> None:
    await spaced.start("trap 'echo asked; exit 3' USR1; while :; do sleep 0.1; done", "main")
    await spaced.start("sleep 600", "debug", target="main")
    main, debug = spaced.state("main").pid, spaced.state("debug").pid
    for name in ("pid", "user", "ipc"):
        assert namespace(main, name) == namespace(debug, name), name
    assert namespace(main, "mnt") != namespace(debug, "mnt")
    text = await spaced.output("grep -l USR1 /proc/[0-9]*/cmdline; kill -USR1 2", target="main")
    assert "/proc/2/cmdline" in text.split()
    assert (await spaced.ended("main")).exit_code == 3
    # The end of the target's pid namespace is the end of all that is in it.
    assert (await spaced.ended("debug")).exit_code == 137


async def test_its_own_end_leaves_the_target_alone(spaced: RunpHarness) -> None:
    await spaced.start("sleep 600", "main")
    spec = await spaced.start("sleep 300 & echo $$; exit 7", "debug", target="main")
    assert (await spaced.ended("debug")).exit_code == 7
    assert log_text(spec.log_path).strip().isdigit()
    await spaced.start("sleep 500", "other", target="main")
    await spaced.finish(spaced.runtime.stop_container("uid-1", "other", 0.0))
    assert (await spaced.ended("other")).signal == 9
    assert spaced.state("main").running
    children = await spaced.output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", target="main")
    assert "sleep 600" in children and "sleep 300" not in children and "sleep 500" not in children


async def test_a_target_must_run(spaced: RunpHarness) -> None:
    await spaced.start("sleep 600", "main")
    with pytest.raises(RuntimeFailure, match='target container "gone" does not run'):
        await spaced.start("true", "debug", target="gone")
    await spaced.start("echo here", "debug", target="main")
    assert (await spaced.ended("debug")).exit_code == 0


async def test_a_debugger_traces_its_target(spaced: RunpHarness) -> None:
    if not (spaced.powers["users"] or spaced.powers["namespaces"] == "user"):
        pytest.skip("needs user namespaces")
    await spaced.start("exec sleep 600", "main")
    script = (
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True);"
        "print('attached' if libc.ptrace(16, 2, 0, 0) == 0 else os.strerror(ctypes.get_errno()))"
    )
    plain = await spaced.output(f'python3 -c "{script}"', target="main")
    assert "not permitted" in plain
    debugger = Security(add_capabilities=("SYS_PTRACE",))
    assert "attached" in await spaced.output(f'python3 -c "{script}"', target="main", security=debugger)
