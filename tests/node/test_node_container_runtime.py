"""Which runtime a node's containers have, by configuration and by what the machine has."""

from __future__ import annotations

import pytest

from coterie.node import config
from coterie.node.config import AgentConfig
from coterie.node.parts import container_runtime

STOCK = {"mode": "autonomy", "domainID": "alice", "runtime": "runc", "logLevel": "INFO", "runk": {"namespace": ""}}


@pytest.mark.parametrize(
    ("runtime", "chosen", "programs", "root", "handler", "containerd"),
    [
        ("runp", "auto", {"containerd", "runc"}, True, "runp", True),
        ("runc", "auto", {"containerd", "runc"}, True, "runc", True),
        ("runc", "auto", {"containerd", "runc"}, False, "runc", False),
        ("runc", "auto", {"runc", "crun"}, True, "runc", False),
        ("runc", "auto", {"crun"}, True, "crun", False),
        ("runc", "auto", set(), True, "runc", False),
        ("runc", "containerd", {"containerd", "runc"}, True, "runc", True),
        ("runc", "runc", {"containerd", "runc"}, True, "runc", False),
        ("runc", "crun", {"containerd", "runc"}, True, "crun", False),
        ("runp", "crun", {"crun"}, True, "runp", False),
    ],
)
def test_the_choice(runtime: str, chosen: str, programs: set[str], root: bool, handler: str, containerd: bool) -> None:
    agent = AgentConfig("n", runtime=runtime, container_runtime=chosen)
    assert container_runtime.default_handler(agent, programs.__contains__, root=root) == handler
    assert container_runtime.uses_containerd(agent, programs.__contains__, root=root) is containerd


@pytest.mark.parametrize(
    ("chosen", "programs", "root", "why"),
    [
        ("auto", set(), False, ""),
        ("runc", set(), False, ""),
        ("containerd", {"containerd", "runc"}, True, ""),
        ("containerd", {"containerd", "runc"}, False, "containerd needs root"),
        ("containerd", {"runc"}, True, "containerd is not installed"),
        ("containerd", {"containerd"}, True, "runc is not installed"),
    ],
)
def test_what_was_chosen_and_is_not_there_is_said_at_the_start(
    chosen: str, programs: set[str], root: bool, why: str
) -> None:
    found = container_runtime.problem_of(AgentConfig("n", container_runtime=chosen), programs.__contains__, root=root)
    assert why in found and bool(found) is bool(why)


def test_a_stock_file_of_kuscia_is_accepted() -> None:
    agent = config.parse(STOCK).agent
    assert agent is not None and (agent.runtime, agent.container_runtime) == ("runc", "auto")
