"""Names inside a source: only ever below its root, and partitions spelt as paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coterie.kuscia.sources.protocol import SourceError, SourceForbidden

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
STAGING = ".coterie-"
"""How files begin that are not there yet; never listed."""


def parts_of(uri: str) -> tuple[str, ...]:
    """`a/b.csv` as its parts. A leading slash is refused: what is named is always below the source's root."""
    if not uri or uri.startswith("/") or "\0" in uri or "\\" in uri:
        raise SourceForbidden(f"{uri!r} is not a relative path; name a place below the source's root")
    parts = tuple(part for part in uri.split("/") if part not in ("", "."))
    if not parts or ".." in parts:
        raise SourceForbidden(f"{uri!r} leads out of the source; name a place below its root")
    if any(part.startswith(STAGING) for part in parts):
        raise SourceForbidden(f"{uri!r} is a file that is being written; choose another name")
    return parts


def partition_of(text: str) -> Mapping[str, str]:
    """`ds=2024-01-01,region=x` (also with slashes between) by key, in order."""
    found = {}
    for piece in re.split(r"[,/]", text):
        if not piece.strip():
            continue
        key, sign, value = piece.strip().partition("=")
        value = value.strip().strip("'\"")
        if not sign or not _KEY.fullmatch(key) or value in ("", ".", "..") or "\0" in value or "\\" in value:
            raise SourceError(f"the partition {text!r} is not understood; write key=value,key=value")
        found[key] = value
    return found


def partition_in(parts: tuple[str, ...]) -> Mapping[str, str]:
    """The keys and values that the folders of a path spell."""
    return dict(part.split("=", 1) for part in parts if "=" in part and _KEY.fullmatch(part.split("=", 1)[0]))
