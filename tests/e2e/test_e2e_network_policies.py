"""NetworkPolicies on a whole node, with kubectl: in force before a pod's first process runs."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_kit import Cluster, container, pod

pytestmark = pytest.mark.xdist_group("e2e-autonomy")
SERVE = "exec python3 -m http.server 8000"
CALL = "import socket; socket.create_connection(('{}', 8000), 5).close()"


def policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {}, **spec},
    }


def calls(cluster: Cluster, caller: str, address: str) -> bool:
    return cluster.try_("exec", caller, "--", "python3", "-c", CALL.format(address)).rc == 0


def test_policies_take_effect_and_go(autonomy: Cluster) -> None:
    probe = {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1}
    server = pod("server", container(script=SERVE, readinessProbe=probe))
    autonomy.apply(server, pod("client", labels={"access": "true"}), pod("other"))
    address = autonomy.ready("server")["status"]["podIP"]
    for name in ("client", "other"):
        autonomy.ready(name)
        assert calls(autonomy, name, address)
    only = {"from": [{"podSelector": {"matchLabels": {"access": "true"}}}], "ports": [{"port": 8000}]}
    autonomy.apply(policy("access", podSelector={"matchLabels": {"app": "server"}}, ingress=[only]))
    assert calls(autonomy, "client", address)
    assert not calls(autonomy, "other", address)
    # The node's own probe is not restricted.
    autonomy.do("delete pod server")
    autonomy.apply(server)
    address = autonomy.ready("server")["status"]["podIP"]
    assert not calls(autonomy, "other", address)
    autonomy.do("delete networkpolicy access")
    assert calls(autonomy, "other", address)


def test_a_pod_never_runs_without_its_policy(autonomy: Cluster) -> None:
    autonomy.apply(pod("server", container(script=SERVE)))
    address = autonomy.ready("server")["status"]["podIP"]
    autonomy.apply(policy("deny", podSelector={"matchLabels": {"fenced": "yes"}}, policyTypes=["Egress"]))
    script = f'python3 -c "{CALL.format(address)}" && echo reached || echo refused'
    for number in range(3):
        name = f"first-{number}"
        autonomy.apply(pod(name, container(script=script), labels={"fenced": "yes"}, restartPolicy="Never"))
        autonomy.phase(name, "Succeeded")
        assert "refused" in autonomy.logs(name)
