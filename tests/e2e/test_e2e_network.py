"""`coterie up` for real: domains of one machine, their pods call each other by name through both gateways, and `coterie
route check` finds what somebody broke."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from e2e_kit import until
from network_kit import (
    CALL,
    CONVERSE,
    ECHO,
    PATIENCE,
    PROTOCOL,
    TALK,
    Hand,
    a_pod,
    a_server,
    listening,
    needs_names,
    processes,
)
from prometheus_kit import PROMTOOL, check_page, scraped

from coterie.base import pki
from coterie.cli import network

pytestmark = [
    pytest.mark.xdist_group("e2e-network"),
    needs_names,
]


@pytest.fixture(scope="module")
def p2p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hand]:
    """alice, bob and carol, all each other's partners."""
    home = tmp_path_factory.mktemp("p2p")
    hand = Hand(home, "--root", str(home / "net"))
    try:
        hand("up", "--topology", "p2p", "--domains", "alice,bob,carol", "--wait", "150")
        yield hand
    finally:
        hand("down", "--purge", "--grace", "1")


def address_of(hand: Hand, domain: str) -> str:
    nodes = network.members(hand.home / "net")
    return next(network.addresses_of(node).address for node in nodes if node.domain == domain)


def healed(hand: Hand, source: str, destination: str) -> None:
    """Both sides call it ready, and it can be used."""

    def called_ready() -> bool:
        told = [each for plane in (source, destination) for each in hand.json("route", "ls", "--domain", plane)]
        mine = [each["ready"] for each in told if (each["source"], each["destination"]) == (source, destination)]
        return mine == [True, True]

    until(f"{source} -> {destination} is called ready", called_ready, PATIENCE)
    hand.reaches(source, destination)


def wrong(hand: Hand, source: str, destination: str, *words: str) -> set[str]:
    return {step for step, verdict in hand.steps(source, destination, *words).items() if verdict == "wrong"}


# Calls.


def test_pods_call_services_of_partners_by_name(p2p: Hand) -> None:
    echo = a_server("bob", "echo", ECHO, "alice")
    talk = a_server("bob", "talk", TALK, "alice", **{PROTOCOL: "GRPC"})
    p2p.apply("bob", *echo, *talk)
    for caller in ("alice", "carol"):
        p2p.apply(caller, a_pod(caller, "caller"))
    for plane, name in (("bob", "echo"), ("bob", "talk"), ("alice", "caller"), ("carol", "caller")):
        p2p.pod_ready(plane, plane, name)

    def answered() -> str:
        said = p2p.run_in("alice", "alice", CALL, "http://echo.bob.svc/some/path?x=1")
        return said if said.startswith("200 ") else ""

    told = json.loads(until("alice reaches echo", answered, PATIENCE).partition(" ")[2])
    assert told["path"] == "/some/path?x=1"
    assert told["headers"]["kuscia-source"] == "alice"
    assert "kuscia-token" not in told["headers"]

    def conversed() -> bool:
        return p2p.run_in("alice", "alice", CONVERSE, "talk.bob.svc:80") == "ONE TWO THREE"

    until("alice talks with bob by gRPC", conversed, PATIENCE)

    assert p2p.run_in("carol", "carol", CALL, "http://echo.bob.svc/").startswith("403 ")
    assert p2p.run_in("carol", "carol", CONVERSE, "talk.bob.svc:80") == "PERMISSION_DENIED"
    assert wrong(p2p, "alice", "bob", "--service", "echo") == set()
    assert wrong(p2p, "carol", "bob", "--service", "echo") == {"service"}


