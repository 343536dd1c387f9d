"""Jobs of real domains: processes, gateways and engines are real, in a network of equals and in one with a master.

Each test leaves the network as it found it: its jobs are deleted, and nothing of them may be left anywhere.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import Domain, Net, app_image, job, network, task, until
from prometheus_kit import PROMTOOL, check_page, running_prometheus
from puppets import Puppets
from upstream_manifests import JOB, PSI_IMAGE, SECRETFLOW_IMAGE, TASK

from coterie.base.trace import trace_id
from coterie.dashboards import alerts
from coterie.dashboards.boards import BOARDS
from coterie.kuscia.api import labels
from coterie.kuscia.gateway.admin import Admin
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.trace_file import TRACE_FILE

pytestmark = [pytest.mark.xdist_group("e2e-jobs")]
VERSIONS = kubectl_runner.chosen()
_ROOMY: dict[str, Any] = {
    "capacity": {"cpu": 4, "memory": "8Gi", "bandwidth": 110},
    "reservedResources": {"cpu": 0, "memory": 0},
}
AB = ("alice", "bob")
ABC = ("alice", "bob", "carol")
_numbers = count(1)


@pytest.fixture(scope="module")
def puppets() -> Iterator[Puppets]:
    with Puppets() as made:
        yield made


@pytest.fixture(scope="module", params=["p2p", "center"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, puppets: Puppets
) -> Iterator[Net]:
    """One network after the other, since a machine has room for few Envoys. In p2p, carol's people want to be asked."""
    root = tmp_path_factory.mktemp(request.param) / "net"
    settings = {"": {"traces": {"enabled": True}}, **{name: _ROOMY for name in ABC}}
    if request.param == "p2p":
        settings["carol"] = {**_ROOMY, "enableWorkloadApprove": True}
    with network(root, request.param, *ABC, kubectl=VERSIONS[-1], settings=settings) as net:
        puppets.watch(net.root)
        net.register(puppets.image())
        yield net
        assert [line for each in net.domains.values() for line in each.complaints()] == []


@pytest.fixture
def net(running: Net) -> Iterator[Net]:
    yield running
    running.remove_jobs()


p2p_only = pytest.mark.parametrize("running", ["p2p"], indirect=True)
center_only = pytest.mark.parametrize("running", ["center"], indirect=True)


@pytest.fixture
def name() -> str:
    """Of a job that no other test has."""
    return f"job-{next(_numbers)}"


GRAPHS = {
    "linear": [task("a", *AB), task("b", *AB, after="a"), task("c", *AB, after="b")],
    "diamond": [task("a", *AB), task("b", *AB, after="a"), task("c", *AB, after="a"), task("d", *AB, after="bc")],
    "wide": [task("a", *AB), *(task(f"w{n}", *AB, after="a") for n in range(6)), task("z", *AB, after=[f"w{n}" for n in range(6)])],
    "one-party-each": [task("a", "alice"), task("b", "bob", after="a"), task("c", "alice", after="b")],
}  # fmt: skip


def succeeded(net: Net, name: str, *domains: str) -> None:
    for domain in domains:
        net.at(domain).until_phase(name, "Succeeded")


# Graphs.


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_runs_in_its_order(net: Net, puppets: Puppets, name: str, graph: str) -> None:
    tasks = GRAPHS[graph]
    net.at("alice").apply(job(name, "alice", *tasks, maxParallelism=4))
    succeeded(net, name, *AB)
    began = [each.word for each in puppets.starts(name)]
    assert sorted(began) == sorted(each["alias"] for each in tasks for _ in each["parties"])
    for each in tasks:
        for earlier in each.get("dependencies", ()):
            last = max(place for place, word in enumerate(began) if word == earlier)
            assert last < began.index(each["alias"]), began
    net.until_clean()  # also while the job is still there


