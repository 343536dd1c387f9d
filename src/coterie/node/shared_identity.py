"""Keys and certificates that all control planes of a domain share, kept in their store, sealed with the domain's key.

    var/certs of the first member ──seal──> /identity/control-plane ──open──> var/certs of the others
                                             (made once, never replaced)

Whoever reads the database must not become the control plane: the store holds the record encrypted (AES-256-GCM) with a key
derived from the domain's private key (HKDF-SHA256, a salt of its own), which is never in the store. Every member is given that
key (`domainKeyData`, or `var/certs/domain.key`). Domain and key are authenticated with the record, so it opens in no other place.

What is shared is what others trust: the API's authority, the authority of front proxies, the key of service accounts' tokens, the
domain's certificates, the authority of its engines, and the token of KusciaAPI. What those sign is each member's own.
Everything here is pure; `shared_identity_process.py` reads and writes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

STORE_KEY: Final = "/identity/control-plane"
NEEDED: Final = (
    "domain.crt",
    "ca.crt",
    "engine-ca.crt",
    "engine-ca.key",
    "pki/ca.crt",
    "pki/ca.key",
    "pki/front-proxy-ca.crt",
    "pki/front-proxy-ca.key",
    "pki/sa.key",
)
"""Below `var/certs`."""
OPTIONAL: Final = ("token",)
"""Not there where KusciaAPI is plain text."""
_FORMAT = 1
_INFO = b"coterie control-plane identity v1"
_BYTES = 32
_NONCE = 12


class SharedIdentityError(Exception):
    """This node cannot be a member of the store's control plane; one sentence says why and what to do."""


class SealedIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The record in the store."""

    format: int
    domain: str
    public_key: str
    """SHA-256 of the domain's public key, to tell a wrong key from a damaged record."""
    salt: bytes
    nonce: bytes
    sealed: bytes


def fingerprint(key: RSAPublicKey) -> str:
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(encoded)
    return digest.finalize().hex()


def _cipher(key: RSAPrivateKey, salt: bytes) -> AESGCM:
    numbers = key.private_numbers()
    length = (key.key_size + 7) // 8
    material = numbers.d.to_bytes(length, "big") + numbers.public_numbers.n.to_bytes(length, "big")
    return AESGCM(HKDF(hashes.SHA256(), _BYTES, salt, _INFO).derive(material))


def _bound(domain: str, public_key: str) -> bytes:
    return f"{_FORMAT}\n{domain}\n{public_key}\n".encode()


def seal(files: Mapping[str, bytes], domain: str, key: RSAPrivateKey) -> bytes:
    """The record of these files."""
    salt, nonce, public_key = os.urandom(_BYTES), os.urandom(_NONCE), fingerprint(key.public_key())
    text = msgspec.json.encode({name: base64.b64encode(content).decode() for name, content in files.items()})
    sealed = _cipher(key, salt).encrypt(nonce, text, _bound(domain, public_key))
    return msgspec.json.encode(
        SealedIdentity(format=_FORMAT, domain=domain, public_key=public_key, salt=salt, nonce=nonce, sealed=sealed)
    )


def parse(record: bytes) -> SealedIdentity:
    try:
        found = msgspec.json.decode(record, type=SealedIdentity)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SharedIdentityError(
            f"the record {STORE_KEY} of the store is damaged; restore the store from a backup"
        ) from None
    if found.format != _FORMAT:
        raise SharedIdentityError(
            f"the record {STORE_KEY} of the store is of format {found.format}, which this version does not know; upgrade this node"
        )
    return found


def open_sealed(record: bytes, domain: str, key: RSAPrivateKey | None) -> dict[str, bytes]:
    """The files; SharedIdentityError where they are another domain's, sealed with another key, or damaged."""
    found = parse(record)
    if found.domain != domain:
        raise SharedIdentityError(
            f'the store is that of the domain "{found.domain}", not of "{domain}"; name a store of its own (another '
            "database, schema or prefix), or the same domainID"
        )
    if key is None:
        raise SharedIdentityError(
            "the store has a control plane already, and this node does not have its key; give it the same domainKeyData as the "
            "other members, or copy their var/certs/domain.key (mode 0600) to its own"
        )
    if fingerprint(key.public_key()) != found.public_key:
        raise SharedIdentityError(
            "the members of this store have another domain key than this node; give it the same domainKeyData, and remove what "
            "an earlier start of it left in var/certs"
        )
    try:
        text = _cipher(key, found.salt).decrypt(found.nonce, found.sealed, _bound(found.domain, found.public_key))
        files = msgspec.json.decode(text, type=dict[str, str])
        opened = {name: base64.b64decode(content, validate=True) for name, content in files.items()}
    except (InvalidTag, ValueError):
        raise SharedIdentityError(
            f"the record {STORE_KEY} of the store was changed; restore the store from a backup"
        ) from None
    known = {*NEEDED, *OPTIONAL}
    missing = [name for name in NEEDED if name not in opened]
    if missing or set(opened) - known:
        names = ", ".join(missing or sorted(set(opened) - known))
        raise SharedIdentityError(
            f"the record {STORE_KEY} of the store does not fit this version ({names}); upgrade all members"
        )
    return opened


def to_write(shared: Mapping[str, bytes], here: Mapping[str, bytes]) -> dict[str, bytes]:
    """What is missing here. SharedIdentityError where a file is another one: nothing that somebody trusts is replaced silently."""
    other = sorted(name for name, content in here.items() if name in shared and shared[name].strip() != content.strip())
    if other:
        raise SharedIdentityError(
            f"var/certs has other keys or certificates than the members of the store ({', '.join(other)}); this node was started "
            "with a store of its own before. Move var/certs away (keep domain.key), and start it again"
        )
    return {name: content for name, content in shared.items() if name not in here}
