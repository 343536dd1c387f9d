"""A lite's domain of two machines under a master: the second one reaches its control plane through the first one's gateway.

m1  master     m2  bob, a lite that registered     m5  bob, joined at m2, on another subnet     m4  carol, another lite
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
import yaml
from jobs_kit import CROSS_DOMAIN, job, task
from machines_kit import Bench, BenchMachine, Done, bench_problem, until

pytestmark = [
    pytest.mark.xdist_group("e2e-lite-machines"),
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(bench_problem()), reason=bench_problem()),
]
SECONDS = 90.0
PARTIES = ("bob", "carol")
INGRESS_PORT = 8088
_JOBS = "kusciajobs.kuscia.secretflow"
_numbers = count(1)
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
_REQUEST = """
import json, ssl, sys, tempfile, base64, urllib.error, urllib.request, yaml
document = yaml.safe_load(open(sys.argv[1]))
decoded = {key: base64.b64decode(document[key]) for key in ("ca", "certificate", "key")}
with tempfile.NamedTemporaryFile() as pair:
    pair.write(decoded["key"] + decoded["certificate"]); pair.flush()
    context = ssl.create_default_context(cadata=decoded["ca"].decode())
    context.load_cert_chain(pair.name)
    if len(sys.argv) > 3:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
server = sys.argv[3] if len(sys.argv) > 3 else document["server"]
headers = {"Impersonate-User": "system:admin", "Impersonate-Group": "system:masters", "Authorization": "Bearer x"}
for path in json.loads(sys.argv[2]):
    try:
        request = urllib.request.Request(server + path, headers=headers)
        print(urllib.request.urlopen(request, timeout=10, context=context).status)
    except urllib.error.HTTPError as answer:
        print(answer.code)
    except OSError as problem:
        print("refused", problem)
"""
"""Somebody who has a join file asks the API: with the headers of somebody who wants to be more."""


SAYS_ITS_NAME = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{name}")
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


class LiteBench(Bench):
    def start_lite(self, domain: str, machine: BenchMachine, **more: Any) -> None:
        center = {"authCenter": {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}}
        kind = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain"}
        self.apply({**kind, "metadata": {"name": domain}, "spec": center})
        document = {
            "mode": "lite",
            "domainID": domain,
            "root": str(machine.root),
            "masterEndpoint": f"https://{self['m1'].address}:1080",
            "liteDeployToken": until(f"{domain} has a token", lambda: self._token(domain)),
            "agent": {"nodeName": machine.name, "address": machine.address},
            "gateway": {"external": {"host": "0.0.0.0"}, "ingress": {"host": "0.0.0.0", "httpPort": INGRESS_PORT}},
            **more,
        }
        file = machine.root / domain / "etc" / "coterie.yaml"
        file.parent.mkdir(parents=True)
        file.touch(0o600)
        file.write_text(json.dumps(document))
        self.start_process(domain, machine)
        until(f"{machine.name} is ready", lambda: machine.name in self.ready_nodes(), SECONDS)

    def _token(self, domain: str) -> str:
        found = self.try_kubectl("get", "domain", domain, "-o", "json").out
        for each in (json.loads(found or "{}").get("status") or {}).get("deployTokenStatuses") or ():
            if each["state"] == "unused":
                return str(each["token"])
        return ""

    @staticmethod
    def start_process(domain: str, machine: BenchMachine) -> None:
        script = (
            "import os, pathlib; from coterie.base.paths import DomainPaths; from coterie.cli import background; "
            f"paths = DomainPaths.of(pathlib.Path({str(machine.root)!r}), {domain!r}).prepare(); "
            "background.start(paths, os.environ)"
        )
        machine.do(sys.executable, "-c", script)

    def node_log(self, domain: str, name: str, lines: int = 60) -> str:
        file = self[name].root / domain / "var" / "logs" / "coterie.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteBench]:
    kubectl = kubectl_runner.found()[kubectl_runner.chosen()[-1]]
    made = LiteBench(tmp_path_factory.mktemp("lites"), kubectl)
    try:
        made.start_control_plane(
            {"gateway": {"external": {"host": "0.0.0.0"}}, "controllers": {"profile": "quick"}}, mode="master"
        )
        made.start_lite("bob", made["m2"], apiServer={"host": "0.0.0.0"})
        made.start_lite("carol", made["m4"])
        for one, other, there in (("bob", "carol", "m4"), ("carol", "bob", "m2")):
            made["m1"].coterie("route", "add", one, other, "--endpoint", f"https://{made[there].address}:1080")
        file = made["m2"].coterie("node", "add", "m5", "--address", made["m5"].address, "-o", "-")
        join_file(made).touch(0o600)
        join_file(made).write_text(file)
        made["m5"].coterie("node", "join", str(join_file(made)))
        yield made
    finally:
        made.close()


def join_file(bench: Bench) -> Path:
    return bench["m5"].home / "m5.join"


def submit(bench: Bench, given: Any, *parties: str) -> str:
    name = f"lite-{next(_numbers)}"
    bench.apply(job(name, parties[0], task("a", *parties, image="sample", input=json.dumps(given))))
    return name


def ended(bench: LiteBench, name: str) -> None:
    def look() -> str:
        status = bench.json(f"get {_JOBS} {name} -n {CROSS_DOMAIN}").get("status") or {}
        return str(status.get("phase")) if status.get("phase") in ("Succeeded", "Failed") else ""

    assert until(f"{name} is over", look, SECONDS) == "Succeeded", explain(bench)


def explain(bench: LiteBench) -> str:
    words = ("get kt -A -o yaml", "get events -n bob", "get pods -n bob -o yaml", "get nodes -o wide")
    logs = [bench.node_log("bob", name) for name in ("m2", "m5")]
    return "\n".join([*(bench.try_kubectl(*line.split()).out[-6000:] for line in words), *logs])


def places(bench: Bench, name: str) -> set[str]:
    """The nodes on which bob's pods of a job were."""
    tasks = bench.json(f"get kt -n {CROSS_DOMAIN}")["items"]
    pods = [
        pod
        for each in tasks
        if each["metadata"]["name"].startswith(f"{name}-")
        for pod in (each["status"].get("podStatuses") or {}).values()
    ]
    return {pod["nodeName"] for pod in pods if pod["namespace"] == "bob"}


