"""alice -> joe -> bob with real Envoys: joe carries what he can neither read nor forge."""

from __future__ import annotations

import contextlib
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

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DomainRoute, RouteSpec
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
from coterie.kuscia.gateway.transit import grants_of

MIB = 1 << 20
pytestmark = pytest.mark.timeout(180)  # up to four gateways start, on a machine that may be busy
GRANT = (TransitGrant("alice", "bob"),)


def via_joe(me: str, **more: Any) -> Route:
    partner = "bob" if me == "alice" else "alice"
    given = {"tokens": (token("alice", "bob"),), "certificates": (pem(partner),), **more}
    return Route("alice", "bob", via="joe", **given)


def at(where: SocketAddress, there: Route) -> Route:
    """The same route by way of a relay."""
    return replace(there, host=where.host, ports=tuple(replace(port, port=where.port) for port in there.ports))


@dataclass
class Three:
    alice: Domain
    joe: Domain
    bob: Domain
    to_joe: Wire
    to_bob: Wire
    http: aiohttp.ClientSession

    async def call(self, host: str = "echo.bob.svc", path: str = "/x", **more: Any) -> tuple[int, Any, dict[str, str]]:
        return await call(self.http, f"{self.alice.inside}{path}", host, **more)


@contextlib.asynccontextmanager
async def three(
    root: Path, protocol: Protocol = Protocol.MTLS, carrier: Protocol | None = None
) -> AsyncIterator[Three]:
    """Relays listen between alice and joe, and between joe and bob."""
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(echo(HOSTS["bob"]))
        stream = await stack.enter_async_context(streaming_echo(HOSTS["bob"]))
        alice, bob = (make_inputs(name, root, protocol) for name in ("alice", "bob"))
        joe = make_inputs("joe", root, carrier or protocol)
        assert joe.external is not None
        assert bob.external is not None
        to_joe = await stack.enter_async_context(wire(HOSTS["joe"], joe.external))
        to_bob = await stack.enter_async_context(wire(HOSTS["bob"], bob.external))
        alice = replace(
            alice, routes=(at(to_joe.where, route("alice", "joe", joe, "alice")), via_joe("alice")),
        )  # fmt: skip
        joe = replace(
            joe,
            transit=GRANT,
            routes=(route("alice", "joe", joe, "joe"), at(to_bob.where, route("joe", "bob", bob, "joe"))),
        )
        bob = replace(
            bob,
            handshake=plain,
            services=(
                DomainService("echo", (plain,)),
                DomainService("stream", (stream,), ServiceProtocol.GRPC),
                DomainService("for-alice", (plain,), access=frozenset({"alice"})),
                DomainService("for-joe", (plain,), access=frozenset({"joe"})),
            ),
            routes=(route("joe", "bob", bob, "bob"), via_joe("bob", headers=(("x-added", "1"),))),
        )
        domains = await stack.enter_async_context(running(alice, joe, bob, root=root))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        yield Three(*domains, to_joe, to_bob, http)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(Protocol.MTLS, Protocol.MTLS), (Protocol.TLS, Protocol.TLS), (Protocol.MTLS, Protocol.NOTLS)],
    ids=["MTLS", "TLS", "carrier in plain text"],
)
async def domains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Three]:
    async with three(tmp_path_factory.mktemp("gw"), *request.param) as made:
        yield made


in_module = pytest.mark.asyncio(loop_scope="module")


# ---- what passes ----


@in_module
async def test_the_destination_sees_the_source_itself(domains: Three) -> None:
    forged = {"Kuscia-Source": "joe", "Kuscia-Origin-Source": "joe", "Kuscia-Token": "x"}
    status, said, _ = await domains.call("for-alice.bob.svc", headers=forged)
    assert status == 200
    headers = dict(said["headers"])
    assert headers["kuscia-source"] == headers["kuscia-origin-source"] == "alice"
    assert headers["kuscia-host"] == "for-alice.bob.svc"
    assert headers["x-added"] == "1"
    assert "kuscia-token" not in headers
    assert (await domains.call("for-joe.bob.svc"))[0] == 403
    for each in (domains.alice, domains.joe, domains.bob):
        assert (await each.envoy.status()).problems == ()


