"""Policies for real: alice begins jobs and deployments, bob's policy accepts them, lets them wait or refuses them, and both see
why. The commands are typed as the guide has them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
from jobs_kit import API, CROSS_DOMAIN, Net, Object, job, network, task, until
from kubectl_runner import chosen
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
