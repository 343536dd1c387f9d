"""Services on a whole node, with kubectl: virtual addresses from pods, endpoints that come and go, ports on the machine.

Rows of the acceptance list are in the names of the tests.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, container, pod, until

from root_kit import IS_ROOT

pytestmark = pytest.mark.xdist_group("e2e-services")
NODE = "127.0.0.1"

SERVER = r"""
exec python3 - <<'END'
import os, random, socket, threading, time
ports = [int(p) for p in os.environ.get("PORTS", "8000").split(",")]
name = os.environ.get("NAME") or socket.gethostname()
life = os.environ.get("LIFE")
if life:
    low, high = map(float, life.split("-"))
    threading.Timer(random.uniform(low, high), lambda: os._exit(1)).start()
def serve(port):
    listener = socket.create_server(("", port), backlog=64)
    if port == ports[0]:
        first.append(listener)
    while True:
        try:
            made, _ = listener.accept()
        except OSError:
            return
        made.sendall(name.encode())
        made.close()
def echo():
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("", 9000))
    while True:
        data, peer = listener.recvfrom(2000)
        listener.sendto(name.encode() + b" " + data, peer)
first = []
for port in ports:
    threading.Thread(target=serve, args=(port,), daemon=True).start()
threading.Thread(target=echo, daemon=True).start()
control = socket.create_server(("", 7000))
while True:
    made, _ = control.accept()
    order = made.recv(10)
    if order == b"die":
        os._exit(1)
    if order == b"hang":
        first[0].shutdown(socket.SHUT_RDWR)
        first[0].close()
    made.close()
END
"""
"""Says its name on 8000 and, as datagrams, on 9000; on 7000 it is told to end or to stop answering."""

CALLS = r"""
exec python3 - <<'END'
import os, socket, sys, time
while True:
    began = time.time()
    try:
        with socket.create_connection((os.environ["TARGET"], 80), 1) as made:
            said = made.recv(100).decode()
    except OSError as problem:
        said = ""
    print(f"{began:.2f} {said or '-'}", flush=True)
    time.sleep(0.2)
END
"""
"""Calls a Service five times a second."""

ASK = (
    "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); print(s.recv(100).decode())"
)
ASK_OFTEN = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 80), 5) as made:
        print(made.recv(100).decode())
"""
TELL = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 5).sendall(sys.argv[2].encode())"
PROBE = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 1}


@pytest.fixture(scope="module")
def domain_node(tmp_path_factory: pytest.TempPathFactory, host_path: Path) -> Iterator[Cluster]:
    agent = {"nodeName": "node-a", "port": 0, "hostPaths": [str(host_path)]}
    more = {"apiServer": {"port": 0}, "capacity": {"cpu": 16, "memory": "32Gi"}, "dns": {"enabled": True}}
    node = Node(tmp_path_factory.mktemp("services"), "node-a", {"mode": "autonomy", "agent": agent, **more}).start()
    cluster = Cluster(node, kubectl_runner.chosen()[-1], nodes={"node-a": node})
    try:
        cluster.wait_until_up("node-a")
        yield cluster
        assert node.complaints() == []
    finally:
        node.destroy()


_numbers = count(1)


@pytest.fixture
def domain(domain_node: Cluster) -> Iterator[Cluster]:
    inside = domain_node.in_namespace(f"services-{next(_numbers)}")
    yield inside
    inside.do(f"delete namespace {inside.namespace} --wait=false")


