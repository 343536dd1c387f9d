"""Who reaches the inboxes for partners' calls and for their checkpoints: real Envoys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import Domain, make_inputs, route, running

from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.api.evidence_exchange import ADD_CHECKPOINT_PATH, EVIDENCE_PATHS
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.model import EvidenceInbox, FunctionsInbox
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH, ORIGIN, SOURCE, TOKEN

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Inboxes:
    alice: Domain
    bob: Domain
    carol: Domain
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    async def post(
        self, source: Domain, path: str, *, node: bool = True, method: str = "POST", **headers: str
    ) -> tuple[int, str]:
        """`node`: from the node's own socket, as the functions process does; else from where pods call."""
        connector = aiohttp.UnixConnector(source.inputs.node_socket.host) if node else aiohttp.TCPConnector()
        base = "http://gateway" if node else f"http://{source.inputs.internal}"
        async with aiohttp.ClientSession(connector=connector) as http:
            given = {
                "Host": "coterie-functions.bob.svc",
                **{key.replace("_", "-"): value for key, value in headers.items()},
            }
            async with http.request(method, base + path, headers=given, data=b"{}") as answer:
                return answer.status, await answer.text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inboxes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Inboxes]:
    """bob's inbox is opened to alice; carol has a route to bob, and no grant."""
    root = tmp_path_factory.mktemp("fi")
    alice, bob, carol = (make_inputs(name, root, Protocol.MTLS) for name in ("alice", "bob", "carol"))
    socket = root / "bob-functions.sock"
    seen: list[tuple[str, str, dict[str, str]]] = []

    def handle(request: Request) -> Response:
        seen.append((request.method, request.path, request.headers))
        return Response(202, b"{}")

    server = HttpServer(handle)
    await server.serve(private_socket(Path(socket)))
    where = SocketAddress(str(socket), 0)
    bob_routes = (route("alice", "bob", bob, "bob"), route("carol", "bob", bob, "bob"))
    bob = replace(bob, routes=bob_routes, functions=FunctionsInbox(where, frozenset({"alice"})))
    bob = replace(bob, evidence=EvidenceInbox(where, frozenset({"alice"})))
    alice = replace(alice, routes=(route("alice", "bob", bob, "alice"),))
    carol = replace(carol, routes=(route("carol", "bob", bob, "carol"),))
    try:
        async with running(alice, bob, carol, root=root) as domains:
            yield Inboxes(*domains, seen)
    finally:
        await server.stop()


async def test_a_listed_partner_reaches_both_paths_and_is_named_by_our_gateway(inboxes: Inboxes) -> None:
    inboxes.seen.clear()
    for path in (FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH):
        assert await inboxes.post(inboxes.alice, path) == (202, "{}")
    assert [(method, path) for method, path, _ in inboxes.seen] == [
        ("POST", FUNCTION_CALLS_PATH),
        ("POST", FUNCTION_REPLIES_PATH),
    ]
    for _, _, headers in inboxes.seen:
        assert headers[ORIGIN] == "alice"
        assert TOKEN not in headers
        assert "x-coterie-peer-key" not in headers


@pytest.mark.parametrize(
    "path", ["/", "/functions/v1", FUNCTION_CALLS_PATH + "/", FUNCTION_CALLS_PATH + "/../replies", "/functions/v1/HOPS"]
)
async def test_no_other_path(inboxes: Inboxes, path: str) -> None:
    inboxes.seen.clear()
    status, _ = await inboxes.post(inboxes.alice, path)
    assert status in (403, 202)
    assert all(path in (FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH) for _, path, _ in inboxes.seen), (
        "Envoy normalises paths"
    )
    assert (await inboxes.post(inboxes.alice, FUNCTION_CALLS_PATH, method="GET"))[0] == 403


async def test_a_partner_without_a_grant_does_not_get_through(inboxes: Inboxes) -> None:
    inboxes.seen.clear()
    assert (await inboxes.post(inboxes.carol, FUNCTION_CALLS_PATH))[0] == 403
    assert (await inboxes.post(inboxes.carol, "/nothing"))[0] == 403
    assert not inboxes.seen