def coterie(net: Net, *words: str) -> str:
    command = [sys.executable, "-m", "coterie", *words, "--root", str(net.root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


@p2p_only
def test_partners_cosign_each_others_evidence(net: Net, name: str, tmp_path: Path) -> None:
    """Also where a policy demands it before a task begins."""
    policy = "/apis/kuscia.secretflow/v1alpha1/partnerpolicies/bob"
    net.at("alice").merge(policy, {"spec": {"witness": "Require"}})
    net.at("alice").apply(job(name, "alice", task("a", *AB)))
    succeeded(net, name, *AB)
    net.at("alice").merge(policy, {"spec": {"witness": None}})

    def cosigned() -> dict[str, Any] | None:
        shown = json.loads(coterie(net, "audit", "witness", "--now", "-o", "json", "--domain", "alice") or "[]")
        states = {each["partner"]: each for each in shown}
        both = all(each["ours"] and each["ours"]["size"] and each["theirs"] for each in states.values())
        return states if states.keys() == {"bob", "carol"} and both else None

    states = until("both partners cosigned alice's log", cosigned)
    assert [finding for each in states.values() for finding in each["findings"]] == []
    agreed = set()
    for domain in AB:
        events = json.loads(coterie(net, "audit", "ls", "-o", "json", "--domain", domain))
        assert {"checkpoint.received", "checkpoint.cosigned", "partner.introduced"} <= {each["kind"] for each in events}
        kinds = [each["kind"] for each in events if each.get("job") == name]
        order = [kinds.index(each) for each in ("job.approved", "task.started", "task.ended", "job.ended")]
        assert order == sorted(order)
        agreed |= {each["agree"] for each in events if each.get("job") == name and each["kind"] == "task.started"}
    assert len(agreed) == 1
    file = tmp_path / "alice.evidence"
    coterie(net, "audit", "export", "--file", str(file), "--domain", "alice")
    trust = [word for each in ABC for word in ("--trust", str(net.at(each).paths.domain_certificate))]
    command = [sys.executable, "-m", "coterie", "audit", "verify", str(file), *trust]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0
    assert "heads cosigned by: bob.coterie/witness, carol.coterie/witness" in checked.stdout
    for domain in AB:
        until("both signed the statement of the task", partial(signed_by_both, net, name, domain, tmp_path))


def signed_by_both(net: Net, name: str, domain: str, home: Path) -> bool:
    file = home / f"{domain}-job.evidence"
    coterie(net, "audit", "export", "--job", name, "--file", str(file), "--domain", domain)
    command = [sys.executable, "-m", "coterie", "audit", "verify", str(file), "-o", "json"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stderr
    (report,) = json.loads(checked.stdout)
    signed = [each["signed"] for each in report["statements"]]
    return signed == [["alice.coterie/evidence/1", "bob.coterie/evidence/1"]]


def test_three_parties(net: Net, puppets: Puppets, name: str) -> None:
    net.at("bob").apply(job(name, "bob", task("a", *ABC), task("b", *ABC, after="a")))
    if net.topology == "p2p":
        net.at("carol").until_phase(name, "AwaitingApproval")
        net.at("carol").decide(name, "JobAccepted")
    succeeded(net, name, *ABC)
    assert sorted((each.word, each.domain) for each in puppets.starts(name)) == sorted(
        (word, domain) for word in "ab" for domain in ABC
    )


def test_both_sides_record_the_same_trace_of_a_job(net: Net, name: str) -> None:
    image = app_image("traced", 'echo "parent=$TRACEPARENT"')
    net.register(image)
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="traced")))
    succeeded(net, name, *AB)
    trace = trace_id("alice", name)
    planes = {net.at(domain).plane.name: net.at(domain).plane for domain in AB}

    def found(domain: str) -> dict[str, Any]:
        where = net.domains[domain].paths.logs / TRACE_FILE
        lines = [json.loads(line) for line in where.read_text().splitlines() if trace in line] if where.exists() else []
        spans = [span for line in lines for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
        assert {span["traceId"] for span in spans} <= {trace}
        assert len({span["spanId"] for span in spans}) == len(spans), "each once"
        return {span["name"]: span for span in spans}

    for plane in planes:
        until(f"the spans of {plane}", lambda plane=plane: f"job {name}" in found(plane))
        tasks = found(plane)
        assert {"check", "task a", "run", f"job {name}"} <= tasks.keys()
        assert tasks["task a"]["parentSpanId"] == tasks[f"job {name}"]["spanId"]
    for domain in AB:
        until(
            f"the pod's span of {domain}", lambda domain=domain: any(each.startswith("pod ") for each in found(domain))
        )
        (pod,) = (each for each in found(domain) if each.startswith("pod "))
        party = found(net.at(domain).plane.name)[domain]
        assert found(domain)[pod]["parentSpanId"] == party["spanId"], "a lite's pods are below its master's task"
        assert party["parentSpanId"] == found(net.at(domain).plane.name)["task a"]["spanId"]
        stdout = "".join(each.read_text() for each in net.domains[domain].paths.stdout.rglob("*.log"))
        assert f"parent=00-{trace}-{found(domain)[pod]['spanId']}-01" in stdout


def test_two_roles_in_one_domain(net: Net, puppets: Puppets, name: str) -> None:
    parties: list[Any] = [{"domainID": "alice", "role": "host"}, {"domainID": "alice", "role": "guest"}, {"domainID": "bob", "role": "guest"}]  # fmt: skip
    net.at("alice").apply(job(name, "alice", task("a", *parties)))
    succeeded(net, name, *AB)
    assert sorted(each.domain for each in puppets.starts(name)) == ["alice", "alice", "bob"]


# Failures.


def test_a_failure_says_who_and_how_and_tells_the_log_only_at_home(net: Net, name: str) -> None:
    net.register(app_image("grumbler", 'read -r id who word < task.conf; echo "a secret of $who"; [ "$who" = alice ] || exit 7; sleep 600'))  # fmt: skip
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="grumbler"), task("b", *AB, after="a")))
    for domain in AB:
        net.at(domain).until_phase(name, "Failed")
    here, there = (net.at(domain).tasks(name)["a"] for domain in AB)
    pod = f"{here['metadata']['name']}-0"
    for told in (here["status"]["message"], net.at("alice").job(name)["status"]["message"]):
        assert f"party bob: pod {pod}: container main exited with 7" in told
    assert "a secret of bob" in there["status"]["message"]
    if net.topology == "p2p":
        assert "a secret of bob" not in str(net.at("alice").told(name))
    assert set(net.at("alice").tasks(name)) == {"a"}
    kept = net.at("bob").get(f"/api/v1/namespaces/bob/pods/{pod}")
    assert kept["status"]["phase"] == "Failed"
    until("alice's engine is stopped", lambda: net.at("alice").get(f"/api/v1/namespaces/alice/pods/{pod}") is None)


