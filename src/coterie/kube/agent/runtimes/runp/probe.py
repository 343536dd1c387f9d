"""What this machine lets us do, found out by doing it once, and in plain words what it does not."""

from __future__ import annotations

import os

from coterie.kube.agent.runtimes.runp import child, filesystem, landlock, linux, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups

_NO_NAMESPACES = "Containers share the machine's files, processes and host name, because namespaces are not available; volumes are reached by their place on the machine, and images with a file system of their own do not run."
_OWN_USER_ONLY = (
    "Containers run as the agent's own user whatever runAsUser says (inside they see the user they ask for), and "
    "supplemental groups are not given, because the agent is not root."
)
_NO_LANDLOCK = "Landlock is not used: only file permissions and read-only mounts keep containers from files."
_NO_SECCOMP = "No system calls are refused to containers: there is no list of them for this machine."
_NO_CGROUPS = (
    "CPU, memory and process limits are not enforced for a pod as a whole, because control groups cannot be made here: "
    "its memory limit holds for each process, and its limit of processes for each container, if it has a user namespace."
)


def probe(scratch: str, groups: Cgroups | None, without: list[str]) -> dict[str, Any]:
    """The powers: `namespaces` is root, user or empty. What is in `without` is not even tried."""
    namespaces = ""
    if "namespaces" not in without:
        namespaces = next((mode for mode in ("root", "user") if _works(mode, scratch)), "")
    limitations = []
    if not namespaces:
        limitations.append(_NO_NAMESPACES)
    if os.getuid() != 0:
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
        "namespaces": namespaces,
        "landlock": version,
        "seccomp": filtering,
        "cgroup": groups.version if groups is not None else 0,
        "cgroup_pids": groups is not None and "pids" not in groups.missing,
        "cgroup_memory": groups is not None and "memory" not in groups.missing,
        "overlay": bool(namespaces) and _works(namespaces, scratch, overlay=True),
        "limitations": limitations,
    }


def _works(mode: str, scratch: str, *, overlay: bool = False) -> bool:
    if mode == "root" and os.getuid() != 0:
        return False
    owner = (os.getuid(), os.getgid())
    try:
        pid = linux.clone(child.namespaces_of(mode))
    except OSError:
        return False
    if not pid:
        result = 1
        try:
            _try(mode, scratch, owner, overlay)
            result = 0
        except (OSError, filesystem.SetupError):
            result = 1
        finally:
            os._exit(result)
    _, status = os.waitpid(pid, 0)
    return status == 0


def _try(mode: str, scratch: str, owner: tuple[int, int], overlay: bool) -> None:
    trial = f"{os.path.dirname(scratch)}/trial"
    spec: dict[str, Any] = {
        "root": {"kind": "host", "hidden": []}, "files": [], "mounts": [], "writable": [], "cwd": "/", "work": "",
        "tmp": trial, "privileged": False, "read_only_root": False, "user": None, "group": None, "user_group": 0,
    }  # fmt: skip
    if mode == "user":
        child.map_user(spec, owner)
    if overlay:
        options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        linux.mount("overlay", scratch, "overlay", 0, options + (",userxattr" if mode == "user" else ""))
        return
    filesystem.enter(spec, scratch)