def server(name: str, app: str = "web", environment: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    listed = [{"name": key, "value": value} for key, value in (environment or {}).items()]
    ports = spec.pop("ports", [])
    probe = spec.pop("probe", PROBE)
    main = container(script=SERVER, env=listed, readinessProbe=probe, ports=ports)
    return pod(name, main, labels={"app": app}, **spec)


def service(name: str = "web", ports: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    chosen = ports or [{"port": 80, "targetPort": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": chosen, **spec},
    }


def address_of(cluster: Cluster, name: str = "web") -> str:
    return str(cluster.json(f"get service {name}")["spec"]["clusterIP"])


def ask(cluster: Cluster, caller: str, host: str, port: int = 80) -> str:
    done = cluster.try_("exec", caller, "--", "python3", "-c", ASK, host, str(port))
    return done.out.strip() if done.rc == 0 else ""


def ask_often(cluster: Cluster, caller: str, host: str, times: int) -> Counter[str]:
    done = cluster.try_("exec", caller, "--", "python3", "-c", ASK_OFTEN, host, str(times))
    assert done.rc == 0, done
    return Counter(done.out.split())


def tell(cluster: Cluster, caller: str, name: str, order: str) -> float:
    address = cluster.pod(name)["status"]["podIP"]
    began = time.time()
    assert cluster.try_("exec", caller, "--", "python3", "-c", TELL, address, order).rc == 0
    return began


def calls(cluster: Cluster, name: str = "caller") -> list[tuple[float, str]]:
    found = [line.split() for line in cluster.logs(name).splitlines() if line.count(" ") == 1]
    return [(float(when), "" if said == "-" else said) for when, said in found]


def begin(cluster: Cluster, *servers: dict[str, Any], **spec: Any) -> str:
    """A Service with its pods, and a pod that calls it five times a second."""
    cluster.apply(service(**spec), *servers, pod("shell"))
    address = address_of(cluster)
    for each in servers:
        cluster.ready(each["metadata"]["name"])
    cluster.ready("shell")
    until("the Service answers", lambda: ask(cluster, "shell", address))
    env = [{"name": "TARGET", "value": address}]
    cluster.apply(pod("caller", container(script=CALLS, env=env)))
    cluster.ready("caller")
    until("it is called", lambda: any(said for _, said in calls(cluster)))
    return address


def last_failure_after(cluster: Cluster, moment: float, quiet: float = 3.0) -> float:
    """Seconds from `moment` to the last call that failed, once none did for a while."""

    def look() -> list[float] | None:
        found = [(when, said) for when, said in calls(cluster) if when >= moment]
        failed = [when - moment for when, said in found if not said]
        if not found or found[-1][0] - moment - max(failed, default=0.0) < quiet:
            return None
        return [max(failed, default=0.0)]

    [seconds] = until("calls succeed again", look)
    return float(seconds)


def test_c_51_a_dead_pod_gets_no_more_connections(domain: Cluster) -> None:
    begin(domain, server("one", restartPolicy="Never"), server("two"), server("three"))
    moment = tell(domain, "shell", "one", "die")
    assert last_failure_after(domain, moment) <= 10
    moment = time.time()
    domain.do("delete pod two")
    assert last_failure_after(domain, moment) <= 10
    assert {said for when, said in calls(domain) if when > time.time() - 1.5} == {"three"}


def test_c_52_a_shorter_period_finds_a_hung_pod_sooner(domain: Cluster) -> None:
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 2}
    begin(domain, server("one", probe=probe), server("two", probe=probe))
    moment = tell(domain, "shell", "one", "hang")
    domain.ready("one", "False")
    assert last_failure_after(domain, moment) <= 4


def test_c_53_a_restarted_pod_is_back(domain: Cluster) -> None:
    begin(domain, server("one"), server("two"))
    moment = tell(domain, "shell", "one", "die")
    until("it was restarted", lambda: domain.pod("one")["status"]["containerStatuses"][0]["restartCount"])
    domain.ready("one")
    again = time.time()
    until("both answer", lambda: {said for when, said in calls(domain) if when >= again} >= {"one", "two"})
    assert last_failure_after(domain, moment) <= 10


def ruleset(cluster: Cluster) -> str:
    [path] = cluster.plane.root.rglob("runp/network.json")
    facts = json.loads(path.read_text())
    holder = f"/proc/{facts['holder']}/ns/net"
    command = ["nsenter", f"--net={holder}", "nft", "--stateless", "list", "table", "ip", "coterie_services"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_nft = pytest.mark.skipif(shutil.which("nft") is None or not IS_ROOT, reason="needs root and nft")


@needs_nft
def test_c_54_nothing_changes_while_idle(domain: Cluster) -> None:
    begin(domain, server("one"), server("two"))
    before = ruleset(domain)
    until_then = time.time() + 20
    while time.time() < until_then:
        assert ruleset(domain) == before
        time.sleep(2)
    assert all(said for when, said in calls(domain) if when > until_then - 15)


@needs_nft
def test_c_71_a_service_leaves_no_rules_behind(domain: Cluster) -> None:
    domain.apply(server("one"), pod("shell"))
    for name in ("one", "shell"):
        domain.ready(name)
    before = ruleset(domain)
    domain.apply(service())
    address = address_of(domain)
    until("it is in the rules", lambda: f"{address} . tcp . 80" in ruleset(domain))
    domain.do("delete service web")
    until("its rules are gone", lambda: ruleset(domain) == before)
    assert ask(domain, "shell", address) == ""


def test_c_72_a_service_balances_over_its_pods(domain: Cluster) -> None:
    names = ("one", "two", "three")
    domain.apply(service(), *(server(name) for name in names), pod("shell"))
    for name in (*names, "shell"):
        domain.ready(name)
    address = address_of(domain)
    until("all three answer", lambda: len(ask_often(domain, "shell", address, 30)) == 3)
    found = ask_often(domain, "shell", address, 300)
    assert all(70 <= found[name] <= 130 for name in names), found


def fetched(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), 5) as made:
        made.sendall(b"GET /content HTTP/1.0\r\n\r\n")
        found = b""
        while data := made.recv(65536):
            found += data
    return found


def free_port() -> int:
    with socket.create_server((NODE, 0)) as made:
        return int(made.getsockname()[1])


def test_g_04_a_host_port_serves_a_volume(domain: Cluster, host_path: Path) -> None:
    place = host_path / "served"
    place.mkdir(exist_ok=True)
    (place / "content").write_text("of the volume")
    port = free_port()
    main = container(
        script="cd /data && exec python3 -m http.server 8000",
        ports=[{"containerPort": 8000, "hostPort": port}],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
        readinessProbe=PROBE,
    )
    volume = {"name": "data", "hostPath": {"path": str(place)}}
    domain.apply(pod("web", main, volumes=[volume]))
    domain.ready("web")
    assert b"of the volume" in fetched(NODE, port)
    domain.do("delete pod web")

    def closed() -> bool:
        try:
            socket.create_connection((NODE, port), 5).close()
        except ConnectionRefusedError:
            return True
        return False

    until("the port is closed", closed)


def test_a_host_port_that_is_taken_keeps_the_pod_waiting(domain: Cluster) -> None:
    with socket.create_server((NODE, 0)) as taken:
        port = taken.getsockname()[1]
        domain.apply(server("web", ports=[{"containerPort": 8000, "hostPort": port}]))
        until(
            "an event says why",
            lambda: f"host port {NODE}:{port}/TCP cannot be opened" in domain.do("get events"),
        )
        assert domain.pod("web")["status"]["phase"] == "Pending"
    domain.ready("web")
    with socket.create_connection((NODE, port), 5) as made:
        assert made.recv(100) == b"web"


def test_g_06_service_and_name_from_inside_containers(domain: Cluster) -> None:
    domain.apply(service(), server("one"), pod("shell"))
    for name in ("one", "shell"):
        domain.ready(name)
    address = address_of(domain)
    until("by address", lambda: ask(domain, "shell", address) == "one")
    for name in ("web", f"web.{domain.namespace}.svc", f"web.{domain.namespace}.svc.cluster.local"):
        assert ask(domain, "shell", name) == "one", name
    # Also an endpoint by way of its own Service.
    assert ask(domain, "one", address) == "one"


def test_g_08_a_new_service_after_a_restart_gets_a_fresh_address(domain: Cluster) -> None:
    domain.apply(service(), service("other"), server("one"), pod("shell"))
    for name in ("one", "shell"):
        domain.ready(name)
    known = {address_of(domain), address_of(domain, "other")}
    until("it answers", lambda: ask(domain, "shell", address_of(domain)) == "one")
    domain.plane.stop()
    domain.plane.start()
    domain.wait_until_up("node-a")
    domain.apply(service("new"))
    fresh = address_of(domain, "new")
    assert fresh not in known and {address_of(domain), address_of(domain, "other")} == known
    for address in (*known, fresh):
        until("all answer", lambda address=address: ask(domain, "shell", address) == "one")


def test_g_09_named_target_ports_of_two_pods(domain: Cluster) -> None:
    ports = [
        {"name": "a", "port": 80, "targetPort": "alpha"},
        {"name": "b", "port": 81, "targetPort": "beta"},
    ]
    probe = {"tcpSocket": {"port": 7000}, "periodSeconds": 1}
    one = server("one", environment={"PORTS": "8100"}, ports=[{"name": "alpha", "containerPort": 8100}], probe=probe)
    two = server("two", environment={"PORTS": "8200"}, ports=[{"name": "beta", "containerPort": 8200}], probe=probe)
    domain.apply(service(ports=ports), one, two, pod("shell"))
    for name in ("one", "two", "shell"):
        domain.ready(name)
    address = address_of(domain)
    for port, name in ((80, "one"), (81, "two")):
        until(f"{port} answers", lambda port=port, name=name: ask(domain, "shell", address, port) == name)
        for _ in range(3):
            assert ask(domain, "shell", address, port) == name


def test_g_10_servers_that_keep_dying_are_followed(domain: Cluster) -> None:
    replicas = 4
    template = server("x", environment={"LIFE": "8-30"})
    domain.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
            },
        }
    )
    until("all are ready", lambda: domain.json("get rs web")["status"].get("readyReplicas") == replicas)
    begin(domain)
    since = time.time()
    until("each has died once", lambda: time.time() > since + 35, 60)  # none lives longer than 30 s
    found = [said for when, said in calls(domain) if when >= since]
    assert sum(1 for said in found if said) > 0.8 * len(found), Counter(found)
    assert len(set(found) - {""}) == replicas
    restarts = [each["status"]["containerStatuses"][0]["restartCount"] for each in domain.pods("app=web")]
    assert sum(restarts) >= replicas / 2 and domain.json("get rs web")["status"]["replicas"] == replicas


def test_node_ports_of_tcp_and_udp(domain: Cluster) -> None:
    ports = [
        {"name": "tcp", "port": 80, "targetPort": 8000},
        {"name": "udp", "port": 90, "targetPort": 9000, "protocol": "UDP"},
    ]
    domain.apply(service(ports=ports, type="NodePort"), server("one"), server("two"))
    for name in ("one", "two"):
        domain.ready(name)
    tcp, udp = (each["nodePort"] for each in domain.json("get service web")["spec"]["ports"])

    def said() -> set[bytes]:
        found = set()
        for _ in range(20):
            with socket.create_connection((NODE, tcp), 5) as made:
                found.add(made.recv(100))
        return found

    until("both answer", lambda: said() == {b"one", b"two"})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        for _ in range(3):
            client.sendto(b"question", (NODE, udp))
            assert client.recv(100) in (b"one question", b"two question")
    domain.do("delete service web")

    def closed() -> bool:
        try:
            socket.create_connection((NODE, tcp), 5).close()
        except ConnectionRefusedError:
            return True
        return False

    until("the port is closed", closed)