def running_pod(bench: LiteBench, job_name: str) -> str:
    def look() -> str:
        for pod in bench.json("get pods -n bob")["items"]:
            if job_name in pod["metadata"]["name"] and pod["status"].get("phase") == "Running":
                return str(pod["metadata"]["name"])
        return ""

    try:
        return str(until(f"a pod of {job_name} runs", look, SECONDS))
    except AssertionError as problem:
        raise AssertionError(explain(bench)) from problem


def web_pod(name: str, node: str) -> dict[str, Any]:
    command = ["python", "-c", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"]
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    container = {"name": "main", "image": "coterie/python:latest", "command": command, "readinessProbe": probe}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "bob", "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1},
    }


def test_the_joined_machine_is_a_node_of_the_lites_domain(bench: LiteBench) -> None:
    nodes = {each["metadata"]["name"]: each for each in bench.json("get nodes")["items"]}
    assert bench.ready_nodes() == {"m2", "m4", "m5"}
    for name, domain in (("m2", "bob"), ("m4", "carol"), ("m5", "bob")):
        labels = nodes[name]["metadata"]["labels"]
        assert labels["coterie.io/pod-namespace"] == labels["kuscia.secretflow/namespace"] == domain
    ranges = {name: node["spec"]["podCIDR"] for name, node in nodes.items()}
    assert ranges["m2"] == ranges["m4"] != ranges["m5"], "domains do not share their pools of addresses"
    leases = {each["metadata"]["name"] for each in bench.json("get leases -n kube-node-lease")["items"]}
    assert leases == {"m2", "m4", "m5"}


def test_a_task_runs_on_the_joined_machine(bench: LiteBench) -> None:
    bench.kubectl("cordon m2")
    try:
        name = submit(bench, {"mode": "slow", "seconds": 20}, *PARTIES)
        pod = running_pod(bench, name)
        assert bench.kubectl(f"exec -n bob {pod} -- cat kuscia/task-config.conf").startswith("{")
        bench.kubectl(f"logs -n bob {pod}")
        mesh, conf_manager, gateway = bench.kubectl(f"exec -n bob {pod} -- python -c {shlex.quote(_CALL)}").splitlines()
        assert (mesh, gateway) == ("200", "403")
        assert conf_manager in ("401", "404", "405")
        ended(bench, name)
        assert places(bench, name) == {"m5"}
    finally:
        bench.kubectl("uncordon m2")


def test_tasks_of_the_lites_party_spread_over_its_machines(bench: LiteBench) -> None:
    names = [submit(bench, {"mode": "slow", "seconds": 3}, *PARTIES) for _ in range(4)]
    for name in names:
        ended(bench, name)
    assert set().union(*(places(bench, name) for name in names)) == {"m2", "m5"}