@pytest.mark.parametrize("mode", ["Strict", "BestEffort"])
def test_a_tolerable_task_may_fail(net: Net, puppets: Puppets, name: str, mode: str) -> None:
    puppets.hold(name)
    net.at("alice").apply(job(name, "alice", task("a", *AB, tolerable=True), task("b", *AB), scheduleMode=mode, maxParallelism=2))  # fmt: skip
    puppets.until_started(name, 4)
    puppets.release(name, 5, domain="bob", word="a")
    until("the task failed", lambda: net.at("alice").tasks(name)["a"]["status"]["phase"] == "Failed")
    puppets.release(name)
    succeeded(net, name, *AB)


# Retries, and tasks that do nothing.


def test_a_task_that_fails_twice_is_begun_again_at_all_parties(net: Net, puppets: Puppets, name: str) -> None:
    puppets.hold(name)
    config = {"retry": {"count": 3, "backoffSeconds": 1}}
    net.at("alice").apply(job(name, "alice", task("a", *AB, scheduleConfig=config), task("b", *AB, after="a")))
    for attempt in (1, 2):
        puppets.until_started(name, 2 * attempt)
        puppets.release(name, 7, domain="bob", word="a")
    puppets.until_started(name, 6)
    puppets.release(name)
    succeeded(net, name, *AB)
    for domain in AB:
        (attempts,) = net.at(domain).job(name)["status"]["taskAttempts"].values()
        assert [(each["attempt"], each["reason"]) for each in attempts] == [(1, "TaskFailed"), (2, "TaskFailed")]
        assert all("exited with 7" in each["message"] for each in attempts)
    assert sorted(each.word for each in puppets.starts(name)) == ["a"] * 6 + ["b"] * 2
    net.until_clean()


