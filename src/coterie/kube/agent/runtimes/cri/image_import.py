"""Images of our store, made known to containerd without pulling them again.

    layers/<digest>/fs ──linked file by file──> a snapshot of containerd
    name, command, user, environment ──> config and manifest, two small blobs; an image that names them

The store's layers are in overlayfs format already, so a snapshot is made of hard links where both are on one file system, else
of copies. What is in a layer is never written to: a container writes into a layer of its own. The manifest names the layers by
the store's digests; their archives are not kept, as containerd itself does with `discard_unpacked_layers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from coterie.kube.agent.images.model import HOST, StoredImage
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.images.unpack import is_opaque
from coterie.kube.agent.runtimes.cri import messages
from coterie.kube.agent.runtimes.cri.connection import ContainerdCallFailed, ContainerdConnection
from coterie.kube.agent.runtimes.cri.daemon import PAUSE_IMAGE, SNAPSHOTTER
from coterie.kube.agent.runtimes.protocol import RuntimeFailure

OURS = "coterie.io/image-id"
"""Label of the images that came from the store: the store's id."""
_REPOSITORY = "coterie.invalid/image"
_LEASE_SECONDS = 3600
_SEEN_SECONDS, _POLL_SECONDS = 10.0, 0.02
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_OPAQUE = "trusted.overlay.opaque"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LayerWriter = Callable[[Path], None]
"""Fills an empty directory."""
_NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP)


