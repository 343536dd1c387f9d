"""Actors with bad code on a real node: each one ends and says why; the node and the other actors go on."""

from __future__ import annotations

import contextlib
import http.client
import shlex
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from e2e_kit import DOMAIN, Cluster, until

from coterie.engines.actor import exit_codes
from coterie.functions.actor_pods import actor_pod, code_config_map, token_secret
from coterie.kube.client import kubeconfig
from coterie.kuscia.api.functions.types import Action

pytestmark = pytest.mark.xdist_group("e2e-autonomy")

CALCULATOR = Path(__file__).parents[2] / "examples" / "functions" / "calculator"
GATEWAY = f"/api/v1/namespaces/{DOMAIN}/services/serverless-gateway:6810/proxy"

GOOD = """
from serverless import Response
import os
def action(req):
    print("called")
    return Response(f"{os.getuid()} {req.param('n') + 1}")
"""
FORKS = """
import os
def action(req):
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
HANGS = """
def action(req):
    while True:
        pass
"""
FILLS_MEMORY = """
def action(req):
    kept = []
    while True:
        kept.append(bytearray(b"x") * (8 << 20))
"""
FILLS_DISK = """
def action(req):
    number = 0
    while True:
        number += 1
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(4 << 20))
"""
PRINTS = """
def action(req):
    while True:
        print("x" * 1000)
"""
IMPORTS = """
import time
while True:
    time.sleep(0.1)
"""
CALL = """
import json, os, socket
line = json.dumps({"id": "c1", "params": {"n": 1}}).encode() + b"\\n"
head = "POST /invoke HTTP/1.1\\r\\nConnection: close\\r\\nAuthorization: Bearer %s\\r\\nContent-Length: %d\\r\\n\\r\\n"
with socket.create_connection(("127.0.0.1", int(os.environ["COTERIE_ACTOR_PORT"]))) as connection:
    connection.sendall((head % (os.environ["COTERIE_ACTOR_TOKEN"], len(line))).encode() + line)
    print(connection.makefile("rb").read().decode() or "no answer")
"""


def actor_objects(name: str, script: str, timeout: int = 1) -> list[dict[str, Any]]:
    """As the controller makes them, with small limits and without their Action."""
    spec = {"script": script, "timeoutSeconds": timeout, "resources": {"memory": "64Mi"}}
    action = msgspec.convert({"metadata": {"name": name, "namespace": ""}, "spec": spec}, Action)
    pod = actor_pod(action, "v1", name)
    pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "24Mi"
    for variable in pod["spec"]["containers"][0]["env"]:
        if variable["name"] == "COTERIE_ACTION_LOAD_TIMEOUT":
            variable["value"] = "2"
    objects = [code_config_map(action, "v1", b""), token_secret(action, f"token of {name}"), pod]
    for each in objects:
        del each["metadata"]["ownerReferences"], each["metadata"]["namespace"]
    return objects


def ended(cluster: Cluster, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Status of the pod, and how its container ended."""
    status = cluster.phase(name, "Failed", 60)["status"]
    containers = status.get("containerStatuses") or [{}]
    return status, containers[0].get("state", {}).get("terminated") or {}


@pytest.mark.timeout(240)
def test_bad_code_harms_its_own_actor_only(autonomy: Cluster) -> None:
    bad = {
        "forks": FORKS, "hangs": HANGS, "memory": FILLS_MEMORY, "disk": FILLS_DISK, "prints": PRINTS, "imports": IMPORTS,
        "syntax": "def action(req)\n",
    }  # fmt: skip
    autonomy.apply(*actor_objects("good", GOOD, 30))
    before = autonomy.ready("good")
    assert call(autonomy, "good").endswith("65532 2")
    for name, script in bad.items():
        autonomy.apply(*actor_objects(name, script, 30 if name in ("memory", "disk") else 1))
    _, state = ended(autonomy, "syntax")
    assert state["exitCode"] == exit_codes.BAD_CODE
    assert state["message"] == "the code could not be loaded: action.py:1: SyntaxError: expected ':'"
    _, state = ended(autonomy, "imports")
    assert state["exitCode"] == exit_codes.LOAD_TIMEOUT and "did not end within 2 s" in state["message"]
    called = ("forks", "hangs", "memory", "disk", "prints")
    for name in called:
        autonomy.ready(name)
    with contextlib.ExitStack() as stack:
        for name in called:
            stack.callback(autonomy.begin(call_command(name)).stop)
        assert call(autonomy, "good").endswith("65532 2")
        ends = {name: ended(autonomy, name) for name in called}
    assert ends["disk"][0]["reason"] == "Evicted"
    assert ends["memory"][1]["reason"] == "OOMKilled"
    for name in ("hangs", "prints"):
        state = ends[name][1]
        assert (state["exitCode"], state["message"]) == (exit_codes.CALL_STUCK, "a call did not end after its deadline")
    assert ends["forks"][1]["exitCode"] != 0
    assert call(autonomy, "good").endswith("65532 2")
    after = autonomy.ready("good")
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert autonomy.ready_nodes() == {"node-a"}
    assert "call=c1 called" in autonomy.logs("good")
    until("the node keeps only a part of what was printed", lambda: len(autonomy.logs("prints")) < 100 << 20)


