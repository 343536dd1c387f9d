"""Signed text as C2SP defines it: notes, checkpoints of a log, cosignatures of witnesses. Pure, but for the keys' signatures.

alice.coterie/evidence/2026-1        origin        │
1234                                 size          │ the text that is signed
nND/nri/U0xuHUrYSy0HtMeal2vzD9V...   root, base64  │
                                     (empty line)
— alice.coterie/evidence/2026-1 Az3grl...          signature of the log: key id and Ed25519 signature, base64
— bob.coterie/witness HQc4e1...                    cosignature of a witness: key id, time, Ed25519 signature
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coterie.kuscia.evidence.merkle import HASH_SIZE

ED25519, COSIGNATURE = 0x01, 0x04
"""Types of signatures: of a log, and of a witness with the time at which it saw the checkpoint."""
_DASH = "— "
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f]{1,255}")
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_MAX_NOTE = 64 << 10
_MAX_SIGNATURES = 100


class NoteError(ValueError):
    """A note cannot be read, or is not signed by who should have signed it."""


@dataclass(frozen=True, slots=True)
class NoteKey:
    """The public key of a log or a witness (C2SP's "vkey")."""

    name: str
    type: int
    public: bytes

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([self.type]) + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> NoteKey:
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        raw = _decode(encoded, "the key")
        if not _NAME.fullmatch(name) or len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE):
            raise NoteError("a key has the form name+id+base64 and is of type Ed25519")
        key = cls(name, raw[0], raw[1:])
        if key.id.hex() != key_id:
            raise NoteError(f'the id of the key of "{name}" is not that of the key')
        return key

    def verify(self, signature: bytes, message: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            raise NoteError(f'the signature of "{self.name}" is wrong') from None


@dataclass(frozen=True, slots=True)
class NoteSignature:
    name: str
    key_id: bytes
    data: bytes

    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.data).decode()}\n"


@dataclass(frozen=True, slots=True)
class SignedNote:
    text: str
    """With its last newline, without the empty line."""
    signatures: tuple[NoteSignature, ...]

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(each.line() for each in self.signatures)}"

    @classmethod
    def parse(cls, note: str) -> SignedNote:
        if len(note) > _MAX_NOTE:
            raise NoteError("the note is too long")
        if any((ord(char) < 0x20 and char != "\n") or char == "\x7f" for char in note):
            raise NoteError("the note contains control characters")
        text, gap, rest = note.rpartition("\n\n")
        if not gap or not rest.endswith("\n"):
            raise NoteError("the note has no signatures behind an empty line")
        signatures = parse_signatures(rest)
        if not signatures:
            raise NoteError("the note has no signature")
        return cls(text + "\n", signatures)

    def verify(self, key: NoteKey) -> None:
        """That this log signed. Raises NoteError."""
        for each in self.signatures:
            if each.name == key.name and each.key_id == key.id:
                return key.verify(each.data, self.text.encode())
        raise NoteError(f'the note is not signed by "{key.name}"')

    def cosigned(self, key: NoteKey) -> int | None:
        """When this witness saw it, in seconds since 1970; None when it did not sign. Raises NoteError for a wrong signature."""
        for each in self.signatures:
            if each.name == key.name and each.key_id == key.id:
                return verify_cosignature(self.text, each, key)
        return None

    def with_signatures(self, more: Iterable[NoteSignature]) -> SignedNote:
        return SignedNote(self.text, tuple(dict.fromkeys((*self.signatures, *more))))


def parse_signatures(text: str) -> tuple[NoteSignature, ...]:
    """Lines of signatures. NoteError for anything else."""
    found = []
    for line in text.splitlines():
        name, _, encoded = line.removeprefix(_DASH).partition(" ")
        if not line.startswith(_DASH) or not _NAME.fullmatch(name):
            raise NoteError("a line of a signature begins with a dash and a name")
        raw = _decode(encoded, f'the signature of "{name}"')
        if len(raw) < 5:
            raise NoteError(f'the signature of "{name}" is too short')
        found.append(NoteSignature(name, raw[:4], raw[4:]))
    if len(found) > _MAX_SIGNATURES:
        raise NoteError("the note has too many signatures")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        lines = text.split("\n")
        if len(lines) != 4 or lines[3]:
            raise NoteError("a checkpoint has three lines: origin, size, root")
        origin, size, root = lines[:3]
        if not _NAME.fullmatch(origin):
            raise NoteError("the origin of a checkpoint is a name without spaces")
        if not _SIZE.fullmatch(size):
            raise NoteError("the size of a checkpoint is a number")
        raw = _decode(root, "the root")
        if len(raw) != HASH_SIZE:
            raise NoteError("the root of a checkpoint is a SHA-256 hash")
        return cls(origin, int(size), raw)


class LogSigner:
    """Signs the checkpoints of a log."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self.private = key
        self.key = NoteKey(name, ED25519, key.public_key().public_bytes_raw())

    def sign(self, checkpoint: Checkpoint) -> SignedNote:
        text = checkpoint.text()
        return SignedNote(text, (NoteSignature(self.key.name, self.key.id, self.private.sign(text.encode())),))


class WitnessSigner:
    """Cosigns checkpoints of other logs with the time at which it saw them."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key = NoteKey(name, COSIGNATURE, key.public_key().public_bytes_raw())

    def cosign(self, text: str, seconds: int) -> NoteSignature:
        signature = self._key.sign(_cosigned_message(text, seconds))
        return NoteSignature(self.key.name, self.key.id, seconds.to_bytes(8, "big") + signature)


_LATEST = 253_402_300_799
"""The last second of the year 9999: other programs know no later one."""


def verify_cosignature(text: str, signature: NoteSignature, key: NoteKey) -> int:
    """When the witness saw it, in seconds since 1970. Raises NoteError."""
    if key.type != COSIGNATURE or signature.key_id != key.id or len(signature.data) != 72:
        raise NoteError(f'"{signature.name}" did not cosign with the key that is known')
    seconds = int.from_bytes(signature.data[:8], "big")
    key.verify(signature.data[8:], _cosigned_message(text, seconds))
    if seconds > _LATEST:
        raise NoteError(f'"{signature.name}" cosigned at a time that there is not')
    return seconds


def _cosigned_message(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def open_checkpoint(note: str, key: NoteKey) -> tuple[Checkpoint, SignedNote]:
    """A checkpoint that this log signed. Raises NoteError."""
    signed = SignedNote.parse(note)
    found = Checkpoint.parse(signed.text)
    if found.origin != key.name:
        raise NoteError(f'the checkpoint is of the log "{found.origin}", not of "{key.name}"')
    signed.verify(key)
    return found, signed


def encode_hashes(hashes: Sequence[bytes]) -> str:
    return "".join(f"{base64.b64encode(each).decode()}\n" for each in hashes)


def decode_hashes(lines: Iterable[str]) -> list[bytes]:
    found = [_decode(line, "a hash of the proof") for line in lines]
    if any(len(each) != HASH_SIZE for each in found):
        raise NoteError("a proof consists of SHA-256 hashes")
    return found


def _decode(text: str, what: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError(f"{what} is not base64") from None
    if base64.b64encode(raw).decode() != text:
        # One value has one spelling: else two notes would differ and say the same.
        raise NoteError(f"{what} is not base64 as it is written")
    return raw
