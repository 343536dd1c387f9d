"""Which parts a node has, and in which order they are put together."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from coterie.node import config
from coterie.node.parts.registry import PARTS, parts_of

OFF = {"gateway": {"enabled": False}, "dns": {"enabled": False}, "kusciaAPI": {"enabled": False}}


def names(tmp_path: Path, **document: Any) -> list[str]:
    return [part.name for part in parts_of(config.parse({"domainID": "alice", **document}, tmp_path, lowest_port=0))]


def test_each_part_is_built_after_those_it_needs() -> None:
    seen: list[str] = []
    known = {part.name for part in PARTS}
    for part in PARTS:
        assert set(part.after) <= known and set(part.after) <= set(seen), part.name
        assert callable(importlib.import_module(part.module).build)
        seen.append(part.name)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"mode": "master"},
            ["evidence", "control-plane", "gateway", "dns", "kusciaapi", "controller-health", "metrics", "console"],
        ),
        ({"mode": "master", **OFF}, ["control-plane", "controller-health", "metrics", "console"]),
        (
            {"mode": "autonomy"},
            [
                "evidence",
                "control-plane",
                "pod-network",
                "gateway",
                "dns",
                "kusciaapi",
                "datamesh",
                "transport",
                "functions",
                "overlay",
                "policies",
                "services",
                "agent",
                "controller-health",
                "metrics",
                "console",
            ],
        ),
        (
            {"mode": "lite", "join": "/nowhere/node.yaml"},
            ["join", "pod-network", "dns", "overlay", "policies", "services", "agent", "metrics"],
        ),
    ],
    ids=["master", "bare-master", "autonomy", "joined-lite"],
)
def test_parts_of_a_mode(tmp_path: Path, document: dict[str, Any], expected: list[str]) -> None:
    assert names(tmp_path, **document) == expected
