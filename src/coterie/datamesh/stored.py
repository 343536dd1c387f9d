"""Data sources as the API keeps them: settings sealed under the domain's key, opened only to reach the source. Pure.

info (plain JSON, with secrets) ──seal──> spec.data.encryptedInfo ──open_info──> SourceInfo (secrets as Secret)
                                                                  ──shown──> what engines are told: no secrets
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.api.meta import Object
from coterie.api.types.kuscia_data import ENCRYPTED_INFO, DomainDataSource
from coterie.base.sealing import NotOpened, opened
from coterie.base.secret import Secret
from coterie.datamesh.making import DATABASES, PART
from coterie.datamesh.problems import Code, Kind, MeshProblem
from coterie.datamesh.sources.protocol import SourceInfo

BUILT_IN = ("localfs", "oss", "mysql", "postgresql")
_SECRETS = ("access_key_id", "access_key_secret", "user", "password")


def info_of(source: DomainDataSource, key: rsa.RSAPrivateKey) -> Object:
    """The plain settings, secrets included: for `source_info` and nobody else."""
    spec, name = source.spec, source.metadata.name
    if spec.info_key:
        raise MeshProblem(
            Code.DECODE_INFO,
            f'data source "{name}" keeps its settings under infoKey, which this version does not read; put them into it',
            Kind.FAILED_PRECONDITION,
        )
    text = (spec.data or {}).get(ENCRYPTED_INFO)
    if not text:
        return {"localfs": {"path": spec.uri}} if spec.type == "localfs" else {}
    try:
        parsed = json.loads(opened(text, key))
    except (NotOpened, ValueError):
        parsed = None
    if not isinstance(parsed, dict):
        # Without the cause, which might quote what was opened.
        raise MeshProblem(
            Code.DECODE_INFO,
            f'the settings of data source "{name}" are not encrypted with the domain\'s present key; set them again',
            Kind.FAILED_PRECONDITION,
        ) from None
    return parsed


def source_info(source: DomainDataSource, key: rsa.RSAPrivateKey) -> SourceInfo:
    kind = source.spec.type
    info: Any = info_of(source, key).get(PART.get(kind, kind)) or {}
    known = {name: str(info.get(name) or "") for name in ("path", "endpoint", "bucket", "prefix", "user", "database")}
    extra = {
        str(name): str(value)
        for name, value in info.items()
        if name not in known and name not in _SECRETS and name not in ("virtualhost", "version") and value is not None
    }
    return SourceInfo(
        kind=kind,
        **known,
        access_key_id=str(info.get("access_key_id") or ""),
        access_key_secret=_secret(info.get("access_key_secret")),
        password=_secret(info.get("password")),
        virtual_host=bool(info.get("virtualhost")),
        signature=str(info.get("version") or "s3v4"),
        extra=extra,
    )


def _secret(value: Any) -> Secret | None:
    return Secret(str(value)) if value else None


def shown(source: DomainDataSource, key: rsa.RSAPrivateKey) -> Object:
    """The settings without what opens doors. A path is told only where engines may go there themselves."""
    try:
        info = info_of(source, key)
    except MeshProblem:
        return {}
    out: Object = {}
    for part, fields in info.items():
        if isinstance(fields, dict) and (part != "localfs" or source.spec.access_directly):
            out[part] = {name: value for name, value in fields.items() if name not in _SECRETS}
    return out


def location(info: SourceInfo, uri: str) -> tuple[str, ...]:
    """Where something lies in the end, comparable between sources: two that overlap start alike."""
    if info.kind in DATABASES:
        return (info.kind, info.endpoint, info.database.casefold(), uri.strip("/").casefold())
    base = info.path if info.kind == "localfs" else f"/{info.prefix}"
    path = posixpath.normpath(f"/{base}/{uri}".replace("//", "/"))
    return (info.kind, info.endpoint, info.bucket, *[each for each in path.split("/") if each])


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """The same place, or one inside of the other."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]
