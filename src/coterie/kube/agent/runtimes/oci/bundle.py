"""What an OCI runtime program is told about a container: the content of config.json. A pure translation.

    what the supervisor was asked to start (`runp/request.py`) ──> config.json

The container's files are there already: its root, with devices and volumes, was made by the shim with the same code that
RunP uses. The program mounts /proc, and sets the process up: user, capabilities, limits, refused system calls.
"""

from __future__ import annotations

import errno

from coterie.kube.agent.runtimes.runp import seccomp, users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = "1.0.2"
GVISOR = "gvisor"
MASKED = tuple(
    f"/proc/{name}"
    for name in ("acpi", "asound", "kcore", "keys", "latency_stats", "scsi", "sched_debug", "timer_list", "timer_stats")
)
READ_ONLY = tuple(f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger"))
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE",
    "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
    "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""By number."""
_MOST_OPEN_FILES = 1 << 20
_LARGEST_FAMILY = 63
_OWN_PROCESSES = 32
"""Of the shim and of the runtime while it starts a container: they are the same user's, and counted with it."""
_CLONE_FLAGS = tuple(1 << bit for bit in range(32) if seccomp.NAMESPACE_FLAGS >> bit & 1)


def config(
    spec: dict[str, Any],
    *,
    root: str,
    machine: str,
    capabilities: int,
    hard_limits: dict[str, int],
    placed: list[str],
    powers: dict[str, Any],
) -> dict[str, Any]:
    """`root`: where the container's root lies; `placed`: where it has volumes. `capabilities` (bits) and `hard_limits`
    (-1: none) are those of the process that starts the program, which cannot give more than it has. `powers`: what the
    machine allows."""
    sandboxed = spec["tool"]["handler"] == GVISOR
    namespaces = ["mount", "pid", "ipc", "uts"] if sandboxed else ["mount"]
    made: dict[str, Any] = {
        "ociVersion": VERSION,
        "process": process(
            spec, spec["argv"], capabilities=capabilities, hard_limits=hard_limits, tty=spec["tty"], powers=powers
        ),
        "root": {"path": root, "readonly": spec["read_only_root"] or spec["root"]["kind"] == "host"},
        "mounts": [_mount("proc", "/proc", "proc", ["nosuid", "noexec", "nodev"])],
        "linux": {"namespaces": [{"type": kind} for kind in namespaces]},
    }
    if sandboxed:
        # Its kernel has a /dev, /sys and host name of its own, and the files of the root are its own alone: only what is
        # said to be a mount may change under it.
        made["hostname"] = spec["hostname"]
        for target in placed:
            if target != "/sys" and not target.startswith("/sys/"):
                made["mounts"].append(_mount("bind", target, root + target, ["rbind"]))
        return made
    # A /dev that is a mount is left as it is.
    made["mounts"].insert(0, _mount("bind", "/dev", f"{root}/dev", ["rbind"]))
    if not spec["privileged"]:
        made["linux"] |= {"maskedPaths": list(MASKED), "readonlyPaths": list(READ_ONLY)}
        if spec["seccomp"] and powers["seccomp"]:
            made["linux"]["seccomp"] = profile(machine, trace="SYS_PTRACE" in (spec["capabilities"] or ()))
    return made


def process(
    spec: dict[str, Any],
    argv: list[str],
    *,
    capabilities: int,
    hard_limits: dict[str, int],
    tty: bool,
    powers: dict[str, Any],
) -> dict[str, Any]:
    user, group = users.ids_of(spec)
    groups = list(spec["groups"])
    if powers["namespaces"] == "user":
        user, group, groups = 0, 0, []  # there is one user only
    names = kept(spec, capabilities)
    return {
        "terminal": tty,
        "user": {"uid": user, "gid": group, "additionalGids": groups, "umask": 0o022},
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in spec["env"]],
        "cwd": spec["cwd"],
        "capabilities": {kind: names for kind in ("bounding", "effective", "permitted")},
        "noNewPrivileges": not spec["privileged"] and not spec["escalation"],
        "rlimits": limits(spec, hard_limits, powers),
    }


def kept(spec: dict[str, Any], there: int) -> list[str]:
    """Names of the capabilities of the container: of a privileged one all that there are."""
    names = CAPABILITIES if spec["privileged"] else (spec["capabilities"] or ())
    return [f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if name in names and there >> number & 1]


def limits(spec: dict[str, Any], hard: dict[str, int], powers: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of each process, among them what control groups would do for all together (`runp/confine.py`). A sandbox has
    its own idea of memory and processes."""
    wanted = spec["limits"]
    found = [_limit("RLIMIT_CORE", 0, 0, hard)]
    if spec["tool"]["handler"] != GVISOR:
        memory, own_users = (
            wanted["memory"] or wanted.get("pod_memory", 0),
            powers["namespaces"] == "user" or powers["users"],
        )
        # runc itself needs more than many a limit before it becomes the container's program; the supervisor watches.
        if memory and not powers["cgroup_memory"] and spec["tool"]["handler"] != "runc":
            found.append(_limit("RLIMIT_DATA", memory, memory, hard))
        if wanted["pids"] and not powers["cgroup_pids"] and own_users and not spec["privileged"]:
            most = wanted["pids"] + _OWN_PROCESSES
            found.append(_limit("RLIMIT_NPROC", most, most, hard))
    if wanted.get("files"):
        found.append(_limit("RLIMIT_NOFILE", wanted["files"], max(wanted["files"], _MOST_OPEN_FILES), hard))
    if wanted.get("file_bytes"):
        found.append(_limit("RLIMIT_FSIZE", wanted["file_bytes"], wanted["file_bytes"], hard))
    return found


def _limit(kind: str, soft: int, most: int, hard: dict[str, int]) -> dict[str, Any]:
    there = hard.get(kind, -1)
    if there >= 0:
        most = min(most, there)
    return {"type": kind, "soft": min(soft, most), "hard": most}


def _mount(kind: str, target: str, source: str, options: list[str]) -> dict[str, Any]:
    return {"type": kind, "destination": target, "source": source, "options": options}


def profile(machine: str, *, trace: bool = False) -> dict[str, Any]:
    """The system calls that RunP refuses (`runp/seccomp.py`), in the words of OCI. What belongs to another ABI is refused
    by the library itself."""
    refused = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}
    rules: list[dict[str, Any]] = [{"names": sorted(seccomp.refused(machine, trace=trace)), **refused}]
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    for flag in _CLONE_FLAGS:
        # A rule can only ask for all bits of a mask, so there is one for each.
        test = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["clone"], "args": [test], **refused})
    no_family = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EAFNOSUPPORT}
    for family in range(_LARGEST_FAMILY + 1):
        if family not in seccomp.SOCKET_FAMILIES:
            test = {"index": 0, "value": family, "op": "SCMP_CMP_EQ"}
            rules.append({"names": ["socket"], "args": [test], **no_family})
    test = {"index": 0, "value": _LARGEST_FAMILY, "op": "SCMP_CMP_GT"}
    rules.append({"names": ["socket"], "args": [test], **no_family})
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [{"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]],
        "syscalls": rules,
    }