@p2p_only
def test_a_task_that_sleeps_is_begun_again_and_then_ended(net: Net, puppets: Puppets, name: str) -> None:
    """The agents measure that the engines use no CPU; nobody tells them."""
    puppets.hold(name)
    config = {"stallSeconds": 5, "stallAction": "Restart", "retry": {"count": 1}}
    net.at("alice").apply(job(name, "alice", task("a", *AB, scheduleConfig=config)))
    puppets.until_started(name, 4)
    for domain in AB:
        net.at(domain).until_phase(name, "Failed")
        (attempts,) = net.at(domain).job(name)["status"]["taskAttempts"].values()
        assert [each["reason"] for each in attempts] == ["TaskStalled"] * 2
    assert "no engine did anything since" in net.at("alice").job(name)["status"]["message"]
    assert len(puppets.starts(name)) == 4


# Commands.


@p2p_only
@pytest.mark.parametrize("who", AB)
@pytest.mark.parametrize(("stage", "phase"), [("Stop", "Failed"), ("Cancel", "Cancelled"), ("Suspend", "Suspended")])
def test_either_side_can_end_a_job(net: Net, puppets: Puppets, name: str, who: str, stage: str, phase: str) -> None:
    puppets.hold(name)
    net.at("alice").submit(job(name, "alice", task("a", *AB), task("b", *AB, after="a")))
    puppets.until_started(name, 2)
    net.at(who).command(name, stage)
    for domain in AB:
        net.at(domain).until_phase(name, phase)
    net.until_clean()
    assert len(puppets.starts(name)) == 2


@p2p_only
@pytest.mark.parametrize("who", AB)
@pytest.mark.parametrize("first", ["Stop", "Suspend"])
def test_a_restart_repeats_only_what_did_not_succeed(
    net: Net, puppets: Puppets, name: str, who: str, first: str
) -> None:
    puppets.hold(name)
    net.at("alice").submit(job(name, "alice", task("a", *AB), task("b", *AB, after="a")))
    puppets.until_started(name, 2)
    puppets.release(name, word="a", domain="alice")
    puppets.release(name, word="a", domain="bob")
    puppets.until_started(name, 4)
    net.at(who).command(name, first)
    for domain in AB:
        net.at(domain).until_phase(name, "Failed" if first == "Stop" else "Suspended")
    puppets.release(name)
    net.at(who).command(name, "Restart")
    succeeded(net, name, *AB)
    assert sorted(each.word for each in puppets.starts(name)) == ["a", "a", "b", "b", "b", "b"]


@center_only
def test_commands_at_a_master(net: Net, puppets: Puppets, name: str) -> None:
    plane = net.at("alice")
    puppets.hold(name)
    plane.apply(job(name, "alice", task("a", *AB)))
    puppets.until_started(name, 2)
    plane.command(name, "Suspend")
    plane.until_phase(name, "Suspended")
    net.until_clean()
    plane.command(name, "Restart")
    puppets.until_started(name, 4)
    plane.command(name, "Cancel")
    plane.until_phase(name, "Cancelled")


# Approval.


@p2p_only
def test_an_approval_is_waited_for(net: Net, puppets: Puppets, name: str) -> None:
    net.at("alice").apply(job(name, "alice", task("a", "alice", "carol")))
    for domain in ("alice", "carol"):
        waiting = net.at(domain).until_phase(name, "AwaitingApproval")
        assert "carol" in until("it says for whom", lambda: net.at("alice").job(name)["status"].get("message"))
        assert waiting["status"].get("completionTime") is None
    assert puppets.starts(name) == []
    net.at("carol").decide(name, "JobAccepted")
    succeeded(net, name, "alice", "carol")


@p2p_only
def test_a_rejection_ends_the_job(net: Net, puppets: Puppets, name: str) -> None:
    net.at("alice").apply(job(name, "alice", task("a", *ABC)))
    net.at("carol").until_phase(name, "AwaitingApproval")
    net.at("carol").decide(name, "JobRejected")
    for domain in ABC:
        ended = net.at(domain).until_phase(name, "ApprovalReject")
        assert "carol" in ended["status"]["reason"]
    assert puppets.starts(name) == []


# Resources.


