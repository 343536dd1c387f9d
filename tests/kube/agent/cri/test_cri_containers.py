"""What a container on containerd has and has not: files, limits, rights, streams, images; and who reaches containerd."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import image_kit
import pytest
from cri_kit import CriHarness, NoNetwork, log_text, needs_containerd

from coterie.kube.agent.images.archive import load
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.runtimes.cri import daemon
from coterie.kube.agent.runtimes.cri.runtime import CriRuntime
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.protocol import ContainerLimits, Mount, RuntimeFailure, Security
from coterie.kube.agent.volumes.directories import sub_path

pytestmark = needs_containerd

DEFAULT_CAPABILITIES = "00000000000005fb"
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service."""


async def test_rights_and_files(cri: CriHarness) -> None:
    await cri.prepare()
    status = "grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status"
    ordinary, user, escalating, sealed, files, masked = await asyncio.gather(
        *(
            cri.output_of(name, script, security=security)
            for name, script, security in (
                ("ordinary", status, Security()),
                ("user", "id", Security(run_as_user=1000, run_as_group=1000, supplemental_groups=(7,))),
                ("escalating", status, Security(allow_privilege_escalation=True, drop_capabilities=("ALL",))),
                ("sealed", "touch /x || echo refused", Security(read_only_root=True)),
                ("files", "cat /etc/hosts /etc/resolv.conf; hostname; env", Security()),
                ("masked", "cat /proc/keys | wc -c; echo x > /proc/sys/kernel/hostname || echo refused", Security()),
            )
        )
    )
    assert f"CapEff:\t{DEFAULT_CAPABILITIES}" in ordinary and f"CapBnd:\t{DEFAULT_CAPABILITIES}" in ordinary
    assert "NoNewPrivs:\t1" in ordinary and "Seccomp:\t2" in ordinary
    assert "uid=1000(app) gid=1000(app)" in user and re.search(r"groups=.*\b7\b", user)
    assert "NoNewPrivs:\t0" in escalating and "CapEff:\t0000000000000000" in escalating
    assert "refused" in sealed
    assert "10.9.8.7 friend" in files and "nameserver 10.9.8.7" in files and "HOME=/root" in files
    assert "0\n" in masked and "refused" in masked
    with pytest.raises(RuntimeFailure, match=r"capabilities.add: SYS_ADMIN"):
        await cri.start("true", "greedy", security=Security(add_capabilities=("SYS_ADMIN",)))


async def test_limits_hold(cri: CriHarness) -> None:
    await cri.prepare()
    hog = "x=0123456789abcdef; while :; do x=$x$x; done"
    forks = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; echo all"
    await asyncio.gather(
        cri.start(hog, "hog", limits=ContainerLimits(memory_bytes=32 << 20)),
        cri.start(forks, "forks", limits=ContainerLimits(pids=8)),
    )
    assert (await cri.ended("hog")).reason == "OOMKilled"
    assert (await cri.ended("forks")).exit_code != 0
    small = ContainerLimits(open_files=64, file_bytes=1 << 20)
    said = await cri.output_of(
        "small", "ulimit -n; dd if=/dev/zero of=/x bs=64k count=17 2>&1 || echo cut", limits=small
    )
    assert said.startswith("64\n") and "cut" in said
    await cri.start("sleep inf", "resized", limits=ContainerLimits(cpu_milli=100, memory_bytes=64 << 20))
    await cri.runtime.resize_pod(
        "uid-1", ContainerLimits(), {"resized": ContainerLimits(memory_bytes=96 << 20)}, final=True
    )
    usage = await cri.runtime.usage("uid-1")
    assert 0 < usage["resized"].memory_bytes < 96 << 20
    with pytest.raises(RuntimeFailure, match="more than the new limit"):
        await cri.runtime.resize_pod(
            "uid-1", ContainerLimits(), {"resized": ContainerLimits(memory_bytes=1)}, final=True
        )


async def test_exec_has_a_terminal_and_ends_when_let_go(cri: CriHarness) -> None:
    await cri.start("sleep inf")
    session = await cri.runtime.exec("uid-1", "main", ["sh"], stdin=True, tty=True)
    session.resize(97, 31)
    said = b""
    while b"31 97" not in said:
        await session.write_stdin(b"stty size\n")
        said += await asyncio.wait_for(session.read_stdout(), 5)
    await session.write_stdin(b"sleep 4242\n")
    inside = (await cri.runtime.usage("uid-1"))["main"].pids
    assert inside >= 3
    await session.close()
    assert await asyncio.wait_for(session.wait(), 5) == 137
    missing = await cri.runtime.exec("uid-1", "main", ["no-such-program"], stdin=False, tty=False)
    assert await missing.wait() == 127 and b"no-such-program" in await missing.read_stderr()
    reading = await cri.runtime.exec("uid-1", "main", ["cat"], stdin=True, tty=False)
    await reading.write_stdin(b"x" * 200_000)
    await reading.close_stdin()
    size = 0
    while data := await asyncio.wait_for(reading.read_stdout(), 10):
        size += len(data)
    assert size == 200_000 and await reading.wait() == 0
    assert not list((cri.settings.directory / "exec").iterdir())


