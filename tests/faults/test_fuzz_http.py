"""Bad bytes and bad manners below the API: garbage, cuts, floods and clients that take for ever.

The bytes go to connections of the real API server. What comes back is a proper answer or a closed connection, the
server answers others all the while, and it holds on to nothing.
"""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from random import Random

import orjson
import pytest
from fuzz_objects import STORED, good, path_of
from fuzz_server import FuzzServer, answers, examples, parse, request_bytes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.http.server import HttpLimits

PODS = next(resource for resource in STORED if resource.plural == "pods")
POST = request_bytes("POST", path_of(PODS) + "?dryRun=All", orjson.dumps(good(PODS)), "application/json")
GET = request_bytes("GET", "/api/v1/namespaces/default")
CHUNKED = b"POST /api/v1/namespaces/default/pods?dryRun=All HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
GARBAGE = {
    "nothing": b"", "a line": b"\r\n\r\n", "zeros": b"\0" * 1000, "TLS in the clear": bytes.fromhex("16030100c8010000c40303") + b"\xaa" * 200, "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/0.9": b"GET /\r\n\r\n", "HTTP/9": b"GET / HTTP/9.9\r\n\r\n",
    "SSH": b"SSH-2.0-x\r\n", "no method": b" / HTTP/1.1\r\n\r\n", "an unknown method": b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n", "a long method": b"G" * 100_000, "a space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", "no host": b"GET / HTTP/1.1\r\n\r\n", "bare newlines": b"GET / HTTP/1.1\nHost: x\n\n",
    "a header without colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n", "a header with a space": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\n", "a zero in a header": b"GET / HTTP/1.1\r\nHost: \0\r\n\r\n", "a giant header": b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(20_000)) + b"\r\n", "a giant path": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "a bad length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "a length of letters": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ab\r\n\r\n",
    "a giant length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", "a length beyond the limit": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + b"0\r\n\r\n", "an unknown coding": CHUNKED.replace(b"chunked", b"gzip"),
    "bad chunks": CHUNKED + b"zz\r\n\r\n", "a negative chunk": CHUNKED + b"-1\r\n\r\n", "a giant chunk": CHUNKED + b"ffffffffffffffffff\r\n", "a chunk without end": CHUNKED + b"5\r\nabcdefgh\r\n", "a chunk with extension": CHUNKED + b"2;" + b"x" * 9000 + b"=y\r\n{}\r\n0\r\n\r\n", "a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX: y\r\n\r\n",
    "an upgrade": b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello", "an upgrade to HTTP/2": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n", "an upgrade with a body": b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\n{}more",
    "exec without a pod": b"GET /api/v1/namespaces/default/pods/x/exec?command=a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n" + b"\x80\x03" * 50, "connect": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n" + b"\x16\x03\x01" * 9, "HTTP/1.0": b"GET /healthz HTTP/1.0\r\n\r\n",
    "garbage behind an answer": GET + b"\xff\xfe garbage", "a HEAD that cannot be read": b"HEAD /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
}  # fmt: skip


UNFINISHED = {GARBAGE[name] for name in ("nothing", "a line")}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage(server: FuzzServer, data: bytes) -> None:
    answer = server.run(server.play((data,), patience=0.05, bodyless=data.startswith(b"HEAD")))
    if answer.status or answer.closed:
        server.check(answer, repr(data[:200]), data[:4].strip().decode("latin-1"))
    # Where nothing comes back more may follow, and if it does not, the sweeper ends it.
    assert bool(answer.status) == (data not in UNFINISHED)


