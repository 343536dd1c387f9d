"""What a container sees and may do, and what it may not."""

from __future__ import annotations

import io
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import entry, folder, link, oci, tar
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.images import archive
from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.runtimes.protocol import Mount, RuntimeFailure, Security
from coterie.kube.agent.runtimes.runp import users
from coterie.kube.agent.volumes.directories import sub_path
from root_kit import needs_root, require_root

exists = os.path.exists
LINKS = [link(n, os.readlink(f"/{n}")) for n in ("bin", "lib", "lib64", "sbin") if os.path.islink(f"/{n}")]


@pytest.fixture
def fenced(runp: RunpHarness) -> RunpHarness:
    if not runp.powers["namespaces"]:
        pytest.skip("neither root nor user namespaces on this machine")
    return runp


async def test_own_names_processes_and_files(fenced):
    text = await fenced.output(
        "hostname; cat /etc/hosts /etc/resolv.conf; echo pids $(ls /proc | grep -c '^[0-9]'); pwd; ls -A /tmp; ls /dev | tr '\\n' ' '"
    )
    lines = text.splitlines()
    assert lines[0] == "pod-uid-1" and lines[1:3] == ["10.9.8.7 friend", "nameserver 10.9.8.7"]
    assert int(lines[3].split()[1]) < 8
    assert lines[4] == "/pod" and lines[-1].split()[:2] == ["fd", "full"]
    assert os.uname().nodename != "pod-uid-1"


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("echo x > file && cat file", True),
        ("echo x > /tmp/file", True),
        ("echo x > /dev/shm/file", True),
        ("echo x > /dev/stdout", True),
        ("echo x > /dev/null", True),
        ("echo x > /etc/coterie-was-here", False),
        ("echo x > /usr/coterie-was-here", False),
        ("mkdir /coterie-was-here", False),
        ("mkdir /run/mine", True),
        ('test -n "$(ls -A /run | grep -v systemd)"', False),
        ("echo b > /proc/sysrq-trigger", False),
        ("echo 1 > /proc/sys/kernel/panic", False),
        ("mknod disk b 8 0", False),
        ("mount -t tmpfs none /tmp", False),
        ("umount /etc/hosts", False),
        ("unshare -U true", False),
        ("kill -9 1; sleep 0.1; true", True),
    ],
)
async def test_writing_and_system_calls(fenced, script, allowed):
    spec = await fenced.start(script)
    state = await fenced.ended()
    assert (state.exit_code == 0) == allowed, log_text(spec.log_path)
    assert not exists("/etc/coterie-was-here") and not exists("/usr/coterie-was-here")


async def test_the_agents_own_files_are_hidden(fenced):
    directory = fenced.settings.directory
    (directory / "key").write_text("secret")
    text = await fenced.output(f"ls -A {directory} 2>&1; cat {directory}/key 2>&1; true")
    assert "secret" not in text and "shepherd" not in text


async def test_hidden_below_a_visible_directory(fenced, tmp_path):
    """As above, where somebody made a directory above it visible."""
    shown = tmp_path / "shown"
    home = shown / "coterie"
    home.mkdir(parents=True)
    (home / "key").write_text("secret")
    (shown / "model").write_text("weights")
    async with RunpHarness.opened(tmp_path / "x", hidden=(home,)) as harness:
        harness.runtime.store.add_host("shown:1", ("sh",), visible=(str(shown),))
        text = await harness.output(f"cat {shown}/model; ls -A {home} 2>&1; cat {home}/key 2>&1; true", image="shown:1")
    assert "weights" in text and "secret" not in text


@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "landlock"])
async def test_hidden_by_a_link(fenced, tmp_path, without):
    """As above, where the agent itself knows the directory by a link. Landlock is what is left without namespaces."""
    home = tmp_path / "shown" / "coterie"
    home.mkdir(parents=True)
    (home / "key").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "shown")
    hidden = (tmp_path / "link" / "coterie",)
    async with RunpHarness.opened(tmp_path / "x", hidden=hidden, without=without) as harness:
        harness.runtime.store.add_host("shown:1", ("sh",), visible=(str(tmp_path / "shown"),))
        script = f"cat {home}/key {tmp_path}/link/coterie/key 2>&1; true"
        text = await harness.output(script, image="shown:1")
    assert "secret" not in text


