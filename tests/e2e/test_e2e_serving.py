"""Services of real domains: engines, gateways and rolling updates are real, in a network of equals and in one with a master."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
import yaml
from jobs_kit import API, CROSS_DOMAIN, Net, Object, network, until

pytestmark = [pytest.mark.xdist_group("e2e-jobs")]
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "serving.md"
VERSIONS = kubectl_runner.chosen()
_ROOMY: dict[str, Any] = {
    "capacity": {"cpu": 4, "memory": "8Gi"},
    "reservedResources": {"cpu": 0, "memory": 0},
    "controllers": {"autoscalerSeconds": 1},
}
_DEPLOYMENTS = f"/apis/{API}/namespaces/{CROSS_DOMAIN}/kusciadeployments"
_MADE = "labelSelector=kuscia.secretflow/controller%3DKusciaDeployment"


@pytest.fixture(scope="module", params=["p2p", "center"])
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    root = tmp_path_factory.mktemp(f"serving-{request.param}") / "net"
    names = ("alice", "bob", "carol")
    with network(root, request.param, *names, kubectl=VERSIONS[-1], settings={each: _ROOMY for each in names}) as made:
        yield made
        assert [line for each in made.domains.values() for line in each.complaints()] == []


p2p_only = pytest.mark.parametrize("net", ["p2p"], indirect=True)


def a_serving(name: str, **wishes: Any) -> Object:
    return {
        "apiVersion": API,
        "kind": "KusciaDeployment",
        "metadata": {"name": name, "namespace": CROSS_DOMAIN, "labels": {"kuscia.secretflow/app-type": "serving"}},
        "spec": {
            "initiator": "alice",
            "inputConfig": json.dumps(wishes),
            "parties": [{"domainID": each, "appImageRef": "sample-serving"} for each in ("alice", "bob")],
        },
    }


def of_the_guide() -> Object:
    text = GUIDE.read_text().partition("```yaml\n")[2].partition("```")[0]
    found: Object = yaml.safe_load(text)
    return found


def call(net: Net, source: str, host: str, path: str = "/", cookie: str = "") -> tuple[int, Any, str]:
    """From inside a domain, as its pods call: status, what was answered, the cookie that was set."""
    connection = http.client.HTTPConnection(*net.domains[source].inside, timeout=20)
    try:
        connection.request("GET", path, headers={"Host": host, **({"Cookie": cookie} if cookie else {})})
        answer = connection.getresponse()
        text = answer.read()
        told = json.loads(text) if answer.getheader("Content-Type") == "application/json" else text
        return answer.status, told, (answer.getheader("Set-Cookie") or "").partition(";")[0]
    finally:
        connection.close()


def status(net: Net, domain: str, name: str) -> Object:
    found = net.at(domain).get(f"{_DEPLOYMENTS}/{name}") or {}
    return dict(found.get("status") or {})


def until_available(net: Net, name: str) -> None:
    for domain in ("alice", "bob"):
        until(f"{name} is available at {domain}", lambda d=domain: status(net, d, name).get("phase") == "Available")


def change(net: Net, name: str, **spec: Any) -> None:
    net.at("alice").merge(f"{_DEPLOYMENTS}/{name}", {"spec": spec})


def pods(net: Net, domain: str) -> list[Object]:
    """Those that are ready and not on their way out."""
    return [
        pod
        for pod in net.at(domain).list(f"/api/v1/namespaces/{domain}/pods?{_MADE}")
        if not pod["metadata"].get("deletionTimestamp")
        and any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions") or ())
    ]


def remove(net: Net, name: str) -> None:
    """Deleted where it began, it is gone everywhere with all that was made of it."""
    net.at("alice").call("DELETE", f"{_DEPLOYMENTS}/{name}")
    paths = [
        f"{_DEPLOYMENTS}",
        f"/apis/{API}/kusciadeployments",
        f"/apis/{API}/kusciadeploymentsummaries",
        *(f"/apis/apps/v1/{kind}?{_MADE}" for kind in ("deployments", "replicasets")),
        *(f"/api/v1/{kind}?{_MADE}" for kind in ("pods", "services", "configmaps", "endpoints")),
    ]
    for plane in net.planes:
        for path in paths:
            until(f"nothing is left of {path} at {plane.name}", lambda p=plane, where=path: not p.list(where))
    until("no process is left", lambda: not [each for domain in net.domains.values() for each in domain.containers()])


def test_parties_reach_each_other_and_strangers_do_not(net: Net) -> None:
    net.at("alice").apply(of_the_guide())
    until_available(net, "greet")
    reached, told, _ = until(
        "alice reaches bob", lambda: (a := call(net, "alice", "greet-serve.bob.svc"))[0] == 200 and a
    )
    assert reached == 200 and (told["party"], told["greeting"], told["serving"]) == ("bob", "good day", "greet")
    asked = until("bob asks alice", lambda: (a := call(net, "bob", "greet-serve.bob.svc", "/ask"))[0] == 200 and a)
    assert asked[1]["alice"]["party"] == "alice"
    refused, words, _ = call(net, "carol", "greet-serve.bob.svc")
    assert refused == 403, words
    remove(net, "greet")


class Caller(threading.Thread):
    """Calls again and again until it is stopped; remembers who answered, and what went wrong."""

    def __init__(self, net: Net, host: str) -> None:
        super().__init__(daemon=True)
        self._net, self._host = net, host
        self.answers: list[str] = []
        self.failures: list[Any] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                answered, told, _ = call(self._net, "alice", self._host)
            except (OSError, http.client.HTTPException) as problem:
                answered, told = 0, problem
            if answered == 200:
                self.answers.append(told["greeting"])
            else:
                self.failures.append((answered, told))
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        self.join(30)


@p2p_only
def test_a_service_scales_is_renewed_without_losing_a_call_and_heals(net: Net) -> None:
    host = "grow-serve.bob.svc"
    net.at("alice").apply(a_serving("grow", greeting="old", warmup=0.3))
    until_available(net, "grow")
    parties = a_serving("grow")["spec"]["parties"]
    parties[1]["template"] = {"replicas": 3}
    change(net, "grow", parties=parties)
    # All on one node: each has a port of its own.
    three = until("three replicas are ready at bob", lambda: len(found := pods(net, "bob")) == 3 and found)
    names = {pod["metadata"]["name"] for pod in three}
    assert len({pod["metadata"]["annotations"]["port.coterie.io/serve"] for pod in three}) == 3
    seen: set[str] = set()

    def all_answer() -> bool:
        answered, told, _ = call(net, "alice", host)
        if answered == 200:
            seen.add(told["pod"])
        return seen == names

    until("all replicas answer", all_answer)
    _, first, cookie = call(net, "alice", host)
    assert cookie.startswith("KUSCIA_SESSION=")
    assert {call(net, "alice", host, cookie=cookie)[1]["pod"] for _ in range(10)} == {first["pod"]}, "a session stays"

    caller = Caller(net, host)
    caller.start()
    try:
        until("it is called", lambda: len(caller.answers) > 20)
        change(net, "grow", inputConfig=json.dumps({"greeting": "new", "warmup": 0.3}))

        def renewed() -> bool:
            found = pods(net, "bob")
            return len(found) == 3 and not names & {pod["metadata"]["name"] for pod in found}

        until("all replicas are new", renewed)
        until("only the new ones answer", lambda: len(caller.answers) > 20 and set(caller.answers[-20:]) == {"new"})
    finally:
        caller.stop()
    assert caller.failures == [] and "old" in caller.answers

    victim = pods(net, "bob")[0]["metadata"]["name"]
    net.at("bob").call("DELETE", f"/api/v1/namespaces/bob/pods/{victim}?gracePeriodSeconds=0")
    until("a pod that was killed is replaced", lambda: len(found := pods(net, "bob")) == 3 and victim not in {each["metadata"]["name"] for each in found})  # fmt: skip
    crashed = pods(net, "bob")[0]["metadata"]["name"]
    net.domains["bob"].kill_engine(crashed)

    def restarted() -> bool:
        mine = [pod for pod in pods(net, "bob") if pod["metadata"]["name"] == crashed]
        return bool(mine) and mine[0]["status"]["containerStatuses"][0]["restartCount"] > 0

    until("an engine that died is started again", restarted)
    until_available(net, "grow")
    remove(net, "grow")


@p2p_only
def test_an_autoscaler_sizes_the_part_of_a_partners_service(net: Net) -> None:
    """Bob's autoscaler of what alice began: the controller leaves its number alone, and bob's quota for alice holds."""
    net.at("alice").apply(a_serving("grows"))
    until_available(net, "grows")
    aim = {"type": "AverageValue", "averageValue": "1k"}
    scaler: Object = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "grows", "namespace": "bob"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "grows"},
            "maxReplicas": 2,
            "metrics": [{"type": "Resource", "resource": {"name": "memory", "target": aim}}],
        },
    }
    net.at("bob").apply(scaler)
    until("it has grown", lambda: len(pods(net, "bob")) == 2)
    until_available(net, "grows")
    time.sleep(3)
    assert len(pods(net, "bob")) == 2 and len(pods(net, "alice")) == 1
    assert {call(net, "alice", "grows-serve.bob.svc")[0] for _ in range(6)} == {200}
    net.at("bob").merge(f"/apis/{API}/partnerpolicies/alice", {"spec": {"quota": {"pods": 3}}})
    path = "/apis/autoscaling/v2/namespaces/bob/horizontalpodautoscalers/grows"
    net.at("bob").merge(path, {"spec": {"maxReplicas": 5}})
    until("the quota is the limit", lambda: "QuotaExceeded" in json.dumps(net.at("bob").get(path)["status"]))
    assert net.at("bob").get("/apis/apps/v1/namespaces/bob/deployments/grows")["spec"]["replicas"] == 3
    net.at("bob").call("DELETE", path)
    until("the party's number counts again", lambda: len(pods(net, "bob")) == 1)
    remove(net, "grows")
