"""Who a domain is: an RSA key and a certificate whose common name is the domain's id.

    var/certs/   domain.key domain.crt    the identity; an organisation may put its own there before the first start
                 ca.key ca.crt            an authority of the same key, which signs what the domain's own servers show
                 engine-ca.*              an authority with a key of its own, which signs what the domain's engines show
                 token                    what callers of KusciaAPI show, derived from the key

Partners know a domain by this certificate, so it is made once and kept; the key never leaves its files (mode 0600) except
into the memory of this process. A lite has its certificate signed by its master: `store_certificate` puts it in place.
Everything is checked before anything is written, and no message carries more than the names of files.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from coterie.base import files, pki
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.base.secret import SecretValue
from coterie.kuscia.identity import engine_certificates

log = logger("identity")

LEAST_BITS = 2048
_AUTHORITY_LIFE = timedelta(days=50 * 365)
_WARN_BEFORE = timedelta(days=30)
_TOKEN_LENGTH = 32


@dataclass(frozen=True, slots=True)
class DomainIdentity:
    domain: str
    certificate_file: Path
    key_file: Path
    certificate: str
    """PEM."""
    key: rsa.RSAPrivateKey = field(repr=False)

    @property
    def home(self) -> Path:
        """Of the domain's files: the certificate lies in `var/certs`."""
        return self.certificate_file.parent.parent.parent

    @property
    def public_key_pem(self) -> bytes:
        """`-----BEGIN RSA PUBLIC KEY-----` (PKCS#1), as routes and handshakes carry it."""
        return self.key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1)


def ensure(paths: DomainPaths, domain: str, given: SecretValue | None, now: datetime) -> DomainIdentity:
    """The identity in `var/certs`, with what is missing made.

    `given`: the key (PEM) from the configuration. PkiError when it is another one than the files hold: taking it
    silently would make partners refuse us.
    """
    key = _key(paths, given)
    content = files.read_bytes_or_none(paths.domain_certificate)
    if content is not None:
        _check_certificate(paths, content, key, domain, now)
    _check_authority(paths, key)
    files.private_directory(paths.certs)
    for path in (paths.domain_key, paths.ca_key):
        if path.exists():
            _tighten(path)
        else:
            pki.save_key(path, key, pkcs1=True)
    if content is None:
        made = pki.self_signed_ca(domain, key, now=now).certificate
        content = pki.certificate_pem(made)
        pki.save_certificate(paths.domain_certificate, made)
    if not paths.ca_certificate.exists():
        authority = pki.self_signed_ca(domain, key, now=now, life=_AUTHORITY_LIFE)
        pki.save_certificate(paths.ca_certificate, authority.certificate)
    engine_certificates.ensure_authority(paths, domain, now)
    return DomainIdentity(domain, paths.domain_certificate, paths.domain_key, content.decode(), key)


def load(paths: DomainPaths, domain: str) -> DomainIdentity:
    """The identity as `ensure` left it. PkiError or OSError when it is not there."""
    content = paths.domain_certificate.read_text()
    key = _named(str(paths.domain_key), paths.domain_key.read_bytes())
    return DomainIdentity(domain, paths.domain_certificate, paths.domain_key, content, key)


def store_certificate(paths: DomainPaths, pem: str | bytes) -> DomainIdentity:
    """Put the certificate that a master issued for our key in place of the one we have.

    PkiError, and nothing is changed, when it is for another key or another domain. Its dates are not looked at: masters
    of Kuscia issue certificates that ended decades ago, and partners look at the key only.
    """
    key = _key(paths, None)
    before = files.read_bytes_or_none(paths.domain_certificate)
    if before is None or not paths.domain_key.exists():
        raise PkiError("the domain has no identity yet that a certificate could be for")
    domain = pki.subject_of(pki.load_certificate(before))[0]
    content = pem.encode() if isinstance(pem, str) else pem
    certificate = pki.load_certificate(content)
    _check_belongs("the issued certificate", certificate, key, paths.domain_key)
    _check_subject("the issued certificate", certificate, domain)
    if content != before:
        files.write_atomic(paths.domain_certificate, content, mode=files.PUBLIC_FILE)
        log.info("The domain has a new certificate", domain=domain, fingerprint=pki.fingerprint(certificate))
    return DomainIdentity(domain, paths.domain_certificate, paths.domain_key, content.decode(), key)


def api_token(identity: DomainIdentity) -> SecretValue:
    """What callers of KusciaAPI show: Kuscia derives it from the domain's key, so it is the same after a reinstallation."""
    signature = identity.key.sign(identity.domain.encode(), padding.PKCS1v15(), hashes.SHA256())
    return SecretValue(base64.b64encode(signature).decode()[:_TOKEN_LENGTH])


