"""The files a container sees, put together inside its own mount namespace.

A *host environment* gets a root of its own, an empty tmpfs, into which every directory of the machine's root is mounted
read-only; a *layered* image gets an overlay of its layers with a writable one on top. In both, /proc, /dev, /tmp and the
pod's own /etc/hosts, /etc/resolv.conf and /etc/hostname are put on top, then the volumes. Nothing on the machine itself
is changed, not even for a mount point that does not exist: the directory that lacks it is rebuilt on a tmpfs of mounts.

Runs in the child, between fork and exec. The order matters: sources are opened before the root changes, targets are
looked up after it, so that a link inside an image can never lead out of it.
"""

from __future__ import annotations

import os
import stat

from coterie.kube.agent.runtimes.runp import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ACCELERATORS = ("nvidia", "dri", "kfd", "infiniband", "davinci", "accel")
"""Prefixes of devices that engines compute with."""
_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_MASKED_PROC = ("kcore", "keys", "timer_list", "latency_stats", "sched_debug")
_MOST_MIRRORED = 4096
_OWN = ("proc", "dev", "tmp", "run")
"""Directories that a host environment does not share with the machine."""
_VOLUME = linux.ATTR_NOSUID | linux.ATTR_NODEV


class SetupError(Exception):
    """The container's surroundings cannot be made; told to the user as it stands."""