@in_module
async def test_streams_and_large_bodies_pass(domains: Three) -> None:
    status, said, _ = await domains.call(data=BytesIO(bytes(8 * MIB)))
    assert (status, said["size"]) == (200, 8 * MIB)
    stream = await Http2Stream.open(
        domains.alice.inputs.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc"
    )
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
async def test_the_handshake_passes_too(domains: Three) -> None:
    status, said, _ = await domains.call("kuscia-handshake.bob.svc", "/handshake", data=b"{}")
    assert (status, said["size"]) == (200, 2)


@in_module
async def test_nothing_can_be_read_on_the_way(domains: Three) -> None:
    """What passes between alice and a carrier in plain text is exactly what the carrier gets to see."""
    marker = "never-to-be-read-by-joe"
    status, said, _ = await domains.call(path=f"/{marker}", headers={"X-Secret": marker}, data=marker.encode() * 100)
    assert (status, said["size"]) == (200, 100 * len(marker))
    for seen in (domains.to_joe.seen, domains.to_bob.seen):
        assert len(seen) > 100 * len(marker)
        assert marker.encode() not in seen
        assert token("alice", "bob").reveal().encode() not in seen
    if domains.joe.inputs.protocol is Protocol.NOTLS:
        assert b"PRI * HTTP/2" in domains.to_joe.seen
    assert b"PRI * HTTP/2" not in domains.to_bob.seen


# ---- what joe may try ----

ATTACKS = {
    "alice as origin": ({"Kuscia-Source": "joe", "Kuscia-Origin-Source": "alice"}, 403),
    "alice as source, with his own token": ({"Kuscia-Source": "alice"}, 401),
    "alice as source, with noop": ({"Kuscia-Source": "alice", "Kuscia-Token": "noop"}, 401),
    "as himself": ({"Kuscia-Source": "joe"}, 200),
}


@pytest.mark.parametrize(("headers", "expected"), ATTACKS.values(), ids=list(ATTACKS))
@in_module
async def test_the_carrier_cannot_speak_for_the_source(domains: Three, headers: dict[str, str], expected: int) -> None:
    sent = {"Kuscia-Token": token("joe", "bob").reveal(), "Kuscia-Host": "echo.bob.svc", **headers}
    assert (await call(domains.http, f"{domains.bob.outside}/x", headers=sent, ssl=client_tls("joe")))[0] == expected


async def test_not_even_with_her_token(tmp_path: Path) -> None:
    async with three(tmp_path) as domains:
        stolen = {"Kuscia-Source": "alice", "Kuscia-Token": token("alice", "bob").reveal()}
        url, sent = f"{domains.bob.outside}/x", {"Kuscia-Host": "echo.bob.svc", **stolen}
        for who, expected in (("joe", 401), ("alice", 200)):
            assert (await call(domains.http, url, headers=sent, ssl=client_tls(who)))[0] == expected


async def test_a_carrier_that_answers_in_the_destinations_place_gets_nothing(tmp_path: Path) -> None:
    async with three(tmp_path) as domains, echo(HOSTS["joe"]) as plain:
        impostor = replace(
            make_inputs("carol", tmp_path, Protocol.MTLS),
            identity=identity("carol"),
            services=(DomainService("echo", (plain,)),),
            routes=(via_joe("bob"),),
        )
        assert impostor.external is not None
        async with running(impostor, root=tmp_path) as (fake,):
            there = next(each for each in domains.joe.inputs.routes if each.destination == "bob")
            others = tuple(each for each in domains.joe.inputs.routes if each is not there)
            await domains.joe.change(routes=(*others, at(impostor.external, there)))
            assert (await domains.call(data=b"secret"))[0] == 503
            stats = await fake.envoy.admin.ask("/stats?filter=http.external.downstream_(rq|cx)_total")
            assert "http.external.downstream_rq_total: 0" in stats
            assert "http.external.downstream_cx_total: 0" not in stats


