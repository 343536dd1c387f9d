"""The agent's endpoint: who may ask, and remote commands over WebSocket and SPDY, without sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.exposition import Family
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Peer, Request, Response, UserInfo
from coterie.http.spdy import DICTIONARY, SpdySession
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.http.websocket import WebSocket
from coterie.kube.agent.runtimes.fake import FakeMachine, FakeRuntime
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodSandbox
from coterie.kube.agent.server.channels import read_size
from coterie.kube.agent.server.endpoint import API_SERVER, AgentEndpoint
from coterie.kube.agent.server.usage import NodeUsage, UsageMeter
from coterie.kube.api.errors import BadRequest

SERVER = Peer("127.0.0.1", certificate_user=UserInfo(API_SERVER))
KEY = {"upgrade": "websocket", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}


class Client:
    """The other end of an upgraded connection: what was written, and what is fed in."""

    def __init__(self, response: Response) -> None:
        assert response.upgrade is not None
        self.pending = 0
        self.written = bytearray()
        self.ended = asyncio.Event()
        self.tunnel = response.upgrade
        self.tunnel.opened(self)

    def write(self, chunk: bytes) -> None:
        self.written += chunk

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self.tunnel.closed()

    abort = close

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def messages(self) -> list[bytes]:
        """Messages the server sent, unmasked as servers send them; the close frame is left out."""
        out, data = [], bytes(self.written)
        while len(data) >= 2:
            length, at = data[1] & 0x7F, 2
            if length >= 126:
                wide = 2 if length == 126 else 8
                length, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
            if data[0] & 0x0F != 8:
                out.append(data[at : at + length])
            data = data[at + length :]
        return out

    def say(self, payload: bytes, opcode: int = 2) -> None:
        mask = b"\1\2\3\4"
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self.tunnel.received(bytes((0x80 | opcode, 0x80 | len(payload))) + mask + masked)


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[AgentEndpoint]:
    machine = FakeMachine()
    runtime = FakeRuntime(machine)
    await runtime.open()
    await runtime.prepare_pod(PodSandbox("u1", "default", "p", "p", tmp_path / "pod"))
    spec = ContainerSpec(
        "c", 0, "coterie/host:latest", ("sh", "-c", "cat"), (), (), "/", (), tmp_path / "0.log", stdin=True
    )
    await runtime.start_container("u1", spec)
    async with TaskOwner("test") as owner:
        meter = UsageMeter(runtime, lambda: NodeUsage(10**9, 2**20), SYSTEM_CLOCK)
        yield AgentEndpoint(runtime, meter, "node-1", owner, SYSTEM_CLOCK)
    await runtime.close()
    await machine.close()


async def answer(
    endpoint: AgentEndpoint, path: str, query: str = "", *, peer: Peer = SERVER, **headers: str
) -> Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    result = endpoint.handle(Request("GET", path, query, given, peer=peer))
    return result if isinstance(result, Response) else await result


@pytest.mark.parametrize(
    ("peer", "code"),
    [
        (Peer("x"), 401),
        (Peer("x", certificate_user=UserInfo("mallory")), 403),
        (Peer("x", certificate_user=UserInfo("ann", ("system:masters",))), 200),
        (SERVER, 200),
    ],
)
async def test_only_the_control_plane_may_ask(endpoint: AgentEndpoint, peer: Peer, code: int) -> None:
    assert (await answer(endpoint, "/stats/summary", peer=peer)).status == code


@pytest.mark.parametrize(("peer", "code"), [(Peer("x"), 401), (SERVER, 200)])
async def test_measurements_of_gpus(endpoint: AgentEndpoint, peer: Peer, code: int) -> None:
    class Devices:
        async def families(self) -> list[Family]:
            return [Family("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "gauge", [('gpu="0"', 87.0)])]

    endpoint._devices = Devices()  # type: ignore[assignment]
    found = await answer(endpoint, "/metrics/dcgm", peer=peer)
    assert found.status == code
    if code == 200:
        assert b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 87' in found.body


@pytest.mark.parametrize(("peer", "code"), [(Peer("x"), 401), (SERVER, 200)])
async def test_searches_of_logs_are_for_the_api_server(endpoint: AgentEndpoint, peer: Peer, code: int) -> None:
    class Search:
        async def search(self, namespace: str, params: Mapping[str, str]) -> bytes:
            if params.get("grep") == "(":
                raise BadRequest("grep: is no regular expression")
            return orjson.dumps([namespace, dict(params)])

    endpoint._log_search = Search()
    found = await answer(endpoint, "/podLogs/alice", "job=j&grep=a%2Bb", peer=peer)
    assert found.status == code
    if code == 200:
        assert orjson.loads(found.body) == ["alice", {"job": "j", "grep": "a+b"}]
        refused = await answer(endpoint, "/podLogs/alice", "job=j&grep=(")
        assert (refused.status, b"no regular" in refused.body) == (400, True)
        endpoint._log_search = None
        assert (await answer(endpoint, "/podLogs/alice", "job=j")).status == 404


async def test_health_needs_no_certificate(endpoint: AgentEndpoint) -> None:
    assert (await answer(endpoint, "/healthz", peer=Peer("x"))).status == 200


@pytest.mark.parametrize(
    ("path", "query", "headers", "code"),
    [
        ("/containerLogs/default/nope/c", "", {}, 404),
        ("/containerLogs/default/p/other", "", {}, 400),
        ("/containerLogs/default/p/c", "previous=true", {}, 400),
        ("/containerLogs/default/p/c", "tailLines=-1", {}, 400),
        ("/exec/default/p/c", "", KEY, 400),
        ("/exec/default/p/c", "command=x", {}, 400),
        ("/exec/default/p/c", "command=x", {**KEY, "sec-websocket-protocol": "nonsense"}, 403),
        ("/portForward/default/p", "", {"upgrade": "SPDY/3.1"}, 403),
        ("/nothing", "", {}, 404),
    ],
)
async def test_refusals(endpoint: AgentEndpoint, path: str, query: str, headers: dict[str, str], code: int) -> None:
    result = endpoint.handle(Request("GET", path, query, dict(headers), peer=SERVER))
    response = result if isinstance(result, Response) else await result
    assert response.status == code
    assert orjson.loads(response.body)["kind"] == "Status"


async def test_exec_over_websocket_tells_output_and_exit_code(endpoint: AgentEndpoint) -> None:
    query = "command=sh&command=-c&command=echo+hello%3B+exit+7&output=1&error=1"
    response = await answer(endpoint, "/exec/default/p/c", query, **KEY, sec_websocket_protocol="v5.channel.k8s.io")
    assert response.status == 101
    assert dict(response.headers)["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    client = Client(response)
    await asyncio.wait_for(client.ended.wait(), 5)
    messages = client.messages()
    assert b"".join(message[1:] for message in messages if message[:1] == b"\1") == b"hello\n"
    (status,) = [orjson.loads(message[1:]) for message in messages if message[:1] == b"\3"]
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


async def test_attach_over_websocket_carries_both_ways(endpoint: AgentEndpoint) -> None:
    query = "input=1&output=1&error=1"
    response = await answer(endpoint, "/attach/default/p/c", query, **KEY, sec_websocket_protocol="v5.channel.k8s.io")
    client = Client(response)
    client.say(b"\0ping\n")
    async with asyncio.timeout(5):
        while b"\1ping\n" not in client.messages():
            await asyncio.sleep(0.01)
    client.tunnel.closed()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """The port of a server that gives back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data.upper())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""])
