"""Notes, checkpoints and cosignatures: published examples, round trips, and what must be refused."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.kuscia.evidence import signed_notes
from coterie.kuscia.evidence.signed_notes import Checkpoint, LogSigner, NoteError, NoteKey, SignedNote, WitnessSigner

# The example in the documentation of Go's package sumdb/note.
KNOWN_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
KNOWN_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SIGNER = LogSigner("alice.coterie/evidence/2026-1", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
WITNESS = WitnessSigner("bob.coterie/witness", Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64))))
CHECKPOINT = Checkpoint(SIGNER.key.name, 17, bytes(range(32)))


def test_a_published_note() -> None:
    key = NoteKey.parse(KNOWN_KEY)
    assert str(key) == KNOWN_KEY
    note = SignedNote.parse(KNOWN_NOTE)
    note.verify(key)
    assert str(note) == KNOWN_NOTE


def test_every_flipped_byte_is_found() -> None:
    note = str(SIGNER.sign(CHECKPOINT)).encode()
    for at in range(len(note)):
        for bit in (1, 0x20):
            changed = bytearray(note)
            changed[at] ^= bit
            try:
                text = changed.decode()
            except UnicodeDecodeError:
                continue
            try:
                found, _ = signed_notes.open_checkpoint(text, SIGNER.key)
            except NoteError:
                continue
            # Base64 ignores the last bits of the last character: the same bytes, another spelling.
            assert found == CHECKPOINT
            assert base64.b64decode(text.split()[-1]) == base64.b64decode(note.split()[-1])


def test_round_trips() -> None:
    signed = SIGNER.sign(CHECKPOINT)
    cosigned = signed.with_signatures([WITNESS.cosign(signed.text, 1_700_000_000)])
    found, note = signed_notes.open_checkpoint(str(cosigned), SIGNER.key)
    assert found == CHECKPOINT
    assert note.cosigned(WITNESS.key) == 1_700_000_000
    assert note.cosigned(NoteKey("carol.coterie/witness", signed_notes.COSIGNATURE, b"\0" * 32)) is None


def test_a_cosignature_does_not_fit_another_time_or_checkpoint() -> None:
    signed = SIGNER.sign(CHECKPOINT)
    line = WITNESS.cosign(signed.text, 1_700_000_000)
    moved = signed_notes.NoteSignature(line.name, line.key_id, (1_700_000_001).to_bytes(8, "big") + line.data[8:])
    with pytest.raises(NoteError, match="wrong"):
        signed_notes.verify_cosignature(signed.text, moved, WITNESS.key)
    other = SIGNER.sign(Checkpoint(SIGNER.key.name, 18, bytes(range(32))))
    with pytest.raises(NoteError, match="wrong"):
        other.with_signatures([line]).cosigned(WITNESS.key)


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ("", "no signatures"),
        ("text\n\n", "no signature"),
        ("text\n\nno dash\n", "begins with a dash"),
        ("text\n\n— name\n", "too short"),
        ("text\n\n— name !!\n", "not base64"),
        ("te\x1b[2Jxt\n\n— name AAAAAAAA\n", "control characters"),
        ("text\n\n— name AAAAAAAA", "no signatures"),
        ("x" * 70_000 + "\n\n— name AAAAAAAA\n", "too long"),
        ("text\n\n" + "— name AAAAAAAA\n" * 101, "too many"),
    ],
)
def test_garbage(note: str, why: str) -> None:
    with pytest.raises(NoteError, match=why):
        SignedNote.parse(note)


@pytest.mark.parametrize(
    "text",
    [
        "origin\n1\n",
        "origin\n01\n" + base64.b64encode(b"r" * 32).decode() + "\n",
        "origin\n-1\n" + base64.b64encode(b"r" * 32).decode() + "\n",
        "origin\n1\n" + base64.b64encode(b"r" * 31).decode() + "\n",
        "two words\n1\n" + base64.b64encode(b"r" * 32).decode() + "\n",
        "origin\n1\n" + base64.b64encode(b"r" * 32).decode() + "\nmore\n",
        "origin\n" + "9" * 30 + "\n" + base64.b64encode(b"r" * 32).decode() + "\n",
    ],
)
def test_no_checkpoint(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    "key", ["", "a+b", "a+00000000+AQ==", KNOWN_KEY.replace("c74f20a3", "c74f20a4"), "a b" + KNOWN_KEY]
)
def test_no_key(key: str) -> None:
    with pytest.raises(NoteError):
        NoteKey.parse(key)


def test_another_log_with_the_same_name_is_refused() -> None:
    stranger = LogSigner(SIGNER.key.name, Ed25519PrivateKey.generate())
    with pytest.raises(NoteError, match="not signed by"):
        signed_notes.open_checkpoint(str(stranger.sign(CHECKPOINT)), SIGNER.key)
    renamed = LogSigner("mallory/log", Ed25519PrivateKey.generate())
    with pytest.raises(NoteError, match="not of"):
        signed_notes.open_checkpoint(str(renamed.sign(Checkpoint("mallory/log", 1, b"r" * 32))), SIGNER.key)


def test_a_cosignature_at_no_time_is_refused() -> None:
    signed = SIGNER.sign(CHECKPOINT)
    for seconds in (2**40, 2**64 - 1):
        cosigned = signed.with_signatures([WITNESS.cosign(signed.text, seconds)])
        with pytest.raises(NoteError, match="a time that there is not"):
            cosigned.cosigned(WITNESS.key)
