"""Run a program inside the namespaces of another process.

    python -m coterie.kube.network.rootless.enter --target PID [--mount] [--resolver ADDRESS] [--keep-fds] -- program args...

Joins the user (when it is another one), mount and network namespace of the process PID; root joins the network only, unless
`--mount` is given. With `--resolver`, /etc/resolv.conf is a file that names this address, for the program and its children
only. Then this process becomes the program: same pid, environment and working directory; descriptors above 2 are closed
unless `--keep-fds` is given; signals have their default action. What goes wrong is one line on standard error, and exit code
125.

The file imports nothing of ours: `command` runs it by its path in an isolated interpreter, which starts fastest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

FAILED = 125
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MNT_DETACH = 2
_RESOLVER_FILE = "/etc/resolv.conf"
_SCRATCH = ("/tmp", "/run", "/var/tmp", "/mnt")
_FIRST_DESCRIPTOR = 3


class EnterError(Exception):
    """What went wrong, as one sentence."""


class Arguments:
    __slots__ = ("keep_fds", "mount", "program", "resolver", "target")

    def __init__(self) -> None:
        self.target = 0
        self.mount = self.keep_fds = False
        self.resolver = ""
        self.program: list[str] = []


def command(
    pid: int, *, resolver: str = "", mount: bool = False, keep_fds: bool = True, python: str = sys.executable
) -> tuple[str, ...]:
    """What to put before a program's argv so that it runs in the namespaces of the process `pid`."""
    options = [
        *(("--mount",) if mount else ()),
        *(("--resolver", resolver) if resolver else ()),
        *(("--keep-fds",) if keep_fds else ()),
    ]
    return (python, "-I", "-S", os.path.abspath(__file__), "--target", str(pid), *options, "--")


def parse(words: list[str]) -> Arguments:
    out = Arguments()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            out.program = rest
            break
        if word == "--mount":
            out.mount = True
        elif word == "--keep-fds":
            out.keep_fds = True
        elif word in ("--target", "--resolver") and rest:
            value = rest.pop(0)
            if word == "--resolver":
                out.resolver = value
            elif value.isdigit():
                out.target = int(value)
        else:
            raise EnterError(f'"{word}" is not understood')
    if out.target <= 0 or not out.program:
        raise EnterError("usage: enter --target PID [--mount] [--resolver ADDRESS] [--keep-fds] -- program args...")
    return out


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise EnterError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def join(target: int, *, mount: bool) -> None:
    """Join the namespaces of a process; all of them are opened before the first is joined."""
    kinds = [("user", CLONE_NEWUSER), ("net", CLONE_NEWNET), *((("mnt", CLONE_NEWNS),) if mount else ())]
    handles = []
    try:
        for name, flag in kinds:
            handle = os.open(f"/proc/{target}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            handles.append((name, flag, handle))
        libc = ctypes.CDLL(None, use_errno=True)
        for name, flag, handle in handles:
            if os.path.samestat(os.fstat(handle), os.stat(f"/proc/self/ns/{name}")):
                continue  # Joining one's own user namespace is an error.
            noun = {"user": "user", "net": "network", "mnt": "mount"}[name]
            _checked(libc.setns(handle, flag), f"join the {noun} namespace of process {target}")
    except FileNotFoundError:
        raise EnterError(f"there is no process {target}") from None
    except OSError as error:
        raise EnterError(f"cannot open the namespaces of process {target}: {error.strerror}") from None
    finally:
        for _, _, handle in handles:
            os.close(handle)


def replace_resolver(address: str) -> None:
    """In a mount namespace of our own, /etc/resolv.conf names this address. The file's tmpfs has no other name."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.path.realpath(_RESOLVER_FILE)
    if not os.path.isfile(place):
        raise EnterError(f"cannot set the resolver: there is no file {place}")
    scratch = next((each for each in _SCRATCH if os.path.isdir(each) and not place.startswith(f"{each}/")), "/")
    _checked(libc.unshare(CLONE_NEWNS), "make a mount namespace")
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
    where, file = os.fsencode(scratch), f"{scratch}/resolv.conf"
    _checked(libc.mount(b"coterie", where, b"tmpfs", _MS_NOSUID_NODEV, b"size=64k,mode=755"), "mount a tmpfs")
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644), "w") as out:
        os.fchmod(out.fileno(), 0o644)
        out.write(f"nameserver {address}\noptions ndots:1\n")
    _checked(libc.mount(os.fsencode(file), os.fsencode(place), None, _MS_BIND, None), f"replace the file {place}")
    _checked(libc.umount2(where, _MNT_DETACH), "unmount a tmpfs")


def reset_signals() -> None:
    """Python ignores some, and what is ignored stays so in the program."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def run(words: list[str]) -> None:
    """Returns only by an error."""
    arguments = parse(words)
    try:
        directory = os.getcwd()
    except OSError:
        directory = "/"
    join(arguments.target, mount=arguments.mount or os.getuid() != 0)
    if arguments.resolver:
        replace_resolver(arguments.resolver)
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")
    if not arguments.keep_fds:
        os.closerange(_FIRST_DESCRIPTOR, os.sysconf("SC_OPEN_MAX"))
    reset_signals()
    try:
        os.execvp(arguments.program[0], arguments.program)
    except OSError as error:
        raise EnterError(f"cannot run {arguments.program[0]}: {error.strerror}") from None


def main(words: list[str]) -> int:
    try:
        run(words)
    except EnterError as error:
        os.write(2, f"enter: {error}\n".encode("utf-8", "surrogateescape"))
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
