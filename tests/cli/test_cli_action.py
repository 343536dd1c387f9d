"""`coterie action` against a real API server without a functions process: what is sent, what is shown, what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from coterie.cli import actions
from coterie.cli.app import UsageError
from coterie.cli.commands.action_graph import connected, draw, graph_nodes
from coterie.kube.api.errors import NotFound, ServiceUnavailable
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport, json_reply
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kuscia.api.functions import code
from coterie.kuscia.api.functions.types import (
    ACTIONS,
    DEAD_LETTERS,
    Action,
    ActionSpec,
    HttpTrigger,
    Trigger,
    TriggerSpec,
)

T = TypeVar("T")
SCRIPT = "def action(req):\n    return None\n"
OLD, NEW = "v0123456789", "vabcdefabcd"


def with_client(live, work: Callable[[Client], Awaitable[T]]) -> T:
    async def converse() -> T:
        connection = kubeconfig.read(live.folder / "live-kubeconfig").resolve()
        client = Client(HttpTransport(connection), namespace=connection.namespace)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(converse())


def set_status(live, name: str, **status: Any) -> None:
    with_client(live, lambda client: client.patch_status(ACTIONS, name, client.namespace, {"status": status}))


def two_versions(live, name: str) -> None:
    versions = [
        {"name": OLD, "created": "2026-01-01T00:00:00Z", "percent": 0, "replicas": 0},
        {"name": NEW, "created": "2026-02-01T00:00:00Z", "percent": 100, "replicas": 2},
    ]
    set_status(live, name, version=NEW, versions=versions, readyReplicas=2, desiredReplicas=3, callsPerMinute=7)


def spec_of(live, name: str) -> Any:
    return json.loads(live("action", "show", name, "-o", "json").out)["spec"]


@pytest.fixture
def hello(live):
    (live.folder / "hello.py").write_text(SCRIPT)
    made = live("action", "create", "hello", "--script", "hello.py")
    assert (made.code, made.out) == (0, "action hello created\n"), made.err
    return live


def test_create_with_options_and_change_only_what_is_said(hello):
    done = hello(
        "action", "create", "calc", "--script", "hello.py", "--next", "hello,bob/score", "--timeout", "2m", "--concurrency", "4",
        "--max", "9", "--env", "A=b=c", "--memory", "64Mi", "--retries", "0", "--http", "/calc:get,post",
    )  # fmt: skip
    assert (done.code, done.lines) == (0, ["action calc created", "trigger calc-http calls calc at /calc"]), done.err
    spec = spec_of(hello, "calc")
    assert (spec["next"], spec["timeoutSeconds"], spec["concurrency"]) == (["hello", "bob/score"], 120, 4)
    assert (spec["scaling"]["maxReplicas"], spec["retries"]["limit"]) == (9, 0)
    assert (spec["env"], spec["resources"]) == ([{"name": "A", "value": "b=c"}], {"memory": "64Mi"})
    again = hello("action", "create", "calc", "--max", "2", "--next", "")
    assert again.out == "action calc changed\n", again.err
    assert spec_of(hello, "calc") == {**spec, "next": [], "scaling": {**spec["scaling"], "maxReplicas": 2}}
    assert hello("action", "create", "calc", "--max", "2").out == "action calc unchanged\n"
    shown = hello("action", "show", "calc").out
    assert "calc-http (GET,POST /calc)" in shown and "120 s, 0 retries" in shown


def test_an_archive_replaces_a_script(hello):
    with tarfile.open(hello.folder / "code.tar.gz", "w:gz") as archive:
        head = tarfile.TarInfo("app/main.py")
        head.size = len(SCRIPT)
        archive.addfile(head, io.BytesIO(SCRIPT.encode()))
    done = hello("action", "create", "hello", "--archive", "code.tar.gz", "--handler", "app.main.action")
    assert done.code == 0, done.err
    spec = spec_of(hello, "hello")
    assert "script" not in spec and base64.b64decode(spec["archive"])[:2] == b"\x1f\x8b"
    with tarfile.open(hello.folder / "code.tar.gz", "w:gz") as archive:
        head = tarfile.TarInfo("passwd")
        head.type, head.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(head)
    for name in ("hello", "other"):
        refused = hello("action", "create", name, "--archive", "code.tar.gz")
        assert refused.code == 1 and "is a link to '/etc/passwd'" in refused.err


def test_a_syntax_error(hello):
    (hello.folder / "bad.py").write_text("def action(req):\n    return (\n")
    new = hello("action", "create", "bad", "--script", "bad.py")
    assert new.code == 1 and "action.py, line 2: '(' was never closed" in new.err
    update = hello("action", "create", "hello", "--script", "bad.py")
    assert update.code == 0 and "the actors go on with the code that they have" in update.err


FILE = """
apiVersion: coterie.io/v1alpha1
kind: Trigger
metadata: {name: front}
spec: {action: front, http: {path: /front}}
---
apiVersion: coterie.io/v1alpha1
kind: Action
metadata: {name: front}
spec: {script: "def action(req): ...", next: [add, mul]}
---
apiVersion: coterie.io/v1alpha1
kind: Action
metadata: {name: add}
spec: {script: "def action(req): ...", next: [log]}
---
apiVersion: coterie.io/v1alpha1
kind: Action
metadata: {name: mul}
spec: {script: "def action(req): ...", next: [log]}
---
apiVersion: coterie.io/v1alpha1
kind: Action
metadata: {name: log}
spec: {script: "def action(req): ..."}
"""


def test_several_in_one_file_come_in_the_right_order(live):
    (live.folder / "all.yaml").write_text(FILE)
    done = live("action", "create", "-f", "all.yaml")
    names = ["action log", "action add", "action mul", "action front", "trigger front"]
    assert (done.code, done.lines) == (0, [f"{name} created" for name in names]), done.err
    assert live("action", "create", "-f", "all.yaml").lines == [f"{name} unchanged" for name in names]
    refused = live("action", "rm", "log")
    assert refused.code == 1 and "named in spec.next of add, mul" in refused.err
    gone = live("action", "rm", "log", "add", "front", "mul")
    assert gone.code == 0 and gone.lines[0] == "action front removed" and gone.lines[-1] == "action log removed", (
        gone.err
    )
    assert "no triggers" in live("action", "trigger", "ls").err


def test_a_cycle_in_a_file_is_named(live):
    (live.folder / "all.yaml").write_text(
        FILE.replace('spec: {script: "def action(req): ..."}', "spec: {script: x, next: [front]}")
    )
    done = live("action", "create", "-f", "all.yaml")
    assert done.code == 1 and "front -> add -> log -> front" in done.err


def test_files_of_the_seed(hello):
    (hello.folder / "brew.yaml").write_text("kind: Action\nmetadata: {name: brew}\nspec: {invokeActions: [hello]}\n")
    done = hello("action", "create", "-f", "brew.yaml", "-s", "hello.py")
    assert (done.code, done.out) == (0, "action brew created\n"), done.err
    assert spec_of(hello, "brew")["next"] == ["hello"]
    door = "kind: Ingress\nmetadata: {name: door}\nspec: {trigger: /brew, invokeAction: brew, httpType: POST}\n"
    assert hello("action", "create", "-f", "-", stdin=door).out == "trigger door created\n"
    assert "POST /brew" in hello("action", "trigger", "ls", "brew").out


def test_ls_versions_traffic_rollback(hello):
    two_versions(hello, "hello")
    condition = {"type": "ReloadFailed", "status": "True", "reason": "SyntaxError", "message": "line 3"}
    set_status(hello, "hello", conditions=[condition])
    row = hello("action", "ls").lines[1].split()
    assert row[:5] == ["hello", NEW, "2/3", "7", "0"] and "ReloadFailed: line 3" in hello("action", "ls").out
    assert [line.split()[0] for line in hello("action", "versions", "hello").lines[1:]] == [NEW, OLD]
    assert hello("action", "traffic", "hello", f"{OLD}=10,{NEW}=90").code == 0
    assert spec_of(hello, "hello")["traffic"] == [{"version": OLD, "percent": 10}, {"version": NEW, "percent": 90}]
    assert hello("action", "rollback", "hello").out == f"action hello: all calls go to {OLD}\n"
    assert spec_of(hello, "hello")["traffic"] == [{"version": OLD, "percent": 100}]
    last = hello("action", "rollback", "hello")
    assert last.code == 1 and "no version before" in last.err
    assert hello("action", "traffic", "hello", "latest").code == 0 and "traffic" not in spec_of(hello, "hello")
    (hello.folder / "new.py").write_text(SCRIPT + "\n# new\n")
    canary = hello("action", "create", "hello", "--script", "new.py", "--no-traffic")
    assert canary.code == 0 and spec_of(hello, "hello")["traffic"] == [{"version": NEW, "percent": 100}]
    taken = hello("action", "create", "hello", "--script", "hello.py")
    assert "All calls go to the new version" in taken.err and "traffic" not in spec_of(hello, "hello")
    assert code.version_name(ActionSpec(script=SCRIPT)) != NEW


def test_triggers(hello):
    assert hello("action", "trigger", "add", "hello", "--schedule", "0 6 * * *", "--param", "a=b").code == 0
    assert hello("action", "trigger", "add", "hello", "--schedule", "0 7 * * *", "-o", "name").out.endswith(
        "schedule-2\n"
    )
    assert hello("action", "trigger", "add", "hello", "--table", "*", "--name", "any").code == 0
    assert hello("action", "trigger", "add", "hello", "--http", "/h", "--key", "user").code == 0
    rows = {line.split()[0]: line for line in hello("action", "trigger", "ls").lines[1:]}
    assert set(rows) == {"any", "hello-http", "hello-schedule", "hello-schedule-2"} and "table *" in rows["any"]
    clash = hello("action", "trigger", "add", "hello", "--http", "/h:GET")
    assert clash.code == 1 and "Trigger hello-http has this path" in clash.err
    assert hello("action", "trigger", "rm", "any", "nothing").code == 1


def test_dead_letters(hello):
    async def give_up(client: Client) -> None:
        for name, action in (("d1", "hello"), ("d2", "hello.bob")):
            spec = {"action": action, "request": name, "reason": "timeout\x1b[31m", "attempts": 4}
            head = {"apiVersion": "coterie.io/v1alpha1", "kind": "DeadLetter"}
            await client.create(
                DEAD_LETTERS.as_dynamic,
                {**head, "metadata": {"name": name, "namespace": client.namespace}, "spec": spec},
            )

    with_client(hello, give_up)
    shown = hello("action", "dlq", "ls", "hello")
    assert [line.split()[0] for line in shown.lines[1:]] == ["d1", "d2"] and "\x1b" not in shown.out
    assert hello("action", "dlq", "replay", "d1").out == "deadletter d1 is sent again\n"
    assert "replaying" in hello("action", "dlq", "ls").lines[1]
    assert len(hello("action", "dlq", "ls", "hello.bob").lines) == 2
    assert hello("action", "dlq", "rm", "--action", "hello").code == 0
    assert "no dead letters" in hello("action", "dlq", "ls").err
    assert hello("action", "dlq", "replay", "d1").code == 1


def test_grants(hello):
    done = hello(
        "action", "grant", "hello", "--to", "bob", "--calls", "5", "--per-minute", "2", "--until", "30d", "--table", "t"
    )
    assert done.code == 0 and "/hello]" in done.out, done.err
    assert "5 calls, 2 a minute, until" in hello("action", "grants", "hello").out
    assert hello("action", "grant", "hello", "--to", "bob", "--calls", "6").code == 0
    (grant,) = json.loads(hello("action", "grants", "-o", "json").out)["items"]
    assert grant["spec"]["limit"] == {"calls": 6} and "tables" not in grant["spec"]
    assert hello("action", "revoke", "hello", "--to", "bob").code == 0
    assert hello("action", "revoke", "hello", "--to", "bob").code == 1
    own = hello("action", "grant", "nothing", "--to", "bob")
    assert own.code == 1 and "there is no Action nothing" in own.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("create", "name the function"),
        ("create ../x --script hello.py", "is no name of an action"),
        ("create x", "give its code"),
        ("create x --script nothing.py", "cannot be read"),
        ("create x --script hello.py --archive hello.py", "not both"),
        ("create x --script hello.py --next a/b/c", "PARTNER/NAME"),
        ("create x --script hello.py --next nobody", 'Not found: "nobody"'),
        ("create x --script hello.py --no-traffic", "there is no Action x yet"),
        ("create hello --max 1 --no-traffic", "for new code"),
        ("create x --script hello.py --http calc", "write a path"),
        ("create -f pod.yaml", "is not for `coterie action create`"),
        ("show nothing", "there is no Action nothing"),
        ("invoke a/b", "is no name of an action"),
        ("invoke hello --param a", "write NAME=VALUE"),
        ("result ../../secrets", "is not the id of a call"),
        ("logs hello --call xyz", "hex digits"),
        ("traffic hello v1=50", "add up to 100"),
        ("traffic hello v1=100", "is no version of hello"),
        ("rollback hello --to v1", "is no version of hello"),
        ("trigger add hello", "exactly one of"),
        ("trigger add hello --http /a --param a=b", "not for --http"),
        ("trigger add hello --schedule 61", "spec.schedule"),
        ("trigger add nothing --http /a", "there is no Action nothing"),
        ("dlq replay", "name dead letters"),
        ("grant hello", "which partner"),
        ("grant hello --to bob --until soon", "write a time"),
        ("rm nothing", "there is no Action nothing"),
        ("graph nothing", "there is no Action nothing"),
    ],
)
def test_mistakes_are_explained(hello, words, problem):
    (hello.folder / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    done = hello("action", *words.split())
    assert done.code in (1, 2) and problem in done.err, done.err


# Calls, through the proxy of the API server.


def gateway(status: int, body: bytes, content: str = "text/plain") -> FakeTransport:
    return FakeTransport(lambda call: TransportResponse(status, {"content-type": content}, body))


def test_invoke_prints_the_answer(fake):
    transport = gateway(200, b"3")
    done = fake(transport)(
        "action", "invoke", "calc", "-n", "alice", "-p", "a=1", "-p", "sign=+", "--body", '{"b": 2}', "--key", "k", "--idempotency-key", "i",
    )  # fmt: skip
    assert (done.code, done.out, done.err) == (0, "3\n", "")
    assert transport.requests == [
        "POST /api/v1/namespaces/alice/services/serverless-gateway:6810/proxy/actions/calc?a=1&sign=%2B"
    ]
    (call,) = transport.calls
    assert (call.body, call.headers["Content-Type"]) == (b'{"b": 2}', "application/json")
    assert (call.headers["Coterie-Key"], call.headers["Idempotency-Key"]) == ("k", "i")


def test_publish_writes_a_record(fake):
    transport = gateway(200, b'{"topic": "orders", "partition": 2, "offset": 7}', "application/json")
    words = ("action", "publish", "orders", "-n", "alice", "--body", "x", "--key", "k")
    done = fake(transport)(*words)
    assert (done.code, done.out) == (0, "topic orders, partition 2, offset 7\n"), done.err
    place = "/api/v1/namespaces/alice/services/serverless-gateway:6810/proxy/coterie/topics/orders"
    assert transport.requests == [f"POST {place}"]
    (call,) = transport.calls
    assert (call.body, call.headers["Coterie-Key"]) == (b"x", "k") and "Content-Type" not in call.headers
    assert json.loads(fake(transport)(*words, "-o", "json").out)["offset"] == 7
    refused = fake(gateway(404, b"no Trigger reads the topic 'orders'"))(*words)
    assert refused.code == 1 and "no Trigger reads" in refused.err and "trigger add ACTION --topic" in refused.err
    for name in ("../actions/calc", "a/b", ".a", "", "a?b", "x" * 201):
        wrong = fake(transport)("action", "publish", name, "-n", "alice")
        assert wrong.code == 2 and "is no name of a topic" in wrong.err
    assert fake(transport)(*words, "--key", "a\nb").code == 2
    assert len(transport.calls) == 2


def test_invoke_shows_the_token_where_the_gateway_cannot_see_who_calls(fake):
    """Pods without networks of their own. Who may not read the Secret is told what the gateway says."""

    def answer(call: TransportRequest) -> TransportResponse:
        if "/secrets/" in call.path:
            return json_reply({"data": {"invoke-token": base64.b64encode(b"s3cret").decode()}})
        if call.headers.get("Coterie-Invoke-Token") == "s3cret":
            return TransportResponse(200, {"coterie-request": "r"}, b"3")
        return TransportResponse(403, {}, b"with the token")

    done = fake(FakeTransport(answer))("action", "invoke", "calc", "-n", "alice")
    assert (done.code, done.out) == (0, "3\n")

    def refused(call: TransportRequest) -> TransportResponse:
        if "/secrets/" in call.path:
            return json_reply({"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}, 403)
        return answer(call)

    done = fake(FakeTransport(refused))("action", "invoke", "calc", "-n", "alice")
    assert (done.code, done.out) == (1, "with the token\n")
    own = FakeTransport(lambda call: TransportResponse(403, {"coterie-request": "r"}, b"no"))
    assert fake(own)("action", "invoke", "calc", "-n", "alice").out == "no\n" and len(own.calls) == 1


def test_invoke_fails_when_the_function_does(fake):
    cli = fake(gateway(400, b"unknown sign"))
    done = cli("action", "invoke", "calc", "-n", "alice")
    assert (done.code, done.out, done.err) == (1, "unknown sign\n", "Error: the function answered 400\n")
    done = fake(gateway(500, b'{"a": 1}', "application/json"))("action", "invoke", "calc", "-n", "alice", "-o", "json")
    assert json.loads(done.out) == {"status": 500, "contentType": "application/json", "body": {"a": 1}}


def test_asynchronous_calls(fake):
    transport = gateway(202, b'{"id": "abc"}', "application/json")
    done = fake(transport)("action", "invoke", "calc", "-n", "alice", "--async")
    assert (done.code, done.out) == (0, "abc\n") and transport.calls[0].headers["Prefer"] == "respond-async"
    waiting = fake(gateway(202, b""))("action", "result", "abc", "-n", "alice")
    assert waiting.code == 1 and "has no answer yet; --wait" in waiting.err
    answers = iter([TransportResponse(202), TransportResponse(200, {}, b"done")])
    ready = fake(FakeTransport(lambda call: next(answers)))("action", "result", "abc", "-n", "alice", "--wait")
    assert (ready.code, ready.out) == (0, "done\n")
    old = fake(gateway(404, b"unknown"))("action", "result", "abc", "-n", "alice")
    assert old.code == 1 and "older than 24 hours" in old.err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound("services not found"), "made with the first Action"),
        (ServiceUnavailable("no endpoints"), "does not answer"),
    ],
)
def test_a_gateway_that_is_not_there(fake, error, words):
    def answer(call: TransportRequest) -> TransportResponse:
        raise error

    done = fake(FakeTransport(answer))("action", "invoke", "calc", "-n", "alice")
    assert done.code == 1 and words in done.err


def test_a_gateway_that_is_being_started_is_waited_for(fake):
    starting = b'{"kind": "Status", "apiVersion": "v1", "code": 503, "message": "no endpoints available for service"}'
    answers = iter([TransportResponse(503, {}, starting), TransportResponse(200, {}, b"hello")])
    done = fake(FakeTransport(lambda call: next(answers)))("action", "invoke", "calc", "-n", "alice")
    assert (done.code, done.out) == (0, "hello\n")


def test_logs_of_one_call(fake):
    action = {"apiVersion": "coterie.io/v1alpha1", "kind": "Action", "metadata": {"name": "calc"}, "spec": {}}

    def pod(name: str, label: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": name, "labels": {"coterie.io/action": label}},
            "spec": {},
            "status": {},
        }

    def answer(call: TransportRequest) -> TransportResponse:
        if call.path.endswith("/actions/calc"):
            return json_reply(action)
        if call.path.endswith("/pods"):
            pods = [pod("calc-1", "calc"), pod("calc-2", "calc.bob"), pod("other", "calculator")]
            return json_reply({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
        assert call.path.endswith("/log") and "container=actor" in call.query
        name = call.path.split("/")[-2].encode()
        return TransportResponse(200, {}, b"", Lines([b"started", b"call=ab12 from " + name, b"call=cd34 no"]))

    cli = fake(FakeTransport(answer))
    assert cli("action", "logs", "calc", "-n", "alice", "--call", "ab1").lines == [
        "calc-1  call=ab12 from calc-1",
        "calc-2  call=ab12 from calc-2",
    ]
    assert len(cli("action", "logs", "calc", "-n", "alice").lines) == 6


class Lines:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    async def read(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines

    async def close(self) -> None: ...


DOMAINS = "/apis/kuscia.secretflow/v1alpha1/domains"


def test_functions_are_in_the_namespace_of_the_domain(fake):
    def domain(name: str, **spec: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": spec}

    def answer(*domains: dict[str, Any]) -> FakeTransport:
        def reply(call: TransportRequest) -> TransportResponse:
            if call.path == DOMAINS:
                return json_reply({"kind": "DomainList", "apiVersion": "v1", "metadata": {}, "items": list(domains)})
            return TransportResponse(200, {}, b"ok")

        return FakeTransport(reply)

    one = answer(domain("alice"), domain("bob", role="partner"))
    assert fake(one)("action", "invoke", "calc").out == "ok\n" and "/namespaces/alice/services/" in one.requests[-1]
    several = fake(answer(domain("alice"), domain("bob")))("action", "invoke", "calc")
    assert several.code == 1 and "several domains; say whose functions with -n: alice, bob" in several.err


# The graph.


def action(name: str, *targets: str) -> Action:
    made = Action(spec=ActionSpec(next=targets))
    return type(made)(metadata=type(made.metadata)(name=name), spec=made.spec)


def trigger(name: str, target: str, path: str) -> Trigger:
    made = Trigger(spec=TriggerSpec(action=target, http=HttpTrigger(path=path)))
    return type(made)(metadata=type(made.metadata)(name=name), spec=made.spec)


def test_the_graph_is_drawn():
    nodes = graph_nodes(
        [
            action("calc", "add", "mul", "bob/score"),
            action("add", "log"),
            action("mul", "log"),
            action("log"),
            action("alone"),
        ],
        [trigger("door", "calc", "/calc")],
    )
    text = "\n".join(draw(nodes))
    order = ["ANY /calc", "calc ", "add ", "mul ", "log ", "bob/score"]
    assert all(word in text for word in order) and text.index("ANY /calc") < text.index(
        "calc  0/0 actors"
    ) < text.index("log ")
    assert text.index("add ") < text.index("log ") and text.index("mul ") < text.index("log ")
    assert [line for line in text.splitlines() if not line or "alone" in line] == [
        "",
        "●  alone  0/0 actors, 0 calls/min",
    ]
    assert set(connected(nodes, "mul")) == {"trigger/door", "calc", "mul", "log"}


def test_the_graph_of_the_server(hello):
    hello("action", "create", "calc", "--script", "hello.py", "--next", "hello,bob/score", "--http", "/calc")
    two_versions(hello, "calc")
    drawn = hello("action", "graph")
    assert drawn.code == 0 and "2/3 actors, 7 calls/min" in drawn.out and "bob/score  (partner)" in drawn.out
    assert "n1[" in hello("action", "graph", "-o", "mermaid").out
    nodes = {each["name"]: each for each in json.loads(hello("action", "graph", "calc", "-o", "json").out)["nodes"]}
    assert nodes["calc"]["callsPerMinute"] == 7 and nodes["trigger/calc-http"]["next"] == ["calc"]


# Words of the command line.


def test_moments():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert actions.moment("12h", now) == "2026-01-01T12:00:00Z"
    assert actions.moment("2026-03-01T00:00:00+01:00", now) == "2026-02-28T23:00:00Z"
    with pytest.raises(UsageError):
        actions.moment("d", now)


def test_http_paths():
    assert actions.http_trigger("/a:get, post") == {"path": "/a", "methods": ["GET", "POST"]}
    with pytest.raises(UsageError):
        actions.http_trigger("/a:")
