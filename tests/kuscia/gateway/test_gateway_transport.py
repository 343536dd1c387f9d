"""The message queue behind real gateways: who reaches which session, and under whose name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import Domain, Http2Stream, client_tls, free_port, make_inputs, route, running

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.protobuf_wire import fields
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.gateway.addresses import PodNetwork, Protocol, SocketAddress
from coterie.kuscia.gateway.model import PodCaller, SnapshotInputs, TransportInbox
from coterie.kuscia.gateway.pod_access import callers_in, pod_rules
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.outbound import Outbound, TransportCode
from coterie.kuscia.transport.server import TransportServer
from coterie.kuscia.transport.settings import ENGINES, PARTNERS, QueueLimits

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHANNEL = "/v1/interconn/chan/"
NETWORKS = {"alice": "127.64", "bob": "127.65", "carol": "127.66"}
ENGINE, OTHER_TASK, UNKNOWN, ORDINARY = "128.7", "128.8", "128.9", "0.9"
Headers = list[tuple[str, str]]


def pods(name: str) -> PodNetwork:
    """Loopback addresses: source addresses can be chosen there without any rights."""
    net = NETWORKS[name]
    return PodNetwork(
        f"{net}.0.0/16", f"{net}.128.0/17", SocketAddress(f"{net}.0.1", free_port(f"{net}.0.1")), namespace=""
    )


def with_queue(inputs: SnapshotInputs, root: Path, *callers: str) -> SnapshotInputs:
    net, name = NETWORKS[inputs.domain], inputs.domain
    inbox = TransportInbox(
        SocketAddress(str(root / f"{name}-p.sock"), 0),
        SocketAddress(str(root / f"{name}-e.sock"), 0),
        frozenset(callers),
    )
    known = (
        PodCaller(f"{net}.{ENGINE}", frozenset({"psi.bob.svc"}), "t1"),
        PodCaller(f"{net}.{OTHER_TASK}", frozenset(), "t2"),
    )
    return replace(inputs, internal=None, pods=pods(name), callers=known, transport=inbox)


async def parties_of(task: str) -> frozenset[str]:
    return frozenset({"alice", "bob"}) if task == "t1" else frozenset()


async def no_need() -> None:
    pass


async def serve(inputs: SnapshotInputs, directory: Path) -> TransportServer:
    assert inputs.transport is not None
    made = TransportServer(inputs.domain, QueueLimits(), directory, parties_of, SYSTEM_CLOCK, no_need, 1000.0)
    await made.serve(
        {
            PARTNERS: private_socket(Path(inputs.transport.partners.host)),
            ENGINES: private_socket(Path(inputs.transport.engines.host)),
        }
    )
    return made


@dataclass
class Queues:
    alice: Domain
    bob: Domain
    carol: Domain
    of_bob: TransportServer

    async def engine(
        self, domain: Domain, source: str, action: str, body: bytes = b"", *, host: str = "", headers: Headers
    ) -> tuple[int, Any]:
        """From that pod, to the gateway of its domain."""
        network = domain.inputs.pods
        assert network is not None
        connector = aiohttp.TCPConnector(local_addr=(f"{NETWORKS[domain.name]}.{source}", 0))
        url = f"http://{network.gateway}{CHANNEL}{action}"
        return await post(connector, url, body, [("Host", host or f"transport.{domain.name}.svc"), *headers])

    async def node(self, domain: Domain, path: str, headers: Headers, *, host: str) -> tuple[int, Any]:
        """From a domain's own node, whom its gateway lets call everything: a partner that does what it likes."""
        connector = aiohttp.UnixConnector(domain.inputs.node_socket.host)
        return await post(connector, f"http://gateway{CHANNEL}{path}", b"forged", [("Host", host), *headers])


async def post(connector: aiohttp.BaseConnector, url: str, body: bytes, headers: Headers) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=50)) as http,
        http.post(url, headers=headers, data=body) as answer,
    ):
        content = await answer.read()
        return answer.status, outbound.decode(content) if answer.status == 200 else content.decode()


