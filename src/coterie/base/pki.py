"""Keys and certificates: an authority of one's own, what it signs, and when that must be made anew.

    authority = self_signed_ca("coterie", new_key("rsa"), now=clock.now())
    server = issue_server(authority, "apiserver", key, names=("localhost", "127.0.0.1"), now=...)
    client = issue_client(authority, "alice", key, groups=("system:masters",), now=...)

A user is the certificate's common name, groups are its organisations: that is how Kubernetes reads them. Everything
that depends on time takes `now`. `pki_files` is the edge that keeps them on disk and makes new ones when due.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.base.files import PRIVATE_FILE, PUBLIC_FILE, write_atomic

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=365)
# Clocks of two machines differ; a certificate that is valid "from now" would be refused by the slower one.
_BACKDATE = timedelta(minutes=5)
_ANCHOR_BEGINS, _ANCHOR_ENDS = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


class PkiError(Exception):
    """A key or certificate cannot be read or is not what it should be."""


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)


def new_key(kind: str = "ec") -> PrivateKey:
    """`rsa`: 2048 bits, which Kuscia's peers ask for; `ec`: P-256, made and used many times faster."""
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    raise ValueError(f"a key is rsa or ec, not {kind!r}")


def key_pem(key: PrivateKey, *, pkcs1: bool = False) -> bytes:
    """The private key, unencrypted. `pkcs1`: the older form (`RSA PRIVATE KEY`) that Kuscia writes."""
    form = serialization.PrivateFormat.TraditionalOpenSSL if pkcs1 else serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_pem(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def load_key(pem: bytes, *, thorough: bool = True) -> PrivateKey:
    """`thorough`: make sure that an RSA key's numbers fit together, which takes tens of milliseconds."""
    try:
        key = serialization.load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=not thorough)
    except (ValueError, TypeError) as error:
        raise PkiError("not a private key in PEM without password") from error
    if not isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
        raise PkiError(f"a {type(key).__name__} is neither RSA nor EC")
    return key


def load_public_key(pem: bytes) -> PublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except ValueError as error:
        raise PkiError("not a public key in PEM") from error
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
        raise PkiError(f"a {type(key).__name__} is neither RSA nor EC")
    return key


def certificate_pem(*certificates: x509.Certificate) -> bytes:
    """One certificate, or a chain with the leaf first."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def load_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of the text."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise PkiError("not a certificate in PEM") from error


def load_der_certificate(der: bytes) -> x509.Certificate:
    """As a connection shows it."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        _ = certificate.extensions  # they are read at first use, and may be damaged
    except (ValueError, x509.DuplicateExtension) as error:
        raise PkiError("not a certificate") from error
    return certificate


def public_key_of(certificate: x509.Certificate) -> PublicKey:
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError) as problem:
        raise PkiError(f"the key of the certificate cannot be used: {problem}") from problem
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
        raise PkiError("the certificate's key is neither RSA nor EC")
    return key


def self_signed_ca(common_name: str, key: PrivateKey, *, now: datetime, life: timedelta = CA_LIFE) -> Authority:
    subject = _name(common_name, ())
    builder = _builder(subject, subject, key.public_key(), now, life, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue_authority(
    authority: Authority,
    common_name: str,
    key: PrivateKey,
    *,
    organisations: Sequence[str] = (),
    now: datetime,
    life: timedelta = LEAF_LIFE,
) -> Authority:
    """An intermediate authority: what it signs may sign nothing in turn."""
    subject = _name(common_name, organisations)
    life = _within(authority, now, life)
    builder = _builder(subject, authority.certificate.subject, key.public_key(), now, life, authority.key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    return Authority(builder.sign(authority.key, hashes.SHA256()), key)


def issue_server(
    authority: Authority,
    common_name: str,
    public_key: PublicKey,
    *,
    names: Sequence[str],
    now: datetime,
    life: timedelta = LEAF_LIFE,
    calls: bool = False,
) -> x509.Certificate:
    """`names`: DNS names and IP addresses under which the server is reached. `calls`: clients may show it as well."""
    builder = leaf(authority, _name(common_name, ()), public_key, now, life)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if calls else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), False)
    return builder.sign(authority.key, hashes.SHA256())


