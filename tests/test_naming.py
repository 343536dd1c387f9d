"""House rules about names: a public class name stands for one thing, and identifiers are in the field's words.

The glossary (docs/glossary.md) has the words; what is listed here are those that said nothing to a newcomer.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "coterie"

QUALIFIED = frozenset(("Plan", "Settings"))
"""Names that the package in front explains: each controller has a `plan.Plan`."""

SEPARATE = ("sdk", "engines/actor", "engines/psi", "engines/sample", "engines/serving")
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


@cache
def _modules() -> list[tuple[str, list[str], list[tuple[int, str]]]]:
    """(module, names of its classes, its identifiers with their lines); the trees are not kept, which would cost more than
    parsing them."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        found.append((path.relative_to(SOURCE).with_suffix("").as_posix(), classes, list(_identifiers(tree))))
    return found


def _package(module: str) -> str:
    return next((each for each in SEPARATE if module.startswith(f"{each}/")), "")


def _repeated(modules: list[str]) -> bool:
    return len(modules) > 1 and tuple(sorted(modules)) not in PAIRS


def test_public_class_names_are_unique() -> None:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, classes, _ in _modules():
        for name in classes:
            if not name.startswith("_") and name not in QUALIFIED:
                found[_package(module), name].append(module)
    repeated = {name: modules for (_, name), modules in found.items() if _repeated(modules)}
    assert not repeated


@cache
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
    found = [f"{module}.py" for module, _, _ in _modules() if BANNED & _words(module.rpartition("/")[2])]
    for module, _, identifiers in _modules():
        found += [f"{module}.py:{line}: {name}" for line, name in identifiers if BANNED & _words(name)]
    assert not found


def test_words_of_an_identifier() -> None:
    assert _words("_mesh_errors") >= {"mesh", "errors"}
    assert _words("GrpcFrontend") == {"grpc", "frontend"}
    assert "told" in _words("_told_by_status")


def test_names_of_test_modules_are_unique() -> None:
    """Kits are imported by name from every folder (tests/conftest.py): the second of a name would hide the first."""
    seen: dict[str, list[str]] = {}
    for path in Path(__file__).parent.rglob("*.py"):
        if path.name not in ("conftest.py", "__init__.py"):
            seen.setdefault(path.name, []).append(str(path))
    assert not {name: found for name, found in seen.items() if len(found) > 1}