async def test_images_of_the_store_are_linked_and_collected(cri: CriHarness) -> None:
    store = ImageStore(cri.settings.images)
    busybox = (cri.settings.images.parent / "busybox-root/bin/busybox").read_bytes()
    lower = {"bin/sh": busybox, "bin/ls": busybox, "old/gone": b"gone", "old/stays": b"stays", "hidden/a": b"a"}
    upper = {"old/.wh.gone": b"", "hidden/.wh..wh..opq": b"", "hidden/b": b"b", "new": b"new"}
    layers = [image_kit.tar(image_kit.entry(*pair, mode=0o755) for pair in files.items()) for files in (lower, upper)]
    load(store, io.BytesIO(image_kit.oci(layers, "test/layers:1")))
    image = store.find("test/layers:1")
    assert image is not None and len(image.layers) == 2
    assert await cri.output("ls /old /hidden /new", image="test/layers:1") == "/new\n\n/hidden:\nb\n\n/old:\nstays\n"
    sources = {os.stat(path).st_ino for path in store.layer(image.layers[0]).rglob("ls")}
    linked = {os.stat(path).st_ino for path in cri.settings.root.glob("*overlayfs/snapshots/*/fs/bin/ls")}
    assert sources & linked, "the layer was copied"
    store.remove("test/layers:1")
    await cri.runtime.remove_pod("uid-1")
    assert cri.runtime._images is not None
    listed = await cri.runtime._connection.call("images.v1.Images/List")  # type: ignore[union-attr]
    assert not [each for each in listed["images"] if image.id in each.get("labels", {}).values()]


async def test_host_environments_are_refused_with_what_to_do(cri: CriHarness) -> None:
    await cri.prepare()
    with pytest.raises(RuntimeFailure, match="runtimeClassName: runp"):
        await cri.start("true", image="coterie/host:latest")


async def test_a_killed_sandbox_is_made_anew(cri: CriHarness) -> None:
    """As after a reboot: what ended is known, and the next run gets a new sandbox."""
    await cri.start("exit 3")
    await cri.ended()
    await cri.runtime.stop_sandboxes()
    await cri.restart()
    assert cri.state().exit_code == 3
    await cri.start("exit 4", attempt=1)
    assert (await cri.ended()).exit_code == 4


async def test_containers_end_with_their_sandbox(cri: CriHarness) -> None:
    await cri.start("sleep inf")
    sandbox = cri.runtime._ready["uid-1"]
    found = await cri.runtime._call("tasks.v1.Tasks/Get", {"container_id": sandbox})
    os.kill(found["process"]["pid"], signal.SIGKILL)
    assert (await cri.ended()).exit_code == 137
    await cri.start("exit 4", attempt=1)
    assert cri.runtime._ready["uid-1"] != sandbox and (await cri.ended()).exit_code == 4


async def test_attach_to_a_terminal(cri: CriHarness) -> None:
    await cri.start("while read word; do stty size; echo got $word; done", stdin=True, tty=True)
    session = await cri.runtime.attach("uid-1", "main", stdin=True)
    session.resize(97, 31)
    said = b""
    while b"31 97" not in said:
        await session.write_stdin(b"ping\n")
        said += await asyncio.wait_for(session.read_stdout(), 5)
    assert b"ping" in said
    await cri.runtime.signal_container("uid-1", "main", signal.SIGKILL)
    assert await asyncio.wait_for(session.wait(), 5) == 137
    await session.close()


async def test_a_rotated_log_goes_on(cri: CriHarness) -> None:
    spec = await cri.start("while :; do echo 0123456789; sleep 0.01; done")
    await cri.until(lambda: spec.log_path.exists() and spec.log_path.stat().st_size > 2000)
    cri.runtime._settings = replace(cri.settings, log_bytes=1000, log_files=2)
    checking = asyncio.create_task(cri.runtime._check_logs(await cri.runtime._connected()))
    await cri.until(lambda: Path(f"{spec.log_path}.1").exists() and spec.log_path.exists())
    before = spec.log_path.stat().st_size
    await cri.until(lambda: spec.log_path.stat().st_size > before)
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)
    assert "0123456789" in log_text(spec.log_path)