def to(node: str, session: str = "session_t1", topic: str = "m") -> Headers:
    return [("x-ptp-session-id", session), ("x-ptp-topic", topic), ("x-ptp-target-node-id", node)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def queues(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Queues]:
    """alice and bob have queues and routes to each other; carol has a route to bob, and no part in the task."""
    root = tmp_path_factory.mktemp("tq")
    alice, bob, carol = (make_inputs(name, root, Protocol.MTLS) for name in ("alice", "bob", "carol"))
    alice, bob = with_queue(alice, root, "bob"), with_queue(bob, root, "alice", "carol")
    carol = with_queue(carol, root)
    there = (route("alice", "bob", bob, "bob"), route("carol", "bob", bob, "bob"), route("bob", "alice", alice, "bob"))
    bob = replace(bob, routes=there)
    alice = replace(alice, routes=(route("alice", "bob", bob, "alice"), route("bob", "alice", alice, "alice")))
    carol = replace(carol, routes=(route("carol", "bob", bob, "carol"),))
    async with AsyncExitStack() as stack:
        servers = [await serve(each, root) for each in (alice, bob)]
        for server in servers:
            stack.push_async_callback(server.stop)
        domains = await stack.enter_async_context(running(alice, bob, carol, root=root))
        yield Queues(*domains, servers[1])


async def test_a_push_arrives_at_the_partner_under_our_name(queues: Queues) -> None:
    forged = [("x-ptp-source-node-id", "carol"), ("kuscia-source", "carol"), ("kuscia-origin-source", "carol")]
    pushed = await queues.engine(queues.alice, ENGINE, "push?timeout=9", b"hello", headers=[*to("bob"), *forged])
    assert pushed == (200, Outbound())
    assert await queues.engine(queues.bob, ENGINE, "pop?timeout=30", headers=to("alice")) == (200, Outbound(b"hello"))
    # The other way, by the short name, and with a session of several.
    back = await queues.engine(queues.bob, ENGINE, "push", b"back", host="transport", headers=to("alice", "t1.2"))
    assert back == (200, Outbound())
    assert await queues.engine(queues.alice, ENGINE, "peek", headers=to("bob", "t1.2")) == (200, Outbound(b"back"))


async def test_a_message_is_not_lost_with_an_engine_that_left(queues: Queues) -> None:
    waiting = asyncio.ensure_future(
        queues.engine(queues.bob, ENGINE, "pop?timeout=300", headers=to("alice", topic="l"))
    )
    async with asyncio.timeout(50):
        while not queues.of_bob.metrics.running:
            await asyncio.sleep(0.01)
        waiting.cancel()
        while queues.of_bob.metrics.running:
            await asyncio.sleep(0.01)
    assert (await queues.engine(queues.alice, ENGINE, "push", b"kept", headers=to("bob", topic="l")))[1] == Outbound()
    assert await queues.engine(queues.bob, ENGINE, "pop", headers=to("alice", topic="l")) == (200, Outbound(b"kept"))


async def test_parties_of_one_domain_reach_each_other(queues: Queues) -> None:
    assert await queues.engine(queues.bob, ENGINE, "push", b"own", headers=to("bob", topic="o")) == (200, Outbound())
    assert await queues.engine(queues.bob, ENGINE, "pop", headers=to("bob", topic="o")) == (200, Outbound(b"own"))


@pytest.mark.parametrize("source", [OTHER_TASK, UNKNOWN, ORDINARY])
@pytest.mark.parametrize("action", ["push", "pop", "peek", "release"])
async def test_only_engines_of_the_task_use_its_sessions(queues: Queues, source: str, action: str) -> None:
    status, why = await queues.engine(queues.bob, source, action, headers=to("alice"))
    assert status == 403 and "may not call" in why


@pytest.mark.parametrize(
    "sessions", [["t2", "session_t1"], ["t2.x", "session_t1"], ["session_t1", "t2"], ["t2x"], ["session_t2 ,t1"], []]
)
async def test_a_session_cannot_be_named_twice_or_alike(queues: Queues, sessions: list[str]) -> None:
    """By an engine of t2."""
    named = [("x-ptp-session-id", each) for each in sessions]
    given = [*named, ("x-ptp-topic", "m"), ("x-ptp-target-node-id", "alice")]
    assert (await queues.engine(queues.bob, OTHER_TASK, "peek", headers=given))[0] == 403
    assert (await queues.engine(queues.bob, OTHER_TASK, "peek", headers=to("alice", "t2")))[0] == 200


async def test_an_engine_cannot_call_the_partners_queue_past_its_own_gateways_rules(queues: Queues) -> None:
    for host in ("transport.bob.svc", "TRANSPORT.bob.svc", "transport.bob.svc:80"):
        assert (await queues.engine(queues.alice, ENGINE, "invoke", host=host, headers=to("bob")))[0] == 403, host
    assert (await queues.engine(queues.alice, ENGINE, "invoke", headers=to("bob")))[0] == 404
    status, why = await queues.engine(queues.alice, ENGINE, "push", headers=to("nobody"))
    assert status == 404 and "no route" in why


async def test_a_partner_that_has_no_part_in_the_task_is_refused(queues: Queues) -> None:
    def sent(source: str) -> Headers:
        return [*to("bob"), ("x-ptp-source-node-id", source)]

    status, answer = await queues.node(queues.carol, "invoke", sent("carol"), host="transport.bob.svc")
    assert (status, answer.code) == (200, TransportCode.NOT_AUTHORIZED)
    status, answer = await queues.node(queues.carol, "invoke", sent("alice"), host="transport.bob.svc")
    assert (status, answer.code) == (200, TransportCode.NOT_AUTHORIZED), "a session of alice's, under alice's name"
    status, answer = await queues.node(queues.alice, "invoke", sent("carol"), host="transport.bob.svc")
    assert (status, answer.code) == (200, TransportCode.NOT_AUTHORIZED), "a party, under another's name"
    assert await queues.engine(queues.bob, ENGINE, "peek", headers=to("alice")) == (200, Outbound())


@pytest.mark.parametrize("action", ["pop", "peek", "release", "push"])
async def test_partners_take_and_release_nothing(queues: Queues, action: str) -> None:
    """Not even a party of the task."""
    status, why = await queues.node(queues.alice, action, to("bob"), host="transport.bob.svc")
    assert status == 403 and "not opened" in why


async def test_a_stranger_reaches_nothing(queues: Queues) -> None:
    connector = aiohttp.TCPConnector(ssl=client_tls("joe"))
    given = [("Host", "transport.bob.svc"), ("kuscia-source", "alice"), ("x-ptp-source-node-id", "alice"), *to("bob")]
    try:
        status, _ = await post(connector, f"{queues.bob.outside}{CHANNEL}invoke", b"x", given)
    except aiohttp.ClientError:
        status = 401  # its certificate was refused before
    assert status == 401


async def test_engines_and_their_tasks_are_found_again_in_the_rules(queues: Queues) -> None:
    for each in (queues.alice.inputs, replace(queues.alice.inputs, callers=())):
        assert sorted(callers_in(pod_rules(each))) == sorted(each.callers)


async def test_pods_on_the_machines_network_have_no_queue(queues: Queues) -> None:
    shared = replace(queues.alice.inputs, pods=None, internal=SocketAddress("127.0.1.1", 80), transport=None)
    (reserved,) = pod_rules(shared)["matcher"]["matcher_list"]["matchers"]
    assert "transport" in str(reserved["predicate"]) and "DENY" in str(reserved["on_match"])


# gRPC, as BFIA's own description has it.


def _field(number: int, value: bytes | int) -> bytes:
    """By hand: a varint, or bytes with their length."""

    def varint(rest: int) -> bytes:
        out = b""
        while rest > 127:
            out, rest = out + bytes([rest & 127 | 128]), rest >> 7
        return out + bytes([rest])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


@dataclass
class GrpcEngine:
    """An engine that speaks gRPC alone, from the pod with that address."""

    queues: Queues
    domain: Domain
    source: str = ENGINE

    async def __call__(self, method: str, message: bytes, headers: Headers) -> tuple[str, str, dict[int, bytes]]:
        """grpc-status, grpc-message, and the fields of the answer."""
        network = self.domain.inputs.pods
        assert network is not None
        address = (f"{NETWORKS[self.domain.name]}.{self.source}", 0)
        where = network.gateway
        reader, writer = await asyncio.open_connection(where.host, where.port, local_addr=address)
        stream = Http2Stream(reader, writer)
        stream.link.initiate_connection()
        path = f"/org.ppc.ptp.PrivateTransferTransport/{method}"
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "transport"),
            (":path", path),
            ("te", "trailers"),
        ]
        stream.link.send_headers(1, [*head, ("content-type", "application/grpc"), *headers])
        stream._flush()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(framed), 16000):
            while stream.link.local_flow_control_window(1) < 16000:
                for _ in stream.link.receive_data(await asyncio.wait_for(reader.read(65536), 30)):
                    pass
                stream._flush()
            stream.send(framed[at : at + 16000], end=at + 16000 >= len(framed))
        body = await stream.until()
        writer.close()
        said = {**stream.headers, **stream.trailers}
        if body:
            assert body[:1] == b"\0" and int.from_bytes(body[1:5], "big") == len(body) - 5
        found = {number: bytes(value) for number, kind, value in fields(memoryview(body[5:])) if kind == 2}  # type: ignore[arg-type]
        return said.get("grpc-status", ""), said.get("grpc-message", ""), found