def test_metrics_of_links_and_pods(p2p: Hand) -> None:
    """On each node's page, as root and as an ordinary user, whose connections to partners belong to the relay."""
    p2p.apply("bob", *a_server("bob", "echo", ECHO, "alice"))
    p2p.apply("alice", a_pod("alice", "caller"))
    for domain, name in (("bob", "echo"), ("alice", "caller")):
        p2p.pod_ready(domain, domain, name)

    def called() -> bool:
        return p2p.run_in("alice", "alice", CALL, "http://echo.bob.svc/").startswith("200 ")

    until("alice reaches echo", called, PATIENCE)

    def page(domain: str) -> str:
        with urllib.request.urlopen(f"http://{address_of(p2p, domain)}:9091/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    text = page("alice")
    found = scraped(text)

    def value(name: str, /, **wanted: str) -> float:
        return next(value for labels, value in found[name].rows.items() if wanted.items() <= dict(labels).items())

    assert value("coterie_route_up", source="alice", destination="bob") == 1
    assert value("envoy_cluster_upstream_rq_total", envoy_cluster_name="alice-to-bob-http") > 0
    assert value("coterie_route_sent_bytes_total", source="alice", destination="bob") > 0
    assert value("ss_total_connections", type="ss", remote_domain="bob", aggregation_function="sum") > 0
    assert value("ss_rtt", type="ss", remote_domain="bob", aggregation_function="avg") > 0
    assert value("coterie_token_expiry_timestamp_seconds", source="bob", destination="alice") > time.time()
    for name in ("domain", "ca", "partner/bob", "partner/carol"):
        assert value("coterie_certificate_expiry_timestamp_seconds", name=name) > time.time()
    pod = {"namespace": "alice", "pod": "caller", "interface": "eth0"}
    for name in ("receive", "transmit"):
        assert value(f"container_network_{name}_bytes_total", **pod) > 500
        assert value(f"container_network_{name}_packets_total", **pod) > 5
    assert set(found["coterie_source_up"].rows.values()) == {1.0}, found["coterie_source_up"]
    if PROMTOOL.exists():
        for domain in ("alice", "bob"):
            check_page(page(domain))


# What somebody broke.


def test_a_wrong_port_is_found(p2p: Hand) -> None:
    where = address_of(p2p, "bob")
    p2p("route", "add", "carol", "bob", "--endpoint", f"https://{where}:1")
    try:
        until("the port is called wrong", lambda: "tcp" in wrong(p2p, "carol", "bob"), PATIENCE)
        with socket.create_server((where, 0)) as other:
            p2p("route", "add", "carol", "bob", "--endpoint", f"https://{where}:{other.getsockname()[1]}")
            until("the server is called no gateway", lambda: "tls" in wrong(p2p, "carol", "bob"), PATIENCE)
    finally:  # other tests use this route
        p2p("route", "add", "carol", "bob", "--endpoint", f"https://{where}:1080")
    healed(p2p, "carol", "bob")


def test_a_wrong_certificate_is_found(p2p: Hand) -> None:
    made = pki.self_signed_ca("bob", pki.new_key("rsa"), now=datetime.now(UTC))
    pki.save_certificate(p2p.home / "other.crt", made.certificate)
    (p2p.home / "bob.crt").write_text(p2p("domain", "cert", "--domain", "bob").out)
    add = ("domain", "add", "bob", "--partner", "--domain", "carol", "--cert")
    try:
        assert "new certificate" in p2p(*add, "other.crt").out
        assert "certificate" in wrong(p2p, "carol", "bob")
    finally:
        p2p(*add, "bob.crt")
    healed(p2p, "carol", "bob")
    healed(p2p, "bob", "carol")  # carol refused bob's handshakes meanwhile


def test_a_route_that_the_other_side_does_not_know_is_found(p2p: Hand) -> None:
    p2p("route", "rm", "alice", "carol", "--domain", "carol")
    until("the token is called wrong", lambda: "token" in wrong(p2p, "alice", "carol"), PATIENCE)
    told = p2p.try_("route", "check", "alice", "carol")
    assert (told.code, "at carol: coterie route add alice carol" in told.out) == (1, True)
    p2p("route", "add", "alice", "carol", "--domain", "carol")
    healed(p2p, "alice", "carol")


def test_a_route_that_is_not_there_at_all(p2p: Hand) -> None:
    assert wrong(p2p, "alice", "dora") == {"domain", "route"}


# The whole.


def test_status_tells_all(p2p: Hand) -> None:
    told = p2p.json("status")
    assert [each["live"] and each["configuration"]["accepted"] for each in told["gateways"]] == [True, True, True]
    assert {each["dns"] for each in told["gateways"]} == {"in pods"}
    assert len(told["routes"]) == 6
    assert (told["problems"], told["protectionsOff"]) == ([], [])
    assert all(each["memoryBytes"]["gateway"] > 1 << 20 for each in told["gateways"])


def test_the_links_of_all_parties_are_measured_from_the_machine_of_one(p2p: Hand) -> None:
    """bob and carol are asked to measure theirs; then they lose each other, and a job of the three would hang."""
    seen = p2p.home / "seen"
    seen.mkdir()
    (seen / "alice").symlink_to(p2p.home / "net" / "alice")
    alice = Hand(p2p.home, "--root", str(seen))
    for source, destination in (("alice", "bob"), ("bob", "carol"), ("carol", "bob")):
        p2p.reaches(source, destination)
    found = alice.json("diagnose", "network", "alice", "bob", "carol", "--quick")
    assert found["ok"], found
    assert len(found["links"]) == 6
    for link in found["links"]:
        assert link["measuredBy"] == ("here" if link["source"] == "alice" else "source")
        report = link["report"]
        assert (report["endpoint"], report["protocol"], report["grpc"]) == ("coterie", "HTTP/2", True), link
        assert report["fingerprint"]

    task = {"alias": "a", "appImage": "sample", "taskInputConfig": "{}"}
    task["parties"] = [{"domainID": "alice"}, {"domainID": "bob", "resources": {"requests": {"cpu": "1000"}}}]
    job = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "KusciaJob", "metadata": {"name": "j"}}
    (p2p.home / "job.json").write_text(json.dumps(job | {"spec": {"initiator": "alice", "tasks": [task]}}))
    found = alice.json("diagnose", "job", "job.json", "--quick")
    parties = {each["party"]: {one["step"]: one["verdict"] for one in each["findings"]} for each in found["parties"]}
    assert parties["alice"] == {"version": "ok", "engine": "ok", "capacity": "ok"}
    assert parties["bob"] == {"version": "ok", "engine": "ok", "capacity": "warning"}

    p2p("route", "rm", "bob", "carol", "--both", "--domain", "bob")

    def lost() -> bool:
        told = alice.try_("diagnose", "network", "alice", "bob", "carol", "--quick")
        return told.code == 1 and "bob -> carol" in told.err and "alice -> bob" not in told.err

    until("the missing link is found", lost, 30)


