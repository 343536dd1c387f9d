"""The network between nodes in the kernel: machines, a router and pods as network namespaces; attacks among them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import overlay_scenarios as scenarios
import pytest
from pod_network_scenarios import FORBIDDEN

PROGRAM = Path(scenarios.__file__)


def play(name: str, mode: str = "root") -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), mode, name], capture_output=True, text=True, timeout=50)
    if done.returncode == FORBIDDEN:
        pytest.skip(f"this machine allows no network namespaces: {done.stderr.strip()}")
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def each_of(group: Sequence[Callable[[], None]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [scenario.__name__ for scenario in group])


@each_of(scenarios.PODS)
def test_pods_of_several_machines(name: str) -> None:
    play(name)


@each_of(scenarios.NODES)
def test_nodes_that_come_and_go(name: str) -> None:
    play(name)


@each_of(scenarios.MACHINE)
def test_the_machine_and_pods(name: str) -> None:
    play(name)


@each_of(scenarios.ATTACKS)
def test_packets_of_hostile_machines(name: str) -> None:
    play(name)


@each_of(scenarios.LINK)
def test_nodes_on_one_link(name: str) -> None:
    play(name, "plain")


@each_of(scenarios.ALSO_BY_LINK)
def test_plain_routes_have_the_same_rules(name: str) -> None:
    play(name, "plain")
