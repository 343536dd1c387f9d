"""What a container sees and may do, by whatever runtime; and attacks from inside."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import entry, folder, link, oci, tar
from oci_kit import IMAGE, OciHarness
from runp_kit import log_text

from coterie.kube.agent.images import archive
from coterie.kube.agent.images.store import HOST_IMAGE
from coterie.kube.agent.runtimes.protocol import ContainerLimits, Mount, RuntimeFailure, Security
from coterie.kube.agent.volumes.directories import sub_path
from root_kit import require_root

ATTACKS = {
    "device": "mknod /disk b 254 0",
    "device-in-volume": "mknod /vol/disk c 1 1",
    "sysctl": "echo 77 > /proc/sys/kernel/panic",
    "trigger": "echo b > /proc/sysrq-trigger",
    "mount": "mount -t tmpfs none /work",
    "remount-proc": "mount -t proc none /work",
    "unmount": "umount /etc/hosts",
    "namespace": "unshare -U true",
    "root-of-init": "ls /proc/1/root/bundle",
    "files-of-init": "cat /proc/1/fd/3",
    "read-only-volume": "touch /ro/x",
    "hosts": "echo x >> /etc/hosts",
    "machine-file": "cat MARK",
    "other-pod": "cat ../../../../../../../../../../../../OTHER",
    "memory": "head -c 1 /proc/kcore | grep -q .",
}
IN_GVISOR = frozenset(("sysctl", "trigger", "namespace"))
"""A kernel of its own, and nobody else's: what they change is the sandbox's."""


async def test_a_container_has_its_own_names_users_and_rights(box: OciHarness) -> None:
    text = await box.output(
        "hostname; cat /etc/hosts /etc/resolv.conf; pwd; id -u; id -g; ls / | tr '\\n' ' '; echo;"
        "grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc | grep -c '^[0-9]'; echo y > /dev/stderr;"
        "echo x > /dev/shm/x && echo x > /tmp/x && echo x > /etc/x && echo writes",
        working_dir="/work",
    )
    assert "y" in text.splitlines()
    lines = [line for line in text.splitlines() if line != "y"]  # two pipes have no order between them
    assert lines[:6] == ["pod-uid-1", "10.9.8.7 friend", "nameserver 10.9.8.7", "/work", "0", "0"]
    assert not {"usr", "opt", "home", "var", "srv"} & set(lines[6].split())
    assert "CapEff:\t00000000000005fb" in text and "CapBnd:\t00000000000005fb" in text and "writes" in text
    assert box.handler == "gvisor" or ("NoNewPrivs:\t1" in text and "Seccomp:\t2" in text)


async def test_root_of_a_container_is_nobody_on_the_machine(box: OciHarness) -> None:
    require_root("gives each pod users of its own")
    await box.start("sleep 600")
    pid = box.state().pid
    for name in ("uid", "gid"):
        inside, outside, count = map(int, Path(f"/proc/{pid}/{name}_map").read_text().split()[:3])  # noqa: ASYNC240
        assert box.handler == "gvisor" or (inside, count) == (0, 65536)
        assert outside >= 0x40000000 or box.handler == "gvisor"
    status = Path(f"/proc/{pid}/status").read_text()  # noqa: ASYNC240
    assert int(status.split("Uid:")[1].split()[0]) >= 0x40000000


async def test_user_and_groups_of_the_security_context_and_of_the_image(box: OciHarness) -> None:
    require_root("becomes another user")
    security = Security(run_as_user=12345, run_as_group=23456, supplemental_groups=(34567,))
    text = await box.output("id -u; id -g; id -G; grep CapEff /proc/self/status", security=security)
    assert text.split()[:4] == ["12345", "23456", "23456", "34567"] and "CapEff:\t0000000000000000" in text
    image = box.runtime.store.resolve(IMAGE)
    box.runtime.store.save(replace(image, name="busybox:app", user="app"))
    assert (await box.output("id -u; id -g", image="busybox:app")).split() == ["1234", "1235"]


async def test_attacks_from_inside_fail(box: OciHarness, tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("secret")
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol").chmod(0o777)
    await box.start("echo private > /root/other; sleep 600", "victim", uid="uid-2")
    other = tmp_path / "pods/uid-2/runp/victim.0/upper/root/other"
    await box.until(other.exists)
    tries = [
        f"({command.replace('MARK', str(tmp_path / 'mark')).replace('OTHER', str(other))}) >/dev/null 2>&1 && echo {name}"
        for name, command in ATTACKS.items()
        if box.handler != "gvisor" or name not in IN_GVISOR
    ]
    mounts = (Mount(tmp_path / "vol", "/vol"), Mount(tmp_path / "vol", "/ro", read_only=True))
    text = await box.output("; ".join([*tries, "echo done"]), mounts=mounts)
    assert text.split() == ["done"], f"these succeeded: {text}"
    assert Path("/proc/sys/kernel/panic").read_text() != "77\n"  # noqa: ASYNC240
    assert os.listdir(tmp_path / "vol") == []


async def test_processes_of_others_are_not_seen(box: OciHarness) -> None:
    await box.start("exec sleep 654321", "victim", uid="uid-2")
    await box.start("exec sleep 654322", "beside")
    text = await box.output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1; echo alive")
    assert "65432" not in text and box.state("victim", "uid-2").running and box.state("beside").running


async def test_read_only_root_and_dropped_capabilities(box: OciHarness) -> None:
    security = Security(read_only_root=True, drop_capabilities=("ALL",))
    text = await box.output(
        "echo x > /etc/new || echo refused; echo x > /dev/shm/x; grep CapEff /proc/self/status", security=security
    )
    assert "refused" in text and "CapEff:\t0000000000000000" in text


async def test_images_whose_links_lead_out(box: OciHarness, tmp_path: Path) -> None:
    """Places of mounts that an image makes links to the machine's, and a root with a device file in it."""
    busybox = (box.runtime.store.layer_paths(box.runtime.store.resolve(IMAGE))[0] / "bin/busybox").read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    layer = tar(
        [
            folder("bin"),
            entry("bin/busybox", busybox, mode=0o755),
            link("bin/sh", "busybox"),
            link("bin/cat", "busybox"),
            folder("etc"),
            link("etc/hosts", str(out / "hosts")),
            link("dev", str(out)),
            link("proc", str(out)),
            link("data", f"../../../../../../../../..{out}"),
            link("cwd", "/proc/self/fd/7"),
        ]
    )
    name = f"links-{box.handler}:1"
    archive.load(box.runtime.store, io.BytesIO(oci([layer], name)))
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol/file").write_text("volume")
    mount = Mount(tmp_path / "vol", "/data")
    assert await box.output("cat /data/file", image=name, mounts=(mount,)) == "volume"
    assert os.listdir(out) == []
    for place in ("/cwd", "/proc/self/fd/7", "/proc/self/cwd"):
        with pytest.raises(RuntimeFailure, match="working directory"):
            await box.start("true", "escapes", image=name, working_dir=place)


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        (("no-such-program",), 127, 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such/program",), 127, "no such file or directory"),
        (("/etc/passwd",), 126, "permission denied"),
    ],
)
async def test_what_cannot_be_executed(box: OciHarness, command: tuple[str, ...], code: int, why: str) -> None:
    await box.start("", command=command)
    state = await box.ended()
    assert (state.exit_code, state.reason) == (code, "ContainerCannotRun") and why in state.message


