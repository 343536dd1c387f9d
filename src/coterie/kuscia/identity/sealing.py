"""Text that only the holder of an RSA key can read, of any length: as Kuscia keeps settings at rest.

Base64 of one RSA-OAEP (SHA-256) block after the other. A block carries what the key's size leaves room for.
"""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

_SCHEME = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
_OVERHEAD = 66


class DecryptionError(Exception):
    """Not encrypted with this key, or damaged."""


def encrypt_for(text: str, key: rsa.RSAPublicKey) -> str:
    size, data = key.key_size // 8 - _OVERHEAD, text.encode()
    parts = [key.encrypt(data[at : at + size], _SCHEME) for at in range(0, max(1, len(data)), size)]
    return base64.b64encode(b"".join(parts)).decode()


def decrypt_with(text: str, key: rsa.RSAPrivateKey) -> str:
    size = key.key_size // 8
    try:
        blocks = base64.b64decode(text, validate=True)
        return b"".join(key.decrypt(blocks[at : at + size], _SCHEME) for at in range(0, len(blocks), size)).decode()
    except (binascii.Error, ValueError) as problem:
        raise DecryptionError("not encrypted with this key") from problem