SUCCESS = str(TransportCode.SUCCESS).encode()


async def test_grpc_goes_the_same_way(queues: Queues) -> None:
    alice, bob = GrpcEngine(queues, queues.alice), GrpcEngine(queues, queues.bob)
    for size in (5, 70_000, 3 << 20):
        content = (b"x" * size)[:size]
        pushed = await alice("push", _field(1, b"g") + _field(2, content), to("bob"))
        assert pushed == ("0", "", {3: SUCCESS})
        taken = await bob("pop", _field(1, b"g") + _field(2, 9), to("alice"))
        assert (taken[0], taken[2]) == ("0", {2: content, 3: SUCCESS})
    # Within one domain, without a topic, and mixed with the other form.
    assert await bob("push", _field(2, b"own"), to("bob")) == ("0", "", {3: SUCCESS})
    assert (await bob("peek", b"", to("bob")))[2] == {2: b"own", 3: SUCCESS}
    assert (await bob("peek", b"", to("bob")))[2] == {3: SUCCESS}
    assert (await alice("push", _field(1, b"m") + _field(2, b"mixed"), to("bob")))[0] == "0"
    assert await queues.engine(queues.bob, ENGINE, "pop", headers=to("alice")) == (200, Outbound(b"mixed"))
    assert (await bob("release", _field(1, b"m"), to("alice")))[2] == {3: SUCCESS}


