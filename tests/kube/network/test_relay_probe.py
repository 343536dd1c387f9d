"""What the machine allows, and the sentence for each machine that does not; systems that are no Linux."""

from __future__ import annotations

import errno
import io
import os
import socket

import pytest
from ordinary_user import Child

from coterie.cli.app import App
from coterie.cli.main import main
from coterie.kube.network.rootless.platforms import platform_problem
from coterie.kube.network.rootless.probe import (
    LOOPBACK,
    MAPS,
    MOUNT,
    NFTABLES,
    STEPS,
    UNSHARE,
    VETH,
    ProbeResult,
    probe,
    read_os_release,
    read_sysctls,
    remedy,
    run_steps,
)

DEBIAN = 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\n'
RHEL = 'PRETTY_NAME="Red Hat Enterprise Linux 9.4 (Plow)"\nID="rhel"\n'


def test_an_ordinary_user_gets_an_answer() -> None:
    """Which one depends on the machine; whatever was refused has a remedy."""

    def work(to_test: socket.socket) -> None:
        result = probe()
        to_test.send(f"{result.step} {result.errno}".encode())

    child = Child(work)
    step, _, code = child.socket.recv(100).decode().partition(" ")
    child.socket.close()
    assert child.exit_code() == 0
    assert step in ("", *STEPS)
    assert bool(step) == bool(remedy(step, int(code), read_os_release(), read_sysctls()))


def test_the_probe_changes_nothing_here() -> None:
    before = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "net")]
    descriptors = len(os.listdir("/proc/self/fd"))
    probe()
    assert before == [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "net")]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_first_step_that_fails_is_reported() -> None:
    def fails() -> None:
        raise OSError(errno.ENOSPC, "full")

    result = run_steps((("unshare", lambda: None), ("maps", fails), ("mount", fails)))
    assert (result.step, result.errno, result.ok) == ("maps", errno.ENOSPC, False)
    assert run_steps((("unshare", lambda: None),)).ok
    assert "No space" in repr(result) and repr(ProbeResult()) == "ProbeResult(ok)"


def test_a_step_that_kills_the_child_counts_as_failed() -> None:
    assert run_steps((("unshare", lambda: os._exit(9)),)).step == "unshare"


@pytest.mark.parametrize(
    ("step", "code", "system", "sysctls", "expected"),
    [
        (UNSHARE, errno.EPERM, DEBIAN, {"kernel.unprivileged_userns_clone": "0"}, ("Debian GNU/Linux 12", "kernel.unprivileged_userns_clone=1", "sysctl --system")),
        (MAPS, errno.EACCES, UBUNTU, {"kernel.apparmor_restrict_unprivileged_userns": "1"}, ("Ubuntu 24.04.1", "AppArmor", "`userns,`", "kernel.apparmor_restrict_unprivileged_userns=0")),
        (LOOPBACK, errno.EPERM, UBUNTU, {"kernel.apparmor_restrict_unprivileged_userns": "1"}, ("AppArmor",)),
        (UNSHARE, errno.ENOSPC, RHEL, {"user.max_user_namespaces": "0"}, ("Red Hat", "user.max_user_namespaces=28633")),
        (UNSHARE, errno.ENOSPC, RHEL, {"user.max_user_namespaces": "100"}, ("user.max_user_namespaces=28633",)),
        (UNSHARE, errno.ENOSPC, RHEL, {"user.max_net_namespaces": "0", "user.max_user_namespaces": "9"}, ("user.max_",)),
        (UNSHARE, errno.EPERM, DEBIAN, {"container": "docker"}, ("container", "docker run --security-opt seccomp=unconfined")),
        (UNSHARE, errno.EPERM, DEBIAN, {"container": "docker", "user.max_user_namespaces": "0"}, ("user.max_user_namespaces=",)),
        (MOUNT, errno.EACCES, UBUNTU, {"container": "podman", "kernel.apparmor_restrict_unprivileged_userns": "1"}, ("podman run",)),
        (NFTABLES, errno.EPROTONOSUPPORT, DEBIAN, {}, ("sudo modprobe -a nf_tables",)),
        (VETH, errno.EOPNOTSUPP, DEBIAN, {}, ("sudo modprobe -a veth",)),
        (UNSHARE, errno.EINVAL, DEBIAN, {}, ("CONFIG_USER_NS",)),
        (UNSHARE, errno.EPERM, DEBIAN, {}, ("seccomp", "as root")),
        (UNSHARE, errno.EINVAL, UBUNTU, {"kernel.osrelease": "4.4.0-19041-Microsoft"}, ("WSL 1", "wsl --set-version")),
        (VETH, errno.EPERM, "", {"kernel.osrelease": "5.15.90.1-microsoft-standard-WSL2"}, ("This machine", "veth", "Operation not permitted")),
    ],
)  # fmt: skip
def test_each_machine_has_its_remedy(
    step: str, code: int, system: str, sysctls: dict[str, str], expected: tuple[str, ...]
) -> None:
    text = remedy(step, code, system, sysctls)
    for each in expected:
        assert each in text
    assert text.count("\n") <= 1, "a sentence and a command"


def test_nothing_to_remedy() -> None:
    assert remedy("", 0, DEBIAN, {"container": "docker", "user.max_user_namespaces": "0"}) == ""


@pytest.mark.parametrize(
    ("platform", "command"), [("darwin", "limactl start"), ("win32", "wsl --install"), ("cygwin", "wsl --install")]
)
def test_other_systems_get_the_line_that_brings_a_linux(platform: str, command: str) -> None:
    assert command in platform_problem(platform)
    out, err = io.StringIO(), io.StringIO()
    assert main(["up"], App(out, err), platform) == 1
    assert command in err.getvalue() and not out.getvalue()


def test_linux_has_no_problem() -> None:
    assert platform_problem("linux") == ""
    assert "freebsd14" in platform_problem("freebsd14")
