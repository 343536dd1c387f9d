"""From a container in a pod to the `ContainerSpec` a runtime starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from coterie.base.log import logger
from coterie.kube.agent.pods import pod_model, security_context
from coterie.kube.agent.pods.downward import ConfigProblem, NoSuchConfig
from coterie.kube.agent.pods.environment import expand
from coterie.kube.agent.pods.limits import LimitDefaults, container_limits
from coterie.kube.agent.runtimes.protocol import ContainerSpec, Mount, Security
from coterie.kube.agent.settings import PodSettings
from coterie.kube.api.meta import Object

log = logger("agent.pods")
TERMINATION_PATH = "/dev/termination-log"


def container_spec(
    pod: Object,
    container: Object,
    attempt: int,
    variables: Mapping[str, str],
    mounts: tuple[Mount, ...],
    log_directory: Path,
    pod_directory: Path,
    rules: PodSettings,
    defaults: LimitDefaults,
    devices: tuple[str, ...] = (),
) -> ContainerSpec:
    own = pod_directory.resolve()
    outside = any(not mount.read_only and own not in mount.source.resolve().parents for mount in mounts)
    return ContainerSpec(
        name=container["name"],
        attempt=attempt,
        image=container.get("image") or "",
        command=tuple(expand(word, variables) for word in container.get("command") or ()),
        args=tuple(expand(word, variables) for word in container.get("args") or ()),
        env=tuple(variables.items()),
        working_dir=container.get("workingDir") or "",
        mounts=mounts,
        log_path=log_directory / container["name"] / f"{attempt}.log",
        limits=container_limits(pod, container, defaults, writes_outside=outside),
        security=security_of(pod, container, rules),
        stdin=bool(container.get("stdin")),
        stdin_once=bool(container.get("stdinOnce")),
        tty=bool(container.get("tty")),
        target=container.get("targetContainerName") or "",
        devices=devices,
    )


def security_of(pod: Object, container: Object, rules: PodSettings) -> Security:
    """The container's own words win over the pod's."""
    refused = security_context.refused_container(container)
    if refused:
        raise NoSuchConfig(refused)
    whole = pod_model.spec_of(pod).get("securityContext") or {}
    own = container.get("securityContext") or {}
    user = own.get("runAsUser", whole.get("runAsUser"))
    as_root = user == 0 or (user is None and os.geteuid() == 0)
    if as_root and own.get("runAsNonRoot", whole.get("runAsNonRoot")):
        raise ConfigProblem("container has runAsNonRoot and would run as root; set runAsUser")
    privileged = bool(own.get("privileged"))
    if privileged and not rules.allow_privileged:
        log.warning("A container asks to be privileged, which this node does not allow", container=container["name"])
        privileged = False
    profile = own.get("seccompProfile") or whole.get("seccompProfile") or {}
    capabilities = own.get("capabilities") or {}
    groups = [int(group) for group in whole.get("supplementalGroups") or ()]
    if whole.get("fsGroup") is not None:
        groups.append(int(whole["fsGroup"]))
    return Security(
        run_as_user=user,
        run_as_group=own.get("runAsGroup", whole.get("runAsGroup")),
        supplemental_groups=tuple(dict.fromkeys(groups)),
        read_only_root=bool(own.get("readOnlyRootFilesystem")),
        privileged=privileged,
        allow_privilege_escalation=privileged or bool(own.get("allowPrivilegeEscalation")),
        seccomp_unconfined=privileged or profile.get("type") == "Unconfined",
        add_capabilities=tuple(capabilities.get("add") or ()),
        drop_capabilities=tuple(capabilities.get("drop") or ()),
    )


def remove_old_logs(directory: Path, attempt: int, kept: int) -> None:
    """A container that restarts for ever must not fill the disk: `directory` keeps the logs of its newest runs."""
    for path in directory.iterdir() if directory.is_dir() else ():
        number, _, rest = path.name.partition(".")
        if number.isdigit() and rest.startswith("log") and int(number) <= attempt - kept:
            path.unlink(missing_ok=True)


# Termination messages: a file that the container writes, or the end of its log.


def termination_file(pod_directory: Path, name: str, attempt: int) -> Path:
    return pod_directory / "containers" / name / f"{attempt}.termination"


def termination_mount(pod_directory: Path, container: Object, attempt: int) -> Mount:
    path = termination_file(pod_directory, container["name"], attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o666)  # whoever the container runs as writes it
    return Mount(path, container.get("terminationMessagePath") or TERMINATION_PATH)


def termination_message(
    pod_directory: Path, container: Object, attempt: int, failed: bool, log_path: Path | None, rules: PodSettings
) -> str:
    path = termination_file(pod_directory, container["name"], attempt)
    text = _tail(path, rules.termination_message_limit) if path.is_file() and not path.is_symlink() else ""
    if text or not failed or container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        return text
    if log_path is None or not log_path.is_file():
        return ""
    raw = _tail(log_path, 4 * rules.termination_log_limit).splitlines()[-80:]
    lines = [parts[3] for line in raw if len(parts := line.split(" ", 3)) == 4]
    return "\n".join(lines)[-rules.termination_log_limit :] + ("\n" if lines else "")


def _tail(path: Path, limit: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        return file.read(limit).decode("utf-8", "replace")
