"""Two lites of one master on one machine: the machine reaches the Services of both, although they share one range."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs_kit import network, until
from kubectl_runner import chosen

from coterie.base.linux_namespaces import CLONE_NEWNET, setns, unshare

pytestmark = [
    pytest.mark.xdist_group("e2e-autonomy"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs the program ip"),
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's machine has no way to pods"),
]
DOMAINS = ("alice", "bob")
_UPLINK = (
    "link set lo up",
    "link add uplink type veth peer name beyond",
    "addr add 192.0.2.2/24 dev uplink",
    "link set beyond up",
    "link set uplink up",
    "route add default via 192.0.2.1",
)
SAYS_ITS_NAME = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{name}")
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


def objects(domain: str) -> tuple[dict[str, Any], dict[str, Any]]:
    meta = {"name": "web", "namespace": domain}
    command = ["python", "-c", SAYS_ITS_NAME.format(name=domain)]
    container = {"name": "main", "image": "coterie/python:latest", "command": command}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "labels": {"app": "web"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    return pod, {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def fetched(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=2) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, TimeoutError) as problem:
        return str(problem)


@pytest.fixture
def own_machine() -> Iterator[None]:
    """A network namespace for this thread and what it starts: domains of other tests, which run at the same time, have the
    same ranges of addresses, and a machine has one route to each."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    unshare(CLONE_NEWNET)
    try:
        for words in _UPLINK:
            subprocess.run(["ip", *words.split()], check=True)
        yield
    finally:
        setns(before, CLONE_NEWNET)
        os.close(before)


@pytest.mark.usefixtures("own_machine")
def test_the_machine_reaches_services_of_both_lites(tmp_path: Path) -> None:
    with network(tmp_path / "net", "center", *DOMAINS, kubectl=chosen()[-1]) as net:
        (plane,) = net.planes
        plane.apply(*(each for domain in DOMAINS for each in objects(domain)))
        addresses = {
            domain: plane.get(f"/api/v1/namespaces/{domain}/services/web")["spec"]["clusterIP"] for domain in DOMAINS
        }
        for domain, address in addresses.items():
            until(f"the Service of {domain} answers", lambda a=address, d=domain: fetched(a) == d)
        plane.kubectl("delete", "service", "-n", "bob", "web")
        until("it is gone", lambda: fetched(addresses["bob"]) != "bob")
        assert fetched(addresses["alice"]) == "alice"
