"""Short names for content: the same letters for the same data, whoever computes them and in whichever order its keys are."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from coterie.base.ids import SAFE_ALPHABET

_LENGTH = 10


def content_hash(content: Any, collisions: int | None) -> str:
    """Ten letters. `collisions` gives the same content another name when somebody else has taken the first one."""
    digest = hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=8)
    if collisions:
        digest.update(str(collisions).encode())
    number = int.from_bytes(digest.digest())
    letters = []
    for _ in range(_LENGTH):
        number, rest = divmod(number, len(SAFE_ALPHABET))
        letters.append(SAFE_ALPHABET[rest])
    return "".join(letters)


def without_nulls(value: Any) -> Any:
    """Plain data without the keys whose value is null: both spell the same object."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
