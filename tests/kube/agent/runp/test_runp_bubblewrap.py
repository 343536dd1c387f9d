"""The handler `bubblewrap`: RunP's suite, and the walls that bubblewrap adds."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from runp_kit import RunpHarness
from runtime_suite import RuntimeSuite

from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.runtimes.protocol import ContainerLimits, RuntimeFailure, Security
from coterie.kube.agent.runtimes.runp import handlers

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")


@pytest.fixture
async def bubblewrap(tmp_path: Path) -> AsyncIterator[RunpHarness]:
    async with RunpHarness.opened(tmp_path, "bubblewrap") as harness:
        found = {each.name: each for each in harness.runtime.handlers()}["bubblewrap"]
        if not harness.powers["namespaces"]:
            pytest.skip(found.why)
        assert found.available, found.why
        yield harness


class TestBubblewrap(RuntimeSuite):
    @pytest.fixture
    def harness(self, bubblewrap: RunpHarness) -> RunpHarness:
        return bubblewrap


STATUS = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status"
WALLED = {
    "CapInh": "0000000000000000",
    "CapPrm": "0000000000000000",
    "CapEff": "0000000000000000",
    "CapBnd": "0000000000000000",
    "CapAmb": "0000000000000000",
    "NoNewPrivs": "1",
    "Seccomp": "2",
}


def fields(text: str) -> dict[str, str]:
    return {name.rstrip(":"): value for name, value in (line.split() for line in text.splitlines())}


async def executed(harness: RunpHarness, script: str) -> str:
    session = await harness.runtime.exec("uid-1", "main", ["sh", "-c", script], stdin=False, tty=False)
    found = b""
    while data := await session.read_stdout():
        found += data
    assert await session.wait() == 0
    await session.close()
    return found.decode()


async def test_the_program_has_no_capability_and_another_user(bubblewrap: RunpHarness) -> None:
    """As root of the container too; and so has what is executed in it later."""
    assert fields(await bubblewrap.output(STATUS)) == WALLED
    assert (await bubblewrap.output("id -u; id -g; whoami")).split() == ["65534", "65534", "nobody"]
    await bubblewrap.start("echo secret > /tmp/file; sleep inf", "main")
    assert fields(await executed(bubblewrap, STATUS)) == WALLED
    assert (
        await executed(bubblewrap, "id -u; id -G; cat /tmp/file; cat /proc/1/comm") == "65534\n65534\nsecret\nbwrap\n"
    )


async def test_namespaces_are_neither_the_machines_nor_the_containers(bubblewrap: RunpHarness) -> None:
    kinds = ("user", "pid", "ipc", "uts", "mnt")
    await bubblewrap.start("sleep inf")
    text = await executed(bubblewrap, f"for k in {' '.join(kinds)}; do readlink /proc/self/ns/$k; done; hostname")
    *own, hostname = text.split()
    monitor = bubblewrap.state().pid
    for kind, name in zip(kinds, own, strict=True):
        assert name not in (os.readlink(f"/proc/self/ns/{kind}"), os.readlink(f"/proc/{monitor}/ns/{kind}")), kind
    assert hostname == "pod-uid-1"


async def test_bwrap_itself_obeys_nothing_of_the_container(bubblewrap: RunpHarness) -> None:
    """Neither its environment, which could make it load code with the machine's files in sight, nor secrets in words."""
    env = (("LD_PRELOAD", "/tmp/evil.so"), ("PASSWORD", "hunter2"))
    await bubblewrap.start("sleep inf", env=env)
    assert await executed(bubblewrap, "echo $PASSWORD $LD_PRELOAD") == "hunter2 /tmp/evil.so\n"
    assert "evil" in await bubblewrap.output("env", env=env)
    monitor = Path(f"/proc/{bubblewrap.state().pid}")
    assert (monitor / "comm").read_text() == "bwrap\n"
    assert (monitor / "environ").read_bytes() == b"" and b"hunter2" not in (monitor / "cmdline").read_bytes()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"security": Security(privileged=True)}, "privileged"),
        ({"security": Security(add_capabilities=("SYS_PTRACE",))}, "capabilities.add"),
        ({"target": "main"}, "target"),
    ],
)
async def test_what_would_be_a_weaker_wall_is_refused(
    bubblewrap: RunpHarness, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(RuntimeFailure, match=f"{word}.* not possible with the runtime handler bubblewrap"):
        await bubblewrap.start("true", **changes)


async def test_without_bwrap_nothing_is_started(bubblewrap: RunpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "program", lambda name: "")
    await bubblewrap.restart()
    found = {each.name: each for each in bubblewrap.runtime.handlers()}["bubblewrap"]
    assert not found.available and "install" in found.why
    with pytest.raises(RuntimeFailure, match='"bubblewrap" is not available'):
        await bubblewrap.start("true")


async def test_sockets_and_files_of_the_machine_are_out_of_reach(bubblewrap: RunpHarness) -> None:
    name = f"coterie-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        await bubblewrap.start("", image=PYTHON_IMAGE, command=(), args=("-c", code))
        state = await bubblewrap.ended()
    assert state.exit_code == 1 or not bubblewrap.powers["landlock"]
    script = "for f in /usr/x /etc/x /x /proc/sys/kernel/hostname; do echo x > $f && echo $f is written; done"
    assert "written" not in await bubblewrap.output(script + "; mount -t tmpfs none /mnt && echo written; true")


async def test_an_image_needs_nothing_of_bubblewraps(bubblewrap: RunpHarness, tmp_path: Path) -> None:
    """A static program is all there is in it."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    (tmp_path / "rootfs/bin").mkdir(parents=True)
    shutil.copy(busybox, tmp_path / "rootfs/bin/sh")
    bubblewrap.runtime.store.add_rootfs("busybox:1", tmp_path / "rootfs")
    bubblewrap.image = "busybox:1"
    text = await bubblewrap.output("echo written > /file; read word < /file; echo $word; echo /*")
    assert text.split("\n")[0] == "written" and "/usr" not in text and "/root" not in text
    await bubblewrap.start("", "missing", command=("no-such-program",))
    state = await bubblewrap.ended("missing")
    assert (state.exit_code, state.reason) == (127, "ContainerCannotRun") and "not found in $PATH" in state.message


async def test_limits_hold_and_bwrap_takes_nothing_of_them(bubblewrap: RunpHarness) -> None:
    if not bubblewrap.powers["cgroup"]:
        pytest.skip("control groups cannot be made on this machine")
    forks = "for i in 1 2 3 4 5 6; do sleep 5 & done; echo $?"
    assert "0" in await bubblewrap.output(forks, limits=ContainerLimits(pids=7))
    hog = "x=x; while :; do x=$x$x; done"
    await bubblewrap.start(hog, "hog", limits=ContainerLimits(memory_bytes=32 << 20))
    state = await bubblewrap.ended("hog", seconds=30)
    assert (state.exit_code, state.signal, state.reason) == (137, 9, "OOMKilled")
