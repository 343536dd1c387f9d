"""Halves, whole tokens and hashes, as Kuscia makes them; and what must not be told apart."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import padding
from handshake_kit import identity

from coterie.kuscia.gateway.handshake import crypto

ALICE, BOB = identity("alice"), identity("bob")


def raw_encrypted(plain: bytes) -> str:
    return base64.b64encode(BOB.key.public_key().encrypt(plain, padding.PKCS1v15())).decode()


@pytest.mark.parametrize("size", [crypto.HALF, crypto.WHOLE])
def test_what_is_encrypted_is_decrypted(size: int) -> None:
    raw = os.urandom(size)
    text = crypto.encrypt(BOB.key.public_key(), raw)
    assert crypto.decrypt(BOB.key, text, size) == raw
    assert text != crypto.encrypt(BOB.key.public_key(), raw), "encryption is randomised"


def test_the_block_is_pkcs1_as_the_standard_writes_it() -> None:
    """Reckoned by hand, so that no library agrees with itself."""
    half = os.urandom(16)
    numbers = BOB.key.private_numbers()
    n, size = numbers.public_numbers.n, BOB.key.key_size // 8
    sent = int.from_bytes(base64.b64decode(crypto.encrypt(BOB.key.public_key(), half)), "big")
    block = pow(sent, numbers.d, n).to_bytes(size, "big")
    assert block[:2] == b"\x00\x02" and 0 not in block[2 : -len(half) - 7]
    assert block[-len(half) - 7 :] == b"\x00kuscia" + half
    made = b"\x00\x02" + b"\x55" * (size - 3 - 22) + b"\x00kuscia" + half
    theirs = pow(int.from_bytes(made, "big"), numbers.public_numbers.e, n).to_bytes(size, "big")
    assert crypto.decrypt(BOB.key, base64.b64encode(theirs).decode(), 16) == half


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no base64!",
        base64.b64encode(b"short").decode(),
        base64.b64encode(bytes(128)).decode(),
        base64.b64encode(b"\xff" * 128).decode(),
        raw_encrypted(b""),
        raw_encrypted(b"kuscia"),
        raw_encrypted(b"kuscia" + bytes(15)),
        raw_encrypted(b"kuscia" + bytes(17)),
        raw_encrypted(b"kuscia" + bytes(32)),
        raw_encrypted(b"KUSCIA" + bytes(16)),
        raw_encrypted(bytes(22)),
        crypto.encrypt(ALICE.key.public_key(), bytes(16)),
        crypto.encrypt(BOB.key.public_key(), bytes(16)) + "\n",
    ],
    ids=[
        "nothing", "no base64", "short", "zero", "too large a number", "empty", "only the prefix", "15 bytes", "17 bytes", "a whole",
        "other prefix", "no prefix", "for somebody else", "line break",
    ],
)  # fmt: skip
def test_everything_wrong_is_the_same_error(text: str) -> None:
    with pytest.raises(crypto.NotDecrypted) as caught:
        crypto.decrypt(BOB.key, text, crypto.HALF)
    assert str(caught.value) == "cannot be decrypted with this domain's key"
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_the_library_does_not_tell_wrong_padding() -> None:
    """What makes PKCS#1 v1.5 bearable: OpenSSL answers with random bytes, the same ones for the same question."""
    broken = bytes(127) + b"\x01"
    first = BOB.key.decrypt(broken, padding.PKCS1v15())
    assert BOB.key.decrypt(broken, padding.PKCS1v15()) == first


def test_the_hash_is_over_the_pem_of_the_public_key() -> None:
    text = crypto.public_text(ALICE.key.public_key())
    pem = base64.b64decode(text)
    assert pem == ALICE.public_key_pem
    assert pem.startswith(b"-----BEGIN RSA PUBLIC KEY-----\n") and pem.endswith(b"-----END RSA PUBLIC KEY-----\n")
    told = crypto.pubhash(ALICE.key.public_key())
    assert base64.b64decode(told) == hashlib.sha256(pem).digest()
    assert crypto.same_hash(told, ALICE.key.public_key())
    assert not crypto.same_hash(told, BOB.key.public_key())
    assert not crypto.same_hash("ünlesbar", BOB.key.public_key())


def test_a_sealed_token_is_opened_by_its_owner_alone() -> None:
    token = os.urandom(32)
    sealed = crypto.seal(token, ALICE)
    opened = crypto.open_sealed(sealed, ALICE)
    assert opened.reveal() == base64.b64encode(token).decode() and len(opened.reveal()) == 44
    assert crypto.opened_bytes(sealed, ALICE) == token
    assert opened.reveal() not in repr(opened)
    with pytest.raises(crypto.NotDecrypted):
        crypto.open_sealed(sealed, BOB)
    with pytest.raises(ValueError, match="32 bytes"):
        crypto.seal(token[:16], ALICE)


def test_an_opened_token_is_remembered() -> None:
    sealed = crypto.seal(os.urandom(32), ALICE)
    assert crypto.open_sealed(sealed, ALICE) is crypto.open_sealed(sealed, replace(ALICE))
