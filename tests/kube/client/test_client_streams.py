"""Logs as bytes, and remote commands over WebSocket, against a server that plays the other half."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.http.websocket import mask_payload
from coterie.kube.api.errors import ApiError, BadRequest, NotFound
from coterie.kube.client import streams
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeStream, FakeTransport, stream_reply
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.streams import STDERR, STDOUT, exec_stream, log_stream
from coterie.kube.client.transport import Disconnected, NotSent, ResponseTimeout

OK = {"metadata": {}, "status": "Success"}


def ended_with(code: int) -> dict[str, object]:
    details = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": details, "message": f"exit status {code}"}


class Side:
    """The server's half of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.target = ""
        self.headers: dict[str, str] = {}

    async def head(self) -> None:
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.target = first.split(" ")[1]
        self.headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in rest if line}

    def accept(self, protocol: str = "v5.channel.k8s.io", key: str = "") -> None:
        asked = key or self.headers["sec-websocket-key"]
        digest = hashlib.sha1((asked + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\n".encode()
            + f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )

    def refuse(self, status: int, body: bytes, *, chunked: bool = False) -> None:
        if chunked:
            framing, body = "Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            framing = f"Content-Length: {len(body)}"
        self.writer.write(f"HTTP/1.1 {status} No\r\n{framing}\r\n\r\n".encode() + body)

    def frame(self, payload: bytes, opcode: int = 2, *, final: bool = True) -> None:
        length = len(payload)
        if length < 126:
            size = bytes((length,))
        else:
            size = b"\x7e" + length.to_bytes(2, "big") if length < 65536 else b"\x7f" + length.to_bytes(8, "big")
        self.writer.write(bytes((opcode | (0x80 if final else 0),)) + size + payload)

    def status(self, status: dict[str, object]) -> None:
        self.frame(b"\x03" + orjson.dumps(status))
        self.frame((1000).to_bytes(2, "big"), 8)

    async def message(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        assert second & 0x80, "a client must mask"
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8), "big")
        mask, data = await self.reader.readexactly(4), await self.reader.readexactly(length)
        return first & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


@asynccontextmanager
async def serving(talk: Callable[[Side], Awaitable[None]]) -> AsyncIterator[ClusterConnection]:
    problems: list[BaseException] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        side = Side(reader, writer)
        try:
            await side.head()
            await talk(side)
            await writer.drain()
        except (AssertionError, asyncio.IncompleteReadError) as problem:
            problems.append(problem)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield ClusterConnection(server=f"http://127.0.0.1:{port}", token="t0k")
    assert not [each for each in problems if isinstance(each, AssertionError)]


async def everything(remote: streams.Remote) -> dict[int, bytes]:
    found = {STDOUT: b"", STDERR: b""}
    while (piece := await remote.read()) is not None:
        found[piece[0]] += piece[1]
    return found


async def test_a_command_gets_input_and_gives_output_and_its_exit_code() -> None:
    asked: list[Side] = []

    async def talk(side: Side) -> None:
        asked.append(side)
        side.accept()
        typed = b""
        while (message := (await side.message())[1])[:1] == b"\0":
            typed += message[1:]
        assert message == b"\xff\x00", "the end of the input"
        side.frame(b"\x01" + typed.upper())
        side.frame(b"\x02warned")
        side.status(ended_with(7))

    async with (
        serving(talk) as connection,
        exec_stream(connection, "web", "ns", ["tr", "a b", "&c"], container="main", stdin=True) as remote,
    ):
        await remote.write(b"one ")
        await remote.write(b"two")
        await remote.end_input()
        assert await everything(remote) == {STDOUT: b"ONE TWO", STDERR: b"warned"}
        assert remote.exit_code() == 7
    (side,) = asked
    assert side.target == (
        "/api/v1/namespaces/ns/pods/web/exec?stdin=true&stdout=true&stderr=true&container=main"
        "&command=tr&command=a+b&command=%26c"
    )
    assert side.headers["authorization"] == "Bearer t0k"
    assert side.headers["sec-websocket-protocol"] == "v5.channel.k8s.io, v4.channel.k8s.io"


async def test_a_terminal_has_one_output_and_a_size() -> None:
    async def talk(side: Side) -> None:
        assert "tty=true" in side.target and "stderr" not in side.target
        side.accept()
        _, message = await side.message()
        assert message == b'\x04{"Width":80,"Height":24}'
        side.status(OK)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["sh"], tty=True) as remote:
        await remote.resize(80, 24)
        assert await remote.read() is None
        assert remote.exit_code() == 0


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 65534, 65535, 65536, 300_000])
async def test_messages_of_every_size_arrive_whole(size: int) -> None:
    data = bytes(i % 251 for i in range(size))

    async def talk(side: Side) -> None:
        side.accept()
        _, message = await side.message()
        side.frame(b"\x01" + message[1:])
        side.status(OK)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["cat"], stdin=True) as remote:
        await remote.write(data)
        assert (await everything(remote))[STDOUT] == data


async def test_pieces_pings_and_empty_messages_are_understood() -> None:
    async def talk(side: Side) -> None:
        side.accept()
        side.frame(b"\x01")  # as servers greet
        side.frame(b"")
        side.frame(b"\x01one ", 2, final=False)
        side.frame(b"hello", 9)
        assert await side.message() == (10, b"hello")
        side.frame(b"two", 0)
        side.status(OK)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["x"]) as remote:
        assert (await everything(remote))[STDOUT] == b"one two"


