"""From inside a pod of a lite that another lite began: the whole list again, and nobody speaks for the lite."""

from __future__ import annotations

import kubectl_runner
import pytest
from pod_attack_kit import Scene, cases
from pod_probe import GROUPS

pytestmark = [
    pytest.mark.xdist_group("attack-pods"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]


@pytest.mark.parametrize("case", cases("controls", "guest"))
def test_what_the_pod_may_do(attacked_center: Scene, case: str) -> None:
    found = attacked_center.results("guest")[case]
    assert found.state == "succeeded", found.how


@pytest.mark.parametrize("case", [case for group in GROUPS if group != "controls" for case in cases(group, "guest")])
def test_attacks(attacked_center: Scene, case: str) -> None:
    attacked_center.check("guest", case)


@pytest.mark.parametrize("name", ["apiserver", "kusciaapi", "kuscia-handshake"])
def test_nobody_speaks_for_the_lite(attacked_center: Scene, name: str) -> None:
    attacked_center.results("guest")
    address = attacked_center.attackers["guest"].address
    for line in attacked_center.logged(f"{address} - [", f" {name}.master.svc "):
        assert " 403 " in line and "rbac_access_denied_matched_policy[reserved-for-the-node]" in line, line
