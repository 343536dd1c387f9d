"""The files that `coterie engine new NAME` gives an engine author: a program for several parties, its AppImage, tests. Pure.

They are rendered from `engine_files/*.tmpl` by plain replacement of `@NAME@`, `@PORT@` and `@TEST@`.
"""

from __future__ import annotations

import re
from collections.abc import Container
from importlib import resources

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LONGEST = 40
"""Names of tasks, pods and services are made of it, which may have 63 letters."""
_PORT = "messages"


def name_fault(name: str, taken: Container[str]) -> str:
    """Why this cannot be the name of a new engine; empty: it can."""
    if not _NAME.fullmatch(name) or "--" in name:
        return f'"{name}" is no name of an engine: lower-case letters, digits and single "-", a letter first'
    if len(name) > _LONGEST:
        return f'the name "{name}" is too long: at most {_LONGEST} letters'
    if name in taken:
        return f'"{name}" is an engine that comes with Coterie; choose another name'
    return ""


def files(name: str) -> dict[str, str]:
    """Their texts by file name."""
    test = f"test_{name.replace('-', '_')}.py"
    values = {"@NAME@": name, "@PORT@": _PORT, "@TEST@": test}
    sources = {
        "README.md": "README.md",
        "appimage.yaml": "appimage.yaml",
        "engine.py": "engine.py",
        test: "test_engine.py",
    }
    return {target: _rendered(source, values) for target, source in sources.items()}


def _rendered(source: str, values: dict[str, str]) -> str:
    text = resources.files("coterie.cli").joinpath("engine_files", f"{source}.tmpl").read_text(encoding="utf-8")
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
