"""What plug-ins make for a pod (rendered templates, certificates), gathered for the Secret that travels with its copy.

Plug-ins write files below the pod's directory on this node, as for pods that run here; the directory is removed afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.base.files import private_directory
from coterie.kube.agent.images.model import ANY_IMAGE
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo
from coterie.kube.agent.pods.environment import Lookup, variables
from coterie.kube.agent.runk.backing_pod import (
    FILES_VOLUME,
    ContainerExtras,
    FilesVolume,
    NotMirrored,
    PlacedFile,
    PlacedMount,
    PodExtras,
)
from coterie.kube.agent.volumes.sources import FILE_SOURCES, VolumeContext, payload_of
from coterie.kube.api.meta import Object

_NOT_IN_KEYS = re.compile(r"[^-._a-zA-Z0-9]")
_MOST_BYTES = 1 << 20
"""Of all files of one pod: a Secret has at most 1 MiB."""


class RenderedVolumes:
    """The files of a pod's volumes, as plug-ins ask for them. They lie nowhere."""

    def __init__(self, directory: Path, payloads: Mapping[str, Mapping[str, bytes]]) -> None:
        self.directory = directory
        self._payloads = payloads

    def files(self, name: str) -> dict[str, bytes]:
        return dict(self._payloads.get(name, {}))


@dataclass(slots=True)
class _Gathered:
    """Files, each once, by the place from which they were read."""

    files: dict[str, bytes] = field(default_factory=dict)
    volumes: list[FilesVolume] = field(default_factory=list)
    places: dict[Path, FilesVolume] = field(default_factory=dict)

    def volume(self, name: str, payload: Mapping[str, bytes]) -> FilesVolume:
        placed = []
        for path, data in sorted(payload.items()):
            key = f"{len(self.files)}-{_NOT_IN_KEYS.sub('_', path)[-200:]}"
            self.files[key] = data
            placed.append(PlacedFile(key, path))
        if sum(map(len, self.files.values())) > _MOST_BYTES:
            raise NotMirrored(
                "NotAdmitted", "the files of the pod (templates, certificates) are larger than a Secret, 1 MiB"
            )
        return FilesVolume(name, tuple(placed))

    def place(self, source: Path, name: str = "") -> FilesVolume:
        """Of a directory, or of a file as `name`."""
        known = self.places.get(source)
        if known is None:
            payload = {name or source.name: source.read_bytes()} if source.is_file() else _files_below(source)
            known = self.volume(f"{FILES_VOLUME}-{len(self.volumes)}", payload)
            self.places[source] = known
            self.volumes.append(known)
        return known


def _files_below(directory: Path) -> dict[str, bytes]:
    """Without the names by which directories are swapped in one step."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(part.startswith("..") for part in path.relative_to(directory).parts)
    }


async def gather(
    pod: Object, plugins: Sequence[AgentPlugin], lookup: Lookup, node: DownwardNodeInfo, directory: Path
) -> PodExtras:
    """Raises ConfigProblem, PluginProblem, NotMirrored, OSError, ApiError and TransportError."""
    private_directory(directory)
    try:
        for plugin in plugins:
            await plugin.prepare_pod(pod, directory, node)
        return await _gather(pod, plugins, lookup, node, directory)
    finally:
        remove_tree(directory)  # a few small files


async def _gather(
    pod: Object, plugins: Sequence[AgentPlugin], lookup: Lookup, node: DownwardNodeInfo, directory: Path
) -> PodExtras:
    payloads = _payloads(pod, lookup, node)
    volumes, gathered = RenderedVolumes(directory / "volumes", payloads), _Gathered()
    containers: dict[str, ContainerExtras] = {}
    for container in pod_model.all_containers(pod):
        known: Mapping[str, str] = variables(pod, container, lookup, node)
        added: dict[str, str] = {}
        mounts: list[PlacedMount] = []
        replaced: dict[tuple[str, str], PlacedMount] = {}
        for plugin in plugins:
            more = await plugin.container_additions(pod, container, known, volumes, lookup, node, directory)
            if more.image != ANY_IMAGE:
                raise NotMirrored(
                    "NotAdmitted",
                    "the AppImage names an id or a signature of its image, which another cluster does not verify",
                )
            added |= more.variables
            known = {**known, **more.variables}
            for mount in more.mounts:
                if not mount.optional:
                    mounts.append(PlacedMount(gathered.place(mount.source).name, mount.target))
            for (volume, inside), source in more.replaced.items():
                placed = gathered.place(source, inside)
                replaced[volume, inside] = PlacedMount(placed.name, "", inside)
        containers[container["name"]] = ContainerExtras(added, tuple(mounts), replaced)
    rendered = {
        volume["name"]: gathered.volume(volume["name"], payloads[volume["name"]])
        for volume in pod_model.spec_of(pod).get("volumes") or ()
        if volume["name"] in payloads and ("downwardAPI" in volume or "projected" in volume)
    }
    return PodExtras(containers, tuple(gathered.volumes), rendered, gathered.files)


def _payloads(pod: Object, lookup: Lookup, node: DownwardNodeInfo) -> dict[str, dict[str, bytes]]:
    def no_token(wanted: Mapping[str, object]) -> str:
        raise ConfigProblem("a pod in another cluster gets no token of this one")

    given = VolumeContext(pod, lookup, node, no_token)
    found: dict[str, dict[str, bytes]] = {}
    for volume in pod_model.spec_of(pod).get("volumes") or ():
        sources = (volume.get("projected") or {}).get("sources") or ()
        if any("serviceAccountToken" in part for part in sources):
            continue
        if any(source in volume for source in FILE_SOURCES):
            found[volume["name"]] = {path: content.data for path, content in payload_of(volume, given).items()}
    return found
