"""The handler `bubblewrap`: a container as RunP makes it, with bubblewrap (`bwrap`) between it and its program.

    supervisor ──clone──> init ──fork──> bwrap, as the container's user, in the container's namespaces
                                           └─ user, pid, IPC, UTS and mount namespaces of bwrap's own ──> the program

The container's root is made as ever, in a directory of the mount namespace instead of as its root: bwrap and its libraries
are the machine's, and an image need not have them. bwrap gets no environment of the container's, since it would obey
LD_PRELOAD: that, and everything else it is to do, comes in a file. The system call filter is applied by bwrap, after its
own mounts. Landlock's rules for files would forbid these, so they are left out; mounts are read-only where the rules would
refuse writing.
"""

from __future__ import annotations

import os

from coterie.kube.agent.runtimes.runp import confine, filesystem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

NOBODY = 65534
OWN_PROCESSES = 2
"""Processes of bwrap's own in each container: one that waits, and process 1 of its pid namespace."""
_PROGRAM = 2
"""The number of the container's program in bwrap's pid namespace."""


def arguments(spec: dict[str, Any], root: str, masked: list[str], filter_handle: int) -> list[str]:
    """What bwrap is to do. `root`: where the container's root is; `masked`: files of /proc that say nothing."""
    user = spec["user"] or NOBODY
    group = spec["group"] or (spec["user_group"] if spec["user"] else 0) or NOBODY
    words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
    words += ["--uid", str(user), "--gid", str(group), "--hostname", spec["hostname"]]
    words += ["--dev-bind", root, "/", "--proc", "/proc"]
    for name in masked:
        words += ["--dev-bind", f"{root}/dev/null", f"/proc/{name}"]
    words += ["--chdir", spec["cwd"]]
    if filter_handle >= 0:
        words += ["--seccomp", str(filter_handle)]
    for name, value in spec["env"]:
        words += ["--setenv", name, value]
    return words


def confined(spec: dict[str, Any]) -> dict[str, Any]:
    """For `confine`: nothing that would forbid bwrap's mounts, and no capability but the one without which the kernel
    maps root of one user namespace to nobody of another. bwrap drops it."""
    own = {"capabilities": ["SETFCAP"], "escalation": False, "seccomp": False, "fence_files": False}
    return {**spec, **own}


def execute(
    spec: dict[str, Any], powers: dict[str, Any], root: str, filter_program: bytes, argv: list[str]
) -> NoReturn:
    """Become bwrap, which becomes the program. In the mount namespace of the container, with the machine's root."""
    filter_handle = _file("filter", filter_program) if spec["seccomp"] and filter_program else -1
    words = arguments(spec, root, filesystem.masked_proc(), filter_handle)
    handle = _file("arguments", b"".join(os.fsencode(word) + b"\0" for word in words))
    confine.confine(confined(spec), powers, b"")
    os.execve(spec["bwrap"], ["bwrap", "--args", str(handle), "--", *argv], {})


def _file(name: str, content: bytes) -> int:
    handle = os.memfd_create(name, 0)
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def program_of(pids: list[int], monitor: int) -> int:
    """The container's program among its processes; 0 while bwrap has not started it. `monitor`: the bwrap that waits."""
    depth = len(_numbers(monitor))
    for pid in pids:
        numbers = _numbers(pid)
        if depth and len(numbers) == depth + 1 and numbers[-1] == _PROGRAM:
            return pid
    return 0


def _numbers(pid: int) -> list[int]:
    """A process's numbers in the pid namespaces that it is in, ours first."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return [int(number) for number in line.split()[1:]]
    except OSError:
        return []
    return []
