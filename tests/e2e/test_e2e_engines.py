"""The sample engine in real networks: rendered configuration, gateways in between, progress, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import Net, job, network, task, until

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


def _task(net: Net, party: str, name: str, phase: str = "") -> dict[str, Any]:
    found = net.at(party).tasks(name).get("a", {}).get("status", {})
    return found if not phase or found.get("phase") == phase else {}
