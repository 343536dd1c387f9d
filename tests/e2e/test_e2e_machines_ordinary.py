"""The machine of an ordinary user joins a control plane of an ordinary user, runs a pod, leaves, and is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from machines_kit import Machine, Site, until, user_namespaces_allowed

pytestmark = [
    pytest.mark.xdist_group("e2e-machines"),
    pytest.mark.skipif(not user_namespaces_allowed(), reason="this machine forbids user namespaces"),
]
PLANE, OTHER = "10.9.0.1", "10.9.0.2"


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    folder = tmp_path_factory.mktemp("machines")
    site = Site([PLANE, OTHER], ordinary=True)
    plane, other = (Machine(*numbers, folder / name) for numbers, name in zip(site.machines, "ab", strict=True))
    try:
        yield plane, other
    finally:
        other.try_("node", "reset", "--force")
        plane.try_("down", "--purge")
        site.close()


def test_an_ordinary_users_machine_joins_and_leaves(machines: tuple[Machine, Machine]) -> None:
    plane, other = machines
    etc = plane.home / ".coterie" / "alice" / "etc"
    etc.mkdir(parents=True)
    agent = {"nodeName": "a", "address": PLANE}
    document = {"mode": "autonomy", "domainID": "alice", "apiServer": {"host": "0.0.0.0"}, "agent": agent}
    (etc / "coterie.yaml").write_text(json.dumps(document))
    plane("up")
    plane("node", "add", "b", "--address", OTHER)
    (plane.home / "b.join").rename(other.home / "b.join")
    assert "b is Ready" in other("node", "join", "b.join")
    assert "Ready" in other("status")
    container = {"name": "c", "image": "coterie/host:latest", "command": ["sleep", "1000"]}
    spec = {"nodeSelector": {"kubernetes.io/hostname": "b"}, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (plane.home / "pod.json").write_text(json.dumps(pod))
    plane("apply", "-f", "pod.json")
    until("it runs", lambda: "Running" in plane("get", "pod", "p"))
    refused = other.try_("node", "leave")
    assert refused.returncode == 1 and "evict them with --force: default/p" in refused.stderr
    assert "1 pod evicted" in other("node", "leave", "--force", "--grace-period", "0", "--timeout", "30s")
    assert other.processes() == []
    assert plane.try_("get", "node", "b").returncode == 1
    other("node", "reset", "--force")
    assert not (other.home / ".coterie").exists()
