"""The destination's door: what it answers, what it refuses, and over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from handshake_kit import DR, STEP, Network, alice_and_bob, identity

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import Request, Response
from coterie.kube.client.informers import Informers
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.handshake.handshake_client import (
    HandshakeTarget,
    HttpHandshakeTransport,
    PartnerUnreachable,
)
from coterie.kuscia.gateway.handshake.messages import (
    HandshakeRequest,
    HandshakeResponse,
    HandshakeTokenConfig,
    ProbeAnswer,
    decode,
    encode,
    nanoseconds,
)
from coterie.kuscia.gateway.handshake.server import HandshakeServer

TO_BOB = HandshakeTarget("alice", "bob")


def fingerprint(name: str) -> str:
    return pki.fingerprint(pki.load_certificate(identity(name).certificate.encode()))


@asynccontextmanager
async def bob(**config: Any) -> AsyncIterator[Network]:
    """Bob with a route from alice, and alice's gateway silent: the test plays alice."""
    async with alice_and_bob(**config) as network:
        network.fault = lambda target, body: "lose"
        await network.settle(1)
        yield network


async def ask(network: Network, request: Request) -> Response:
    task = asyncio.ensure_future(network.deliver(request, "bob"))
    for _ in range(400):
        if task.done():
            break
        await network.settle(STEP)
    return await task


def request_of(network: Network, *, off: float = 0.0, half: bytes = bytes(16), **fields: Any) -> HandshakeRequest:
    offered = HandshakeTokenConfig(
        token=crypto.encrypt(identity("bob").key.public_key(), half),
        pubhash=crypto.pubhash(identity("alice").key.public_key()),
    )
    now = nanoseconds(network.sides["bob"].clock.now())
    made = {"domain_id": "alice", "type": "RSA", "token_config": offered, "request_time": now + int(off * 1e9)}
    return HandshakeRequest(**(made | fields))


async def post(
    network: Network, asked: HandshakeRequest, path: str = "/handshake", **headers: str
) -> HandshakeResponse:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await ask(network, Request("POST", path, "", sent, encode(asked)))
    assert response.status == 200 and response.content_type == "application/json"
    return decode(response.body, HandshakeResponse)


async def probe(network: Network, **headers: str) -> ProbeAnswer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await ask(network, Request("GET", "/handshake", "", sent))
    assert response.status == 200
    return decode(response.body, ProbeAnswer)


async def test_a_handshake_from_any_peer() -> None:
    """With nothing of the source's side: what Kuscia sends, and what it would make of the answer."""
    half = bytes(range(16))
    async with bob(rollingUpdatePeriod=300) as network:
        answer = await post(network, request_of(network, half=half), "/some/prefix/handshake")
        assert answer.status.code == 0 and answer.token is not None and answer.token.revision == 1
        theirs = crypto.decrypt(identity("alice").key, answer.token.token, 16)
        side = network.sides["bob"]
        stored = (await side.route()).token_status.tokens
        assert stored is not None and stored[0].is_ready
        assert crypto.opened_bytes(stored[0].token, side.identity) == half + theirs
        life = answer.token.expiration_time / 1e9 - side.clock.now().timestamp()
        assert 590 < life <= 600
        again = await post(network, request_of(network))
        assert again.token is not None and again.token.revision == 2
        assert len((await side.route()).token_status.tokens or ()) == 2


async def test_a_uid_handshake_gets_the_same_token_again() -> None:
    async with bob() as network:
        first = await post(network, request_of(network, type="UID", token_config=None))
        await network.settle(5)
        second = await post(network, request_of(network, type="UID", token_config=None))
        assert first.token is not None and second.token is not None
        assert (first.token.revision, second.token.revision) == (1, 1)
        key = identity("alice").key
        assert crypto.decrypt(key, first.token.token, 32) == crypto.decrypt(key, second.token.token, 32)


@pytest.mark.parametrize(
    ("fields", "headers", "told"),
    [
        ({"domain_id": "carol"}, {}, "DomainRoute carol-bob not found in destination domain bob"),
        ({"domain_id": "../alice"}, {}, "no name of a domain"),
        ({"domain_id": ""}, {}, "no name of a domain"),
        ({"type": "DH"}, {}, "invalid handshake type"),
        ({"token_config": None}, {}, "token_config is missing"),
        ({"token_config": HandshakeTokenConfig(token="eA==", pubhash="eA==")}, {}, "public key hash of alice"),
        (
            {"token_config": HandshakeTokenConfig(token="eA==", pubhash=crypto.pubhash(identity("alice").key.public_key()))},
            {},
            "dest domain [bob] publickey in source domain [alice] may be not correct",
        ),
        ({"request_time": 0}, {}, "request_time is missing"),
        ({"off": 901.0}, {}, "request_time differs by 901 s"),
        ({"off": -901.0}, {}, "request_time differs by -901 s"),
        ({}, {"x_coterie_peer_fingerprint": fingerprint("carol")}, "none that bob knows of alice"),
        ({}, {"x_coterie_peer_fingerprint": fingerprint("bob")}, "none that bob knows of alice"),
    ],
    ids=[
        "unknown source", "odd name", "no name", "unknown type", "no half", "wrong hash", "wrong half", "no time", "from the future",
        "from the past", "stranger's certificate", "another's certificate",
    ],
)  # fmt: skip
async def test_refused_handshakes_change_nothing(fields: dict[str, Any], headers: dict[str, str], told: str) -> None:
    async with bob() as network:
        answer = await post(network, request_of(network, **fields), **headers)
        assert answer.token is None and answer.status.code == 500
        assert told in answer.status.message
        assert (await network.sides["bob"].route()).token_status.revision_token is None


