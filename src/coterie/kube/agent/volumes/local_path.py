"""Volumes of class `local-path`: directories of this node, one for each PersistentVolume, made for its first pod.

    <var>/volumes/<name>/        the files
    <var>/volumes/<name>.json    which PersistentVolume this is, and what becomes of the files when it is gone

The agent watches the PersistentVolume of each directory it has. When that is gone and said `Delete`, the directory goes;
with `Retain` it stays for a person to look at. What a volume said last is kept on disk, so that a volume that was
deleted while no agent ran is treated as it should be.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.agent.volumes import directories
from coterie.kube.api.labels import LOCAL_PATH_PROVISIONER, PROVISIONED_BY, SELECTED_NODE
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.storage import VOLUMES
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange

log = logger("agent.volumes")
_PLAIN = VOLUMES.as_dynamic


class VolumeRecord(msgspec.Struct, frozen=True):
    """What is kept beside the directory of a volume."""

    name: str
    uid: str
    reclaim: str


@dataclass(slots=True)
class _Watched:
    informer: Informer[Object]
    task: asyncio.Task[Any]


def is_local_path(volume: Object) -> bool:
    annotations = volume["metadata"].get("annotations") or {}
    return annotations.get(PROVISIONED_BY) == LOCAL_PATH_PROVISIONER


class LocalVolumes:
    """A Runnable."""

    name = "local-volumes"

    def __init__(self, client: Client, directory: Path, node: str) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._directory = directory
        self._node = node
        self._stop = asyncio.Event()
        self._owner = TaskOwner("local-volumes")
        self._watched: dict[str, _Watched] = {}

    @property
    def directory(self) -> Path:
        return self._directory

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        try:
            for record in self.records():
                self._watch(record.name)
            self.ready.set()
            await self._stop.wait()
        finally:
            await self._owner.close()

    def records(self) -> list[VolumeRecord]:
        """The volumes that have a directory here."""
        found = (self._record(path.stem) for path in sorted(self._directory.glob("*.json")))
        return [record for record in found if record is not None]

    def ensure(self, volume: Object, group: int | None) -> Path:
        """The directory of a volume that was made on this node. Raises ConfigProblem."""
        meta = volume["metadata"]
        name = str(meta["name"])
        node = (meta.get("annotations") or {}).get(SELECTED_NODE)
        if node != self._node:
            raise ConfigProblem(f"volume {name} is on node {node}, not on this one")
        if dns_subdomain_faults(name):
            raise ConfigProblem(f"{name!r} is not the name of a volume")
        private_directory(self._directory)
        self._remember(volume)
        path = self._directory / name
        directories.empty_directory(path, {}, group)
        self._watch(name)
        return path

    def _remember(self, volume: Object) -> None:
        meta = volume["metadata"]
        policy = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") or "Retain"
        record = VolumeRecord(meta["name"], meta["uid"], policy)
        if self._record(record.name) != record:
            write_atomic(self._directory / f"{record.name}.json", msgspec.json.encode(record))

    def _record(self, name: str) -> VolumeRecord | None:
        data = read_bytes_or_none(self._directory / f"{name}.json")
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=VolumeRecord)
        except ValueError as error:
            log.warning("The record of a volume cannot be read; its files are kept", error=error, volume=name)
            return None

    def _watch(self, name: str) -> None:
        if name in self._watched:
            return
        informer = Informer(self._client, _PLAIN, fields=f"metadata.name={name}")
        informer.add_handler(lambda change: self._changed(change))
        task = self._owner.start(name, self._follow(name, informer), vital=False)
        self._watched[name] = _Watched(informer, task)

    async def _follow(self, name: str, informer: Informer[Object]) -> None:
        async with TaskOwner(f"local-volumes/{name}") as owner:
            running = owner.start("watch", informer.run(), vital=False)
            try:
                await informer.ready.wait()
                if not informer.cache.list():
                    self._gone(name)
                await running
            finally:
                running.cancel()

    def _changed(self, change: ObjectChange[Object]) -> None:
        volume = change.object
        name = volume["metadata"]["name"]
        known = self._record(name)
        if change.type == "deleted" or known is None or known.uid != volume["metadata"]["uid"]:
            self._gone(name)
        else:
            self._remember(volume)

    def _gone(self, name: str) -> None:
        """The API has no such volume any more."""
        record = self._record(name)
        watched = self._watched.pop(name, None)
        if watched is not None:
            watched.task.cancel()
        if record is None:
            return
        if record.reclaim == "Delete":
            self._owner.start(f"remove/{name}", self._remove(name), vital=False)
        else:
            log.info("Files of a deleted volume are kept", volume=name, directory=str(self._directory / name))
            (self._directory / f"{name}.json").unlink(missing_ok=True)

    async def _remove(self, name: str) -> None:
        path = self._directory / name
        try:
            if path.is_dir():
                await asyncio.to_thread(remove_tree, path)
        except OSError as error:
            log.warning("Files of a deleted volume could not be removed", error=error, volume=name)
            return
        (self._directory / f"{name}.json").unlink(missing_ok=True)
        log.info("Files of a deleted volume are removed", volume=name)
