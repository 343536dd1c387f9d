"""From what the agent says about a container to what the supervisor needs to start it: a pure translation.

    pod sandbox + container spec + image + powers ──> one JSON object

Private files of a run lie in the pod's directory:

    <pod>/runp/{hosts,resolv.conf,hostname}      shared by all containers of the pod
    <pod>/runp/<container>.<attempt>/work        the working directory, or what is written over it
    <pod>/runp/<container>.<attempt>/tmp         /tmp of a host environment
    <pod>/runp/<container>.<attempt>/home        the home directory of a host environment
    <pod>/runp/<container>.<attempt>/upper       what a container writes over its image
    <pod>/runp/<container>.<attempt>/overlay     the kernel's own, for either
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.kube.agent.images.model import HOST, StoredImage, argv
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodSandbox, RuntimeFailure
from coterie.kube.agent.runtimes.runp import capabilities, visible
from coterie.kube.agent.runtimes.runp.filesystem import HOME
from coterie.kube.agent.runtimes.runp.preload import zygote_request
from coterie.kube.agent.runtimes.runp.processes import MARK
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

BUBBLEWRAP = "bubblewrap"
DEFAULT_WORKING_DIR = "/pod"
"""Where a host environment that names no working directory finds itself: in an empty one of its own."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pod_files(directory: Path) -> Path:
    return directory / "runp"


def run_files(directory: Path, spec: ContainerSpec) -> Path:
    return pod_files(directory) / f"{spec.name}.{spec.attempt}"


