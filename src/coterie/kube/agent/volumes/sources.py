"""The files of configMap, secret, downwardAPI and projected volumes, as pure data."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo, field_value, resource_value
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.volumes.atomic import FileContent, Payload
from coterie.kube.api.meta import Object

DEFAULT_MODE = 0o644
FILE_SOURCES = ("configMap", "secret", "downwardAPI", "projected")

TokenOf = Callable[[Mapping[str, Any]], str]
"""serviceAccountToken projection -> the token at hand."""


@dataclass(frozen=True, slots=True)
class VolumeContext:
    """What files are made from."""

    pod: Object
    lookup: Lookup
    node: DownwardNodeInfo
    token: TokenOf


def payload_of(volume: Object, given: VolumeContext) -> Payload:
    """The files of a volume. Raises ConfigProblem when something it needs is missing."""
    if "configMap" in volume:
        source = volume["configMap"]
        return _keyed("ConfigMap", source.get("name") or "", source, _mode(source), given)
    if "secret" in volume:
        source = volume["secret"]
        return _keyed("Secret", source.get("secretName") or "", source, _mode(source), given)
    if "downwardAPI" in volume:
        source = volume["downwardAPI"]
        return _downward(source, _mode(source), given)
    source = volume["projected"]
    files: dict[str, FileContent] = {}
    for part in source.get("sources") or ():
        files.update(_projected(part, _mode(source), given))
    return files


def _projected(part: Object, mode: int, given: VolumeContext) -> Payload:
    if "configMap" in part:
        return _keyed("ConfigMap", part["configMap"].get("name") or "", part["configMap"], mode, given)
    if "secret" in part:
        return _keyed("Secret", part["secret"].get("name") or "", part["secret"], mode, given)
    if "downwardAPI" in part:
        return _downward(part["downwardAPI"], mode, given)
    if "serviceAccountToken" in part:
        wanted = part["serviceAccountToken"]
        # A token is for the pod's own user only, whatever the volume's mode says.
        return {wanted["path"]: FileContent(given.token(wanted).encode(), 0o600)}
    raise ConfigProblem(f"projected volumes do not know the source {', '.join(part)}")


def _keyed(kind: str, name: str, source: Object, mode: int, given: VolumeContext) -> Payload:
    obj = given.lookup(kind, name)
    optional = bool(source.get("optional"))
    if obj is None:
        if optional:
            return {}
        raise ConfigProblem(f'{kind.lower()} "{name}" not found')
    data = _bytes_of(kind, obj)
    items: Sequence[Object] | None = source.get("items")
    if not items:
        return {key: FileContent(value, mode) for key, value in data.items()}
    files: dict[str, FileContent] = {}
    for item in items:
        value = data.get(item["key"])
        if value is None:
            if optional:
                continue
            raise ConfigProblem(f"{kind.lower()} {name!r} has no key {item['key']!r}")
        files[item["path"]] = FileContent(value, _mode_of(item, mode))
    return files


def _downward(source: Object, mode: int, given: VolumeContext) -> Payload:
    files: dict[str, FileContent] = {}
    for item in source.get("items") or ():
        if item.get("fieldRef"):
            text = field_value(given.pod, item["fieldRef"].get("fieldPath") or "", given.node)
        else:
            text = resource_value(given.pod, {}, item["resourceFieldRef"], given.node)
        files[item["path"]] = FileContent(text.encode(), _mode_of(item, mode))
    return files


def _bytes_of(kind: str, obj: Object) -> dict[str, bytes]:
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return {**texts, **{key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}}


def _mode(source: Object) -> int:
    mode = source.get("defaultMode")
    return DEFAULT_MODE if mode is None else int(mode) & 0o777


def _mode_of(item: Object, default: int) -> int:
    mode = item.get("mode")
    return default if mode is None else int(mode) & 0o777


def references(pod: Object) -> set[tuple[str, str]]:
    """(kind, name) of all ConfigMaps and Secrets that the pod's volumes, variables and images name."""
    spec = pod.get("spec") or {}
    found = {("Secret", secret.get("name") or "") for secret in spec.get("imagePullSecrets") or ()}
    for volume in spec.get("volumes") or ():
        found |= _of_source(volume)
        for part in (volume.get("projected") or {}).get("sources") or ():
            found |= _of_source(part)
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            for source in container.get("envFrom") or ():
                found |= _of_reference(source, "configMapRef", "secretRef")
            for entry in container.get("env") or ():
                found |= _of_reference(entry.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef")
    return {(kind, name) for kind, name in found if name}


def _of_source(source: Object) -> set[tuple[str, str]]:
    found = set()
    if source.get("configMap"):
        found.add(("ConfigMap", source["configMap"].get("name") or ""))
    if source.get("secret"):
        secret = source["secret"]
        found.add(("Secret", secret.get("secretName") or secret.get("name") or ""))
    return found


def _of_reference(source: Object, config_map: str, secret: str) -> set[tuple[str, str]]:
    found = set()
    if source.get(config_map):
        found.add(("ConfigMap", source[config_map].get("name") or ""))
    if source.get(secret):
        found.add(("Secret", source[secret].get("name") or ""))
    return found
