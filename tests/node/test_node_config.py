"""The keys of the configuration file that decide how patient nodes are with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.node import config

_MASTER = {"mode": "master", "domainID": "alice"}


def test_patience_with_nodes(tmp_path: Path) -> None:
    given = {**_MASTER, "controllers": {"nodeGraceSeconds": 5, "podEvictionSeconds": 0}}
    assert config.parse(given, tmp_path).controllers == config.ControllerSettings(5, 0)
    assert config.parse(_MASTER, tmp_path).controllers == config.ControllerSettings(40, 300)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        pytest.param({"nodeGraceSeconds": 1}, "controllers.nodeGraceSeconds", id="too-hasty"),
        pytest.param({"podEvictionSeconds": -1}, "controllers.podEvictionSeconds", id="negative"),
        pytest.param({"podEvictionSeconds": "5"}, "controllers.podEvictionSeconds", id="text"),
        pytest.param({"podEviction": 5}, "controllers.podEviction: is not a known key", id="unknown"),
    ],
)
def test_refused(tmp_path: Path, block: dict[str, object], told: str) -> None:
    with pytest.raises(config.ConfigError, match=told.replace(".", r"\.")):
        config.parse({**_MASTER, "controllers": block}, tmp_path)
