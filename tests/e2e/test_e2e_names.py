"""Names inside pods: real processes ask the domain's DNS through their own resolver files, by the C library."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import DOMAIN, Cluster, Node, container, joined_node, pod, until
from kubectl_runner import chosen
from network_kit import needs_names

from coterie.kube.network.dns import wire
from coterie.kube.network.dns.model import DnsAnswer, address_record

pytestmark = [
    pytest.mark.xdist_group("e2e-autonomy"),
    needs_names,
]

ASK = """
import json, socket, sys
def look(name):
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except socket.gaierror as error:
        return [socket.EAI_NONAME == error.errno and "no such name" or str(error)]
print(json.dumps({name: look(name) for name in sys.argv[1:]}))
"""


def own_address() -> str:
    """A loopback address whose port 53 nobody uses."""
    while True:
        address = f"127.77.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial, contextlib.suppress(OSError):
            trial.bind((address, 53))
            return address


GATEWAY = "100.96.0.1"
"""The node's own address in the pod network."""


class Elsewhere:
    """The name server of the rest of the world: every name is 192.0.2.55."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, sender = self._socket.recvfrom(4096)
            if not data:
                return
            query = wire.read_query(data)
            told = (address_record(query.question.name, "192.0.2.55", 60),) if query.question.type == 1 else ()
            self._socket.sendto(wire.write_answer(query, DnsAnswer(answers=told), 1232), sender)

    def close(self) -> None:
        host, port = self.place.split(":")
        self._socket.sendto(b"", (host, int(port)))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()


@pytest.fixture
def autonomy_with_names(tmp_path: Path, elsewhere: Elsewhere) -> Iterator[Cluster]:
    address = own_address()
    agent = {"nodeName": "node-n", "address": address, "port": 0, "taint": False}
    settings = {"mode": "autonomy", "apiServer": {"port": 0}, "agent": agent, "capacity": {"cpu": 16, "memory": "32Gi"}}
    node = Node(tmp_path / "a", "node-n", {**settings, "dns": {"upstream": [elsewhere.place]}}).start()
    cluster = Cluster(node, chosen()[-1], DOMAIN, {"node-n": node})
    try:
        cluster.wait_until_up("node-n")
        yield cluster
        assert node.complaints() == []
    finally:
        node.destroy()


@pytest.fixture
def joined_with_names(tmp_path: Path, elsewhere: Elsewhere) -> Iterator[Cluster]:
    plane = Node(tmp_path / "master", "master", {"mode": "master", "apiServer": {"port": 0}}).start()
    cluster = Cluster(plane, chosen()[-1], DOMAIN)
    try:
        cluster.wait_until_up()
        dns = {"upstream": [elsewhere.place]}
        cluster.nodes["node-n"] = joined_node(plane, tmp_path / "n", "node-n", dns=dns).start()
        cluster.wait_until_up("node-n")
        yield cluster
        assert plane.complaints() == [] and cluster.nodes["node-n"].complaints() == []
    finally:
        for node in (*cluster.nodes.values(), plane):
            node.destroy()


def service(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"clusterIP": "None", "ports": [{"name": "http", "port": 80}], "selector": {"app": name}} | spec
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def look(cluster: Cluster, *names: str) -> dict[str, list[str]]:
    """What the C library inside a pod says of each name."""
    found: dict[str, list[str]] = json.loads(cluster.do(f"exec asker -- python3 /ask/ask.py {' '.join(names)}"))
    return found


def begin(cluster: Cluster) -> None:
    until("the domain's namespace has its account", lambda: cluster.try_("get", "sa", "default").rc == 0)
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ask"}, "data": {"ask.py": ASK}}
    asker = pod(
        "asker",
        container(volumeMounts=[{"name": "ask", "mountPath": "/ask"}]),
        volumes=[{"name": "ask", "configMap": {"name": "ask"}}],
    )
    cluster.apply(script, asker, pod("web", hostname="web-0", subdomain="web"), service("web"))
    for name in ("asker", "web"):
        cluster.ready(name)


def test_pods_find_their_domains_services_by_name(autonomy_with_names: Cluster) -> None:
    cluster = autonomy_with_names
    begin(cluster)
    address = cluster.pod("web")["status"]["podIP"]
    assert cluster.do("exec asker -- cat /etc/resolv.conf").splitlines()[:2] == [
        " ".join(("search", f"{DOMAIN}.svc", *cluster_search(DOMAIN), *searched())),
        f"nameserver {GATEWAY}",
    ]
    until("the service is named", lambda: look(cluster, "web")["web"] == [address])
    names = ["web", "web.svc", f"web.{DOMAIN}.svc", f"WEB.{DOMAIN}.svc", f"web-0.web.{DOMAIN}.svc"]
    assert look(cluster, *names) == {name: [address] for name in names}
    of_node = ["x.bob.svc", "datamesh", "apiserver.master.svc"]
    assert look(cluster, *of_node) == {name: [GATEWAY] for name in of_node}
    assert look(cluster, f"nobody.{DOMAIN}.svc") == {f"nobody.{DOMAIN}.svc": ["no such name"]}
    assert look(cluster, "www.example.com", "nobody") == {"www.example.com": ["192.0.2.55"], "nobody": ["192.0.2.55"]}


def cluster_search(namespace: str) -> list[str]:
    return [f"{namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local"]


def searched() -> list[str]:
    """What the machine's own file adds."""
    lines = Path("/etc/resolv.conf").read_text().splitlines()
    return next((line.split()[1:] for line in reversed(lines) if line.startswith(("search", "domain"))), [])


