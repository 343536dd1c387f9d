"""Imported first by the program: keeps a library from loading another one that it does not need.

`msgspec` prefers `typing_extensions` where that is installed (by some other library) and uses three names of it, which
`typing` has as well. It takes a third of a megabyte of a node's memory.
"""

from __future__ import annotations

import sys

if "typing_extensions" not in sys.modules and "msgspec" not in sys.modules:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # importing it fails as if it were not installed
    try:
        import msgspec
    finally:
        del sys.modules["typing_extensions"]
    assert msgspec