def issue_client(
    authority: Authority,
    user: str,
    public_key: PublicKey,
    *,
    groups: Sequence[str] = (),
    now: datetime,
    life: timedelta = LEAF_LIFE,
) -> x509.Certificate:
    builder = leaf(authority, _name(user, groups), public_key, now, life)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def leaf(
    authority: Authority, subject: x509.Name, public_key: PublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    """What all certificates that sign nothing have in common; the caller says what it is for and signs it."""
    return leaf_of(authority, subject, public_key, now, life)


def leaf_of(
    authority: Authority,
    subject: x509.Name,
    public_key: PublicKey | ed25519.Ed25519PublicKey,
    now: datetime,
    life: timedelta,
    *,
    key_encipherment: bool = True,
) -> x509.CertificateBuilder:
    """`leaf` for keys of others, which may be Ed25519 and need not say that they encipher keys."""
    life = _within(authority, now, life)
    builder = _builder(subject, authority.certificate.subject, public_key, now, life, authority.key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.add_extension(_key_usage(authority=False, key_encipherment=key_encipherment), critical=True)


def _within(authority: Authority, now: datetime, life: timedelta) -> timedelta:
    """What outlives its issuer is refused by strict clients on a day nobody expects."""
    life = min(life, authority.certificate.not_valid_after_utc - now)
    if life <= timedelta(0):
        raise PkiError("the authority's certificate has expired")
    return life


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: PublicKey | ed25519.Ed25519PublicKey,
    now: datetime,
    life: timedelta,
    signer: PrivateKey,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _name(common_name: str, organisations: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, authority: bool, key_encipherment: bool = True) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=key_encipherment and not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def subject_of(certificate: x509.Certificate) -> tuple[str, tuple[str, ...]]:
    """(common name, organisations); the common name is empty when there is none."""
    return _parts_of(certificate.subject)


def issuer_of(certificate: x509.Certificate) -> tuple[str, tuple[str, ...]]:
    """As `subject_of`, of whoever signed it."""
    return _parts_of(certificate.issuer)


def self_signed(certificate: x509.Certificate) -> bool:
    return certificate.subject == certificate.issuer


def _parts_of(name: x509.Name) -> tuple[str, tuple[str, ...]]:
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return (str(common[-1].value) if common else "", tuple(str(each.value) for each in groups))


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names and addresses a server certificate is good for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    dns = found.get_values_for_type(x509.DNSName)
    return (*dns, *(str(each) for each in found.get_values_for_type(x509.IPAddress)))


def serves(certificate: x509.Certificate) -> bool:
    """Whether it says that it is for servers."""
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.SERVER_AUTH in uses


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 over the certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def expired(certificate: x509.Certificate, now: datetime) -> bool:
    return not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def renewal_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether less than a third of its life is left (or it is not valid at all)."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return expired(certificate, now) or certificate.not_valid_after_utc - now < life / 3


def signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


@lru_cache(maxsize=256)
def trust_anchor(pem: str) -> str:
    """PEM of an authority with the name and key of this certificate: what that key signed, under that name, verifies by it.

    For a verifier that takes nothing but authorities. An authority at the root is believed as it is; its signature means
    nothing and here is nobody's. A certificate that is an authority already is itself. The same certificate always gives
    the same bytes.
    """
    known = load_certificate(pem.encode())
    if known.subject == known.issuer and _is_authority(known):
        return certificate_pem(known).decode()
    anchor = (
        x509.CertificateBuilder()
        .subject_name(known.subject)
        .issuer_name(known.subject)
        .public_key(public_key_of(known))
        .serial_number(1)
        .not_valid_before(_ANCHOR_BEGINS)
        .not_valid_after(_ANCHOR_ENDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
    )
    return certificate_pem(anchor.sign(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)), None)).decode()


def signed_by_key(certificate: x509.Certificate, key: PublicKey) -> bool:
    """Whether this key made the certificate's signature, whatever name its issuer has. RSA only."""
    try:
        scheme, hash_ = certificate.signature_algorithm_parameters, certificate.signature_hash_algorithm
        if not isinstance(key, rsa.RSAPublicKey) or not isinstance(scheme, (padding.PKCS1v15, padding.PSS)):
            return False
        if hash_ is None:
            return False
        key.verify(certificate.signature, certificate.tbs_certificate_bytes, scheme, hash_)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def save_key(path: Path, key: PrivateKey, *, pkcs1: bool = False) -> None:
    write_atomic(path, key_pem(key, pkcs1=pkcs1), mode=PRIVATE_FILE)


def save_certificate(path: Path, *chain: x509.Certificate) -> None:
    write_atomic(path, certificate_pem(*chain), mode=PUBLIC_FILE)
