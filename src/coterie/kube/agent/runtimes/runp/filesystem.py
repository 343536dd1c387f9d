"""The files a container sees, put together inside its own mount namespace.

A *host environment* gets a root of its own, a small tmpfs with the machine's /usr, a few files of /etc, the directories
that its image makes visible, and empty directories to write in; a *layered* image gets an overlay of its layers with a
writable one on top. In both, /proc, /dev, /sys/devices/system/cpu and the pod's own /etc/hosts, /etc/resolv.conf and
/etc/hostname are put on top, then the volumes. Nothing else of the machine is there.

    open_sources   every file of the machine that the container will see, as a detached tree: where the container has a
                   range of users, by the supervisor, else by the child itself
    map_owners     by the supervisor: users of the container are the same users on disk
    enter          by the child, between fork and exec: make the root of these trees, and go there

Sources are opened before the root changes, targets are looked up after it, so that a link inside an image can never lead
out of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from coterie.kube.agent.runtimes.runp import linux, users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HOME = "/home/app"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem",
    "ca-certificates", "alternatives", "nsswitch.conf", "protocols", "services", "mime.types", "gai.conf", "os-release",
    # The same on Fedora and its relatives, to which the links in /etc/ssl lead.
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "crypto-policies",
)  # fmt: skip
_SYS = "/sys/devices/system/cpu"
_OWN = ("proc", "dev", "tmp", "run", "etc", "var", "home")
"""Directories of a host environment's root that hold nothing of the machine, except parts of /etc."""
_COVERED = ("/tmp", "/var/tmp", HOME)
"""Directories that are mounted with the volumes."""
STAGE = "/tmp"
"""Where the new root is made: a directory that every user reaches. The child's /tmp is covered meanwhile."""
_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_MASKED_PROC = ("kcore", "keys", "timer_list", "latency_stats", "sched_debug")
_MOST_MIRRORED = 4096
_VOLUME = linux.ATTR_NOSUID | linux.ATTR_NODEV
_SYSTEM = _VOLUME | linux.ATTR_RDONLY
_CANNOT_MAP = (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class SetupError(Exception):
    """The container's surroundings cannot be made; told to the user as it stands."""


class Sources:
    """Detached trees of the machine's files, and where the container sees them."""

    def __init__(self) -> None:
        self.system: list[tuple[str, str | tuple[int, bool]]] = []
        """Target, and a link's text or a tree (handle, whether it is a directory)."""
        self.devices: list[tuple[str, int, bool]] = []
        self.volumes: list[tuple[str, tuple[int, bool] | None]] = []
        """Target, and a tree; None covers what is there."""
        self.run = self.layers = -1
        """The directory of this run, and what its image consists of: for overlays."""
        self.overlaid = ""
        """A directory of the machine that the container writes over."""
        self._mapped: list[tuple[int, str]] = []
        self._resolved: set[str] = set()
        self._handles: list[int] = []

    def tree(self, path: str, attributes: int, *, mapped: bool, resolved: bool = False) -> tuple[int, bool]:
        """`resolved`: there must be no link in the path. Raises SetupError if there is one."""
        handle = clone_resolved(path) if resolved else linux.clone_tree(path)
        if resolved:
            self._resolved.add(path)
        self._handles.append(handle)
        linux.set_attributes(handle, attributes)
        if mapped:
            self._mapped.append((handle, path))
        return handle, stat.S_ISDIR(os.fstat(handle).st_mode)

    def map_owners(self, user_namespace: int, slot: int, own: str) -> None:
        """Where a file system cannot do this, what lies in `own`, the pod's directory, is given to the pod's users."""
        for handle, path in self._mapped:
            if not (_map(handle, user_namespace, True) or _map(handle, user_namespace, False)):
                self._give(path, slot, own)

    def give_away(self, slot: int, own: str) -> None:
        """As `map_owners`, on a machine that can map none."""
        for _, path in self._mapped:
            self._give(path, slot, own)

    def _give(self, path: str, slot: int, own: str) -> None:
        if not _ours(path, own):
            return
        if path not in self._resolved:
            users.give_away(path, slot)
            return
        at = _open_resolved(path)
        try:
            if stat.S_ISDIR(os.fstat(at).st_mode):
                users.give_away(".", slot, at=at)
            else:
                users.give_file(at, slot)
        finally:
            os.close(at)

    def to_wire(self, place: Callable[[int], int]) -> dict[str, Any]:
        """For another process. `place` takes a descriptor and answers its number there."""

        def tree(entry: tuple[int, bool]) -> list[Any]:
            return [place(entry[0]), entry[1]]

        return {
            "system": [[target, each if isinstance(each, str) else tree(each)] for target, each in self.system],
            "devices": [[name, place(handle), directory] for name, handle, directory in self.devices],
            "volumes": [[target, None if each is None else tree(each)] for target, each in self.volumes],
            "run": place(self.run),
            "layers": place(self.layers),
            "overlaid": self.overlaid,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any], take: Callable[[int], int]) -> Sources:
        """`take` answers the descriptor that has a number."""
        made = cls()

        def taken(number: int) -> int:
            handle = take(number)
            if handle >= 0:
                made._handles.append(handle)
            return handle

        def tree(entry: list[Any]) -> tuple[int, bool]:
            return taken(entry[0]), bool(entry[1])

        made.system = [(target, each if isinstance(each, str) else tree(each)) for target, each in data["system"]]
        made.devices = [(name, taken(number), bool(directory)) for name, number, directory in data["devices"]]
        made.volumes = [(target, None if each is None else tree(each)) for target, each in data["volumes"]]
        made.run, made.layers, made.overlaid = taken(data["run"]), taken(data["layers"]), data["overlaid"]
        return made

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()


