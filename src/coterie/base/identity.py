"""Who a domain is: an RSA key and a certificate whose common name is the domain's id.

Partners know a domain by this certificate, so it is made once and kept; the key never leaves its file (mode 0600) except
into the memory of this process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import files, pki
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.base.secret import Secret


@dataclass(frozen=True, slots=True)
class DomainIdentity:
    domain: str
    certificate_file: Path
    key_file: Path
    certificate: str
    """PEM."""
    key: rsa.RSAPrivateKey = field(repr=False)

    @property
    def public_key_pem(self) -> bytes:
        """`-----BEGIN RSA PUBLIC KEY-----` (PKCS#1), as routes and handshakes carry it."""
        return self.key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1)


def ensure(paths: DomainPaths, domain: str, given: Secret | None, now: datetime) -> DomainIdentity:
    """The identity in `var/certs/domain.{key,crt}`, made when missing.

    `given`: the key (PEM) from the configuration. PkiError when it is another one than the files hold: taking it
    silently would make partners refuse us.
    """
    kept = files.read_bytes_or_none(paths.domain_key)
    wanted = pki.load_key(given.reveal().encode()) if given is not None else None
    key = pki.load_key(kept) if kept is not None else wanted or pki.new_key("rsa")
    if not isinstance(key, rsa.RSAPrivateKey):
        raise PkiError(f"{paths.domain_key.name} is not an RSA key, which the handshake between domains needs")
    if wanted is not None and wanted.public_key() != key.public_key():
        raise PkiError(
            f"domainKeyData is another key than {paths.domain_key}; "
            "remove that file and domain.crt if the domain is to have a new identity"
        )
    if kept is None:
        files.private_directory(paths.certs)
        pki.save_key(paths.domain_key, key, pkcs1=True)
    content = files.read_bytes_or_none(paths.domain_certificate)
    if content is None:
        pki.save_certificate(paths.domain_certificate, pki.self_signed_ca(domain, key, now=now).certificate)
        content = paths.domain_certificate.read_bytes()
    certificate = pki.load_certificate(content)
    if pki.public_key_of(certificate) != key.public_key():
        raise PkiError(f"{paths.domain_certificate.name} does not belong to {paths.domain_key.name}")
    if pki.subject_of(certificate)[0] != domain:
        raise PkiError(f'{paths.domain_certificate.name} is of "{pki.subject_of(certificate)[0]}", not of "{domain}"')
    return DomainIdentity(domain, paths.domain_certificate, paths.domain_key, content.decode(), key)
