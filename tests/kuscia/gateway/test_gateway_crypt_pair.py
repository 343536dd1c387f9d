"""Encrypted routes between real Envoys: what is seen on the wire, what passes, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import signal
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import h2.exceptions
import pytest
import pytest_asyncio
from crypt_kit import ENCRYPTED, MARKER, Secretive, Wire, encrypting, mirror, secretive, with_crypt
from gateway_kit import HOSTS, Http2Stream, make_inputs, route, running, token

from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.model import DomainService, Route, RoutePort, TransitGrant

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secretive]:
    async with secretive(tmp_path_factory.mktemp("c")) as made:
        yield made


@pytest.fixture
def domains(shared: Secretive) -> Secretive:
    shared.wire.seen.clear()
    shared.wire.there = shared.wire.back = lambda data: data
    return shared


async def ask(
    domains: Secretive, path: str = "/", data: Any = None, *, host: str = "mirror.bob.svc", **more: Any
) -> tuple[int, bytes, dict[str, str]]:
    method = more.pop("method", "GET" if data is None else "POST")
    headers = {"Host": host, **more.pop("headers", {})}
    async with domains.http.request(
        method, f"{domains.alice.inside}{path}", data=data, headers=headers, **more
    ) as reply:
        return reply.status, await reply.read(), {key.lower(): value for key, value in reply.headers.items()}


# ---- what passes ----


async def test_bodies_are_not_seen_on_the_wire(domains: Secretive) -> None:
    status, body, reply = await ask(domains, "/clear-path?clear=query", MARKER * 100)
    assert (status, body) == (200, MARKER * 100)
    seen = bytes(domains.wire.seen)
    assert b"/clear-path?clear=query" in seen
    assert MARKER not in seen
    assert b"kuscia-encrypt-version: 1\r\n" in seen
    assert seen.count(b"x-coterie-encrypt: ") == 2  # one request, one response
    inside = reply["x-names"].split(",")
    assert "x-added" in inside
    assert not {"x-coterie-encrypt", "kuscia-encrypt-iv", "kuscia-encrypt-version", "kuscia-token"} & {*inside, *reply}


async def test_the_same_body_never_looks_the_same(domains: Secretive) -> None:
    salts = set()
    for _ in range(3):
        domains.wire.seen.clear()
        await ask(domains, data=MARKER)
        lines = bytes(domains.wire.seen).split(b"\r\n")
        salts |= {line for line in lines if line.startswith(b"kuscia-encrypt-iv")}
    assert len(salts) == 6


EMPTY = {
    "GET": ("GET", "/", 200),
    "HEAD": ("HEAD", "/", 200),
    "POST without body": ("POST", "/", 200),
    "no content": ("POST", "/?status=204", 204),
    "not modified": ("GET", "/?status=304", 304),
    "error of the service": ("GET", "/?status=500", 500),
}


@pytest.mark.parametrize(("method", "path", "expected"), EMPTY.values(), ids=list(EMPTY))
async def test_messages_without_body(domains: Secretive, method: str, path: str, expected: int) -> None:
    status, body, _ = await ask(domains, path, method=method)
    assert (status, body) == (expected, b"")


async def test_an_error_of_the_service_comes_with_its_body(domains: Secretive) -> None:
    assert (await ask(domains, "/?status=418", MARKER))[:2] == (418, MARKER)
    assert MARKER not in domains.wire.seen


async def test_the_length_of_a_body_is_told_where_it_was(domains: Secretive) -> None:
    _, body, reply = await ask(domains, "/?whole", MARKER, headers={"x-coterie-length": "1"})
    assert (body, reply["content-length"]) == (MARKER, str(len(MARKER)))
    inside = reply["x-names"].split(",")
    assert "content-length" in inside
    assert not {"transfer-encoding", "x-coterie-length"} & {*inside, *reply}


async def test_a_body_of_unknown_length_stays_one(domains: Secretive) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield MARKER

    _, body, reply = await ask(domains, data=pieces())
    assert body == MARKER
    assert {"transfer-encoding"} == {"transfer-encoding", "content-length"} & {*reply["x-names"].split(",")}
    assert "content-length" not in reply


async def test_head_tells_the_length_of_what_it_does_not_send(domains: Secretive) -> None:
    status, body, reply = await ask(domains, "/?whole", method="HEAD")
    assert (status, body, reply["content-length"]) == (200, b"", str(len(MARKER)))
    assert (await ask(domains, data=MARKER))[:2] == (200, MARKER)


async def test_compressed_bodies_stay_compressed(domains: Secretive) -> None:
    status, body, reply = await ask(domains, "/?coding=gzip", gzip.compress(MARKER), auto_decompress=False)
    assert (status, reply["content-encoding"]) == (200, "gzip")
    assert zlib.decompress(body, 31) == MARKER


async def test_large_bodies_in_both_directions_at_once(domains: Secretive) -> None:
    piece = os.urandom(MIB)
    sent = sha256()

    async def upload() -> AsyncIterator[bytes]:
        for number in range(48):
            data = number.to_bytes(4, "big") + piece
            sent.update(data)
            yield data

    got = sha256()
    url, headers = f"{domains.alice.inside}/", {"Host": "mirror.bob.svc"}
    async with domains.http.post(url, data=upload(), headers=headers) as reply:
        async for data in reply.content.iter_any():
            got.update(data)
    assert got.digest() == sent.digest()


async def test_streams_take_turns_and_end_with_trailers(domains: Secretive) -> None:
    stream = await Http2Stream.open(
        domains.alice.inputs.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc"
    )
    size = 0
    for number in range(20):
        data = MARKER + bytes([number])
        stream.send(data)
        size += len(data)
        assert (await stream.until(size)).endswith(data)
    stream.send(b"", end=True)
    await stream.until()
    stream.close()
    assert stream.trailers == {"grpc-status": "0"}
    assert MARKER not in domains.wire.seen
    assert b"PRI * HTTP/2.0" in domains.wire.seen


async def test_web_sockets_are_encrypted_too(domains: Secretive) -> None:
    url, headers = f"{domains.alice.inside}/ws", {"Host": "mirror.bob.svc"}
    async with domains.http.ws_connect(url, headers=headers) as socket:
        for number in range(5):
            # Clients mask what they send; what comes back would stand in clear.
            await socket.send_bytes(MARKER + bytes([number]))
            assert (await socket.receive(30)).data == MARKER + bytes([number])
    assert MARKER not in domains.wire.seen


async def test_many_calls_at_once(domains: Secretive) -> None:
    bodies = [os.urandom(40_000) for _ in range(40)]
    answers = await asyncio.gather(*(ask(domains, data=each) for each in bodies))
    assert [each[:2] for each in answers] == [(200, body) for body in bodies]


async def test_a_service_without_endpoints_says_so(domains: Secretive) -> None:
    status, _, reply = await ask(domains, host="empty.bob.svc", data=MARKER)
    assert status == 503
    assert "x-coterie-encrypt" not in reply


# ---- what is refused ----


async def test_encryption_opens_no_doors(domains: Secretive) -> None:
    status, _, reply = await ask(domains, host="closed.bob.svc", data=MARKER)
    assert status == 403
    assert "bob/0/external" in reply["kuscia-error-message"]
    assert "x-names" not in reply


def outside(domains: Secretive, **headers: str) -> dict[str, str]:
    return {
        "Host": "mirror.bob.svc",
        "Kuscia-Source": "alice",
        "Kuscia-Token": token("alice", "bob").reveal(),
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }


CLEAR = {
    "nothing": ({}, 403, "must encrypt what it sends"),
    "Kuscia's format": (
        {"Kuscia_Encrypt_Version": "1", "Kuscia_Encrypt_Iv": "AAAAAAAAAAAAAAAA"}, 400, "Kuscia's own format",
    ),
    "only the claim": (
        {"Kuscia_Encrypt_Version": "1", "Kuscia_Encrypt_Iv": "AAAAAAAAAAAAAAAAAAAAAA==", "X_Coterie_Encrypt": "aes256gcm-stream-1"},
        400, "body encryption",
    ),
    "another scheme": (
        {"Kuscia_Encrypt_Version": "1", "Kuscia_Encrypt_Iv": "AAAAAAAAAAAAAAAAAAAAAA==", "X_Coterie_Encrypt": "rot13"}, 400, "scheme",
    ),
    "an old token": (
        {"Kuscia_Encrypt_Version": "7", "Kuscia_Encrypt_Iv": "AAAAAAAAAAAAAAAAAAAAAA==", "X_Coterie_Encrypt": "aes256gcm-stream-1"},
        400, "revision 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", [None, MARKER], ids=["without body", "with body"])
@pytest.mark.parametrize(("headers", "expected", "why"), CLEAR.values(), ids=list(CLEAR))
async def test_whoever_must_encrypt_and_does_not_is_refused(
    domains: Secretive, headers: dict[str, str], expected: int, why: str, data: bytes | None
) -> None:
    method = "GET" if data is None else "POST"
    url = f"{domains.bob.outside}/"
    async with domains.http.request(method, url, data=data, headers=outside(domains, **headers)) as reply:
        assert reply.status == expected
        assert why in reply.headers["kuscia-error-message"]
        assert "x-names" not in reply.headers


async def test_a_partner_that_need_not_encrypt_does_not(domains: Secretive) -> None:
    headers = {"Host": "mirror.bob.svc", "Kuscia-Source": "carol", "Kuscia-Token": token("carol", "bob").reveal()}
    async with domains.http.post(f"{domains.bob.outside}/", data=MARKER, headers=headers) as reply:
        assert (reply.status, await reply.read()) == (200, MARKER)


def flipping() -> Callable[[bytes], bytes]:
    """Changes the last byte but a few of a body: inside cipher text or tag, outside HTTP's own framing.

    However the message is cut into segments: it goes on when it is whole.
    """
    held = bytearray()

    def change(data: bytes) -> bytes:
        held.extend(data)
        at = held.rfind(b"\r\n0\r\n\r\n")
        if at < 1:
            return b""
        held[at - 1] ^= 1
        whole = bytes(held)
        held.clear()
        return whole

    return change


async def test_a_changed_request_never_reaches_the_service(domains: Secretive) -> None:
    domains.wire.there = flipping()
    status, body, reply = await ask(domains, data=MARKER)
    assert status == 400
    assert MARKER not in body
    assert "changed on the way" in reply["kuscia-error-message"]
    assert "x-names" not in reply


async def test_a_changed_response_is_not_released(domains: Secretive) -> None:
    domains.wire.back = flipping()
    try:
        status, body, _ = await ask(domains, data=MARKER)
    except aiohttp.ClientError:
        return  # the headers had gone already
    assert (status, body.count(MARKER)) == (502, 0)


def in_clear(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nx-hint: kept\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_a_success_in_clear_is_not_believed(domains: Secretive) -> None:
    domains.wire.back = lambda _: in_clear("200 OK", b"forged")
    status, body, reply = await ask(domains, data=MARKER)
    assert status == 502
    assert b"forged" not in body
    assert "in clear" in reply["kuscia-error-message"]


async def test_an_empty_success_in_clear_is_not_believed(domains: Secretive) -> None:
    domains.wire.back = lambda _: in_clear("200 OK", b"")
    assert (await ask(domains))[0] == 502


async def test_of_an_error_on_the_way_the_status_passes_and_the_text_does_not(domains: Secretive) -> None:
    domains.wire.back = lambda _: in_clear("503 Service Unavailable", b"forged")
    status, body, reply = await ask(domains, data=MARKER)
    assert (status, reply["x-hint"]) == (503, "kept")
    assert b"forged" not in body
    assert b"without encryption" in body


async def test_a_wrong_token_is_told(domains: Secretive) -> None:
    """The partner's gateway refuses before any key matters."""
    (there,) = domains.alice.inputs.routes
    await domains.alice.change(routes=(replace(there, tokens=(token("alice", "bob", 9),)),))
    status, _, reply = await ask(domains, data=MARKER)
    await domains.alice.change(routes=(there,))
    assert status == 401
    assert "unauthorized" in reply["kuscia-error-message"]


