"""The threat model names only tests that exist, and has a section for each position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)::(test_\w+)`", PAGE)))
MODULES = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
POSITIONS = (
    "Stranger",
    "Partner",
    "Partner's control plane",
    "Carrier",
    "Lite",
    "Master",
    "Engine that our people began",
    "Engine that a partner began",
    "Node of the domain",
    "Other domain on the machine",
    "Other user of the machine",
    "KusciaAPI client",
)


@pytest.mark.parametrize(("module", "test"), NAMED, ids=lambda word: word)
def test_every_named_test_exists(module: str, test: str) -> None:
    assert module in MODULES, f"no file {module}.py"
    assert re.search(rf"^\s*(?:async )?def {test}\(", MODULES[module].read_text(), re.MULTILINE)


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_has_a_section_with_tests(position: str) -> None:
    head, *rest = PAGE.split(f"\n## {position}\n")
    assert len(rest) == 1, "one section"
    section = rest[0].split("\n## ")[0]
    assert re.search(r"`test_\w+::test_\w+`", section)
    anchor = re.sub(r"[^\w -]", "", position).lower().replace(" ", "-")
    assert f"[{position}](#{anchor})" in head, "named in the table of trust"


def test_the_limits_are_those_of_the_code() -> None:
    from_code = (ROOT / "src/coterie/kube/client/limits.py").read_text()
    for code, shown in (
        ("body: int = 8 << 20", "8 MiB"),
        ("object_bytes: int = 2 << 20", "2 MiB"),
        ("objects: int = 10_000", "10,000"),
        ("kept_bytes: int = 128 << 20", "128 MiB"),
        ("depth: int = 64", "| 64 |"),
        ("pages: int = 200", "| 200 |"),
        ("RateLimit(burst=2000, per_second=200)", "200, bursts of 2000"),
    ):
        assert code in from_code and shown in PAGE
