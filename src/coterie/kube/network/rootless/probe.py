"""What the machine lets this user do with namespaces, found out by doing it once, and what to change where it refuses.

The acts matter: Ubuntu 24.04 lets anybody make a user namespace and takes its powers away.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import closing

from coterie.base.linux_namespaces import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, unshare
from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import Links
from coterie.kube.network.pods.namespaces import own_netns_fd
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NetlinkSocket

UNSHARE, MAPS, MOUNT, LOOPBACK, PORT, NFTABLES, VETH = STEPS = (
    "unshare", "maps", "mount", "loopback", "port", "nftables", "veth",
)  # fmt: skip
_WHAT = {
    UNSHARE: "create namespaces",
    MAPS: "map a user into a user namespace",
    MOUNT: "change mounts in a mount namespace",
    LOOPBACK: "configure the network of a network namespace",
    PORT: "listen on port 80 in a network namespace",
    NFTABLES: "create nftables rules in a network namespace",
    VETH: "create virtual network devices (veth)",
}
_SECONDS = 5.0
_MS_REC_PRIVATE = 0x4000 | 0x40000
_SYSCTLS = (
    "kernel.osrelease",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "user.max_user_namespaces",
    "user.max_net_namespaces",
)
_MODULE_MISSING = (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT, errno.ENOENT, errno.ENOTSUP)


class ProbeResult:
    """`step` is the first that failed, with its `errno`; both empty when everything works."""

    __slots__ = ("errno", "step")

    def __init__(self, step: str = "", code: int = 0) -> None:
        self.step = step
        self.errno = code

    @property
    def ok(self) -> bool:
        return not self.step

    def __repr__(self) -> str:
        return "ProbeResult(ok)" if self.ok else f"ProbeResult({self.step}: {os.strerror(self.errno)})"


def loopback_up() -> None:
    """In the network namespace of this process."""
    with closing(Links()) as links:
        links.loopback()


def _veth() -> None:
    own = own_netns_fd()
    try:
        with closing(Links()) as links:
            links.attach("p0", own, "169.254.0.1")
    finally:
        os.close(own)


def _nftables() -> None:
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        netlink.request(nftables.batch([nftables.add_table("probe")]), acknowledged=-2)


def _listen_on_80() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 80))


def map_root(uid: int, gid: int) -> None:
    """User 0 of the user namespace of this process is this user."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        handle = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)


def private_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def steps(uid: int, gid: int) -> tuple[tuple[str, Callable[[], None]], ...]:
    namespaces = CLONE_NEWNS | CLONE_NEWNET | (CLONE_NEWUSER if uid else 0)
    return (
        (UNSHARE, lambda: unshare(namespaces)),
        *(((MAPS, lambda: map_root(uid, gid)),) if uid else ()),
        (MOUNT, private_mounts),
        (LOOPBACK, loopback_up),
        (PORT, _listen_on_80),
        (NFTABLES, _nftables),
        (VETH, _veth),
    )


def run_steps(todo: tuple[tuple[str, Callable[[], None]], ...]) -> ProbeResult:
    """In a child, which takes all it made with it. Takes 2 to 5 ms."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        _child(write, todo)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], _SECONDS)
        answer = os.read(read, 64) if ready else b""
        if not ready:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    if not answer:
        return ProbeResult(todo[0][0], errno.ETIMEDOUT)
    step, _, code = answer.decode().partition(" ")
    return ProbeResult(step, int(code or "0"))


def _child(write: int, todo: tuple[tuple[str, Callable[[], None]], ...]) -> None:
    """Never returns: what is registered to run at exit is the parent's."""
    step = ""
    try:
        for step, act in todo:  # noqa: B007 - the last one is reported
            act()
        os.write(write, b" 0")
    except OSError as error:
        os.write(write, f"{step} {error.errno or errno.EIO}".encode())
    finally:
        os._exit(0)


def probe() -> ProbeResult:
    return run_steps(steps(os.getuid(), os.getgid()))