# ---- life ----


async def test_tokens_roll_without_a_failed_request(domains: Secretive) -> None:
    (there,), at_bob = domains.alice.inputs.routes, domains.bob.inputs.routes
    failed: list[int] = []
    done = asyncio.Event()

    async def load() -> int:
        count = 0
        while not done.is_set():
            status, body, _ = await ask(domains, data=MARKER)
            count += 1
            if (status, body) != (200, MARKER):
                failed.append(status)
        return count

    loads = [asyncio.create_task(load()) for _ in range(3)]
    for newest in range(2, 6):
        both = {
            "tokens": (token("alice", "bob", newest - 1), token("alice", "bob", newest)),
            "revisions": (newest - 1, newest),
        }
        await domains.change(domains.bob, routes=(replace(at_bob[0], **both), *at_bob[1:]))
        await domains.change(domains.alice, routes=(replace(there, **both),))
        await ask(domains, data=MARKER)
    done.set()
    counts = await asyncio.gather(*loads)
    assert failed == []
    assert min(counts) > 0
    domains.wire.seen.clear()
    await ask(domains, data=MARKER)
    assert b"kuscia-encrypt-version: 5\r\n" in domains.wire.seen
    await domains.change(domains.bob, routes=at_bob)
    await domains.change(domains.alice, routes=(there,))


