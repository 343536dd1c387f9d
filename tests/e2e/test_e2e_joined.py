"""A domain of two machines: engines on the second one use the gateway, data mesh and certificates of their domain, as on the first.

m1  alice, control plane and node     m2  alice, joined     m4  bob, on another subnet
"""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import CROSS_DOMAIN, app_image, job, task
from machines_kit import Bench, BenchMachine, bench_problem, until

from coterie.cli import psi_environment
from coterie.cli.app import App

pytestmark = [
    pytest.mark.xdist_group("e2e-joined"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(bench_problem()), reason=bench_problem()),
]
AB = ("alice", "bob")
SECONDS = 90.0
INGRESS_PORT = 8088
_numbers = count(1)
_JOBS = "kusciajobs.kuscia.secretflow"
_START = """
import os, pathlib
from coterie.base.paths import DomainPaths
from coterie.cli import background
background.start(DomainPaths.of(pathlib.Path(os.environ["COTERIE_ROOT"]), "bob").prepare(), os.environ)
"""


_CALL = """
import ssl, urllib.error, urllib.request
context = ssl.create_default_context(cafile="kuscia/certs/ca.crt")
context.load_cert_chain("kuscia/certs/client.crt", "kuscia/certs/client.key")
for url in ("https://datamesh:8070/healthZ", "https://confmanager:8060/", "http://gateway/"):
    try:
        print(urllib.request.urlopen(url, timeout=10, context=context if url.startswith("https") else None).status)
    except urllib.error.HTTPError as answer:
        print(answer.code)
    except OSError as problem:
        print(problem)
"""
"""An engine calls what its domain has for it."""


class Joined(Bench):
    """With the partner."""

    bob: Bob


class Bob:
    """The partner, whose domain is one machine."""

    def __init__(self, machine: BenchMachine, kubectl: Path) -> None:
        self.machine, self._kubectl = machine, kubectl
        file = machine.root / "bob" / "etc" / "coterie.yaml"
        file.parent.mkdir(parents=True)
        document = {
            "mode": "autonomy",
            "domainID": "bob",
            "root": str(machine.root),
            "agent": {"nodeName": "bob-1", "address": machine.address},
            "gateway": {"external": {"host": "0.0.0.0"}},
        }
        file.write_text(json.dumps(document))
        machine.do(sys.executable, "-c", _START)
        until("bob's API answers", lambda: machine.try_coterie("status").code == 0, SECONDS)

    def kubectl(self, line: str, stdin: str = "") -> str:
        config = f"KUBECONFIG={self.machine.root / 'bob' / 'kubeconfig'}"
        return self.machine.do("env", config, str(self._kubectl), *shlex.split(line), stdin=stdin)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    folder = tmp_path_factory.mktemp("joined")
    kubectl = kubectl_runner.found()[kubectl_runner.chosen()[-1]]
    made = Joined(folder, kubectl)
    try:
        ingress = {"host": "0.0.0.0", "httpPort": INGRESS_PORT}
        made.start_control_plane({"gateway": {"external": {"host": "0.0.0.0"}, "ingress": ingress}})
        made.join("m2")
        bob = Bob(made["m4"], kubectl)
        _befriend(made["m1"], bob.machine)
        made.bob = bob
        made.kubectl("cordon m1")
        yield made
    finally:
        made.close()


def _befriend(alice: BenchMachine, bob: BenchMachine) -> None:
    """As the README has it for two organisations."""
    certificates = {"alice": alice.coterie("domain", "cert"), "bob": bob.coterie("domain", "cert")}
    for here, own, other, there in ((alice, "alice", "bob", bob), (bob, "bob", "alice", alice)):
        file = here.home / f"{other}.crt"
        file.write_text(certificates[other])
        here.coterie("domain", "add", other, "--partner", "--cert", str(file))
        here.coterie("policy", "allow", other)
        here.coterie("route", "add", own, other, "--endpoint", f"https://{there.address}:1080", "--both")
    for here, own, other in ((alice, "alice", "bob"), (bob, "bob", "alice")):
        until(f"{own} reaches {other}", lambda h=here, o=own, p=other: h.try_coterie("route", "check", o, p).code == 0)


def submit(bench: Bench, image: str, given: Any, *parties: str) -> str:
    name = f"joined-{next(_numbers)}"
    bench.apply(job(name, "alice", task("a", *parties, image=image, input=json.dumps(given))))
    return name


def phase(bench: Bench, name: str) -> dict[str, Any]:
    return bench.json(f"get {_JOBS} {name} -n {CROSS_DOMAIN}").get("status") or {}