async def test_port_forward_over_a_plain_websocket(endpoint: AgentEndpoint, protocol: str) -> None:
    encoded = "base64" in protocol

    def message(channel: int, data: bytes) -> bytes:
        return b"%d" % channel + base64.b64encode(data) if encoded else bytes((channel,)) + data

    async with echoing() as port:
        named = {"sec_websocket_protocol": protocol} if protocol else {}
        response = await answer(endpoint, "/portForward/default/p", f"port={port}&port=1", **KEY, **named)
        assert response.status == 101
        assert dict(response.headers).get("Sec-WebSocket-Protocol", "") == protocol
        client = Client(response)
        client.say(message(0, b"hello"), opcode=1 if encoded else 2)
        client.say(message(9, b"nobody listens"))
        client.say(b"0!" if encoded else b"")
        async with asyncio.timeout(5):
            while message(0, b"HELLO") not in client.messages() or len(client.messages()) < 6:
                await asyncio.sleep(0.01)
        first = [message(0, port.to_bytes(2, "little")), message(1, port.to_bytes(2, "little"))]
        assert [each for each in client.messages() if each in first] == first
        (refused,) = [each for each in client.messages() if each[:1] == message(3, b"")[:1]][1:]
        assert b"cannot reach port 1" in (base64.b64decode(refused[1:]) if encoded else refused)
        client.tunnel.closed()


