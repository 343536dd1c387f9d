"""OpenAPI v2 documents of other servers, put into ours."""

from __future__ import annotations

import zlib
from typing import Any

import orjson

_MOST = 64 << 20
"""Bytes of a document when it is unpacked."""


def merged(document: dict[str, Any], path: str, packed: bytes) -> dict[str, Any]:
    """Our document with the operations below `path` of another one and the definitions they need; of equal names ours count."""
    try:
        other = orjson.loads(zlib.decompressobj().decompress(packed, _MOST))
    except (orjson.JSONDecodeError, zlib.error):
        return document
    if not isinstance(other, dict):
        return document
    paths, definitions = other.get("paths"), other.get("definitions")
    if not isinstance(paths, dict) or not isinstance(definitions, dict):
        return document
    taken = {
        name: item
        for name, item in paths.items()
        if (name == path or name.startswith(path + "/")) and isinstance(item, dict)
    }
    if not taken:
        return document
    known = {name: schema for name, schema in definitions.items() if isinstance(schema, dict)}
    return {
        **document,
        "paths": dict(sorted({**document["paths"], **taken}.items())),
        "definitions": dict(sorted({**known, **document["definitions"]}.items())),
    }
