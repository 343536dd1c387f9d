"""Tables of web servers: the suite of all sources, and servers and names that mean ill."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from pyarrow import parquet
from yarl import URL

from coterie.base.secret import SecretValue
from coterie.kuscia.sources import conformance
from coterie.kuscia.sources.files import FileSource
from coterie.kuscia.sources.http_client import HttpClient, HttpSourceLimits, address_fault, url_fault
from coterie.kuscia.sources.http_files import HttpStore
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
)
from coterie.kuscia.sources.source_registry import open_source

CSV = b"id,name\n1,a\n2,b\n3,c\n"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}, schema=SCHEMA), sink)
    return bytes(sink.getvalue())


class WebServer:
    """Files with ranges, and whatever else a test adds by path."""

    def __init__(self) -> None:
        self.port = 0
        self.files = {"/t/people.csv": CSV, "/t/people.parquet": _parquet(), "/t/a b/\u5b57?.csv": CSV}
        self.special: dict[str, Handler] = {}
        self.seen: list[web.BaseRequest] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.path in self.special:
            return await self.special[request.path](request)
        data = self.files.get(request.path)
        if data is None:
            return web.Response(status=404)
        wanted = request.http_range
        headers = {"ETag": '"v1"'}
        if "Range" in request.headers:
            start, stop = wanted.start or 0, min(wanted.stop or len(data), len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return web.Response(status=206, body=data[start:stop], headers=headers)
        return web.Response(body=data, headers=headers)

    def info(self, **changes: str) -> SourceInfo:
        extra = {"hosts": "127.0.0.1", "private_addresses": "yes", **changes}
        return SourceInfo(kind="http", endpoint=f"http://127.0.0.1:{self.port}/t/", extra=extra)


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    made = WebServer()
    runner = web.ServerRunner(web.Server(made.answer), shutdown_timeout=1)  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


async def fetch(info: SourceInfo, uri: str, schema: pa.Schema | None = SCHEMA) -> list[dict[str, object]]:
    async with open_source(info) as source, source.read(DataLocation(uri), schema) as stream:
        return [row async for batch in stream for row in batch.to_pylist()]


@pytest.mark.parametrize("uri", ["people.csv", "people.parquet"])
@pytest.mark.parametrize("check", conformance.checks(read_only=True), ids=lambda each: each.__name__)
async def test_web_servers_conform(server: WebServer, check: conformance.CheckRun, uri: str) -> None:
    await conformance.run_check(check, server.info(), uri, files=True)


async def test_names_are_quoted(server: WebServer) -> None:
    assert len(await fetch(server.info(), "a b/\u5b57?.csv")) == 3


async def test_a_server_without_head_and_ranges(server: WebServer) -> None:
    async def plain(request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(status=405)
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(_parquet() if request.path.endswith("parquet") else CSV)
        return answer

    server.special = {"/t/x.csv": plain, "/t/x.parquet": plain}
    assert len(await fetch(server.info(), "x.csv", None)) == 3
    with pytest.raises(SourceError, match="does not tell the length"):
        await fetch(server.info(), "x.parquet")


# Credentials.


async def test_credentials_go_to_the_endpoint_alone(server: WebServer) -> None:
    info = replace(server.info(hosts="127.0.0.1,localhost"), secrets={"token": SecretValue("s3cr3t")})

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"http://localhost:{server.port}/t/people.csv")

    server.special["/t/moved.csv"] = elsewhere
    assert len(await fetch(info, "moved.csv")) == 3
    by_host = {request.host.partition(":")[0]: request.headers.get("Authorization") for request in server.seen}
    assert by_host == {"127.0.0.1": "Bearer s3cr3t", "localhost": None}


async def test_denied_access_is_told_without_the_secret(server: WebServer) -> None:
    async def denied(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401)

    server.special["/t/people.csv"] = denied
    info = replace(server.info(), user="ann", password=SecretValue("s3cr3t"))
    with pytest.raises(SourceUnreachable, match="denied access") as caught:
        await fetch(info, "people.csv")
    assert "s3cr3t" not in str(caught.value) and "ann" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"endpoint": "ftp://data.example/"}, "needs an endpoint"),
        ({"endpoint": "https://u:p@data.example/"}, "needs an endpoint"),
        ({"endpoint": "https://data.example/?sig=1"}, "needs an endpoint"),
        ({"endpoint": "https://other.example/"}, "not among its `hosts`"),
        ({"extra": {}}, "needs `hosts`"),
        ({"extra": {"hosts": "data.example", "max_bytes": "-1"}}, "a number of bytes"),
        ({"extra": {"hosts": "data.example", "private_addresses": "maybe"}}, "yes or no"),
        ({"extra": {"hosts": "data.example", "verify": "no"}}, "no setting verify"),
        ({"extra": {"hosts": "data.example", "ca": "x"}}, "no certificate"),
        ({"endpoint": "http://data.example/", "user": "u"}, "https only"),
        ({"secrets": {"token": SecretValue("a\r\nHost: b")}}, "line break"),
        ({"endpoint": "http://127.0.0.1/", "extra": {"hosts": "127.0.0.1"}}, "not public"),
    ],
)
def test_settings_that_cannot_be_right(changes: dict[str, object], sentence: str) -> None:
    usual = SourceInfo(kind="http", endpoint="https://data.example/", extra={"hosts": "data.example"})
    with pytest.raises(SourceError, match=sentence):
        open_source(replace(usual, **changes))  # type: ignore[arg-type]


# Where a server or a name would lead us.


@pytest.mark.parametrize(
    ("address", "private", "allowed"),
    [
        ("93.184.216.34", False, True),
        ("127.0.0.1", False, False),
        ("127.0.0.1", True, True),
        ("10.0.0.1", False, False),
        ("192.168.1.1", False, False),
        ("100.64.0.1", False, False),
        ("169.254.169.254", True, False),
        ("0.0.0.0", True, False),
        ("224.0.0.1", True, False),
        ("::1", False, False),
        ("fe80::1%eth0", True, False),
        ("fd00::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("::ffff:169.254.169.254", True, False),
        ("64:ff9b::7f00:1", False, False),
        ("2002:7f00:1::", False, False),
        ("100.100.100.200", True, False),
        ("168.63.129.16", True, False),
        ("192.0.0.192", True, False),
        ("::ffff:100.100.100.200", True, False),
        ("64:ff9b::a83f:8110", True, False),
        ("fd00:ec2::254", True, False),
        ("fd20:ce::254", True, False),
        ("192.0.0.5", False, False),
        ("fec0::1", False, False),
        ("64:ff9b:1::a9fe:a9fe", False, False),
        ("::7f00:1", False, False),
        ("4000::1", False, False),
        ("2606:2800:220:1:248:1893:25c8:1946", False, True),
    ],
)
def test_addresses(address: str, private: bool, allowed: bool) -> None:
    assert (address_fault(address, private=private) == "") is allowed


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://data.example/x", "https://other.example/x", "https://u:p@data.example/x",
     "https://127.0.0.1/x", "https://[::1]/x", "gopher://data.example/"],
)  # fmt: skip
def test_redirects_that_are_not_followed(url: str) -> None:
    limits = HttpSourceLimits(frozenset({"data.example", "127.0.0.1", "::1"}), False, 1)
    assert url_fault(URL(url), limits, URL("https://data.example/"))


@pytest.mark.parametrize(
    "target", ["http://localhost:{port}/t/people.csv", "file:///etc/passwd", "//localhost/x", "http://169.254.169.254/"]
)
async def test_a_server_that_redirects_elsewhere(server: WebServer, target: str) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target.format(port=server.port)})

    server.special["/t/moved.csv"] = elsewhere
    with pytest.raises(SourceForbidden, match="redirects to"):
        await fetch(server.info(), "moved.csv")
    assert {request.path for request in server.seen} == {"/t/moved.csv"}


async def test_redirects_without_end(server: WebServer) -> None:
    async def again(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/t/moved.csv"})

    server.special["/t/moved.csv"] = again
    with pytest.raises(SourceError, match="too often"):
        await fetch(server.info(), "moved.csv")
    assert len(server.seen) == 6


class Names(AbstractResolver):
    """Every name has this address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=self.address, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None: ...