async def test_a_volume_inside_of_what_is_hidden(fenced, tmp_path):
    """Engines find the domain's data where it lies, below the agent's root, and nothing else of it; whoever they run as."""
    shown = tmp_path / "shown"
    home = shown / "coterie"
    data = home / "var" / "data"
    data.mkdir(parents=True)
    user = Security(run_as_user=1000) if os.getuid() == 0 else Security()
    (home / "key").write_text("secret")
    (data / "table").write_text("rows")
    data.chmod(0o777)
    script = f"cat {data}/table; echo made > {data}/new; cat {home}/key {home}/var/../key 2>&1; true"
    async with RunpHarness.opened(tmp_path / "x", hidden=(home,)) as harness:
        harness.runtime.store.add_host("shown:1", ("sh",), visible=(str(shown),))
        for name, image in (("plain", harness.image), ("inside", "shown:1")):
            await harness.start(script, name, image=image, mounts=(Mount(data, str(data)),), security=user)
            await harness.ended(name)
            text = log_text(harness.state(name).log_path)
            assert "rows" in text and "secret" not in text
            assert (data / "new").read_text() == "made\n"
            (data / "new").unlink()


async def test_sockets_of_the_machine_are_out_of_reach(fenced):
    if fenced.powers["landlock"] < 6:
        pytest.skip("this Landlock does not know about sockets")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0coterie-abstract-test")
        server.listen()
        code = "import socket; socket.socket(socket.AF_UNIX).connect('\\0coterie-abstract-test')"
        await fenced.start("", image=PYTHON_IMAGE, command=(), args=("-c", code))
        assert (await fenced.ended()).exit_code == 1
        assert "PermissionError" in log_text(fenced.state().log_path)


async def test_volumes_at_places_that_do_not_exist(fenced, tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("from a file\n")
    mounts = (
        Mount(folder, "/home/kuscia/var/storage"),
        Mount(file, "/opt/deep/in/config.json", True),
        Mount(file, "/etc/hosts", True),
        Mount(folder, "/home/kuscia/ro", True),
    )
    text = await fenced.output(
        "echo kept > /home/kuscia/var/storage/out; cat /opt/deep/in/config.json /etc/hosts; "
        "echo x > /opt/deep/in/config.json || echo refused; touch /home/kuscia/ro/x || echo refused; ls /opt /home > /dev/null",
        mounts=mounts,
    )
    assert [line for line in text.splitlines() if "cannot" not in line] == [
        "from a file",
        "from a file",
        "refused",
        "refused",
    ]
    assert (folder / "out").read_text() == "kept\n"
    assert not exists("/home/kuscia") and not exists("/opt/deep")


async def test_a_missing_volume_is_told(fenced, tmp_path):
    with pytest.raises(RuntimeFailure) as problem:
        await fenced.start("true", mounts=(Mount(tmp_path / "missing", "/x"),))
    assert problem.value.reason == "CreateContainerError" and "missing does not exist" in problem.value.message
    await fenced.start("true")  # the same run may be tried again
    assert (await fenced.ended()).exit_code == 0


async def test_a_working_directory_of_the_machine_is_written_over_not_into(fenced):
    if not fenced.powers["overlay"]:
        pytest.skip("no overlay file system")
    text = await fenced.output(
        "echo mine > coterie-was-here; cat coterie-was-here; ls | grep -cx env", working_dir="/usr/bin"
    )
    assert text.split() == ["mine", "1"]
    assert not exists("/usr/bin/coterie-was-here")


async def test_a_working_directory_that_is_not_shown_is_an_empty_one(fenced, tmp_path):
    (tmp_path / "theirs").write_text("secret")
    assert await fenced.output("ls -A; echo mine > file; cat file", working_dir=str(tmp_path)) == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name == "file") == []