def ended(bench: Bench, name: str, expected: str = "Succeeded") -> dict[str, Any]:
    found: dict[str, Any] = until(
        f"{name} is over",
        lambda: status if (status := phase(bench, name)).get("phase") in ("Succeeded", "Failed") else {},
        SECONDS,
    )
    assert found["phase"] == expected, explain(bench)
    return found


def explain(bench: Bench) -> str:
    words = ("get kt -A -o yaml", "get events -n alice", "get pods -n alice -o yaml")
    logs = [each.log(60) for each in (bench["m1"], bench["m2"])]
    return "\n".join([*(bench.try_kubectl(*line.split()).out[-6000:] for line in words), *logs])


def running_pod(bench: Bench, task_name: str) -> str:
    """Alice's pod of a task, when it runs."""

    def look() -> str:
        for pod in bench.json("get pods -n alice")["items"]:
            if task_name in pod["metadata"]["name"] and pod["status"].get("phase") == "Running":
                return str(pod["metadata"]["name"])
        return ""

    return str(until(f"a pod of {task_name} runs", look, SECONDS))


def called(bench: Bench, pod: str) -> list[str]:
    return bench.kubectl(f"exec -n alice {pod} -- python -c {shlex.quote(_CALL)}").splitlines()


def places(bench: Bench, name: str) -> set[str]:
    """The nodes on which alice's pods of a job were."""
    tasks = bench.json(f"get kt -n {CROSS_DOMAIN}")["items"]
    pods = [
        pod
        for each in tasks
        if each["metadata"]["name"].startswith(f"{name}-")
        for pod in (each["status"].get("podStatuses") or {}).values()
    ]
    return {pod["nodeName"] for pod in pods if pod["namespace"] == "alice"}


def test_a_task_runs_on_the_machine_that_joined(bench: Joined) -> None:
    """Both parties speak with each other through real gateways, and report their progress."""
    name = submit(bench, "sample", {"mode": "slow", "seconds": 30}, *AB)
    pod = running_pod(bench, name)
    assert bench.kubectl(f"exec -n alice {pod} -- cat kuscia/task-config.conf").startswith("{")
    bench.kubectl(f"logs -n alice {pod}")
    mesh, conf_manager, gateway = called(bench, pod)
    assert (mesh, gateway) == ("200", "403"), "an engine calls its peers through the gateway, and nothing else"
    assert conf_manager in ("401", "404", "405"), "ConfManager answers engines of the domain's own tasks"
    until("progress is known", lambda: '"progress": ' in bench.kubectl(f"get kt -n {CROSS_DOMAIN} -o json"), SECONDS)
    ended(bench, name)
    assert places(bench, name) == {"m2"}


def test_logs_of_a_job_are_found_on_all_machines_when_its_pods_are_gone(bench: Joined) -> None:
    name = submit(bench, "sample", {}, *AB)
    ended(bench, name)
    until("the pod is gone", lambda: name not in bench.kubectl("get pods -n alice -o name"), SECONDS)

    def found() -> list[dict[str, Any]]:
        text = bench["m1"].coterie("job", "logs", name, "--source", "all", "-o", "json")
        lines = [json.loads(line) for line in text.splitlines()]
        return lines if {"engine", "gateway"} <= {line["source"] for line in lines} else []

    lines = until("Envoy has written its lines", found, SECONDS)
    places_of = {(line["source"], line.get("node", "")) for line in lines}
    assert {("engine", "m2"), ("gateway", "m1"), ("controller", ""), ("scheduler", "")} <= places_of
    assert {line.get("party", "") for line in lines} == {"alice", ""}, "bob's logs are bob's"
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    spoken = bench["m1"].coterie("job", "logs", name, "--grep", "alice spoke with b.b", "--no-prefix")
    assert spoken.strip().endswith("alice spoke with bob")
    assert "alice spoke with bob" in bench["m1"].coterie("job", "logs", name), "without a query too"


@pytest.mark.skipif(
    not psi_environment.installed(psi_environment.directory(App.standard())) or not shutil.which("sort"),
    reason="the environment of the PSI engine is not there: make psi",
)
def test_an_engine_there_reads_and_writes_through_the_data_mesh(bench: Joined) -> None:
    machines = {"alice": bench["m1"], "bob": bench["m4"]}
    for machine in (*machines.values(), bench["m2"]):
        machine.do(
            "env",
            f"COTERIE_TOOLS={psi_environment.directory(App.standard()).parent}",
            sys.executable,
            "-m",
            "coterie",
            "engine",
            "add",
            "psi",
        )
    rows = {"alice": range(300), "bob": range(200, 500)}
    for party, machine in machines.items():
        table = machine.home / f"{party}.csv"
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([["id"], *([f"k{number}"] for number in rows[party])])
        machine.coterie("data", "add", str(table))
    machines["bob"].coterie("data", "grant", "bob", "alice")
    given = {
        "inputs": {party: party for party in AB},
        "keys": {party: ["id"] for party in AB},
        "outputs": {party: f"out-{party}" for party in AB},
    }
    name = submit(bench, "psi", given, *AB)
    ended(bench, name)
    assert places(bench, name) == {"m2"}
    found = {line.strip() for line in (bench["m1"].root / "alice/var/storage/data/out-alice.csv").read_text().split()}
    assert found == {"id", *(f"k{number}" for number in range(200, 300))}