def enter(spec: dict[str, Any], scratch: str) -> None:
    """Make the container's root and go there. `scratch` is an empty directory to build it on."""
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    volumes = [(target, _source(source, read_only)) for source, target, read_only in _all_mounts(spec)]
    devices = _device_sources(privileged=spec["privileged"])
    root = spec["root"]
    if root["kind"] == "host":
        _host_root(scratch, root["hidden"])
        _writable_view(scratch, spec)
    else:
        volumes.append(("/sys", _source("/sys", True)))
        _image_root(scratch, root)
    # Before the old root goes: a user namespace may mount a /proc only while it sees another.
    linux.mount("proc", f"{scratch}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.change_root(scratch)
    _dev(devices)
    if not spec["privileged"]:
        _guard_proc()
    for target, source in sorted(volumes, key=lambda pair: pair[0].rstrip("/").count("/")):
        _put(source, target)
    if spec["read_only_root"] or root["kind"] == "host":
        handle = os.open("/", os.O_PATH | os.O_CLOEXEC)
        linux.set_attributes(handle, linux.ATTR_RDONLY, recursive=False)
        os.close(handle)


def _all_mounts(spec: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The pod's own files first, so that a volume may replace one."""
    host = spec["root"]["kind"] == "host"
    # A machine without /etc/hostname does not need a private one; hosts and resolv.conf are made where they lack.
    mounts = [
        (source, target, True)
        for source, target in spec["files"]
        if not host or target != "/etc/hostname" or os.path.exists(target)
    ]
    if host:
        mounts.append((spec["tmp"], "/tmp", False))
        mounts += [(path, path, False) for path in spec["writable"] if os.path.exists(path)]
        if not os.path.exists(spec["cwd"]) and not covered(spec, spec["cwd"]):
            mounts.append((spec["work"], spec["cwd"], False))
    return mounts + [(source, target, read_only) for source, target, read_only in spec["mounts"]]


def covered(spec: dict[str, Any], path: str) -> bool:
    """Whether a volume or a writable path is at `path` or above it."""
    tops = [target for _, target, _ in spec["mounts"]] + spec["writable"]
    return any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)


def _writable_view(scratch: str, spec: dict[str, Any]) -> None:
    """Let a container write in a working directory that the machine has, without the machine seeing it."""
    path = spec["cwd"]
    if path == "/" or not os.path.isdir(path) or covered(spec, path) or not os.path.isdir(scratch + path):
        return
    options = f"lowerdir={path},upperdir={spec['work']},workdir={spec['overlay']}"
    if spec["root"].get("userxattr"):
        options += ",userxattr"
    try:
        linux.mount("overlay", scratch + path, "overlay", linux.MS_NODEV | linux.MS_NOSUID, options)
    except OSError:
        return  # no overlay here, or one around our own files: it stays read-only


def _source(path: str, read_only: bool) -> tuple[int, bool]:
    try:
        handle = linux.clone_tree(path)
    except FileNotFoundError as problem:
        raise SetupError(f"volume source {path} does not exist") from problem
    linux.set_attributes(handle, _VOLUME | (linux.ATTR_RDONLY if read_only else 0))
    return handle, os.path.isdir(path)


def _host_root(scratch: str, hidden: list[str]) -> None:
    entries = [(name, f"/{name}") for name in os.listdir("/") if name not in _OWN]
    trees = [(name, os.readlink(path) if os.path.islink(path) else _frozen(path)) for name, path in entries]
    covers = [path for path in hidden if os.path.isdir(path)]
    linux.mount("none", scratch, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    for name, tree in trees:
        if isinstance(tree, str):
            os.symlink(tree, f"{scratch}/{name}")
        elif tree is not None:
            _mount_point(f"{scratch}/{name}", tree[1])
            linux.attach(tree[0], f"{scratch}/{name}")
            os.close(tree[0])
    for name in _OWN:
        os.mkdir(f"{scratch}/{name}")
    # The sockets of the machine's services lie here, and a read-only mount does not keep anybody from connecting.
    linux.mount("none", f"{scratch}/run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=16m")
    for path in covers:
        if os.path.isdir(scratch + path):
            linux.mount("none", scratch + path, "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID, "mode=000,size=4k")


def _frozen(path: str) -> tuple[int, bool] | None:
    try:
        handle = linux.clone_tree(path)
        linux.set_attributes(handle, linux.ATTR_RDONLY | linux.ATTR_NODEV)
    except PermissionError:
        return None  # what we may not look into the container may not either
    return handle, os.path.isdir(path)


def _image_root(scratch: str, root: dict[str, Any]) -> None:
    if root["kind"] == "directory":
        handle = linux.clone_tree(root["directory"])
        linux.attach(handle, scratch)
        os.close(handle)
    else:
        # Relative names: the options of one mount must fit into a page, and layers have long names.
        os.chdir(root["base"])
        lowers = ":".join(name.replace("\\", "\\\\").replace(":", "\\:") for name in root["lowers"])
        options = f"lowerdir={lowers},upperdir={root['upper']},workdir={root['scratch']}"
        if root.get("userxattr"):
            options += ",userxattr"
        linux.mount("overlay", scratch, "overlay", linux.MS_NODEV, options)
        os.chdir("/")
    for name in ("proc", "dev", "sys", "tmp", "etc"):
        path = f"{scratch}/{name}"
        if os.path.islink(path):
            os.unlink(path)  # an image must not choose where our mounts go
        os.makedirs(path, exist_ok=True)
    os.chmod(f"{scratch}/tmp", 0o1777)


def _guard_proc() -> None:
    """The switches in /proc are the whole machine's."""
    for name in _READ_ONLY_PROC:
        path = f"/proc/{name}"
        if os.path.exists(path):
            handle = linux.clone_tree(path)
            linux.set_attributes(handle, linux.ATTR_RDONLY)
            linux.attach(handle, path)
            os.close(handle)
    for name in _MASKED_PROC:
        if os.path.exists(f"/proc/{name}"):
            handle = linux.clone_tree("/dev/null")
            linux.attach(handle, f"/proc/{name}")
            os.close(handle)


def _device_sources(*, privileged: bool) -> list[tuple[str, int, bool]]:
    names = os.listdir("/dev")
    chosen = [n for n in names if privileged or n in _DEVICES or n.startswith(_ACCELERATORS)]
    found = []
    for name in chosen:
        path = f"/dev/{name}"
        if name in ("shm", "pts", "ptmx", "mqueue") or os.path.islink(path):
            continue
        found.append((name, linux.clone_tree(path), os.path.isdir(path)))
    return found


def _dev(devices: list[tuple[str, int, bool]]) -> None:
    linux.mount("none", "/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for name, handle, directory in devices:
        _mount_point(f"/dev/{name}", directory)
        linux.attach(handle, f"/dev/{name}")
        os.close(handle)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.mkdir("/dev/shm")
    linux.mount("none", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    os.mkdir("/dev/pts")
    linux.mount("none", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")


def _put(source: tuple[int, bool], target: str) -> None:
    handle, directory = source
    try:
        _make_way(target, directory)
        linux.attach(handle, target)
    except OSError as problem:
        raise SetupError(f"cannot mount a volume at {target}: {problem.strerror}") from problem
    os.close(handle)


def _mount_point(path: str, directory: bool) -> None:
    if directory:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _make_way(target: str, directory: bool) -> None:
    """See that `target` exists, as a directory or a file."""
    if os.path.exists(target):
        if os.path.isdir(target) != directory:
            raise SetupError(f"cannot mount a {'directory' if directory else 'file'} at {target}: it is the other kind")
        return
    parts = [part for part in target.split("/") if part]
    at = ""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        step = f"{at}/{part}"
        if not os.path.exists(step):
            try:
                # A link that leads nowhere, as /etc/resolv.conf into an empty /run: make the place it names.
                place = os.path.realpath(step)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                _mount_point(place, directory or not last)
            except OSError:
                _mirror(at or "/", without=part)
                _mount_point(step, directory or not last)
        at = step


def _mirror(path: str, without: str) -> None:
    """Rebuild a read-only directory on a tmpfs, with everything that is in it mounted where it was."""
    names = os.listdir(path)
    if len(names) > _MOST_MIRRORED:
        raise SetupError(f"cannot make a mount point in {path}: it has too many entries")
    kept: list[tuple[str, str | tuple[int, bool]]] = []
    for name in names:
        step = f"{path.rstrip('/')}/{name}"
        if name == without:
            continue
        if stat.S_ISLNK(os.lstat(step).st_mode):
            kept.append((name, os.readlink(step)))
        else:
            kept.append((name, (linux.clone_tree(step), os.path.isdir(step))))
    # What is hidden (mode 0) holds nothing but this way, which other users than root go too.
    mode = stat.S_IMODE(os.stat(path).st_mode) or 0o111
    linux.mount("none", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode={mode:o},size=4m")
    for name, entry in kept:
        step = f"{path.rstrip('/')}/{name}"
        if isinstance(entry, str):
            os.symlink(entry, step)
        else:
            _mount_point(step, entry[1])
            linux.attach(entry[0], step)
            os.close(entry[0])
