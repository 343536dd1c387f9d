"""Agents, supervisors and shims killed without warning, and what they leave behind; terminals and exec."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from oci_kit import OciHarness
from runp_kit import log_text, marked_below

from coterie.kube.agent.runtimes.protocol import ExecSession, Mount, RuntimeFailure
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime


async def read_until(session: ExecSession, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        data = await asyncio.wait_for(session.read_stdout(), 10)
        assert data, f"it ended with {found!r}"
        found += data
    return found


async def command(box: OciHarness, *words: str, name: str = "main") -> tuple[int, str]:
    session = await box.runtime.exec("uid-1", name, words, stdin=False, tty=False)
    out = b""
    while data := await session.read_stdout():
        out += data
    code = await session.wait()
    await session.close()
    return code, out.decode()


async def test_a_killed_supervisor_costs_neither_containers_nor_logs_nor_codes(
    own_box: OciHarness, tmp_path: Path
) -> None:
    box = own_box
    (tmp_path / "share").mkdir()
    script = (
        "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.03; done; "
        "while [ ! -e /share/go ]; do sleep 0.05; done; exit 6"
    )
    talks = await box.start(script, "talks", mounts=(Mount(tmp_path / "share", "/share"),))
    await box.start("sleep 600", "long")
    await box.start("exec sleep 601", "vanishes")
    before = box.state("long")
    await box.until(lambda: "line 3" in log_text(talks.log_path))
    vanishing = next(run for run in box.runtime._runs["uid-1"].values() if run["name"] == "vanishes")
    await box.runtime.close()
    os.kill(box.shepherd, signal.SIGKILL)
    os.kill(vanishing["init"], signal.SIGKILL)
    box.runtime = RunpRuntime(box.settings)
    await box.runtime.open()
    assert box.state("long") == before
    (tmp_path / "share/go").touch()
    state = await box.ended("talks")
    assert (state.exit_code, state.reason) == (6, "Error")
    assert log_text(talks.log_path).splitlines() == [f"line {i}" for i in range(30)]
    assert (await box.ended("vanishes")).exit_code == 137
    assert await command(box, "sh", "-c", "echo in; exit 3", name="long") == (3, "in\n")
    await box.runtime.stop_container("uid-1", "long", 5)
    assert box.state("long").exit_code == 143
    await box.runtime.remove_pod("uid-1")
    assert not Path(f"/proc/{vanishing['pid']}").exists(), "all processes of a container end with its shim"  # noqa: ASYNC240
    assert marked_below(box.settings.directory) == []
    assert str(box.root) not in Path("/proc/mounts").read_text()  # noqa: ASYNC240


async def test_a_supervisor_killed_during_a_start_leaves_nothing(own_box: OciHarness) -> None:
    box = own_box
    await box.start("exit 0", "first")
    await box.ended("first")
    starting = asyncio.ensure_future(box.start("exec sleep 602", "second"))
    await asyncio.sleep(0.03)
    os.kill(box.shepherd, signal.SIGKILL)
    await asyncio.wait_for(starting, 20)  # the runtime asks the next supervisor
    assert box.state("second").running
    await box.runtime.stop_pod("uid-1", 0)
    await box.until(lambda: not _sleepers("602"))


def _sleepers(seconds: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                found.append(str(path))
        except OSError:
            continue
    return found


async def test_exec_finds_the_containers_world(box: OciHarness, tmp_path: Path) -> None:
    await box.start("echo mine > /work/file; sleep 600", env=(("A", "b c"),), working_dir="/work")
    await box.until(lambda: box.state().running)
    code, text = await command(
        box, "sh", "-c", "sleep 0.1; pwd; cat file; echo $A; id -u; grep CapEff /proc/self/status"
    )
    assert code == 0 and text.splitlines() == ["/work", "mine", "b c", "0", "CapEff:\t00000000000005fb"]
    session = await box.runtime.exec("uid-1", "main", ["no-such-program"], stdin=False, tty=False)
    assert await session.wait() == 127
    await session.close()
    session = await box.runtime.exec("uid-1", "main", ["cat"], stdin=True, tty=False)
    await session.write_stdin(b"hello\n")
    assert await read_until(session, b"hello\n") == b"hello\n"
    await session.close_stdin()
    assert await session.wait() == 0
    await session.close()


async def test_an_exec_that_is_given_up_ends(box: OciHarness) -> None:
    await box.start("sleep 600")
    session = await box.runtime.exec("uid-1", "main", ["sleep", "603"], stdin=False, tty=False)
    await asyncio.sleep(0.3)
    await session.close()
    for _ in range(50):
        _, text = await command(box, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        if "sleep 603" not in text:
            return
    raise AssertionError("it still runs")


@pytest.mark.parametrize("way", ["exec", "attach"])
async def test_terminals(box: OciHarness, way: str) -> None:
    """A terminal of the container's own, of the size that is asked for, whose ^C is a signal."""
    if way == "exec":
        await box.start("sleep 600")
        session = await box.runtime.exec("uid-1", "main", ["sh"], stdin=True, tty=True)
    else:
        await box.start("", command=("sh",), stdin=True, tty=True)
        session = await box.runtime.attach("uid-1", "main", stdin=True)
    session.resize(91, 33)
    await session.write_stdin(b"tty; stty size\n")
    text = await read_until(session, b"33 91")
    # gVisor has the terminal, but not under a name.
    assert box.handler == "gvisor" or (b"/dev/" in text and b"not a tty" not in text)
    await session.write_stdin(b"sleep 604\n")
    await asyncio.sleep(0.3)
    await session.write_stdin(b"\x03")
    await session.write_stdin(b"echo an''swer\n")
    await read_until(session, b"answer")
    await session.write_stdin(b"exit 4\n")
    assert await asyncio.wait_for(session.wait(), 10) == 4
    await session.close()


async def test_a_refused_start_says_why(box: OciHarness) -> None:
    with pytest.raises(RuntimeFailure, match="working directory /nowhere does not exist"):
        await box.start("true", working_dir="/nowhere")
