"""The small HTTP client against servers that play all parts, also bad ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coterie.http.plain_client import MAX_HEAD_BYTES, Broken, NotConnected, Pool

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = {"Host": "here"}


class Script:
    """Answers the requests it gets, over all connections, with these bytes in turn; None ends the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self.answers:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except asyncio.IncompleteReadError:
                break
            self.heads.append(head)
            found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            self.bodies.append(await reader.readexactly(int(found[1])) if found else b"")
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[tuple[str, int]]:
    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with made:
        yield "127.0.0.1", made.sockets[0].getsockname()[1]


@asynccontextmanager
async def pool_to(serve: Serve, **options: float) -> AsyncIterator[Pool]:
    async with server(serve) as place:
        pool = Pool(place, **options)
        try:
            yield pool
        finally:
            await pool.close()


def answer(body: bytes = b"", head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nX-Told: yes\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(answer(b"abcde"), b"abcde", id="length"),
        pytest.param(CHUNKED, b"abcde", id="chunked"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="no body"),
        pytest.param(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + answer(b"abcde"), b"abcde", id="after 100"),
    ],
)
async def test_bodies_of_all_shapes_and_the_connection_is_kept(given: bytes, wanted: bytes) -> None:
    script = Script(given, answer(b"next"))
    async with pool_to(script) as pool:
        response = await pool.request("GET", "/a?b=c", HOST)
        assert await response.read() == wanted
        assert "x" not in response.headers
        again = await pool.request("GET", "/", HOST)
        assert (await again.read(), again.headers["x-told"]) == (b"next", "yes")
    assert script.connections == 1
    assert script.heads[0].startswith("GET /a?b=c HTTP/1.1\r\nHost: here\r\n")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with pool_to(Script(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as pool:
        assert await (await pool.request("GET", "/", HOST)).read() == b"all of it"


async def test_what_is_sent(tmp_path: Path) -> None:
    script = Script(answer(), answer())
    place = tmp_path / "s"
    made = await asyncio.start_unix_server(script, place)
    pool = Pool(place)
    async with made:
        await (await pool.request("POST", "/", {**HOST, "Content-Type": "text/plain"}, b"body")).read()
        await (await pool.request("PUT", "/", HOST)).read()
        await pool.close()
    assert script.bodies == [b"body", b""]
    assert "Content-Type: text/plain" in script.heads[0]
    assert "Content-Length: 0" in script.heads[1]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", id="too short"),
        pytest.param(CHUNKED[:-5], id="no last chunk"),
        pytest.param(b"SSH-2.0-x\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * (MAX_HEAD_BYTES + 1), id="endless header"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="upgrade"),
        pytest.param(None, id="nothing"),
    ],
)
async def test_half_an_answer_is_none(given: bytes | None) -> None:
    async with pool_to(Script(given)) as pool:
        with pytest.raises(Broken):
            await (await pool.request("GET", "/", HOST)).read()


async def test_nobody_there() -> None:
    async with server(Script()) as place:
        pass
    with pytest.raises(NotConnected):
        await Pool(place).request("GET", "/", HOST)


async def test_words_after_an_answer_end_the_connection() -> None:
    script = Script(answer(b"one") + answer(b"smuggled"), answer(b"two"))
    async with pool_to(script) as pool:
        assert await (await pool.request("GET", "/", HOST)).read() == b"one"
        assert await (await pool.request("POST", "/", HOST)).read() == b"two"
    assert script.connections == 2


async def test_what_must_not_be_kept_is_not() -> None:
    script = Script(answer(b"a", b"Connection: close\r\n"), answer(b"b"), answer())
    async with pool_to(script) as pool:
        assert await (await pool.request("GET", "/", HOST)).read() == b"a"
        head = await pool.request("HEAD", "/", HOST)
        assert (await head.read(), head.headers["content-length"]) == (b"", "1")
        await (await pool.request("GET", "/", HOST)).read()
    assert script.connections == 3


async def test_one_connection_for_each_request_where_none_is_kept() -> None:
    script = Script(answer(b"a"), answer(b"b"))
    async with pool_to(script, keep=0) as pool:
        for wanted in (b"a", b"b"):
            assert await (await pool.request("GET", "/", HOST)).read() == wanted
    assert script.connections == 2
    assert all("Connection: close" in head for head in script.heads)


async def test_an_unused_connection_is_closed_in_time() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer())
        await reader.read()
        closed.set()
        writer.close()

    async with pool_to(serve, keep=0.01) as pool:
        await (await pool.request("GET", "/", HOST)).read()
        await closed.wait()


async def test_a_request_that_is_given_up_takes_its_connection_with_it() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        gone.set()
        writer.close()

    async with pool_to(serve) as pool:
        request = asyncio.ensure_future(pool.request("GET", "/", HOST))
        await asked.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await gone.wait()


async def test_a_slow_reader_makes_the_server_wait() -> None:
    total, sent = 8 << 20, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(64 << 10))
            await writer.drain()
            sent += 64 << 10
        writer.close()

    async with pool_to(serve) as pool:
        response = await pool.request("GET", "/", HOST)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.05)
        assert sent < total
        assert len(await response.read()) == total


async def test_a_limit_stops_reading() -> None:
    async with pool_to(Script(answer(bytes(4 << 20)))) as pool:
        assert 1000 < len(await (await pool.request("GET", "/", HOST)).read(1000)) < 4 << 20


@pytest.mark.parametrize(
    ("target", "headers"), [("/ HTTP/1.1\r\nX: y", HOST), ("/ä", HOST), ("/", {"Host": "a\r\nX: y"})]
)
async def test_nothing_is_smuggled_into_a_request(target: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"percent-encoded|line ends"):
        await Pool(("127.0.0.1", 1)).request("GET", target, headers)