def start_request(
    settings: RunpSettings,
    store: ImageStore,
    image: StoredImage,
    pod: PodSandbox,
    spec: ContainerSpec,
    powers: dict[str, Any],
    bwrap: str = "",
    tool: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """`bwrap`: where that program is; `tool`: the OCI runtime that is to run the container. Raises RuntimeFailure for what
    cannot be started here at all."""
    words = argv(image, spec.command, spec.args)
    if not words:
        raise RuntimeFailure(
            "CreateContainerConfigError", f"neither container {spec.name} nor its image {image.name} has a command"
        )
    if image.kind != HOST and not powers["namespaces"]:
        raise RuntimeFailure(
            "CreateContainerError",
            f"image {image.name} has a file system of its own, which needs root or user namespaces on this machine",
        )
    if not powers["namespaces"]:
        _refuse_unreachable(spec)
    if pod.handler == BUBBLEWRAP and bwrap:
        _refuse_in_bubblewrap(spec)
    elif pod.handler != "runp" and tool is None:
        # Never behind a weaker wall than the one that was asked for.
        why = f'the runtime handler "{pod.handler}" is not available on this node'
        raise RuntimeFailure("RuntimeHandlerMissing", why)
    host = image.kind == HOST
    files = run_files(pod.directory, spec)
    user, group = _user(store, image, spec)
    cwd = os.path.normpath(spec.working_dir or image.workdir or (DEFAULT_WORKING_DIR if host else "/"))
    return {
        "uid": pod.uid,
        "name": spec.name,
        "attempt": spec.attempt,
        "image": spec.image,
        "image_id": image.id,
        "log_path": str(spec.log_path),
        "argv": list(words),
        "env": list(_environment(image, pod, spec, user, "" if powers["namespaces"] else str(files / "tmp"))),
        "cwd": cwd,
        "hostname": pod.hostname[:63],
        "network": {"uid": pod.uid, "network": pod.network},
        "root": _root(settings, store, image, files, powers, own_users=_own_users(powers, spec)),
        "files": [
            [str(pod_files(pod.directory) / name), f"/etc/{name}"]
            for name, text in (("hosts", pod.hosts), ("resolv.conf", pod.resolv_conf), ("hostname", pod.hostname))
            if text
        ],
        "mounts": [[str(m.source), os.path.normpath(os.path.join(cwd, m.target)), m.read_only] for m in spec.mounts],
        "resolved": [str(m.source) for m in spec.mounts if m.resolved],
        "directory": str(pod.directory),
        "writable": [os.path.normpath(path) for path in spec.writable_paths],
        "work": str(files / "work"),
        "tmp": str(files / "tmp"),
        "home": str(files / "home"),
        "overlay": str(files / "overlay"),
        "limits": {
            "cpu": spec.limits.cpu_milli,
            "shares": spec.limits.cpu_shares_milli,
            "memory": spec.limits.memory_bytes,
            "pids": spec.limits.pids,
            "files": spec.limits.open_files,
            "file_bytes": spec.limits.file_bytes,
            "pod_memory": pod.limits.memory_bytes,
            "pod_pids": pod.limits.pids,
        },
        "user": user,
        "group": spec.security.run_as_group if spec.security.run_as_group is not None else group,
        "user_group": _default_group(user),
        "groups": list(spec.security.supplemental_groups),
        "read_only_root": spec.security.read_only_root,
        "privileged": spec.security.privileged,
        "devices": list(spec.devices),
        "escalation": spec.security.allow_privilege_escalation,
        "capabilities": _capabilities(spec, powers),
        "seccomp": not spec.security.seccomp_unconfined,
        "target": spec.target,
        "tool": tool,
        "zygote": zygote_request(settings, image, pod, spec, words, powers),
        "bwrap": bwrap if pod.handler == BUBBLEWRAP else "",
        "stdin": spec.stdin,
        "stdin_once": spec.stdin_once,
        "tty": spec.tty,
        "locks": [str(store.layer(digest) / "lock") for digest in image.layers],
        "log": {"bytes": settings.log_bytes, "files": settings.log_files, "age": settings.log_age},
    }


def _refuse_in_bubblewrap(spec: ContainerSpec) -> None:
    """What would be another wall than the one that was asked for."""
    what = ""
    if spec.security.privileged:
        what = "privileged"
    elif spec.security.add_capabilities:
        what = "capabilities.add"
    elif spec.target:
        what = "a debugging container with a target"
    if what:
        raise RuntimeFailure(
            "CreateContainerConfigError", f"{what} is not possible with the runtime handler {BUBBLEWRAP}"
        )


def links(spec: ContainerSpec) -> dict[str, Path]:
    """Without mounts, volumes below the working directory become links in it: their place there, and what they are."""
    top = os.path.normpath(spec.working_dir or DEFAULT_WORKING_DIR)
    found = {}
    for mount in spec.mounts:
        target = os.path.normpath(os.path.join(top, mount.target))
        if target.startswith(top + "/"):
            found[target[len(top) + 1 :]] = mount.source
    return found


def _refuse_unreachable(spec: ContainerSpec) -> None:
    """A container whose configuration is not where it looks for it fails in ways that nobody understands."""
    linked = set(links(spec).values())
    for mount in spec.mounts:
        target = os.path.normpath(mount.target)
        if mount.optional:
            continue
        if target != str(mount.source) and mount.source not in linked and not target.startswith("/dev/"):
            raise RuntimeFailure(
                "CreateContainerError",
                f"a volume cannot be put at {target}: this machine allows no mounts; choose a place below workingDir",
            )


def _capabilities(spec: ContainerSpec, powers: dict[str, Any]) -> list[str]:
    security = spec.security
    if security.privileged:
        return []  # it has all of them
    try:
        return capabilities.kept(
            security.add_capabilities, security.drop_capabilities, own_users=_own_users(powers, spec)
        )
    except capabilities.CapabilityRefused as problem:
        raise RuntimeFailure("CreateContainerConfigError", f"securityContext.{problem}") from problem


def _own_users(powers: dict[str, Any], spec: ContainerSpec) -> bool:
    return powers["namespaces"] == "user" or (bool(powers.get("users")) and not spec.security.privileged)


def _root(
    settings: RunpSettings,
    store: ImageStore,
    image: StoredImage,
    files: Path,
    powers: dict[str, Any],
    *,
    own_users: bool,
) -> dict[str, Any]:
    if image.kind == HOST:
        shown = visible.paths(image, settings.hidden) if powers["namespaces"] else []
        return {
            "kind": "host",
            "visible": [list(pair) for pair in shown],
            "covers": visible.covers(shown, settings.hidden),
            # Where they really are: a way through a link would leave the files themselves in the open.
            "hidden": [os.path.realpath(path) for path in settings.hidden],
            "userxattr": own_users,
        }
    layers = (image.directory, ["."]) if image.directory else store.overlay_layers(image)
    if not powers["overlay"] or layers is None:
        return {"kind": "directory", "directory": str(files / "upper")}
    return {
        "kind": "layers",
        "base": layers[0],
        "lowers": layers[1],
        "upper": str(files / "upper"),
        "scratch": str(files / "overlay"),
        "userxattr": own_users,
    }


def _environment(
    image: StoredImage, pod: PodSandbox, spec: ContainerSpec, user: int | None, tmp: str
) -> Iterator[list[str]]:
    values = {"PATH": _PATH, "HOSTNAME": pod.hostname}
    if tmp:
        values["TMPDIR"] = tmp  # without mounts /tmp is everybody's
    if image.kind == HOST and not tmp:
        values["HOME"] = HOME
    elif image.kind != HOST or user is None:
        values["HOME"] = "/root" if not user else "/"
    if spec.tty:
        values["TERM"] = "xterm"
    values |= dict(image.env)
    values |= dict(spec.env)
    values[MARK] = f"{pod.uid}/{spec.name}.{spec.attempt}"
    for name, value in values.items():
        yield [name, value]


def _user(store: ImageStore, image: StoredImage, spec: ContainerSpec) -> tuple[int | None, int | None]:
    """Who the container runs as: what the pod says, else what the image says."""
    if spec.security.run_as_user is not None:
        return spec.security.run_as_user, None
    name, _, group = image.user.partition(":")
    if not name:
        return None, None
    entry = None if name.isdigit() else _look_up(store, image, "passwd", name)
    if not name.isdigit() and entry is None:
        raise RuntimeFailure("CreateContainerConfigError", f'image {image.name} has no user "{name}"')
    uid = int(name) if entry is None else int(entry[2])
    if group and not group.isdigit():
        found = _look_up(store, image, "group", group)
        if found is None:
            raise RuntimeFailure("CreateContainerConfigError", f'image {image.name} has no group "{group}"')
        group = found[2]
    if group:
        return uid, int(group)
    return uid, int(entry[3]) if entry is not None else None


def _look_up(store: ImageStore, image: StoredImage, file: str, name: str) -> list[str] | None:
    roots = [Path(image.directory)] if image.directory else store.layer_paths(image)
    for root in roots:
        path = root / "etc" / file
        if path.is_file() and not path.is_symlink():
            for line in path.read_text(errors="replace").splitlines():
                fields = line.split(":")
                if fields[0] == name and len(fields) > 3:
                    return fields
            return None
    return None


def _default_group(user: int | None) -> int:
    """The group of a user that the machine knows, else one of the same number: never that of root by accident."""
    if user is None:
        return 0
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:
        return user
