"""Two control planes of one domain on one PostgreSQL: one is killed, the other goes on; one is stopped, the other takes over at once.

a, b   members (mode master)      n1   a node that joined a
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, container, joined_node, until
from store_servers_kit import free_port, postgresql_server

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-members")]
SECONDS = 90.0
_QUIET = {"enabled": False}


def member(root: Path, name: str, store: str, key: bytes = b"") -> Node:
    settings: dict[str, Any] = {
        "mode": "master",
        # The same after a restart: a node that was away for two of them would know none any more.
        "apiServer": {"port": free_port()},
        "store": store,
        "controllers": {"nodeGraceSeconds": 60, "healthPort": 0},
        "metrics": _QUIET,
        "console": _QUIET,
        "kusciaAPI": _QUIET,
    }
    if key:
        settings["domainKeyData"] = base64.b64encode(key).decode()
    return Node(root / name, name, settings)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    root = tmp_path_factory.mktemp("members")
    version = kubectl_runner.chosen()[-1]
    nodes: list[Node] = []
    with postgresql_server() as server:
        store = f"{server.url}?sslmode=disable"
        try:
            first = member(root, "a", store).start()
            nodes.append(first)
            a = Cluster(first, version)
            a.wait_until_up()
            second = member(root, "b", store, (first.home / "var/certs/domain.key").read_bytes()).start()
            nodes.append(second)
            b = Cluster(second, version)
            b.wait_until_up()
            nodes.insert(0, joined_node(first, root / "n1", "n1").start())
            b.wait_until_up("n1")
            yield a, b
        finally:
            for node in nodes:
                node.destroy()


def a_job(name: str, script: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container(script=script)]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def leader(seen: Cluster) -> str:
    return str(seen.json("get lease coterie-controllers -n kube-system")["spec"].get("holderIdentity") or "")


def terms(node: Node) -> int:
    return node.log.read_text().count("control.leader: Leading")


def addresses(seen: Cluster) -> list[str]:
    found = seen.json("get endpoints kubernetes -n default")["subsets"]
    return [f"{each['ip']}:{subset['ports'][0]['port']}" for subset in found for each in subset["addresses"]]


def succeeded(seen: Cluster, name: str) -> None:
    until(f"{name} ends", lambda: seen.json(f"get job {name}")["status"].get("succeeded") == 1, SECONDS)
    assert len(seen.pods(f"job-name={name}")) == 1, "a pod was made twice"


def test_credentials_of_one_member_are_good_at_the_other(plane: tuple[Cluster, Cluster]) -> None:
    a, b = plane
    assert len(addresses(a)) == 2 and addresses(a) == addresses(b)
    token = a.do("create token default").strip()
    config = b.plane.kubeconfig
    server = next(line.split()[-1] for line in config.read_text().splitlines() if "server:" in line)
    alone = f"--kubeconfig=/dev/null --server={server} --certificate-authority={a.plane.home}/var/certs/pki/ca.crt"
    who = b.do(f"{alone} --token={token} auth whoami -o json")
    assert "system:serviceaccount:default:default" in who
    # The operator's certificate of a, at b.
    pki = a.plane.home / "var/certs/pki"
    mine = f"--client-certificate={pki}/admin.crt --client-key={pki}/admin.key"
    assert "coterie-admin" in b.do(f"{alone} {mine} auth whoami -o json")


def test_a_job_goes_on_when_its_control_plane_is_killed(plane: tuple[Cluster, Cluster]) -> None:
    a, b = plane
    until("a leads", lambda: leader(b))
    a.apply(a_job("long", "sleep 12"), a_job("queued", "exit 0"))
    until("its pod runs", lambda: [p for p in b.pods("job-name=long") if p["status"]["phase"] == "Running"], SECONDS)
    assert (terms(a.plane), terms(b.plane)) == (1, 0), "only one leads"
    a.plane.kill()
    b.apply(a_job("after", "exit 0"))
    until("b leads", lambda: terms(b.plane) == 1, SECONDS)
    for name in ("long", "queued", "after"):
        succeeded(b, name)
    until("only b is published", lambda: len(addresses(b)) == 1, SECONDS)
    assert b.ready_nodes() == {"n1"}, "the node found the living member"


def test_a_planned_stop_hands_over(plane: tuple[Cluster, Cluster]) -> None:
    a, b = plane
    a.plane.start()
    a.wait_until_up("n1")
    until("both are published", lambda: len(addresses(a)) == 2, SECONDS)
    before = leader(a)
    b.plane.stop()
    until("a leads", lambda: leader(a) not in ("", before), SECONDS)
    until("b is not published any more", lambda: len(addresses(a)) == 1, SECONDS)
    assert "Released leadership" in b.plane.log.read_text()
    a.apply(a_job("alone", "exit 0"))
    succeeded(a, "alone")
    assert a.plane.complaints() == [] and b.plane.complaints() == []


@pytest.mark.skipif(not os.environ.get("COTERIE_HA"), reason="takes a minute: `make ha`")
def test_members_are_upgraded_one_after_the_other_under_jobs(plane: tuple[Cluster, Cluster]) -> None:
    a, b = plane
    for each in plane:
        if each.plane._process is None:
            each.plane.start()
    until("both are published", lambda: len(addresses(a)) == 2, SECONDS)
    a.apply(a_job("rolling", "sleep 30"))
    until("its pod runs", lambda: [p for p in a.pods("job-name=rolling") if p["status"]["phase"] == "Running"], SECONDS)
    for number, (goes, stays) in enumerate(((a, b), (b, a))):
        goes.plane.stop()
        stays.apply(a_job(f"meanwhile-{number}", "exit 0"))
        succeeded(stays, f"meanwhile-{number}")
        goes.plane.start()
        goes.wait_until_up("n1")
        until("both are published", lambda: len(addresses(a)) == 2, SECONDS)
    succeeded(b, "rolling")
    (pod,) = b.pods("job-name=rolling")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert a.plane.complaints() == [] and b.plane.complaints() == []
