"""What this machine lets us do, found out by doing it once, and in plain words what it does not."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from coterie.kube.agent.runtimes.runp import bubblewrap, child, filesystem, landlock, launch, linux, seccomp, users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups

_LONGEST_TRIAL = 10.0
_NO_NAMESPACES = "Containers share the machine's files, processes and host name, because namespaces are not available; volumes are reached by their place on the machine, and images with a file system of their own do not run."
_OWN_USER_ONLY = (
    "Containers run as the agent's own user whatever runAsUser says (inside they see the user they ask for), and "
    "supplemental groups are not given, because the agent is not root."
)
_MACHINES_USERS = (
    "Containers run as users of the machine, root among them, because user namespaces are not available to the agent."
)
_NO_MAPPING = (
    "Files of volumes outside of the pods' own directories belong to nobody inside of containers, because this machine's "
    "file system or kernel cannot map their owners (idmapped mounts)."
)
_NO_LANDLOCK = "Landlock is not used: only file permissions and read-only mounts keep containers from files."
_NO_SECCOMP = "No system calls are refused to containers: there is no list of them for this machine."
_NO_CGROUPS = (
    "CPU, memory and process limits are not enforced for a pod as a whole, because control groups cannot be made here: "
    "its memory limit holds for each process, and its limit of processes for each container, if it has a user namespace."
)


def probe(trial: str, groups: Cgroups | None, without: list[str]) -> dict[str, Any]:
    """The powers. `namespaces` is root, user or empty; `users` whether each pod of root has users of its own, `idmap`
    whether their files can be mapped. What is in `without` is not even tried; `trial` is a directory to try things in."""
    for name in ("lower", "upper", "work", "overlay", "tmp", "home"):
        os.makedirs(f"{trial}/{name}", exist_ok=True)
    root = users.is_root()
    powers = {"namespaces": "", "users": False, "idmap": False, "overlay": False}
    modes = [("root", True), ("root", False)] if root else [("user", False)]
    for mode, own_users in modes:
        powers |= {"namespaces": mode, "users": own_users}
        if "namespaces" not in without and not (own_users and "users" in without) and _works(powers, trial):
            break
    else:
        powers |= {"namespaces": "", "users": False}
    namespaces = powers["namespaces"]
    limitations = []
    if namespaces:
        powers["idmap"] = powers["users"] and "idmap" not in without and _can_map(trial)
        if powers["users"] and not powers["idmap"]:
            # Layers would belong to nobody: images are copied, and the copies change their owners.
            limitations.append(_NO_MAPPING)
        else:
            powers["overlay"] = _works(powers, trial, overlay=True)
        if root and not powers["users"]:
            limitations.append(_MACHINES_USERS)
    else:
        limitations.append(_NO_NAMESPACES)
    if not root:
        limitations.append(_OWN_USER_ONLY)
    version = 0 if "landlock" in without else landlock.abi()
    filtering = seccomp.supported() and "seccomp" not in without
    if not version:
        limitations.append(_NO_LANDLOCK)
    if not filtering:
        limitations.append(_NO_SECCOMP)
    if groups is None:
        limitations.append(_NO_CGROUPS)
    elif groups.missing:
        limitations.append(
            f"Limits of {', '.join(groups.missing)} are not enforced: no such control group controller here."
        )
    return {
        **powers,
        "landlock": version,
        "seccomp": filtering,
        "cgroup": groups.version if groups is not None else 0,
        "cgroup_pids": groups is not None and "pids" not in groups.missing,
        "cgroup_memory": groups is not None and "memory" not in groups.missing,
        "limitations": limitations,
    }


def _works(powers: dict[str, Any], trial: str, *, overlay: bool = False) -> bool:
    """Make a container's root once, as `Launch` does."""
    spec = _spec(trial, overlay, powers)
    return _status_of(spec, powers, lambda sources: filesystem.enter(spec, sources)) == 0


