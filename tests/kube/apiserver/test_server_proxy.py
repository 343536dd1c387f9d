"""log, exec, attach and port-forward, with a small agent on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
from server_kit import PODS, Api, pod, serving

from coterie.http.messages import Response
from coterie.kube.api import errors
from coterie.kube.apiserver import agent_connection, relay
from coterie.kube.apiserver.audit import Audit, MemorySink


class Agent:
    """Answers on the paths of a kubelet as the test tells it to."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        self.answer = b""
        self.writers: list[asyncio.StreamWriter] = []
        self.received = b""
        self.lost = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self.silent = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        self.requests.append((method, path, dict(parse_qsl(query)), headers))
        if not self.silent:
            writer.write(self.answer)
        while data := await reader.read(65536):
            self.received += data
        self.lost += 1
        writer.close()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    agent = Agent()
    await agent.start()
    yield agent
    await agent.stop()


@pytest.fixture
async def api(agent: Agent) -> AsyncIterator[Api]:
    async with serving() as api:
        await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
        await node_status(api, agent.port)
        await api.post(PODS, pod("p"))
        await api.post(f"{PODS}/p/binding", {"target": {"name": "n"}})
        yield api


async def node_status(api: Api, port: int, addresses: list[dict[str, str]] | None = None) -> None:
    given = [{"type": "InternalIP", "address": "127.0.0.1"}] if addresses is None else addresses
    endpoint = {"kubeletEndpoint": {"Port": port}} if port else {}
    await api.patch("/api/v1/nodes/n/status", {"status": {"addresses": given, "daemonEndpoints": endpoint}})


class Sink:
    """The client's end of a followed log or of a tunnel."""

    def __init__(self, target: Any) -> None:
        self.data = b""
        self.ended = ""
        self.pending = 0
        self.paused = False
        self.room = asyncio.Event()
        self.room.set()
        self._target = target
        target.opened(self)

    def write(self, chunk: bytes) -> None:
        self.data += chunk

    async def drain(self) -> None:
        await self.room.wait()

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def leave(self) -> None:
        self._end("left")

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            self._target.closed()


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


# ---- logs ----


async def test_a_log(api: Api, agent: Agent):
    agent.answer = answer(b"line 1\nline 2\n")
    response = await api.raw(
        "GET", f"{PODS}/p/log?tailLines=2&timestamps=true&follow=&other=1&sinceTime=2026-01-02T03:04:05Z"
    )
    assert (response.status, response.content_type) == (200, "text/plain")
    sink = Sink(response.stream)
    await until(lambda: sink.ended)
    assert (sink.data, sink.ended) == (b"line 1\nline 2\n", "closed")
    method, path, query, _ = agent.requests[0]
    assert (method, path) == ("GET", "/containerLogs/default/p/main")
    assert query == {"tailLines": "2", "timestamps": "true", "sinceTime": "2026-01-02T03:04:05Z"}
    await until(lambda: agent.lost == 1)


@pytest.mark.parametrize("form", ["chunked", "until closed"])
async def test_a_followed_log(api: Api, agent: Agent, form: str):
    chunked = form == "chunked"
    agent.answer = b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n" if chunked else b"") + b"\r\n"
    sink = Sink((await api.raw("GET", f"{PODS}/p/log?follow=true")).stream)
    for line in (b"one\n", b"two\n"):
        agent.writers[0].write(b"%x\r\n%b\r\n" % (len(line), line) if chunked else line)
        await until(lambda line=line: sink.data.endswith(line))
    assert not sink.ended
    if chunked:
        agent.writers[0].write(b"0\r\n\r\n")
    else:
        agent.writers[0].close()
    await until(lambda: sink.ended)
    assert (sink.data, sink.ended) == (b"one\ntwo\n", "closed")


