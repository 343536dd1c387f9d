"""Names inside pods: real processes ask the domain's DNS through their own resolver files, by the C library."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import DOMAIN, Cluster, Node, container, joined_node, pod, until
from kubectl_runner import chosen
from network_kit import free_port, needs_names

from coterie.base import pki
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.model import DnsAnswer, address_record
from coterie.node.config import ports

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
            trial.bind((address, 53 if ports.lowest_port() <= 53 else 0))
            return address


GATEWAY = "100.96.0.1"
"""The node's own address in the pod network."""
OWN_RANGES = {"podCIDR": "10.93.0.0/16", "serviceCIDR": "10.94.0.0/16"}
"""The machine reaches a range of one domain only, and other tests have the default ones."""
OWN_GATEWAY = "10.93.0.1"


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


# ---- Ingress and Dns ----

SERVE = """
import http.server, json, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = json.dumps({"who": sys.argv[1], "pod": socket.gethostname(), "path": self.path, "host": self.headers["Host"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
CALL = """
import json, sys, urllib.error, urllib.request
out = []
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            out.append(json.loads(answer.read()))
    except urllib.error.HTTPError as refused:
        out.append(refused.code)
print(json.dumps(out))
"""


def from_machine(url: str) -> Any:
    """None: nobody answers there."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())
    except urllib.error.URLError:
        return None


@dataclass
class WithIngress:
    cluster: Cluster
    http: str
    https: tuple[str, int]

    def call(self, host: str, path: str, times: int = 1) -> list[Any]:
        """What clients of the machine get: answers, or statuses."""
        found: list[Any] = []
        for _ in range(times):
            request = urllib.request.Request(f"http://{self.http}{path}", headers={"Host": host})
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    found.append(json.loads(answer.read()))
            except urllib.error.HTTPError as refused:
                found.append(refused.code)
        return found

    def from_pod(self, *urls: str) -> list[Any]:
        words = " ".join(urls)
        answers: list[Any] = json.loads(self.cluster.do(f"exec asker -- python3 /ask/call.py {words}"))
        return answers

    def certificate(self, name: str) -> str:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(self.https, 10) as raw,
            context.wrap_socket(raw, server_hostname=name) as link,
        ):
            return ssl.DER_cert_to_PEM_cert(link.getpeercert(binary_form=True) or b"").strip()


@pytest.fixture
def with_ingress(tmp_path: Path, elsewhere: Elsewhere) -> Iterator[WithIngress]:
    address = own_address()
    agent = {"nodeName": "node-n", "address": address, "port": 0, "taint": False}
    external, http, https = (free_port(address) for _ in range(3))
    gateway = {
        "external": {"host": address, "port": external},
        "ingress": {"host": address, "httpPort": http, "httpsPort": https},
    }
    settings = {"mode": "autonomy", "apiServer": {"port": 0}, "agent": agent, "capacity": {"cpu": 16, "memory": "32Gi"}}
    more = {"dns": {"upstream": [elsewhere.place]}, "gateway": gateway, "kusciaAPI": {"enabled": False}}
    more["network"] = OWN_RANGES
    node = Node(tmp_path / "a", "node-n", {**settings, **more}).start()
    cluster = Cluster(node, chosen()[-1], DOMAIN, {"node-n": node})
    try:
        cluster.wait_until_up("node-n")
        until("the domain's namespace has its account", lambda: cluster.try_("get", "sa", "default").rc == 0)
        scripts = {"ask.py": ASK, "call.py": CALL, "serve.py": SERVE}
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ask"}, "data": scripts})
        cluster.apply(scripted("asker"))
        cluster.ready("asker")
        yield WithIngress(cluster, f"{address}:{http}", (address, https))
        assert node.complaints() == []
    finally:
        node.destroy()


def scripted(name: str, script: str = "sleep 1000", app: str = "") -> dict[str, Any]:
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    main = container(
        script=script,
        volumeMounts=[{"name": "ask", "mountPath": "/ask"}],
        ports=[{"name": "web", "containerPort": 8000}],
    )
    volumes = [{"name": "ask", "configMap": {"name": "ask"}}]
    return pod(name, main | ({"readinessProbe": probe} if app else {}), labels={"app": app or name}, volumes=volumes)


