"""Files and packages that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "coterie"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
READMES = sorted(PACKAGE.rglob("README.md"))

_SOURCE = re.compile(r"\bsrc/coterie(?:/[\w.-]*\w)*")
_MODULE_PATH = re.compile(r"(?<![\w./*<>-])(?:[\w.-]+/)+[\w-]+\.(?:py|md)\b")
_PACKAGE_PATH = re.compile(r"`((?:base|http|kube|kuscia|engines|node|cli|sdk)(?:/\w+)*)/?`")
_IN_CONTAINERS = frozenset(("kuscia/certs",))
_FILE_NAME = re.compile(r"(?<![\w./*<>-])[\w-]+\.py\b")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _found(named: str, page: Path) -> bool:
    """Relative to the repository, to the package, or to the folder of the page and those above it."""
    folders = [ROOT, PACKAGE, page.parent, *(folder for folder in page.parents if PACKAGE in (folder, *folder.parents))]
    return any((folder / named).exists() for folder in folders)


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=_name)
def test_every_named_path_exists(page: Path) -> None:
    text = page.read_text()
    named = {*_SOURCE.findall(text), *_MODULE_PATH.findall(text), *_PACKAGE_PATH.findall(text)} - _IN_CONTAINERS
    missing = sorted(path for path in named if not _found(path, page))
    assert not missing, f"{_name(page)} names files that do not exist"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_picture_exists(page: Path) -> None:
    text = page.read_text()
    named = [*re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text), *re.findall(r"\b(?:src|srcset)=\"([^\"\s]+)\"", text)]
    missing = [path for path in named if "://" not in path and not (page.parent / path).is_file()]
    assert not missing, f"{_name(page)} shows pictures that do not exist"


@pytest.mark.parametrize("page", READMES, ids=_name)
def test_every_module_in_a_package_readme_exists(page: Path) -> None:
    modules = {path.name for path in page.parent.rglob("*.py")}
    missing = sorted(set(_FILE_NAME.findall(page.read_text())) - modules)
    assert not missing, f"{_name(page)} names modules that are not below its folder"


def test_every_package_of_the_two_halves_has_a_readme() -> None:
    halves = [PACKAGE / "kube", PACKAGE / "kuscia"]
    packages = [folder for folder in PACKAGE.iterdir() if folder.is_dir() and (folder / "__init__.py").exists()]
    packages += [folder for half in halves for folder in half.iterdir() if (folder / "__init__.py").exists()]
    packages += [
        folder for half in halves for folder in (half / "controllers").iterdir() if (folder / "__init__.py").exists()
    ]
    missing = sorted(_name(folder) for folder in packages if not (folder / "README.md").exists())
    assert not missing