def call_command(name: str) -> str:
    return f"exec {name} -- python -S -c {shlex.quote(CALL)}"


def call(cluster: Cluster, name: str) -> str:
    answer = cluster.do(call_command(name))
    assert answer.startswith("HTTP/1.1 200"), answer
    return answer.rstrip("\n")


@pytest.fixture
def domain(autonomy_node: Cluster) -> Iterator[Cluster]:
    """Functions are of the namespace of the domain."""
    inside = Cluster(autonomy_node.plane, autonomy_node.kubectl_version, DOMAIN, autonomy_node.nodes)
    yield inside

    def removed() -> bool:
        """What others call can be deleted when these are gone."""
        inside.try_("delete", "triggers,actions", "--all", "--wait=false")
        return inside.do("get actions,pods -o name") == ""

    until("nothing is left", removed, 60)


def answer_of(cluster: Cluster, path: str) -> tuple[int, str]:
    """Of the gateway, through the API."""
    pki = cluster.plane.home / "var" / "certs" / "pki"
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
    at = urlsplit(kubeconfig.read(cluster.plane.kubeconfig).resolve().server)
    connection = http.client.HTTPSConnection(at.hostname or "", at.port, timeout=60, context=context)
    try:
        connection.request("GET", f"{GATEWAY}{path}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def calculated(cluster: Cluster, sign: str) -> tuple[int, str]:
    return answer_of(cluster, f"/calculator?a=2&b=3&sign={quote(sign)}")


@pytest.mark.timeout(400)
def test_calls_of_bad_code_end_with_an_error_and_the_calculator_goes_on(domain: Cluster) -> None:
    domain.do(f"apply -f {CALCULATOR}")
    until("the gateway serves", lambda: calculated(domain, "+") == (200, "5"), 120)
    rows = [calculated(domain, sign) for sign in ("*", ">", "<", "==", "?")]
    assert rows == [(200, "6"), (200, "False"), (200, "True"), (200, "False"), (400, "unknown sign ?")]
    bad = {
        "forks": FORKS, "hangs": HANGS, "memory": FILLS_MEMORY, "disk": FILLS_DISK, "prints": PRINTS,
        "raises": "def action(req): 1/0",
    }  # fmt: skip
    for name, script in bad.items():
        seconds = 20 if name in ("memory", "disk") else 2
        spec = {"script": script, "timeoutSeconds": seconds, "retries": {"limit": 0}, "resources": {"memory": "64Mi"}}
        domain.apply({"apiVersion": "coterie.io/v1alpha1", "kind": "Action", "metadata": {"name": name}, "spec": spec})
    with ThreadPoolExecutor() as pool:
        answers = {name: pool.submit(answer_of, domain, f"/actions/{name}") for name in bad}
        assert calculated(domain, "*") == (200, "6")
        found = {name: answer.result() for name, answer in answers.items()}
    status, text = found.pop("raises")
    assert (status, text) == (500, 'action "raises" failed: ZeroDivisionError: division by zero\n')
    for name, (status, text) in found.items():
        assert status in (502, 504) and name in text, (name, status, text)
    for name, why in (("memory", "OOMKilled: it used more memory than its limit"), ("disk", "Evicted: ")):
        assert found[name][0] == 504 or why in found[name][1], "the caller learns why"
    assert calculated(domain, "+") == (200, "5")
    assert domain.ready_nodes() == {"node-a"}