async def test_user_groups_and_privileges(runp):
    if not users.is_root():
        pytest.skip("needs root: becomes another user")
    security = Security(run_as_user=12345, run_as_group=23456, supplemental_groups=(34567,))
    text = await runp.output(
        "id -u; id -g; id -G; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; echo x > file; echo y > /dev/stderr",
        security=security,
    )
    assert text.split()[:4] == ["12345", "23456", "23456", "34567"]
    assert "CapEff:\t0000000000000000" in text and "NoNewPrivs:\t1" in text and "Seccomp:\t2" in text and "y" in text


async def test_privileged_and_unconfined(runp):
    require_root("gives privileges to a container")
    text = await runp.output(
        "grep -E 'Seccomp:|CapEff' /proc/self/status; mount -t tmpfs none /home && echo mounted",
        security=Security(privileged=True),
    )
    assert "Seccomp:\t0" in text and "mounted" in text
    text = await runp.output("grep -E 'Seccomp:' /proc/self/status", security=Security(seccomp_unconfined=True))
    assert "Seccomp:\t0" in text


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (("no-such-program",), 127, 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such/program",), 127, "no such file or directory"),
        (("/etc/passwd",), 126, "permission denied"),
    ],
)
async def test_what_cannot_be_executed(runp, command, code, told):
    await runp.start("", command=command)
    state = await runp.ended()
    assert (state.exit_code, state.reason) == (code, "ContainerCannotRun") and told in state.message


async def test_the_python_image_is_this_interpreter(runp):
    spec = await runp.start(
        "", image=PYTHON_IMAGE, command=(), args=("-c", "import sys, os; print(sys.version_info[:2], os.getcwd())")
    )
    assert (await runp.ended()).exit_code == 0
    assert log_text(spec.log_path).startswith(f"({os.sys.version_info[0]}, {os.sys.version_info[1]})")


