"""From what the agent says about a pod and a container to CRI's messages, and back: pure translations.

    PodSandbox ──> PodSandboxConfig          ContainerSpec + image ──> ContainerConfig
    ContainerStatus ──> ContainerState

What a later agent must know of a run (which image, which log) travels as annotations, so containerd's own records are enough.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.kube.agent.images.model import StoredImage, argv
from coterie.kube.agent.runtimes.cri import container_init, messages
from coterie.kube.agent.runtimes.cri.messages import Message
from coterie.kube.agent.runtimes.protocol import (
    ContainerLimits,
    ContainerSpec,
    ContainerState,
    PodSandbox,
    RuntimeFailure,
)
from coterie.kube.agent.runtimes.runp import capabilities
from coterie.kube.agent.runtimes.runp.cgroups import shares_of

POD_UID = "coterie.io/pod-uid"
_IMAGE, _IMAGE_ID, _STDIN_ONCE, _TTY = (f"coterie.io/{name}" for name in ("image", "image-id", "stdin-once", "tty"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PERIOD = 100_000
_ETC_FILES = ("hosts", "resolv.conf", "hostname")
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
    "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_NANO = 1_000_000_000
_KILLED, _LAST_SIGNAL = 128, 64
_REASONS = {
    "Completed": "Completed",
    "Error": "Error",
    "OOMKilled": "OOMKilled",
    "StartError": "ContainerCannotRun",
    "ContainerCannotRun": "ContainerCannotRun",
}
"""What containerd says about an end; of any other word: ContainerStatusUnknown."""


# Pods.


def pod_files(directory: Path) -> Path:
    """Of the pod's own files: hosts, resolv.conf, hostname."""
    return directory / "cri"


def sandbox_config(sandbox: PodSandbox, attempt: int, cgroup: str, *, own_network: bool) -> Message:
    """`cgroup`: the pod's control group; `own_network`: whether it has a network namespace of its own."""
    network = messages.POD_NAMESPACE if own_network else messages.NODE_NAMESPACE
    return {
        "metadata": {
            "name": sandbox.name,
            "uid": sandbox.uid,
            "namespace": sandbox.namespace,
            "attempt": attempt,
        },
        "hostname": sandbox.hostname[:63] if own_network else "",
        "log_directory": "/",
        "labels": {POD_UID: sandbox.uid},
        "linux": {
            "cgroup_parent": cgroup,
            "security_context": {
                "namespace_options": {"network": network, "pid": messages.CONTAINER_NAMESPACE},
                "privileged": sandbox.privileged,
                "seccomp": {"profile_type": messages.RUNTIME_DEFAULT},
            },
        },
    }


# Containers.


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a container's configuration needs to know besides its specification."""

    image_ref: str
    """containerd's name of the image."""
    init: Path | None
    """The program that is process 1; None: the container's own."""
    target_id: str = ""
    """containerd's id of the container whose processes this one sees."""


def container_config(image: StoredImage, pod: PodSandbox, spec: ContainerSpec, context: RunContext) -> Message:
    """Raises RuntimeFailure for what cannot be started at all."""
    words = argv(image, spec.command, spec.args)
    if not words:
        raise RuntimeFailure(
            "CreateContainerConfigError", f"neither container {spec.name} nor its image {image.name} has a command"
        )
    # In the namespace of another container's processes it is not process 1.
    init = context.init if not context.target_id else None
    # Two slashes at the beginning would be left as they are.
    cwd = "/" + os.path.normpath(spec.working_dir or image.workdir or "/").lstrip("/")
    if cwd == "/proc" or cwd.startswith("/proc/"):
        # /proc/self/fd/N names what runc happens to have open; before 1.1.12 that was a directory of the machine.
        raise RuntimeFailure("CreateContainerError", f"working directory {cwd} leads into /proc")
    limits = (str(spec.limits.open_files), str(spec.limits.file_bytes))
    return {
        "metadata": {"name": spec.name, "attempt": spec.attempt},
        "image": {"image": context.image_ref},
        "command": [container_init.PATH] if init is not None else words[:1],
        "args": (*limits, *words) if init is not None else words[1:],
        "working_dir": cwd,
        "envs": [{"key": key, "value": value} for key, value in _environment(image, pod, spec).items()],
        "mounts": list(_mounts(pod, spec, cwd, init)),
        "devices": [{"container_path": path, "host_path": path, "permissions": "rw"} for path in spec.devices],
        "labels": {POD_UID: pod.uid},
        "annotations": {
            _IMAGE: spec.image,
            _IMAGE_ID: image.id,
            _STDIN_ONCE: json.dumps(spec.stdin_once),
            _TTY: json.dumps(spec.tty),
        },
        "log_path": str(spec.log_path).lstrip("/"),
        "stdin": spec.stdin,
        "stdin_once": spec.stdin_once,
        "tty": spec.tty,
        "linux": {"resources": resources(spec.limits), "security_context": _security(image, spec, context)},
    }