@pytest.mark.parametrize("query", ["", "port=0", "port=x", "port=70000", "&".join(["port=80"] * 101)])
async def test_ports_that_cannot_be_forwarded(endpoint: AgentEndpoint, query: str) -> None:
    assert (await answer(endpoint, "/portForward/default/p", query, **KEY)).status == 400


def syn_stream(deflate: Any, number: int, **headers: str) -> bytes:
    block = len(headers).to_bytes(4, "big")
    for name, value in headers.items():
        for text in (name, value):
            block += len(text).to_bytes(4, "big") + text.encode()
    packed = deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)
    payload = number.to_bytes(4, "big") + bytes(6) + packed
    return b"\x80\x03\x00\x01\x00" + len(payload).to_bytes(3, "big") + payload


async def test_exec_over_spdy(endpoint: AgentEndpoint) -> None:
    query = "command=sh&command=-c&command=echo+hello&output=1&error=1"
    response = await answer(
        endpoint, "/exec/default/p/c", query, upgrade="SPDY/3.1", x_stream_protocol_version="v4.channel.k8s.io"
    )
    assert dict(response.headers)["X-Stream-Protocol-Version"] == "v4.channel.k8s.io"
    client = Client(response)
    deflate = zlib.compressobj(zdict=DICTIONARY)
    for number, kind in ((1, "error"), (3, "stdout"), (5, "stderr")):
        client.tunnel.received(syn_stream(deflate, number, streamtype=kind))
    async with asyncio.timeout(5):
        while b"Success" not in client.written:
            await asyncio.sleep(0.01)
    assert b"\x00\x00\x00\x03\x00\x00\x00\x06hello\n" in client.written
    client.tunnel.closed()


async def test_usage_becomes_a_rate(endpoint: AgentEndpoint) -> None:
    summary = orjson.loads((await answer(endpoint, "/stats/summary")).body)
    assert summary["node"]["nodeName"] == "node-1"
    assert summary["node"]["memory"]["workingSetBytes"] == 2**20
    assert summary["pods"][0]["podRef"] == {"name": "p", "namespace": "default", "uid": "u1"}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
async def test_garbage_ends_a_connection_and_nothing_else(chunks: list[bytes]) -> None:
    feed = list(chunks)

    async def receive() -> bytes:
        return feed.pop(0) if feed else b""

    async def drain() -> None: ...

    with contextlib.suppress(ConnectionError):
        await SpdySession(receive, lambda data: None, drain).run()

    async def serve(pipe: UpgradedConnection) -> None:
        socket = WebSocket(pipe)
        while await socket.receive() is not None:
            pass

    async with TaskOwner("fuzz") as owner:
        pipe = UpgradedConnection(owner, "fuzz", serve)
        client = Client(Response(101, upgrade=pipe))
        for chunk in chunks:
            pipe.received(chunk)
        pipe.closed()
        async with asyncio.timeout(5):
            await owner.drain(5)
        assert owner.failure is None
        assert client is not None


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b'{"Width":80,"Height":24}', (80, 24)),
        (b'{"Width":0,"Height":24}', None),
        (b'{"Width":"a","Height":1}', None),
        (b"[]", None),
        (b"x", None),
    ],
)
def test_terminal_sizes(data: bytes, size: tuple[int, int] | None) -> None:
    assert read_size(data) == size