async def test_env_is_the_containers_own(runp, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    text = await runp.output("env", env=(("A", "b=c d"), ("HOME", "/somewhere")))
    assert "A=b=c d" in text and "HOME=/somewhere" in text and "SECRET_OF_THE_AGENT" not in text


class TestRootfs:
    @pytest.fixture
    def rooted(self, fenced, tmp_path):
        """A root file system whose /usr is the machine's, by a volume; a link in it tries to lead out."""
        root = tmp_path / "rootfs"
        for name in ("usr", "etc", "var", "work"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path(f"/{name}").is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
        (root / "etc/passwd").write_text("app:x:1234:1235::/:/bin/sh\n")
        (root / "var/run").symlink_to("/etc/made-inside")
        fenced.runtime.store.add_rootfs(
            "tree:1", root, command=("/bin/sh", "-c"), args=("echo default",), workdir="/work"
        )
        fenced.image = "tree:1"
        self.usr = (Mount(Path("/usr"), "/usr", True),)
        return fenced

    async def test_it_has_only_its_own_files(self, rooted, tmp_path):
        text = await rooted.output(
            "ls / | tr '\\n' ' '; pwd; echo x > /etc/new; cat /etc/hosts; ls /proc/1 > /dev/null && echo proc",
            mounts=self.usr,
        )
        assert "opt" not in text.split("/work")[0].split() and "/work" in text
        assert "10.9.8.7 friend" in text and "proc" in text
        assert not (tmp_path / "rootfs/etc/new").exists()

    async def test_the_images_command_is_used(self, rooted):
        spec = await rooted.start("", command=(), mounts=self.usr)
        assert (await rooted.ended()).exit_code == 0
        assert log_text(spec.log_path) == "default\n"

    async def test_links_in_an_image_do_not_lead_out(self, rooted, tmp_path):
        (tmp_path / "vol").mkdir()
        await rooted.output(
            "echo in > /var/run/lock/x || true", mounts=(*self.usr, Mount(tmp_path / "vol", "/var/run/lock"))
        )
        assert not exists("/etc/made-inside")

    async def test_read_only_root(self, rooted):
        text = await rooted.output(
            "echo x > /etc/new || echo refused", mounts=self.usr, security=Security(read_only_root=True)
        )
        assert "refused" in text

    async def test_the_images_user(self, rooted):
        store = rooted.runtime.store
        store.save(replace(store.resolve("tree:1"), user="app"))
        assert (await rooted.output("id -u; id -g", mounts=self.usr)).split() == ["1234", "1235"]

    async def test_each_run_starts_afresh(self, rooted):
        await rooted.start("echo x > /etc/mark", mounts=self.usr)
        await rooted.ended()
        spec = await rooted.start("test -e /etc/mark && echo kept || echo fresh", attempt=1, mounts=self.usr)
        await rooted.until(lambda: rooted.state().attempt == 1 and not rooted.state().running)
        assert log_text(spec.log_path) == "fresh\n"

    async def test_without_overlay_the_layers_are_copied(self, rooted):
        rooted.powers["overlay"] = False
        assert "copy" in await rooted.output("echo copy > /etc/new; cat /etc/new", mounts=self.usr)

    @pytest.mark.parametrize("shared", [False, True])
    async def test_a_loaded_image_runs_with_its_layers_merged(self, rooted, tmp_path, shared):
        if shared:
            rooted.runtime.store.share(tmp_path / "shared")
        base = tar(
            [
                *LINKS,
                folder("usr"),
                folder("etc"),
                entry("etc/a", b"old"),
                entry("etc/gone", b"x"),
                folder("d"),
                entry("d/x"),
            ]
        )
        top = tar([entry("etc/a", b"new"), entry("etc/.wh.gone"), folder("d"), entry("d/.wh..wh..opq"), entry("d/y")])
        archive.load(rooted.runtime.store, io.BytesIO(oci([base, top], "app:1", Env=["X=from image"])))
        text = await rooted.output(
            "cat /etc/a; echo; ls /etc/gone || echo gone; ls /d; echo $X", image="app:1", mounts=self.usr
        )
        assert [line for line in text.splitlines() if "cannot" not in line] == ["new", "gone", "y", "from image"]
        await rooted.start("sleep 600", "user", image="app:1", mounts=self.usr)
        layer = rooted.runtime.store.layer(rooted.runtime.store.resolve("app:1").layers[0])
        rooted.runtime.store.remove("app:1")
        assert layer.exists()
        await rooted.runtime.stop_pod("uid-1", 0)
        rooted.runtime.store.collect()
        assert not layer.exists()


@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "landlock"])
@needs_root("makes a device")
async def test_an_accelerator_is_for_those_who_were_given_it(fenced, tmp_path, without):
    """A node that behaves like /dev/null, with the name of a GPU's. Landlock is what is left without namespaces."""
    device = f"/dev/nvidia-test-{os.getpid()}"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(device, 0o666)
    try:
        async with RunpHarness.opened(tmp_path / "x", without=without) as harness:
            if not harness.powers["landlock"]:
                pytest.skip("needs Landlock")
            script = (
                f"[ -c {device} ] && (echo x > {device}) 2>/dev/null && echo used; echo y > /dev/null && echo plain"
            )
            assert (await harness.output(script)).split() == ["plain"]
            assert (await harness.output(script, devices=(device,))).split() == ["used", "plain"]
    finally:
        os.unlink(device)


async def test_a_subpath_that_becomes_a_link_after_it_was_checked(fenced, tmp_path: Path):
    """As a container beside it can do that has the same volume: the mount would show the machine's files to root."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    (tmp_path / "vol/data").mkdir(parents=True)
    (tmp_path / "vol/file").write_text("fine")
    mount, file = (Mount(sub_path(tmp_path / "vol", name), f"/{name}", resolved=True) for name in ("data", "file"))
    assert await fenced.output("ls /data; cat /file", mounts=(mount, file)) == "fine"
    (tmp_path / "vol/data").rename(tmp_path / "vol/old")
    (tmp_path / "vol/data").symlink_to(tmp_path / "secret")
    with pytest.raises(RuntimeFailure, match="has become a link"):
        await fenced.start("cat /data/key", "escapes", mounts=(mount,))
