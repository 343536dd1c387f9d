"""The images on this machine.

    <directory>/refs/<name>.json         what a name stands for
    <directory>/layers/<digest>/fs       an unpacked layer, shared by all images that have it
    <directory>/layers/<digest>/lock     held by whoever uses the layer
    <directory>/layers/<digest>/tar      how to pack the layer again (tar_record.py)
    <directory>/configs/<digest>         the configuration of an image
    <directory>/used/<digest>            of an image: its mtime says when it was last used
    <directory>/shared                   a link to the directory whose layers several domains share, if there is one

Built in, and never on disk: `coterie/host:latest`, the machine's own programs, and `coterie/python:latest`, the
interpreter that Coterie runs on, and `coterie-actor:latest`, the program of an actor on it (without installed packages). Every change is one rename, so a crash leaves the old or the new.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import coterie
from coterie.base.files import PRIVATE_DIRECTORY, PRIVATE_FILE, private_directory, write_atomic
from coterie.kube.agent.images.environment import environment_id
from coterie.kube.agent.images.model import HOST, ROOTFS, ImageError, StoredImage, normalise, without_registry

HOST_IMAGE = "coterie/host:latest"
PYTHON_IMAGE = "coterie/python:latest"
ACTOR_IMAGE = "coterie-actor:latest"
_SHORTEST_ID = 6


class ImageStore:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.layers = directory / "layers"
        self.environments = directory / "environments"
        """What is known about the files of host environments."""
        self._configs = directory / "configs"
        self._used = directory / "used"
        self._refs = directory / "refs"
        self._builtin = {image.name: image for image in builtin_images()}
        self.code_ids: dict[str, str] = {}
        """Of built-in images with code of their own, by name: what an agent of this process saw when it last looked at it."""

    # ----- reading

    def content_digest(self, image: StoredImage) -> str:
        """The id where it covers what is inside; empty for programs of the machine, for directories that are used where they lie, and
        for built-in images that nobody looked at yet."""
        if image.builtin:
            return self.code_ids.get(image.name, "")
        return image.id if image.kind == HOST or image.layers else ""

    def images(self) -> list[StoredImage]:
        """All images by name, the built-in ones first."""
        found = list(self._builtin.values())
        if self._refs.is_dir():
            for path in sorted(self._refs.glob("*.json")):
                with contextlib.suppress(FileNotFoundError):
                    found.append(_load(path))
        return found

    def find(self, name: str) -> StoredImage | None:
        """The image of a name; one that names a registry is also found without it. Raises ImageError for nonsense."""
        wanted = normalise(name)
        plain, _, digest = wanted.partition("@")
        for candidate in dict.fromkeys((plain, without_registry(plain))):
            image = self._builtin.get(candidate) or self._read(candidate)
            if image is not None and (not digest or digest in (image.id, image.manifest)):
                return image
        return None

    def resolve(self, text: str) -> StoredImage:
        """As a person names it: a name, or the beginning of an id."""
        start = text.removeprefix("sha256:")
        if len(start) >= _SHORTEST_ID and all(c in "0123456789abcdef" for c in start):
            matching = {image.id: image for image in self.images() if image.id[7:].startswith(start)}
            if len(matching) == 1:
                return next(iter(matching.values()))
            if len(matching) > 1:
                raise ImageError(f'"{text}" is the beginning of several image ids; write more of it')
        image = self.find(text)
        if image is None:
            raise ImageError(f'there is no image "{text}"; `coterie image ls` lists them')
        return image

    def _read(self, name: str) -> StoredImage | None:
        try:
            return _load(self._path(name))
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> Path:
        return self._refs / f"{urllib.parse.quote(name, safe='')}.json"

    def layer_paths(self, image: StoredImage) -> list[Path]:
        """Unpacked layers, topmost first."""
        return [self.layer(digest) / "fs" for digest in reversed(image.layers)]

    def overlay_layers(self, image: StoredImage) -> tuple[str, list[str]] | None:
        """The directory that has all unpacked layers of an image, and their names in it, topmost first. None: some lie in the
        shared directory and others do not."""
        places = [os.path.realpath(self.layer(digest)) for digest in reversed(image.layers)]
        parents = {os.path.dirname(place) for place in places} or {str(self.layers)}
        return (parents.pop(), [f"{os.path.basename(place)}/fs" for place in places]) if len(parents) == 1 else None

    def layer(self, digest: str) -> Path:
        return self.layers / digest.removeprefix("sha256:")

    def config(self, image_id: str) -> bytes | None:
        """The image's configuration as it came, whose digest is the image's id."""
        try:
            return (self._configs / image_id.removeprefix("sha256:")).read_bytes()
        except FileNotFoundError:
            return None

    # ----- changing

    def keep_config(self, config: bytes) -> None:
        path = self._configs / hashlib.sha256(config).hexdigest()
        if not path.exists():
            private_directory(self._configs)
            write_atomic(path, config)

    def save(self, image: StoredImage) -> StoredImage:
        """Give a name to an image, taking it from any other that had it."""
        if image.name in self._builtin:
            raise ImageError(f"{image.name} is built in and cannot be replaced")
        private_directory(self._refs)
        text = json.dumps(asdict(replace(image, builtin=False)), indent=1, sort_keys=True)
        write_atomic(self._path(image.name), text, mode=PRIVATE_FILE)
        self.mark_used((image.id,))
        return image

    def add_host(
        self,
        name: str,
        command: Sequence[str],
        *,
        args: Sequence[str] = (),
        env: Sequence[tuple[str, str]] = (),
        workdir: str = "",
        visible: Sequence[str] = (),
        preload: Sequence[str] = (),
    ) -> StoredImage:
        """A host environment: a command on this machine. `visible` are further paths that its containers may read; `preload`
        are Python modules that are imported ahead of them, with the rights of the node."""
        _check_preload(preload, args)
        for path in visible:
            if not os.path.isabs(path) or ".." in path.split("/") or os.path.normpath(path) == "/":
                raise ImageError(f"{path} cannot be made visible: it is not an absolute path below /")
        image = StoredImage(
            normalise(name),
            "",
            HOST,
            entrypoint=tuple(command),
            cmd=tuple(args),
            env=tuple(env),
            workdir=workdir,
            visible=tuple(os.path.normpath(path) for path in visible),
            preload=tuple(preload),
        )
        return self.save(replace(image, id=environment_id(image, self.environments)))

    def add_rootfs(
        self,
        name: str,
        directory: Path,
        *,
        command: Sequence[str] = (),
        args: Sequence[str] = (),
        env: Sequence[tuple[str, str]] = (),
        workdir: str = "",
    ) -> StoredImage:
        """A root file system that lies somewhere; it is used where it is, and never written to."""
        if not directory.is_dir():
            raise ImageError(f"{directory} is not a directory with a root file system")
        image = StoredImage(
            normalise(name),
            "",
            ROOTFS,
            size=_tree_size(directory),
            entrypoint=tuple(command),
            cmd=tuple(args),
            env=tuple(env),
            workdir=workdir,
            directory=str(directory.absolute()),
        )
        return self.save(replace(image, id=_id_of(image)))

    def tag(self, source: str, name: str) -> StoredImage:
        return self.save(replace(self.resolve(source), name=normalise(name)))

    def remove(self, text: str) -> StoredImage:
        """Take a name away, and the layers that no name and no container needs any more."""
        image = self.resolve(text)
        if image.name in self._builtin:
            raise ImageError(f"{image.name} is built in and cannot be removed")
        self._path(image.name).unlink(missing_ok=True)
        self.collect()
        return image

    def collect(self, *, downloads_before: float = 0.0) -> None:
        """Remove layers and configurations without a name. A layer that a container uses stays until a later time.
        `downloads_before`: interrupted downloads that nothing was added to since then go as well. While an image is being
        installed nothing is removed: its layers have no name yet."""
        with self._locked(fcntl.LOCK_EX) as alone:
            if alone:
                self._collect(downloads_before)

    def installing(self) -> contextlib.AbstractContextManager[bool]:
        """While an image is being installed: layers that it finds here stay."""
        return self._locked(fcntl.LOCK_SH)

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[bool]:
        self.directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
        with _flocked(self.directory / "lock", kind) as held:
            yield held

    def _collect(self, downloads_before: float) -> None:
        images = self.images()
        needed = {digest.removeprefix("sha256:") for image in images for digest in image.layers}
        ids = {image.id.removeprefix("sha256:") for image in images}
        for path in [*self._configs.glob("*"), *self._used.glob("*")]:
            if path.name not in ids and not path.name.startswith("."):
                path.unlink(missing_ok=True)
        for path in (self.directory / "downloads").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < downloads_before:
                    path.unlink()
        if not self.layers.is_dir():
            return
        for layer in list(self.layers.iterdir()):
            if layer.name not in needed and not layer.name.startswith("."):
                _remove_unused(layer)
        if self.shared is not None:
            self.shared.collect()

    # ----- use

    def mark_used(self, ids: Iterable[str]) -> None:
        """Images are removed in the order in which they were last used."""
        for image_id in ids:
            path = self._used / image_id.removeprefix("sha256:")
            try:
                os.utime(path)
            except FileNotFoundError:
                private_directory(self._used)
                path.touch(mode=PRIVATE_FILE)

    def last_used(self, ids: Iterable[str]) -> dict[str, float]:
        """Seconds since 1970, of the images that were ever used; they begin with their arrival."""
        found = {}
        for image_id in ids:
            with contextlib.suppress(FileNotFoundError):
                found[image_id] = (self._used / image_id.removeprefix("sha256:")).stat().st_mtime
        return found

    def is_locked(self, image: StoredImage) -> bool:
        """Whether something runs from its layers."""
        for digest in image.layers:
            with _unused(self.layer(digest)) as unused:
                if not unused:
                    return True
        return False

    @property
    def disk(self) -> Path:
        """A directory of the file system that layers lie on."""
        shared = [self.shared.directory] if self.shared is not None else []
        return next(path for path in (*shared, self.layers, self.directory, *self.directory.parents) if path.is_dir())

    # ----- sharing

    @property
    def shared(self) -> SharedLayers | None:
        """Where layers are put that other domains of the machine may use as well; None: nowhere."""
        try:
            return SharedLayers(Path(os.readlink(self.directory / "shared")))
        except OSError:
            return None

    def share(self, place: Path | None) -> None:
        """Put layers that come from now on into `place`, or no longer. Raises ImageError when it cannot be trusted."""
        link = self.directory / "shared"
        private_directory(self.directory)
        if place is not None:
            SharedLayers(place).join(self.directory)
        if place is None or self.shared is None or self.shared.directory != place:
            link.unlink(missing_ok=True)
        if place is not None and not link.is_symlink():
            link.symlink_to(place)


class SharedLayers:
    """Layers that several stores of one user of the machine use. Names, configurations and credentials stay with each store.

        <directory>/layers/<digest>    an unpacked layer, as in a store; stores have a link to it
        <directory>/stores/<hash>      the path of a store that uses this directory

    A layer comes in only when its content was checked against its digest, and a store gets a link only when it has shown
    the content itself: knowing the digest of another domain's private layer is not enough to read it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.layers = directory / "layers"
        self._stores = directory / "stores"

    def join(self, store: Path) -> None:
        """Raises ImageError for a directory that others than this user can read or write."""
        if not self.directory.is_absolute():
            raise ImageError(f"{self.directory} is not an absolute path")
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
            about = os.lstat(self.directory)
        except OSError as problem:
            raise ImageError(f"{self.directory} cannot be used for images: {problem.strerror}") from problem
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ImageError(
                f"{self.directory} cannot be used for images of several domains: it must be a directory of the user that runs "
                "them, and closed to others (chmod 700)"
            )
        for path in (self.layers, self._stores):
            private_directory(path)
        name = hashlib.sha256(os.fsencode(store.absolute())).hexdigest()[:32]
        write_atomic(self._stores / name, str(store.absolute()))

    @contextlib.contextmanager
    def locked(self, kind: int) -> Iterator[bool]:
        """Shared while a layer is installed or linked, exclusive (and not waited for) while layers are removed."""
        with _flocked(self.directory / "lock", kind) as held:
            yield held

    def collect(self) -> None:
        """Remove layers that no store has a link to."""
        if not self.layers.is_dir():
            return
        with self.locked(fcntl.LOCK_EX) as alone:
            if not alone:
                return
            linked: set[str] = set()
            for entry in list(self._stores.glob("*")):
                store = Path(entry.read_text())
                if not store.is_dir():
                    entry.unlink()
                elif (store / "layers").is_dir():
                    linked |= {path.name for path in (store / "layers").iterdir() if path.is_symlink()}
            for layer in list(self.layers.iterdir()):
                if layer.name not in linked and not layer.name.startswith("."):
                    _remove_unused(layer)