@pytest.mark.parametrize("off", [600.0, -600.0], ids=["ten minutes ahead", "ten minutes behind"])
async def test_clocks_may_differ_by_ten_minutes(off: float) -> None:
    async with bob() as network:
        assert (await post(network, request_of(network, off=off))).status.code == 0


async def test_the_right_certificate_is_welcome() -> None:
    async with bob() as network:
        shown = {"x_coterie_peer_fingerprint": fingerprint("alice")}
        assert (await post(network, request_of(network), **shown)).status.code == 0


async def test_through_a_third_domain_comes_its_certificate() -> None:
    async with bob() as network:
        network.known["joe"] = identity("joe").certificate
        shown = {"x_coterie_peer_fingerprint": fingerprint("joe")}
        assert (await post(network, request_of(network), **shown)).status.code == 500
        transit = {"transitMethod": "THIRD-DOMAIN", "domain": {"domainID": "joe"}}
        await network.sides["bob"].client.patch(DR, "alice-bob", "bob", {"spec": {"transit": transit}})
        await network.settle(1)
        assert (await post(network, request_of(network), **shown)).status.code == 0
        # Joe's token comes with a probe of alice's, and says nothing about hers.
        told = {"kuscia_source": "joe", "kuscia_origin_source": "alice", "kuscia_token": "of joe"}
        assert (await probe(network, kuscia_token_revision="1", **told)).state == 0


async def test_a_flood_is_refused_before_it_costs_anything() -> None:
    async with bob() as network:
        answers = [await post(network, request_of(network, type="UID", token_config=None, off=n)) for n in range(25)]
        refused = [each.status.message for each in answers if each.status.code]
        assert refused and all("too many handshakes from alice" in each for each in refused)
        # Who proves to be alice is not kept out by those who only say so.
        shown = {"x_coterie_peer_fingerprint": fingerprint("alice")}
        assert (await post(network, request_of(network), **shown)).status.code == 0


async def test_the_same_request_twice_at_once_makes_one_token() -> None:
    async with bob(gates=1) as network:
        asked = request_of(network)
        one, two = await asyncio.gather(post(network, asked), post(network, asked))
        assert one == two and one.token is not None and one.token.revision == 1


async def test_different_requests_at_once_come_to_different_gateways_and_all_succeed() -> None:
    async with bob(gates=2) as network:
        answers = await asyncio.gather(*(post(network, request_of(network, off=n)) for n in range(4)))
        assert sorted(each.token.revision for each in answers if each.token) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ({}, 1),
        ({"kuscia_source": "-"}, 1),
        ({"kuscia_source": "alice"}, 2),
        ({"kuscia_source": "alice", "kuscia_token_revision": "1"}, 0),
        ({"kuscia_source": "joe", "kuscia_origin_source": "alice", "kuscia_token_revision": "1"}, 0),
        ({"kuscia_source": "alice", "kuscia_token_revision": "7"}, 4),
        ({"kuscia_source": "alice", "kuscia_token_revision": "1", "kuscia_token": "noop"}, 0),
        ({"kuscia_source": "alice", "kuscia_token_revision": "1", "kuscia_token": "another"}, 4),
        ({"kuscia_source": "carol", "kuscia_token_revision": "1"}, 5),
    ],
    ids=[
        "who?",
        "nobody",
        "which?",
        "ready",
        "the origin counts",
        "no such token",
        "no token",
        "another token",
        "no route",
    ],
)
async def test_probes(headers: dict[str, str], state: int) -> None:
    async with bob() as network:
        await post(network, request_of(network))
        answer = await probe(network, host="kuscia-handshake.master.svc", **headers)
        assert (answer.namespace, answer.state) == ("bob", state)


async def test_strangers_cannot_keep_a_source_from_learning_that_its_token_is_lost() -> None:
    async with bob() as network:
        own = identity("alice").certificate.encode()
        told = {"kuscia_source": "alice", "kuscia_token_revision": "7"}
        states = [(await probe(network, **told)).state for _ in range(40)]
        assert (states[0], states[-1]) == (4, 3), "strangers are told to wait, once they asked too often"
        shown = pki.fingerprint(pki.load_certificate(own))
        assert (await probe(network, x_coterie_peer_fingerprint=shown, **told)).state == 4


