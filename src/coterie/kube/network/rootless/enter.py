"""Run a program inside the namespaces of another process.

    python -m coterie.kube.network.rootless.enter --target PID [--mount] [--resolver ADDRESS] [--keep-fds] -- program args...
    python -m coterie.kube.network.rootless.enter --facts FILE ...

Joins the user (when it is another one), mount and network namespace of the process PID; root joins the network only, unless
`--mount` is given. With `--facts`, the process is the one that the pod supervisor's description of the network names as its
holder: it is read when the program starts, and again for a few seconds when that process has just been replaced. With `--resolver`, /etc/resolv.conf is a file that names this address, for the program and its children
only. Then this process becomes the program: same pid, environment and working directory; descriptors above 2 are closed
unless `--keep-fds` is given; signals have their default action. What goes wrong is one line on standard error, and exit code
125.

The file imports nothing of ours: `command` runs it by its path in an isolated interpreter, which starts fastest.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

FAILED = 125
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MNT_DETACH = 2
_RESOLVER_FILE = "/etc/resolv.conf"
_SCRATCH = ("/tmp", "/run", "/var/tmp", "/mnt")
_FIRST_DESCRIPTOR = 3
_HOLDER_SECONDS = 5.0
_HOLDER_POLL_SECONDS = 0.05


class EnterError(Exception):
    """What went wrong, as one sentence."""


class HolderGone(EnterError):
    """The process that should hold the namespaces is not there; another one may be soon."""


class Arguments:
    __slots__ = ("facts", "keep_fds", "mount", "program", "resolver", "target")

    def __init__(self) -> None:
        self.target = 0
        self.mount = self.keep_fds = False
        self.facts = self.resolver = ""
        self.program: list[str] = []


def command(
    target: int | str,
    *,
    resolver: str = "",
    mount: bool = False,
    keep_fds: bool = True,
    python: str = sys.executable,
) -> tuple[str, ...]:
    """What to put before a program's argv so that it runs in the namespaces of a process, or of the one that a file of the
    pod supervisor names."""
    options = [
        *(("--target", str(target)) if isinstance(target, int) else ("--facts", target)),
        *(("--mount",) if mount else ()),
        *(("--resolver", resolver) if resolver else ()),
        *(("--keep-fds",) if keep_fds else ()),
    ]
    return (python, "-I", "-S", os.path.abspath(__file__), *options, "--")


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
        elif word in ("--target", "--facts", "--resolver") and rest:
            value = rest.pop(0)
            if word == "--resolver":
                out.resolver = value
            elif word == "--facts":
                out.facts = value
            elif value.isdigit():
                out.target = int(value)
        else:
            raise EnterError(f'"{word}" is not understood')
    if (out.target > 0) == bool(out.facts) or not out.program:
        raise EnterError(
            "usage: enter --target PID | --facts FILE [--mount] [--resolver ADDRESS] [--keep-fds] -- program args..."
        )
    return out


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise EnterError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def holder(facts: str) -> tuple[int, int]:
    """The process that holds the namespaces, and the inode of the network namespace, which tells it from another process
    with the same number."""
    try:
        with open(facts) as file:
            found = json.load(file)
        return int(found["holder"]), int(found["inode"])
    except FileNotFoundError:
        raise HolderGone(f"there is no file {facts}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HolderGone(f"{facts} does not describe a pod network: {error}") from None


def join_holder(facts: str, *, mount: bool) -> None:
    """The supervisor starts another holder when one is killed, and writes the file again: some milliseconds later."""
    deadline = time.monotonic() + _HOLDER_SECONDS
    while True:
        try:
            target, inode = holder(facts)
            join(target, mount=mount, inode=inode)
            return
        except HolderGone:
            if time.monotonic() > deadline:
                raise
        time.sleep(_HOLDER_POLL_SECONDS)


def join(target: int, *, mount: bool, inode: int = 0) -> None:
    """Join the namespaces of a process; all of them are opened before the first is joined. HolderGone: none was joined."""
    kinds = [("user", CLONE_NEWUSER), ("net", CLONE_NEWNET), *((("mnt", CLONE_NEWNS),) if mount else ())]
    handles = []
    try:
        for name, flag in kinds:
            handle = os.open(f"/proc/{target}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            handles.append((name, flag, handle))
            if name == "net" and inode and os.fstat(handle).st_ino != inode:
                raise HolderGone(f"process {target} is not in the network namespace {inode}")
        libc = ctypes.CDLL(None, use_errno=True)
        for name, flag, handle in handles:
            if os.path.samestat(os.fstat(handle), os.stat(f"/proc/self/ns/{name}")):
                continue  # Joining one's own user namespace is an error.
            noun = {"user": "user", "net": "network", "mnt": "mount"}[name]
            _checked(libc.setns(handle, flag), f"join the {noun} namespace of process {target}")
    except FileNotFoundError:
        raise HolderGone(f"there is no process {target}") from None
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
    mount = arguments.mount or os.getuid() != 0
    if arguments.facts:
        join_holder(arguments.facts, mount=mount)
    else:
        join(arguments.target, mount=mount)
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