def test_lites_come_with_a_token_and_reach_each_other(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "home", "--root", str(tmp_path / "net"))
    root = tmp_path / "net"
    try:
        up = hand("up", "--topology", "center", "--domains", "alice,bob", "--wait", "150")
        assert sum(line.endswith(" s.") and " -> " in line for line in up.lines) == 4, up.out
        text = (root / "alice" / "etc" / "coterie.yaml").read_text()
        assert "join" not in text and "liteDeployToken" in text
        nodes = network.members(root)
        places = {node.domain: network.addresses_of(node).address for node in nodes}
        plane = "kuscia-system"
        hand.apply(plane, *a_server("bob", "echo", ECHO, "alice"), a_pod("alice", "caller"))
        for namespace, name in (("bob", "echo"), ("alice", "caller")):
            hand.pod_ready(plane, namespace, name)

        def answered() -> bool:
            return hand.run_in(plane, "alice", CALL, "http://echo.bob.svc/").startswith("200 ")

        until("alice reaches echo", answered, PATIENCE)
        hand.reaches("alice", "bob")
        hand.reaches("alice", plane)
        assert hand("up", "--wait", "150").code == 0, "nothing to do"
    finally:
        down = hand("down", "--purge", "--grace", "1")
    assert [line.split()[0] for line in down.lines] == ["kuscia-system", "alice", "bob"]
    assert (processes(str(root)), root.exists()) == ([], False)
    assert [listening(address) for address in places.values()] == [[], [], []]