def try_bubblewrap(powers: dict[str, Any], trial: str, program: str, filter_program: bytes) -> str:
    """Run a program in bubblewrap once; what is wrong with it, empty: nothing."""
    spec = _spec(trial, False, powers) | {
        "bwrap": program, "hostname": "trial", "env": [], "seccomp": True, "limits": {"memory": 0, "pids": 0}, "escalation": False,
    }  # fmt: skip
    errors, output = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def attempt(sources: filesystem.Sources) -> None:
        os.dup2(output, 2)
        root, machine = filesystem.enter_beside(spec, sources)
        filesystem.return_to(machine)
        bubblewrap.execute(spec, powers, root, filter_program, ["/usr/bin/true"])

    try:
        if _status_of(spec, powers, attempt) == 0:
            return ""
        try:
            words = os.read(errors, 1024).decode(errors="replace").strip()
        except BlockingIOError:
            words = ""
        return words or "it ended without a word"
    finally:
        os.close(errors)
        os.close(output)


def _status_of(spec: dict[str, Any], powers: dict[str, Any], steps: Callable[[filesystem.Sources], None]) -> int:
    """How a process ended that took these steps in the namespaces of a container; -1: it could not be made."""
    owner = (os.getuid(), os.getgid())
    sources = None
    mapped, mapping = os.pipe2(os.O_CLOEXEC)
    try:
        if powers["users"]:
            users.UserRanges()
            sources = filesystem.open_sources(spec)
        pid = linux.clone(child.namespaces_of(powers["namespaces"], spec["slot"]))
        if not pid:
            os.close(mapping)
            _try(powers["namespaces"], spec, sources, owner, mapped, steps)
        if sources is not None:
            with contextlib.suppress(OSError):  # the child, which is not told to go on, fails
                launch.give_users(pid, spec, sources, powers, mapping)
    except (OSError, filesystem.SetupError):
        return -1
    finally:
        os.close(mapping)
        os.close(mapped)
        if sources is not None:
            sources.close()
    return _ended(pid)


def _ended(pid: int) -> int:
    """A trial that hangs must not hold up the containers that run."""
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], _LONGEST_TRIAL)[0]:
            os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    finally:
        os.close(handle)


def _try(
    mode: str,
    spec: dict[str, Any],
    sources: filesystem.Sources | None,
    owner: tuple[int, int],
    mapped: int,
    steps: Callable[[filesystem.Sources], None],
) -> NoReturn:
    result = 1
    try:
        if sources is not None:
            if os.read(mapped, 1) == b"m":
                child.become_root()
        elif mode == "user":
            child.map_user(spec, owner)
        steps(sources or filesystem.open_sources(spec))
        result = 0
    except (OSError, filesystem.SetupError):
        result = 1
    finally:
        os._exit(result)


def _can_map(trial: str) -> bool:
    """Whether the file system of the supervisor's directory lets its owners be mapped."""
    pid = linux.clone(linux.CLONE_NEWUSER)
    if not pid:
        signal.pause()
        os._exit(0)
    tree = handle = -1
    try:
        users.write_maps(pid, users.TRIAL_SLOT, [])
        handle = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        tree = linux.clone_tree(trial)
        linux.map_owners(tree, handle)
    except OSError:
        return False
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (tree, handle):
            if each >= 0:
                os.close(each)
    return True


def _spec(trial: str, overlay: bool, powers: dict[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {"kind": "host", "visible": [], "covers": []}
    if overlay:
        root = {
            "kind": "layers", "base": trial, "lowers": ["lower"], "upper": f"{trial}/upper", "scratch": f"{trial}/overlay",
            "userxattr": powers["users"] or powers["namespaces"] == "user",
        }  # fmt: skip
    return {
        "root": root, "files": [], "mounts": [], "writable": [], "cwd": "/", "work": f"{trial}/work", "tmp": f"{trial}/tmp",
        "home": f"{trial}/home", "privileged": False, "read_only_root": False, "user": None, "group": None, "user_group": 0,
        "groups": [], "slot": users.TRIAL_SLOT if powers["users"] else None, "directory": trial,
    }  # fmt: skip