def read_sysctls() -> dict[str, str]:
    """What `remedy` looks at, as far as it is there; `container` says which kind of container this is."""
    out = {}
    for name in _SYSCTLS:
        try:
            with open(f"/proc/sys/{name.replace('.', '/')}") as file:
                out[name] = file.read().strip()
        except OSError:
            continue
    if os.path.exists("/.dockerenv"):
        out["container"] = "docker"
    elif os.path.exists("/run/.containerenv"):
        out["container"] = "podman"
    return out


def read_os_release() -> str:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            continue
    return ""


def remedy(step: str, code: int, os_release: str, sysctls: Mapping[str, str]) -> str:
    """Why that step was refused and what to do: a sentence, and the command in a second line where there is one."""
    if not step:
        return ""
    release = sysctls.get("kernel.osrelease", "")
    if "Microsoft" in release and "WSL2" not in release:
        return _with_command(
            "WSL 1 has no Linux kernel and no namespaces; convert it to WSL 2", "wsl --set-version DISTRIBUTION 2"
        )
    if step == NFTABLES and code in _MODULE_MISSING:
        modules = "nf_tables nft_chain_nat nft_ct nft_redir nft_reject_inet"
        return _module("nftables", modules)
    if step == VETH and code in _MODULE_MISSING:
        return _module("virtual network devices", "veth")
    system = _name(os_release)
    return _setting(step, code, system, sysctls) or _sandbox(step, code, system, sysctls)


def _setting(step: str, code: int, system: str, sysctls: Mapping[str, str]) -> str:
    """A setting of the machine, when it is one."""
    if sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return _sysctl(f"{system} forbids user namespaces to ordinary users", "kernel.unprivileged_userns_clone", "1")
    for name in ("user.max_user_namespaces", "user.max_net_namespaces"):
        if sysctls.get(name) == "0" or (
            code == errno.ENOSPC and step == UNSHARE and name == "user.max_user_namespaces"
        ):
            return _sysctl(f"{system} allows too few namespaces ({name})", name, "28633")
    restricted = sysctls.get("kernel.apparmor_restrict_unprivileged_userns", "0") != "0"
    if restricted and "container" not in sysctls and code in (errno.EPERM, errno.EACCES):
        return _sysctl(
            f"{system} takes the powers of user namespaces away from ordinary users (AppArmor); give the interpreter that "
            "runs Coterie an AppArmor profile with `userns,`, or allow them to all programs",
            "kernel.apparmor_restrict_unprivileged_userns",
            "0",
        )
    return ""


def _sandbox(step: str, code: int, system: str, sysctls: Mapping[str, str]) -> str:
    if step == UNSHARE and code in (errno.EINVAL, errno.ENOSYS):
        return (
            f"The kernel of {system} is built without namespaces (CONFIG_USER_NS, CONFIG_NET_NS); use another kernel."
        )
    if container := sysctls.get("container"):
        return _with_command(
            f"The container in which Coterie runs may not {_WHAT[step]} ({os.strerror(code)}); start it with",
            f"{container} run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined ...",
        )
    if step == UNSHARE and code == errno.EPERM:
        return (
            f"{system} does not let this user {_WHAT[step]} ({os.strerror(code)}): a sandbox (seccomp, a container, "
            "a chroot) forbids it. Run Coterie outside of it, or as root."
        )
    return f"{system} does not let this user {_WHAT[step]} ({os.strerror(code)})."


def _with_command(sentence: str, command: str) -> str:
    return f"{sentence}:\n  {command}"


def _sysctl(sentence: str, name: str, value: str) -> str:
    return _with_command(
        sentence, f"echo {name}={value} | sudo tee /etc/sysctl.d/60-coterie.conf && sudo sysctl --system"
    )


def _module(what: str, names: str) -> str:
    return _with_command(f"The kernel has not loaded its modules for {what}", f"sudo modprobe -a {names}")


def _name(os_release: str) -> str:
    """As the system calls itself."""
    for line in os_release.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or "This machine"
    return "This machine"


def remedy_here(step: str, code: int) -> str:
    """`remedy` for this machine, in one line. `step` is one of `STEPS`, or as the pod supervisor names it."""
    return remedy(step if step in STEPS else UNSHARE, code, read_os_release(), read_sysctls()).replace(":\n ", ":")
