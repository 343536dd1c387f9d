"""From inside a pod: ports of the node and of the machine, other pods, other domains, sockets, forged sources, names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import kubectl_runner
import pytest
from pod_attack_kit import KINDS, Scene, every, pod_range

pytestmark = [
    pytest.mark.xdist_group("attack-pods"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]

_INNER = (80, 6443, 8060, 8061, 8070, 8071, 8082, 8083, 8088, 10250)
"""Gateway, ConfManager, data mesh, KusciaAPI, console, agent: pods reach some of them, the machine none by this way."""


def test_the_ports_are_open_to_the_machine(attacked_p2p: Scene) -> None:
    ports = attacked_p2p.targets.told()["ports"]
    for label, (host, port) in ports.items():
        if label.startswith(("own ", "other ", "machine ", "another ")):
            socket.create_connection((host, port), 5).close()


@pytest.mark.parametrize(("kind", "case"), every("controls"))
def test_what_pods_may_do(attacked_p2p: Scene, kind: str, case: str) -> None:
    """The attackers work: what everybody may do succeeds."""
    found = attacked_p2p.results(kind)[case]
    assert found.state == "succeeded", found.how


@pytest.mark.parametrize(("kind", "case"), every("network"))
def test_network(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)


@pytest.mark.parametrize(("kind", "case"), every("names"))
def test_names(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)


def test_no_question_of_an_engine_leaves_the_domain(attacked_p2p: Scene) -> None:
    for kind in KINDS:
        attacked_p2p.results(kind)
    asked = [name for name in attacked_p2p.canary.asked if name.endswith("canary.test")]
    assert asked and all("ordinary" in name for name in asked)
    lines = attacked_p2p.alice.said().splitlines()
    for kind in ("guest", "engine"):
        address = attacked_p2p.attackers[kind].address
        refused = [line for line in lines if "Client may ask for own names only" in line and f"peer={address}" in line]
        assert any(f"exfiltrated-{kind}.canary.test" in line for line in refused), lines[-20:]


_TRY = """
import encodings.idna, os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 15):
            print(place)
    except OSError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the machine has no way to pods at all")
def test_another_user_of_the_machine_reaches_ordinary_pods_and_nothing_else(attacked_p2p: Scene) -> None:
    """By way of the machine's device to the pod network: what any process of a Kubernetes node may do, and no more."""
    targets = attacked_p2p.targets
    gateways = [
        f"{pod_range(each.paths)[1]}:{port}" for each in (attacked_p2p.alice, attacked_p2p.bob) for port in _INNER
    ]
    engines = [f"{each.address}:{each.port}" for each in (targets.engine, targets.partner)]
    ordinary = f"{targets.victim.address}:{targets.victim.port}"
    own_way = str(pod_range(attacked_p2p.alice.paths)[-1])
    before = _way_to(targets.victim.address)
    command = [sys.executable, "-S", "-c", _TRY, ordinary, *engines, *gateways]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    if {before, _way_to(targets.victim.address)} != {own_way}:
        pytest.skip("the machine's way to these addresses is that of another network that runs here")
    assert done.stdout.split() == [ordinary]


def _way_to(address: str) -> str:
    """Our own address on the way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((address, 9))
        return str(way.getsockname()[0])