async def test_who_calls_is_not_for_the_caller_to_say(inboxes: Inboxes) -> None:
    """carol says that she is alice, or that alice stands behind her."""
    inboxes.seen.clear()
    for claim in ({ORIGIN: "alice"}, {SOURCE: "alice"}, {ORIGIN: "alice", SOURCE: "alice"}):
        given = {key.replace("-", "_"): value for key, value in claim.items()}
        status, _ = await inboxes.post(inboxes.carol, FUNCTION_CALLS_PATH, **given)
        assert status == 403
    assert not inboxes.seen
    status, _ = await inboxes.post(inboxes.alice, FUNCTION_CALLS_PATH, kuscia_origin_source="bob")
    assert status == 202
    assert inboxes.seen[-1][2][ORIGIN] == "alice", "alice's own gateway says who she is"


async def test_a_carrier_does_not_speak_for_a_partner(inboxes: Inboxes) -> None:
    """Straight to bob's public port, with the token of carol and the name of alice."""
    inboxes.seen.clear()
    external = inboxes.bob.inputs.external
    assert external is not None
    _, writer = await asyncio.open_connection(external.host, external.port)
    writer.close()
    status, _ = await inboxes.post(inboxes.carol, FUNCTION_CALLS_PATH, kuscia_source="alice", kuscia_token="guess")
    assert status == 403
    assert not inboxes.seen


async def test_pods_call_no_inbox_not_even_a_partners(inboxes: Inboxes) -> None:
    inboxes.seen.clear()
    for host in (
        "coterie-functions.bob.svc",
        "Coterie-Functions.bob.svc",
        "coterie-functions.alice.svc",
        "coterie-functions",
    ):
        status, _ = await inboxes.post(inboxes.alice, FUNCTION_CALLS_PATH, node=False, Host=host)
        assert status == 403
    assert not inboxes.seen
    # bob's own pods neither.
    assert (await inboxes.post(inboxes.bob, FUNCTION_CALLS_PATH, node=False))[0] == 403
    assert (await inboxes.post(inboxes.bob, FUNCTION_CALLS_PATH))[0] == 404, (
        "nor his node: our own table does not have it"
    )


EVIDENCE = "coterie-evidence.bob.svc"


async def test_checkpoints_of_a_listed_partner_arrive_under_its_name(inboxes: Inboxes) -> None:
    inboxes.seen.clear()
    for path in EVIDENCE_PATHS:
        assert (await inboxes.post(inboxes.alice, path, Host=EVIDENCE))[0] == 202
    assert [path for _, path, _ in inboxes.seen] == list(EVIDENCE_PATHS)
    for _, _, headers in inboxes.seen:
        assert headers[ORIGIN] == "alice"
        assert TOKEN not in headers
    inboxes.seen.clear()
    for path in ("/", "/evidence/v1", "/record", "/sign", ADD_CHECKPOINT_PATH + "/", FUNCTION_CALLS_PATH):
        assert (await inboxes.post(inboxes.alice, path, Host=EVIDENCE))[0] == 403
    assert (await inboxes.post(inboxes.alice, ADD_CHECKPOINT_PATH, method="GET", Host=EVIDENCE))[0] == 403
    assert (await inboxes.post(inboxes.alice, ADD_CHECKPOINT_PATH))[0] == 403, "another inbox"
    assert not inboxes.seen


async def test_checkpoints_of_nobody_else_arrive(inboxes: Inboxes) -> None:
    inboxes.seen.clear()
    assert (await inboxes.post(inboxes.carol, ADD_CHECKPOINT_PATH, Host=EVIDENCE))[0] == 403
    for claim in ("kuscia_origin_source", "kuscia_source"):
        status, _ = await inboxes.post(inboxes.carol, ADD_CHECKPOINT_PATH, Host=EVIDENCE, **{claim: "alice"})
        assert status == 403
    # Pods, of the partner and of our own.
    for host in (EVIDENCE, "Coterie-Evidence.bob.svc", "coterie-evidence.alice.svc", "coterie-evidence"):
        assert (await inboxes.post(inboxes.alice, ADD_CHECKPOINT_PATH, node=False, Host=host))[0] == 403
    assert (await inboxes.post(inboxes.bob, ADD_CHECKPOINT_PATH, node=False, Host=EVIDENCE))[0] == 403
    assert (await inboxes.post(inboxes.bob, ADD_CHECKPOINT_PATH, Host=EVIDENCE))[0] == 404
    assert not inboxes.seen
