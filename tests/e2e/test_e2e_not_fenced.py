"""A machine that lets an ordinary user make no namespaces: alice's; bob's is an ordinary one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines_kit import user_namespaces_allowed
from test_e2e_network_readme import Organisations, introduce, organisations

pytestmark = [
    pytest.mark.xdist_group("e2e-network"),
    pytest.mark.skipif(not user_namespaces_allowed(), reason="user namespaces are forbidden here"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisations]:
    with organisations(tmp_path_factory.mktemp("not-fenced"), ordinary=True, forbidden=("alice",)) as both:
        introduce(both)
        yield both


def test_x(made: Organisations) -> None:
    for n in ("alice", "bob"):
        r = made[n].machine.try_("status")
        print(r.stdout, r.stderr)
        print(made[n].log.read_text())
    print(made["alice"].machine.try_("describe", "node").stdout)
    for where, parties in (("alice", "alice"), ("bob", "bob,alice"), ("alice", "alice,bob")):
        r = made[where].machine.try_("job", "run", "--engine", "sample", "--parties", parties, "--timeout", "60s")
        print(where, parties, r.returncode, r.stdout, r.stderr)
        for n in ("alice", "bob"):
            print(made[n].machine.try_("get", "kt,pods", "-A").stdout)
            print(made[n].machine.try_("get", "kt", "-A", "-o", "yaml").stdout[-3000:])
    print(made["alice"].machine.try_("logs", "--help").stdout[:300])
    print(made["alice"].log.read_text())
    assert 0
