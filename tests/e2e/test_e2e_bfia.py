"""Jobs with a node of another vendor that speaks BFIA: a real node with real engines, two real gateways, and a partner that shares no
code with ours. Messages of engines go through Transport in both directions."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bfia_kit import BfiaNode, Json, bfia_node
from bfia_partner import create_body
from jobs_kit import API, CROSS_DOMAIN, Domain, Object, app_image, network, until
from kubectl_runner import chosen
from network_kit import needs_names

pytestmark = [pytest.mark.xdist_group("e2e-bfia"), needs_names]
VERSIONS = chosen()
SCHEDULE, INVOKE = "/v1/interconn/schedule/", "/v1/interconn/chan/invoke"
ENGINE = """
import os, sys, time, urllib.request
given = {key: value for key, value in os.environ.items() if "." in key}
own, session = open("/tmp/task.conf").read().split()[1], given["config.session_id"]
partner = next(value for key, value in given.items() if key.startswith("config.node_id.") and value != own)
mode = given["runtime.component.parameter.mode"]
def call(action, topic, body=b""):
    headers = {"x-ptp-session-id": session, "x-ptp-topic": topic, "x-ptp-target-node-id": partner}
    request = urllib.request.Request(f"http://transport.{own}.svc/v1/interconn/chan/{action}", body, headers, method="POST")
    return urllib.request.urlopen(request, timeout=200).read()
if mode == "fail":
    sys.exit(3)
while mode == "wait":
    time.sleep(0.1)
def take(topic):
    import grpc
    with grpc.insecure_channel(f"transport.{own}.svc:80") as channel:
        pop = channel.unary_unary("/org.ppc.ptp.PrivateTransferTransport/pop")
        return pop(b"\\x0a\\x04" + topic.encode() + b"\\x10\\x64", metadata=(("x-ptp-session-id", session), ("x-ptp-target-node-id", partner)))
if mode in ("talk", "grpc"):
    for number in range(int(given["runtime.component.parameter.count"])):
        pushed = call("push", "there", b"message %d" % number)
        assert b"E0000000000" in pushed, pushed
        answer = take("back") if mode == "grpc" else call("pop?timeout=100", "back")
        assert b"MESSAGE %d" % number in answer, answer