@pytest.mark.parametrize(
    ("resource", "all_of_it", "public"),
    [("cpu", "3", "no free CPU"), ("kuscia.io/bandwidth", "90", "not enough free bandwidth")],
)
def test_a_party_without_room_waits_and_says_so(
    net: Net, puppets: Puppets, name: str, resource: str, all_of_it: str, public: str
) -> None:
    """Bob has no room for a second engine of this size. The job goes on when the first one ends. A partner learns what kind
    of room, and nothing of bob's nodes."""
    first, second = f"{name}-first", f"{name}-second"
    greedy = {"domainID": "bob", "resources": {kind: {resource: all_of_it} for kind in ("requests", "limits")}}
    puppets.hold(first)
    puppets.hold(second)
    net.at("alice").submit(job(first, "alice", task("a", "alice", greedy)))
    puppets.until_started(first, 2)
    net.at("alice").submit(job(second, "alice", task("a", "alice", greedy)))

    def reason(domain: str) -> str:
        found = net.at(domain).tasks(second).get("a")
        return found["status"].get("message", "") if found else ""

    for domain in AB:
        told = public if net.topology == "p2p" and domain == "alice" else f"nsufficient {resource}"
        message = until(f"{domain} says why", lambda d=domain, words=told: words in reason(d) and reason(d))
        assert "Waiting for party bob" in message and "(since 20" in message
        assert ("nodes are available" in message) is (told != public)
        assert net.at(domain).tasks(second)["a"]["status"]["phase"] == "Pending"
    assert puppets.starts(second) == []
    puppets.release(first)
    succeeded(net, first, *AB)
    puppets.release(second)
    succeeded(net, second, *AB)
    assert len(puppets.starts(second)) == 2


def test_gateways_measure_a_task_while_it_runs_and_follow_its_limit(net: Net, puppets: Puppets, name: str) -> None:
    puppets.hold(name)
    net.at("alice").submit(job(name, "alice", task("a", *AB), bandwidthRequest="10Mbps"))
    puppets.until_started(name, 2)
    plane = net.at("alice")
    tasks = "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciatasks"
    found = plane.tasks(name)["a"]
    task_id, parties = found["metadata"]["name"], found["spec"]["parties"]

    def usage() -> dict[str, Any]:
        gateways = plane.list("/apis/kuscia.secretflow/v1alpha1/namespaces/alice/gateways")
        listed = [each for gateway in gateways for each in gateway.get("status", {}).get("usage") or ()]
        return {each["peer"]: each for each in listed if each["task"] == task_id}

    until("alice's gateway measures the task", lambda: "bob" in usage())
    for party in parties:
        if party["domainID"] == "alice":
            party["bandwidthLimits"] = [{"destinationID": "bob", "limitKBps": 1000}]
    plane.merge(f"{tasks}/{task_id}", {"spec": {"parties": parties}})
    until("the limit holds at the gateway", lambda: usage()["bob"].get("limitBitsPerSecond") == 8_192_000)
    puppets.release(name)
    succeeded(net, name, *AB)
    until("nothing is measured any more", lambda: not usage())


def test_jobs_that_need_each_others_nodes_do_not_wait_for_ever(net: Net, puppets: Puppets, name: str) -> None:
    """Each takes more than half of both nodes, so only one can run at a time; begun from both ends at once."""
    big = [{"domainID": each, "resources": {"requests": {"cpu": "3"}}} for each in AB]
    names = [f"{name}-{who}-{number}" for number in range(2) for who in AB]
    for each in names:
        who = each.split("-")[2]
        net.at(who).submit(job(each, who, task("a", *big, scheduleConfig={"resourceReservedSeconds": 1, "retryIntervalSeconds": 1})))  # fmt: skip
    for each in names:
        succeeded(net, each, *AB)
        assert len(puppets.starts(each)) == 2


# What others wrote.


def test_manifests_from_kuscia_apply_unchanged_and_run(net: Net, name: str) -> None:
    for plane in net.planes:
        plane.kubectl("apply", "-f", "-", stdin=SECRETFLOW_IMAGE)
    net.at("alice").kubectl("apply", "-f", "-", stdin=JOB.format(name=name, image="secretflow-like"))
    succeeded(net, name, *AB)
    shown = net.at("alice").kubectl("get", "kj", name, "-n", "cross-domain")
    assert "Succeeded" in shown
    assert set(net.at("bob").tasks(name)) == {"first", "second"}