# ---- who is carried ----

GRANTS = {
    "nobody": (),
    "somebody else": (TransitGrant("carol", "bob"),),
    "elsewhere": (TransitGrant("alice", "carol"),),
}


@pytest.mark.parametrize("grants", GRANTS.values(), ids=list(GRANTS))
async def test_without_a_grant_nothing_is_carried(tmp_path: Path, grants: tuple[TransitGrant, ...]) -> None:
    async with three(tmp_path) as domains:
        assert (await domains.call())[0] == 200
        await domains.joe.change(transit=grants)
        # A connection that is open goes on; a new one is refused.
        domains.to_joe.cut()
        _, _, reply = await until_status(503, domains.call)
        assert "alice/0/internal" in reply["kuscia-error-message"]
        assert {(await domains.call())[0] for _ in range(5)} == {503}
        await domains.joe.change(transit=GRANT)
        await until_status(200, domains.call)


async def test_a_connect_leads_nowhere_else(tmp_path: Path) -> None:
    async with three(tmp_path, Protocol.MTLS, Protocol.NOTLS) as domains:
        own = {"kuscia-source": "alice", "kuscia-token": token("alice", "joe").reveal()}
        for host, more, expected in (
            ("transit.bob:443", own, "200"),
            ("transit.bob:443", {}, "401"),
            ("transit.bob:443", own | {"kuscia-source": "bob"}, "401"),
            ("transit.carol:443", own, "403"),
            ("transit.joe:443", own, "403"),
            ("echo.bob.svc:80", own, "404"),
            (str(domains.bob.inputs.internal), own, "403"),
        ):
            assert domains.joe.inputs.external is not None
            stream = await Http2Stream.connect(domains.joe.inputs.external, host, more)
            await stream.until(1, headers=True)
            stream.close()
            assert stream.headers[":status"] == expected, host


async def test_a_rolled_token_disturbs_no_stream(tmp_path: Path) -> None:
    async with three(tmp_path) as domains:
        url = f"{domains.alice.inside}/ws"
        async with domains.http.ws_connect(url, headers={"Host": "echo.bob.svc"}) as link:
            rolled = (token("alice", "joe"), token("alice", "joe", 2))
            for each in (domains.joe, domains.alice):
                listeners = snapshot(each.inputs).listeners
                changed = tuple(
                    replace(one, tokens=rolled) if one.destination == "joe" else one for one in each.inputs.routes
                )
                await each.change(routes=changed)
                assert snapshot(each.inputs).listeners == listeners
            await link.send_bytes(b"still here")
            assert await link.receive_bytes(timeout=30) == b"still here"
        domains.to_joe.cut()
        await until_status(200, domains.call)


async def test_a_longer_chain(tmp_path: Path) -> None:
    """alice -> joe -> carol -> bob."""
    async with three(tmp_path) as domains:
        carol = make_inputs("carol", tmp_path, Protocol.MTLS)
        bob = domains.bob.inputs
        carol = replace(
            carol,
            transit=(TransitGrant("joe", "bob"),),
            routes=(route("joe", "carol", carol, "carol"), route("carol", "bob", bob, "carol")),
        )
        async with running(carol, root=tmp_path):
            onwards = Route("joe", "bob", via="carol", tokens=(token("joe", "bob"),), certificates=(pem("bob"),))
            await domains.joe.change(
                routes=(domains.joe.inputs.routes[0], route("joe", "carol", carol, "joe"), onwards)
            )
            domains.to_joe.cut()
            _, said, _ = await until_status(200, lambda: domains.call("for-alice.bob.svc"))
            assert dict(said["headers"])["kuscia-source"] == "alice"
            assert (await call(domains.http, f"{domains.joe.inside}/", "for-joe.bob.svc"))[0] == 200


