"""What the headers of an encrypted message say about it: token, salt, length, and the proof of an empty body. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kuscia.gateway.crypt.frames import SALT_BYTES, FrameError
from coterie.kuscia.gateway.names import ENCRYPT_IV, ENCRYPT_SCHEME, ENCRYPT_VERSION

SCHEME = "aes256gcm-stream-1"
HEADERS = (ENCRYPT_VERSION, ENCRYPT_IV, ENCRYPT_SCHEME)
Headers = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Announcement:
    revision: int
    salt: bytes
    length: str = ""
    """As it stood in Content-Length; empty where there was none."""
    proof: bytes | None = None
    """Of a message without body."""

    @property
    def headers(self) -> dict[str, str]:
        scheme = SCHEME + (f"; length={self.length}" if self.length else "")
        if self.proof is not None:
            scheme += f"; empty={_encode(self.proof)}"
        return {ENCRYPT_VERSION: str(self.revision), ENCRYPT_IV: _encode(self.salt), ENCRYPT_SCHEME: scheme}

    @classmethod
    def read(cls, headers: Headers) -> Announcement:
        scheme, *pairs = one(headers, ENCRYPT_SCHEME).split("; ")
        if scheme != SCHEME:
            raise FrameError(f"the scheme {scheme[:40]!r} is not known here")
        parameters = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
        length, proof = parameters.get("length", ""), parameters.get("empty")
        version = one(headers, ENCRYPT_VERSION)
        if not is_number(version) or (length and not is_number(length)):
            raise FrameError("an encryption header does not hold the expected number")
        salt = _decode(one(headers, ENCRYPT_IV))
        if len(salt) != SALT_BYTES:
            raise FrameError(f"the salt has {len(salt)} bytes instead of {SALT_BYTES}")
        return cls(int(version), salt, length, None if proof is None else _decode(proof))


def one(headers: Headers, name: str) -> str:
    """A header that is sent twice is none: others may read the other one."""
    values = headers.get(name, ())
    return values[0] if len(values) == 1 else ""


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise FrameError("a header of the encryption is not base64") from None
