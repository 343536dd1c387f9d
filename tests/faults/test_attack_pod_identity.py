"""From inside a pod: the gateway, the data mesh, the reporter, tokens. Each call is refused and logged with who made it."""

from __future__ import annotations

import kubectl_runner
import pytest
from pod_attack_kit import ALLOWED, Scene, every, probe_image

pytestmark = [
    pytest.mark.xdist_group("attack-pods"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]

WITHOUT_PATH = ("CONNECT", "HTTP/2 CONNECT", "smuggled", "no host", "HTTP/2 two")
"""Requests that have no path, or are none: the log cannot name their case."""


@pytest.mark.parametrize(("kind", "case"), every("gateway"))
def test_calls_through_the_gateway(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)
    if case.startswith(WITHOUT_PATH):
        return
    address = attacked_p2p.attackers[kind].address
    mark = f"?case={kind}.{case.replace(' ', '-').replace(',', '')} "
    for line in attacked_p2p.logged(mark):
        assert line.startswith(f"{address} - ["), line
        host = line.split("] ")[1].split(" ")[1].lower()
        reserved = host.startswith(("apiserver", "kusciaapi", "kuscia-handshake"))
        if reserved or kind == "guest":
            # Only peers are left, which cases call that try to get somewhere else by the way.
            peer = host.startswith(f"{kind}-attack")
            assert peer or (" 403 " in line and "rbac_access_denied" in line), line


@pytest.mark.parametrize("kind", ["guest", "engine", "ordinary"])
def test_connects_are_logged(attacked_p2p: Scene, kind: str) -> None:
    attacked_p2p.results(kind)
    address = attacked_p2p.attackers[kind].address
    for line in attacked_p2p.logged(f"{address} - [", '"CONNECT '):
        assert "via_upstream" not in line, line


@pytest.mark.parametrize(("kind", "case"), every("identity"))
def test_identities(attacked_p2p: Scene, kind: str, case: str) -> None:
    attacked_p2p.check(kind, case)
    if case.startswith("report for another task") and case not in ALLOWED[kind]:
        lines = attacked_p2p.logged(f"{attacked_p2p.attackers[kind].address} - [", "/report/progress", " 403 ")
        assert all("rbac_access_denied" in line for line in lines)


def test_a_partners_task_cannot_have_the_operators_token_rendered(attacked_p2p: Scene) -> None:
    attacked_p2p.net.register(probe_image("token", {"token.conf": "{{.KUSCIA_API_TOKEN}}"}))
    attacked_p2p.begin("token", "bob", {"mode": "serve"}, "token")
    attacked_p2p.net.at("alice").until_phase("token", "Failed")
    told = str(attacked_p2p.net.at("alice").tasks("token"))
    assert "asks for KUSCIA_API_TOKEN, which nothing that another domain began is given" in told
