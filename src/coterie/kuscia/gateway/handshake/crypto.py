"""Halves of tokens under RSA, and whole tokens at rest. Pure, but for randomness.

    on the wire   base64(RSA-PKCS#1 v1.5(partner's key, "kuscia" + 16 bytes))     a half; the whole (32) for type UID
    at rest       base64(RSA-PKCS#1 v1.5(own key, "kuscia" + 32 bytes))           in the status of a DomainRoute
    in a header   base64(32 bytes): the source's half, then the destination's

PKCS#1 v1.5 is what Kuscia speaks. A server that told wrong padding from wrong contents would decrypt for whoever asks
often enough. OpenSSL (3.2 and later) answers wrong padding with random bytes, and everything that is wrong with what it
answers is one error here. What differs in time is only what the caller can see himself: base64 and length.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric import padding, rsa

from coterie.base.secret import SecretValue
from coterie.kuscia.api.domainroutes import pkcs1_pem
from coterie.kuscia.gateway.handshake.messages import HandshakeFault
from coterie.kuscia.identity.domain_identity import DomainIdentity

HALF = 16
WHOLE = 32
_PREFIX = b"kuscia"
_REMEMBERED = 4096


class NotDecrypted(HandshakeFault):
    def __init__(self) -> None:
        super().__init__("cannot be decrypted with this domain's key")


def half() -> bytes:
    return secrets.token_bytes(HALF)


def whole() -> bytes:
    return secrets.token_bytes(WHOLE)


def encrypt(key: rsa.RSAPublicKey, raw: bytes) -> str:
    return base64.b64encode(key.encrypt(_PREFIX + raw, padding.PKCS1v15())).decode()


def decrypt(key: rsa.RSAPrivateKey, text: str, size: int) -> bytes:
    """The `size` bytes inside. Raises NotDecrypted, which does not tell what was wrong."""
    try:
        plain = key.decrypt(base64.b64decode(text, validate=True), padding.PKCS1v15())
    except (ValueError, binascii.Error):
        plain = b""
    right_length = len(plain) == len(_PREFIX) + size
    right_prefix = hmac.compare_digest(plain[: len(_PREFIX)].ljust(len(_PREFIX), b"\0"), _PREFIX)
    if not (right_length & right_prefix):
        raise NotDecrypted from None
    return plain[len(_PREFIX) :]


def public_text(key: rsa.RSAPublicKey) -> str:
    """As routes hold it."""
    return base64.b64encode(pkcs1_pem(key)).decode()


def pubhash(key: rsa.RSAPublicKey) -> str:
    return base64.b64encode(hashlib.sha256(pkcs1_pem(key)).digest()).decode()


def same_hash(claimed: str, key: rsa.RSAPublicKey) -> bool:
    return hmac.compare_digest(claimed.encode(), pubhash(key).encode())


def header_value(token: bytes) -> SecretValue:
    return SecretValue(base64.b64encode(token))


def seal(token: bytes, identity: DomainIdentity) -> str:
    if len(token) != WHOLE:
        raise ValueError(f"a token has {WHOLE} bytes")
    return encrypt(identity.key.public_key(), token)


def open_sealed(text: str, identity: DomainIdentity) -> SecretValue:
    """The token as headers carry it. Raises NotDecrypted. Opened ones are remembered: a private operation is dear."""
    return _opened(identity.key, text)


@lru_cache(_REMEMBERED)
def _opened(key: rsa.RSAPrivateKey, text: str) -> SecretValue:
    return header_value(decrypt(key, text, WHOLE))


def opened_bytes(text: str, identity: DomainIdentity) -> bytes:
    return base64.b64decode(open_sealed(text, identity).reveal())


def pem_of(text: str) -> tuple[str, ...]:
    """The text inside base64, if there is any."""
    try:
        return (base64.b64decode(text, validate=True).decode(),) if text else ()
    except (binascii.Error, UnicodeDecodeError):
        return ()