async def test_a_log_that_breaks_off_does_not_look_complete(api: Api, agent: Agent):
    agent.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n"
    sink = Sink((await api.raw("GET", f"{PODS}/p/log?follow=true")).stream)
    await until(lambda: sink.data == b"one\n")
    agent.writers[0].close()
    await until(lambda: sink.ended)
    assert sink.ended == "aborted"


async def test_rubbish_inside_a_log(api: Api, agent: Agent):
    agent.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    sink = Sink((await api.raw("GET", f"{PODS}/p/log")).stream)
    await until(lambda: sink.ended)
    assert sink.ended == "aborted"


async def test_a_reader_who_leaves_lets_the_agent_go(api: Api, agent: Agent):
    agent.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    sink = Sink((await api.raw("GET", f"{PODS}/p/log?follow=true")).stream)
    await until(lambda: agent.requests)
    sink.leave()
    await until(lambda: agent.lost == 1)


async def test_a_reader_who_leaves_before_the_answer(api: Api, agent: Agent):
    agent.silent = True
    asking = asyncio.create_task(api.raw("GET", f"{PODS}/p/log"))
    await until(lambda: agent.requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: agent.lost == 1)


async def test_a_slow_reader_holds_the_log_back(api: Api, agent: Agent):
    agent.answer = b"HTTP/1.1 200 OK\r\n\r\n"
    response = await api.raw("GET", f"{PODS}/p/log?follow=true")
    sink = Sink(response.stream)
    sink.room.clear()
    agent.writers[0].write(b"x" * 5_000_000)
    await asyncio.sleep(0.03)
    assert len(sink.data) < 1_000_000
    sink.room.set()
    await until(lambda: len(sink.data) == 5_000_000)
    sink.leave()


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (answer(b'container "main" is waiting to start\n', "400 Bad Request"), 400, "waiting to start"),
        (answer(b"no such container", "404 Not Found"), 404, "no such container"),
        (answer(b"", "500 Internal Server Error"), 500, "500"),
        (
            b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbut\r\n3\r\n no\r\n0\r\n\r\n",
            403,
            "but no",
        ),
        (b"nonsense\r\n\r\n", 503, "broke off"),
        (b"HTTP/1.1 \xff\r\n\r\n", 503, "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 503, "broke off"),
        (b"X" * 200_000, 503, "broke off"),
        (answer(b"elsewhere", "302 Found", Location="/x"), 500, "elsewhere"),
        (answer(b"", "204 No Content"), 500, "204"),
    ],
)
async def test_what_the_agent_says_instead(api: Api, agent: Agent, raw: bytes, code: int, words: str):
    agent.answer = raw
    got = await api.call("GET", f"{PODS}/p/log")
    assert got.status == code and words in got.message, got
    await until(lambda: agent.lost == 1)


async def test_a_status_of_the_agent_is_not_wrapped_in_another(api: Api, agent: Agent):
    said = b'{"kind": "Status", "status": "Failure", "message": "no common stream protocol", "reason": "Forbidden"}'
    agent.answer = answer(said, "403 Forbidden")
    got = await api.call("GET", f"{PODS}/p/log")
    assert (got.status, got.message) == (403, "no common stream protocol")