def server(name: str, app: str) -> dict[str, Any]:
    return scripted(name, f"exec python3 /ask/serve.py {app}", app)


def web_service(name: str, port: int) -> dict[str, Any]:
    ports = [{"name": "web", "port": port, "targetPort": "web"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports},
    }


def tea(**paths: Any) -> dict[str, Any]:
    listed = {f"/{path}": target for path, target in paths.items()}
    spec = {"host": "tea.example", "paths": listed}
    return {"apiVersion": "coterie.io/v1alpha1", "kind": "Dns", "metadata": {"name": "tea-dns"}, "spec": spec}


def test_c73_one_host_name_maps_paths_to_services_and_g06_from_host_and_container(with_ingress: WithIngress) -> None:
    at, cluster = with_ingress, with_ingress.cluster
    cluster.apply(
        server("green-0", "green"), server("black-0", "black"), web_service("green", 8000), web_service("black", 8001)
    )
    for name in ("green-0", "black-0"):
        cluster.ready(name)
    uid = json.loads(cluster.do("get service black -o json"))["metadata"]["uid"]
    cluster.apply(
        tea(green={"serviceName": "green", "servicePort": 8000}, black={"serviceUID": uid, "servicePort": 8001})
    )
    until("the name is known", lambda: look(cluster, "tea.example")["tea.example"] == [OWN_GATEWAY])
    green = until("it is served", lambda: [each for each in at.call("tea.example", "/green") if each != 404])
    assert (green[0]["who"], green[0]["path"], green[0]["host"]) == ("green", "/", "tea.example")
    inside = at.from_pod(*(f"http://tea.example/{path}" for path in ("green", "black", "red", "")))
    assert [each["who"] for each in inside[:2]] == ["green", "black"] and inside[2:] == [404, 404]
    outside = [at.call("tea.example", f"/{path}")[0] for path in ("green", "black", "red", "")]
    assert outside == inside
    # The Service itself: by its name inside, by its address in both places.
    service_name = f"black.{DOMAIN}.svc.cluster.local"
    address = json.loads(cluster.do("get service black -o json"))["spec"]["clusterIP"]
    assert look(cluster, "black", service_name) == {"black": [address], service_name: [address]}
    assert at.from_pod(f"http://{service_name}:8001/x", f"http://{address}:8001/y")[1]["path"] == "/y"
    if os.getuid() == 0:
        # The machine's table of Services is written apart from that of the pods.
        assert until("the machine reaches it", lambda: from_machine(f"http://{address}:8001/z"))["who"] == "black"
    assert "tea.example" in cluster.do("get dns")
    cluster.do("delete dns tea-dns")
    until("it is gone", lambda: at.call("tea.example", "/green") == [404])
    until("its name too", lambda: look(cluster, "tea.example")["tea.example"] == ["192.0.2.55"])


def test_c74_requests_by_name_reach_all_replicas(with_ingress: WithIngress) -> None:
    at, cluster = with_ingress, with_ingress.cluster
    cluster.apply(*(server(f"web-{number}", "web") for number in range(3)), web_service("web", 80))
    for number in range(3):
        cluster.ready(f"web-{number}")
    cluster.apply(tea(all={"serviceName": "web", "servicePort": 80}))
    until("the name is known", lambda: look(cluster, "tea.example")["tea.example"] == [OWN_GATEWAY])

    def pods() -> set[str]:
        return {
            each["pod"] for each in at.call("tea.example", "/all", 9) if each not in (404, 503)
        }  # 503: the one that ends

    until("all are served", lambda: len(pods()) == 3)
    inside = at.from_pod(*["http://tea.example/all"] * 100)
    outside = at.call("tea.example", "/all", 100)
    for found in (inside, outside):
        counted = Counter(each["pod"] for each in found)
        assert set(counted) == {"web-0", "web-1", "web-2"} and min(counted.values()) >= 20
    cluster.do("delete pod web-0 --wait=false --grace-period=1")
    until("its requests go to the others", lambda: pods() == {"web-1", "web-2"})


