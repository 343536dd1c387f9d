"""A master, lites that registered with deploy tokens, and a partner with a control plane of its own.

hq (master)   alice (lite, two gateways)   bob (lite)        carol (autonomy), a partner of alice
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import Http2Stream, call
from mesh_nodes import (
    CDR,
    DOMAIN,
    GATEWAY,
    Node,
    a_partner,
    a_route,
    answered,
    deploy_token,
    network,
    put,
    ready,
    services,
    tokens,
    until,
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mesh"),
]


@dataclass
class Center:
    hq: Node
    alice: Node
    second: Node
    """Another gateway of alice's, on another machine with the same key."""
    bob: Node
    carol: Node
    http: aiohttp.ClientSession


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def center(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Center]:
    async with contextlib.AsyncExitStack() as stack:
        net = await stack.enter_async_context(network(tmp_path_factory.mktemp("center"), third=72))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)))
        hq, carol = await net.start(net.master("hq"), net.autonomy("carol"))
        alice = net.lite("alice", hq, await deploy_token(hq, "alice"))
        bob = net.lite("bob", hq, await deploy_token(hq, "bob"))
        await net.start(alice, bob)
        await gateways(hq, "alice", 1)
        # The domain is known by now; a second node shows that it has the same key.
        second = net.lite("alice", hq, instance="alice-2")
        await net.start(second)
        for domain, node in (("alice", alice), ("bob", bob)):
            await stack.enter_async_context(services(hq, domain, node.host))
        await stack.enter_async_context(services(carol, "carol", carol.host))
        for one, other, there in (("alice", "bob", bob), ("bob", "alice", alice)):
            await put(hq, CDR, a_route(one, other, there))
        await introduce(hq, alice, carol)
        await gateways(hq, "alice", 2)
        await ready(hq, "alice-hq", "bob-hq", "alice-bob", "bob-alice", "alice-carol", "carol-alice")
        await ready(carol, "alice-carol", "carol-alice")
        yield Center(hq, alice, second, bob, carol, http)
        assert {each.instance: each.complaints() for each in net.nodes} == {each.instance: [] for each in net.nodes}


async def gateways(hq: Node, domain: str, count: int) -> None:
    async def there() -> bool:
        return len((await hq.client.list(GATEWAY, domain)).items) == count

    await until(f"{domain} has {count} gateways", there)


async def introduce(hq: Node, lite: Node, partner: Node) -> None:
    """A domain of one control plane and a control plane of its own."""
    issued = (await hq.client.get(DOMAIN, lite.name))["spec"]["cert"]
    await put(partner, DOMAIN, a_partner(lite.name, issued, master=hq.name))
    await put(hq, DOMAIN, a_partner(partner.name, partner.certificate))
    for plane in (partner, hq):
        await put(plane, CDR, a_route(lite.name, partner.name, partner))
        await put(plane, CDR, a_route(partner.name, lite.name, lite))


CALLS = {
    "lite to lite": ("alice", "bob"),
    "and back": ("bob", "alice"),
    "a lite's other gateway": ("second", "bob"),
    "lite to partner": ("alice", "carol"),
    "other gateway to partner": ("second", "carol"),
    "partner to lite": ("carol", "alice"),
}


@pytest.mark.parametrize(("caller", "called"), CALLS.values(), ids=list(CALLS))
async def test_calls_arrive(center: Center, caller: str, called: str) -> None:
    node: Node = getattr(center, caller)
    await answered(center.http, node, f"echo.{called}.svc")
    status, said, _ = await call(center.http, f"{node.inside}/x", f"echo.{called}.svc", data=b"xyz")
    assert (status, said["size"]) == (200, 3)
    assert dict(said["headers"])["kuscia-source"] == node.name
    stream = await Http2Stream.open(node.internal, f"stream.{called}.svc", "/t.T/Bidi", kind="application/grpc")
    stream.send(b"ping")
    assert await stream.until(4) == b"ping"
    stream.close()


async def test_both_gateways_of_a_domain_take_calls(center: Center) -> None:
    """A token is told to its source only when every gateway of the destination takes it."""
    newest = (await tokens(center.hq, "bob-alice", "alice"))[-1]
    assert sorted(newest["effectiveInstances"]) == ["alice-1", "alice-2"]
    for gateway in (center.second, center.alice):
        there = a_route("bob", "alice", gateway)["spec"]["endpoint"]
        await center.hq.client.patch(CDR, "bob-alice", "", {"spec": {"endpoint": there}})
        mark = f"/at-{gateway.instance}"

        async def arrived(gateway: Node = gateway, mark: str = mark) -> bool:
            status, _, _ = await call(center.http, f"{center.bob.inside}{mark}", "echo.alice.svc")
            return status == 200 and mark in gateway.access_log()

        await until(f"a call of bob's comes in at {gateway.instance}", arrived)


@pytest.mark.parametrize("kind", ["configmaps", "secrets", "pods", "services"])
async def test_a_lite_reads_its_own_objects_and_no_other_lites(center: Center, kind: str) -> None:
    for namespace, expected in (("alice", 200), ("bob", 403), ("hq", 403), ("carol", 403)):
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        async with center.alice.as_node() as http:
            status, said, _ = await call(http, f"http://gateway{path}", "apiserver.master.svc")
        assert status == (403 if kind == "secrets" and namespace != "alice" else expected), said
        if status == 403:
            assert "system:serviceaccount:alice:alice" in said["message"]


async def test_a_lite_has_no_api_and_no_registration(center: Center) -> None:
    async with center.bob.as_node() as http:
        status, _, _ = await call(http, "http://gateway/api/v1/namespaces", "apiserver.alice.svc")
    assert status == 403
