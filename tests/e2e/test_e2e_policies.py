"""Policies for real: alice begins jobs and deployments, bob's policy accepts them, lets them wait or refuses them, and both see
why. The commands are typed as the guide has them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
from jobs_kit import API, CROSS_DOMAIN, Net, Object, app_image, job, network, task, until
from kubectl_runner import chosen
from planted_secrets import REQUESTS, SECRET, VARIABLE, coterie, found_in, planted, script_of, unpacked
from puppets import Puppets

pytestmark = [pytest.mark.xdist_group("e2e-jobs")]
_KUSCIA = f"/apis/{API}"
_DEPLOYMENTS = f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciadeployments"
VERSIONS = chosen()
_ROOMY = {"capacity": {"cpu": 4, "memory": "8Gi"}, "reservedResources": {"cpu": 0, "memory": 0}}
_numbers = count(1)
AB = ("alice", "bob")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Net, Puppets]]:
    root = tmp_path_factory.mktemp("policies") / "net"
    settings = {each: _ROOMY for each in AB}
    with Puppets() as puppets, network(root, "p2p", *AB, kubectl=VERSIONS[-1], settings=settings) as made:
        puppets.watch(made.root)
        made.register(puppets.image())
        yield made, puppets
        assert [line for each in made.domains.values() for line in each.complaints()] == []


@pytest.fixture
def name() -> str:
    return f"work-{next(_numbers)}"


def policy(net: Net, *words: str) -> str:
    """At bob's."""
    command = [sys.executable, "-m", "coterie", "policy", *words, "--root", str(net.root), "--domain", "bob"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def says(net: Net, name: str, phase: str, words: str) -> None:
    """The job, on both sides."""
    for domain in AB:
        found = net.at(domain).until_phase(name, phase)
        until(
            f"{domain} knows why",
            lambda domain=domain: words in net.at(domain).job(name)["status"].get("message", ""),
        )
        assert found["spec"]["initiator"] == "alice"


def deployment(name: str) -> Object:
    shell = {"name": "main", "workingDir": "/", "command": ["/bin/sh", "-c", "echo mine > /tmp/mine; sleep 1000"]}
    party = {"domainID": "bob", "appImageRef": "sample-serving", "template": {"spec": {"containers": [shell]}}}
    return {
        "apiVersion": API,
        "kind": "KusciaDeployment",
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {
            "initiator": "alice",
            "inputConfig": "{}",
            "parties": [{"domainID": "alice", "appImageRef": "sample-serving"}, party],
        },
    }


def deployment_says(net: Net, name: str, *words: str) -> None:
    def text(domain: str) -> str:
        status = (net.at(domain).get(f"{_DEPLOYMENTS}/{name}") or {}).get("status") or {}
        return f"{status.get('phase')} {status.get('reason')} {status.get('message')}"

    for domain in AB:
        until(f"{domain} knows: {words}", lambda domain=domain: all(word in text(domain) for word in words))


def test_up_opens_policies_and_a_partner_without_one_is_asked_about(net: tuple[Net, Puppets], name: str) -> None:
    made, _ = net
    assert "accepts everything" in policy(made, "ls")
    policy(made, "rm", "alice")
    made.at("alice").apply(job(name, "alice", task("a", *AB)))
    says(made, name, "AwaitingApproval", "Waiting for the approval of bob: there is no policy for alice")
    assert "waits for approval: there is no policy for alice" in policy(made, "explain", name)
    policy(made, "allow", "alice")
    for domain in AB:
        made.at(domain).until_phase(name, "Succeeded")
    made.remove_jobs()


def test_inside_the_policy_a_job_runs_and_outside_it_is_refused(net: tuple[Net, Puppets], name: str) -> None:
    made, _ = net
    policy(made, "allow", "alice", "--app-image", "puppet", "--priority", "3", "--outside", "refuse")
    made.at("alice").apply(job(name, "alice", task("a", *AB, priority=3)))
    for domain in AB:
        made.at(domain).until_phase(name, "Succeeded")
    made.at("alice").apply(job(f"{name}-more", "alice", task("a", *AB, priority=4)))
    says(made, f"{name}-more", "ApprovalReject", "refused: task a: asks for priority 4, alice may have 3")
    policy(made, "allow", "alice", "--app-image", "scql", "--outside", "refuse")
    made.at("alice").apply(job(f"{name}-other", "alice", task("a", *AB)))
    says(made, f"{name}-other", "ApprovalReject", "refused: alice may not begin `puppet`")
    assert "refused: alice may not begin `puppet`" in policy(made, "explain", f"{name}-other")
    made.remove_jobs()


def test_a_dry_run_is_answered_by_both_and_starts_nothing(net: tuple[Net, Puppets], name: str) -> None:
    made, _ = net

    def planned() -> tuple[int, Object]:
        file = made.root / f"{name}.json"
        file.write_text(json.dumps(job(name, "alice", task("a", *AB))))
        words = ("job", "run", str(file), "--dry-run=plan", "--timeout", "30s", "-o", "json")
        command = [sys.executable, "-m", "coterie", *words, "--root", str(made.root), "--domain", "alice"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    policy(made, "allow", "alice")
    code, shown = planned()
    assert (code, shown["outlook"]) == (0, "Runs"), shown
    own, theirs = (each["plan"] for each in shown["answers"])
    assert own["placements"][0]["nodes"], "alice knows her nodes"
    assert theirs["approval"] == {"verdict": "Allow", "by": "policy"} and theirs["detail"] == "summary"
    assert theirs["placements"][0]["fits"] and "nodes" not in theirs["placements"][0]
    policy(made, "allow", "alice", "--app-image", "scql", "--outside", "refuse")
    code, shown = planned()
    assert (code, shown["outlook"]) == (1, "Fails")
    assert shown["answers"][1]["plan"]["approval"]["rules"] == ["appImages"]
    policy(made, "allow", "alice", "--plans", "none")
    code, shown = planned()
    assert (code, shown["outlook"]) == (3, "Unknown")
    assert shown["answers"][1]["message"] == "dry runs of alice are not answered"
    policy(made, "rm", "alice")
    policy(made, "allow", "alice")
    for domain in AB:
        assert made.at(domain).job(name) is None, "nothing was started"
        until(f"{domain} keeps nothing", lambda domain=domain: not made.at(domain).list(f"{_KUSCIA}/jobplanrequests"))
        events = {
            each["kind"] for each in json.loads(coterie(made, domain, "audit", "ls", "--kind", "plan.", "-o", "json"))
        }
        assert events == {"plan.asked", "plan.answered"}


def test_more_tasks_than_the_quota_wait(net: tuple[Net, Puppets], name: str) -> None:
    made, puppets = net
    policy(made, "allow", "alice", "--max-tasks", "1")
    puppets.hold(name)
    made.at("alice").apply(job(name, "alice", task("a", *AB), task("b", *AB), maxParallelism=2))

    def waits(domain: str) -> bool:
        texts = [
            party.get("message", "")
            for each in made.at(domain).tasks(name).values()
            for party in each["status"].get("partyTaskStatus") or ()
        ]
        return any("alice may have 1 tasks here at once" in text for text in texts)

    for domain in AB:
        until(f"{domain} knows that one waits", lambda domain=domain: waits(domain))
    puppets.release(name)
    for domain in AB:
        made.at(domain).until_phase(name, "Succeeded")
    policy(made, "allow", "alice")
    made.remove_jobs()


def test_a_deployment_waits_is_refused_and_never_runs_a_command_of_the_partner(
    net: tuple[Net, Puppets], name: str
) -> None:
    made, _ = net
    policy(made, "rm", "alice")
    made.at("alice").apply(deployment(name))
    deployment_says(made, name, "AwaitingApproval", "waiting for the approval of bob: there is no policy for alice")
    policy(made, "deny", "alice")
    deployment_says(made, name, "Failed", "RefusedByPolicy", "refused: alice may not begin `sample-serving`")
    policy(made, "approve", f"deployment/{name}")
    deployment_says(made, name, "Available")
    pods = [
        each
        for each in made.at("bob").list("/api/v1/namespaces/bob/pods")
        if each["metadata"]["labels"].get("kuscia.secretflow/kd-name") == name
    ]
    assert pods and all("/bin/sh" not in (each["spec"]["containers"][0].get("command") or ()) for each in pods)
    made.at("alice").call("DELETE", f"{_DEPLOYMENTS}/{name}")
    until("it is gone at bob's", lambda: made.at("bob").get(f"{_DEPLOYMENTS}/{name}") is None)
    policy(made, "allow", "alice")


def test_a_failure_is_looked_into_by_both_and_no_secret_crosses(net: tuple[Net, Puppets]) -> None:
    """A task fails at bob, whose engine printed secrets. alice asks, bob looks and approves, and both write bundles. Secrets are in
    logs, objects and files; they are searched for in all that crossed or was written."""
    made, _ = net
    alice, bob = made.at("alice"), made.at("bob")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "bob"}}
    bob.call("POST", "/api/v1/namespaces/bob/secrets", {**secret, "stringData": {"password": SECRET}})
    secrets = planted(made)
    alice.apply(app_image("leaky", "echo begin of alice; sleep 2; exit 1"))
    environment = [{"name": "DB_PASSWORD", "value": VARIABLE}]
    bob.apply(app_image("leaky", script_of(secrets), env=environment))
    alice.submit(job("fails", "alice", task("a", *AB, image="leaky", input='{"api_key": "planted-input-key"}')))
    for each in (alice, bob):
        each.until_phase("fails", "Failed")

    asked = coterie(made, "alice", "logrequest", "create", "fails", "--party", "bob", "--reason", "it failed at yours")
    name = re.findall(r"log request (\S+) made", asked)[0]
    until("bob has a preview", lambda: "preview" in (bob.get(f"{REQUESTS % 'bob'}/{name}") or {}).get("status", {}))
    preview = coterie(made, "bob", "logrequest", "preview", name)
    assert "begin of bob" in preview and "ERROR rows 12" in preview
    assert found_in(preview, secrets) == []
    assert "begin of bob" not in str(alice.list(f"/apis/{API}/logrequests")), "nothing before the approval"
    assert "Answered" in coterie(made, "bob", "logrequest", "approve", name)
    until(
        "alice has the answer",
        lambda: alice.get(f"{REQUESTS % 'alice'}/{name}")["status"].get("phase") == "Answered",
    )
    shown = coterie(made, "alice", "logrequest", "show", name)
    assert "ERROR rows 12" in shown and found_in(shown, secrets) == []
    for each in (alice, bob):
        everything = str(each.list(f"/apis/{API}/logrequests"))
        assert found_in(everything, secrets) == []

    # The other way round a standing policy answers.
    coterie(made, "alice", "policy", "set", "bob", "--logs", "engine,gateway")
    answer = coterie(made, "bob", "job", "logs", "fails", "--party", "alice", "--ask", "what did you see?", "-f")
    assert "begin of alice" in answer

    for domain, other in (("alice", "bob"), ("bob", "alice")):
        target = made.root / f"{domain}.tar.gz"
        assert "look through it before you pass it on" in coterie(
            made, domain, "job", "bundle", "fails", "-o", str(target)
        )
        files = unpacked(target)
        assert target.stat().st_mode & 0o777 == 0o600
        text = "\n".join(files.values())
        assert found_in(text, {**secrets, "input": "planted-input-key"}) == []
        assert f"begin of {domain}" in files.get("logs/own/engine.log", ""), files["README.md"]
        assert [path for path in files if path.startswith(f"logs/{other}/")], "with the partner's consent"
        assert f"begin of {other}" in text and "objects/kusciajob/cross-domain.fails.yaml" in files
        assert files["logs/own/gateway.log"] is not None and '"envoy"' in files["versions.json"]
        assert "BEGIN PRIVATE KEY" not in text and "BEGIN RSA PRIVATE KEY" not in text
        for private in made.at(domain).paths.home.rglob("*.key"):
            if private.is_file() and "PRIVATE KEY" in private.read_text():
                assert private.read_text().splitlines()[1] not in text
