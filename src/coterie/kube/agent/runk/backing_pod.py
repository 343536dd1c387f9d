"""The copy of a pod for the backing cluster. Pure.

What belongs to our own cluster is left out: where it was scheduled, its service account, priority and the volumes of this machine.
What must hold there as well is written down: no token, no root, no capabilities, limits of memory and CPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import DownwardNodeInfo, field_value
from coterie.kube.agent.runk.settings import GATE, GROUP_LABEL, OWNER_LABEL, RunkSettings
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass
from coterie.kube.api.meta import Object

FILES_VOLUME = "coterie-files"
_MAX_NAME = 253
_KEPT = (
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "hostAliases",
    "hostname",
    "subdomain",
    "setHostnameAsFQDN",
    "tolerations",
    "shareProcessNamespace",
    "os",
    "resources",
)
_FILE_VOLUMES = ("downwardAPI", "projected")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_STATUS_FIELDS = "status."


class NotMirrored(Exception):
    """The pod cannot run in another cluster; trying again will not help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of the pod's own Secret."""

    key: str
    path: str


@dataclass(frozen=True, slots=True)
class FilesVolume:
    """Some files of the pod's own Secret, as one volume."""

    name: str
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True, slots=True)
class PlacedMount:
    volume: str
    target: str
    """A relative one begins at the container's working directory."""
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class ContainerExtras:
    """What plug-ins add to one container."""

    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[PlacedMount, ...] = ()
    replaced: Mapping[tuple[str, str], PlacedMount] = field(default_factory=dict)
    """(volume, subPath) -> what is mounted in its stead."""


@dataclass(frozen=True, slots=True)
class PodExtras:
    containers: Mapping[str, ContainerExtras] = field(default_factory=dict)
    volumes: tuple[FilesVolume, ...] = ()
    rendered: Mapping[str, FilesVolume] = field(default_factory=dict)
    """Volumes of the pod (downwardAPI, projected) whose files are known here."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The data of the pod's own Secret."""


NO_EXTRAS = PodExtras()


def copy_name(pod: str, name: str) -> str:
    """Of an object that a pod names: `<pod>-<name>`, shortened where that is no name."""
    full = f"{pod}-{name}"
    if len(full) <= _MAX_NAME:
        return full
    return f"{full[: _MAX_NAME - 11].rstrip('-.')}-{hashlib.sha256(full.encode()).hexdigest()[:10]}"


def files_name(pod: str) -> str:
    """Of the Secret with what was made for the pod: rendered templates, certificates."""
    return copy_name(pod, FILES_VOLUME)


def group_value(group: str) -> str:
    return hashlib.sha256(group.encode()).hexdigest()[:32]


def backing_pod(
    pod: Object,
    network: PodNetworkClass,
    extras: PodExtras,
    node: DownwardNodeInfo,
    settings: RunkSettings,
    *,
    node_name: str,
) -> Object:
    """Raises NotMirrored."""
    spec, name = pod_model.spec_of(pod), pod_model.key_of(pod).name
    for field_name in _HOST_NAMESPACES:
        if spec.get(field_name):
            raise NotMirrored(
                "NotAdmitted", f"{field_name}: a pod in another cluster has no namespaces of its machines"
            )
    bounded = network.kind is not PodKind.ORDINARY or not settings.allow_privileged
    dropped = _dropped_volumes(spec)
    made: Object = {key: spec[key] for key in _KEPT if spec.get(key) is not None}
    for group in ("initContainers", "containers"):
        if spec.get(group):
            made[group] = [
                _container(
                    pod, each, extras.containers.get(each["name"], ContainerExtras()), dropped, bounded, node, settings
                )
                for each in spec[group]
            ]
    made |= {
        "volumes": [
            *(_volume(name, each, extras) for each in spec.get("volumes") or () if each["name"] not in dropped),
            *(_files_volume(name, each) for each in extras.volumes),
        ],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "schedulingGates": [{"name": GATE}],
        "securityContext": _pod_security(spec.get("securityContext") or {}, bounded, settings),
        **_dns(spec, network, settings),
    }
    affinity = merged_affinity(spec.get("affinity") or {}, settings.affinity)
    pull = [{"name": copy_name(name, each["name"])} for each in spec.get("imagePullSecrets") or () if each.get("name")]
    pull += [{"name": each} for each in settings.pull_secrets]
    optional = {
        "affinity": affinity,
        "imagePullSecrets": pull,
        "runtimeClassName": settings.runtime_class,
        "serviceAccountName": settings.service_account,
    }
    made |= {key: value for key, value in optional.items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": copied_labels(pod, network, settings, node_name),
            "annotations": copied_annotations(pod, settings),
        },
        "spec": made,
    }