@center_only
def test_a_task_without_a_job_runs(net: Net, name: str) -> None:
    plane = net.at("alice")
    plane.kubectl("apply", "-f", "-", stdin=SECRETFLOW_IMAGE)
    plane.kubectl("apply", "-f", "-", stdin=TASK.format(name=name))
    path = f"/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciatasks/{name}"
    until("the task ended", lambda: plane.get(path).get("status", {}).get("completionTime"))
    assert plane.get(path)["status"]["phase"] == "Succeeded"
    plane.kubectl("delete", "kt", name, "-n", "cross-domain")


def test_an_image_that_nobody_has_is_named_while_it_is_waited_for(net: Net, name: str) -> None:
    for plane in net.planes:
        plane.kubectl("apply", "-f", "-", stdin=PSI_IMAGE)
    manifest = JOB.format(name=name, image="psi-image").replace("role: client", 'role: ""').replace("role: server", 'role: ""')  # fmt: skip
    net.at("alice").kubectl("apply", "-f", "-", stdin=manifest)

    def reason() -> str:
        found = net.at("alice").tasks(name).get("first")
        return found["status"].get("message", "") if found else ""

    assert "container psi" in until(
        "both say what they lack", lambda: "nobody-has/psi-anolis8" in reason() and reason()
    )
    net.at("alice").command(name, "Cancel")
    for domain in AB:
        net.at(domain).until_phase(name, "Cancelled")


# Messages.


def test_engines_talk_through_the_gateways(net: Net, name: str) -> None:
    """The built-in engine sends five megabytes each way; so much came in at the public ports of both."""
    before = {each: received(net.domains[each]) for each in AB}
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="sample", input='{"mbytes": 5}')))
    succeeded(net, name, *AB)
    for each in AB:
        assert received(net.domains[each]) - before[each] > 5_000_000, f"the message to {each} took another way"


PUSHER = """
import sys, urllib.error, urllib.request
task, domain = open("/tmp/task.conf").read().split()[:2]
other = {"alice": "bob", "bob": "alice"}[domain]

def call(action, body=b"", session="session_" + task):
    named = {"x-ptp-session-id": session, "x-ptp-topic": "greeting", "x-ptp-target-node-id": other}
    url = "http://transport." + domain + ".svc/v1/interconn/chan/" + action
    request = urllib.request.Request(url, body, {**named, "x-ptp-source-node-id": "forged"}, method="POST")
    try:
        return urllib.request.urlopen(request, timeout=300).read()
    except urllib.error.HTTPError as problem:
        return problem.code

assert b"E0000000000" in call("push", ("hello from " + domain).encode()), "push"
assert ("hello from " + other).encode() in call("pop?timeout=200"), "pop"
for action in ("push", "pop", "release"):
    assert call(action, session="session_another") == 403, action
"""


def test_engines_push_and_pop_messages(net: Net, name: str) -> None:
    """Through the message queues of both domains, each for its own task only."""
    net.register(app_image("pusher", PUSHER, sys.executable))
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="pusher")))
    succeeded(net, name, *AB)


FORGER = """
printf '\\033]0;owned\\007\\033[2J\\n'
printf '{"time": "2026-01-02T03:04:05.678Z", "level": "error", "source": "controller", "task": "x", "party": "bob"}\\n'
"""


def test_what_an_engine_prints_is_found_as_its_own_and_nothing_else(net: Net, name: str) -> None:
    """And in the logs of its own domain only."""
    net.register(app_image("forger", FORGER))
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="forger")))
    succeeded(net, name, *AB)
    for domain in AB:
        path = f"/api/v1/namespaces/{domain}/pods/*/log?job={name}&source=engine"
        lines = until(f"{domain} has lines", lambda p=path, d=domain: net.at(d).get(p)["lines"])
        assert {(line["source"], line["party"], line["level"]) for line in lines} == {("engine", domain, "")}
        assert len(lines) == 2
    own = net.at("alice").get(f"/api/v1/namespaces/alice/pods/*/log?job={name}&source=controller")["lines"]
    assert all("owned" not in line["text"] for line in own)


