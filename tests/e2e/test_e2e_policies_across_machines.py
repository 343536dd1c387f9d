"""NetworkPolicies across machines: ingress is decided where the destination runs, egress where the source runs.

m1  control plane and node     m4  joined, on another subnet
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import container, pod
from machines_kit import Bench, bench_problem, until

pytestmark = [
    pytest.mark.xdist_group("e2e-autonomy"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(bench_problem()), reason=bench_problem()),
]
CALL = "import socket; socket.create_connection(('{}', {}), 5).close()"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = kubectl_runner.found()
    made = Bench(tmp_path_factory.mktemp("policies"), found[kubectl_runner.chosen()[-1]])
    try:
        made.start_control_plane()
        made.join("m4")
        until("m4 is ready", lambda: "m4" in made.ready_nodes(), 60)
        yield made
    finally:
        made.close()


def on(node: str, name: str, script: str = "sleep 1000", **labels: str) -> dict[str, Any]:
    return pod(name, container(script=script), labels={"app": name, **labels}, nodeName=node)


def policy(name: str, **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    return {**head, "spec": {"podSelector": {}, **spec}}


def test_both_sides_are_enforced_on_their_machine(bench: Bench) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    bench.apply(
        on("m4", "server", "exec python3 -m http.server 8000"),
        on("m1", "friend", access="true"),
        on("m1", "other"),
        on("m4", "near"),
        service,
    )
    (server,) = bench.ready_pods("app=server", 1)
    for name in ("friend", "other", "near"):
        bench.ready_pods(f"app={name}", 1)
    address = server["status"]["podIP"]
    virtual = bench.json("get service server")["spec"]["clusterIP"]

    def calls(name: str, target: str = address, port: int = 8000) -> bool:
        words = ("exec", name, "--", "python3", "-c", CALL.format(target, port))
        return bench.try_kubectl(*words).code == 0

    for name in ("friend", "other", "near"):
        until(f"{name} reaches the server", lambda name=name: calls(name))
        until(f"{name} reaches the Service", lambda name=name: calls(name, virtual, 80))
    only = [{"from": [{"podSelector": {"matchLabels": {"access": "true"}}}], "ports": [{"port": 8000}]}]
    bench.apply(policy("in", podSelector={"matchLabels": {"app": "server"}}, ingress=only))
    until("the other machine is refused", lambda: not calls("other"))
    assert not calls("near") and not calls("other", virtual, 80)
    assert calls("friend") and calls("friend", virtual, 80)
    bench.kubectl("delete networkpolicy in")
    until("it is allowed again", lambda: calls("other"))
    bench.apply(policy("out", podSelector={"matchLabels": {"app": "other"}}, policyTypes=["Egress"]))
    until("it may not leave its machine", lambda: not calls("other"))
    assert calls("friend")
    to_server = [{"to": [{"podSelector": {"matchLabels": {"app": "server"}}}]}]
    bench.apply(policy("out", podSelector={"matchLabels": {"app": "other"}}, policyTypes=["Egress"], egress=to_server))
    until("a pod of another machine is a peer", lambda: calls("other"))
    assert calls("other", virtual, 80)
