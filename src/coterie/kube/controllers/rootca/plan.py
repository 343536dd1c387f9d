"""What is wrong with a namespace's CA bundle. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.core import ConfigMap, Namespace

NAME = "kube-root-ca.crt"
KEY = "ca.crt"
_DESCRIPTION = {
    "kubernetes.io/description": "The certificates by which pods of this namespace know the API server. Managed; do not edit."
}


@dataclass(frozen=True, slots=True)
class Create:
    config_map: ConfigMap


@dataclass(frozen=True, slots=True)
class Patch:
    patch: Object


def plan(namespace: Namespace | None, config_map: ConfigMap | None, ca: str) -> Create | Patch | None:
    if namespace is None or not namespace.active:
        return None
    if config_map is None:
        meta = ObjectMeta(name=NAME, namespace=namespace.metadata.name, annotations=_DESCRIPTION)
        return Create(ConfigMap(metadata=meta, data={KEY: ca}))
    if config_map.data == {KEY: ca} or config_map.metadata.deleting:
        return None
    return Patch({"data": {**{key: None for key in config_map.data or () if key != KEY}, KEY: ca}})
