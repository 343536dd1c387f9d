"""What a process gives up before it becomes the container's program: rights, files, system calls, for ever.

The last steps before exec, in an order that leaves each one possible: the bounding set and the groups first, then
Landlock and seccomp (which need CAP_SYS_ADMIN or no_new_privs), then the user and what is left of the capabilities.
"""

from __future__ import annotations

import os
import resource
import stat

from coterie.kube.agent.runtimes.runp import capabilities, filesystem, landlock, linux, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CAP_SYS_ADMIN, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 21, 6, 7, 8
_PR_SET_DUMPABLE = 4
_MOST_OPEN_FILES = 1 << 20
_DEVICES = ("/dev", "/dev/shm", "/dev/pts")
_ACCELERATORS = ("nvidia", "kfd", "dri")
"""Names in /dev, or what they begin with, of devices that belong to one container at a time."""


def confine(spec: dict[str, Any], powers: dict[str, Any], filter_program: bytes) -> None:
    privileged = spec["privileged"]
    names = spec.get("capabilities")
    kept = capabilities.mask(names)
    effective = linux.effective_capabilities()
    may_admin = bool(effective >> _CAP_SYS_ADMIN & 1)
    if not privileged and effective >> _CAP_SETPCAP & 1:
        linux.drop_bounding(kept)
    _limit(spec, powers)
    if not privileged and not (spec["escalation"] and may_admin):
        linux.no_new_privileges()
    # Who traces processes of another container must not be in a Landlock domain that these are not in.
    traces_target = bool(spec.get("target")) and "SYS_PTRACE" in (names or ())
    if not privileged and powers["landlock"] and not traces_target:
        if spec["root"]["kind"] == "host" and spec.get("fence_files", True):
            _fence_files(spec, powers)
        elif landlock.Ruleset.has_scopes(powers["landlock"]):
            landlock.Ruleset(powers["landlock"], files=False).enforce()
    if not privileged and spec["seccomp"] and filter_program:
        traces = "SYS_PTRACE" in (names or ())
        seccomp.enforce(seccomp.program(linux.machine(), trace=True) if traces else filter_program)
    become_user(spec, powers, effective)
    if not privileged and effective:
        linux.set_capabilities(linux.effective_capabilities() & kept)


def as_after_exec() -> None:
    """What exec would do to a confined process that goes on without: only root keeps capabilities, and it may look at itself."""
    if os.geteuid() != 0:
        linux.set_capabilities(0)
    linux.prctl(_PR_SET_DUMPABLE, 1)


def _limit(spec: dict[str, Any], powers: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = spec["limits"]
    memory = limits["memory"] or limits.get("pod_memory", 0)
    if memory and not powers["cgroup_memory"]:
        # Without a group for it, at least each process alone stays below the limit.
        _set_limit(resource.RLIMIT_DATA, memory, memory)
    if limits.get("files"):
        _set_limit(resource.RLIMIT_NOFILE, limits["files"], max(limits["files"], _MOST_OPEN_FILES))
    if limits.get("file_bytes"):
        _set_limit(resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"])
    if limits["pids"] and not powers.get("cgroup_pids", True) and not spec["privileged"] and _in_user_namespace():
        # Counted for each user in each user namespace (5.14), so it is the container's own number. Elsewhere it would
        # count all processes of the agent's user.
        _set_limit(resource.RLIMIT_NPROC, limits["pids"], limits["pids"])


def _set_limit(kind: int, soft: int, hard: int) -> None:
    """As far as we may: who has no right to raise its hard limit keeps it."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY and hard > most:
        try:
            resource.setrlimit(kind, (min(soft, hard), hard))
            return
        except (OSError, ValueError):
            hard = most
    resource.setrlimit(kind, (min(soft, hard), hard))


def _in_user_namespace() -> bool:
    try:
        with open("/proc/self/uid_map") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _fence_files(spec: dict[str, Any], powers: dict[str, Any]) -> None:
    rules = landlock.Ruleset(powers["landlock"], keep_signals_inside=not powers["namespaces"])
    if powers["namespaces"]:
        rules.allow("/", landlock.READ)
        writable = ["/tmp", "/run", filesystem.HOME, spec["cwd"], *_DEVICES]
    else:
        for path in landlock.beside(spec["root"]["hidden"]):
            rules.allow(path, landlock.READ)
        # The pod's own directories lie in what is hidden, and what is hidden may lie in /tmp.
        writable = [*landlock.beside(spec["root"]["hidden"], "/tmp"), spec["work"], spec["tmp"]]
        # Everybody's /dev: it may be written to, but for the accelerators of others.
        writable += landlock.beside(_accelerators(), "/dev")
        for path in spec.get("devices", ()):
            rules.allow(path, landlock.USE)
    for source, target, read_only in spec["mounts"]:
        for path in {source, target} if not powers["namespaces"] else {target}:
            if read_only:
                rules.allow(path, landlock.READ)
            else:
                writable.append(path)
    for path in writable + spec["writable"]:
        if path != "/":
            rules.allow(path, landlock.WRITE)
    rules.allow("/proc", landlock.READ | landlock.USE)
    for handle in (0, 1, 2):
        # /dev/stdout is opened anew by many programs; named pipes and terminals are files that the rules must name.
        if stat.S_ISFIFO(os.fstat(handle).st_mode) or os.isatty(handle):
            try:
                rules.allow_handle(handle, landlock.USE)
            except OSError:
                continue  # a nameless pipe is not subject to the rules
    rules.enforce()


def _accelerators() -> list[str]:
    """Devices that nobody may use who was not given them."""
    return [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith(_ACCELERATORS)]


def become_user(spec: dict[str, Any], powers: dict[str, Any], capabilities: int) -> None:
    user, group = spec["user"], spec["group"]
    if capabilities >> _CAP_SETGID & 1:
        # In a user namespace with a single user this is refused: there is nothing to give up, and nothing to be given.
        if group is not None or user is not None or spec["groups"]:
            try:
                os.setgroups(spec["groups"])
            except PermissionError:
                if spec["groups"] and powers["namespaces"] != "user":
                    raise
        if group is not None:
            os.setresgid(group, group, group)
        elif user is not None:
            os.setresgid(spec["user_group"], spec["user_group"], spec["user_group"])
    if user is not None and user != os.getuid():
        os.setresuid(user, user, user)
