"""An encrypted body as Kuscia's gateways write it: AES-128-GCM over the whole body, the tag at its end. Pure.

    key     the first 16 characters of the session token as it travels (base64)
    nonce   12 random bytes of the request, in `Kuscia-Encrypt-Iv`; the response has the same, and the same key
    body    cipher text, then 16 bytes of tag; a message without body has neither

Only for routes that ask for it (`KusciaWireForm.BODY_ENCRYPTION`): the nonce of the response makes it weak, and headers that
end a message are not protected at all. Kuscia passes decrypted bytes on before it has seen the tag; here a body is held
until its tag was verified, so it has a longest length, and a conversation in both directions at once is not possible.
"""

from __future__ import annotations

import base64
import binascii
from typing import ClassVar
from weakref import WeakSet

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import GCM

from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.crypt.announcement import Headers, is_number, one
from coterie.kuscia.gateway.crypt.frames import TAG_BYTES, FrameError
from coterie.kuscia.gateway.names import ENCRYPT_IV, ENCRYPT_VERSION

NONCE_BYTES = 12
LONGEST_BODY = 64 << 20
"""Of one message, since it is held."""
LONGEST_TOGETHER = 256 << 20
"""Of all messages that are held at a time; those of one route may have half of it."""
_KEY_CHARACTERS = 16


class TooMuchHeld(Exception):
    """Other messages hold the memory that this one needs."""


def key_of(token: SecretValue) -> bytes:
    key = token.reveal().encode()[:_KEY_CHARACTERS]
    if len(key) < _KEY_CHARACTERS:
        raise FrameError("the token of the route is too short to be a key")
    return key


def encoded_nonce(nonce: bytes) -> str:
    return base64.b64encode(nonce).decode()


def read_headers(headers: Headers) -> tuple[int, bytes]:
    """(revision, nonce) of a request. Raises FrameError."""
    version = one(headers, ENCRYPT_VERSION)
    if not is_number(version):
        raise FrameError("Kuscia-Encrypt-Version does not hold the expected number")
    try:
        nonce = base64.b64decode(one(headers, ENCRYPT_IV).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise FrameError("Kuscia-Encrypt-Iv is not base64") from None
    if len(nonce) != NONCE_BYTES:
        raise FrameError(f"the nonce has {len(nonce)} bytes instead of {NONCE_BYTES}")
    return int(version), nonce


class KusciaSealer:
    """Encrypts one message as it passes."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._cipher = Cipher(AES128(key), GCM(nonce)).encryptor()

    def seal(self, data: bytes | memoryview, *, last: bool = False) -> bytes:
        try:
            made = self._cipher.update(data)
        except ValueError as error:  # 64 GiB, beyond which GCM is no encryption
            raise FrameError("the body is longer than its encryption allows") from error
        return made if not last else made + self._cipher.finalize() + self._cipher.tag


class KusciaOpener:
    """Decrypts one message, all of which it holds until the end."""

    _all: ClassVar[WeakSet[KusciaOpener]] = WeakSet()

    def __init__(self, key: bytes, nonce: bytes, route: str) -> None:
        """`route`: by which it came."""
        self._cipher = AESGCM(key)
        self._route = route
        self._nonce = nonce
        self._held = bytearray()
        self._all.add(self)

    def open(self, data: bytes | memoryview) -> list[bytes]:
        """Nothing yet. Raises FrameError, or TooMuchHeld."""
        if len(self._held) + len(data) > LONGEST_BODY + TAG_BYTES:
            raise FrameError(f"a body in Kuscia's format may have {LONGEST_BODY >> 20} MiB here; this one is longer")
        together = sum(len(each._held) for each in self._all) + len(data)
        of_route = sum(len(each._held) for each in self._all if each._route == self._route) + len(data)
        if together > LONGEST_TOGETHER or of_route > LONGEST_TOGETHER // 2:
            raise TooMuchHeld
        self._held += data
        return []

    def finish(self) -> list[bytes]:
        """The body. Raises FrameError when it is not what the partner sent, or not all of it."""
        held, self._held = self._held, bytearray()
        if len(held) < TAG_BYTES:
            raise FrameError("the encrypted body was cut off")
        try:
            body = self._cipher.decrypt(self._nonce, held, None)
        except InvalidTag:
            raise FrameError("the body was changed on the way, cut off, or encrypted with another key") from None
        return [body] if body else []
