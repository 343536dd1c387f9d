"""Whole nodes with real Envoys, each its own control plane: what passes between domains, by every way there is.

alice ──────────> joe          direct
bob   ══════════> joe          direct, bodies encrypted
alice ──> joe ──> bob          through a third domain
alice <── zoe                  zoe has no public port and dials alice, who calls along that connection
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import Http2Stream, call
from mesh_nodes import (
    CDR,
    DOMAIN,
    Node,
    a_partner,
    a_route,
    answered,
    befriend,
    network,
    put,
    ready,
    services,
    tokens,
    until,
)

MIB = 1 << 20
BULK = 1024
"""MiB of a large body."""
WAYS = ("direct", "encrypted", "transit", "tunnel")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mesh"),
]


@dataclass
class Peers:
    alice: Node
    bob: Node
    joe: Node
    zoe: Node
    http: aiohttp.ClientSession

    def way(self, name: str) -> tuple[Node, str]:
        """Who calls, and whom."""
        return {
            "direct": (self.alice, "joe"),
            "encrypted": (self.bob, "joe"),
            "transit": (self.alice, "bob"),
            "tunnel": (self.alice, "zoe"),
        }[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Peers]:
    async with contextlib.AsyncExitStack() as stack:
        net = await stack.enter_async_context(network(tmp_path_factory.mktemp("p2p"), third=71))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)))
        hidden = net.autonomy("zoe", gateway={"external": "none"})
        alice, bob, joe, zoe = await net.start(*map(net.autonomy, ("alice", "bob", "joe")), hidden)
        for each in (bob, joe, zoe):
            await stack.enter_async_context(services(each, each.name, each.host))
        await befriend(alice, joe)
        await befriend(bob, joe, bodyEncryption={"algorithm": "AES"})
        await carry(alice, joe, bob)
        await dial_out(zoe, alice)
        await ready(alice, "alice-joe", "alice-bob", "alice-zoe")
        await ready(bob, "bob-joe")
        made = Peers(alice, bob, joe, zoe, http)
        for each in WAYS:
            caller, called = made.way(each)
            await answered(http, caller, f"echo.{called}.svc")
        yield made
        assert {each.name: each.complaints() for each in net.nodes} == {each.name: [] for each in net.nodes}


async def carry(one: Node, carrier: Node, other: Node) -> None:
    """Two domains know each other and reach each other only through a third."""
    through = {"transit": {"transitMethod": "THIRD-DOMAIN", "domain": {"domainID": carrier.name}}}
    for here, there in ((one, other), (other, one)):
        granted = {"metadata": {"annotations": {"coterie.io/carry-for": here.name}}}
        await carrier.client.patch(CDR, f"{carrier.name}-{there.name}", "", granted)
        await put(here, DOMAIN, a_partner(there.name, there.certificate))
        await put(here, CDR, a_route(there.name, here.name, None, **through))
    for here, there in ((one, other), (other, one)):
        await put(here, CDR, a_route(here.name, there.name, None, **through))


async def dial_out(hidden: Node, partner: Node) -> None:
    tunnel = {"transit": {"transitMethod": "REVERSE-TUNNEL"}}
    for here, there in ((hidden, partner), (partner, hidden)):
        await put(here, DOMAIN, a_partner(there.name, there.certificate))
    for here in (partner, hidden):
        await put(here, CDR, a_route(hidden.name, partner.name, partner))
        await put(here, CDR, a_route(partner.name, hidden.name, None, **tunnel))


@pytest.mark.parametrize("way", WAYS)
async def test_http1_arrives_with_the_callers_name(peers: Peers, way: str) -> None:
    caller, called = peers.way(way)
    forged = {"Kuscia-Source": "zed", "Kuscia-Origin-Source": "zed", "Kuscia-Token": "x"}
    status, said, _ = await call(
        peers.http, f"{caller.inside}/a?b=c", f"echo.{called}.svc", headers=forged, data=b"xyz"
    )
    assert (status, said["path"], said["size"]) == (200, "/a?b=c", 3)
    headers = dict(said["headers"])
    assert headers["kuscia-source"] == headers["kuscia-origin-source"] == caller.name
    assert "kuscia-token" not in headers


@pytest.mark.parametrize("way", WAYS)
async def test_http2_passes(peers: Peers, way: str) -> None:
    caller, called = peers.way(way)
    stream = await Http2Stream.open(caller.internal, f"echo.{called}.svc", "/x", method="GET")
    body = await stream.until()
    stream.close()
    assert (stream.headers[":status"], b'"/x"' in body) == ("200", True)


@pytest.mark.parametrize("way", WAYS)
async def test_grpc_streams_in_both_directions_at_once(peers: Peers, way: str) -> None:
    caller, called = peers.way(way)
    stream = await Http2Stream.open(caller.internal, f"stream.{called}.svc", "/t.T/Bidi", kind="application/grpc")
    for number in range(1, 6):
        stream.send(b"ping%d" % number)
        # The answer comes while the request is still open.
        assert (await stream.until(5 * number)).endswith(b"ping%d" % number)
    stream.send(b"", end=True)
    await stream.until()
    stream.close()
    assert stream.trailers == {"grpc-status": "0"}
    assert stream.headers["x-source"] == caller.name


@pytest.mark.parametrize("way", WAYS)
async def test_web_sockets_pass(peers: Peers, way: str) -> None:
    caller, called = peers.way(way)
    hello = {"Host": f"echo.{called}.svc"}
    async with peers.http.ws_connect(f"{caller.inside}/ws", headers=hello, max_msg_size=0) as link:
        for size in (1, 2 * MIB):
            await link.send_bytes(bytes(size))
            assert len(await link.receive_bytes(timeout=60)) == size


@pytest.mark.parametrize(("way", "mib"), [("direct", BULK), ("encrypted", 64), ("transit", 64), ("tunnel", 64)])
async def test_large_bodies_arrive_whole(peers: Peers, way: str, mib: int) -> None:
    caller, called = peers.way(way)
    block = bytes(range(256)) * (MIB // 256)
    checksum = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal checksum
        for _ in range(mib):
            checksum = crc32(block, checksum)
            yield block

    status, said, _ = await call(peers.http, f"{caller.inside}/", f"sink.{called}.svc", data=body())
    assert (status, said) == (200, {"size": mib * MIB, "checksum": checksum})


async def test_a_carrier_sees_no_request_of_those_it_carries(peers: Peers) -> None:
    mark = "/only-for-bob"
    assert (await call(peers.http, f"{peers.alice.inside}{mark}", "echo.bob.svc"))[0] == 200

    async def logged() -> bool:
        return mark in peers.bob.access_log()

    await until("bob's access log has the call", logged)
    assert mark not in peers.joe.access_log()


async def test_tokens_roll_without_a_failed_call(peers: Peers) -> None:
    """On all routes of a carried connection at once: alice -> joe, joe -> bob and alice -> bob."""
    rolled = [
        (peers.alice, peers.joe, "alice-joe"),
        (peers.joe, peers.bob, "joe-bob"),
        (peers.alice, peers.bob, "alice-bob"),
    ]
    failed: list[Any] = []
    made = 0
    stop = asyncio.Event()

    async def caller(host: str) -> None:
        nonlocal made
        while not stop.is_set():
            status, said, headers = await call(peers.http, f"{peers.alice.inside}/", host, data=b"x")
            made += 1
            if status != 200:
                failed.append((host, status, said, headers.get("kuscia-error-message")))

    stream = await Http2Stream.open(peers.alice.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc")
    callers = [asyncio.create_task(caller(host)) for host in ("echo.joe.svc", "echo.bob.svc") for _ in range(2)]
    try:
        await every(rolled, 2)
        await asyncio.gather(*(three_more(source, route) for source, _, route in rolled))
    finally:
        stop.set()
        await asyncio.gather(*callers)
        await every(rolled, 0)
    assert failed == []
    assert made > 20
    # A stream that was there before all this still is.
    stream.send(b"still")
    assert await stream.until(5) == b"still"
    stream.close()


async def three_more(source: Node, route: str) -> None:
    first = (await tokens(source, route))[-1]["revision"]

    async def gone_on() -> bool:
        return bool((await tokens(source, route))[-1]["revision"] >= first + 3)

    await until(f"{route} has three more tokens", gone_on)


async def every(routes: list[tuple[Node, Node, str]], seconds: int) -> None:
    for source, destination, route in routes:
        for plane in (source, destination):
            await plane.client.patch(CDR, route, "", {"spec": {"tokenConfig": {"rollingUpdatePeriod": seconds}}})
