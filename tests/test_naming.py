"""House rules about names: a public class name stands for one thing, and identifiers are in the field's words.

The glossary (docs/glossary.md) has the words; what is listed here are those that said nothing to a newcomer.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "coterie"

QUALIFIED = frozenset(("Plan", "Settings"))
"""Names that the package in front explains: each controller has a `plan.Plan`."""

SEPARATE = ("sdk", "engines/psi", "engines/sample", "engines/serving")
"""Packages that stand alone: users and other programs import from one of them only, so names are unique inside."""

PAIRS = frozenset((("sdk/connection", "sdk/resources"),))
"""Modules with the same names on purpose: the blocking and the asynchronous side of one client."""

BANNED = frozenset(
    [
        "befriend",
        "complaint",
        "complaints",
        "cradle",
        "desk",
        "dormant",
        "farewell",
        "furnish",
        "furniture",
        "heard",
        "keeper",
        "kit",
        "kits",
        "mailbox",
        "news",
        "patience",
        "poke",
        "said",
        "shepherd",
        "sighting",
        "sightings",
        "sister",
        "sisters",
        "stranger",
        "strangers",
        "told",
        "wish",
        "wished",
        "wishes",
    ]
)


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).with_suffix("").as_posix(), ast.parse(path.read_text())


def _package(module: str) -> str:
    return next((each for each in SEPARATE if module.startswith(f"{each}/")), "")


def _repeated(modules: list[str]) -> bool:
    return len(modules) > 1 and tuple(sorted(modules)) not in PAIRS


def test_public_class_names_are_unique() -> None:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, tree in _modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in QUALIFIED:
                found[_package(module), node.name].append(module)
    repeated = {name: modules for (_, name), modules in found.items() if _repeated(modules)}
    assert not repeated


def _words(identifier: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_"))


def _identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_identifiers_use_the_words_of_the_field() -> None:
    found = [f"{module}.py" for module, _ in _modules() if BANNED & _words(module.rpartition("/")[2])]
    for module, tree in _modules():
        found += [f"{module}.py:{line}: {name}" for line, name in _identifiers(tree) if BANNED & _words(name)]
    assert not found


def test_words_of_an_identifier() -> None:
    assert _words("_mesh_errors") >= {"mesh", "errors"}
    assert _words("GrpcFrontend") == {"grpc", "frontend"}
    assert "told" in _words("_told_by_status")
