"""The root of a host environment: what it needs is there, and nothing else of the machine."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.runtimes.protocol import Mount, Security

exists = os.path.exists


@pytest.fixture
def fenced(runp: RunpHarness) -> RunpHarness:
    if not runp.powers["namespaces"]:
        pytest.skip("neither root nor user namespaces on this machine")
    return runp


async def test_what_is_there(fenced: RunpHarness) -> None:
    text = await fenced.output(
        "ls -A /; echo; ls -A /home /var /run /tmp /var/tmp ~; echo $HOME; ls -A /sys/devices/system"
    )
    top, rest = text.split("\n\n", 1)
    links = {name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if exists(f"/{name}")}
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[4]))
    shown = {path.split("/")[1] for path in places}
    assert set(top.split()) - shown <= links | {"usr", "etc", "proc", "dev", "sys", "tmp", "run", "var", "home", "pod"}
    homes = rest.removeprefix("/home:\n").partition("\n\n")[0].split("\n")
    assert set(homes) - {path.split("/")[2] for path in places if path.startswith("/home/")} == {"app"}
    assert rest.endswith("/home/app\ncpu\n") and "/run:\n\n" in rest and "/var:\ntmp\n" in rest


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/machine-id", "/etc/ssh", "/etc/ssl/private", "/root/.bashrc", "/var/lib", "/var/log", "/opt",
     "/mnt", "/srv", "/boot", "/home/{user}/.profile", "/sys/class", "/sys/kernel", "/dev/vda", "/dev/kmsg", "/dev/fuse",
     "/dev/net/tun", "/proc/1/root/etc/shadow", "/proc/self/root/var/lib", "{root}/pods/other", "{link}/key"],
)  # fmt: skip
async def test_what_is_not(fenced: RunpHarness, tmp_path: Path, path: str) -> None:
    (fenced.settings.directory / "key").write_text("secret")
    (tmp_path / "pods" / "other").mkdir(parents=True)
    (tmp_path / "link").symlink_to(fenced.settings.directory)
    name = path.format(user=os.environ.get("USER", "nobody"), root=tmp_path, link=tmp_path / "link")
    for security in (Security(), Security(run_as_user=1000)):
        text = await fenced.output(f"cd /; cat {name} 2>&1 || ls {name} 2>&1 || true", security=security)
        assert "No such file" in text or (path.startswith("/proc/1/") and "Permission denied" in text), text


async def test_no_process_leads_to_the_machine(fenced: RunpHarness) -> None:
    script = "for p in /proc/[0-9]*; do for l in root cwd exe; do ls -l $p/$l; done; ls $p/root/; done 2>&1"
    text = await fenced.output(f"{script}; cat /proc/1/environ /proc/1/maps /proc/1/mem 2>&1; true")
    assert "srv" not in text and "opt" not in text.split()


async def test_no_handle_of_the_supervisor_is_left(fenced: RunpHarness) -> None:
    text = await fenced.output("ls /proc/self/fd | tr '\\n' ' '")
    assert text.split() in (["0", "1", "2", "3"], ["0", "1", "2"]), "3 is that of ls itself"


async def test_names_and_certificates(fenced: RunpHarness) -> None:
    script = (
        "getent passwd | cut -d: -f1,3,6; getent group root; getent services https; ls /etc/ssl/certs | wc -l; date +%Z"
    )
    text = await fenced.output(script, security=Security(run_as_user=4321))
    lines = text.splitlines()
    assert lines[:3] == ["root:0:/home/app", "nobody:65534:/", "app:4321:/home/app"] and lines[3] == "root:x:0:"
    if exists("/etc/services"):
        assert lines[4].split()[:2] == ["https", "443/tcp"]
    if exists("/etc/ssl/certs"):
        assert int(lines[-2]) == len(os.listdir("/etc/ssl/certs"))


async def test_only_given_devices_are_there(fenced: RunpHarness) -> None:
    expected = {
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    assert set((await fenced.output("ls /dev")).split()) == expected
    given = next((path for path in ("/dev/fuse", "/dev/kvm", "/dev/rtc0") if exists(path)), "")
    if given:
        name = given.removeprefix("/dev/")
        assert set((await fenced.output("ls /dev", devices=(given,))).split()) == expected | {name}


@pytest.mark.parametrize("user", [None, 1000])
async def test_an_environment_below_a_private_directory(fenced: RunpHarness, tmp_path: Path, user: int | None) -> None:
    """A virtual environment and its interpreter in a home directory that nobody else may enter."""
    home = tmp_path / "private"
    home.mkdir()
    (home / "key").write_text("secret")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    home.chmod(0o700)
    program = home / "venv" / "bin" / "python"
    fenced.runtime.store.add_host("engine:1", (str(program),))
    code = f"import sys, os, ssl, json; print(sys.prefix); print(os.listdir({str(home)!r}))"
    spec = await fenced.start("", image="engine:1", command=(), args=("-c", code), security=Security(run_as_user=user))
    state = await fenced.ended()
    text = log_text(spec.log_path)
    assert state.exit_code == 0, text
    assert text.splitlines() == [f"{home}/venv", "['venv']"]


async def test_the_engines_that_come_with_us(fenced: RunpHarness) -> None:
    code = "import coterie.engines, msgspec; print(coterie.engines.__name__)"
    spec = await fenced.start("", image=PYTHON_IMAGE, command=(), args=("-c", code))
    assert (await fenced.ended()).exit_code == 0, log_text(spec.log_path)


async def test_visible_paths_are_read_only(fenced: RunpHarness, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "weights").write_text("numbers")
    fenced.runtime.store.add_host("engine:1", ("sh",), visible=(str(models),))
    text = await fenced.output(
        f"cat {models}/weights; echo x > {models}/weights || rm {models}/weights || echo refused", image="engine:1"
    )
    assert "numbers" in text and "refused" in text
    assert (models / "weights").read_text() == "numbers"


async def test_a_volume_inside_of_a_directory_of_the_machine(fenced: RunpHarness, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    text = await fenced.output(
        "echo x > /usr/share/coterie-test/file; ls -d /usr/share/coterie-test /usr/bin/env",
        mounts=(Mount(tmp_path / "volume", "/usr/share/coterie-test"),),
    )
    assert (tmp_path / "volume" / "file").read_text() == "x\n" and len(text.split()) == 2
    assert not exists("/usr/share/coterie-test")


async def test_a_working_directory_above_the_environment(fenced: RunpHarness, tmp_path: Path) -> None:
    (tmp_path / "deep" / "tool").mkdir(parents=True)
    (tmp_path / "deep" / "tool" / "engine").write_text("#!/bin/sh\npwd; ls -A; echo x > file\n")
    (tmp_path / "deep" / "tool" / "engine").chmod(0o755)
    fenced.runtime.store.add_host("engine:1", (str(tmp_path / "deep" / "tool" / "engine"),))
    text = await fenced.output("", image="engine:1", command=(), working_dir=str(tmp_path))
    assert text.split() == [str(tmp_path), "deep"]
    assert not (tmp_path / "file").exists()


async def test_home_can_be_written(fenced: RunpHarness) -> None:
    for user in (None, 1000):
        text = await fenced.output(
            "mkdir -p ~/.cache && echo x > ~/.cache/f && echo x > /var/tmp/f && echo x > /run/f && pwd && echo y > f",
            security=Security(run_as_user=user),
        )
        assert text == "/pod\n"


async def test_nothing_of_a_run_is_left_mounted(fenced: RunpHarness, tmp_path: Path) -> None:
    await fenced.start("sleep 600", mounts=(Mount(tmp_path, "/v"),))
    mounts = Path("/proc/self/mounts").read_text()  # noqa: ASYNC240
    assert str(tmp_path) not in mounts
    await fenced.runtime.stop_pod("uid-1", 0)
    await fenced.runtime.remove_pod("uid-1")
    assert not (tmp_path / "pods" / "uid-1").exists()
    shutil.rmtree(tmp_path / "images", ignore_errors=True)
