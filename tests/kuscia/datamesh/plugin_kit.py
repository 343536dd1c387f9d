"""Packages with source plug-ins, found as installed ones are: by their metadata on sys.path."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coterie.kuscia.sources.source_registry import GROUP

EXAMPLE = Path(__file__).parents[3] / "examples" / "data_source_sqlite"


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, points: dict[str, str], code: str = "") -> None:
    """`code`: of the module that has the distribution's name with underscores; none: it is on sys.path already."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    listed = "".join(f"{kind} = {value}\n" for kind, value in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{listed}")
    if code:
        (folder / f"{name.replace('-', '_')}.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))


def install_example(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(monkeypatch, folder, project["name"], project["entry-points"][GROUP])
    monkeypatch.syspath_prepend(str(EXAMPLE))