async def test_a_missing_volume_is_told_and_the_run_may_be_tried_again(box: OciHarness, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="missing does not exist"):
        await box.start("true", mounts=(Mount(tmp_path / "missing", "/x"),))
    await box.start("exit 3")
    assert (await box.ended()).exit_code == 3


async def test_a_host_environment(box: OciHarness, tmp_path: Path) -> None:
    """The machine's /usr, read-only, and nothing else of it; a volume where there was no directory."""
    (tmp_path / "mark").write_text("secret")
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol/file").write_text("volume")
    text = await box.output(
        f"pwd; cat /srv/deep/data/file; cat {tmp_path}/mark 2>&1; touch /usr/bin/coterie-was-here 2>&1; echo x > /tmp/x && cat /tmp/x",
        image=HOST_IMAGE,
        mounts=(Mount(tmp_path / "vol", "/srv/deep/data"),),
    )
    assert text.startswith("/pod\nvolume") and "secret" not in text and text.endswith("x\n")
    assert not Path("/usr/bin/coterie-was-here").exists()  # noqa: ASYNC240


async def test_privileged(box: OciHarness) -> None:
    require_root("gives privileges to a container")
    if box.handler == "gvisor":
        with pytest.raises(RuntimeFailure, match="which gVisor keeps away"):
            await box.start("true", security=Security(privileged=True))
        return
    text = await box.output(
        "mount -t tmpfs none /work && echo mounted; grep Seccomp: /proc/self/status; test -e /dev/kmsg && echo devices",
        security=Security(privileged=True),
    )
    assert "mounted" in text and "Seccomp:\t0" in text and "devices" in text


