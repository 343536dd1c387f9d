"""All volumes of one pod: made before its containers, kept up to date, freed after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from coterie.base.files import private_directory
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo
from coterie.kube.agent.pods.environment import expand
from coterie.kube.agent.pods.limits import pod_limits, resolve
from coterie.kube.agent.runtimes.protocol import Mount
from coterie.kube.agent.settings import PodSettings
from coterie.kube.agent.volumes import atomic, claims, directories
from coterie.kube.agent.volumes.atomic import Payload
from coterie.kube.agent.volumes.local_path import LocalVolumes, is_local_path
from coterie.kube.agent.volumes.objects import ObjectSource
from coterie.kube.agent.volumes.sources import FILE_SOURCES, VolumeContext, payload_of, references
from coterie.kube.agent.volumes.tokens import PodTokens
from coterie.kube.api.meta import Object


class VolumeFiles(Protocol):
    """What plug-ins see of a pod's volumes."""

    @property
    def directory(self) -> Path:
        """Where what they make for volumes goes."""

    def files(self, name: str) -> dict[str, bytes]:
        """What a volume made of objects holds, by path."""


class PodVolumes:
    def __init__(
        self,
        directory: Path,
        objects: ObjectSource,
        tokens: PodTokens,
        rules: PodSettings,
        local: LocalVolumes,
        also_needed: Callable[[Object], set[tuple[str, str]]] = lambda pod: set(),
    ) -> None:
        """`directory` is the pod's own; volumes lie below it. `local`: the node's local-path volumes."""
        self._directory = directory / "volumes"
        self._objects = objects
        self._tokens = tokens
        self._rules = rules
        self._local = local
        self._also_needed = also_needed
        self._read_only: set[str] = set()
        self._resolved: set[str] = set()
        """Volumes whose places are checked paths without links."""
        self._sources: dict[str, Path] = {}
        self._files: dict[str, Payload] = {}

    @property
    def directory(self) -> Path:
        return self._directory

    def files(self, name: str) -> dict[str, bytes]:
        """What a volume made of objects holds, by path."""
        return {path: content.data for path, content in self._files.get(name, {}).items()}

    @property
    def refresh_in(self) -> float | None:
        return self._tokens.renew_in

    async def make(self, pod: Object, node: DownwardNodeInfo) -> bool:
        """Make every volume, or bring it up to date; says whether files changed. Raises ConfigProblem."""
        namespace = pod_model.key_of(pod).namespace
        uid, lookup = pod_model.uid_of(pod), self._objects.lookup(namespace)
        claimed = {(claims.CLAIM, name) for name in claims.claim_names(pod) if name}
        await self._objects.ready(uid, namespace, references(pod) | claimed | self._also_needed(pod))
        bound = {(claims.VOLUME, name) for name in claims.volume_names(pod, lookup)}
        await self._objects.ready(uid, namespace, bound)
        await self._tokens.ensure(pod)
        given = VolumeContext(pod, self._objects.lookup(namespace), node, self._tokens.token)
        # Only whoever runs the pods may look in from outside; inside, each volume has its own modes.
        private_directory(self._directory.parent)
        self._directory.mkdir(exist_ok=True)
        group = (pod_model.spec_of(pod).get("securityContext") or {}).get("fsGroup")
        changed = False
        for volume in pod_model.spec_of(pod).get("volumes") or ():
            changed = self._make(volume, given, group) or changed
        return changed

    def _make(self, volume: Object, given: VolumeContext, group: int | None) -> bool:
        name = volume["name"]
        path = self._directory / name
        changed = False
        if any(source in volume for source in FILE_SOURCES):
            try:
                self._files[name] = payload_of(volume, given)
                changed = atomic.write(path, self._files[name], group=group, owner=user_of(given.pod))
            except atomic.UnsafePath as error:
                raise ConfigProblem(f"volume {name}: {error}") from error
        elif "hostPath" in volume:
            path = directories.host_path(volume["hostPath"] or {}, self._rules.host_paths, self._rules.withheld)
            self._resolved.add(name)
        elif "persistentVolumeClaim" in volume or "ephemeral" in volume:
            source = volume.get("persistentVolumeClaim") or {}
            claim = source.get("claimName") or ""
            if "ephemeral" in volume:
                claim = claims.ephemeral_claim_name(given.pod, volume)
                claims.check_owner(given.pod, claim, given.lookup)
            found = claims.bound_volume(claim, given.lookup)
            path = claims.directory_of(found, self._local, self._rules.host_paths, self._rules.withheld, group)
            if not is_local_path(found):
                self._resolved.add(name)
            if source.get("readOnly"):
                self._read_only.add(name)
        elif "emptyDir" in volume or set(volume) == {"name"}:
            memory = pod_limits(given.pod, resolve(self._rules.defaults, given.node.allocatable)).memory_bytes
            directories.empty_directory(path, volume.get("emptyDir") or {}, group, memory)
        else:
            kinds = ", ".join(sorted(set(volume) - {"name"}))
            raise ConfigProblem(f"volume {name}: {kinds} volumes are not supported on this node")
        self._sources[name] = path
        return changed

    def mounts(
        self,
        container: Object,
        variables: Mapping[str, str],
        instead: Mapping[tuple[str, str], Path] | None = None,
    ) -> tuple[Mount, ...]:
        """What a container sees, in the order of its volumeMounts. `instead`: (volume, subPath) -> another place."""
        found = []
        for wanted in container.get("volumeMounts") or ():
            source = self._sources.get(wanted["name"])
            if source is None:
                raise ConfigProblem(f"the pod has no volume {wanted['name']}")
            inside = wanted.get("subPath") or expand(wanted.get("subPathExpr") or "", variables)
            replaced = (instead or {}).get((wanted["name"], inside))
            if replaced is not None:
                source = replaced.resolve()
            elif inside:
                source = directories.sub_path(source, inside)
            read_only = bool(wanted.get("readOnly")) or wanted["name"] in self._read_only
            # A container with the volume may replace what was just checked by a link.
            resolved = replaced is None and (bool(inside) or wanted["name"] in self._resolved)
            found.append(Mount(source, wanted["mountPath"], read_only, resolved=resolved))
        found += [Mount(source, target, read_only) for source, target, read_only in self._rules.extra_mounts]
        return tuple(found)

    def release(self, uid: str) -> None:
        """Let go of everything outside the pod's directory. The directory itself goes with the pod."""
        self._objects.release(uid)
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    directories.unmount(path)


def user_of(pod: Object) -> int | None:
    """The one user all containers run as, if there is one: then files may be private to it."""
    group = (pod_model.spec_of(pod).get("securityContext") or {}).get("runAsUser")
    for container in pod_model.all_containers(pod):
        own = (container.get("securityContext") or {}).get("runAsUser")
        if own is not None and own != group:
            return None
    return group if group is None else int(group)