def test_a_new_service_has_its_name_at_once_and_a_deleted_one_loses_it(joined_with_names: Cluster) -> None:
    cluster = joined_with_names
    begin(cluster)
    address = cluster.pod("web")["status"]["podIP"]
    until("the service is named", lambda: look(cluster, "web")["web"] == [address])
    far: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"}}
    far["spec"] = {"type": "ExternalName", "externalName": "far.example"}
    cluster.apply(service("other", selector={"app": "web"}), far)
    name = f"other.{DOMAIN}.svc"
    until("the new one too", lambda: look(cluster, name)[name] == [address])
    until("and the one elsewhere", lambda: look(cluster, "far")["far"] == ["192.0.2.55"])
    cluster.do("delete service other")
    until("it is gone", lambda: look(cluster, name)[name] == ["no such name"])


REVERSE = "import socket, sys; print(socket.gethostbyaddr(sys.argv[1])[0])"


def test_names_of_all_namespaces_as_in_kubernetes(autonomy_with_names: Cluster) -> None:
    cluster = autonomy_with_names
    begin(cluster)
    shop = cluster.in_namespace("shop")
    own = cluster.pod("web")["status"]["podIP"]
    shop.apply(pod("web", hostname="web-0", subdomain="web", labels={"app": "web"}), service("web"))
    shop.apply(service("far", type="ExternalName", externalName=f"web.{DOMAIN}.svc", clusterIP="", ports=[]))
    shop.ready("web")
    address = shop.pod("web")["status"]["podIP"]
    assert address != own
    full = "web.shop.svc.cluster.local"
    until("the service is named", lambda: look(cluster, full)[full] == [address])
    dashed = address.replace(".", "-")
    names = ["web.shop", "web.shop.svc", full, f"web-0.{full}", f"{dashed}.shop.pod.cluster.local"]
    assert look(cluster, *names) == {name: [address] for name in names}
    assert look(cluster, "web", "far.shop", f"web.{DOMAIN}.svc.cluster.local") == {
        "web": [own],
        "far.shop": [own],
        f"web.{DOMAIN}.svc.cluster.local": [own],
    }
    missing = ["nobody.shop.svc", "web.bob.svc.cluster.local", "100-96-0-250.shop.pod.cluster.local"]
    assert look(cluster, *missing) == {name: ["no such name"] for name in missing}
    assert look(cluster, "web.bob.svc") == {"web.bob.svc": [GATEWAY]}, "another domain's"
    back = cluster.do(f"exec asker -- python3 -c '{REVERSE}' {address}").strip()
    assert back == f"web-0.{full}"
    # Inside the namespace short names are its own.
    resolver = shop.do("exec web -- cat /etc/resolv.conf").splitlines()[0]
    assert resolver == " ".join(("search", *cluster_search("shop"), f"{DOMAIN}.svc", *searched()))
    inside = shop.do("exec web -- python3 -c 'import socket; print(socket.gethostbyname(\"web\"))'").strip()
    assert inside == address
    cluster.do("delete namespace shop --wait=false")
    until("its names are gone", lambda: look(cluster, "web.shop.svc")["web.shop.svc"] != [address])