async def test_the_container_must_be_clear(api: Api, agent: Agent):
    two = pod("two")
    two["spec"]["containers"].append({"name": "side", "image": "i"})
    two["spec"]["initContainers"] = [{"name": "first", "image": "i"}]
    await api.post(PODS, two)
    await api.post(f"{PODS}/two/binding", {"target": {"name": "n"}})
    agent.answer = answer(b"x")
    open_choice = await api.refused(400, "GET", f"{PODS}/two/log")
    assert "choose one of: [main side]" in open_choice.message
    wrong = await api.refused(400, "GET", f"{PODS}/two/log?container=none")
    assert wrong.message == "container none is not valid for pod two"
    for name in ("side", "first"):
        response = await api.raw("GET", f"{PODS}/two/log?container={name}")
        Sink(response.stream).leave()
        assert agent.requests[-1][1] == f"/containerLogs/default/two/{name}"
    await api.patch(f"{PODS}/two", {"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "side"}}})
    Sink((await api.raw("GET", f"{PODS}/two/log")).stream).leave()
    assert agent.requests[-1][1] == "/containerLogs/default/two/side"


async def test_pods_that_run_nowhere(api: Api, agent: Agent):
    await api.post(PODS, pod("free"))
    assert "does not have a host assigned" in (await api.refused(400, "GET", f"{PODS}/free/log")).message
    await api.refused(404, "GET", f"{PODS}/none/log")
    await api.post(f"{PODS}/free/binding", {"target": {"name": "gone"}})
    assert "gone" in (await api.refused(503, "GET", f"{PODS}/free/log")).message


async def test_nodes_that_cannot_be_reached(api: Api, agent: Agent, monkeypatch: pytest.MonkeyPatch):
    await node_status(api, 1)
    assert "does not answer" in (await api.refused(503, "GET", f"{PODS}/p/log")).message
    await node_status(api, agent.port, [])
    assert "has not reported" in (await api.refused(503, "GET", f"{PODS}/p/log")).message
    await node_status(api, agent.port)
    monkeypatch.setattr(agent_connection, "_HEAD_TIMEOUT", 0.02)
    agent.silent = True
    assert "broke off" in (await api.refused(503, "GET", f"{PODS}/p/log")).message
    await until(lambda: agent.lost == 1)


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ([("Hostname", "h"), ("InternalIP", "i"), ("ExternalIP", "e")], "i"),
        ([("Hostname", "h"), ("ExternalIP", "e")], "e"),
        ([("Hostname", "h")], "h"),
        ([], None),
    ],
)
def test_where_an_agent_listens(addresses: list[tuple[str, str]], host: str | None):
    listed = [{"type": kind, "address": address} for kind, address in addresses]
    status = {"addresses": listed, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}
    node = {"metadata": {"name": "n"}, "status": status}
    if host is None:
        with pytest.raises(errors.ServiceUnavailable):
            agent_connection.address_of(node)
    else:
        assert agent_connection.address_of(node) == agent_connection.AgentAddress("n", host, 10250)


# ---- tunnels ----

SPDY = {"connection": "Upgrade", "upgrade": "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io"}
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"


async def opened(api: Api, path: str, method: str = "POST", **more: Any) -> Response:
    return await api.raw(method, f"{PODS}/p/{path}", headers=SPDY, **more)