@asynccontextmanager
async def named(server: WebServer, private: str, address: str) -> AsyncIterator[FileSource]:
    extra = {"hosts": "data.example", "private_addresses": private}
    info = SourceInfo(kind="http", endpoint=f"http://data.example:{server.port}/t", extra=extra)
    source = FileSource(HttpStore(HttpClient(info, Names(address))))
    async with source:
        yield source


async def test_a_name_that_leads_to_this_machine(server: WebServer) -> None:
    async with named(server, "no", "127.0.0.1") as source:
        with pytest.raises(SourceForbidden, match="not public"):
            await source.schema(DataLocation("people.csv"))
    assert server.seen == []


async def test_a_name_that_leads_to_the_clouds_own_service(server: WebServer) -> None:
    async with named(server, "yes", "169.254.169.254") as source:
        with pytest.raises(SourceForbidden, match="link-local"):
            await source.schema(DataLocation("people.csv"))


# What a server would send.


async def test_a_file_that_is_said_to_be_huge(server: WebServer) -> None:
    with pytest.raises(SourceError, match="more than the source's max_bytes"):
        await fetch(server.info(max_bytes="10"), "people.csv")


async def test_a_stream_without_end(server: WebServer) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        await answer.write(b"id,name\n")
        try:
            while True:
                await answer.write(b"1,a\n" * 4096)
        except ConnectionError:
            pass
        return answer

    server.special["/t/endless.csv"] = endless
    with pytest.raises(SourceError, match="longer than the source's max_bytes"):
        await fetch(server.info(max_bytes="1000000"), "endless.csv")
    async with open_source(server.info()) as source:
        assert (await source.schema(DataLocation("endless.csv"))).names == ["id", "name"]
        async with source.read(DataLocation("endless.csv"), SCHEMA, TableReadOptions(batch_rows=10)) as stream:
            assert (await anext(stream)).num_rows == 10


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ({"Content-Encoding": "gzip"}, 200, "compressed"),
        ({"Content-Length": "999"}, 200, "stopped in the middle"),
        ({}, 503, "failed"),
        ({}, 418, "refused"),
        ({}, 404, "there is no file"),
    ],
)
async def test_answers_that_are_no_file(server: WebServer, headers: dict[str, str], status: int, sentence: str) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=status, headers=headers)
        await answer.prepare(request)
        if request.method == "GET":
            await answer.write(CSV)
            assert request.transport is not None
            if "Content-Length" in headers:
                request.transport.close()
        return answer

    server.special["/t/odd.csv"] = odd
    with pytest.raises(SourceError, match=sentence):
        await fetch(server.info(), "odd.csv")


