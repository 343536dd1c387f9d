"""Imports go down the layers, siblings do not know each other, nothing is imported inside functions, no cycles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "coterie"

ALTITUDE = {
    "base": 0,
    "api": 1,
    "store": 2,
    "sdk": 2,
    "apiserver": 3,
    "client": 4,
    "control": 5,
    "sources": 5,
    "controllers": 6,
    "scheduler": 6,
    "interconn": 6,
    "gateway": 6,
    "agent": 6,
    "datamesh": 6,
    "kusciaapi": 6,
    "serverless": 6,
    "dns": 6,
    "metrics": 6,
    "console": 6,
    "reporter": 6,
    "engines": 6,
    "node": 7,
    "cli": 8,
}
FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imports_of(path: Path) -> list[tuple[int, str, bool]]:
    """(line, imported module of ours, only for types)."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                # `from package import module` depends on the module, not on what the package's __init__ gathers.
                whole = f"{node.module}.{alias.name}"
                found.append((node.lineno, whole if whole in MODULES else node.module or "", id(node) in typing_only))
    return [entry for entry in found if entry[1].split(".")[0] == "coterie"]


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = package_of(module_of(path))
    if own in ("", "__main__"):
        return
    assert own in ALTITUDE, f"{path}: package {own} has no place in the layers of docs/architecture.md"
    for line, module, _ in imports_of(path):
        other = package_of(module)
        if other in ("", own, "__version__"):
            continue
        assert ALTITUDE[other] < ALTITUDE[own], f"{path}:{line}: {own} may not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_is_hidden_in_a_function(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                assert not isinstance(node, (ast.Import, ast.ImportFrom)), f"{path}:{node.lineno}: import in a function"


def test_controllers_do_not_know_each_other() -> None:
    for path in FILES:
        parts = module_of(path).split(".")
        if parts[1:2] != ["controllers"] or len(parts) < 3:
            continue
        for line, module, _ in imports_of(path):
            other = module.split(".")
            if other[1:2] == ["controllers"] and len(other) > 2:
                assert other[2] == parts[2], f"{path}:{line}: {parts[2]} may not import {module}"


def test_no_cycles() -> None:
    graph = {
        module_of(path): {module for _, module, typing in imports_of(path) if module in MODULES and not typing}
        - {module_of(path)}
        for path in FILES
    }
    done: set[str] = set()
    for start in graph:
        stack: list[tuple[str, list[str]]] = [(start, [start])]
        while stack:
            module, path_so_far = stack.pop()
            if module in done:
                continue
            for other in graph[module]:
                if other == start:
                    raise AssertionError("import cycle: " + " -> ".join([*path_so_far, other]))
                if other not in path_so_far and other not in done:
                    stack.append((other, [*path_so_far, other]))
        done.add(start)