def key_pair(name: str) -> tuple[str, str]:
    made = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC))
    return pki.certificate_pem(made.certificate).decode(), pki.key_pem(made.key).decode()


def test_ingress_with_hosts_paths_tls_status_and_events(with_ingress: WithIngress) -> None:
    at, cluster = with_ingress, with_ingress.cluster
    cluster.apply(server("web-0", "web"), server("api-0", "api"), web_service("web", 80), web_service("api", 81))
    for name in ("web-0", "api-0"):
        cluster.ready(name)

    def path(kind: str, text: str, name: str, port: Any) -> dict[str, Any]:
        return {"path": text, "pathType": kind, "backend": {"service": {"name": name, "port": port}}}

    first, second = key_pair("first"), key_pair("second")
    tls_secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shop-tls"}, "type": "kubernetes.io/tls"}
    rules = [
        {
            "host": "shop.example",
            "http": {
                "paths": [
                    path("Prefix", "/", "web", {"number": 80}),
                    path("Prefix", "/api", "api", {"name": "web"}),
                    path("Exact", "/missing", "nobody", {"number": 80}),
                ]
            },
        }
    ]
    spec = {
        "ingressClassName": "coterie",
        "rules": rules,
        "tls": [{"hosts": ["shop.example"], "secretName": "shop-tls"}],
    }
    ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "shop"}, "spec": spec}
    assert "coterie.io/ingress" in cluster.do("get ingressclass coterie")
    cluster.apply(ingress)
    until("it is served", lambda: at.call("shop.example", "/") != [404])
    assert [at.call("shop.example", each)[0]["who"] for each in ("/", "/x", "/api", "/api/v1", "/apiary")] == [
        "web", "web", "api", "api", "web",
    ]  # fmt: skip
    assert at.call("shop.example", "/api/v1?a=b")[0]["path"] == "/api/v1?a=b"
    assert at.call("shop.example", "/missing") == [503] and at.call("other.example", "/") == [404]

    def events() -> str:
        return cluster.do("get events --field-selector involvedObject.kind=Ingress,involvedObject.name=shop")

    until("what is missing is said", lambda: "Service nobody does not exist" in events())
    assert "Secret shop-tls does not exist" in events()
    cluster.apply({**tls_secret, "stringData": {"tls.crt": first[0], "tls.key": first[1]}})
    until("the certificate is shown", lambda: shown(at, "shop.example") == first[0].strip())
    cluster.apply({**tls_secret, "stringData": {"tls.crt": second[0], "tls.key": second[1]}})
    until("the renewed one is shown", lambda: shown(at, "shop.example") == second[0].strip())
    status = json.loads(cluster.do("get ingress shop -o json"))["status"]["loadBalancer"]["ingress"]
    ports = [int(at.http.rpartition(":")[2]), at.https[1]]
    assert [(each["ip"], [port["port"] for port in each["ports"]]) for each in status] == [(at.https[0], ports)]
    assert at.https[0] in cluster.do("get ingress shop")
    # A partner's Service is never a backend, and another class is not ours.
    far = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"}}
    far["spec"] = {"type": "ExternalName", "externalName": "web.bob.svc", "ports": [{"port": 80}]}
    rules[0]["http"]["paths"][2] = path("Exact", "/missing", "far", {"number": 80})  # type: ignore[index]
    cluster.apply(far, ingress)
    until("it is refused", lambda: "only pods can be backends" in events())
    assert at.call("shop.example", "/missing") == [503]
    spec["ingressClassName"] = "other"
    cluster.apply(ingress)
    until("it is no longer served", lambda: at.call("shop.example", "/") == [404])


def shown(at: WithIngress, name: str) -> str:
    try:
        return at.certificate(name)
    except (ssl.SSLError, ConnectionError):
        return ""