async def test_heartbeats_are_not_written_more_often_than_needed() -> None:
    async with bob() as network:
        await post(network, request_of(network))
        side = network.sides["bob"]
        told = {"kuscia_source": "alice", "kuscia_token_revision": "1"}
        await probe(network, **told)
        await network.settle(1)
        version = (await side.route()).metadata.resource_version
        for _ in range(20):
            await probe(network, **told)
        assert (await side.route()).metadata.resource_version == version


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/handshake", b"{", 400),
        ("PUT", "/handshake", b"", 405),
        ("GET", "/", b"", 404),
        ("POST", "/handshakes", b"{}", 404),
        ("POST", "/p/register", b"hello", 201),
    ],
    ids=["bad JSON", "method", "nothing here", "almost", "somebody else's path"],
)
async def test_the_door(method: str, path: str, body: bytes, status: int, tmp_path: Path) -> None:
    async def register(request: Request) -> Response:
        return Response(201, request.body)

    async with bob() as network:
        side = network.sides["bob"]
        server = HandshakeServer(
            side.client, side.gates["gw-bob-0"].informers, side.identity, "gw", side.clock,
            extra={"/register": register}, path=tmp_path / "handshake.sock",
        )  # fmt: skip
        running = asyncio.ensure_future(server.run())
        response = await server.handle(Request(method, path, "", {}, body))
        assert response.status == status
        server.stop()
        await running


# Over HTTP, in real time.


async def test_over_http(tmp_path: Path) -> None:
    async with bob() as network:
        side = network.sides["bob"]
        informers = Informers(side.client)
        server = HandshakeServer(
            side.client, informers, side.identity, "gw", SYSTEM_CLOCK, path=tmp_path / "handshake.sock"
        )
        tasks = [asyncio.ensure_future(each.run()) for each in (informers, server)]
        caller = HttpHandshakeTransport(SocketAddress(str(server.path), 0))
        try:
            async with asyncio.timeout(30):
                await server.ready.wait()
            answer = json.loads(await caller.call(TO_BOB, {"kuscia-token-revision": "1"}, None))
            assert answer == {"namespace": "bob", "state": 4}
            refused = json.loads(await caller.call(TO_BOB, {}, b'{"domain_id":"carol","type":"UID"}'))
            assert refused["status"]["code"] == 500
            with pytest.raises(PartnerUnreachable, match="HTTP 400"):
                await caller.call(TO_BOB, {}, b"{")
            with pytest.raises(PartnerUnreachable, match=r"HTTP 413|ClientOSError|ServerDisconnected"):
                await caller.call(TO_BOB, {}, b" " * 100_000)
        finally:
            await caller.close()
            server.stop()
            tasks[0].cancel()
            await asyncio.wait(tasks)


@asynccontextmanager
async def a_gateway(answer: Any) -> AsyncIterator[SocketAddress]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield SocketAddress(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def test_what_leaves_us() -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(text="{}")

    async with a_gateway(answer) as address:
        caller = HttpHandshakeTransport(address)
        await caller.call(TO_BOB, {"kuscia-token-revision": "4"}, None)
        await caller.call(TO_BOB, {}, b"{}")
        await caller.close()
    probe_, shake = seen
    assert (probe_.method, probe_.path, probe_.host) == ("GET", "/handshake", "kuscia-handshake.bob.svc")
    assert probe_.headers["Kuscia-Token-Revision"] == "4"
    assert (shake.method, shake.headers["Content-Type"]) == ("POST", "application/json")
    assert shake.headers["Kuscia-Host"] == "kuscia-handshake.bob.svc" and shake.headers["Kuscia-Source"] == "alice"


async def test_what_is_no_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        kind = request.headers["kind"]
        if kind == "error":
            return web.Response(status=503, headers={"Kuscia-Error-Message": "<alice/gw/internal $cause$ no way>"})
        if kind == "moved":
            return web.Response(status=302, headers={"Location": "http://elsewhere.example/"})
        if kind == "large":
            return web.Response(body=b" " * 100_000)
        await asyncio.sleep(30)
        return web.Response()

    async with a_gateway(answer) as address:
        caller = HttpHandshakeTransport(address, seconds=0.5)
        rows = (
            ("error", "503: <alice/gw/internal .cause. no way>"),
            ("moved", "302"),
            ("large", "65536"),
            ("slow", "0.5 s"),
        )
        for kind, told in rows:
            with pytest.raises(PartnerUnreachable, match=told):
                await caller.call(TO_BOB, {"kind": kind}, None)
        await caller.close()
    with pytest.raises(PartnerUnreachable, match="NotConnected"):
        nobody = HttpHandshakeTransport(address)
        try:
            await nobody.call(TO_BOB, {}, None)
        finally:
            await nobody.close()
