"""Keys and certificates on disk: taken as they are when good, made anew when not.

An authority is only ever made once: making it anew would cut off everyone who trusts it, so a damaged or expired one is
an error for people to look at. What it signed is replaced quietly, keeping its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from coterie.base.files import private_directory, read_bytes_or_none
from coterie.base.pki import (
    CA_LIFE,
    LEAF_LIFE,
    Authority,
    PkiError,
    PrivateKey,
    expired,
    issue_client,
    issue_server,
    load_certificate,
    load_key,
    names_of,
    new_key,
    public_key_of,
    public_pem,
    renewal_due,
    save_certificate,
    save_key,
    self_signed_ca,
    signed_by,
    subject_of,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, and where both lie."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)
    certificate_path: Path
    key_path: Path


def ensure_key(path: Path, kind: str = "ec") -> PrivateKey:
    """The key in the file, or a new one that is in the file from now on."""
    content = read_bytes_or_none(path)
    if content is not None:
        return load_key(content)
    private_directory(path.parent)
    key = new_key(kind)
    save_key(path, key)
    return key


def ensure_authority(
    directory: Path,
    common_name: str,
    *,
    now: datetime,
    name: str = "ca",
    kind: str = "ec",
    life: timedelta = CA_LIFE,
) -> Authority:
    """`<name>.crt` and `<name>.key` in the directory; raises PkiError when they exist but cannot be used."""
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    content = read_bytes_or_none(certificate_path)
    key = ensure_key(key_path, kind)
    if content is None:
        authority = self_signed_ca(common_name, key, now=now, life=life)
        save_certificate(certificate_path, authority.certificate)
        return authority
    certificate = load_certificate(content)
    if not _belong_together(certificate, key):
        raise PkiError(f"{certificate_path.name} does not belong to {key_path.name}")
    if expired(certificate, now):
        raise PkiError(f"{certificate_path.name} is not valid now: it ends {certificate.not_valid_after_utc}")
    return Authority(certificate, key)


def ensure_server(
    directory: Path,
    name: str,
    authority: Authority,
    *,
    names: Sequence[str],
    now: datetime,
    kind: str = "ec",
    life: timedelta = LEAF_LIFE,
    subject: str = "",
    calls: bool = False,
) -> Pair:
    """`<name>.crt` and `<name>.key` for a server that is reached under `names`. `subject`: its common name, else
    `name`.

    `calls`: clients may show it as well.
    """
    key = ensure_key(directory / f"{name}.key", kind)
    path = directory / f"{name}.crt"
    found = _usable(path, key, authority, now)
    if found is None or not set(names) <= set(names_of(found)):
        found = issue_server(authority, subject or name, key.public_key(), names=names, now=now, life=life, calls=calls)
        save_certificate(path, found)
    return Pair(found, key, path, directory / f"{name}.key")


def ensure_client(
    directory: Path,
    name: str,
    authority: Authority,
    *,
    user: str,
    groups: Sequence[str] = (),
    now: datetime,
    kind: str = "ec",
    life: timedelta = LEAF_LIFE,
) -> Pair:
    """`<name>.crt` and `<name>.key` with which `user` proves who it is."""
    key = ensure_key(directory / f"{name}.key", kind)
    path = directory / f"{name}.crt"
    found = _usable(path, key, authority, now)
    if found is None or subject_of(found) != (user, tuple(groups)):
        found = issue_client(authority, user, key.public_key(), groups=groups, now=now, life=life)
        save_certificate(path, found)
    return Pair(found, key, path, directory / f"{name}.key")


def _usable(path: Path, key: PrivateKey, authority: Authority, now: datetime) -> x509.Certificate | None:
    content = read_bytes_or_none(path)
    if content is None:
        return None
    try:
        certificate = load_certificate(content)
    except PkiError:
        return None
    good = (
        _belong_together(certificate, key)
        and signed_by(certificate, authority.certificate)
        and not renewal_due(certificate, now)
    )
    return certificate if good else None


def _belong_together(certificate: x509.Certificate, key: PrivateKey) -> bool:
    return public_pem(public_key_of(certificate)) == public_pem(key.public_key())
