"""JSON objects that follow each other without separators, cut out of bytes as they arrive: how KusciaAPI streams over
HTTP."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

LARGEST = 64 << 20
"""Characters of one object."""


class Objects:
    def __init__(self, largest: int | None = None) -> None:
        """`largest`: characters of one object."""
        self._largest = LARGEST if largest is None else largest
        self._text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._reader = json.JSONDecoder()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The objects that are whole now; to be read to the end. ValueError for what is none, or too large."""
        new = self._decode(chunk)
        self._text += new
        while True:
            self._text = self._text.lstrip()
            if self._text[:1] not in ("{", ""):
                raise ValueError("not an object")
            # Else nothing is whole that was not before: a large object is not looked through again with each piece.
            if not self._text or "}" not in new:
                break
            try:
                found, end = self._reader.raw_decode(self._text)
            except json.JSONDecodeError:
                break  # the rest of it comes later
            except RecursionError as error:
                raise ValueError("an object nests too deeply") from error
            self._text = self._text[end:]
            yield found
        if len(self._text) > self._largest:
            raise ValueError("an object is too large, or none at all")