async def test_an_old_server_is_not_told_of_the_end_of_input() -> None:
    async def talk(side: Side) -> None:
        side.accept("v4.channel.k8s.io")
        assert (await side.message())[1] == b"\0x"
        assert (await side.message())[1] == b"\0y"
        side.status(OK)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["x"], stdin=True) as remote:
        await remote.write(b"x")
        await remote.end_input()
        await remote.write(b"y")
        assert await remote.read() is None


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_refusal_is_told_in_the_servers_words(chunked: bool) -> None:
    status = {"kind": "Status", "reason": "NotFound", "message": 'pods "web" not found', "code": 404}

    async def talk(side: Side) -> None:
        side.refuse(404, orjson.dumps(status), chunked=chunked)

    async with serving(talk) as connection:
        with pytest.raises(NotFound, match='pods "web" not found'):
            async with exec_stream(connection, "web", "ns", ["x"]):
                pytest.fail("must not be opened")


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ({"status": "Failure", "reason": "InternalError", "message": "no shell", "code": 500}, ApiError, "no shell"),
        ({"status": "Failure", "reason": "BadRequest", "message": "not so", "code": 400}, BadRequest, "not so"),
        ({"status": "Failure", "reason": "NonZeroExitCode", "message": "odd"}, ApiError, "odd"),
    ],
    ids=["internal", "bad-request", "no-code"],
)
async def test_a_command_that_could_not_be_run(status: dict[str, object], error: type[ApiError], said: str) -> None:
    async def talk(side: Side) -> None:
        side.accept()
        side.status(status)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["x"]) as remote:
        assert await remote.read() is None
        with pytest.raises(error, match=said):
            remote.exit_code()


async def test_an_end_without_a_status_is_no_success() -> None:
    async def talk(side: Side) -> None:
        side.accept()
        side.frame(b"\x01half")

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["x"]) as remote:
        assert await remote.read() == (STDOUT, b"half")
        assert await remote.read() is None
        with pytest.raises(Disconnected, match="before the command did"):
            remote.exit_code()


def _wrong_key(side: Side) -> None:
    side.accept(key="c29tZXRoaW5nIGVsc2U=")


def _wrong_protocol(side: Side) -> None:
    side.accept("chat")


def _no_http(side: Side) -> None:
    side.writer.write(b"220 smtp ready\r\n\r\n")


@pytest.mark.parametrize("say", [_wrong_key, _wrong_protocol, _no_http, lambda side: None])
async def test_servers_that_speak_something_else(say: Callable[[Side], None]) -> None:
    async def talk(side: Side) -> None:
        say(side)

    async with serving(talk) as connection:
        with pytest.raises(Disconnected):
            async with exec_stream(connection, "web", "ns", ["x"]):
                pytest.fail("must not be opened")


@pytest.mark.parametrize(
    "frame",
    [b"\x82\xff" + b"\xff" * 8, b"\x82\x81\0\0\0\0x", b"\x83\x00", b"\x80\x00", b"\x82\x05ab"],
    ids=["huge", "masked", "unknown", "continuation", "cut"],
)
async def test_frames_that_make_no_sense_end_the_stream(frame: bytes) -> None:
    async def talk(side: Side) -> None:
        side.accept()
        side.writer.write(frame)

    async with serving(talk) as connection, exec_stream(connection, "web", "ns", ["x"]) as remote:
        with pytest.raises(Disconnected):
            await remote.read()


async def test_nobody_there_and_nobody_answering() -> None:
    with pytest.raises(NotSent, match="cannot connect"):
        async with exec_stream(ClusterConnection(server="http://127.0.0.1:1"), "web", "ns", ["x"]):
            pytest.fail("must not be opened")
    with pytest.raises(NotSent, match="proxy"):
        async with exec_stream(
            ClusterConnection(server="http://x.test", proxy_url="http://p.test"), "web", "ns", ["x"]
        ):
            pytest.fail("must not be opened")

    async def talk(side: Side) -> None:
        await side.reader.read()

    async with serving(talk) as connection:
        with pytest.raises(ResponseTimeout):
            async with exec_stream(connection, "web", "ns", ["x"], timeout=0.05):
                pytest.fail("must not be opened")


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
@settings(max_examples=100)
def test_masking_twice_changes_nothing(data: bytes, mask: bytes) -> None:
    hidden = mask_payload(data, mask)
    assert hidden == bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
    assert mask_payload(hidden, mask) == data


# Logs.


async def test_a_log_keeps_its_empty_lines_and_odd_bytes() -> None:
    text = b"one\n\n\xff\xfetwo\r\nno end"

    async def talk(side: Side) -> None:
        assert side.target == "/api/v1/namespaces/ns/pods/web/log?container=c&follow=true&tailLines=0&sinceSeconds=60"
        side.refuse(200, text, chunked=True)

    async with serving(talk) as connection:
        client = Client(HttpTransport(connection))
        found = [
            data async for data in log_stream(client, "web", "ns", container="c", follow=True, tail=0, since_seconds=60)
        ]
        await client.close()
    assert b"".join(found) == text


async def test_a_log_over_a_transport_that_knows_lines_only() -> None:
    stream = FakeStream()
    stream._lines = [b"one", b"two"]
    client = Client(FakeTransport(lambda call: stream_reply(stream.end())))
    assert b"".join([data async for data in log_stream(client, "web", "ns")]) == b"one\ntwo\n"
    assert stream.closed