@pytest.mark.parametrize(
    ("path", "agent_path", "query"),
    [
        (
            "exec?command=sh&stdin=true&stdout=true&tty=1&stderr=false",
            "/exec/default/p/main",
            {"input": "1", "output": "1", "tty": "1", "command": "sh"},
        ),
        ("attach?container=main&stdout=1&stderr=1", "/attach/default/p/main", {"output": "1", "error": "1"}),
        ("portforward?ports=80", "/portForward/default/p", {"port": "80"}),
        ("portforward", "/portForward/default/p", {}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_tunnel(api: Api, agent: Agent, path: str, agent_path: str, query: dict, method: str):
    agent.answer = SWITCH + b"first"
    response = await opened(api, path, method)
    assert response.status == 101
    assert dict(response.headers)["upgrade"] == "SPDY/3.1"
    assert agent.requests[0][:3] == (method, agent_path, query)
    assert agent.requests[0][3]["x-stream-protocol-version"] == "v4.channel.k8s.io"
    assert "authorization" not in agent.requests[0][3]
    tunnel = response.upgrade
    sink = Sink(tunnel)
    await until(lambda: sink.data == b"first")
    assert tunnel is not None
    tunnel.received(b"to the agent")
    await until(lambda: agent.received == b"to the agent")
    agent.writers[0].write(b" and back")
    await until(lambda: sink.data == b"first and back")
    agent.writers[0].close()
    await until(lambda: sink.ended == "closed")


async def test_several_words_of_a_command(api: Api, agent: Agent):
    agent.answer = SWITCH
    response = await opened(api, "exec?command=echo&command=a%26b%20c&stdout=1")
    Sink(response.upgrade).leave()
    assert agent.requests[0][2]["command"] == "a&b c"


async def test_a_client_who_leaves_the_tunnel(api: Api, agent: Agent):
    agent.answer = SWITCH
    sink = Sink((await opened(api, "attach?stdout=1")).upgrade)
    sink.leave()
    await until(lambda: agent.lost == 1)


async def test_a_tunnel_that_nobody_takes_is_closed(api: Api, agent: Agent):
    agent.answer = SWITCH
    response = await opened(api, "attach?stdout=1")
    assert response.upgrade is not None
    response.upgrade.closed()
    await until(lambda: agent.lost == 1)


async def test_an_agent_that_does_not_read_holds_the_client_back(
    api: Api, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "_HIGH_WATER", 1000)
    agent.answer = SWITCH
    tunnel = (await opened(api, "attach?stdin=1&stdout=1")).upgrade
    assert tunnel is not None
    sink = Sink(tunnel)
    tunnel.received(b"x" * 20_000_000)
    assert sink.paused
    await until(lambda: not sink.paused)
    await until(lambda: len(agent.received) == 20_000_000)
    sink.leave()


async def test_a_client_that_does_not_read_holds_the_agent_back(api: Api, agent: Agent):
    agent.answer = SWITCH
    sink = Sink((await opened(api, "attach?stdout=1")).upgrade)
    sink.room.clear()
    agent.writers[0].write(b"y" * 5_000_000)
    await asyncio.sleep(0.03)
    assert len(sink.data) < 1_000_000
    sink.room.set()
    await until(lambda: len(sink.data) == 5_000_000)
    sink.leave()


@pytest.mark.parametrize(
    ("path", "headers", "words"),
    [
        ("exec?stdout=1", SPDY, "command"),
        ("exec?command=sh", SPDY, "at least 1 of stdin, stdout, stderr"),
        ("exec?command=sh&tty=1", SPDY, "at least 1 of stdin, stdout, stderr"),
        ("attach?tty=1", SPDY, "at least 1 of stdin, stdout, stderr"),
        ("exec?command=sh&stdout=1&container=none", SPDY, "not valid for pod"),
        ("exec?command=sh&stdout=1", {}, "upgraded"),
        ("portforward", {"upgrade": "h2c"}, "upgraded"),
    ],
)
async def test_tunnels_that_are_refused(api: Api, agent: Agent, path: str, headers: dict, words: str):
    refused = await api.refused(400, "POST", f"{PODS}/p/{path}", headers=headers)
    assert words in refused.message and agent.requests == []


async def test_an_agent_that_refuses_a_tunnel(api: Api, agent: Agent):
    agent.answer = answer(b"container is not running", "409 Conflict")
    refused = await api.refused(409, "POST", f"{PODS}/p/attach?stdout=1", headers=SPDY)
    assert refused.message == "container is not running"
    agent.answer = answer(b"hello")
    odd = await api.call("POST", f"{PODS}/p/attach?stdout=1", headers=SPDY)
    assert odd.status >= 500
    await until(lambda: agent.lost == 2)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_runs_a_command_in_a_pod_is_in_the_audit_log(api: Api, agent: Agent, method: str):
    """kubectl uses WebSockets, which begin with GET."""
    sink = MemorySink()
    api.server.audit = Audit([sink])
    agent.answer = answer(b"no", "403 Forbidden")
    await api.call(method, f"{PODS}/p/exec?command=id&stdout=1", headers={"upgrade": "websocket"})
    (event,) = sink.events
    assert event.object is not None and (event.object.name, event.object.subresource) == ("p", "exec")