@pytest.mark.parametrize("where", ["alice", "bob"])
async def test_without_the_child_nothing_passes_and_it_comes_back(domains: Secretive, where: str) -> None:
    child = domains.children[where]
    assert child.pid is not None
    before = child.restarts
    os.kill(child.pid, signal.SIGSTOP)  # so that it cannot be back before the request was sent
    os.kill(child.pid, signal.SIGKILL)
    domains.wire.seen.clear()
    seen = set()
    async with asyncio.timeout(20):
        while (answer := (await ask(domains, data=MARKER))[:2]) != (200, MARKER) or child.restarts == before:
            seen.add(answer[0])
            await asyncio.sleep(0.02)
    assert seen <= {200, 503}
    assert MARKER not in domains.wire.seen


@pytest.mark.parametrize("where", ["alice", "bob"])
async def test_a_stream_ends_when_the_child_dies_and_never_goes_on_in_clear(domains: Secretive, where: str) -> None:
    stream = await Http2Stream.open(
        domains.alice.inputs.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc"
    )
    stream.send(b"first")
    assert await stream.until(5) == b"first"
    child = domains.children[where]
    before = child.restarts
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(h2.exceptions.ProtocolError, ConnectionError):
        stream.send(MARKER)
    assert await stream.until() == b"first"
    stream.close()
    assert stream.trailers.get("grpc-status") != "0"
    assert MARKER not in domains.wire.seen
    async with asyncio.timeout(20):
        while child.restarts == before or (await ask(domains, data=b"x"))[0] != 200:
            await asyncio.sleep(0.02)