def clone_resolved(path: str) -> int:
    """As `linux.clone_tree`, of a path that was checked to have no links in it."""
    at = _open_resolved(path)
    try:
        return linux.clone_tree("", at=at)
    finally:
        os.close(at)


def _open_resolved(path: str) -> int:
    """By handles: whoever may write there can put a link in place of a directory at any moment."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.split("/"):
            if name:
                below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = below
                if stat.S_ISLNK(os.fstat(at).st_mode):
                    raise SetupError(f"volume source {path} has become a link")
    except BaseException as problem:
        os.close(at)
        if isinstance(problem, NotADirectoryError):
            raise SetupError(f"volume source {path} does not exist") from problem
        raise
    return at


def _map(handle: int, user_namespace: int, recursive: bool) -> bool:
    try:
        linux.map_owners(handle, user_namespace, recursive=recursive)
    except OSError as problem:
        if problem.errno not in _CANNOT_MAP:
            raise
        return False
    return True


def _ours(path: str, own: str) -> bool:
    """In the pod's directory, or in one of the node's local-path volumes, which lie beside those of the pods."""
    return _below(path, own) or _below(path, os.path.join(os.path.dirname(os.path.dirname(own)), "volumes"))


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


# ----- the machine's files


def open_sources(spec: dict[str, Any]) -> Sources:
    """Raises SetupError for a volume that does not exist."""
    sources = Sources()
    try:
        _open_all(spec, sources)
    except BaseException:
        sources.close()
        raise
    return sources


def _open_all(spec: dict[str, Any], sources: Sources) -> None:
    root = spec["root"]
    if root["kind"] == "host":
        _open_system(sources)
        _open_visible(spec, sources)
    elif root["kind"] == "directory":
        sources.layers, _ = sources.tree(root["directory"], linux.ATTR_NODEV, mapped=True)
    else:
        sources.layers, _ = sources.tree(root["base"], linux.ATTR_NODEV, mapped=True)
        sources.run, _ = sources.tree(os.path.dirname(root["upper"]), linux.ATTR_NODEV, mapped=True)
    if os.path.isdir(_SYS):
        sources.volumes.append((_SYS, sources.tree(_SYS, _SYSTEM, mapped=False)))
    _open_devices(spec, sources)
    resolved = frozenset(spec.get("resolved", ()))
    for source, target, read_only in _all_mounts(spec):
        try:
            tree = sources.tree(source, _SYSTEM if read_only else _VOLUME, mapped=True, resolved=source in resolved)
        except FileNotFoundError as problem:
            raise SetupError(f"volume source {source} does not exist") from problem
        sources.volumes.append((target, tree))


def _open_system(sources: Sources) -> None:
    sources.system.append(("/usr", sources.tree("/usr", _SYSTEM, mapped=False)))
    for name in _ROOT_LINKS:
        if os.path.islink(f"/{name}"):
            sources.system.append((f"/{name}", os.readlink(f"/{name}")))
        elif os.path.isdir(f"/{name}"):
            sources.system.append((f"/{name}", sources.tree(f"/{name}", _SYSTEM, mapped=False)))
    for name in _ETC:
        path = f"/etc/{name}"
        real = os.path.realpath(path)
        if real != path and _below(real, "/usr"):
            sources.system.append((path, real))
        elif os.path.exists(real):
            try:
                sources.system.append((path, sources.tree(real, _SYSTEM, mapped=False)))
            except PermissionError:
                continue  # what we may not look into the container may not either


def _open_visible(spec: dict[str, Any], sources: Sources) -> None:
    cwd, shown = spec["cwd"], spec["root"]["visible"]
    tops = [target for target, entry in sources.system if isinstance(entry, str) or entry[1]]
    if not covered(spec, cwd) and not _is_own(cwd):
        # The machine's files where these are shown, written over not into; elsewhere an empty directory.
        if any(_below(cwd, top) for top in (*tops, *(target for _, target in shown))) and os.path.isdir(cwd):
            sources.overlaid = cwd
            sources.run, _ = sources.tree(os.path.dirname(spec["work"]), _VOLUME, mapped=True)
        else:
            sources.volumes.append((cwd, sources.tree(spec["work"], _VOLUME, mapped=True)))
    above = (*_COVERED, *(target for target, _ in sources.volumes))
    for source, target in shown:
        if os.path.exists(source):
            # What is visible below a directory that is mounted with the volumes comes after it.
            entries = sources.volumes if any(_below(target, top) for top in above) else sources.system
            entries.append((target, sources.tree(source, _SYSTEM, mapped=True)))
    sources.volumes += [(path, None) for path in spec["root"]["covers"]]


def _open_devices(spec: dict[str, Any], sources: Sources) -> None:
    names = os.listdir("/dev") if spec["privileged"] else _DEVICES
    for name in (*names, *(path.removeprefix("/dev/") for path in spec.get("devices", ()))):
        path = f"/dev/{name}"
        if name in ("shm", "pts", "ptmx", "mqueue") or os.path.islink(path) or not os.path.exists(path):
            continue
        handle, directory = sources.tree(path, 0, mapped=False)
        sources.devices.append((name, handle, directory))


def _all_mounts(spec: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The pod's own files first, so that a volume may replace one."""
    mounts = [(source, target, True) for source, target in spec["files"]]
    if spec["root"]["kind"] == "host":
        mounts += [(spec["tmp"], "/tmp", False), (spec["home"], HOME, False)]
        mounts += [(path, path, False) for path in spec["writable"] if os.path.exists(path)]
    return mounts + [(source, target, read_only) for source, target, read_only in spec["mounts"]]


