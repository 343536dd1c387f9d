"""Pods that a partner began and that fork, fill or flood: stopped, named, and nobody else notices."""

from __future__ import annotations

import json
import sys
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import until
from pod_attack_kit import PIDS, Scene, probe_image

pytestmark = [
    pytest.mark.xdist_group("attack-pods"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]
MEMORY, DISK = "96Mi", "48Mi"
SERVED = """
import http.client, socket, sys
asked = http.client.HTTPConnection(sys.argv[1], 80, timeout=20)
asked.request("GET", "/", headers=dict(Host="inner.alice.svc"))
print(asked.getresponse().read().decode(), socket.gethostbyname("gateway.alice.svc"))
"""


def explode(scene: Scene, what: str, **limits: str) -> str:
    """A task of bob's at alice's node; the name of its pod there, once it runs or has ended."""
    scene.net.register(probe_image(f"bomb-{what}", **limits))
    given: dict[str, Any] = {**scene.targets.told(), "kind": "guest", "mode": what}
    scene.begin(f"bomb-{what}", "bob", given, f"bomb-{what}")
    return str(scene.pod_of(f"bomb-{what}", "alice", "Running", "Failed")["metadata"]["name"])


def others_are_served(scene: Scene) -> None:
    """Another pod resolves a name and calls a service through the gateway."""
    gateway = scene.targets.gateway
    found = scene.net.at("alice").kubectl("exec", "-n", "alice", "victim", "--", sys.executable, "-c", SERVED, gateway)
    assert found.split() == ["pod", "of", "alice", gateway]


def over(scene: Scene, what: str) -> None:
    scene.net.at("bob").command(f"bomb-{what}", "Stop")
    scene.net.at("alice").until_phase(f"bomb-{what}", "Failed")


def failed(scene: Scene, what: str, *words: str) -> None:
    """The task failed at both sides, and says why."""
    scene.net.at("alice").until_phase(f"bomb-{what}", "Failed")
    told = json.dumps(scene.net.at("alice").tasks(f"bomb-{what}"))
    assert all(word in told for word in words), told


def test_a_fork_bomb(attacked_p2p: Scene) -> None:
    pod = explode(attacked_p2p, "fork")
    told = until("it is stopped", lambda: "stopped after" in (text := attacked_p2p.output("alice", pod)) and text)
    assert "EAGAIN" in told and 0 < int(told.split("stopped after ")[1].split(":")[0]) < PIDS
    others_are_served(attacked_p2p)
    events = ("get", "events", "-n", "alice", "--field-selector", f"involvedObject.name={pod}")
    if attacked_p2p.has_cgroups:
        until("an event names it", lambda: "PidsLimitReached" in attacked_p2p.net.at("alice").kubectl(*events))
    over(attacked_p2p, "fork")
    until("it is gone", lambda: attacked_p2p.net.at("alice").get(f"/api/v1/namespaces/alice/pods/{pod}") is None)


@pytest.mark.parametrize("what", ["memory", "shm", "shared"])
def test_a_pod_that_takes_all_memory(attacked_p2p: Scene, what: str) -> None:
    """Its own, files in /dev/shm, and memory that it could share."""
    if what == "shared" and not attacked_p2p.has_cgroups:
        pytest.skip("needs control groups: nothing else counts shared memory")
    explode(attacked_p2p, what, memory=MEMORY)
    # Without control groups the program itself is told that there is no more.
    failed(attacked_p2p, what, *(("OOMKilled", MEMORY) if attacked_p2p.has_cgroups else ("exited with 1",)))
    others_are_served(attacked_p2p)


@pytest.mark.parametrize("what", ["disk", "deleted"])
def test_a_pod_that_fills_the_disk(attacked_p2p: Scene, what: str) -> None:
    """With files, and with files that have no names any more."""
    explode(attacked_p2p, what, ephemeral_storage=DISK)
    failed(attacked_p2p, what, "Evicted", DISK)
    others_are_served(attacked_p2p)


def test_a_flood_of_output(attacked_p2p: Scene) -> None:
    pod = explode(attacked_p2p, "output")
    others_are_served(attacked_p2p)
    until("it has written all it wanted", lambda: "flooded" in attacked_p2p.output("alice", pod, "--tail=5"))
    uid = attacked_p2p.net.at("alice").get(f"/api/v1/namespaces/alice/pods/{pod}")["metadata"]["uid"]
    kept = [each for each in attacked_p2p.alice.paths.stdout.rglob("*") if each.is_file() and uid in str(each)]
    assert sum(each.stat().st_size for each in kept) < 100 << 20, kept
    over(attacked_p2p, "output")


def test_a_flood_of_connections_and_questions(attacked_p2p: Scene) -> None:
    pod = explode(attacked_p2p, "flood")
    told = until("it floods", lambda: "flooding" in (text := attacked_p2p.output("alice", pod)) and text)
    assert int(told.split("flooding ")[1].split()[0]) > 500
    for _ in range(3):
        others_are_served(attacked_p2p)
    until("it is over", lambda: "flooded" in attacked_p2p.output("alice", pod))
    over(attacked_p2p, "flood")