async def test_ranges_that_are_others(server: WebServer) -> None:
    async def shifted(request: web.Request) -> web.StreamResponse:
        data = _parquet()
        if "Range" not in request.headers:
            return web.Response(body=data)
        return web.Response(status=206, body=data, headers={"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})

    server.special["/t/shifted.parquet"] = shifted
    with pytest.raises(SourceError, match="does not give ranges"):
        async with open_source(server.info()) as source:
            store = source._store  # type: ignore[attr-defined]
            await store._client.get_range("shifted.parquet", "", 5, 7)


async def test_a_file_that_changes_while_it_is_read(server: WebServer) -> None:
    async with open_source(server.info()) as source:
        client = source._store._client  # type: ignore[attr-defined]
        with pytest.raises(SourceError, match="was replaced"):
            await client.get_range("people.parquet", '"v0"', 0, 4)


async def test_bad_tables(server: WebServer) -> None:
    server.files |= {
        "/t/html.csv": b"<html><body>Please log in</body></html>",
        "/t/words.csv": b"id,name\nx,y\n",
        "/t/short.parquet": b"PAR1" + b"\0" * 20 + b"PAR1",
        "/t/empty.csv": b"",
    }
    for uri in ("html.csv", "words.csv", "short.parquet", "empty.csv"):
        with pytest.raises(SourceError):
            await fetch(server.info(), uri)
    async with open_source(server.info()) as source:
        with pytest.raises(SourceError, match="not what it should be"):
            await source.schema(DataLocation("short.parquet"))
    with pytest.raises(DataNotFound):
        await fetch(server.info(), "none.csv")


async def test_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    extra = {"hosts": "127.0.0.1", "private_addresses": "yes"}
    info = SourceInfo(kind="http", endpoint=f"http://127.0.0.1:{unused_tcp_port}", extra=extra)
    with pytest.raises(SourceUnreachable, match="does not answer"):
        await asyncio.wait_for(fetch(info, "people.csv"), 30)