def _is_own(path: str) -> bool:
    """Whether a host environment has a directory of this name in any case."""
    return path in ("/", HOME, "/var/tmp") or path[1:] in _OWN or path.startswith(("/proc/", "/dev/"))


def covered(spec: dict[str, Any], path: str) -> bool:
    """Whether a volume or a writable path is at `path` or above it."""
    tops = [target for _, target, _ in spec["mounts"]] + spec["writable"]
    return any(_below(path, top) for top in tops)


# ----- the container's root


def enter(spec: dict[str, Any], sources: Sources) -> None:
    """Make the container's root and go there."""
    _make_root(spec, sources, linux.change_root)


def enter_beside(spec: dict[str, Any], sources: Sources) -> tuple[str, int]:
    """As `enter`, with the machine's root kept in the mount namespace. Where the container's root is, and a handle of the
    machine's, to `return_to`."""
    handle = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return _make_root(spec, sources, _change_own_root), handle


def _change_own_root(path: str) -> None:
    os.chroot(path)
    os.chdir("/")


def return_to(handle: int) -> None:
    """The root of this process is what `enter_beside` left."""
    os.fchdir(handle)
    os.chroot(".")
    os.close(handle)


def masked_proc() -> list[str]:
    return [name for name in _MASKED_PROC if os.path.exists(f"/proc/{name}")]