def test_what_needs_the_domains_keys_runs_where_they_are(bench: Joined) -> None:
    image = app_image("with-token", "test -s task.conf")
    image["spec"]["configTemplates"] = {"task.conf": "{{.KUSCIA_API_TOKEN}}"}
    bench.apply(image)
    bench.kubectl("uncordon m1")
    try:
        names = [submit(bench, "with-token", {}, "alice") for _ in range(3)]
        for name in names:
            ended(bench, name)
            assert places(bench, name) == {"m1"}
    finally:
        bench.kubectl("cordon m1")


def test_a_partners_task_runs_there(bench: Joined) -> None:
    name = f"joined-{next(_numbers)}"
    body = job(name, "bob", task("a", *AB, image="sample", input=json.dumps({"mode": "slow", "seconds": 20})))
    bench.bob.kubectl("apply -f -", stdin=json.dumps(body))
    mesh, conf_manager, _ = called(bench, running_pod(bench, name))
    assert mesh == "200"
    assert "refused" in conf_manager or "reset" in conf_manager, "ConfManager is not for partners' tasks"
    ended(bench, name)
    assert places(bench, name) == {"m2"}


def test_an_engine_there_survives_the_control_plane(bench: Joined) -> None:
    name = submit(bench, "sample", {"mode": "slow", "seconds": 20}, *AB)
    running_pod(bench, name)
    bench["m1"].kill_node()
    bench.start_node("m1")
    until("the API answers again", lambda: bench.try_kubectl("get", "--raw", "/readyz").code == 0, SECONDS)
    ended(bench, name)


def test_tasks_of_one_party_spread_over_its_machines(bench: Joined) -> None:
    bench.kubectl("uncordon m1")
    try:
        names = [submit(bench, "sample", {"mode": "slow", "seconds": 3}, *AB) for _ in range(4)]
        for name in names:
            ended(bench, name)
    finally:
        bench.kubectl("cordon m1")
    assert set().union(*(places(bench, name) for name in names)) == {"m1", "m2"}


def test_an_ordinary_pod_there_uses_the_gateway_too(bench: Joined) -> None:
    script = "import urllib.request as u; print(u.urlopen('http://reporter.alice.svc/', timeout=10).status)"
    container = {"name": "main", "image": "coterie/python:latest", "command": ["python", "-c", script]}
    spec = {"restartPolicy": "Never", "nodeName": "m2", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ordinary", "namespace": "alice"}, "spec": spec}
    bench.apply(body)
    until(
        "it has ended",
        lambda: bench.json("get pod -n alice ordinary")["status"].get("phase") in ("Succeeded", "Failed"),
        SECONDS,
    )
    assert "HTTP Error 404" in bench.kubectl("logs -n alice ordinary"), (
        "the reporter's answer, not the gateway's refusal"
    )


def test_an_ingress_leads_to_a_pod_there(bench: Joined) -> None:
    command = ["python", "-c", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"]
    container = {"name": "main", "image": "coterie/python:latest", "command": command}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "shop", "namespace": "alice", "labels": {"app": "shop"}},
        "spec": {"nodeName": "m2", "containers": [container], "terminationGracePeriodSeconds": 1},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop", "namespace": "alice"},
        "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    backend = {"service": {"name": "shop", "port": {"number": 80}}}
    rule = {"host": "shop.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "shop", "namespace": "alice"},
        "spec": {"ingressClassName": "coterie", "rules": [rule]},
    }
    bench.apply(body, service, ingress)
    url = f"http://{bench['m1'].address}:{INGRESS_PORT}/"
    words = ("curl", "-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "-H")

    def status(host: str) -> str:
        return bench["m4"].run(*words, f"Host: {host}", url).out

    until("the pod on m2 answers", lambda: status("shop.example") == "200", SECONDS)
    assert status("other.example") == "404"
    (point,) = bench.json("get ingress -n alice shop")["status"]["loadBalancer"]["ingress"]
    assert point["ip"] == bench["m1"].address