def test_bytes_of_any_kind_and_requests_with_bytes_changed(server: FuzzServer) -> None:
    pieces = st.sampled_from([b"GET ", b"POST ", b"/api/v1/pods", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: x", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Connection: close", b"{}", b"0", b":", b" "])  # fmt: skip
    soup = st.builds(b"".join, st.lists(st.one_of(pieces, st.binary(max_size=8)), max_size=20))
    spoiled = st.builds(
        lambda whole, at, new: whole[: at % len(whole)] + new + whole[at % len(whole) + len(new) :],
        st.sampled_from([GET, POST, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"]),
        st.integers(0, 4000),
        st.binary(min_size=1, max_size=4),
    )

    @settings(settings.get_profile("fuzz"), max_examples=examples(400))
    @given(st.one_of(st.binary(max_size=200), soup, spoiled), st.integers(1, 64))
    @example(POST, 1)
    def check(data: bytes, step: int) -> None:
        chunks = [data[at : at + step] for at in range(0, len(data), step)]
        answer = server.run(server.play(chunks, patience=0.0))
        if answer.status:
            server.check(answer, repr(data), data[:4].strip().decode("latin-1"))
        assert not server.complaints.take()

    check()


@pytest.mark.parametrize("whole", [GET, POST, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"], ids=["get", "post", "chunked"])
def test_a_connection_dropped_at_every_byte(server: FuzzServer, whole: bytes) -> None:
    async def drop(at: int) -> None:
        connection, transport = server.connect()
        connection.data_received(whole[:at])
        await asyncio.sleep(0)
        if not transport.closed:
            connection.eof_received()
            transport.close()
        await asyncio.sleep(0)

    before = server.store.revision
    for at in range(0, len(whole), max(1, len(whole) // 500)):
        server.run(drop(at))
    assert server.store.revision == before
    assert not server.complaints.take()


def test_many_requests_at_once_are_answered_in_order(server: FuzzServer) -> None:
    async def pipelined(count: int) -> bytes:
        connection, transport = server.connect()
        connection.data_received(b"".join(request_bytes("GET", f"/api/v1/namespaces/n{n}") for n in range(count)))
        for _ in range(count * 4):
            await asyncio.sleep(0)
        transport.close()
        return bytes(transport.written)

    found = answers(server.run(pipelined(300)))
    assert [orjson.loads(each.body)["details"]["name"] for each in found] == [f"n{n}" for n in range(300)]


def test_memory_of_bodies_is_bounded() -> None:
    """Many clients that each send a large body and never finish: all together are held to one limit."""
    limits = HttpLimits(max_body=1024 * 1024, max_body_in_flight=4 * 1024 * 1024)

    async def flood(server: FuzzServer) -> list[int]:
        open_ = [server.connect() for _ in range(32)]
        for connection, transport in open_:
            connection.data_received(b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            for _ in range(9):
                if not transport.closed:
                    connection.data_received(b"x" * 100_000)
        held = server.http.body_bytes
        codes = [parse(bytes(transport.written), False).status for _, transport in open_]
        for _, transport in open_:
            transport.close()
        await asyncio.sleep(0)
        assert held <= limits.max_body_in_flight
        return codes

    with FuzzServer(limits) as server:
        tracemalloc.start()
        codes = server.run(flood(server))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert set(codes) == {0, 429} and codes.count(0) == 4
        assert peak < 12 * 1024 * 1024
        server.alive()


def test_a_reader_who_takes_nothing_costs_one_answer(server: FuzzServer) -> None:
    """A client that sends requests and reads no answers is not served on and on."""

    async def stuck() -> tuple[int, bool]:
        connection, transport = server.connect(stuck=True)
        for _ in range(2000):
            if transport.reading:
                connection.data_received(GET)
            await asyncio.sleep(0)
        size, reading = len(transport.written), transport.reading
        transport.close()
        await asyncio.sleep(0)
        return size, reading

    size, reading = server.run(stuck())
    assert size < 20_000 and not reading


SLOW = {
    "says nothing": [],
    "a byte of the head at a time": [GET[at : at + 1] for at in range(len(GET) - 1)],
    "a body that does not come": [b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"],
    "a byte of the body at a time": [b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", *[b"x"] * 200],
    "chunks without end": [CHUNKED, *[b"1\r\nx\r\n"] * 200],
    "a header at a time": [b"GET / HTTP/1.1\r\n", *(b"X%d: y\r\n" % n for n in range(200))],
    "waits after an answer": [GET],
}  # fmt: skip


@pytest.mark.parametrize("parts", SLOW.values(), ids=SLOW)
def test_slow_clients_are_dropped(parts: list[bytes]) -> None:
    """On a real socket, each part 50 ms after the other: whoever goes on like that is cut off by the sweeper."""
    limits = HttpLimits(header_timeout=0.3, body_timeout=0.3, idle_timeout=0.3, write_timeout=0.3)

    async def dawdle(server: FuzzServer) -> float:
        host, port = await server.http.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        began = asyncio.get_running_loop().time()

        async def send() -> None:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(send())
        try:
            while await asyncio.wait_for(reader.read(65536), 8):
                pass
        except ConnectionResetError:
            pass
        took = asyncio.get_running_loop().time() - began
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        return took

    with FuzzServer(limits) as server:
        assert server.run(dawdle(server)) < 4
        server.alive()


def test_watches_of_many_clients_who_vanish(server: FuzzServer) -> None:
    async def watch(seed: int) -> None:
        connection, transport = server.connect()
        connection.data_received(request_bytes("GET", "/api/v1/namespaces/default/configmaps?watch=1"))
        for _ in range(Random(seed).randrange(5)):
            await asyncio.sleep(0)
        transport.close()

    for seed in range(200):
        server.run(watch(seed))
        if seed % 10 == 0:
            body = orjson.dumps({"metadata": {"generateName": "x-"}})
            assert server.ask("POST", "/api/v1/namespaces/default/configmaps", body).status == 201
    text = server.ask("GET", "/metrics").body.decode()
    assert re.search(r'apiserver_longrunning_requests\{verb="watch"\} 0\b', text)
