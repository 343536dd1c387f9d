"""The page in the package is the one that `web/` builds."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
NAMES = ("Coterie",)
"""Words that are the same in all languages."""
STATIC = ROOT / "src" / "coterie" / "console" / "static"


def sources() -> list[Path]:
    """In the order in which the build reads them: folder by folder, by name."""

    def below(folder: Path) -> list[Path]:
        found: list[Path] = []
        for path in sorted(folder.iterdir(), key=lambda each: each.name):
            if path.name != "node_modules":
                found += below(path) if path.is_dir() else [path]
        return found

    return below(WEB)


def test_the_page_was_built_from_these_sources() -> None:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(WEB).as_posix().encode())
        digest.update(b"\0")
        digest.update(path.read_bytes())
    assert (STATIC / "sources.sha256").read_text().strip() == digest.hexdigest(), "run `make console`"


def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules").is_dir():
        pytest.skip("no Node, or no `npm ci` in web/: the test above compares the sources")
    subprocess.run([node, "build.mjs", str(tmp_path / "out")], cwd=WEB, check=True, timeout=120)
    built = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert built == {path.name: path.read_bytes() for path in STATIC.iterdir()}


def test_the_package_has_the_page() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["coterie"]
    for path in STATIC.iterdir():
        name = path.relative_to(ROOT / "src" / "coterie").as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_nothing_is_asked_of_others_and_nothing_is_markup() -> None:
    """No host in the sources, no markup made of text, no styles or scripts that the policy forbids."""
    for path in sources():
        if path.suffix in (".ts", ".tsx", ".html", ".css"):
            text = path.read_text()
            assert not re.search(r"https?://(?!www\.w3\.org|10\.0\.0\.)", text), path.name
            assert "dangerouslySetInnerHTML" not in text and "innerHTML" not in text and "eval(" not in text, path.name
            assert not re.search(r"\sstyle=", text), f"{path.name}: styles are set by the object model"
    assert '"resolved"' not in (WEB / "package-lock.json").read_text(), "a lock file names no registry"


def test_licences_go_with_what_is_bundled() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
    bundled = [
        name.removeprefix("node_modules/")
        for name, about in lock.items()
        if name and not about.get("dev") and not about.get("optional")
    ]
    written = (STATIC / "licences.txt").read_text()
    used = "".join(path.read_text() for path in sources() if path.suffix in (".ts", ".tsx"))
    for name in bundled:
        if name != "uplot" or f'"{name}"' in used:
            assert f"{name} {lock[f'node_modules/{name}']['version']}\n" in written, name


def test_the_first_screen_is_small() -> None:
    """As it goes over the wire: compressed, with the fonts and all that the first script brings along."""
    names = ["index.html", "style.css", "icon.svg", *(path.name for path in STATIC.glob("*.woff2")), "app.js"]
    for name in names:
        if name.endswith(".js"):
            brought = re.findall(r'(?:from|import)"\./([\w.-]+\.js)"', (STATIC / name).read_text())
            names += [each for each in brought if each not in names]
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes(), 9)) for name in names}
    assert sum(sizes.values()) <= 120_000, sizes


def test_every_text_is_in_the_catalogues() -> None:
    """No words between tags, and none in what is shown or read aloud: title, label, placeholder."""
    between = re.compile(r"(?<![=<>])>\s*([^<>{}=;()]*[A-Za-z]{3}[^<>{}=;()]*)</")
    shown = re.compile(r"\b(?:title|aria-label|placeholder|label|alt)=\"([^\"]*[A-Za-z]{2}[^\"]*)\"")
    for path in sorted((WEB / "src").rglob("*.tsx")):
        text = path.read_text()
        found = [each.strip() for each in [*between.findall(text), *shown.findall(text)]]
        assert [each for each in found if each not in NAMES] == [], path.name


def test_every_text_is_used_and_stands_in_both_catalogues() -> None:
    line = re.compile(r'^  (\w+): "(.*)",$', re.M)
    both = {name: dict(line.findall((WEB / "src" / "catalogues" / f"{name}.ts").read_text())) for name in ("en", "zh")}
    assert both["en"].keys() == both["zh"].keys() and list(both["en"]) == sorted(both["en"])
    sources = [path.read_text() for path in (WEB / "src").rglob("*.ts*") if path.parent.name != "catalogues"]
    used = set(re.findall(r'"(\w+)"', "".join(sources)))
    assert sorted(both["en"].keys() - used) == []
    for key, text in both["en"].items():
        assert set(re.findall(r"\{(\w+)\}", text)) == set(re.findall(r"\{(\w+)\}", both["zh"][key])), key
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]", both["zh"][key]), f"{key}: Chinese has signs of its own"


def test_dependencies_are_pinned() -> None:
    package = json.loads((WEB / "package.json").read_text())
    for version in (package["dependencies"] | package["devDependencies"]).values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
