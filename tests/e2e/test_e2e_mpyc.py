"""MPyC, unmodified, between three organisations: the commands of docs/guide/mpyc.md, on granted tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_guide_kit import EngineGuide, shell, three_organisations
from jobs_kit import Net

from coterie.cli.app import App
from coterie.cli.engine_environment import MPYC

PLACE = MPYC.directory(App.standard())
pytestmark = [
    pytest.mark.xdist_group("e2e-jobs"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(not MPYC.installed(PLACE), reason="the environment of MPyC is not there: make mpyc"),
]
GUIDE = EngineGuide("mpyc")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with three_organisations(tmp_path_factory.mktemp("mpyc")) as made:
        yield made


def test_the_guide_gives_what_it_says(net: Net, tmp_path: Path) -> None:
    (tmp_path / "sums.json").write_text(GUIDE.input)
    began = time.monotonic()
    done = shell(net, tmp_path, GUIDE.steps)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {"rows": 5, "sums": {"salary": 20000.0, "bonus": 14.75}}
    assert f"`{json.dumps(expected)}`" in GUIDE.text
    assert json.dumps(expected) in done.stdout
    GUIDE.note_figures(net, tmp_path, guide=took)
    # What a grant does not say cannot be read, whoever asks.
    wider = GUIDE.question
    wider["columns"]["bob"] = ["name", "salary", "bonus"]
    refused = GUIDE.run(net, tmp_path, "wider", wider)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the table staff-b cannot be read" in shell(net, tmp_path, "coterie job logs wider --domain bob").stdout