def test_pods_of_both_machines_reach_each_other_and_services(bench: LiteBench) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "there", "namespace": "bob"},
        "spec": {"selector": {"app": "there"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    bench.apply(web_pod("here", "m2"), web_pod("there", "m5"), service)
    for name in ("here", "there"):
        bench.kubectl(f"wait -n bob --for=condition=Ready pod/{name} --timeout=60s")
    address = bench.json("get pod -n bob here")["status"]["podIP"]
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).status)"

    def fetched(pod: str, url: str) -> bool:
        return bench.try_kubectl("exec", "-n", "bob", pod, "--", "python", "-c", script, url).out.strip() == "200"

    assert fetched("there", f"http://{address}:8000/")
    until("the Service leads to the pod on the other machine", lambda: fetched("here", "http://there/"))


def test_ingresses_of_a_lite_lead_to_pods_on_both_machines(bench: LiteBench) -> None:
    """Of its own namespace only; the other lite serves none of them."""
    pods = [web_pod("shop-1", "m2"), web_pod("shop-2", "m5")]
    for pod in pods:
        pod["metadata"]["labels"] = {"app": "shop"}
        script = SAYS_ITS_NAME.format(name=pod["metadata"]["name"])
        pod["spec"]["containers"][0]["command"] = ["python", "-c", script]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop", "namespace": "bob"},
        "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    backend = {"service": {"name": "shop", "port": {"number": 80}}}
    rule = {"host": "shop.bob.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "shop", "namespace": "bob"},
        "spec": {"ingressClassName": "coterie", "rules": [rule]},
    }
    bench.apply(*pods, service, ingress)

    def called(machine: str, host: str = "shop.bob.example") -> str:
        url = f"http://{bench[machine].address}:{INGRESS_PORT}/"
        return bench["m1"].run("curl", "-s", "-m", "10", "-H", f"Host: {host}", url).out

    seen: set[str] = set()

    def both() -> bool:
        seen.add(called("m2"))
        return {"shop-1", "shop-2"} <= seen

    until("pods of both machines answer", both, SECONDS)
    assert "shop" not in called("m4") and "shop" not in called("m2", "other.bob.example")
    status = until(
        "the status names the lite",
        lambda: bench.json("get ingress -n bob shop").get("status", {}).get("loadBalancer", {}).get("ingress"),
        SECONDS,
    )
    assert [each.get("ip") for each in status] == [bench["m2"].address]
    bench.kubectl("delete pod -n bob shop-1 --grace-period=1")
    until(
        "the pod on the joined machine answers alone", lambda: {called("m2") for _ in range(6)} == {"shop-2"}, SECONDS
    )


def _asked(bench: LiteBench, paths: list[str], *more: str) -> list[str]:
    machine = bench["m5"]
    done: Done = machine.run(sys.executable, "-c", _REQUEST, str(join_file(bench)), json.dumps(paths), *more)
    return [line.split()[0] for line in done.out.splitlines()]


def test_a_join_file_gives_the_rights_of_that_node_in_its_domain_and_no_more(bench: LiteBench) -> None:
    for domain in PARTIES:
        bench.try_kubectl("create", "secret", "generic", "kept", "-n", domain, "--from-literal=a=b")
    selector = "labelSelector=kuscia.secretflow%2Fnamespace%3D"
    rows = {
        "/api/v1/nodes/m5": "200",
        "/api/v1/nodes/m2": "200",
        "/api/v1/nodes/m4": "403",
        "/api/v1/nodes": "403",
        f"/api/v1/nodes?{selector}bob": "200",
        f"/api/v1/nodes?{selector}carol": "403",
        "/api/v1/namespaces/bob/pods": "200",
        "/api/v1/namespaces/carol/pods": "403",
        "/api/v1/pods": "403",
        "/api/v1/namespaces/bob/secrets/kept": "403",
        "/api/v1/namespaces/carol/secrets/kept": "403",
        "/api/v1/namespaces/bob/secrets": "403",
        "/apis/kuscia.secretflow/v1alpha1/namespaces/bob/domaindatas": "403",
        "/apis/kuscia.secretflow/v1alpha1/domains": "403",
    }
    assert dict(zip(rows, _asked(bench, list(rows)), strict=True)) == rows


def test_a_join_file_opens_nothing_else(bench: LiteBench) -> None:
    """Not the API of the master, and not the agents of the domain's machines."""
    path = ["/api/v1/nodes/m5", "/containerLogs/bob/here/main"]
    for server in (f"https://{bench['m1'].address}:6443", f"https://{bench['m2'].address}:10250"):
        answers = _asked(bench, path, server)
        assert len(answers) == len(path) and set(answers) <= {"401", "403", "refused"}
    document = yaml.safe_load(join_file(bench).read_text())
    assert document["namespace"] == "bob"
    assert "liteDeployToken" not in document