async def test_grpc_is_refused_as_the_other_form_is(queues: Queues) -> None:
    other, unknown = GrpcEngine(queues, queues.bob, OTHER_TASK), GrpcEngine(queues, queues.bob, UNKNOWN)
    for engine in (other, unknown):
        for method in ("push", "pop", "peek", "release"):
            status, _, found = await engine(method, b"", to("alice"))
            assert (status, found) == ("7", {}), "PERMISSION_DENIED"
    engine = GrpcEngine(queues, queues.alice)
    assert (await engine("push", b"", to("nobody")))[0] == "12", "UNIMPLEMENTED: there is no route"
    assert (await engine("invoke", b"", to("bob")))[0] == "12"
    for garbage in (b"\xff" * 20, b"\x0a\x7f", _field(1, 7), _field(1, b"\xff")):
        status, _, found = await engine("pop", garbage, to("bob"))
        assert (status, found[3]) == ("0", str(TransportCode.BAD_REQUEST).encode())
    status, _, found = await engine("pop", _field(1, b"t" * 513), to("bob"))
    assert found[3] == str(TransportCode.BAD_REQUEST).encode()


async def test_partners_do_not_call_the_grpc_service(queues: Queues) -> None:
    for action in ("push", "pop", "peek", "release"):
        connector = aiohttp.UnixConnector(queues.alice.inputs.node_socket.host)
        url = f"http://gateway/org.ppc.ptp.PrivateTransferTransport/{action}"
        status, why = await post(connector, url, b"forged", [("Host", "transport.bob.svc"), *to("bob")])
        assert status == 403 and "not opened" in why
