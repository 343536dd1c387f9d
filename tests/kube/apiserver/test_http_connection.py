"""HTTP/1.1 over a loopback socket: order, limits, bodies, streams, tunnels, slow clients, the end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import orjson
import pytest

from coterie.http import connection as connection_module
from coterie.http.messages import Request, Response, Sink, TunnelSink
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response


class Feed:
    """A stream that the test writes to."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.closes = 0

    def opened(self, sink: Sink) -> None:
        self.sink = sink

    def closed(self) -> None:
        self.closes += 1
        self.sink = None


class Echo:
    """A tunnel that gives back what it gets."""

    def __init__(self) -> None:
        self.sink: TunnelSink | None = None
        self.got = b""
        self.closes = 0

    def opened(self, sink: TunnelSink) -> None:
        self.sink = sink

    def received(self, data: bytes) -> None:
        self.got += data
        assert self.sink is not None
        self.sink.write(data)

    def closed(self) -> None:
        self.closes += 1


class App:
    """A handler with one path for each thing that is tested."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.gate = asyncio.Event()
        self.feed = Feed()
        self.echo = Echo()
        self.cancelled = 0
        self.finished = 0

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        self.requests.append(request)
        match request.path:
            case "/later":
                return self.lazy_import(request)
            case "/stream":
                return Response(stream=self.feed)
            case "/sized-stream":
                return Response(stream=self.feed, stream_length=3003)
            case "/tunnel":
                return Response(101, headers=[("Upgrade", "test"), ("Connection", "Upgrade")], upgrade=self.echo)
            case "/latertunnel":
                return self.later_tunnel()
            case "/crash":
                raise RuntimeError("secret detail")
            case "/big":
                return Response(200, b"x" * 5_000_000, "text/plain")
        body = {"method": request.method, "path": request.path, "query": request.query, "body": request.body.decode("latin-1"), "headers": request.headers}  # fmt: skip
        return Response(200, orjson.dumps(body))

    async def lazy_import(self, request: Request) -> Response:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1
        return Response(200, f"later {request.query}".encode(), "text/plain")

    async def later_tunnel(self) -> Response:
        await self.gate.wait()
        return Response(101, headers=[("Upgrade", "test"), ("Connection", "Upgrade")], upgrade=self.echo)


class Answered:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, *lines: str) -> None:
        self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode("latin-1"))

    async def head(self) -> Answered:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        return Answered(int(first.split(" ")[1]), headers, b"")

    async def answer(self) -> Answered:
        answer = await self.head()
        length = int(answer.headers.get("content-length", "0"))
        answer.body = await asyncio.wait_for(self.reader.readexactly(length), 5)
        return answer

    async def chunk(self) -> bytes:
        size = int(await asyncio.wait_for(self.reader.readline(), 5), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), 5)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Go away at once, as a process that dies."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Site:
    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.app = App()
        self.server = HttpServer(self.app, limits=limits, problem_response=status_response)
        self.clients: list[Client] = []
        self.address = ("", 0)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client

    async def until(self, condition: Any) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("it did not happen")

    async def __aenter__(self) -> Site:
        self.address = await self.server.listen("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.app.gate.set()
        for client in self.clients:
            client.close()
        await self.server.stop(grace=0.2)


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "LINGER", 0.02)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


# ---- requests and their order ----


async def test_a_request(site: Site):
    client = await site.connect()
    client.get("/a%20b/%C3%A4?x=%20y&z", "X-One: 1", "x-ONE: 2")
    answer = await client.answer()
    assert answer.status == 200
    seen = answer.json
    assert (seen["method"], seen["path"], seen["query"], seen["body"]) == ("GET", "/a b/ä", "x=%20y&z", "")
    assert seen["headers"]["x-one"] == "2", "the last one counts"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-cache, private" and answer.headers["date"].endswith("GMT")
    assert "connection" not in answer.headers
    assert site.app.requests[0].peer.address == "127.0.0.1"


async def test_answers_come_in_the_order_of_requests(site: Site):
    client = await site.connect()
    client.get("/later?1")
    client.get("/b")
    client.get("/later?2")
    client.get("/d")
    await site.until(lambda: site.app.requests)
    await asyncio.sleep(0.01)
    assert len(site.app.requests) == 1, "the others wait"
    site.app.gate.set()
    assert (await client.answer()).body == b"later 1"
    assert (await client.answer()).json["path"] == "/b"
    assert (await client.answer()).body == b"later 2"
    assert (await client.answer()).json["path"] == "/d"


async def test_many_requests_in_one_segment_and_one_in_many(site: Site):
    client = await site.connect()
    client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(100)))
    for n in range(100):
        assert (await client.answer()).json["path"] == f"/{n}"
    for byte in b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc":
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.answer()).json["body"] == "abc"


async def test_keep_alive_and_close(site: Site):
    client = await site.connect()
    for _ in range(3):
        client.get("/a")
        assert (await client.answer()).status == 200
    client.get("/a", "Connection: close")
    answer = await client.answer()
    assert answer.headers["connection"] == "close" and await client.rest() == b""
    old = await site.connect()
    old.send(b"GET /a HTTP/1.0\r\n\r\n")
    assert (await old.answer()).headers["connection"] == "close" and await old.rest() == b""


@pytest.mark.parametrize(
    ("url", "path"),
    [("http://host:80/a/b?c=d", "/a/b"), ("https://host", "/"), ("http://u:p@host/%2e", "/."), ("*", "/")],
)
async def test_absolute_forms(site: Site, url: str, path: str):
    client = await site.connect()
    client.send(f"OPTIONS {url} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (await client.answer()).json["path"] == path


async def test_a_head_has_no_body(site: Site):
    client = await site.connect()
    client.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    first = await client.head()
    assert int(first.headers["content-length"]) > 0
    second = await client.head()
    assert second.status == 200 and site.app.feed.closes == 1, "a stream is not opened for nobody"
    client.get("/next")
    assert (await client.answer()).json["path"] == "/next"


async def test_lists_in_several_lines(site: Site):
    client = await site.connect()
    client.get("/a", "Accept: a/b", "Accept: c/d", "Impersonate-Group: x", "Impersonate-Group: y", "Impersonate-Extra-a%2fb: 1")  # fmt: skip
    headers = (await client.answer()).json["headers"]
    assert headers["accept"] == "a/b, c/d" and headers["impersonate-group"] == "x\ny"
    assert headers["impersonate-extra-a%2fb"] == "1"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /?\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_and_closed(site: Site, data: bytes):
    client = await site.connect()
    client.send(data)
    answer = await client.answer()
    assert answer.status in (400, 413) and answer.json["kind"] == "Status"
    assert answer.headers["connection"] == "close" and await client.rest() == b""
    assert site.app.requests == []


async def test_a_fault_inside_is_told_without_detail(site: Site):
    client = await site.connect()
    client.get("/crash")
    answer = await client.answer()
    assert answer.status == 500 and answer.json["reason"] == "InternalError" and b"secret" not in answer.body
    client.get("/a")
    assert (await client.answer()).status == 200


# ---- bodies ----


async def test_chunked_bodies(site: Site):
    client = await site.connect()
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await asyncio.sleep(0.005)
    client.send(b"4;ext=1\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n")
    assert (await client.answer()).json["body"] == "abcdefg"


async def test_continue(site: Site):
    client = await site.connect()
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert (await client.head()).status == 100
    client.send(b"abc")
    assert (await client.answer()).json["body"] == "abc"


async def test_no_continue_inside_another_answer(site: Site):
    client = await site.connect()
    client.get("/stream")
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
    await client.head()
    await site.until(lambda: site.app.feed.sink)
    site.app.feed.sink.write(b"part")
    assert await client.chunk() == b"part"
    site.app.feed.sink.close()
    assert await client.chunk() == b""
    assert (await client.answer()).json["body"] == "abc"


@pytest.mark.parametrize("form", ["length", "chunked"])
async def test_bodies_that_are_too_large(form: str):
    async with Site(HttpLimits(max_body=1000)) as site:
        client = await site.connect()
        if form == "length":
            client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        else:
            client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001)
        answer = await client.answer()
        assert answer.status == 413 and answer.json["reason"] == "RequestEntityTooLarge"
        assert await client.rest() == b"" and site.app.requests == []
        other = await site.connect()
        other.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
        assert (await other.answer()).status == 200
        await site.until(lambda: site.server.body_bytes == 0)


async def test_bodies_in_flight_are_bounded():
    async with Site(HttpLimits(max_body=1000, max_body_in_flight=1500)) as site:
        first, second = await site.connect(), await site.connect()
        for client in (first, second):
            client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900)
            await asyncio.sleep(0.01)
        answer = await second.answer()
        assert answer.status == 429 and answer.headers["retry-after"] == "1"
        first.send(b"x" * 100)
        assert (await first.answer()).status == 200
        await site.until(lambda: site.server.body_bytes == 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(20_000)) + b"\r\n", 431),
    ],
)
async def test_heads_that_are_too_large(site: Site, data: bytes, code: int):
    client = await site.connect()
    client.send(data)
    answer = await client.answer()
    assert answer.status == answer.json["code"] == code and answer.headers["connection"] == "close"
    assert site.app.requests == []


async def test_too_many_connections():
    async with Site(HttpLimits(max_connections=2)) as site:
        kept = [await site.connect() for _ in range(2)]
        for client in kept:
            client.get("/a")
            await client.answer()
        more = await site.connect()
        assert await more.rest() == b""
        kept[0].close()
        await site.until(lambda: site.server.connections == 1)
        again = await site.connect()
        again.get("/a")
        assert (await again.answer()).status == 200


async def test_one_address_without_credentials_does_not_take_all_connections():
    async with Site(HttpLimits(max_connections=10, max_unknown_per_address=2)) as site:
        silent = [await site.connect() for _ in range(2)]
        await site.until(lambda: site.server.connections == 2)
        assert await (await site.connect()).rest() == b""
        # Who shows who it is counts no more, so that there is room for the next.
        silent[0].send(b"GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n")
        await silent[0].answer()
        again = await site.connect()
        again.get("/a")
        assert (await again.answer()).status == 200
        assert await (await site.connect()).rest() == b""
        silent[1].close()
        await site.until(lambda: site.server.connections == 2)
        third = await site.connect()
        third.get("/a")
        assert (await third.answer()).status == 200


async def test_who_has_not_shown_who_it_is_may_not_idle():
    async with Site(HttpLimits(header_timeout=0.01, body_timeout=100, idle_timeout=100, write_timeout=100)) as site:
        unknown, known = await site.connect(), await site.connect()
        unknown.get("/a")
        known.send(b"GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n")
        await unknown.answer()
        await known.answer()
        await swept(site)
        await site.until(lambda: site.server.connections == 1)
        assert await unknown.rest() == b""
        known.get("/a")
        assert (await known.answer()).status == 200


# ---- clients that are slow or go away ----


async def swept(site: Site) -> None:
    await asyncio.sleep(0.03)
    site.server._sweeper.cancel()  # type: ignore[union-attr]
    site.server._sweep()


@pytest.mark.parametrize(
    ("start", "limit"),
    [
        (b"", "header_timeout"),
        (b"GET / HTTP/1.1\r\n", "header_timeout"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", "body_timeout"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "idle_timeout"),
    ],
)
async def test_times_run_out(start: bytes, limit: str):
    generous = {"header_timeout": 100.0, "body_timeout": 100.0, "idle_timeout": 100.0, "write_timeout": 100.0}
    async with Site(HttpLimits(**{**generous, limit: 0.01})) as site:
        client = await site.connect()
        client.send(start)
        if limit == "idle_timeout":
            await client.answer()
        await site.until(lambda: site.server.connections == 1)
        await asyncio.sleep(0.01)
        await swept(site)
        await site.until(lambda: site.server.connections == 0)
        assert await client.rest() == b""


async def test_an_answer_that_takes_its_time_is_no_slow_client():
    async with Site(HttpLimits(header_timeout=0.01, body_timeout=0.01, idle_timeout=0.01)) as site:
        client = await site.connect()
        client.get("/later?1")
        await site.until(lambda: site.app.requests)
        await swept(site)
        site.app.gate.set()
        assert (await client.answer()).body == b"later 1"


async def test_an_answer_that_is_not_read():
    async with Site(HttpLimits(write_timeout=0.01)) as site:
        client = await site.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(10):
            client.get("/big")
        await site.until(lambda: len(site.app.requests) >= 1)
        await asyncio.sleep(0.05)
        assert len(site.app.requests) < 10, "no more is produced than is taken"
        await swept(site)
        await site.until(lambda: site.server.connections == 0)


async def test_a_slow_reader_gets_everything(site: Site):
    client = await site.connect()
    for _ in range(4):
        client.get("/big")
    for _ in range(4):
        assert len((await client.answer()).body) == 5_000_000


async def test_a_reader_who_leaves_cancels_its_request(site: Site):
    client = await site.connect()
    client.get("/later?1")
    await site.until(lambda: site.app.requests)
    client.reset()
    await site.until(lambda: site.app.cancelled == 1)


async def test_a_writer_who_leaves_does_not(site: Site):
    """Its write may be half done: it is finished, counted and audited as any other."""
    client = await site.connect()
    client.send(b"POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await site.until(lambda: site.app.requests)
    client.reset()
    await site.until(lambda: site.server.connections == 0)
    site.app.gate.set()
    await site.until(lambda: site.app.finished == 1)
    assert site.app.cancelled == 0


async def test_half_closed_clients_get_their_answers(site: Site):
    client = await site.connect()
    client.get("/later?1")
    client.get("/b")
    client.writer.write_eof()
    await site.until(lambda: site.app.requests)
    await asyncio.sleep(0.01)
    site.app.gate.set()
    assert (await client.answer()).body == b"later 1"
    assert (await client.answer()).json["path"] == "/b"
    assert await client.rest() == b"", "and then the connection ends"


async def test_a_stream_ends_with_its_reader(site: Site):
    client = await site.connect()
    client.get("/stream")
    await client.head()
    client.writer.write_eof()
    await site.until(lambda: site.app.feed.closes == 1)
    await site.until(lambda: site.server.connections == 0)


# ---- streams ----


async def test_a_stream_is_chunked_and_the_connection_goes_on(site: Site):
    client = await site.connect()
    client.get("/stream")
    answer = await client.head()
    assert answer.headers["transfer-encoding"] == "chunked" and "content-length" not in answer.headers
    await site.until(lambda: site.app.feed.sink)
    sink = site.app.feed.sink
    assert sink is not None
    sink.write(b"one")
    sink.write(b"")
    sink.write(b"two" * 1000)
    assert await client.chunk() == b"one" and await client.chunk() == b"two" * 1000
    sink.close()
    sink.close()
    sink.write(b"late")
    assert await client.chunk() == b""
    assert site.app.feed.closes == 1 and sink.pending == 0
    client.get("/a")
    assert (await client.answer()).json["path"] == "/a"


async def test_a_stream_of_known_length_is_not_cut_into_chunks(site: Site):
    client = await site.connect()
    client.get("/sized-stream")
    await site.until(lambda: site.app.feed.sink)
    sink = site.app.feed.sink
    assert sink is not None
    sink.write(b"one")
    sink.write(b"two" * 1000)
    sink.close()
    answer = await client.answer()
    assert answer.headers["content-length"] == "3003" and "transfer-encoding" not in answer.headers
    assert answer.body == b"one" + b"two" * 1000
    client.get("/a")
    assert (await client.answer()).json["path"] == "/a"


async def test_a_broken_stream_does_not_look_complete(site: Site):
    client = await site.connect()
    client.get("/stream")
    await client.head()
    await site.until(lambda: site.app.feed.sink)
    site.app.feed.sink.write(b"one")
    await client.chunk()
    site.app.feed.sink.abort()
    assert await client.rest() == b""
    assert site.app.feed.closes == 1


async def test_draining(site: Site):
    client = await site.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.get("/stream")
    await site.until(lambda: site.app.feed.sink)
    sink = site.app.feed.sink
    assert sink is not None
    await sink.drain()
    sink.write(b"x" * 20_000_000)
    assert sink.pending > 0
    waiting = asyncio.create_task(sink.drain())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    reading = asyncio.create_task(client.reader.read(-1))
    await asyncio.wait_for(waiting, 5)
    sink.write(b"x" * 20_000_000)
    leaving = asyncio.create_task(sink.drain())
    await asyncio.sleep(0)
    client.writer.transport.abort()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(leaving, 5)
    with pytest.raises(ConnectionResetError):
        await sink.drain()
    await asyncio.gather(reading, return_exceptions=True)


# ---- tunnels ----

UPGRADE = ("Connection: Upgrade", "Upgrade: test")


async def test_a_tunnel(site: Site):
    client = await site.connect()
    client.get("/tunnel", *UPGRADE)
    answer = await client.head()
    assert answer.status == 101 and answer.headers["upgrade"] == "test"
    client.send(b"hello\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert await client.reader.readexactly(27) == b"hello\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    client.close()
    await site.until(lambda: site.app.echo.closes == 1)


@pytest.mark.parametrize("path", ["/tunnel", "/latertunnel"])
async def test_what_is_said_before_the_tunnel_stands_is_kept(site: Site, path: str):
    client = await site.connect()
    client.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nearly ".encode())
    await asyncio.sleep(0.01)
    client.send(b"bird")
    await asyncio.sleep(0.01)
    site.app.gate.set()
    assert (await client.head()).status == 101
    assert await asyncio.wait_for(client.reader.readexactly(10), 5) == b"early bird"
    assert site.app.echo.got == b"early bird"


async def test_too_much_early_talk(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "MAX_EARLY_BYTES", 1000)
    client = await site.connect()
    client.get("/latertunnel", *UPGRADE)
    client.send(b"x" * 2000)
    assert await client.rest() == b""


async def test_an_upgrade_nobody_wants_is_an_ordinary_request(site: Site):
    client = await site.connect()
    client.get("/a", *UPGRADE)
    answer = await client.answer()
    assert answer.status == 200 and answer.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_a_tunnel_behind_another_request(site: Site):
    client = await site.connect()
    client.get("/later?1")
    client.get("/tunnel", *UPGRADE)
    client.send(b"ping")
    await site.until(lambda: site.app.requests)
    site.app.gate.set()
    first = await client.answer()
    assert first.body == b"later 1" and "connection" not in first.headers
    assert (await client.head()).status == 101
    assert await client.reader.readexactly(4) == b"ping"


async def test_a_tunnel_can_be_held_back(site: Site):
    client = await site.connect()
    client.get("/tunnel", *UPGRADE)
    await client.head()
    await site.until(lambda: site.app.echo.sink)
    sink = site.app.echo.sink
    assert sink is not None
    sink.pause()
    client.send(b"x" * 1000)
    await asyncio.sleep(0.02)
    assert site.app.echo.got == b""
    sink.resume()
    await site.until(lambda: len(site.app.echo.got) == 1000)
    sink.close()
    await client.rest()
    await site.until(lambda: site.app.echo.closes == 1)


# ---- the end ----


async def test_stopping():
    async with Site() as site:
        idle, streaming, tunnel, working = [await site.connect() for _ in range(4)]
        idle.get("/a")
        await idle.answer()
        streaming.get("/stream")
        await streaming.head()
        tunnel.get("/tunnel", *UPGRADE)
        await tunnel.head()
        working.get("/later?1")
        await site.until(lambda: len(site.app.requests) == 4)
        stopping = asyncio.create_task(site.server.stop(grace=2))
        assert await idle.rest() == b""
        assert await streaming.chunk() == b"" and await streaming.rest() == b""
        assert await tunnel.rest() == b""
        assert site.app.feed.closes == 1 and site.app.echo.closes == 1
        assert not stopping.done(), "a request under way may finish"
        site.app.gate.set()
        answer = await working.answer()
        assert answer.body == b"later 1" and answer.headers["connection"] == "close"
        await asyncio.wait_for(stopping, 2)
        with pytest.raises(OSError):
            await asyncio.open_connection(*site.address)


async def test_stopping_does_not_wait_for_ever():
    async with Site() as site:
        client = await site.connect()
        client.get("/later?1")
        await site.until(lambda: site.app.requests)
        await asyncio.wait_for(site.server.stop(grace=0.05), 2)
        assert site.app.cancelled == 1 and await client.rest() == b""