"""


def engine() -> Object:
    made = app_image("engine", ENGINE, "python")
    made["spec"]["image"] = {"name": "coterie/python", "tag": "latest"}
    return made


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Domain, BfiaNode]]:
    folder = tmp_path_factory.mktemp("bfia")
    roomy = {"capacity": {"cpu": 4, "memory": "8Gi"}, "reservedResources": {"cpu": 0, "memory": 0}}
    with network(folder / "net", "p2p", "alice", kubectl=VERSIONS[-1], settings={"alice": roomy}) as net:
        alice = net.at("alice")
        with bfia_node("bank", alice, folder / "bank") as bank:
            alice.apply(engine())
            yield alice, bank
            if where := os.environ.get("COTERIE_BFIA_RECORD"):
                record(bank, Path(where))
        assert alice.complaints() == []


def record(bank: BfiaNode, folder: Path) -> None:
    """What was said, one exchange a line, for `tests/kuscia/bfia/test_bfia_conversations.py`. Ids of tasks that change are named after their component;
    of questions that repeat, each new answer is kept."""
    told = bank.log
    text = json.dumps(told["said"])
    for task, (job, component) in told["tasks"].items():
        text = text.replace(task, f"{job}-{component}")
    seen: set[str] = set()
    lines = [json.dumps(each, sort_keys=True) for each in json.loads(text)]
    for name, ours_to_say in (("of_alice", True), ("of_the_partner", False)):
        kept = [line for line in lines if (json.loads(line)["to"] == "bank") is ours_to_say]
        kept = [line for line in kept if not ("poll" in line or "status_all" in line) or not (line in seen or seen.add(line))]  # type: ignore[func-returns-value]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in kept))


@pytest.fixture
def alice(sides: tuple[Domain, BfiaNode]) -> Domain:
    return sides[0]


@pytest.fixture
def bank(sides: tuple[Domain, BfiaNode]) -> BfiaNode:
    return sides[1]


def job_of(body: Json) -> Object:
    """The KusciaJob of a request: one that we begin. As the guide describes it."""
    config, tasks = body["config"], []
    for each in body["dag"]["components"]:
        name, parties, given = each["name"], [], {}
        for role in ("host", "guest", "arbiter"):
            for index, node in enumerate(config["role"].get(role, ())):
                params = config["task_params"].get(role, {}).get(str(index), {})
                if name in params:
                    parties.append({"domainID": node, "role": role})
                    given.setdefault(role, {})[str(index)] = {name: params[name]}
        content = {key: each[key] for key in ("name", "module_name", "input", "output")}
        content |= {"role": config["role"], "initiator": config["initiator"], "task_params": given}
        needs = [wanted["key"].partition(".")[0] for wanted in each["input"]]
        task = {"alias": name, "appImage": each["code"], "parties": parties, "taskInputConfig": json.dumps(content)}
        tasks.append({**task, **({"dependencies": needs} if needs else {})})
    meta = {"name": body["job_id"], "namespace": CROSS_DOMAIN}
    spec = {"initiator": config["initiator"]["node_id"], "tasks": tasks, "scheduleMode": "Strict", "maxParallelism": 2}
    return {"apiVersion": API, "kind": "KusciaJob", "metadata": meta, "spec": spec}


def ours(name: str, **components: Json) -> Object:
    return job_of(create_body(name, "alice", "bank", tuple(components), **components))


def begin(bank: BfiaNode, name: str, component: str, params: Json, task: str) -> None:
    """A job of one component that the bank begins, with its task."""
    created = bank.ask("job/create", create_body(name, "bank", "alice", (component,), **{component: params}))
    assert created == {"code": 200, "msg": "success", "data": {"status": "PENDING"}}
    bank.control("own", {"job": name, "components": [component], "task": task, "component": component})
    assert bank.ask("job/start", {"job_id": name})["code"] == 200
    assert bank.ask("task/start", {"task_id": task, "job_id": name, "task_name": component})["code"] == 200


def begin_echo(bank: BfiaNode) -> None:
    bank.control("plan", {"echo": {"ends_after": 2, "partner": "alice"}})
    begin(bank, "b-echo", "echo", {"mode": "grpc", "count": 2}, "t-echo")


def told(bank: BfiaNode, task: str, state: str) -> None:
    """What the bank hears about our part."""

    def same() -> bool:
        answer = bank.ask("task/poll", {"task_id": task, "role": "host"})
        if answer["data"].get("status") == state:
            return True
        time.sleep(0.3)  # a partner has a limit of requests
        return False

    try:
        until(f"alice says {state} of {task}", same)
    except AssertionError as problem:
        job = next(of for name, (of, _) in bank.log["tasks"].items() if name == task)
        raise AssertionError(f"{problem}\n{bank.alice.told(job)}") from problem


def message_of(alice: Domain, job: str, phase: str) -> str:
    return str(alice.until_phase(job, phase)["status"].get("message", ""))


def test_jobs_of_ours_run_fail_and_stop_though_the_partner_is_away(alice: Domain, bank: BfiaNode) -> None:
    bank.control(
        "plan",
        {
            "talk": {"ends_after": 3, "partner": "alice"},
            "broken": {"state": "FAILED"},
            "lame": {"state": "RUNNING"},
            "long": {"state": "RUNNING"},
        },
    )
    alice.submit(ours("a-talk", talk={"mode": "talk", "count": 3}, after={"mode": "end"}))
    alice.submit(ours("a-broken", broken={"mode": "wait"}))
    alice.submit(ours("a-lame", lame={"mode": "fail"}))
    alice.submit(ours("a-stop", long={"mode": "wait"}))
    assert alice.until_phase("a-talk", "Succeeded")["status"]["stageStatus"]["bank"] == "JobStartStageSucceeded"
    assert bank.paths("a-talk") == ["job/create", "job/start", "task/start", "task/start"]
    assert "bank says that its part failed" in message_of(alice, "a-broken", "Failed")
    alice.until_phase("a-lame", "Failed")
    until("the bank's tasks run", lambda: "task/start" in bank.paths("a-stop"))
    bank.kill()
    alice.command("a-stop", "Stop")
    alice.until_phase("a-stop", "Failed")
    assert alice.job("a-stop")["status"]["stageStatus"]["bank"] == "JobStartStageSucceeded", "it was not told yet"
    bank.start()
    for name in ("a-broken", "a-lame", "a-stop"):
        until(f"the bank is told to stop {name}", lambda name=name: "job/stop" in bank.paths(name))
    assert all(each["from"] == "alice" for each in bank.log["said"] if each["to"] == "bank")


def test_jobs_of_the_partner_run_fail_and_stop_under_our_policy(alice: Domain, bank: BfiaNode) -> None:
    bank.control("plan", {"halted": {"state": "RUNNING"}})
    begin_echo(bank)
    begin(bank, "b-fails", "fails", {"mode": "fail"}, "t-fails")
    begin(bank, "b-stop", "halted", {"mode": "wait"}, "t-stop")
    begin(bank, "b-task", "sole", {"mode": "wait"}, "t-sole")
    told(bank, "t-echo", "SUCCESS")
    told(bank, "t-fails", "FAILED")
    # Again is the same, another is refused.
    again = bank.ask("job/create", create_body("b-echo", "bank", "alice", ("echo",)))
    assert (again["code"], again["msg"]) == (400, "Job already exists")
    assert bank.ask("task/start", {"task_id": "t-echo", "job_id": "b-echo", "task_name": "echo"})["code"] in (200, 400)
    assert bank.ask("task/start", {"task_id": "t-2", "job_id": "b-stop", "task_name": "halted"})["code"] == 400
    told(bank, "t-stop", "RUNNING")
    for _ in range(2):
        assert bank.ask("job/stop", {"job_id": "b-stop"})["code"] == 200
    alice.until_phase("b-stop", "Failed")
    assert bank.state_of("b-stop") == {"status": {"t-stop": "FAILED"}}
    assert bank.ask("job/start", {"job_id": "b-stop"})["code"] == 400
    told(bank, "t-sole", "RUNNING")
    assert bank.ask("task/stop", {"task_id": "t-sole"})["code"] == 200
    told(bank, "t-sole", "FAILED")


def test_without_a_policy_a_partners_job_waits_and_all_of_it_is_in_the_evidence(alice: Domain, bank: BfiaNode) -> None:
    alice.call("DELETE", f"/apis/{API}/partnerpolicies/bank")
    begin(bank, "b-asks", "ask", {"mode": "end"}, "t-ask")
    found = alice.until_phase("b-asks", "AwaitingApproval")
    assert "there is no policy for bank" in found["status"].get("message", "")
    assert bank.ask("task/poll", {"task_id": "t-ask", "role": "host"})["data"] == {"status": "PENDING"}
    assert not alice.tasks("b-asks")
    alice.decide("b-asks", "JobAccepted")
    told(bank, "t-ask", "SUCCESS")
    begin(bank, "b-no", "no", {"mode": "end"}, "t-no")
    alice.until_phase("b-no", "AwaitingApproval")
    alice.decide("b-no", "JobRejected")
    alice.until_phase("b-no", "ApprovalReject")
    assert bank.ask("task/poll", {"task_id": "t-no", "role": "host"})["data"] == {"status": "FAILED"}
    alice.open_to("bank")
    events = until("the evidence is written", lambda: _evidence(alice, "b-asks"))
    assert {"job.created", "job.approved"} <= {each["kind"] for each in events}


def _evidence(alice: Domain, job: str) -> list[Json]:
    root = str(alice.paths.home.parent)
    words = [
        sys.executable,
        "-m",
        "coterie",
        "audit",
        "ls",
        "--job",
        job,
        "--domain",
        "alice",
        "--root",
        root,
        "-o",
        "json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [each for each in found if "approved" in each["kind"]] and found


def test_a_second_partner_reaches_nothing_of_the_first(
    alice: Domain, bank: BfiaNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bank.control("plan", {"held": {"state": "RUNNING"}})
    begin(bank, "b-held", "held", {"mode": "wait"}, "t-held")
    told(bank, "t-held", "RUNNING")
    rival = BfiaNode("rival", alice, tmp_path_factory.mktemp("rival") / "r")
    rival.introduce()

    def known() -> bool:
        return rival.direct(SCHEDULE + "job/stop", b"{}")[0] == 200

    until("the rival is let in", known)

    def ask(path: str, body: Any, **headers: str) -> Json:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = rival.direct(SCHEDULE + path, content, **headers)
        assert status == 200, (path, status, answer)
        return dict(json.loads(answer))

    for path, body in (
        ("job/start", {"job_id": "b-held"}),
        ("job/stop", {"job_id": "b-held"}),
        ("task/start", {"task_id": "t-x", "job_id": "b-held", "task_name": "held"}),
        ("task/stop", {"task_id": "t-held"}),
        ("task/poll", {"task_id": "t-held", "role": "host"}),
    ):
        assert ask(path, body) == {"code": 400, "msg": "there is no such job", "data": {}}
    assert "comes from rival" in ask("job/create", create_body("r-1", "bank", "alice"))["msg"]
    assert ask("job/create", create_body("b-held", "rival", "alice"))["msg"] == "Job already exists"
    for garbage in (b"", b"\xff\xfe", b"[" * 100_000, b'{"job_id": 1}'):
        assert ask("job/create", garbage)["code"] == 400
    # Under the other's name nobody gets in, and large bodies are not read.
    assert rival.direct(SCHEDULE + "job/stop", b"{}", **{"x-node-id": "bank"})[0] == 401
    assert rival.direct(SCHEDULE + "job/stop", b"{}", **{"kuscia-source": "bank"})[0] == 401
    with contextlib.suppress(OSError):  # cut off while it sends
        status, answer = rival.direct(SCHEDULE + "job/create", bytes(5 << 20))
        assert status == 413 or json.loads(answer)["code"] == 400
    # Messages for engines of the other's task.
    pushed = {"x-ptp-target-node-id": "alice", "x-ptp-session-id": "session_t-held", "x-ptp-topic": "back"}
    status, answer = rival.direct(INVOKE, b"forged", **pushed, **{"x-ptp-source-node-id": "rival"})
    assert (status, b"E0000000403" in answer) == (200, True)
    assert rival.direct(INVOKE, b"forged", **pushed, **{"x-ptp-source-node-id": "bank"})[0] == 401
    told(bank, "t-held", "RUNNING")
    assert bank.ask("job/stop", {"job_id": "b-held"})["code"] == 200


def test_how_the_partners_part_ended_is_asked_for(alice: Domain, bank: BfiaNode) -> None:
    """Every 15 seconds: the job is that of a test before, so that they pass meanwhile."""
    if alice.job("b-echo") is None:
        begin_echo(bank)
    alice.until_phase("b-echo", "Succeeded")
    assert bank.state_of("b-echo") == {"status": {"t-echo": "SUCCESS"}}


@pytest.mark.skipif(not os.environ.get("COTERIE_BFIA_LONG"), reason="takes six minutes: make bfia")
@pytest.mark.timeout(900)
def test_a_partner_that_is_lost_ends_jobs_of_both_sides(alice: Domain, bank: BfiaNode) -> None:
    bank.control("plan", {"far": {"state": "RUNNING"}, "near": {"state": "RUNNING"}})
    alice.submit(ours("lost", far={"mode": "wait"}))
    begin(bank, "b-lost", "near", {"mode": "wait"}, "t-lost")
    until("the bank has begun its part", lambda: "task/start" in bank.paths("lost"))
    told(bank, "t-lost", "RUNNING")
    bank.kill()
    found = alice.until_phase("lost", "Failed", seconds=420)
    assert "bank has not said for" in found["status"]["message"]
    found = alice.until_phase("b-lost", "Failed", seconds=420)
    assert "bank has not answered for" in found["status"]["message"]
    bank.start()
    until("the bank is told", lambda: "job/stop" in bank.paths("lost"), 400)
