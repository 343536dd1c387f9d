"""Certificate requests (PKCS #10): read strictly, and turned into certificates.

The certificate is made from what was read, never from the bytes of the request: what was checked is what is signed. All
problems are a `PkiError` with a sentence for whoever asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.base.pki import Authority, PkiError, certificate_pem, leaf_of, load_certificate

_REQUEST = b"CERTIFICATE REQUEST"
_BEGIN, _DASHES = b"-----BEGIN ", b"-----"
_LONGEST_TYPE = 80
MAX_REQUEST_BYTES = 64 * 1024
_RSA_BITS = (2048, 8192)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_EXTENDED = {
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
}


@dataclass(frozen=True, slots=True)
class RequestedCertificate:
    """What a request asks for."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    other_names: int = 0
    """Alternative names of other types: they cannot be signed."""
    common_names: int = 1
    weakness: str = ""
    """Why the key is not good enough; empty: it is."""
    request: x509.CertificateSigningRequest | None = field(default=None, repr=False, compare=False)


class _Block(NamedTuple):
    type: bytes
    text: bytes
    """With its first and last line."""
    end: int


def _blocks(pem: bytes) -> Iterator[_Block]:
    """The PEM blocks of a text, in one pass over it: a text of many beginnings costs no more than any other."""
    at = 0
    while (start := pem.find(_BEGIN, at)) >= 0:
        type_end = pem.find(_DASHES, start + len(_BEGIN), start + len(_BEGIN) + _LONGEST_TYPE)
        kind = pem[start + len(_BEGIN) : type_end] if type_end >= 0 else b""
        last = b"-----END " + kind + _DASHES
        end = pem.find(last, start) if kind else -1
        if end < 0:
            return
        at = end + len(last)
        yield _Block(kind, pem[start:at] + b"\n", at)


def read_request(pem: bytes) -> RequestedCertificate:
    """The one request of the text, its signature checked: who asks has the key."""
    if len(pem) > MAX_REQUEST_BYTES:
        raise PkiError(f"the request is larger than {MAX_REQUEST_BYTES} bytes")
    block = next(_blocks(pem), None)
    if block is None or block.type != _REQUEST:
        raise PkiError("PEM block type must be CERTIFICATE REQUEST")
    if pem[block.end :].strip():
        raise PkiError("there must be nothing after the CERTIFICATE REQUEST")
    if b":" in block.text:
        raise PkiError("no PEM block headers are permitted")
    try:
        request = x509.load_pem_x509_csr(block.text)
        names, attributes = _alternatives(request), list(request.subject)
        key = request.public_key()
        if not request.is_signature_valid:
            raise PkiError("the request's signature was not made with its key")
    except (ValueError, TypeError, x509.DuplicateExtension, UnsupportedAlgorithm, InvalidSignature) as error:
        raise PkiError(f"not a certificate request: {_short(error)}") from error
    common = [_text(each) for each in attributes if each.oid == NameOID.COMMON_NAME]
    known: dict[type[x509.GeneralName], tuple[str, ...]] = {}
    if names is not None:
        known = {kind: tuple(str(each) for each in names.get_values_for_type(kind)) for kind in _NAME_TYPES}
    return RequestedCertificate(
        common_name=common[-1] if common else "",
        organizations=tuple(_text(each) for each in attributes if each.oid == NameOID.ORGANIZATION_NAME),
        dns_names=known.get(x509.DNSName, ()),
        addresses=known.get(x509.IPAddress, ()),
        emails=known.get(x509.RFC822Name, ()),
        uris=known.get(x509.UniformResourceIdentifier, ()),
        other_names=(len(list(names)) - sum(map(len, known.values()))) if names is not None else 0,
        common_names=len(common),
        weakness=_weakness(key),
        request=request,
    )


_NAME_TYPES = (x509.DNSName, x509.IPAddress, x509.RFC822Name, x509.UniformResourceIdentifier)


def _alternatives(request: x509.CertificateSigningRequest) -> x509.SubjectAlternativeName | None:
    try:
        return request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _text(attribute: x509.NameAttribute[str | bytes]) -> str:
    value = attribute.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _weakness(key: object) -> str:
    if isinstance(key, rsa.RSAPublicKey):
        low, high = _RSA_BITS
        return "" if low <= key.key_size <= high else f"an RSA key must have {low} to {high} bits, not {key.key_size}"
    if isinstance(key, ec.EllipticCurvePublicKey):
        good = isinstance(key.curve, (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1))
        return "" if good else f"the curve {key.curve.name} is not supported"
    return "" if isinstance(key, ed25519.Ed25519PublicKey) else "the key must be RSA, ECDSA or Ed25519"


def subject_problem(wanted: RequestedCertificate) -> str:
    """Why a subject cannot be signed by anybody; empty: it can. Control characters would be read differently elsewhere."""
    if wanted.common_names > 1:
        return "the subject has more than one common name"
    for text in (wanted.common_name, *wanted.organizations):
        if _CONTROL.search(text) or text != text.strip():
            return "the subject has control characters or surrounding spaces"
    if wanted.other_names:
        return "only DNS, IP, email and URI subjectAltNames are supported"
    return wanted.weakness


def sign_request(
    authority: Authority, wanted: RequestedCertificate, usages: Sequence[str], *, now: datetime, life: timedelta
) -> bytes:
    """A certificate in PEM for a request that was read; `usages` in Kubernetes' words, client and server only."""
    problem = subject_problem(wanted)
    if problem or wanted.request is None:
        raise PkiError(problem or "there is no request")
    key = wanted.request.public_key()
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey)):
        raise PkiError("the key must be RSA, ECDSA or Ed25519")
    try:
        subject = x509.Name([x509.NameAttribute(each.oid, _text(each)) for each in wanted.request.subject])
        encipherment = "key encipherment" in usages
        builder = leaf_of(authority, subject, key, now, life, key_encipherment=encipherment)
        extended = [_EXTENDED[each] for each in usages if each in _EXTENDED]
        if not extended:
            raise PkiError("a certificate must be for clients or servers")
        builder = builder.add_extension(x509.ExtendedKeyUsage(extended), critical=False)
        names = _alternatives(wanted.request)
        if names is not None and len(list(names)):
            builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=not list(subject))
        return certificate_pem(builder.sign(authority.key, hashes.SHA256()))
    except (ValueError, TypeError, KeyError) as error:
        raise PkiError(f"the request cannot be signed: {_short(error)}") from error


def certificates_problem(pem: bytes) -> str:
    """Why this is not one or more certificates in PEM; empty: it is."""
    found = 0
    for block in _blocks(pem):
        if block.type != b"CERTIFICATE":
            return f'only CERTIFICATE PEM blocks are allowed, found "{block.type.decode("ascii", "replace")}"'
        if b":" in block.text:
            return "no PEM block headers are permitted"
        try:
            load_certificate(block.text)
        except PkiError as error:
            return str(error)
        found += 1
    return "" if found else "must contain at least one CERTIFICATE PEM block"


def expiry(pem: bytes) -> datetime | None:
    """When the first certificate of the text ends; None when it is none."""
    try:
        return load_certificate(pem).not_valid_after_utc
    except PkiError:
        return None


def make_request(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    common_name: str,
    organizations: Sequence[str] = (),
    names: Sequence[x509.GeneralName] = (),
) -> bytes:
    """A request in PEM, for who has the key."""
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    if common_name:
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
