"""DomainDataSources as they are made: settings sealed under the domain's key. Knows nothing of Arrow, which weighs
much."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DEFAULT_MESH_SOURCE, DEFAULT_SOURCE, DOMAIN_DATA_SOURCES, ENCRYPTED_INFO
from coterie.kuscia.identity.sealing import encrypt_for

DATABASES = ("mysql", "postgresql", "hive", "dameng")
PART = {"localfs": "localfs", "oss": "oss", "odps": "odps", **dict.fromkeys(DATABASES, "database")}
"""Under which name the settings of a kind stand."""


async def ensure_default_source(client: Client, domain: str, path: Path, key: rsa.RSAPublicKey) -> None:
    """`default-data-source` and `default-dp-data-source`, made where missing. Raises ApiError or TransportError."""
    for name in (DEFAULT_SOURCE, DEFAULT_MESH_SOURCE):
        try:
            await client.get(DOMAIN_DATA_SOURCES, name, domain)
        except NotFound:
            obj = source_object(domain, name, "localfs", {"path": str(path)}, key, directly=name == DEFAULT_SOURCE)
            with suppress(AlreadyExists):
                await client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, domain)


def source_object(
    namespace: str, name: str, kind: str, info: Object, key: rsa.RSAPublicKey, *, directly: bool = False
) -> Object:
    """A DomainDataSource to create. `info`: the fields of the kind, e.g. `{"path": ...}`."""
    plain = {PART.get(kind, kind): info}
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainDataSource",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {labels.KUSCIA_DOMAINDATASOURCE_TYPE: kind},
        },
        "spec": {
            "name": name,
            "type": kind,
            "uri": uri_of(kind, info),
            "accessDirectly": directly,
            "data": {ENCRYPTED_INFO: encrypt_for(json.dumps(plain), key)},
        },
    }


def uri_of(kind: str, info: Object) -> str:
    """For people; without credentials."""
    if kind == "localfs":
        return str(info.get("path") or "")
    if kind == "oss":
        return f"{info.get('bucket') or ''}/{info.get('prefix') or ''}"
    return f"{info.get('endpoint') or ''}/{info.get('project') or ''}" if kind == "odps" else ""