def received(domain: Domain) -> int:
    """Bytes that came in at the public port of a gateway, by Envoy's own count."""

    async def asked() -> str:
        admin = Admin(GatewayPaths.of(domain.paths).run / "envoy.sock")
        try:
            return await admin.ask("/stats?filter=^http.external.downstream_cx_rx_bytes_total$")
        finally:
            await admin.close()

    return int(asyncio.run(asked()).rpartition(":")[2])


# Metrics.

_MEASURED = """
import http.server, os, shutil, threading

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"# TYPE engine_rounds_total counter\\nengine_rounds_total{pod=\\"mine\\"} 7\\nnode_load1 98765.4\\ncoterie_jobs 98765.4\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.HTTPServer(("", int(os.environ["KUSCIA_PORT_TALK_NUMBER"])), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.mkfifo("/tmp/code", 0o600)
code = os.open("/tmp/code", os.O_RDWR)
shutil.copy("task.conf", "/tmp/hello.tmp")
os.rename("/tmp/hello.tmp", "/tmp/hello")
os._exit(int(os.read(code, 10)))
"""


def scraped(domain: Domain, port: int | None = None) -> list[str]:
    metrics = domain.settings.metrics
    with urllib.request.urlopen(f"http://{metrics.address}:{port or metrics.port}/metrics", timeout=20) as answer:
        return str(answer.read().decode()).splitlines()


