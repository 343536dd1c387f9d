"""From a PersistentVolumeClaim of a pod to a directory of this node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.volumes import directories
from coterie.kube.agent.volumes.local_path import LocalVolumes, is_local_path
from coterie.kube.api.meta import Object

CLAIM, VOLUME = "PersistentVolumeClaim", "PersistentVolume"


def claim_names(pod: Object) -> list[str]:
    """The claims that a pod mounts, those of its ephemeral volumes included."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    named = [source.get("claimName") or "" for volume in volumes if (source := volume.get("persistentVolumeClaim"))]
    return [*named, *(ephemeral_claim_name(pod, volume) for volume in volumes if volume.get("ephemeral"))]


def ephemeral_claim_name(pod: Object, volume: Object) -> str:
    return f"{pod['metadata']['name']}-{volume['name']}"


def check_owner(pod: Object, name: str, lookup: Lookup) -> None:
    """The claim of an ephemeral volume must be the pod's own; one that somebody else made is not mounted."""
    claim = lookup(CLAIM, name)
    owners = (claim or {}).get("metadata", {}).get("ownerReferences") or ()
    if claim is not None and not any(each.get("uid") == pod["metadata"].get("uid") for each in owners):
        raise ConfigProblem(f'persistentvolumeclaim "{name}" was not created for this pod (pod is not owner)')


def volume_names(pod: Object, lookup: Lookup) -> set[str]:
    """The PersistentVolumes of the pod's claims that are bound."""
    claims = [lookup(CLAIM, name) for name in claim_names(pod)]
    return {name for claim in claims if claim is not None and (name := (claim.get("spec") or {}).get("volumeName"))}


def bound_volume(name: str, lookup: Lookup) -> Object:
    """The volume of a claim. Raises ConfigProblem when the claim is not bound to a volume that pods can mount."""
    claim = lookup(CLAIM, name)
    if claim is None:
        raise ConfigProblem(f'persistentvolumeclaim "{name}" not found')
    volume_name = (claim.get("spec") or {}).get("volumeName")
    if not volume_name or (claim.get("status") or {}).get("phase") != "Bound":
        raise ConfigProblem(f'persistentvolumeclaim "{name}" is not bound')
    volume = lookup(VOLUME, volume_name)
    if volume is None:
        raise ConfigProblem(f'persistentvolume "{volume_name}" not found')
    spec = volume.get("spec") or {}
    if (spec.get("claimRef") or {}).get("uid") != claim["metadata"].get("uid"):
        raise ConfigProblem(f'persistentvolume "{volume_name}" is not bound to persistentvolumeclaim "{name}"')
    if spec.get("volumeMode") == "Block":
        raise ConfigProblem(f'persistentvolumeclaim "{name}" has volumeMode Block, which this node cannot mount')
    return volume


def directory_of(
    volume: Object, local: LocalVolumes, allowed: Sequence[str], withheld: Sequence[Path], group: int | None
) -> Path:
    spec = volume.get("spec") or {}
    if is_local_path(volume):
        return local.ensure(volume, group)
    if spec.get("local"):
        return directories.host_path({"path": spec["local"].get("path"), "type": "Directory"}, allowed, withheld)
    if spec.get("hostPath"):
        return directories.host_path(spec["hostPath"], allowed, withheld)
    raise ConfigProblem(f"volume {volume['metadata']['name']}: only local and hostPath volumes are supported")