def resources(limits: ContainerLimits) -> Message:
    found: Message = {"cpu_shares": shares_of(limits.cpu_shares_milli)}
    if limits.cpu_milli:
        found |= {"cpu_period": _PERIOD, "cpu_quota": max(1000, limits.cpu_milli * _PERIOD // 1000)}
    if limits.memory_bytes:
        found["memory_limit_in_bytes"] = limits.memory_bytes
    return found


def _environment(image: StoredImage, pod: PodSandbox, spec: ContainerSpec) -> dict[str, str]:
    user = spec.security.run_as_user
    root = not user if user is not None else image.user.partition(":")[0] in ("", "0", "root")
    values = {"PATH": _PATH, "HOSTNAME": pod.hostname, "HOME": "/root" if root else "/"}
    if spec.tty:
        values["TERM"] = "xterm"
    return {**values, **dict(image.env), **dict(spec.env)}


def _mounts(pod: PodSandbox, spec: ContainerSpec, cwd: str, init: Path | None) -> Iterator[Message]:
    volumes = {os.path.normpath(os.path.join(cwd, mount.target)): mount for mount in spec.mounts}
    texts = (pod.hosts, pod.resolv_conf, pod.hostname)
    for name, text in zip(_ETC_FILES, texts, strict=True):
        if text and f"/etc/{name}" not in volumes:
            yield {
                "container_path": f"/etc/{name}",
                "host_path": str(pod_files(pod.directory) / name),
                "readonly": True,
            }
    if init is not None:
        yield {"container_path": container_init.PATH, "host_path": str(init), "readonly": True}
    for target, mount in volumes.items():
        if not mount.source.exists():
            if mount.optional:
                continue
            raise RuntimeFailure("CreateContainerError", f"volume source {mount.source} does not exist")
        yield {"container_path": target, "host_path": str(mount.source), "readonly": mount.read_only}


def _security(image: StoredImage, spec: ContainerSpec, context: RunContext) -> Message:
    security = spec.security
    pid = messages.TARGET_NAMESPACE if context.target_id else messages.CONTAINER_NAMESPACE
    found: Message = {
        "privileged": security.privileged,
        "namespace_options": {"pid": pid, "target_id": context.target_id},
        "readonly_rootfs": security.read_only_root,
        "supplemental_groups": security.supplemental_groups,
        "no_new_privs": not security.allow_privilege_escalation and not security.privileged,
        "seccomp": {
            "profile_type": messages.UNCONFINED
            if security.seccomp_unconfined or security.privileged
            else messages.RUNTIME_DEFAULT
        },
    }
    if security.run_as_user is not None:
        found["run_as_user"] = {"value": security.run_as_user}
    if security.run_as_group is not None:
        found["run_as_group"] = {"value": security.run_as_group}
        if security.run_as_user is None:  # CRI takes a group only with a user
            name = image.user.partition(":")[0]
            found |= {"run_as_username": name} if name else {"run_as_user": {"value": 0}}
    if security.privileged:
        return found
    try:
        kept = capabilities.kept(security.add_capabilities, security.drop_capabilities, own_users=False)
    except capabilities.CapabilityRefused as problem:
        raise RuntimeFailure("CreateContainerConfigError", f"securityContext.{problem}") from problem
    found["capabilities"] = {"drop_capabilities": [capabilities.ALL], "add_capabilities": kept}
    found["masked_paths"], found["readonly_paths"] = _MASKED, _READ_ONLY
    return found


# What is.


def state_of(status: Mapping[str, Any], pid: int) -> ContainerState:
    """Of a `ContainerStatus`. `pid`: of its first process, if it runs."""
    annotations, metadata = status.get("annotations", {}), status.get("metadata", {})
    ended = status.get("state", messages.CREATED) not in (messages.CREATED, messages.RUNNING)
    code = status.get("exit_code", 0)
    started = status.get("started_at", 0) or status.get("created_at", 0)
    reason = status.get("reason", "")
    return ContainerState(
        name=metadata.get("name", ""),
        attempt=metadata.get("attempt", 0),
        image=annotations.get(_IMAGE, ""),
        image_id=annotations.get(_IMAGE_ID, ""),
        pid=0 if ended else pid,
        started_at=started / _NANO,
        finished_at=max(status.get("finished_at", 0), started) / _NANO if ended else 0.0,
        exit_code=code if ended else 0,
        signal=code - _KILLED if ended and _KILLED < code <= _KILLED + _LAST_SIGNAL else 0,
        reason=_REASONS.get(reason, "ContainerStatusUnknown") if ended else "",
        message=status.get("message", "") if ended else "",
        log_path=Path(status["log_path"]) if status.get("log_path") else None,
    )


def is_tty(status: Mapping[str, Any]) -> bool:
    return bool(status.get("annotations", {}).get(_TTY) == "true")


def closes_stdin(status: Mapping[str, Any]) -> bool:
    """Whether the container's input ends with that of the first who attaches."""
    return bool(status.get("annotations", {}).get(_STDIN_ONCE) == "true")


# Records.


def record_of(sandbox: PodSandbox) -> dict[str, Any]:
    """What is written about a pod that was prepared."""
    return {
        "uid": sandbox.uid,
        "namespace": sandbox.namespace,
        "name": sandbox.name,
        "hostname": sandbox.hostname,
        "directory": str(sandbox.directory),
        "hosts": sandbox.hosts,
        "resolv_conf": sandbox.resolv_conf,
        "labels": sandbox.labels,
        "address": sandbox.address,
        "network": sandbox.network,
        "kind": str(sandbox.kind),
        "group": sandbox.group,
        "handler": sandbox.handler,
        "privileged": sandbox.privileged,
        "sysctls": dict(sandbox.sysctls),
        "limits": asdict(sandbox.limits),
    }


def sandbox_of(record: Mapping[str, Any]) -> PodSandbox:
    """Raises KeyError and TypeError for what is no record."""
    limits = ContainerLimits(**record["limits"])
    return PodSandbox(**{**record, "directory": Path(record["directory"]), "limits": limits})