def _pretender() -> dict[str, Any]:
    """An ordinary pod with the annotations of an engine."""
    marks = {
        labels.KUSCIA_TASK_ID: "pretended",
        labels.KUSCIA_JOB_ID: "pretended",
        labels.KUSCIA_SHOULD_BE_SCRAPED: "true",
        labels.KUSCIA_METRIC_PORT: "8000",
    }
    container = {"name": "main", "image": "coterie/host:latest", "command": ["sleep", "600"]}
    meta = {"name": "pretender", "namespace": "alice", "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


@p2p_only
def test_the_page_of_metrics_while_a_job_runs(net: Net, puppets: Puppets, name: str) -> None:
    """Each party sees its own engine and its own page; what the engine pretends to be is left out."""
    image = app_image("measured", "", metricProbe={"path": "/metrics", "port": "talk"})
    image["spec"]["image"] = {"name": "coterie/python", "tag": "latest"}
    container = image["spec"]["deployTemplates"][0]["spec"]["containers"][0]
    container["command"] = ["python", "-c", _MEASURED]
    net.register(image)
    puppets.hold(name)
    net.at("alice").apply(job(name, "alice", task("a", *AB, image="measured")), _pretender())
    pretender = "/api/v1/namespaces/alice/pods/pretender"
    until("the pretender is running", lambda: (net.at("alice").get(pretender) or {})["status"]["phase"] == "Running")
    found = {each.domain: each.task for each in puppets.until_started(name, 2)}
    for each in AB:
        domain = net.domains[each]
        pod = f"/api/v1/namespaces/{each}/pods/{found[each]}-0"
        # Before the first scrape: engines are asked every 15 seconds.
        until("the engine is running", lambda d=domain, p=pod: (d.get(p) or {})["status"]["phase"] == "Running")
        until(
            "the task is running",
            lambda d=domain: [t["status"]["phase"] for t in d.tasks(name).values()] == ["Running"],
        )
        page = scraped(domain)
        which = f'namespace="{each}",pod="{found[each]}-0",task="{found[each]}",party="{each}"'
        assert f'engine_rounds_total{{{which},exported_pod="mine"}} 7' in page
        assert f'coterie_source_up{{source="engine",{which}}} 1' in page
        assert 'coterie_engine_series_dropped_total{reason="reserved"} 2' in page
        info = f'namespace="{each}",pod="{found[each]}-0",job="{name}",task="{found[each]}",party="{each}"'
        assert f"coterie_pod_info{{{info}}} 1" in page
        assert not [line for line in page if line.endswith(" 98765.4") or "pretended" in line]
        assert 'coterie_jobs{phase="Running"} 1' in page
    net.at("alice").kubectl("delete", "pod", "-n", "alice", "pretender", "--now")
    puppets.release(name)
    succeeded(net, name, *AB)
    page = scraped(net.domains["alice"])
    values = dict(line.rpartition(" ")[::2] for line in page if not line.startswith("#"))
    for stage in ("waiting", "reserved", "starting", "running"):
        assert float(values[f'coterie_task_stage_seconds_count{{stage="{stage}"}}']) >= 1, stage
    assert float(values['kuscia_job_result_stats{result="succeeded"}']) >= 1
    assert float(values['coterie_scheduler_attempts_total{result="scheduled"}']) >= 1
    assert values['coterie_interconn_up{host="bob",member="alice"}'] == "1"
    down = [row for row, value in values.items() if row.startswith("coterie_source_up") and value == "0"]
    assert not [row for row in down if "engine" not in row], "every part of the page answers"
    assert 'coterie_queue_depth{controller="kusciajob"} 0' in scraped(net.domains["alice"], 8090)
    undocumented = [each for each in families_of(page) if not documented(each)]
    assert undocumented == []
    if PROMTOOL.exists():
        check_page("\n".join(page) + "\n")


_NOTHING_TO_SHOW = {
    "DCGM_": "no GPU on the machines of these tests",
    "coterie_datamesh_": "these engines read no data",
    "coterie_grant_": "these engines read no data",
    "gin_": "nobody calls KusciaAPI here, and a scrape does not wake it",
    "envoy_cluster_upstream_": "Envoy makes the counters of a route with its first request",
    "ss_": "a route that nobody uses has no connections",
    "coterie_container_restarts": "no container was restarted",
    "coterie_task_bandwidth_": "this task requests no bandwidth",
    "coterie_link_": "these links have no capacity",
    "apiserver_request_total": "no request failed",
    "coterie_pending": "nothing waits",
}
"""Families of panels that may be empty here, and why."""


@p2p_only
def test_every_panel_and_every_alert_works_on_a_live_network(
    net: Net, puppets: Puppets, name: str, tmp_path: Path
) -> None:
    if not PROMTOOL.exists():
        pytest.skip("no Prometheus here: run scripts/get-servers")
    puppets.hold(name)
    net.at("alice").apply(job(name, "alice", task("a", *AB)))
    puppets.until_started(name, 2)
    pages = [net.domains[each].settings.metrics for each in AB]
    (tmp_path / "rules.yml").write_text(alerts.text())

    async def look() -> tuple[list[str], list[tuple[str, str]]]:
        targets = [f"{page.address}:{page.port}" for page in pages]
        rules = f"rule_files: [{tmp_path / 'rules.yml'}]\n"
        async with running_prometheus(tmp_path, targets, interval="1s", extra=rules) as prometheus:
            await prometheus.wait_for_scrape(12)  # pods are sampled in the background, so the first pages lack them
            empty = []
            for board in BOARDS:
                for panel in board.panels:
                    for query in panel.queries:
                        expression = query.promql.replace("$instance", ".*").replace("$__rate_interval", "10s")
                        if not await prometheus.query(expression):
                            empty.append(f"{board.name}: {panel.title}: {expression}")
            return empty, await prometheus.rule_health()

    empty, rules = asyncio.run(look())
    unexplained = [each for each in empty if not any(family in each for family in _NOTHING_TO_SHOW)]
    assert not unexplained, "\n".join(unexplained)
    assert [each for each in rules if each[1] != "ok"] == [] and len(rules) == sum(len(g.alerts) for g in alerts.GROUPS)
    puppets.release(name)
    succeeded(net, name, *AB)


def families_of(page: list[str]) -> list[str]:
    return [line.split(" ")[2] for line in page if line.startswith("# TYPE ") and "engine_rounds" not in line]


def documented(family: str) -> bool:
    """By name in the guide, where `a_{b,c}_d` is two names, `a_*` all that begin so, and labels follow in braces."""
    text = (Path(__file__).parents[2] / "docs/guide/metrics.md").read_text()
    names = re.findall(r"`([a-zA-Z][a-zA-Z0-9_*]*(?:\{[^`}]*\}[a-zA-Z0-9_*]+)*)(?:\{[^`]*\})?`", text)
    patterns = [re.sub(r"\{(.*?)\}", lambda found: f"({found[1].replace(',', '|')})", each) for each in names]
    return any(re.fullmatch(each.replace("*", ".*"), family) for each in patterns)
