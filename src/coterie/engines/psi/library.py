"""SPU's intersection library, without the rest of SPU.

The package `spu` imports a compiler for machine learning, which takes two seconds and a hundred megabytes; the
intersection needs its two extension modules only.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
import types
from pathlib import Path
from typing import Any

_PACKAGE = "spu"


class NotUsable(Exception):
    """The library is not there or does not run here; the sentence goes to the log."""


def load() -> tuple[Any, Any]:
    """`libspu.link` and `libpsi`."""
    if platform.machine() == "x86_64" and "avx2" not in _flags():
        raise NotUsable("this processor has no AVX2, without which SPU does not run; use a newer machine")
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise NotUsable("the library spu is not installed here; `coterie engine add psi` makes the environment")
    package = types.ModuleType(_PACKAGE)
    package.__path__ = list(found.submodule_search_locations)
    sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.libspu").link, importlib.import_module(f"{_PACKAGE}.libpsi")
    except ImportError as problem:
        raise NotUsable(f"the library spu cannot be loaded: {problem}") from problem


def _flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
