"""What breaks between two domains heals by itself. Whole nodes, real Envoys; docs/guide/healing.md states the times.

Nobody does anything here but what an operator would have to do anyway: start a node again, hand a new certificate over,
put lost objects back. All tests share two nodes and leave them as they found them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import rsa
from gateway_kit import Http2Stream, call, echo, streaming_echo
from mesh_nodes import (
    CDR,
    DOMAIN,
    Node,
    answered,
    befriend,
    identity_of,
    network,
    ready,
    serve,
    tokens,
    until,
)

from coterie.base import pki
from coterie.kuscia.gateway.addresses import SocketAddress

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mesh"),
]


@dataclass
class Pair:
    alice: Node
    bob: Node
    plain: dict[str, SocketAddress]
    streams: dict[str, SocketAddress]
    http: aiohttp.ClientSession

    def both(self) -> tuple[tuple[Node, Node], tuple[Node, Node]]:
        return (self.alice, self.bob), (self.bob, self.alice)

    async def well(self) -> None:
        """Calls arrive in both directions, and both sides say so."""
        for here, there in self.both():
            await answered(self.http, here, f"echo.{there.name}.svc")
        for here in (self.alice, self.bob):
            await ready(here, "alice-bob", "bob-alice")

    async def offer(self, node: Node) -> None:
        await serve(node, node.name, "echo", self.plain[node.name])
        await serve(node, node.name, "stream", self.streams[node.name], protocol="GRPC")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        net = await stack.enter_async_context(network(tmp_path_factory.mktemp("faults"), third=73))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))
        alice, bob = await net.start(net.autonomy("alice"), net.autonomy("bob"))
        plain = {each.name: await stack.enter_async_context(echo(each.host)) for each in (alice, bob)}
        streams = {each.name: await stack.enter_async_context(streaming_echo(each.host)) for each in (alice, bob)}
        made = Pair(alice, bob, plain, streams, http)
        for each in (alice, bob):
            await made.offer(each)
        await befriend(alice, bob)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def pair(running: Pair) -> Pair:
    await running.well()
    return running


@pytest.mark.parametrize("whose", ["alice", "bob"], ids=["the caller's", "the called one's"])
async def test_a_killed_envoy_comes_back(pair: Pair, whose: str) -> None:
    node: Node = getattr(pair, whose)
    before = node.envoy
    os.kill(before, signal.SIGKILL)

    async def another() -> bool:
        return node.envoy != before

    await until("there is another Envoy", another)
    await answered(pair.http, pair.alice, "echo.bob.svc")
    await answered(pair.http, pair.bob, "echo.alice.svc")


@pytest.mark.parametrize("whose", ["alice", "bob"], ids=["the caller", "the called one"])
async def test_traffic_goes_on_without_coterie_and_nothing_is_cut_when_it_comes_back(pair: Pair, whose: str) -> None:
    node: Node = getattr(pair, whose)
    stream = await Http2Stream.open(pair.alice.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc")
    stream.send(b"before")
    assert await stream.until(6) == b"before"
    envoy = node.envoy
    await node.end(signal.SIGKILL)
    for _ in range(5):
        assert (await call(pair.http, f"{pair.alice.inside}/", "echo.bob.svc"))[0] == 200
    failed: list[int] = []
    stop = asyncio.Event()

    async def meanwhile() -> None:
        while not stop.is_set():
            status, _, _ = await call(pair.http, f"{pair.alice.inside}/", "echo.bob.svc")
            if status != 200:
                failed.append(status)
            await asyncio.sleep(0.02)

    calling = asyncio.create_task(meanwhile())
    try:
        await node.start()
        await node.up()
        # It does its work again: something new gets through.
        await serve(pair.bob, "bob", f"after-{whose}", pair.plain["bob"])
        await answered(pair.http, pair.alice, f"after-{whose}.bob.svc")
    finally:
        stop.set()
        await calling
    assert failed == []
    assert node.envoy == envoy
    stream.send(b"-after")
    assert await stream.until(12) == b"before-after"
    stream.close()


async def test_a_partner_that_restarts_is_found_again(pair: Pair) -> None:
    before = (await tokens(pair.alice, "alice-bob"))[-1]["revision"]
    await pair.bob.end()
    assert (await call(pair.http, f"{pair.alice.inside}/", "echo.bob.svc"))[0] == 503
    await pair.bob.start()
    await pair.bob.up()
    await pair.well()
    # The token that both still have is good.
    assert (await tokens(pair.alice, "alice-bob"))[-1]["revision"] == before


@pytest.mark.parametrize("skew", [300.0, -300.0], ids=["ahead", "behind"])
async def test_clocks_that_differ_by_five_minutes_do_no_harm(pair: Pair, skew: float) -> None:
    """Also a clock that is set right again, which goes back, or forth."""
    for seconds in (skew, 0.0):
        await power_cut(pair.bob)
        pair.bob.skew = seconds
        await pair.bob.start()
        await pair.bob.up()
        await roll(pair)
        await pair.well()


async def power_cut(node: Node) -> None:
    """All of it at once; nothing is drained."""
    envoy = node.envoy
    await node.end(signal.SIGKILL)
    os.kill(envoy, signal.SIGKILL)


async def roll(pair: Pair) -> None:
    """A new token in either direction."""
    for here, there in pair.both():
        route = f"{here.name}-{there.name}"
        before = (await tokens(here, route))[-1]["revision"]
        for plane in (here, there):
            await plane.client.patch(CDR, route, "", {"spec": {"tokenConfig": {"rollingUpdatePeriod": 1}}})

        async def rolled(here: Node = here, route: str = route, before: int = before) -> bool:
            listed = await tokens(here, route)
            return bool(listed) and listed[-1]["revision"] > before

        await until(f"{route} has a new token", rolled)
        for plane in (here, there):
            await plane.client.patch(CDR, route, "", {"spec": {"tokenConfig": {"rollingUpdatePeriod": 0}}})


async def test_a_partner_that_lost_its_store_is_recognised(pair: Pair) -> None:
    """Its machine died and the disk with all objects is empty; the keys were kept elsewhere."""
    bob = pair.bob
    await power_cut(bob)
    shutil.rmtree(bob.paths.storage)
    await bob.start()
    await bob.up()
    await pair.offer(bob)
    await befriend(bob, pair.alice)
    await pair.well()


async def test_a_partners_new_key(pair: Pair) -> None:
    """As configuration.md says: the five files go, a new identity is made, its certificate is handed over."""
    bob = pair.bob
    await bob.end()
    for path in identity_of(bob.paths):
        path.unlink(missing_ok=True)
    bob.key = pki.key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)).decode()
    await bob.start()
    await bob.up()
    # Nobody is believed on his own word.
    await answered(pair.http, pair.alice, "echo.bob.svc", 503)
    await answered(pair.http, bob, "echo.alice.svc", 503)
    await pair.alice.client.patch(DOMAIN, "bob", "", {"spec": {"cert": bob.certificate}})
    await pair.well()
