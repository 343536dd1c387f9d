"""Partners that call as BFIA describes it, through a real gateway: whom their certificate lets in, and as whom."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from gateway_kit import Domain, call, client_tls, make_inputs, route, running

from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.identity import auth_config
from coterie.kuscia.gateway.model import Authentication, BfiaInbox, TransportInbox
from coterie.kuscia.gateway.objects import route_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
CREATE, STATUS = "/v1/interconn/schedule/job/create", "/v1/interconn/schedule/job/status_all?job_id=j"
INVOKE = "/v1/interconn/chan/invoke"
BOB = {"x-node-id": "bob"}
PUSH = {"x-ptp-source-node-id": "bob", "x-ptp-target-node-id": "alice", "x-ptp-session-id": "t"}


@contextlib.asynccontextmanager
async def inbox(path: Path) -> AsyncIterator[SocketAddress]:
    """Says what it got."""

    async def handle(request: web.Request) -> web.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        return web.json_response({"at": path.stem, "path": request.path, "headers": headers})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        yield SocketAddress(str(path), 0)
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alice(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Domain]:
    """bob has a route for BFIA with a certificate; joe one with a certificate and without BFIA; carol one with a token."""
    root = tmp_path_factory.mktemp("bg")
    async with contextlib.AsyncExitStack() as stack:
        schedule = await stack.enter_async_context(inbox(root / "schedule.sock"))
        queue = await stack.enter_async_context(inbox(root / "queue.sock"))
        made = make_inputs("alice", root, Protocol.MTLS, newcomers=True)
        partners = frozenset({"bob", "joe", "carol"})
        with_certificate: dict[str, Any] = {"authentication": Authentication.MTLS, "tokens": ()}
        made = replace(
            made,
            bfia=BfiaInbox(schedule, partners),
            transport=TransportInbox(queue, queue, partners),
            routes=(
                route("bob", "alice", made, "alice", bfia=True, **with_certificate),
                route("joe", "alice", made, "alice", **with_certificate),
                route("carol", "alice", made, "alice", bfia=True),
            ),
        )
        (domain,) = await stack.enter_async_context(running(made, root=root))
        yield domain


async def ask(
    alice: Domain, path: str, headers: Any, certificate: str | None = "bob", *, host: str = "", method: str = "POST"
) -> tuple[int, Any]:
    connector = aiohttp.TCPConnector(ssl=client_tls(certificate))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as http:
        status, body, _ = await call(
            http, f"{alice.outside}{path}", host, headers=headers, data=b"{}" if method == "POST" else None
        )
        return status, body


async def test_a_certificate_and_the_same_name_are_enough(alice: Domain) -> None:
    status, seen = await ask(alice, CREATE, BOB)
    assert (status, seen["at"], seen["headers"]["kuscia-origin-source"]) == (200, "schedule", "bob")
    assert "x-coterie-peer-key" not in seen["headers"]
    assert (await ask(alice, STATUS, BOB, method="GET"))[0] == 200
    status, seen = await ask(alice, INVOKE, PUSH)
    assert (status, seen["at"], seen["headers"]["kuscia-source"]) == (200, "queue", "bob")


async def test_by_the_names_of_services_too(alice: Domain) -> None:
    assert (await ask(alice, CREATE, BOB, host="interconn-scheduler.alice.svc"))[0] == 200
    assert (await ask(alice, INVOKE, PUSH, host="transport.alice.svc"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "certificate"),
    [
        (BOB, "carol"),
        (BOB, "joe"),
        (BOB, None),
        (BOB, "forged"),
        ({}, "bob"),
        ({"x-node-id": "alice"}, "bob"),
        ({"x-node-id": "carol"}, "bob"),
        ({"x-node-id": "carol"}, "carol"),  # a token is asked for
        ({"x-node-id": "joe"}, "joe"),  # its route is not for BFIA
        ({"kuscia-source": "carol", **BOB}, "bob"),
        ({"x-ptp-source-node-id": "carol", **BOB}, "bob"),
        ({"kuscia-token": "guess", **BOB}, "bob"),
        ([("x-node-id", "carol"), ("x-node-id", "bob")], "bob"),
    ],
)
async def test_nobody_else_is(alice: Domain, headers: Any, certificate: str | None) -> None:
    for path in (CREATE, INVOKE):
        try:
            status, body = await ask(alice, path, headers, certificate)
        except aiohttp.ClientError:
            continue  # its certificate was refused before
        assert (status, body["reason"]) == (401, "unauthorized.")


async def test_a_name_is_read_once(alice: Domain) -> None:
    """What the gateway read is what services see."""
    status, seen = await ask(alice, CREATE, [("x-node-id", "bob"), ("x-node-id", "carol")])
    assert (status, seen["headers"]["x-node-id"]) == (200, "bob")
    twice = [("x-ptp-source-node-id", "bob"), ("x-ptp-source-node-id", "carol"), ("x-ptp-target-node-id", "alice")]
    status, seen = await ask(alice, INVOKE, twice)
    assert (status, seen["headers"]["x-ptp-source-node-id"]) == (200, "bob")


async def test_it_speaks_for_itself_and_reaches_nothing_else(alice: Domain) -> None:
    assert (await ask(alice, CREATE, {**BOB, "kuscia-origin-source": "carol"}))[0] == 403
    for path in ("/", "/v1/interconn/schedule/", CREATE + "/x", "/v1/interconn/chan/pop", "/v1/interconn/chan/release"):
        assert (await ask(alice, path, {**BOB, **PUSH}))[0] == 403, path
    assert (await ask(alice, INVOKE, {**PUSH, "x-ptp-target-node-id": "carol"}))[0] == 403
    assert (await ask(alice, CREATE, BOB, method="GET"))[0] == 403


@pytest.mark.parametrize(
    ("spoken", "how", "encryption", "known"),
    [("bfia", "MTLS", "", True), ("kuscia", "MTLS", "", False), ("bfia", "None", "", False), ("bfia", "MTLS", "AES", False)],
)  # fmt: skip
async def test_only_a_route_that_says_so_lets_in_without_a_token(
    alice: Domain, spoken: str, how: str, encryption: str, known: bool
) -> None:
    spec: dict[str, Any] = {"source": "bob", "destination": "alice", "authenticationType": how}
    spec |= {"interConnProtocol": spoken} | ({"bodyEncryption": {"algorithm": encryption}} if encryption else {})
    (known_route,) = [each for each in alice.inputs.routes if each.source == "bob"]
    made = route_of({"metadata": {"namespace": "alice"}, "spec": spec}, certificates=known_route.certificates)
    rules, _ = auth_config(replace(alice.inputs, routes=(made,)))  # type: ignore[arg-type]
    assert ("|bob|'" in str(rules)) is known


async def test_without_certificates_at_the_port_nobody_is_let_in(alice: Domain) -> None:
    rules, problems = auth_config(replace(alice.inputs, protocol=Protocol.TLS))
    assert "|bob|" not in str(rules)
    assert any("does not ask for certificates" in each.message for each in problems)