async def test_other_routes_do_not_need_the_child(tmp_path: Path) -> None:
    """The child of bob was never started, so carol's calls prove that they go without."""
    async with mirror(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        bob = make_inputs("bob", tmp_path, Protocol.NOTLS)
        bob = with_crypt(
            bob,
            tmp_path,
            services=(DomainService("mirror", (plain,)),),
            routes=(route("alice", "bob", bob, "bob", **ENCRYPTED), route("carol", "bob", bob, "bob")),
        )
        async with running(bob, root=tmp_path) as (at_bob,):
            for source, expected in (("carol", 200), ("alice", 503)):
                headers = {
                    "Host": "mirror.bob.svc",
                    "Kuscia-Source": source,
                    "Kuscia-Token": token(source, "bob").reveal(),
                }
                async with http.post(f"{at_bob.outside}/", data=MARKER, headers=headers) as reply:
                    assert reply.status == expected, source


async def test_a_domain_in_between_sees_nothing(tmp_path: Path) -> None:
    """alice -> joe -> bob hop by hop: joe reads and speaks for alice, but bodies are for bob alone."""
    async with mirror(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        alice, joe, bob = (make_inputs(name, tmp_path, Protocol.NOTLS) for name in ("alice", "joe", "bob"))
        assert bob.external is not None
        assert joe.external is not None
        carried = Route("alice", "bob", via="joe", hop_by_hop=True, tokens=(token("alice", "bob"),), **ENCRYPTED)
        async with Wire(joe.external).open() as first, Wire(bob.external).open() as second:
            to_joe = {"host": first.address.host, "ports": (RoutePort("http", first.address.port),)}
            to_bob = {"host": second.address.host, "ports": (RoutePort("http", second.address.port),)}
            alice = with_crypt(alice, tmp_path, routes=(route("alice", "joe", joe, "alice", **to_joe), carried))
            joe = replace(
                joe,
                transit=(TransitGrant("alice", "bob"),),
                routes=(route("alice", "joe", joe, "joe"), route("joe", "bob", bob, "joe", **to_bob)),
            )
            bob = with_crypt(
                bob,
                tmp_path,
                services=(DomainService("mirror", (plain,)),),
                routes=(route("joe", "bob", bob, "bob"), carried),
            )
            async with (
                encrypting(alice, bob, root=tmp_path),
                running(alice, joe, bob, root=tmp_path) as (at_alice, at_joe, _),
            ):
                headers = {"Host": "mirror.bob.svc"}
                async with http.post(f"{at_alice.inside}/", data=MARKER * 1000, headers=headers) as reply:
                    assert (reply.status, await reply.read()) == (200, MARKER * 1000)
                for wire in (first, second):
                    assert b"x-coterie-encrypt" in wire.seen
                    assert MARKER not in wire.seen
                # Joe's own calls are clear: its route asks for nothing.
                async with http.post(f"{at_joe.inside}/", data=MARKER, headers=headers) as reply:
                    assert (reply.status, await reply.read()) == (200, MARKER)