class ImageImport:
    def __init__(self, store: ImageStore, connection: ContainerdConnection) -> None:
        self._store = store
        self._connection = connection
        self._references: dict[str, str] = {}
        """By the store's id: containerd's name for the image."""
        self._lock = asyncio.Lock()

    async def ensure(self, image: StoredImage) -> str:
        """containerd's name of the image, which is imported if it is not there. Raises RuntimeFailure."""
        if image.kind == HOST:
            raise RuntimeFailure(
                "CreateContainerError",
                f"image {image.name} is a host environment, which containerd cannot run; "
                "give the pod runtimeClassName: runp, or an image with a file system of its own",
            )
        if image.id in self._references:
            return self._references[image.id]
        name = f"{_REPOSITORY}:{image.id.removeprefix('sha256:')}"
        async with self._lock:
            if image.id not in self._references:
                if not await self._known(name):
                    await self._import(image, name)
                self._references[image.id] = name
        return name

    async def ensure_pause(self, program: bytes) -> None:
        """The image that holds a pod's namespaces: one small program."""
        if PAUSE_IMAGE in self._references:
            return
        async with self._lock:
            if not await self._known(PAUSE_IMAGE):
                digest = f"sha256:{hashlib.sha256(program).hexdigest()}"

                def write(target: Path) -> None:
                    path = target / "pause"
                    path.write_bytes(program)
                    path.chmod(0o555)

                lease = await self._lease()
                try:
                    await self._snapshot(digest, "", write, lease)
                    await self._describe(PAUSE_IMAGE, {"Entrypoint": ["/pause"]}, [digest], digest, {}, lease)
                finally:
                    await self._connection.call("leases.v1.Leases/Delete", {"id": lease})
                await self._until_known(PAUSE_IMAGE)
            self._references[PAUSE_IMAGE] = PAUSE_IMAGE

    async def collect(self) -> None:
        """Forget images that the store has no more. What a container uses stays until the container is gone."""
        try:
            known = (await self._connection.call("images.v1.Images/List")).get("images", [])
        except ContainerdCallFailed:
            return
        kept = {image.id for image in self._store.images()}
        for image in known:
            identity = image.get("labels", {}).get(OURS, "")
            if identity and identity not in kept:
                self._references.pop(identity, None)
                with contextlib.suppress(ContainerdCallFailed):
                    await self._connection.call("images.v1.Images/Delete", {"name": image["name"]})

    async def _known(self, name: str) -> bool:
        answer = await self._connection.call("ImageStatus", {"image": {"image": name}})
        return bool(answer.get("image"))

    async def _until_known(self, name: str) -> None:
        """CRI learns of images by an event."""
        try:
            async with asyncio.timeout(_SEEN_SECONDS):
                while not await self._known(name):  # noqa: ASYNC110 - containerd tells nobody
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as problem:
            raise RuntimeFailure("CreateContainerError", "containerd does not see the image it was given") from problem

    async def _lease(self) -> str:
        """Nothing that is written with it is garbage before the image is complete."""
        name = f"coterie-{os.urandom(8).hex()}"
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _LEASE_SECONDS))
        labels = {"containerd.io/gc.expire": until}
        await self._connection.call("leases.v1.Leases/Create", {"id": name, "labels": labels})
        return name

    async def _import(self, image: StoredImage, name: str) -> None:
        lease = await self._lease()
        try:
            sources = _sources(self._store, image)
            chain = ""
            for digest, source in sources:
                # A directory of the user's own may be changed in place, which a link would follow.
                write = partial(copy_layer, source, link=not image.directory)
                chain = await self._snapshot(digest, chain, write, lease)
            config: dict[str, object] = {
                "Entrypoint": list(image.entrypoint),
                "Cmd": list(image.cmd),
                "Env": [f"{key}={value}" for key, value in image.env],
                "WorkingDir": image.workdir,
                "User": image.user,
            }
            await self._describe(name, config, [digest for digest, _ in sources], chain, {OURS: image.id}, lease)
        except OSError as problem:
            raise RuntimeFailure(
                "CreateContainerError", f"image {image.name} cannot be given to containerd: {problem}"
            ) from problem
        finally:
            with contextlib.suppress(ContainerdCallFailed):
                await self._connection.call("leases.v1.Leases/Delete", {"id": lease})
        await self._until_known(name)

    async def _snapshot(self, digest: str, parent: str, write: LayerWriter, lease: str) -> str:
        """One layer upon another; its chain id. One that is there is not made again."""
        chain = chain_id(parent, digest)
        with contextlib.suppress(ContainerdCallFailed):
            await self._connection.call("snapshots.v1.Snapshots/Stat", _snapshot(chain), lease=lease)
            return chain
        key = f"coterie-import-{os.urandom(8).hex()}"
        prepared = await self._connection.call(
            "snapshots.v1.Snapshots/Prepare", {**_snapshot(key), "parent": parent}, lease=lease
        )
        try:
            await asyncio.to_thread(write, upper_directory(prepared["mounts"]))
            commit = {"snapshotter": SNAPSHOTTER, "name": chain, "key": key}
            await self._connection.call("snapshots.v1.Snapshots/Commit", commit, lease=lease)
        except BaseException:
            with contextlib.suppress(ContainerdCallFailed):
                await self._connection.call("snapshots.v1.Snapshots/Remove", _snapshot(key))
            raise
        return chain

    async def _describe(
        self,
        name: str,
        config: dict[str, object],
        digests: Sequence[str],
        chain: str,
        labels: dict[str, str],
        lease: str,
    ) -> None:
        """The blobs of an image whose snapshots are there, and the image itself."""
        machine = os.uname().machine
        document = {
            "architecture": _MACHINES.get(machine, machine),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": list(digests)},
        }
        references = {f"containerd.io/gc.ref.snapshot.{SNAPSHOTTER}": chain}
        described = await self._blob(_CONFIG_TYPE, document, references, lease)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _oci(described),
            "layers": [{"mediaType": _LAYER_TYPE, "digest": digest, "size": 0} for digest in digests],
        }
        target = await self._blob(
            _MANIFEST_TYPE, manifest, {"containerd.io/gc.ref.content.config": str(described["digest"])}, lease
        )
        try:
            await self._connection.call(
                "images.v1.Images/Create", {"image": {"name": name, "labels": labels, "target": target}}, lease=lease
            )
        except ContainerdCallFailed as problem:
            if problem.code != "ALREADY_EXISTS":
                raise

    async def _blob(self, media_type: str, document: object, labels: dict[str, str], lease: str) -> dict[str, object]:
        data = json.dumps(document, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        message = {
            "action": messages.COMMIT,
            "ref": f"coterie-{digest}",
            "total": len(data),
            "expected": digest,
            "data": data,
            "labels": labels,
        }
        try:
            await self._connection.write_content(message, lease)
        except ContainerdCallFailed as problem:
            if problem.code != "ALREADY_EXISTS":
                raise
        return {"media_type": media_type, "digest": digest, "size": len(data)}


def chain_id(parent: str, digest: str) -> str:
    """Of a layer upon others, as the OCI image specification has it."""
    return f"sha256:{hashlib.sha256(f'{parent} {digest}'.encode()).hexdigest()}" if parent else digest


def upper_directory(mounts: Sequence[messages.Message]) -> Path:
    """Where what is written over the lower layers lies."""
    for option in mounts[-1].get("options", ()):
        if option.startswith("upperdir="):
            return Path(option.removeprefix("upperdir="))
    return Path(mounts[-1]["source"])


def _sources(store: ImageStore, image: StoredImage) -> list[tuple[str, Path]]:
    """Digest and directory of each layer, lowest first."""
    if image.directory:
        return [(f"sha256:{hashlib.sha256(image.id.encode()).hexdigest()}", Path(image.directory))]
    return [(digest, store.layer(digest) / "fs") for digest in image.layers]


def _snapshot(key: str) -> messages.Message:
    return {"snapshotter": SNAPSHOTTER, "key": key}


def _oci(descriptor: dict[str, object]) -> dict[str, object]:
    return {"mediaType": descriptor["media_type"], "digest": descriptor["digest"], "size": descriptor["size"]}


# Files.


def copy_layer(source: Path, target: Path, *, link: bool) -> None:
    """All of a layer into an empty directory: files as links to the same content if `link`, else copied. Raises OSError."""
    _copy_directory(os.fspath(source), os.fspath(target), link)


def _copy_directory(source: str, target: str, link: bool) -> None:
    info = os.lstat(source)
    os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    if is_opaque(source):
        os.setxattr(target, _OPAQUE, b"y")
    with os.scandir(source) as entries:
        for entry in entries:
            place = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(place)
                _copy_directory(entry.path, place, link)
            elif not (link and _linked(entry.path, place)):
                _copy_file(entry.path, place)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _linked(source: str, target: str) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as problem:
        if problem.errno in _NO_LINKS:
            return False
        raise
    return True


def _copy_file(source: str, target: str) -> None:
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(info.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
        os.mknod(target, info.st_mode, info.st_rdev)
    elif stat.S_ISFIFO(info.st_mode):
        os.mkfifo(target)
    else:
        return  # sockets and devices of a directory on this machine: containers get a /dev of their own
    os.chown(target, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)