async def test_devices(box: OciHarness) -> None:
    if box.handler == "gvisor":
        with pytest.raises(RuntimeFailure, match="no devices of the machine"):
            await box.start("true", devices=("/dev/fuse",))
        return
    if not Path("/dev/fuse").exists():  # noqa: ASYNC240
        pytest.skip("this machine has no /dev/fuse")
    assert "fuse" in (await box.output("ls /dev", devices=("/dev/fuse",))).split()
    seen = (await box.output("ls /dev")).split()
    assert set(seen) == {
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"
    }  # fmt: skip


async def test_a_target_shares_its_processes(box: OciHarness) -> None:
    await box.start("exec sleep 654323", "main")
    if box.handler == "gvisor":
        with pytest.raises(RuntimeFailure, match="no target container"):
            await box.start("true", "debugger", target="main")
        return
    spec = await box.start(
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill $(ps | grep 65432[3] | tr -s ' ' | cut -d ' ' -f 2)",
        "debugger",
        target="main",
    )
    await box.ended("debugger")
    assert "sleep 654323" in log_text(spec.log_path)
    assert (await box.ended("main")).exit_code == 143


async def test_limits_hold_and_tell(box: OciHarness) -> None:
    await box.start("dd if=/dev/zero of=/dev/null bs=200M count=1", limits=ContainerLimits(memory_bytes=64 << 20))
    state = await box.ended(seconds=30)
    if box.powers["cgroup_memory"]:
        assert (state.exit_code, state.reason) == (137, "OOMKilled") and "64Mi" in state.message
    elif box.handler == "crun":
        assert state.exit_code != 0
    if box.handler != "gvisor" and box.powers["cgroup_pids"]:
        script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait"
        await box.start(script, "forks", limits=ContainerLimits(pids=8))
        state = await box.ended("forks")
        assert state.exit_code != 0 and "limit of 8 processes" in state.message
    text = await box.output(
        "ulimit -n; ulimit -Hn; ulimit -c", limits=ContainerLimits(open_files=777, file_bytes=1 << 20)
    )
    assert text.split()[0] == "777" and text.split()[2] == "0"


async def test_limits_that_are_as_small_as_can_be(box: OciHarness) -> None:
    """The runtime's own program does not count; what is too small for the container is told."""
    least = {"runc": 8 << 20, "crun": 4 << 20, "gvisor": 48 << 20}[box.handler]
    text = await box.output("sleep 0.1; echo fine", limits=ContainerLimits(100, least, 4))
    assert text == "fine\n"
    if box.handler == "gvisor" and box.powers["cgroup_memory"]:
        with pytest.raises(RuntimeFailure, match="the memory limit of 2Mi may be too small"):
            await box.start("true", limits=ContainerLimits(memory_bytes=2 << 20))


async def test_a_subpath_that_becomes_a_link_after_it_was_checked(box: OciHarness, tmp_path: Path) -> None:
    """As a container beside it can do that has the same volume: the mount would show the machine's files to root."""
    (tmp_path / "secret/deep").mkdir(parents=True)
    (tmp_path / "secret/deep/key").write_text("secret")
    (tmp_path / "vol/data/deep").mkdir(parents=True)
    mount = Mount(sub_path(tmp_path / "vol", "data/deep"), "/data", resolved=True)
    assert await box.output("ls /data", mounts=(mount,)) == ""
    (tmp_path / "vol/data").rename(tmp_path / "vol/old")
    (tmp_path / "vol/data").symlink_to(tmp_path / "secret")
    with pytest.raises(RuntimeFailure, match="has become a link"):
        await box.start("cat /data/key", "escapes", mounts=(mount,))