@contextlib.contextmanager
def _flocked(path: Path, kind: int) -> Iterator[bool]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        fcntl.flock(handle, kind | (fcntl.LOCK_NB if kind == fcntl.LOCK_EX else 0))
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def _remove_unused(layer: Path) -> None:
    with _unused(layer) as unused:
        if unused and layer.is_symlink():
            layer.unlink()
        elif unused:
            aside = layer.with_name(f".gone-{layer.name}")
            os.replace(layer, aside)
            remove_tree(aside)


@contextlib.contextmanager
def _unused(layer: Path) -> Iterator[bool]:
    try:
        handle = os.open(layer / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def builtin_images() -> tuple[StoredImage, ...]:
    python = StoredImage(
        PYTHON_IMAGE,
        "",
        HOST,
        entrypoint=(sys.executable,),
        env=(
            ("PATH", f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"),
            # So that the engines that come with Coterie are found without the search for installed packages (`-S`).
            ("PYTHONPATH", str(Path(coterie.__file__).parents[1])),
        ),
        builtin=True,
    )
    actor = replace(
        python,
        name=ACTOR_IMAGE,
        entrypoint=(sys.executable, "-S", "-P", "-m", "coterie.engines.actor"),
        preload=("coterie.engines.actor.runtime", "coterie.engines.actor.uploads", "asyncio", "traceback"),
    )
    host = StoredImage(HOST_IMAGE, "", HOST, env=(("PATH", os.environ.get("PATH", os.defpath)),), builtin=True)
    return tuple(replace(image, id=_id_of(image)) for image in (host, python, actor))


_MOST_LEVELS = 100


def remove_tree(path: Path) -> None:
    """Also directories that took their owner's rights away, as overlays and images do. What lies above stays as it is."""
    top = os.fspath(path)

    def open_up(function: Any, failed: str | os.PathLike[str], _: Any) -> None:
        name = os.fspath(failed)
        for at in (os.path.dirname(name), name):
            inside = at == top or at.startswith(f"{top}{os.sep}")
            if inside and not os.path.islink(at):
                with contextlib.suppress(OSError):
                    os.chmod(at, 0o700)
        with contextlib.suppress(FileNotFoundError):
            if function is os.unlink:
                os.unlink(name)
            elif function is not os.lstat:
                shutil.rmtree(name, ignore_errors=True)

    with contextlib.suppress(RecursionError):  # nested deeper than the interpreter's stack
        shutil.rmtree(path, onerror=open_up)
    if os.path.isdir(top) and not os.path.islink(top):
        _flatten(top)
        shutil.rmtree(path, onerror=open_up)


def _flatten(top: str) -> None:
    """Move directories that are nested too deep to be removed up to `top`, piece by piece."""
    count = 0
    waiting = [top]
    while waiting:
        levels: list[tuple[int, list[str]]] = []
        _descend(levels, None, waiting.pop())
        while levels:
            handle, names = levels[-1]
            if not names:
                os.close(handle)
                levels.pop()
            elif len(levels) < _MOST_LEVELS:
                _descend(levels, handle, names.pop())
            else:
                count += 1
                name = names.pop()
                moved = os.path.join(top, f".moved-{os.getpid()}-{count}")
                with contextlib.suppress(OSError):
                    os.rename(name, moved, src_dir_fd=handle)
                    waiting.append(moved)


def _descend(levels: list[tuple[int, list[str]]], parent: int | None, name: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        with os.scandir(handle) as entries:
            levels.append((handle, [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]))


def _check_preload(modules: Sequence[str], words: Sequence[str]) -> None:
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ImageError(f'"{module}" cannot be preloaded: it is not the name of a Python module')
    if modules and "-m" not in words[:-1]:
        raise ImageError(
            "preloaded modules need a program that is started as a Python module: arguments such as -I -m MODULE"
        )


def _load(path: Path) -> StoredImage:
    data = json.loads(path.read_bytes())
    for key in ("entrypoint", "cmd", "layers", "visible", "preload"):
        data[key] = tuple(data.get(key, ()))
    data["signatures"] = tuple(tuple(each) for each in data.get("signatures", ()))
    data["env"] = tuple((name, value) for name, value in data["env"])
    return StoredImage(**data)


def _id_of(image: StoredImage) -> str:
    """From what the image is, not what it is called. A built-in one is what this machine has: only its name tells."""
    facts = {"builtin": image.name} if image.builtin else {**asdict(image), "name": "", "id": "", "size": 0}
    for key in ("visible", "preload"):
        if not facts.get(key):
            facts.pop(key, None)  # as before images had this
    for key in ("manifest", "platform_manifest", "signatures"):
        facts.pop(key, None)
    text = json.dumps(facts, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _tree_size(directory: Path) -> int:
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_size
    return total
