"""Identifiers: random UIDs for objects and short suffixes for generated names.

Both are asked for on every create, so randomness is fetched from the system in blocks. A block belongs to the process
that fetched it: after a fork the child throws it away, or parent and child would hand out the same identifiers.
"""

from __future__ import annotations

import os

# What Kubernetes uses: no vowels (no words), no 0/1/3 (no mistaken letters).
SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_BLOCK = 4096


class _Pool:
    __slots__ = ("at", "hexes", "letter_at", "letters")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.hexes = ""
        self.at = 0
        self.letters = ""
        self.letter_at = 0


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.clear)

# 243 = 9 * 27: bytes from there on would make the first letters of the alphabet likelier, so they are not used.
_LETTER_OF_BYTE = "".join(SAFE_ALPHABET[byte % 27] if byte < 243 else "\0" for byte in range(256))


def uid4() -> str:
    """A random (version 4) UUID as text."""
    pool = _pool
    at = pool.at
    if at + 32 > len(pool.hexes):
        pool.hexes = os.urandom(_BLOCK).hex()
        at = 0
    pool.at = at + 32
    h = pool.hexes
    # The variant digit keeps two random bits: 8, 9, a or b.
    variant = "89ab"[int(h[at + 16], 16) & 3]
    h = h[at : at + 32]
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}"


def suffix(length: int = 5) -> str:
    """Random letters and digits for `generateName`."""
    pool = _pool
    at = pool.letter_at
    while at + length > len(pool.letters):
        fresh = os.urandom(_BLOCK).decode("latin-1").translate(_LETTER_OF_BYTE)
        pool.letters = pool.letters[at:] + fresh.replace("\0", "")
        at = 0
    pool.letter_at = at + length
    return pool.letters[at : at + length]


def secret_text(length: int, alphabet: str = SAFE_ALPHABET) -> str:
    """Random text that must not be guessed; drawn directly from the system, never from the shared block."""
    limit = 256 - 256 % len(alphabet)
    out: list[str] = []
    while len(out) < length:
        out.extend(alphabet[byte % len(alphabet)] for byte in os.urandom(length * 2) if byte < limit)
    return "".join(out[:length])
