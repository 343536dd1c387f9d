"""How an encrypted body looks: chunks that can each be verified before anything of them is released. Pure.

    body   = chunk* last-chunk
    chunk  = length (4 bytes, the highest bit set in the last) · cipher text · tag (16 bytes)

    nonce  = number of the chunk (11 bytes) · 1 for the last, else 0        additional data = the 4 bytes of length

Each message has a key of its own, derived from the session token and a random salt that travels in a header, so that
counting is a safe way to choose nonces and a chunk fits nowhere but in its place in its message. The key of a response
hangs on the salt of its request too: it answers that request and no other. A missing end, a chunk left out, doubled,
moved or taken from elsewhere fails like a forged one. This is the STREAM construction over AES-256-GCM.

A message without body cannot carry a last chunk; its tag travels in the header (`proof_of_empty`).
"""

from __future__ import annotations

from enum import StrEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.base.secret import SecretValue

SALT_BYTES = 16
CHUNK_BYTES = 64 << 10
"""Of plain text. What a receiver holds back until it is whole, so the bound of its memory."""
TAG_BYTES = 16
PREFIX_BYTES = 4
_LAST = 1 << 31
_KEY_BYTES = 32
_PURPOSE = b"coterie body encryption 1"


class Direction(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"


class FrameError(ValueError):
    """The body is not what the partner sent, or not all of it. Nothing of the chunk in question is released."""


def derive(
    token: SecretValue,
    direction: Direction,
    source: str,
    destination: str,
    revision: int,
    salt: bytes,
    *,
    length: str = "",
) -> bytes:
    """The key of one message. `salt`: the request's, and for a response its own after it. `length`: what was said about
    the length of the whole body; a false one fits no key."""
    # Parts are counted, so that no two sets of names run together into the same text.
    names = [direction.encode(), source.encode(), destination.encode(), str(revision).encode(), length.encode()]
    info = _PURPOSE + b"".join(len(each).to_bytes(2, "big") + each for each in names)
    return HKDF(SHA256(), _KEY_BYTES, salt, info).derive(token.reveal().encode())


def _nonce(number: int, last: bool) -> bytes:
    return (number << 8 | last).to_bytes(12, "big")


class Sealer:
    """Encrypts one message."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def seal(self, data: bytes | memoryview, *, last: bool = False) -> bytes:
        """The chunks of `data`; nothing is kept back for later. An empty piece that is not the last is nothing."""
        view = memoryview(data)
        if len(view) <= CHUNK_BYTES:
            return self._chunk(view, last) if last or len(view) else b""
        starts = range(0, len(view), CHUNK_BYTES)
        return b"".join(
            self._chunk(view[at : at + CHUNK_BYTES], last and at + CHUNK_BYTES >= len(view)) for at in starts
        )

    def _chunk(self, piece: memoryview, last: bool) -> bytes:
        prefix = (len(piece) + TAG_BYTES | (_LAST if last else 0)).to_bytes(PREFIX_BYTES, "big")
        sealed = self._cipher.encrypt(_nonce(self._number, last), piece, prefix)
        self._number += 1
        return prefix + sealed

    def proof_of_empty(self) -> bytes:
        """For a message without body, instead of any chunk."""
        return self.seal(b"", last=True)[PREFIX_BYTES:]


class Opener:
    """Decrypts one message and holds at most one chunk."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0
        self._held = bytearray()
        self._ended = False

    def open(self, data: bytes | memoryview) -> list[bytes]:
        """What can be released now. Raises FrameError; after that nothing more may be asked."""
        if not data:
            return []
        if self._ended:
            raise FrameError("something follows the end of the encrypted body")
        if self._held:
            self._held += data
            whole, self._held = memoryview(self._held), bytearray()
        else:
            whole = memoryview(data)
        found: list[bytes] = []
        at = 0
        while len(whole) - at >= PREFIX_BYTES:
            prefix = whole[at : at + PREFIX_BYTES]
            word = int.from_bytes(prefix, "big")
            last, size = bool(word & _LAST), word & ~_LAST
            if not TAG_BYTES <= size <= CHUNK_BYTES + TAG_BYTES:
                raise FrameError("the body is not encrypted as its header says, or was changed on the way")
            start, end = at + PREFIX_BYTES, at + PREFIX_BYTES + size
            if end > len(whole):
                break
            if piece := self._verified(whole[start:end], prefix, last):
                found.append(piece)
            at = end
            if last and at < len(whole):
                raise FrameError("something follows the end of the encrypted body")
        self._held = bytearray(whole[at:])
        return found

    def _verified(self, sealed: memoryview, prefix: memoryview, last: bool) -> bytes:
        try:
            piece = self._cipher.decrypt(_nonce(self._number, last), sealed, prefix)
        except InvalidTag:
            raise FrameError("the body was changed on the way, or encrypted with another key") from None
        self._number += 1
        self._ended = last
        return piece

    def finish(self) -> None:
        """Nothing more comes. Raises FrameError when the end is missing."""
        if not self._ended:
            raise FrameError("the encrypted body was cut off")

    def accept_empty(self, proof: bytes) -> None:
        """The message has no body and the header says that it never had one."""
        prefix = (TAG_BYTES | _LAST).to_bytes(PREFIX_BYTES, "big")
        if self._verified(memoryview(proof), memoryview(prefix), True):
            raise FrameError("the proof of an empty body is none")