def copied_labels(pod: Object, network: PodNetworkClass, settings: RunkSettings, node_name: str) -> dict[str, str]:
    meta, names = pod["metadata"], settings.labels
    return {
        **(meta.get("labels") or {}),
        **settings.labels_to_add,
        names.namespace: meta.get("namespace") or "",
        names.node: node_name,
        names.pod_uid: pod_model.uid_of(pod),
        OWNER_LABEL: settings.owner,
        **({GROUP_LABEL: group_value(network.group)} if network.group else {}),
    }


def copied_annotations(pod: Object, settings: RunkSettings) -> dict[str, str]:
    own = pod["metadata"].get("annotations") or {}
    return {**{key: value for key, value in own.items() if key != _LAST_APPLIED}, **settings.annotations_to_add}


def is_gated(backing: Object) -> bool:
    return any(gate.get("name") == GATE for gate in pod_model.spec_of(backing).get("schedulingGates") or ())


# Volumes.


def _dropped_volumes(spec: Object) -> frozenset[str]:
    """Tokens of our own API, which no pod there gets."""
    return frozenset(
        volume["name"]
        for volume in spec.get("volumes") or ()
        if any("serviceAccountToken" in part for part in (volume.get("projected") or {}).get("sources") or ())
    )


def _volume(pod: str, volume: Object, extras: PodExtras) -> Object:
    name = volume["name"]
    if "configMap" in volume:
        source = volume["configMap"]
        return {"name": name, "configMap": {**source, "name": copy_name(pod, source.get("name") or "")}}
    if "secret" in volume:
        source = volume["secret"]
        return {"name": name, "secret": {**source, "secretName": copy_name(pod, source.get("secretName") or "")}}
    if any(kind in volume for kind in _FILE_VOLUMES):
        rendered = extras.rendered.get(name)
        if rendered is None:
            raise NotMirrored("NotAdmitted", f"volume {name}: its files cannot be made for another cluster")
        return _files_volume(pod, rendered)
    if "emptyDir" in volume or set(volume) == {"name"}:
        return {"name": name, "emptyDir": volume.get("emptyDir") or {}}
    kinds = ", ".join(sorted(set(volume) - {"name"}))
    raise NotMirrored(
        "NotAdmitted",
        f"volume {name}: {kinds} volumes are of this node's cluster; pods in another one have configMap, secret, downwardAPI, "
        "projected and emptyDir",
    )


def _files_volume(pod: str, volume: FilesVolume) -> Object:
    items = [{"key": each.key, "path": each.path} for each in volume.files]
    return {"name": volume.name, "secret": {"secretName": files_name(pod), "items": items, "defaultMode": 0o444}}


# Containers.


def _container(
    pod: Object,
    container: Object,
    extras: ContainerExtras,
    dropped: frozenset[str],
    bounded: bool,
    node: DownwardNodeInfo,
    settings: RunkSettings,
) -> Object:
    name = pod_model.key_of(pod).name
    if container.get("volumeDevices"):
        raise NotMirrored("NotAdmitted", f"container {container['name']}: volumeDevices are of this node's cluster")
    working = str(container.get("workingDir") or "/")
    added = [_mount(each, working) for each in extras.mounts]
    made = {key: value for key, value in container.items() if key not in ("env", "envFrom", "volumeMounts", "ports")}
    made["env"] = [
        *(_variable(pod, entry, node) for entry in container.get("env") or () if entry["name"] not in extras.variables),
        *(
            {"name": key, "value": _literal(_absolute(value, extras, working))}
            for key, value in extras.variables.items()
        ),
    ]
    if container.get("envFrom"):
        made["envFrom"] = [_renamed(name, each, "configMapRef", "secretRef") for each in container["envFrom"]]
    mounts = []
    for each in container.get("volumeMounts") or ():
        if each["name"] in dropped:
            continue
        placed = extras.replaced.get((each["name"], each.get("subPath") or ""))
        mounts.append(each if placed is None else _mount(placed, working) | {"mountPath": each["mountPath"]})
    if mounts or added:
        made["volumeMounts"] = [*mounts, *added]
    if container.get("ports"):
        made["ports"] = [
            {key: value for key, value in each.items() if key not in ("hostPort", "hostIP")}
            for each in container["ports"]
        ]
    made["resources"] = resources(container.get("resources") or {}, node.allocatable, settings)
    if bounded:
        made["securityContext"] = _bounded(container, settings)
    return made


def _mount(placed: PlacedMount, working: str) -> Object:
    target = placed.target if placed.target.startswith("/") else f"{working.rstrip('/')}/{placed.target}"
    return {
        "name": placed.volume,
        "mountPath": target,
        "readOnly": True,
        **({"subPath": placed.sub_path} if placed.sub_path else {}),
    }