# ---- pure ----


def alice(*routes: Route, **more: Any) -> SnapshotInputs:
    where = SocketAddress("10.0.0.1", 80)
    given: dict[str, Any] = {"identity": identity("alice"), **more}
    return SnapshotInputs(
        "alice", where, SocketAddress("10.0.0.1", 1080), where, where, Path("/x"), Path("/l"), routes=routes, **given
    )


TO_JOE = Route(
    "alice", "joe", host="joe.example", ports=(RoutePort("http", 1080, tls=True),), tokens=(token("alice", "joe"),),
    certificates=(pem("joe"),),
)  # fmt: skip
REFUSED = {
    "nobody vouches": ((TO_JOE, via_joe("alice", certificates=())), "no certificate of bob is known"),
    "anybody would do": ((TO_JOE, via_joe("alice", certificates=(), unverified=True)), "no certificate of bob"),
    "no route to joe": ((via_joe("alice"),), "no direct route to joe"),
    "no token with joe": ((replace(TO_JOE, tokens=()), via_joe("alice")), "no token has been agreed on yet with joe"),
    "behind a path": (
        (replace(TO_JOE, ports=(RoutePort("http", 1, tls=True, path_prefix="/a/"),)), via_joe("alice")), "path prefix",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("routes", "why"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_carried_safely_is_told(routes: tuple[Route, ...], why: str) -> None:
    resources = snapshot(alice(*routes))
    assert any(why in each.message for each in resources.problems), resources.problems
    (table,) = resources.files["rds-internal.json"]
    host = next(each for each in table["virtual_hosts"] if each["name"] == "alice-to-bob")
    assert why in host["routes"][0]["direct_response"]["body"]["inline_string"]


@pytest.mark.parametrize(
    ("protocol", "asked", "cluster"),
    [
        (Protocol.MTLS, None, "alice-to-bob-transit"),
        (Protocol.MTLS, True, "alice-to-joe-http"),
        (Protocol.NOTLS, None, "alice-to-joe-http"),
        (Protocol.NOTLS, False, "alice-to-bob-transit"),
    ],
    ids=["end to end unless asked", "Kuscia on the way", "plain text", "asked for"],
)
def test_how_it_is_carried(protocol: Protocol, asked: bool | None, cluster: str) -> None:
    resources = snapshot(alice(TO_JOE, via_joe("alice", hop_by_hop=asked), protocol=protocol))
    (table,) = resources.files["rds-internal.json"]
    host = next(each for each in table["virtual_hosts"] if each["name"] == "alice-to-bob")
    assert {each["route"]["cluster"] for each in host["routes"]} == {cluster}
    assert resources.problems == ()


def test_a_grant_without_a_route_is_told() -> None:
    (problem,) = snapshot(alice(TO_JOE, transit=(TransitGrant("joe", "bob"),))).problems
    assert problem.about == "transit joe-bob"


@pytest.mark.parametrize(
    ("namespace", "value", "expected"),
    [
        ("joe", "alice, carol,", ("alice", "carol")),
        ("joe", "", ()),
        ("joe", "joe", ()),
        ("bob", "alice", ()),
    ],
    ids=["two", "none", "itself", "the destination's copy"],
)
def test_grants_stand_at_the_carriers_own_route(namespace: str, value: str, expected: tuple[str, ...]) -> None:
    meta = ObjectMeta(name="joe-bob", namespace=namespace, annotations={labels.COTERIE_CARRY_FOR: value})
    read = grants_of(
        DomainRoute(metadata=meta, spec=RouteSpec(source="joe", destination="bob", authentication_type="Token"))
    )
    assert read == tuple(TransitGrant(each, "bob") for each in expected)