def _make_root(spec: dict[str, Any], sources: Sources, change_root: Callable[[str], None]) -> str:
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    kind = spec["root"]["kind"]
    new = make_root(spec, sources, STAGE)
    # Before the old root goes: a user namespace may mount a /proc only while it sees another.
    linux.mount("proc", f"{new}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    change_root(new)
    make_devices(spec, sources)
    if not spec["privileged"]:
        _guard_proc()
    put_volumes(sources)
    if spec["read_only_root"] or kind == "host":
        handle = os.open("/", os.O_PATH | os.O_CLOEXEC)
        linux.set_attributes(handle, linux.ATTR_RDONLY, recursive=False)
        os.close(handle)
    sources.close()
    return new


def make_root(spec: dict[str, Any], sources: Sources, stage: str) -> str:
    """The container's root at `stage` or below it; without /proc, devices and volumes."""
    kind = spec["root"]["kind"]
    if kind == "host":
        _host_root(spec, sources, stage)
        return stage
    new = stage
    if kind == "directory":
        linux.attach(sources.layers, new)
    else:
        new = _layered_root(spec["root"], sources, stage)
    _own_directories(new)
    return new


def make_devices(spec: dict[str, Any], sources: Sources) -> None:
    """In the root of this process."""
    limits = spec.get("limits") or {}
    _dev(sources.devices, limits.get("memory") or limits.get("pod_memory") or 0)


def put_volumes(sources: Sources) -> list[str]:
    """In the root of this process; the places where there are volumes now."""
    placed = []
    for target, source in sorted(sources.volumes, key=lambda pair: pair[0].rstrip("/").count("/")):
        if source is not None:
            placed.append(_put(source, target))
        elif os.path.isdir(target):
            linux.mount("none", target, "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID, "mode=000,size=4k")
    return placed


def _host_root(spec: dict[str, Any], sources: Sources, stage: str) -> None:
    linux.mount("none", stage, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4m")
    for name in _OWN:
        os.mkdir(f"{stage}/{name}")
    os.mkdir(stage + HOME)
    os.symlink("../tmp", f"{stage}/var/tmp")
    linux.mount("none", f"{stage}/run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=16m")
    made = {stage, f"{stage}/etc"}
    for target, entry in sorted(sources.system, key=lambda pair: pair[0].count("/")):
        place = stage + target
        above = os.path.dirname(place)
        if above not in made:
            os.makedirs(above, exist_ok=True)
            made.add(above)
        if isinstance(entry, str):
            os.symlink(entry, place)
        else:
            mount_point(place, entry[1])
            linux.attach(entry[0], place)
    for name, text in _names(spec).items():
        if not os.path.lexists(f"{stage}/etc/{name}"):
            handle = os.open(f"{stage}/etc/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(handle, text.encode())
            os.close(handle)
    if sources.overlaid:
        _writable_view(spec, sources, stage)


def _names(spec: dict[str, Any]) -> dict[str, str]:
    """Files of /etc that are the container's own: who there is."""
    user = os.getuid() if spec["user"] is None else spec["user"]
    group = os.getgid() if spec["user"] is None else spec["user_group"]
    if spec["group"] is not None:
        group = spec["group"]
    people = {0: f"root:x:0:0:root:{HOME}:/bin/sh", 65534: "nobody:x:65534:65534:nobody:/:/bin/false"}
    groups = {0: "root:x:0:", 65534: "nogroup:x:65534:"}
    people.setdefault(user, f"app:x:{user}:{group}:app:{HOME}:/bin/sh")
    groups.setdefault(group, f"app:x:{group}:")
    return {
        "passwd": "\n".join(people.values()) + "\n",
        "group": "\n".join(groups.values()) + "\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }


def _writable_view(spec: dict[str, Any], sources: Sources, stage: str) -> None:
    """Let a container write in a working directory that the machine has, without the machine seeing it."""
    place, run = stage + sources.overlaid, f"{stage}/.run"
    os.mkdir(run)
    linux.attach(sources.run, run)
    work, overlay = (f"{run}/{os.path.basename(spec[name])}" for name in ("work", "overlay"))
    options = f"lowerdir={_escaped(place)},upperdir={work},workdir={overlay}"
    if spec["root"].get("userxattr"):
        options += ",userxattr"
    # Where there is no overlay, or one around our own files, it stays read-only.
    with contextlib.suppress(OSError):
        linux.mount("overlay", place, "overlay", linux.MS_NODEV | linux.MS_NOSUID, options)
    linux.unmount(run)
    os.rmdir(run)


def _layered_root(root: dict[str, Any], sources: Sources, stage: str) -> str:
    new, run, layers = (f"{stage}/{name}" for name in ("root", "run", "layers"))
    linux.mount("none", stage, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=64k")
    for path, handle in ((new, -1), (run, sources.run), (layers, sources.layers)):
        os.mkdir(path)
        if handle >= 0:
            linux.attach(handle, path)
    # Relative names: the options of one mount must fit into a page, and layers have long names.
    os.chdir(layers)
    lowers = ":".join(_escaped(name) for name in root["lowers"])
    upper, scratch = (f"{run}/{os.path.basename(root[name])}" for name in ("upper", "scratch"))
    options = f"lowerdir={lowers},upperdir={upper},workdir={scratch}"
    if root.get("userxattr"):
        options += ",userxattr"
    linux.mount("overlay", new, "overlay", linux.MS_NODEV, options)
    os.chdir("/")
    return new


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")


def _own_directories(root: str) -> None:
    for name in ("proc", "dev", "sys", "tmp", "etc"):
        path = f"{root}/{name}"
        if os.path.islink(path):
            os.unlink(path)  # an image must not choose where our mounts go
        os.makedirs(path, exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)


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


def _dev(devices: list[tuple[str, int, bool]], memory: int) -> None:
    """`memory`: the container's limit, in bytes; 0: it has none."""
    linux.mount("none", "/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for name, handle, directory in devices:
        os.makedirs(os.path.dirname(f"/dev/{name}"), exist_ok=True)
        mount_point(f"/dev/{name}", directory)
        linux.attach(handle, f"/dev/{name}")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.mkdir("/dev/shm")
    # Where control groups count nobody's memory, files here must not get around the limit. Else half of the machine's.
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    size = f",size={memory}" if 0 < memory < half else ""
    linux.mount("none", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777{size}")
    os.mkdir("/dev/pts")
    linux.mount("none", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")


def _put(source: tuple[int, bool], target: str) -> str:
    """Answers where it is, with all links followed: what is mounted at a link itself is not seen."""
    handle, directory = source
    try:
        _make_way(target, directory)
        place = os.path.realpath(target)
        linux.attach(handle, place)
    except OSError as problem:
        raise SetupError(f"cannot mount a volume at {target}: {problem.strerror}") from problem
    return place


def mount_point(path: str, directory: bool) -> None:
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
                mount_point(place, directory or not last)
            except OSError:
                _mirror(at or "/", without=part)
                mount_point(step, directory or not last)
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
            mount_point(step, entry[1])
            linux.attach(entry[0], step)
            os.close(entry[0])