def _absolute(value: str, extras: ContainerExtras, working: str) -> str:
    """The image's working directory is not known here, so no path may depend on it."""
    for each in extras.mounts:
        if not each.target.startswith("/") and value.startswith(f"{each.target}/"):
            return f"{working.rstrip('/')}/{value}"
    return value


def _literal(value: str) -> str:
    """A kubelet replaces `$(NAME)` in values."""
    return value.replace("$", "$$")


def _variable(pod: Object, entry: Object, node: DownwardNodeInfo) -> Object:
    source = entry.get("valueFrom")
    if not source:
        return entry
    path = str((source.get("fieldRef") or {}).get("fieldPath") or "")
    if path and not path.startswith(_STATUS_FIELDS):
        # There the pod has another namespace, uid and node.
        return {"name": entry["name"], "value": _literal(field_value(pod, path, node))}
    renamed = _renamed(pod_model.key_of(pod).name, source, "configMapKeyRef", "secretKeyRef")
    return {"name": entry["name"], "valueFrom": renamed}


def _renamed(pod: str, source: Object, *fields: str) -> Object:
    return {
        key: {**value, "name": copy_name(pod, value.get("name") or "")} if key in fields else value
        for key, value in source.items()
    }


def resources(given: Object, allocatable: Mapping[str, str], settings: RunkSettings) -> Object:
    """With a limit of everything that a container could take from others. Requests that are not given are none: a cluster
    would take the limits for them."""
    own = {
        group: {
            key: str(value) for key, value in (given.get(group) or {}).items() if key not in settings.dropped_resources
        }
        for group in ("requests", "limits")
    }
    defaults = {
        "memory": settings.default_memory or allocatable.get("memory") or "",
        "cpu": allocatable.get("cpu") or "",
        "ephemeral-storage": settings.default_ephemeral_storage,
    }
    limits, requests = dict(own["limits"]), dict(own["requests"])
    for key, amount in defaults.items():
        if key not in limits and amount:
            limits[key] = amount
            requests.setdefault(key, "0")
    return {"limits": limits, "requests": {**{key: value for key, value in own["limits"].items()}, **requests}}


# Security.


def _bounded(container: Object, settings: RunkSettings) -> Object:
    own = container.get("securityContext") or {}
    _check_user(own, container["name"], settings)
    kept = ("runAsUser", "runAsGroup", "readOnlyRootFilesystem")
    return {
        **{key: own[key] for key in kept if own.get(key) is not None},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod_security(own: Object, bounded: bool, settings: RunkSettings) -> Object:
    if not bounded:
        return own
    _check_user(own, "", settings)
    kept = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups", "fsGroupChangePolicy")
    made = {key: own[key] for key in kept if own.get(key) is not None}
    if not settings.allow_root:
        made.setdefault("runAsUser", settings.run_as_user)
        made.setdefault("runAsGroup", made["runAsUser"])
        made.setdefault("fsGroup", made["runAsGroup"])
        made["runAsNonRoot"] = True
    return {**made, "seccompProfile": {"type": "RuntimeDefault"}}


def _check_user(own: Object, container: str, settings: RunkSettings) -> None:
    if own.get("runAsUser") == 0 and not settings.allow_root:
        who = f"container {container}" if container else "the pod"
        raise NotMirrored("NotAdmitted", f"{who} asks for root (runAsUser: 0); runk.allowRoot lets pods run as root")


# Names and places.


def _dns(spec: Object, network: PodNetworkClass, settings: RunkSettings) -> Object:
    """Engines ask the domain's server; other pods that of their cluster."""
    if network.kind is PodKind.ORDINARY or not settings.dns_servers:
        return {key: spec[key] for key in ("dnsPolicy", "dnsConfig") if spec.get(key)}
    config: dict[str, Any] = {"nameservers": list(settings.dns_servers), "options": [{"name": "ndots", "value": "1"}]}
    if settings.dns_search:
        config["searches"] = list(settings.dns_search)
    return {"dnsPolicy": "None", "dnsConfig": config}


_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def merged_affinity(own: Object, added: Object) -> Object:
    """Both hold. The pod's own node affinity is about our nodes, and was met when it was bound to this one."""
    made: Object = {}
    if added.get("nodeAffinity"):
        made["nodeAffinity"] = added["nodeAffinity"]
    for key in ("podAffinity", "podAntiAffinity"):
        both = [each[key] for each in (own, added) if each.get(key)]
        joined = {
            kind: terms
            for kind in (_REQUIRED, _PREFERRED)
            if (terms := [term for each in both for term in each.get(kind) or ()])
        }
        if joined:
            made[key] = joined
    return made


def images(pod: Object) -> Iterable[tuple[str, str]]:
    """(container, image)."""
    return ((each["name"], each.get("image") or "") for each in pod_model.all_containers(pod))
