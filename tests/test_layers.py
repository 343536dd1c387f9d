"""Imports go down the layers, siblings do not know each other, nothing is imported inside functions, no cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "coterie"

ALTITUDE = {
    "base": 0,
    "engines": 0,
    "dashboards": 0,
    "http": 1,
    "kube.api": 2,
    "kube.store": 3,
    "kuscia.api": 3,
    "kuscia.identity": 3,
    "sdk": 4,
    "kube.apiserver": 4,
    "kube.client": 5,
    "kube.control": 6,
    "kube.network": 7,
    "kube.controllers": 8,
    "kube.scheduler": 8,
    "kube.agent": 8,
    "kube.metrics": 8,
    "kuscia.control": 9,
    "kuscia.sources": 9,
    "kuscia.evidence": 9.5,
    "kuscia.extensions": 10,
    "kuscia.controllers": 10,
    "kuscia.gangs": 10,
    "kuscia.engine": 10,
    "kuscia.gateway": 10,
    "kuscia.interconn": 10,
    "kuscia.datamesh": 10,
    "kuscia.kusciaapi": 10,
    "kuscia.reporter": 10,
    "kuscia.transport": 10,
    "kuscia.bfia": 9.7,
    "functions": 11,
    "gpujobs": 11,
    "kuscia.routes": 11,
    "console": 12,
    "node": 13,
    "cli": 14,
}
"""Higher packages may import lower ones. `kube` is the platform, `kuscia` the product that stands on it."""
PLATFORM = ("base", "http", "kube")
FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


@dataclass(frozen=True)
class ModuleFacts:
    imports: list[tuple[int, str, bool]]
    """(line, imported module of ours, only for types)."""
    hidden: list[int]
    """Lines of imports in functions."""
    words: set[str]
    """Identifiers and texts, without comments and docstrings."""


@cache
def facts_of(path: Path) -> ModuleFacts:
    """Each file is parsed and walked once for all tests: that is most of their time."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    typing_only: set[int] = set()
    prose: set[int] = set()
    hidden: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(id(node.value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            hidden |= {each.lineno for each in ast.walk(node) if isinstance(each, (ast.Import, ast.ImportFrom))}
    found: list[tuple[int, str, bool]] = []
    words: set[str] = set()
    for node in nodes:
        words |= {
            value
            for name in ("id", "attr", "name", "arg", "module")
            if isinstance(value := getattr(node, name, None), str)
        }
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in prose:
                words.add(node.value)
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                # `from package import module` depends on the module, not on what the package's __init__ gathers.
                whole = f"{node.module}.{alias.name}"
                found.append((node.lineno, whole if whole in MODULES else node.module or "", id(node) in typing_only))
    return ModuleFacts([entry for entry in found if entry[1].split(".")[0] == "coterie"], sorted(hidden), words)


def imports_of(path: Path) -> list[tuple[int, str, bool]]:
    return facts_of(path).imports


def package_of(module: str) -> str:
    parts = module.split(".")
    if parts[1:2] in (["kube"], ["kuscia"]):
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else ""


def layer_problems(path: Path) -> list[str]:
    own = package_of(module_of(path))
    if own in ("", "__main__", "kube", "kuscia"):
        return []
    if own not in ALTITUDE:
        return [f"{path}: package {own} has no place in the layers of docs/architecture.md"]
    problems = []
    for line, module, _ in imports_of(path):
        other = package_of(module)
        if other in ("", own, "__version__"):
            continue
        if own == "engines":
            problems.append(f"{path}:{line}: engines import nothing of the rest")
        elif ALTITUDE[other] >= ALTITUDE[own]:
            problems.append(f"{path}:{line}: {own} may not import {module}")
    return problems


def test_imports_go_down() -> None:
    assert not [problem for path in FILES for problem in layer_problems(path)]


def test_no_import_is_hidden_in_a_function() -> None:
    assert not [f"{path}:{line}: import in a function" for path in FILES for line in facts_of(path).hidden]


PLATFORM_FILES = [path for path in FILES if path.relative_to(SOURCE).parts[0] in PLATFORM]


def test_the_platform_does_not_know_the_product() -> None:
    """No import, identifier or text of base, http and kube names Kuscia; prose may, to explain a choice."""
    assert PLATFORM_FILES
    named = []
    for path in PLATFORM_FILES:
        allowed = {"kusciaapi-client"} if path.name == "paths.py" else set()
        words = {word for word in facts_of(path).words if "kuscia" in word.lower()} - allowed
        named += [f"{path}: the platform may not say {word!r}" for word in sorted(words)]
    assert not named


def test_every_module_of_the_platform_loads_without_the_product() -> None:
    modules = sorted(
        module_of(path) for path in PLATFORM_FILES if path.name != "__main__.py" and "__main__" not in module_of(path)
    )
    program = (
        "import importlib, sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'coterie.kuscia' or name.startswith('coterie.kuscia.'):\n"
        "            raise ImportError(f'{name} is the product')\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_controllers_do_not_know_each_other() -> None:
    for path in FILES:
        parts = module_of(path).split(".")
        if parts[2:3] != ["controllers"] or len(parts) < 4:
            continue
        for line, module, _ in imports_of(path):
            other = module.split(".")
            if other[2:3] == ["controllers"] and len(other) > 3:
                assert other[3] == parts[3], f"{path}:{line}: {parts[3]} may not import {module}"


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
