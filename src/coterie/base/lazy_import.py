"""Modules that weigh much and are seldom asked: loaded when something in them is first used.

    if TYPE_CHECKING:
        from coterie.base import pki
    else:
        pki = lazy_import("coterie.base.pki")

A control plane that only waits signs nothing and compiles no pattern; the libraries for that would be a quarter of its
memory. For the checkers of types and layers it is an ordinary import; a module that cannot be found is found out by the
first use, so only what is always installed belongs here.
"""

from __future__ import annotations

import importlib
from typing import Any


def lazy_import(name: str) -> Any:
    """Stands for the module; asking it for anything loads it."""
    return _LazyModule(name)


class _LazyModule:
    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)

    def __repr__(self) -> str:
        return f"lazy_import({self._name!r})"
