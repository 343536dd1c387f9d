"""Bob has no public port and dials alice's: her calls reach him along that connection, and nobody else gets them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import (
    HOSTS,
    Domain,
    Http2Stream,
    Wire,
    call,
    client_tls,
    echo,
    identity,
    make_inputs,
    pem,
    route,
    running,
    streaming_echo,
    token,
    until_status,
    wire,
)

from coterie.base import pki
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.model import (
    DomainService,
    Route,
    RoutePort,
    ServiceProtocol,
    SnapshotInputs,
    TransitGrant,
)
from coterie.kuscia.gateway.snapshot import snapshot
from coterie.kuscia.gateway.tunnel import server_name

MIB = 1 << 20
pytestmark = pytest.mark.timeout(180)  # up to four gateways start, on a machine that may be busy
in_module = pytest.mark.asyncio(loop_scope="module")


def fingerprint(name: str) -> str:
    return pki.fingerprint(pki.load_certificate(pem(name).encode()))


def tunnelled(me: str, *known: str) -> Route:
    """alice -> bob, as either side has it."""
    partner = known or ("bob" if me == "alice" else "alice",)
    pinned = tuple(pem(each) for each in partner)
    return Route("alice", "bob", tunnel=True, tokens=(token("alice", "bob"),), certificates=pinned)


def by_way_of(where: SocketAddress, there: Route) -> Route:
    return replace(there, host=where.host, ports=tuple(replace(port, port=where.port) for port in there.ports))


@dataclass
class Two:
    alice: Domain
    bob: Domain
    between: Wire
    http: aiohttp.ClientSession

    async def call(self, host: str = "echo.bob.svc", path: str = "/x", **more: Any) -> tuple[int, Any, dict[str, str]]:
        try:
            return await call(self.http, f"{self.alice.inside}{path}", host, **more)
        except aiohttp.ClientConnectionError:
            return 0, "alice's gateway is away", {}


@contextlib.asynccontextmanager
async def two(root: Path, protocol: Protocol = Protocol.MTLS, **settings: Any) -> AsyncIterator[Two]:
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(echo(HOSTS["bob"]))
        stream = await stack.enter_async_context(streaming_echo(HOSTS["bob"]))
        alice = make_inputs("alice", root, protocol)
        assert alice.external is not None
        between = await stack.enter_async_context(wire(HOSTS["alice"], alice.external))
        services = (
            DomainService("echo", (plain,)),
            DomainService("stream", (stream,), ServiceProtocol.GRPC),
            DomainService("closed", (plain,), access=frozenset({"zed"})),
        )
        bob = replace(
            make_inputs("bob", root, protocol, services=services),
            external=None,
            handshake=plain,
            fingerprint=fingerprint("bob"),
            routes=(by_way_of(between.where, route("bob", "alice", alice, "bob")), tunnelled("bob")),
        )
        alice = replace(
            alice,
            services=(DomainService("hers", (plain,)),),
            routes=(tunnelled("alice"), route("bob", "alice", alice, "alice"), route("carol", "alice", alice, "alice")),
        )
        domains = await stack.enter_async_context(running(alice, bob, root=root, **settings))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        made = Two(*domains, between, http)
        await until_status(200, made.call)
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Protocol), ids=str)
async def domains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    async with two(tmp_path_factory.mktemp("gw"), request.param) as made:
        yield made


# ---- what passes ----


@in_module
async def test_calls_reach_the_domain_without_a_port(domains: Two) -> None:
    forged = {"Kuscia-Source": "zed", "Kuscia-Origin-Source": "zed", "Kuscia-Token": "x"}
    status, said, _ = await domains.call(path="/a?b=c", headers=forged)
    assert (status, said["path"]) == (200, "/a?b=c")
    headers = dict(said["headers"])
    assert headers["kuscia-source"] == headers["kuscia-origin-source"] == "alice"
    assert "kuscia-token" not in headers
    assert (await domains.call("closed.bob.svc"))[0] == 403
    for each in (domains.alice, domains.bob):
        assert (await each.envoy.status()).problems == ()
    # The other direction stays as it was.
    assert (await call(domains.http, f"{domains.bob.inside}/", "hers.alice.svc"))[0] == 200


@in_module
async def test_streams_and_large_bodies_pass(domains: Two) -> None:
    status, said, _ = await domains.call(data=BytesIO(bytes(8 * MIB)))
    assert (status, said["size"]) == (200, 8 * MIB)
    where = domains.alice.inputs.internal
    stream = await Http2Stream.open(where, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc")
    for number in range(1, 4):
        stream.send(b"ping%d" % number)
        assert (await stream.until(5 * number)).endswith(b"ping%d" % number)
    stream.send(b"", end=True)
    await stream.until()
    stream.close()
    assert (stream.trailers, stream.headers["x-source"]) == ({"grpc-status": "0"}, "alice")
    url = f"{domains.alice.inside}/ws"
    async with domains.http.ws_connect(url, headers={"Host": "echo.bob.svc"}, max_msg_size=0) as link:
        await link.send_bytes(bytes(2 * MIB))
        assert len(await link.receive_bytes(timeout=30)) == 2 * MIB


@in_module
async def test_stalled_readers_do_not_hold_up_others(domains: Two) -> None:
    url = f"{domains.alice.inside}/big?mib=64"
    stalled = [await domains.http.get(url, headers={"Host": "echo.bob.svc"}) for _ in range(8)]
    try:
        assert (await domains.call())[0] == 200
    finally:
        for each in stalled:
            each.close()


@in_module
async def test_the_handshake_passes_too(domains: Two) -> None:
    status, said, _ = await domains.call("kuscia-handshake.bob.svc", "/handshake", data=b"{}")
    assert (status, said["size"]) == (200, 2)


@in_module
async def test_nothing_can_be_read_on_the_way(domains: Two) -> None:
    marker = "never-to-be-read-on-the-wire"
    status, said, _ = await domains.call(path=f"/{marker}", headers={"X-Secret": marker}, data=marker.encode() * 100)
    assert (status, said["size"]) == (200, 100 * len(marker))
    assert len(domains.between.seen) > 100 * len(marker)
    for secret in (marker, "PRI * HTTP/2", token("alice", "bob").reveal()):
        assert secret.encode() not in domains.between.seen


# ---- who may open a tunnel, and in whose name ----


async def register(where: SocketAddress, who: str, claimed: str, *, node: str = "", name: str = "alice") -> bytes:
    """Open a tunnel by hand; the status line, or nothing when the door stays shut."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(
            where.host, where.port, ssl=client_tls(who or None), server_hostname=server_name(name)
        )
        said = {"node": node or claimed, "cluster": claimed, "tenant": "coterie"}
        headers = "".join(f"x-envoy-reverse-tunnel-{key}-id: {value}\r\n" for key, value in said.items())
        writer.write(f"GET /reverse_connections/request HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode())
        return await asyncio.wait_for(reader.readline(), 30)
    except (ConnectionError, OSError):
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()


HIJACKS = {
    "as it should be": ("bob", "bob", "bob", b"200"),
    "a partner without a tunnel": ("carol", "carol", "carol", b""),
    "a partner, in bob's name": ("carol", "bob", "bob", b""),
    "a stranger": ("joe", "bob", "bob", b""),
    "a certificate with a partner's signature": ("forged", "bob", "bob", b""),
    "nobody": ("", "bob", "bob", b""),
    "bob, in carol's name": ("bob", "carol", "carol", b"403"),
    "bob, with a node called carol": ("bob", "bob", "carol", b"403"),
    "bob, with a group called carol": ("bob", "carol", "bob", b"403"),
}


@pytest.mark.parametrize(("who", "claimed", "node", "expected"), HIJACKS.values(), ids=list(HIJACKS))
@in_module
async def test_a_tunnel_is_opened_in_nobody_elses_name(
    domains: Two, who: str, claimed: str, node: str, expected: bytes
) -> None:
    where = domains.alice.inputs.external
    assert where is not None
    line = await register(where, who, fingerprint(claimed), node=fingerprint(node))
    assert line.split()[1:2] == [expected] if expected else line == b""
    await until_status(200, domains.call)


async def test_two_tunnels_do_not_mix(tmp_path: Path) -> None:
    """Carol, who has a tunnel too, gets none of bob's calls: neither while his is there nor when it is gone."""
    async with two(tmp_path) as domains, echo(HOSTS["carol"]) as plain:
        alice = domains.alice.inputs
        hers = Route("alice", "carol", tunnel=True, tokens=(token("alice", "carol"),), certificates=(pem("carol"),))
        await domains.alice.change(routes=(*alice.routes, hers))
        carol = replace(
            make_inputs("carol", tmp_path, Protocol.MTLS, services=(DomainService("echo", (plain,)),)),
            external=None,
            fingerprint=fingerprint("carol"),
            routes=(route("carol", "alice", alice, "carol"), replace(hers, certificates=(pem("alice"),))),
        )
        async with running(carol, root=tmp_path) as (at_carol,):
            _, said, _ = await until_status(200, lambda: domains.call("echo.carol.svc"))
            assert dict(said["headers"])["kuscia-host"] == "echo.carol.svc"
            assert alice.external is not None
            for node in ("carol", "bob"):
                assert b"403" in await register(alice.external, "carol", fingerprint("bob"), node=fingerprint(node))
            domains.bob.envoy.stop()
            await until_status(503, domains.call)
            requests = "/stats?filter=http.external.downstream_rq_total"
            before = await at_carol.envoy.admin.ask(requests)
            assert (await domains.call())[0] == 503
            assert await at_carol.envoy.admin.ask(requests) == before


# ---- coming and going ----


@pytest.mark.parametrize("workers", [2, 3])
async def test_every_worker_finds_the_tunnel(tmp_path: Path, workers: int) -> None:
    async with two(tmp_path, workers=workers) as domains:
        async with asyncio.timeout(60):
            while (await statuses(domains, 12)) != {200}:
                await asyncio.sleep(0.1)


async def statuses(domains: Two, connections: int) -> set[int]:
    """Each connection comes to a worker of its own."""
    found = set()
    for _ in range(connections):
        async with aiohttp.ClientSession() as http:
            found.add((await call(http, f"{domains.alice.inside}/x", "echo.bob.svc"))[0])
    return found


async def test_it_comes_back_whatever_broke(tmp_path: Path) -> None:
    async with two(tmp_path) as domains:
        domains.between.cut()
        await until_status(200, domains.call)
        for each in (domains.alice, domains.bob):
            assert each.envoy.pid is not None
            gone = each.envoy.pid
            os.kill(gone, signal.SIGKILL)
            async with asyncio.timeout(60):
                while each.envoy.pid in (gone, None):
                    await asyncio.sleep(0.02)
            await until_status(200, domains.call)


async def test_a_tunnel_touches_no_other_listener(tmp_path: Path) -> None:
    """Taken away and asked for again: those who come by other ways notice nothing."""
    async with two(tmp_path) as domains:
        url = f"{domains.bob.inside}/ws"
        async with domains.http.ws_connect(url, headers={"Host": "hers.alice.svc"}) as link:
            for side in (domains.bob, domains.alice):
                routes = side.inputs.routes
                before = {each["name"]: each for each in snapshot(side.inputs).listeners}
                await side.change(routes=tuple(each for each in routes if not each.tunnel))
                for each in snapshot(side.inputs).listeners:
                    assert each == before[each["name"]]
                if side is domains.alice:
                    assert (await domains.call())[0] == 404
                await side.change(routes=routes)
            await link.send_bytes(b"still here")
            assert await link.receive_bytes(timeout=30) == b"still here"
        await until_status(200, domains.call)


async def test_a_partner_no_longer_trusted_opens_no_tunnel(tmp_path: Path) -> None:
    async with two(tmp_path) as domains:
        where = domains.alice.inputs.external
        assert where is not None
        routes = domains.alice.inputs.routes
        await domains.alice.change(routes=(tunnelled("alice", "joe"), *routes[1:]))
        assert await register(where, "bob", fingerprint("bob")) == b""
        await until_status(503, domains.call)


async def test_the_partners_key_may_change(tmp_path: Path) -> None:
    """While alice knows both of bob's certificates he is found under either."""
    async with two(tmp_path) as domains:
        routes = domains.alice.inputs.routes
        await domains.alice.change(routes=(tunnelled("alice", "bob", "joe"), *routes[1:]))
        await until_status(200, domains.call)
        for name in ("joe", "bob"):
            mine = tuple(
                replace(each, certificates=(pem("bob"), pem("joe"))) if each.source == "bob" else each
                for each in domains.alice.inputs.routes
            )
            await domains.alice.change(routes=mine)
            await domains.bob.change(identity=identity(name), fingerprint=fingerprint(name))
            domains.between.cut()
            await until_status(200, domains.call)


async def test_a_third_domain_is_carried_into_the_tunnel(tmp_path: Path) -> None:
    """joe -> alice -> bob, and alice cannot dial bob: joe's connection goes down the tunnel, still his own."""
    async with two(tmp_path) as domains:
        alice, bob = domains.alice.inputs, domains.bob.inputs
        carried = Route("joe", "bob", via="alice", tokens=(token("joe", "bob"),), certificates=(pem("bob"),))
        joe = make_inputs("joe", tmp_path, Protocol.MTLS)
        joe = replace(joe, external=None, routes=(route("joe", "alice", alice, "joe"), carried))
        services = (*bob.services, replace(bob.services[0], name="for-joe", access=frozenset({"joe"})))
        await domains.bob.change(routes=(*bob.routes, replace(carried, certificates=(pem("joe"),))), services=services)
        async with running(joe, root=tmp_path) as (at_joe,):

            async def ask(host: str = "for-joe.bob.svc", **more: Any) -> tuple[int, Any, dict[str, str]]:
                return await call(domains.http, f"{at_joe.inside}/x", host, **more)

            assert (await ask())[0] == 503
            grant = (TransitGrant("joe", "bob"),)
            await domains.alice.change(routes=(*alice.routes, route("joe", "alice", alice, "alice")), transit=grant)
            _, said, _ = await until_status(200, lambda: ask(data=BytesIO(bytes(8 * MIB))))
            assert said["size"] == 8 * MIB
            assert dict(said["headers"])["kuscia-source"] == "joe"
            assert (await ask("closed.bob.svc"))[0] == 403
            assert (await domains.call("for-joe.bob.svc"))[0] == 403  # alice is not joe
            assert (await domains.call())[0] == 200


async def test_a_kuscia_that_polls_is_told(tmp_path: Path) -> None:
    async with two(tmp_path) as domains:
        url = f"{domains.alice.outside}/poll?service=x&timeout=300s"
        sent = {"Kuscia-Source": "carol", "Kuscia-Token": token("carol", "alice").reveal()}
        headers = {**sent, "Kuscia-Host": "receiver.alice.svc"}
        status, body, _ = await call(domains.http, url, headers=headers, ssl=client_tls("carol"))
        assert (status, "REVERSE-TUNNEL" in body) == (501, True)
        status, _, _ = await call(domains.http, url, headers=headers, ssl=client_tls("bob"))
        assert status == 401


# ---- several gateways of one domain ----


async def test_a_tunnel_at_a_sister_gateway_is_found(tmp_path: Path) -> None:
    async with two(tmp_path) as domains:
        first = domains.alice.inputs
        twin = make_inputs("alice", tmp_path / "twin", Protocol.MTLS)
        sisters = (first.internal,)
        twin = replace(twin, instance="1", routes=first.routes, services=first.services, peer_gateways=sisters)
        async with running(twin, root=tmp_path / "twin") as (second,):
            await domains.alice.change(peer_gateways=(twin.internal,))

            async def at_second(**more: Any) -> tuple[int, Any, dict[str, str]]:
                return await call(domains.http, f"{second.inside}/x", "echo.bob.svc", **more)

            for ask in (domains.call, at_second):
                _, said, _ = await until_status(200, ask)
                headers = dict(said["headers"])
                assert headers["kuscia-source"] == "alice"
                assert not {"x-coterie-tunnel", "kuscia-token"} & headers.keys()
            status, said, _ = await at_second(data=BytesIO(bytes(8 * MIB)))
            assert (status, said["size"]) == (200, 8 * MIB)
            url = f"{second.inside}/ws"
            async with domains.http.ws_connect(url, headers={"Host": "echo.bob.svc"}, max_msg_size=0) as link:
                await link.send_bytes(bytes(MIB))
                assert len(await link.receive_bytes(timeout=30)) == MIB
            stream = await Http2Stream.open(twin.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc")
            stream.send(b"ping")
            assert await stream.until(4) == b"ping"
            stream.close()

            # Bob comes to the other one instead.
            back, *others = domains.bob.inputs.routes
            assert twin.external is not None
            await domains.bob.change(routes=(by_way_of(twin.external, back), *others))
            domains.between.cut()
            async with asyncio.timeout(60):
                while await tunnels(second) == 0 or await tunnels(domains.alice):
                    await asyncio.sleep(0.1)
            for ask in (domains.call, at_second):
                await until_status(200, ask)

            # And goes: nobody sends anybody round in circles.
            domains.bob.envoy.stop()
            for ask in (domains.call, at_second):
                await until_status(503, ask)


async def tunnels(domain: Domain) -> int:
    """How many partners have a tunnel here."""
    text = await domain.envoy.admin.ask("/stats?filter=^tunnels_accepted.*total_nodes$")
    return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line)


# ---- pure ----

FROM_ALICE = tunnelled("bob")
TO_ALICE = Route(
    "bob", "alice", host="alice.example", ports=(RoutePort("http", 1080, tls=True),), tokens=(token("bob", "alice"),),
    certificates=(pem("alice"),),
)  # fmt: skip


def bob(*routes: Route, **more: Any) -> SnapshotInputs:
    where = SocketAddress("10.0.0.1", 80)
    given: dict[str, Any] = {"identity": identity("bob"), "fingerprint": fingerprint("bob"), **more}
    return SnapshotInputs("bob", where, None, where, where, Path("/x"), Path("/l"), routes=routes, **given)


REFUSED = {
    "no way to alice": ((FROM_ALICE,), {}, "no direct route to it"),
    "through a third": ((FROM_ALICE, replace(TO_ALICE, via="joe")), {}, "no direct route to it"),
    "no fingerprint": ((FROM_ALICE, TO_ALICE), {"fingerprint": ""}, "its fingerprint"),
    "behind a path": (
        (FROM_ALICE, replace(TO_ALICE, ports=(RoutePort("http", 1, tls=True, path_prefix="/a"),))), {}, "path prefix",
    ),
    "nobody vouches for alice": ((FROM_ALICE, replace(TO_ALICE, certificates=())), {}, "nor its authority is known"),
}  # fmt: skip


@pytest.mark.parametrize(("routes", "more", "why"), REFUSED.values(), ids=list(REFUSED))
def test_a_tunnel_that_cannot_be_opened_is_told(routes: tuple[Route, ...], more: dict[str, Any], why: str) -> None:
    resources = snapshot(bob(*routes, **more))
    assert any(why in each.message for each in resources.problems), resources.problems
    assert [each["name"] for each in resources.listeners] == ["internal", "node"]


def test_a_tunnel_stands_in_for_a_public_port() -> None:
    resources = snapshot(bob(FROM_ALICE, TO_ALICE))
    assert [each["name"] for each in resources.listeners] == ["internal", "node", "tunnel-to-alice"]
    assert resources.problems == ()


SISTER = SocketAddress("10.0.0.9", 80)
CARRIED = Route("bob", "carol", via="alice", tokens=(token("bob", "carol"),), certificates=(pem("carol"),))


@pytest.mark.parametrize("hop_by_hop", [False, True], ids=["end to end", "hop by hop"])
def test_what_a_tunnelled_partner_carries_for_us_finds_the_tunnel_too(hop_by_hop: bool) -> None:
    """bob -> alice -> carol, where alice has a tunnel to one of bob's gateways."""
    public = replace(bob(), external=SocketAddress("10.0.0.1", 1080), peer_gateways=(SISTER,))
    routes = (replace(TO_ALICE, tunnel=True), replace(CARRIED, hop_by_hop=hop_by_hop))
    resources = snapshot(replace(public, routes=routes))
    assert resources.problems == ()
    (table,) = resources.files["rds-internal.json"]
    host = next(each for each in table["virtual_hosts"] if each["name"] == "bob-to-carol")
    *here, elsewhere = host["routes"]
    name = "bob-to-alice-gateways"
    assert elsewhere["route"]["cluster"] == name
    assert {each["route"]["cluster"] for each in here} == {
        "bob-to-alice-tunnel" if hop_by_hop else "bob-to-carol-transit"
    }
    # Who we are is said where the tunnel begins, and not between our own gateways.
    assert "kuscia-token" not in str(elsewhere)
    assert "request_headers_to_add" not in host
    gateways = next(each for each in resources.clusters if each["name"] == name)
    assert [each["priority"] for each in gateways["load_assignment"]["endpoints"]] == [0, 1]
