"""logs, exec and top: which pod is meant, what is asked of the server, and how it is shown."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from coterie.cli.terminal import Keyboard, Screen, is_terminal, size_of
from coterie.kube.api.errors import NotFound
from coterie.kube.client.fake import FakeStream, FakeTransport, json_reply, stream_reply
from coterie.kube.client.transport import TransportRequest, TransportResponse

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "default"},
    "spec": {"containers": [{"name": "main"}, {"name": "proxy"}], "initContainers": [{"name": "setup"}]},
}


def _pods(annotations: dict[str, str] | None = None, lines: tuple[bytes, ...] = (b"one", b"two")) -> FakeTransport:
    pod = {**POD, "metadata": {**POD["metadata"], "annotations": annotations or {}}}

    def answer(call: TransportRequest) -> TransportResponse:
        if call.path.endswith("/log"):
            stream = FakeStream()
            stream._lines = list(lines)
            return stream_reply(stream.end())
        if call.path.endswith("/pods/web-0"):
            return json_reply(pod)
        raise NotFound("not here")

    return FakeTransport(answer)


# logs


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", "container=main"),
        ("-c proxy", "container=proxy"),
        ("-c setup", "container=setup"),
        ("-f --tail 3", "container=main&follow=true&tailLines=3"),
        ("--tail=-1", "container=main"),
        ("--tail=0", "container=main&tailLines=0"),
        ("--since 1.5m --timestamps", "container=main&timestamps=true&sinceSeconds=90"),
        ("--since 0.5s", "container=main&sinceSeconds=1"),
        ("--since-time 2026-01-02T03:04:05Z -p", "container=main&previous=true&sinceTime=2026-01-02T03%3A04%3A05Z"),
    ],
)
def test_logs_asks_for_what_was_typed(fake, words, asked):
    transport = _pods()
    told = fake(transport)("logs", "web-0", *words.split())
    assert (told.code, told.out) == (0, "one\ntwo\n")
    assert transport.requests[-1] == f"GET /api/v1/namespaces/default/pods/web-0/log?{asked}"
    chosen = "-c" not in words.split()
    assert told.err == ('Defaulted container "main" out of: main, proxy, setup\n' if chosen else "")


def test_the_pods_own_default_container_is_taken_silently(fake):
    transport = _pods({"kubectl.kubernetes.io/default-container": "proxy"})
    told = fake(transport)("logs", "web-0")
    assert "container=proxy" in transport.requests[-1]
    assert told.err == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["logs"], 2, "say whose log is meant"),
        (["logs", "a", "b"], 2, "say whose log is meant"),
        (["logs", "web-0", "--tail", "x"], 2, "is not a number of lines"),
        (["logs", "web-0", "--tail=-2"], 2, "is not a number of lines"),
        (["logs", "web-0", "--since", "1h", "--since-time", "x"], 2, "not both"),
        (["logs", "web-0", "-c", "nope"], 1, 'has no container "nope"; choose with -c one of: main, proxy, setup'),
        (["logs", "pods/"], 2, "is neither a pod's name nor TYPE/NAME"),
        (["logs", "gone"], 1, "Error from server (NotFound)"),
        (["exec", "web-0"], 2, "the command after `--`"),
        (["exec", "web-0", "ls"], 2, "the command after `--`"),
        (["exec", "--", "ls"], 2, "the command after `--`"),
        (["top"], 2, "say whether nodes or pods are meant"),
        (["top", "deploy"], 2, "say whether nodes or pods are meant"),
        (["top", "pod", "web-0", "-A"], 2, "one name needs neither"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(fake, words, code, said):
    told = fake(_pods())(*words)
    assert told.code == code
    assert said in told.err
    assert told.err.count("\n") == 1


# exec


def test_the_words_after_the_dashes_are_not_ours(fake):
    """Neither the shell's `-c` nor its `--help` is taken for an option of this command."""
    told = fake(_pods())("exec", "web-0", "-c", "nope", "--", "sh", "-c", "exit 1", "--help")
    assert 'has no container "nope"' in told.err


_WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: NotIn, values: [old]}]}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: alone}
spec: {selector: {app: nothing}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-a, labels: {app: web}}
spec: {containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-b, labels: {app: web}}
spec: {containers: [{name: main, image: x}]}
"""


@pytest.fixture
def workload(live):
    assert live("apply", "-f", "-", stdin=_WORKLOAD).code == 0
    return live


@pytest.mark.parametrize("named", ["deploy/web", "deployments.apps/web", "svc/web"])
@pytest.mark.parametrize("command", ["logs {}", "exec {} -- ls", "exec -i {} -- cat"])
def test_something_that_selects_pods_stands_for_one_of_them(workload, named, command):
    """The real server refuses because the pod has no node, and says which pod it was."""
    told = workload(*command.format(named).split())
    assert told.code == 1
    assert told.err == (
        "Found 2 pods, using pod/web-a\nError from server (BadRequest): pod web-a does not have a host assigned\n"
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("pod/web-b", "pod web-b does not have a host assigned"),
        ("svc/alone", "service/alone has no pods yet"),
        ("cm/kube-root-ca.crt", "not found"),
        ("ns/default", "namespace/default does not select pods"),
        ("nosuch/web", "doesn't have a resource type"),
    ],
)
def test_other_names(workload, named, said):
    told = workload("logs", named)
    assert told.code == 1
    assert said in told.err


def test_a_terminal_is_not_promised_where_there_is_none(workload):
    told = workload("exec", "-it", "web-a", "--", "sh")
    assert "There is no terminal here to hand over" in told.err
    assert told.code == 1


# top


def _usage(call: TransportRequest) -> TransportResponse:
    def pod(name: str, *containers: tuple[str, str, str]) -> dict[str, object]:
        used = [{"name": n, "usage": {"cpu": cpu, "memory": memory}} for n, cpu, memory in containers]
        return {"metadata": {"name": name, "namespace": "ns1"}, "containers": used}

    nodes = [
        {"metadata": {"name": "n2"}, "usage": {"cpu": "500m", "memory": "1048576Ki"}},
        {"metadata": {"name": "n1"}, "usage": {"cpu": "1", "memory": "512Mi"}},
    ]
    pods = [pod("web", ("proxy", "2m", "1Mi"), ("main", "30m", "9Mi")), pod("db", ("main", "5m", "100Mi"))]
    if call.path == "/api/v1/nodes":
        whole = {"cpu": "2", "memory": "4Gi"}
        items = [{"metadata": {"name": "n1"}, "status": {"allocatable": whole}}, {"metadata": {"name": "n2"}}]
        return json_reply({"kind": "NodeList", "metadata": {}, "items": items})
    if call.path.endswith("/pods/web"):
        return json_reply(pods[0])
    found = nodes if call.path.endswith("/nodes") else pods
    return json_reply({"metadata": {}, "items": [] if "none" in call.query else found})


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("node", ["NAME|CPU(CORES)|CPU(%)|MEMORY(BYTES)|MEMORY(%)", "n1|1000m|50%|512Mi|12%",
                  "n2|500m|<unknown>|1024Mi|<unknown>"]),
        ("no --sort-by memory --no-headers", ["n2|500m|<unknown>|1024Mi|<unknown>", "n1|1000m|50%|512Mi|12%"]),
        ("pods", ["NAME|CPU(CORES)|MEMORY(BYTES)", "db|5m|100Mi", "web|32m|10Mi"]),
        ("pod -A --sort-by cpu --no-headers", ["ns1|web|32m|10Mi", "ns1|db|5m|100Mi"]),
        ("pod --containers", ["POD|NAME|CPU(CORES)|MEMORY(BYTES)", "db|main|5m|100Mi", "web|main|30m|9Mi",
                              "web|proxy|2m|1Mi"]),
        ("pod web --no-headers", ["web|32m|10Mi"]),
    ],
)  # fmt: skip
def test_top(fake, words, lines):
    told = fake(FakeTransport(_usage))("top", *words.split())
    assert told.code == 0, told.err
    assert ["|".join(line.split()) for line in told.lines] == lines


def test_top_without_figures_and_as_json(fake):
    cli = fake(FakeTransport(_usage))
    none = cli("top", "pod", "-l", "app=none")
    assert (none.code, none.out) == (0, "")
    assert none.err.startswith("There are no figures for any pod")
    assert [each["metadata"]["name"] for each in json.loads(cli("top", "pod", "-o", "json").out)["items"]] == [
        "web",
        "db",
    ]
    assert json.loads(cli("top", "pod", "web", "-o", "json").out)["metadata"]["name"] == "web"


# The terminal.


def test_the_screen_does_not_break_characters_between_two_pieces():
    out = io.StringIO()
    screen = Screen(out)
    for byte in "grüß €".encode():
        screen.write(bytes((byte,)))
    assert out.getvalue() == "grüß €"


def test_the_screen_hands_bytes_through():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw)  # closes what is below it when it goes
    Screen(text).write(b"\xff\x00\r\n")
    assert raw.getvalue() == b"\xff\x00\r\n"


async def test_the_keyboard_reads_files_pipes_and_texts(tmp_path: Path):
    async def all_of(stream) -> bytes:
        keyboard = Keyboard(stream)
        found = b""
        while data := await keyboard.read():
            found += data
        assert await keyboard.read() == b""
        return found

    data = os.urandom(200_000)
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open() as file:
        assert await all_of(file) == data
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert await all_of(pipe) == b"piped"
        assert not is_terminal(pipe)
        assert size_of(pipe) is None
    assert await all_of(io.StringIO("typed")) == b"typed"
    assert not is_terminal(io.StringIO())
