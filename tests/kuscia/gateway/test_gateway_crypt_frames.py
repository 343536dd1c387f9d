"""The format of encrypted bodies: any cutting gives the same body, and nothing forged is ever released."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.crypt.frames import (
    CHUNK_BYTES,
    PREFIX_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    Direction,
    FrameError,
    Opener,
    Sealer,
    derive,
)

TOKEN = SecretValue("dG9rZW4gb2YgdGhpcnR5LXR3byBieXRlcyBmb3IgYWxpY2U=")
SALT = bytes(range(SALT_BYTES))
KEY = derive(TOKEN, Direction.REQUEST, "alice", "bob", 1, SALT)
pieces = st.lists(st.binary(max_size=60), max_size=6)


def sealed(given: list[bytes], key: bytes = KEY) -> list[bytes]:
    """One chunk per piece and the last one."""
    sealer = Sealer(key)
    return [*(made for each in given if (made := sealer.seal(each))), sealer.seal(b"", last=True)]


def opened(wire: bytes, cuts: list[int] | None = None, key: bytes = KEY) -> bytes:
    opener = Opener(key)
    marks = sorted({0, len(wire), *(each % (len(wire) + 1) for each in cuts or [])})
    out = b"".join(piece for start, end in pairwise(marks) for piece in opener.open(wire[start:end]))
    opener.finish()
    return out


@settings(max_examples=200, deadline=None)
@given(pieces, st.lists(st.integers(0, 1000), max_size=8))
def test_however_it_is_cut_the_body_is_the_same(given: list[bytes], cuts: list[int]) -> None:
    assert opened(b"".join(sealed(given)), cuts) == b"".join(given)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 1 << 20])
def test_a_large_piece_becomes_chunks_and_one_end(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    wire = Sealer(KEY).seal(body, last=True)
    assert opened(wire) == body
    assert len(wire) == size + max(1, -(-size // CHUNK_BYTES)) * (PREFIX_BYTES + TAG_BYTES)


def test_each_piece_can_be_read_as_soon_as_it_is_there() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    for each in (b"one", b"two", b"three"):
        assert opener.open(sealer.seal(each)) == [each]


def test_a_receiver_holds_no_more_than_a_chunk() -> None:
    opener = Opener(KEY)
    with pytest.raises(FrameError):
        opener.open((CHUNK_BYTES + TAG_BYTES + 1).to_bytes(4, "big"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4), st.data())
def test_no_changed_bit_gets_through(given: list[bytes], data: st.DataObject) -> None:
    """Length, end mark, cipher text and tag alike. What came before the change may have been released."""
    wire = bytearray(b"".join(sealed(given)))
    at = data.draw(st.integers(0, len(wire) * 8 - 1))
    wire[at // 8] ^= 1 << at % 8
    released = b""
    opener = Opener(KEY)
    with pytest.raises(FrameError):
        for byte in wire:
            released += b"".join(opener.open(bytes([byte])))
        opener.finish()
    assert b"".join(given).startswith(released)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=4), st.data())
def test_what_is_cut_off_is_noticed(given: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(sealed(given))
    with pytest.raises(FrameError):
        opened(wire[: data.draw(st.integers(0, len(wire) - 1))])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5), st.data())
def test_chunks_fit_only_in_their_place(given: list[bytes], data: st.DataObject) -> None:
    chunks = sealed(given)
    order = data.draw(st.lists(st.integers(0, len(chunks) - 1), max_size=len(chunks) + 2))
    if order == list(range(len(chunks))):
        return
    with pytest.raises(FrameError):
        opened(b"".join(chunks[each] for each in order))


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=40))
def test_nothing_may_follow_the_end(more: bytes) -> None:
    with pytest.raises(FrameError, match="follows the end"):
        opened(b"".join(sealed([b"body"])) + more)
    opener = Opener(KEY)
    opener.open(b"".join(sealed([b"body"])))
    with pytest.raises(FrameError, match="follows the end"):
        opener.open(more)


OTHER_KEYS = {
    "direction": derive(TOKEN, Direction.RESPONSE, "alice", "bob", 1, SALT),
    "salt": derive(TOKEN, Direction.REQUEST, "alice", "bob", 1, SALT[::-1]),
    "revision": derive(TOKEN, Direction.REQUEST, "alice", "bob", 2, SALT),
    "source": derive(TOKEN, Direction.REQUEST, "carol", "bob", 1, SALT),
    "destination": derive(TOKEN, Direction.REQUEST, "alice", "carol", 1, SALT),
    "names that run together": derive(TOKEN, Direction.REQUEST, "aliceb", "ob", 1, SALT),
    "token": derive(SecretValue("another"), Direction.REQUEST, "alice", "bob", 1, SALT),
}


@pytest.mark.parametrize("key", OTHER_KEYS.values(), ids=OTHER_KEYS.keys())
def test_a_message_of_another_kind_does_not_fit(key: bytes) -> None:
    with pytest.raises(FrameError):
        opened(b"".join(sealed([b"body"], key)))


def test_an_answer_belongs_to_its_request() -> None:
    keys = {derive(TOKEN, Direction.RESPONSE, "alice", "bob", 1, asked + SALT) for asked in (SALT, bytes(SALT_BYTES))}
    assert len(keys) == 2


def test_a_message_without_body_brings_its_proof() -> None:
    proof = Sealer(KEY).proof_of_empty()
    assert len(proof) == TAG_BYTES
    opener = Opener(KEY)
    opener.accept_empty(proof)
    opener.finish()
    with pytest.raises(FrameError):
        opener.open(b"more")


@pytest.mark.parametrize("proof", [b"", bytes(TAG_BYTES), bytes(TAG_BYTES - 1), bytes(40)], ids=len)
def test_a_false_proof_is_none(proof: bytes) -> None:
    with pytest.raises(FrameError):
        Opener(KEY).accept_empty(proof)


def test_the_end_of_a_body_is_no_proof_of_an_empty_one() -> None:
    last = sealed([b"body"])[-1][PREFIX_BYTES:]
    with pytest.raises(FrameError):
        Opener(KEY).accept_empty(last)