def ensure_api_token(paths: DomainPaths, identity: DomainIdentity) -> SecretValue:
    """The token in `var/certs/token`, which an operator may have chosen; written when missing."""
    kept = files.read_bytes_or_none(paths.api_token)
    if kept is not None and kept.strip():
        _tighten(paths.api_token)
        return SecretValue(kept.strip())
    made = api_token(identity)
    files.write_atomic(paths.api_token, made.reveal())
    return made


def load_domain_key(pem: bytes, *, thorough: bool = True) -> rsa.RSAPrivateKey:
    """A key that can be a domain's; PkiError with what is wrong with it otherwise.

    `thorough` proves that its numbers fit together, which takes longer than all the rest of an identity; without it,
    what comes back is good for comparing keys only.
    """
    key = pki.load_key(pem, thorough=thorough)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise PkiError("not an RSA key, which the handshake between domains needs")
    if key.key_size < LEAST_BITS:
        raise PkiError(f"an RSA key of {key.key_size} bits, which is too weak; take {LEAST_BITS} bits or more")
    return key


def _key(paths: DomainPaths, given: SecretValue | None) -> rsa.RSAPrivateKey:
    """The key in the file, else the one that is given, else a new one. Nothing is written."""
    kept = files.read_bytes_or_none(paths.domain_key)
    wanted = _named("domainKeyData", given.reveal().encode(), thorough=kept is None) if given is not None else None
    if kept is None:
        if wanted is None and paths.domain_certificate.exists():
            raise PkiError(
                f"{paths.domain_key} is missing though {paths.domain_certificate.name} is there; put the key back, "
                "or remove the certificate too if the domain is to have a new identity"
            )
        return wanted or rsa.generate_private_key(public_exponent=65537, key_size=LEAST_BITS)
    key = _named(str(paths.domain_key), kept)
    if wanted is not None and wanted.public_key() != key.public_key():
        raise PkiError(
            f"domainKeyData is another key than {paths.domain_key}; remove domain.key, domain.crt, ca.key, ca.crt and "
            "token there if the domain is to have a new identity"
        )
    return key


def _named(name: str, pem: bytes, *, thorough: bool = True) -> rsa.RSAPrivateKey:
    try:
        return load_domain_key(pem, thorough=thorough)
    except PkiError as problem:
        raise PkiError(f"{name} is {problem}") from problem


def _check_certificate(paths: DomainPaths, content: bytes, key: rsa.RSAPrivateKey, domain: str, now: datetime) -> None:
    name = str(paths.domain_certificate)
    certificate = _certificate(name, content)
    _check_belongs(name, certificate, key, paths.domain_key)
    _check_subject(name, certificate, domain)
    ends = certificate.not_valid_after_utc
    # One that a master issued may have ended on the day it was made (see store_certificate).
    if certificate.issuer == certificate.subject and ends - now < _WARN_BEFORE:
        log.warning(
            "The domain's certificate expires soon; partners will need the new one", file=name, ends=ends.isoformat()
        )


def _check_authority(paths: DomainPaths, key: rsa.RSAPrivateKey) -> None:
    kept = files.read_bytes_or_none(paths.ca_key)
    if kept is not None and _named(str(paths.ca_key), kept, thorough=False).public_key() != key.public_key():
        raise PkiError(f"{paths.ca_key} is another key than {paths.domain_key.name}; remove it and ca.crt")
    content = files.read_bytes_or_none(paths.ca_certificate)
    if content is not None:
        name = str(paths.ca_certificate)
        _check_belongs(name, _certificate(name, content), key, paths.domain_key)


def _certificate(name: str, content: bytes) -> x509.Certificate:
    try:
        return pki.load_certificate(content)
    except PkiError as problem:
        raise PkiError(f"{name} is {problem}") from problem


def _check_belongs(name: str, certificate: x509.Certificate, key: rsa.RSAPrivateKey, key_file: Path) -> None:
    if pki.public_key_of(certificate) != key.public_key():
        raise PkiError(f"{name} does not belong to {key_file.name}")


def _check_subject(name: str, certificate: x509.Certificate, domain: str) -> None:
    subject = pki.subject_of(certificate)[0]
    if subject != domain:
        raise PkiError(f'{name} is of "{subject}", not of "{domain}"')


def _tighten(path: Path) -> None:
    """Keys come from copies and archives with all kinds of modes; others must not read them from now on."""
    if not files.is_private(path):
        log.warning("Others could read a secret file; only its owner can from now on", file=str(path))
        path.chmod(files.PRIVATE_FILE)
