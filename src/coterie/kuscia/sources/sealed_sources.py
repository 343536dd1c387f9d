"""Data sources as the API keeps them: settings sealed under the domain's key, opened only to reach the source. Pure, but for links.

info (plain JSON, with secrets) ──seal──> spec.data.encryptedInfo, or ──source_info──> SourceInfo (secrets as Secret)
                                          the config store (infoKey)  ──shown──> what callers are told: no secrets

Knows nothing of Arrow, which weighs much.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base.secret import SecretValue
from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.data import ENCRYPTED_INFO, DomainDataSource
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.identity.sealing import DecryptionError, decrypt_with
from coterie.kuscia.sources.protocol import SourceError, SourceInfo
from coterie.kuscia.sources.source_creation import DATABASES, PART

CONFIG_STORE = DOMAIN_CONFIG
"""The ConfigMap in which the settings of sources with an `infoKey` are, sealed as well."""
BUILT_IN = ("localfs", "oss", "mysql", "postgresql")
_SHOWN = {
    "localfs": ("path",),
    "oss": ("endpoint", "bucket", "prefix", "virtualhost", "version", "storage_type"),
    "database": ("endpoint", "database"),
    "odps": ("endpoint", "project"),
}
_LOCAL = ("localfs", "delta", "iceberg")
"""Whose tables are files below `path`: a file that is put into a table changes it."""
_OTHER = ("virtualhost", "version", "secrets")
_SECRETS = ("access_key_id", "access_key_secret", "user", "password")


class NotReadable(SourceError):
    """The settings of a source cannot be opened."""


def info_of(source: DomainDataSource, key: rsa.RSAPrivateKey, configs: Mapping[str, str]) -> Object:
    """The plain settings, secrets included: for `source_info` and nobody else."""
    spec, name = source.spec, source.metadata.name
    text = configs.get(spec.info_key) if spec.info_key else (spec.data or {}).get(ENCRYPTED_INFO)
    if not text:
        if spec.info_key:
            raise NotReadable(
                f'data source "{name}" has its settings in "{spec.info_key}" of the config store, which is not there; '
                "put them there"
            )
        return {"localfs": {"path": spec.uri}} if spec.type == "localfs" else {}
    try:
        parsed = json.loads(decrypt_with(text, key))
    except (DecryptionError, ValueError):
        parsed = None
    if not isinstance(parsed, dict):
        # Without the cause, which might quote what was opened.
        raise NotReadable(
            f'the settings of data source "{name}" are not encrypted with the domain\'s present key; set them again'
        ) from None
    return parsed


def source_info(source: DomainDataSource, key: rsa.RSAPrivateKey, configs: Mapping[str, str]) -> SourceInfo:
    """`configs`: what the config store holds; only sources with an `infoKey` need it. Raises NotReadable."""
    kind = source.spec.type
    info: Any = info_of(source, key, configs).get(PART.get(kind, kind)) or {}
    if not isinstance(info, dict):
        raise NotReadable(
            f'the settings of data source "{source.metadata.name}" are none of type {kind}; set them again'
        )
    return settings_info(kind, info)


def settings_info(kind: str, settings: Mapping[str, Any]) -> SourceInfo:
    """Plain settings of one kind, as `source_info` finds them under its name. Pure."""
    known = {
        name: str(settings.get(name) or "") for name in ("path", "endpoint", "bucket", "prefix", "user", "database")
    }
    secrets = settings.get("secrets") or {}
    if not isinstance(secrets, Mapping):
        raise NotReadable(f"`secrets` in the settings of a source of type {kind} must be names with their values")
    extra = {
        str(name): str(value)
        for name, value in settings.items()
        if name not in known and name not in _SECRETS and name not in _OTHER and value is not None
    }
    return SourceInfo(
        kind=kind,
        **known,
        access_key_id=str(settings.get("access_key_id") or ""),
        access_key_secret=_secret(settings.get("access_key_secret")),
        password=_secret(settings.get("password")),
        virtual_host=bool(settings.get("virtualhost")),
        signature=str(settings.get("version") or "s3v4"),
        extra=extra,
        secrets={str(name): SecretValue(str(value)) for name, value in secrets.items() if value},
    )


def _secret(value: Any) -> SecretValue | None:
    return SecretValue(str(value)) if value else None


def public_settings(source: DomainDataSource, key: rsa.RSAPrivateKey, configs: Mapping[str, str]) -> Object:
    """Of the settings only what is known to open no doors; nothing where they cannot be opened.

    People write them, so that a secret may stand under any name.
    """
    try:
        info = info_of(source, key, configs)
    except NotReadable:
        return {}
    return {part: _harmless(info[part], names) for part, names in _SHOWN.items() if isinstance(info.get(part), dict)}


def _harmless(fields: Object, names: tuple[str, ...]) -> Object:
    given = {name: fields[name] for name in names if fields.get(name)}
    return {name: bool(value) if name == "virtualhost" else str(value) for name, value in given.items()}


def location(info: SourceInfo, uri: str) -> tuple[str, ...]:
    """Where something lies in the end, comparable between sources: two that overlap start alike. Links of local paths are
    followed."""
    if info.kind in DATABASES:
        return (info.kind, info.endpoint, info.database.casefold(), uri.strip("/").casefold())
    if info.kind == "odps":
        return (info.kind, info.endpoint, info.extra.get("project", "").casefold(), uri.strip("/").casefold())
    local = info.kind in _LOCAL
    base = info.path if local else f"/{info.prefix}"
    path = posixpath.normpath(f"/{base}/{uri}".replace("//", "/"))
    if local:
        path = os.path.realpath(path)
    return (_LOCAL[0] if local else info.kind, info.endpoint, info.bucket, *[each for each in path.split("/") if each])


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """The same place, or one inside of the other."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]