def test_a_name_of_another_domains_node_is_refused(bench: LiteBench) -> None:
    done = bench["m2"].try_coterie("node", "add", "m4", "--address", bench["m3"].address)
    assert done.code != 0 and "which is not of bob" in done.err
    done = bench["m2"].try_coterie("node", "add", "m2", "--address", bench["m3"].address)
    assert done.code != 0 and "is this machine" in done.err
    done = bench["m4"].try_coterie("node", "add", "x", "--address", bench["m3"].address)
    assert done.code != 0 and "does not accept other machines now" in done.err


def test_the_joined_machine_survives_the_loss_of_the_first_ones_process(bench: LiteBench) -> None:
    name = submit(bench, {"mode": "slow", "seconds": 15}, *PARTIES)
    running_pod(bench, name)
    pid = (bench["m2"].root / "bob" / "var" / "run" / "coterie.pid").read_text().split()[0]
    bench["m2"].do("kill", "-9", pid)
    bench.start_process("bob", bench["m2"])
    until("both machines are ready", lambda: {"m2", "m5"} <= bench.ready_nodes(), SECONDS)
    ended(bench, name)


def _replaced(bench: LiteBench, lost: str) -> bool:
    """The pods of the deployment are ready and none of them is on the lost machine."""
    pods = [
        each
        for each in bench.json("get pods -n bob -l app=kept")["items"]
        if "deletionTimestamp" not in each["metadata"]
    ]
    ready = [
        each
        for each in pods
        for condition in each["status"].get("conditions", ())
        if (condition["type"], condition["status"]) == ("Ready", "True")
    ]
    return len(ready) == 2 and all(each["spec"]["nodeName"] != lost for each in ready)


def test_the_pods_of_a_lost_second_machine_are_replaced(bench: LiteBench) -> None:
    template = web_pod("kept", "")
    del template["spec"]["nodeName"]
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "kept"}},
        "template": {"metadata": {"labels": {"app": "kept"}}, "spec": template["spec"]},
    }
    meta = {"name": "kept", "namespace": "bob"}
    bench.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
    bench.kubectl("rollout status -n bob deployment/kept --timeout=60s")
    bench["m5"].kill()
    until("the lost machine's pods are replaced", lambda: _replaced(bench, "m5"), SECONDS)
    assert "m5" not in bench.ready_nodes()
    bench["m5"].boot()
    bench["m5"].coterie("node", "join")
    assert "m5" in bench.ready_nodes()


def test_a_lost_first_machine_comes_back_to_its_second(bench: LiteBench) -> None:
    """Without it, the second one has no control plane: its pods go on, and it is Ready again when the first one is back."""
    bench["m2"].kill()
    until("both machines are not ready", lambda: bench.ready_nodes() == {"m4"}, SECONDS)
    bench["m2"].boot()
    bench.start_process("bob", bench["m2"])
    until("both machines are ready again", lambda: bench.ready_nodes() == {"m2", "m4", "m5"}, SECONDS)
    name = submit(bench, {"mode": "slow", "seconds": 2}, *PARTIES)
    ended(bench, name)


def test_a_joined_machine_leaves_and_nothing_stays(bench: LiteBench) -> None:
    machine = bench["m5"]
    bench["m2"].coterie("node", "drain", "m5", "--force", "--timeout", "60s")
    refused = bench["m2"].try_coterie("node", "delete", "m5")
    assert refused.code != 0 and "is Ready" in refused.err
    assert bench["m2"].try_coterie("node", "delete", "m4").code != 0, "of another domain"
    bench.kubectl("uncordon m5")
    machine.coterie("node", "leave", "--force", "--timeout", "60s")
    assert "m5" not in bench.kubectl("get nodes -o name")
    machine.coterie("node", "join")
    assert "m5" in bench.ready_nodes()
    machine.coterie("node", "reset", "--force")
    assert "m5" not in bench.kubectl("get nodes -o name")
    assert not (machine.root / "bob").exists()
    assert machine.processes() == {}


def test_the_lites_operator_gives_up_a_machine(bench: LiteBench) -> None:
    machine = bench["m3"]
    file = machine.home / "m3.join"
    file.touch(0o600)
    file.write_text(bench["m2"].coterie("node", "add", "m3", "--address", machine.address, "-o", "-"))
    machine.coterie("node", "join", str(file))
    bench.apply(web_pod("given-up", "m3"))
    bench.kubectl("wait -n bob --for=condition=Ready pod/given-up --timeout=60s")
    machine.kill()
    until("m3 is not ready", lambda: "m3" not in bench.ready_nodes(), SECONDS)
    bench["m2"].coterie("node", "delete", "m3")
    until("its pod is gone", lambda: bench.try_kubectl("get", "pod", "-n", "bob", "given-up").code != 0, SECONDS)
