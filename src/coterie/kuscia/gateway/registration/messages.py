"""What travels when a lite registers, as Kuscia's masters and lites write it. Pure.

    POST <prefix>/register      Host: kuscia-handshake.master.svc      jwt-token: <JWT>
    {"domain_id": "alice", "csr": base64(PEM), "request_time": 1767839000123456789}
    {"cert": base64(PEM), "master_pubkey": base64(PEM, PKCS#1)}       or plain text with status 400 or 500

The certificate request has the domain's id as common name and the deploy token, as bare bytes, in the extension 1.2.3.4.
The JWT is signed by the same key and holds the hash of the body, so neither can be used without the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from coterie.base import jwt, pki
from coterie.base.secret import SecretValue

REGISTER_PATH = "/register"
JWT_HEADER = "jwt-token"
TOKEN_EXTENSION = x509.ObjectIdentifier("1.2.3.4")
JWT_LIFE = timedelta(minutes=5)
LONGEST_BODY = 64 * 1024
"""A request with a 4096-bit key has about 3 KiB."""


class UnreadableMessage(Exception):
    """A message is not what it should be; the sentence says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    domain_id: str
    csr: str = field(repr=False)
    """base64 of PEM. Holds the deploy token."""
    request_time: int

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(f"{self.domain_id}_{self.csr}_{self.request_time}".encode()).digest()

    def encode(self) -> bytes:
        return json.dumps(
            {"domain_id": self.domain_id, "csr": self.csr, "request_time": self.request_time}, separators=(",", ":")
        ).encode()

    @classmethod
    def decode(cls, body: bytes) -> RegisterRequest:
        document = _json_object(body, LONGEST_BODY)
        # Kuscia leaves zero values out, so a missing time is 0.
        domain, csr, at = document.get("domain_id"), document.get("csr"), document.get("request_time", 0)
        if not isinstance(domain, str) or not domain:
            raise UnreadableMessage("domain_id is missing")
        if not isinstance(csr, str) or not csr:
            raise UnreadableMessage("csr is missing")
        if not isinstance(at, int) or isinstance(at, bool):
            raise UnreadableMessage("request_time is not a whole number")
        return cls(domain, csr, at)


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    certificate: str
    """PEM of the domain's certificate."""
    master_key: str
    """PEM (PKCS#1) of the control plane's public key; empty where the control plane does not say it."""

    def encode(self) -> bytes:
        document = {"cert": _encoded(self.certificate.encode())}
        if self.master_key:
            document["master_pubkey"] = _encoded(self.master_key.encode())
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> RegisterAnswer:
        document = _json_object(body, LONGEST_BODY)
        certificate, key = document.get("cert"), document.get("master_pubkey") or ""
        if not isinstance(certificate, str) or not certificate or not isinstance(key, str):
            raise UnreadableMessage("the answer holds no certificate")
        try:
            return cls(_decoded(certificate, "cert").decode(), _decoded(key, "master_pubkey").decode())
        except UnicodeDecodeError as error:
            raise UnreadableMessage("the answer's certificate is not PEM") from error


# The certificate request.


@dataclass(frozen=True, slots=True)
class Csr:
    """What a certificate request says, once its own signature was found to be right."""

    domain: str
    key: rsa.RSAPublicKey = field(repr=False)
    deploy_token: SecretValue


def make_csr(domain: str, key: rsa.RSAPrivateKey, deploy_token: SecretValue | None) -> str:
    """base64 of PEM."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain)])
    )
    given = deploy_token.reveal().encode() if deploy_token is not None else b""
    builder = builder.add_extension(x509.UnrecognizedExtension(TOKEN_EXTENSION, given), critical=False)
    return _encoded(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def read_csr(text: str) -> Csr:
    try:
        csr = x509.load_pem_x509_csr(_decoded(text, "csr"))
        names = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key, extensions = csr.public_key(), csr.extensions
        sound = csr.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion) as error:
        raise UnreadableMessage("csr is not a certificate request in PEM") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise UnreadableMessage("the key of the csr is not an RSA key")
    if not sound:
        raise UnreadableMessage("the csr is not signed by its own key")
    if len(names) != 1:
        raise UnreadableMessage("the csr must have exactly one common name, the domain's id")
    token = b""
    for each in extensions:
        if each.oid == TOKEN_EXTENSION and isinstance(each.value, x509.UnrecognizedExtension):
            token = each.value.value
    try:
        return Csr(str(names[0].value), key, SecretValue(token))
    except UnicodeDecodeError as error:
        raise UnreadableMessage("the deploy token in the csr is not text") from error


# The JWT.


def make_jwt(request: RegisterRequest, key: rsa.RSAPrivateKey, now: datetime) -> str:
    claims = {
        "req_hash": list(request.hash),
        "iss": request.domain_id,
        "sub": request.domain_id,
        "iat": int(now.timestamp()),
        "exp": int((now + JWT_LIFE).timestamp()),
    }
    return jwt.sign(claims, key)


def hash_in(claims: jwt.Claims) -> bytes:
    request_hash = claims.get("req_hash")
    if not isinstance(request_hash, list) or len(request_hash) != 32:
        raise UnreadableMessage("the claim req_hash is not a list of 32 numbers")
    if not all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 256 for each in request_hash):
        raise UnreadableMessage("the claim req_hash holds what is no byte")
    return bytes(request_hash)


def public_pem(key: rsa.RSAPublicKey) -> str:
    """`-----BEGIN RSA PUBLIC KEY-----`."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1).decode()


def read_public_key(pem: str) -> rsa.RSAPublicKey:
    try:
        key = pki.load_public_key(pem.encode())
    except pki.PkiError as error:
        raise UnreadableMessage("master_pubkey is not a public key in PEM") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise UnreadableMessage("master_pubkey is not an RSA key")
    return key


def _json_object(body: bytes, longest: int) -> dict[str, Any]:
    if len(body) > longest:
        raise UnreadableMessage(f"the body has more than {longest} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage("the body is not JSON") from error
    if not isinstance(document, dict):
        raise UnreadableMessage("the body is not a JSON object")
    return document


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableMessage(f"{what} is not base64") from error