async def test_nobody_else_reaches_containerd(cri: CriHarness) -> None:
    """Neither other users of the machine nor pods; and an attachment's URL is good for once."""
    await cri.start("sleep inf", stdin=True)
    settings = cri.settings
    for path in (settings.directory, settings.root, settings.state, settings.socket.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700 and path.stat().st_uid == 0
    attempt = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    )
    done = subprocess.run(  # noqa: ASYNC221 - nothing else is to happen meanwhile
        [sys.executable, "-c", attempt, str(settings.socket)], capture_output=True, check=False
    )
    assert b"PermissionError" in done.stderr
    mounts = await cri.output("cat /proc/mounts; ls -R /run /var 2>/dev/null || true")
    assert "containerd.sock" not in mounts and str(settings.directory) not in mounts.replace(
        f"{settings.directory}/init", ""
    )
    run = cri.runtime._must_run("uid-1", "main")
    request = {"container_id": run.id, "stdout": True, "stderr": True}
    url = (await cri.runtime._call("Attach", request))["url"]
    assert re.match(r"http://127\.0\.0\.1:\d+/attach/[\w-]{8}$", url)
    answers = []
    for _ in range(2):
        host, _, rest = url.removeprefix("http://").partition("/")
        reader, writer = await asyncio.open_connection(*host.split(":"))
        head = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io"
        writer.write(f"POST /{rest} HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n".encode())
        answers.append((await reader.readline()).split()[1])
        writer.close()
    assert answers == [b"101", b"404"]


async def test_two_domains_share_no_containerd(cri: CriHarness, tmp_path: Path) -> None:
    await cri.start("sleep inf")
    other = replace(cri.settings, directory=tmp_path / "cri", root=tmp_path / "root", group=f"{cri.settings.group}-b")
    async with CriHarness.opened(tmp_path, replace(other, idle_seconds=60)) as second:
        assert second.runtime.pods() == []
        await second.start("exit 0", uid="uid-2")
        await second.ended(uid="uid-2")
        assert [pod.uid for pod in cri.runtime.pods()] == ["uid-1"]
        assert daemon.ContainerdDaemon(other, daemon.find_programs(), None).pid
    assert not daemon.ContainerdDaemon(other, daemon.find_programs(), None).pid, "without pods it ends with its agent"
    assert cri.state().running


async def test_a_subpath_that_becomes_a_link_after_it_was_checked(cri: CriHarness, tmp_path: Path) -> None:
    """As a container beside it can do that has the same volume; containerd would mount the machine's files."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    (tmp_path / "vol/data").mkdir(parents=True)
    (tmp_path / "vol/file").write_text("fine\n")
    mount, file = (Mount(sub_path(tmp_path / "vol", name), f"/{name}", resolved=True) for name in ("data", "file"))
    assert await cri.output("touch /data/new; cat /file", mounts=(mount, replace(file, read_only=True))) == "fine\n"
    assert os.listdir(tmp_path / "vol/data") == ["new"]
    (tmp_path / "vol/data").rename(tmp_path / "vol/old")
    (tmp_path / "vol/data").symlink_to(tmp_path / "secret")
    with pytest.raises(RuntimeFailure, match="has become a link"):
        await cri.start("cat /data/key", "escapes", mounts=(mount,))
    stage = cri.settings.state / "volumes"
    assert not list(stage.iterdir()) and str(stage) not in Path("/proc/self/mounts").read_text()  # noqa: ASYNC240


async def test_volumes_that_a_killed_agent_left_mounted(cri: CriHarness, tmp_path: Path) -> None:
    left = cri.settings.state / "volumes/left/0"
    left.mkdir(parents=True)
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol/kept").touch()
    subprocess.run(["mount", "--bind", tmp_path / "vol", left], check=True)  # noqa: ASYNC221
    await cri.restart()
    assert not left.parent.exists() and os.listdir(tmp_path / "vol") == ["kept"]


def test_a_long_path_has_a_short_socket(tmp_path: Path) -> None:
    near, far = CriSettings.below(Path("/srv/a/var/run"), "n", "g"), CriSettings.below(tmp_path / ("d" * 99), "n", "g")
    assert near.socket == Path("/srv/a/var/run/cri/containerd.sock")
    assert len(os.fsencode(far.socket)) < 100 and far.socket.parent.parent == Path("/run/coterie")


def test_a_machine_without_containerd_says_so(tmp_path: Path) -> None:
    async def opened(programs: daemon.ContainerPrograms) -> str:
        runtime = CriRuntime(CriSettings.below(tmp_path / "run", "n", "g"), NoNetwork(), programs)
        await runtime.open()
        await runtime.close()
        return runtime.handlers()[0].why

    whole = daemon.ContainerPrograms("/c", "1.6.20", "/r", "/s", "/k", kvm=True)
    cases = [
        (replace(whole, containerd=""), "containerd is not installed", "containerd is not installed"),
        (replace(whole, version="1.4.9"), "is too old", "is too old"),
        (replace(whole, runc=""), "runc is not installed", ""),
        (replace(whole, kata=""), "", "containerd-shim-kata-v2 is not installed"),
        (replace(whole, kvm=False), "", "no /dev/kvm"),
        (replace(whole, root=False), "needs root", "needs root"),
    ]
    for programs, runc, kata in cases:
        found = {handler.name: handler for handler in daemon.handlers(programs)}
        assert found["runc"].available is (not runc) and runc in found["runc"].why
        assert found["kata"].available is (not kata) and kata in found["kata"].why
    assert "needs root" in asyncio.run(opened(cases[-1][0]))
    assert not list(tmp_path.iterdir()), "nothing is made where nothing can be run"
