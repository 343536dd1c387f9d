"""The sample engine in real networks: rendered configuration, gateways in between, progress, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import Net, job, network, task, until

from coterie.cli.app import App
from coterie.cli.main import main

pytestmark = [pytest.mark.xdist_group("e2e-jobs")]
VERSIONS = kubectl_runner.chosen()
AB = ("alice", "bob")
_numbers = count(1)


@pytest.fixture(scope="module", params=["p2p", "center"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    root = tmp_path_factory.mktemp(f"engines-{request.param}") / "net"
    with network(root, request.param, *AB, kubectl=VERSIONS[-1]) as net:
        yield net
        assert [line for each in net.domains.values() for line in each.complaints()] == []


@pytest.fixture
def net(running: Net) -> Iterator[Net]:
    yield running
    running.remove_jobs()


def sample(net: Net, **wishes: Any) -> str:
    """Begin a job of one task of the sample engine; its name."""
    name = f"engine-{next(_numbers)}"
    net.at("alice").submit(job(name, "alice", task("a", *AB, image="sample", input=json.dumps(wishes))))
    return name


def test_both_parties_speak_with_each_other(net: Net) -> None:
    name = sample(net)
    net.at("alice").until_phase(name, "Succeeded")
    net.at("bob").until_phase(name, "Succeeded")


def test_megabytes_go_through_the_gateways(net: Net) -> None:
    name = sample(net, mbytes=20)
    net.at("alice").until_phase(name, "Succeeded")


def test_a_party_that_fails_says_why(net: Net) -> None:
    name = sample(net, mode="fail", party="bob")
    net.at("alice").until_phase(name, "Failed")
    at_bob = until("bob's task failed", lambda: _task(net, "bob", name, "Failed"))
    assert "failed at bob: the task says so" in json.dumps(at_bob)


def test_progress_is_told_while_a_task_runs(net: Net) -> None:
    name = sample(net, mode="slow", seconds=3)
    for party in AB:
        until("progress is known", lambda party=party: _task(net, party, name).get("progress", 0) > 0)
    net.at("alice").until_phase(name, "Succeeded")


def test_a_new_engine_runs_as_it_was_written(net: Net, tmp_path: Path) -> None:
    """`coterie engine new`, and the test that it wrote, against this network."""
    assert main(["engine", "new", "my-engine", str(tmp_path / "mine")], App.standard()) == 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environ = {**os.environ, "PATH": path, "COTERIE_ROOT": str(net.root), "COTERIE_PARTIES": ",".join(AB)}
    environ["COTERIE_CONTROL_PLANES"] = ",".join(each.name for each in net.planes)
    words = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "-k", "network", str(tmp_path / "mine")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        env={key: value for key, value in environ.items() if not key.startswith("PYTEST")},
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def _task(net: Net, party: str, name: str, phase: str = "") -> dict[str, Any]:
    found = net.at(party).tasks(name).get("a", {}).get("status", {})
    return found if not phase or found.get("phase") == phase else {}
