"""One event with its proof as C2SP's `tlog-proof` writes it: for programs that know no more of us than the key of a log. Pure.

c2sp.org/tlog-proof@v1
extra eyJqb2Ii...                    the event itself, base64; what is proven are its bytes
index 17
nND/nri/U0xuHUrYSy0HtMeal2vzD9V...   the hashes of the inclusion proof, from the leaf up

alice.coterie/evidence/1             the signed checkpoint
...
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.kuscia.evidence import merkle
from coterie.kuscia.evidence.merkle import ProofError
from coterie.kuscia.evidence.signed_notes import (
    Checkpoint,
    NoteError,
    NoteKey,
    SignedNote,
    decode_hashes,
    encode_hashes,
    open_checkpoint,
)

HEADER = "c2sp.org/tlog-proof@v1\n"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,17})")
_MOST_HASHES = 64


@dataclass(frozen=True, slots=True)
class ProvenEvent:
    index: int
    body: bytes
    checkpoint: Checkpoint
    note: SignedNote


def write_proof(body: bytes, index: int, hashes: Sequence[bytes], note: str) -> str:
    return f"{HEADER}extra {base64.b64encode(body).decode()}\nindex {index}\n{encode_hashes(hashes)}\n{note}"


def read_proof(text: str, key: NoteKey) -> ProvenEvent:
    """What it proves, when the log with this key signed it. Raises NoteError."""
    if not text.startswith(HEADER):
        raise NoteError(f"a proof begins with {HEADER.strip()}")
    first, gap, note = text[len(HEADER) :].partition("\n\n")
    extra, *lines = first.split("\n")
    if not gap or not extra.startswith("extra ") or not lines:
        raise NoteError("a proof of an event has the event (extra), its index, hashes, an empty line and a checkpoint")
    found = _INDEX.fullmatch(lines[0])
    if found is None or len(lines) > _MOST_HASHES + 1:
        raise NoteError("a proof has one index and at most 64 hashes")
    try:
        body = base64.b64decode(extra.removeprefix("extra "), validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("the event of the proof is not base64") from None
    checkpoint, signed = open_checkpoint(note, key)
    index = int(found[1])
    try:
        merkle.verify_inclusion(
            merkle.leaf_hash(body), index, checkpoint.size, decode_hashes(lines[1:]), checkpoint.root
        )
    except ProofError as problem:
        raise NoteError(f"event {index} is not in the log: {problem}") from None
    return ProvenEvent(index, body, checkpoint, signed)
