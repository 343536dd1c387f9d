"""MPyC, unmodified, between three organisations: the commands of docs/guide/mpyc.md, on granted tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubectl_runner
import pytest
from jobs_kit import Net, network

from coterie.cli.app import App
from coterie.cli.engine_environment import MPYC

PLACE = MPYC.directory(App.standard())
pytestmark = [
    pytest.mark.xdist_group("e2e-jobs"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(not MPYC.installed(PLACE), reason="the environment of MPyC is not there: make mpyc"),
]
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "mpyc.md").read_text()
PARTIES = ("alice", "bob", "carol")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    root = tmp_path_factory.mktemp("mpyc") / "net"
    with network(root, "p2p", *PARTIES, kubectl=kubectl_runner.chosen()[-1]) as made:
        yield made
        assert [line for each in made.domains.values() for line in each.complaints()] == []


def shell(net: Net, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environ = {**os.environ, "PATH": path, "COTERIE_ROOT": str(net.root)}
    return subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, cwd=folder, env=environ, timeout=200, check=False
    )


def test_the_guide_gives_what_it_says(net: Net, tmp_path: Path) -> None:
    install, steps, _ = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    (question,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "sums.json").write_text(question)
    done = shell(net, tmp_path, install.splitlines()[1] + "\n" + steps)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {"rows": 5, "sums": {"salary": 20000.0, "bonus": 14.75}}
    assert f"`{json.dumps(expected)}`" in GUIDE
    assert json.dumps(expected) in done.stdout
    # What a grant does not say cannot be read, whoever asks.
    wider = json.loads(question)
    wider["columns"]["bob"] = ["name", "salary", "bonus"]
    (tmp_path / "wider.json").write_text(json.dumps(wider))
    words = "coterie job run --engine mpyc --parties alice,bob,carol --domain alice --name wider --input @wider.json"
    refused = shell(net, tmp_path, words)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the table staff-b cannot be read" in shell(net, tmp_path, "coterie job logs wider --domain bob").stdout
