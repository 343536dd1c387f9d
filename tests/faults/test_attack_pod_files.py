"""From inside a pod: keys, other pods' files, the machine's files, devices, mounts, programs with powers."""

from __future__ import annotations

from pathlib import Path

import kubectl_runner
import pytest
from pod_attack_kit import Scene, every

pytestmark = [
    pytest.mark.xdist_group("attack-pods"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]


def test_the_files_are_there_to_be_stolen(attacked_p2p: Scene) -> None:
    """Whoever runs the node reads all of them, with few exceptions that only root reads."""
    told = attacked_p2p.targets.told()
    missing = [label for label, path in told["files"].items() if not Path(path).exists()]
    assert set(missing) <= {"/etc/group-", "/etc/fstab"}
    assert all(Path(path).is_socket() for path in told["sockets"].values())


@pytest.mark.parametrize(("kind", "case"), every("files"))
def test_files(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)


@pytest.mark.parametrize(("kind", "case"), every("processes"))
def test_processes_and_powers(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)


def test_victims_live_on(attacked_p2p: Scene) -> None:
    for kind in attacked_p2p.attackers:
        attacked_p2p.results(kind)
    assert attacked_p2p.pid_in("victim") == attacked_p2p.targets.pids[1]
    assert attacked_p2p.alice.pid == attacked_p2p.targets.pids[0]
