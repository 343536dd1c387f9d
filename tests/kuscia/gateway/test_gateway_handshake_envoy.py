"""Two domains with real Envoys, in real time: the first handshake, then tokens that roll while calls go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_kit import HOSTS, Domain, call, echo, make_inputs, pem, running
from gateway_kit import route as gateway_route
from handshake_kit import ADMIN, DR, GATEWAY, NAMESPACE, a_route, identity

from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute
from coterie.kuscia.controllers.domainroute import controller as domainroute
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.handshake import negotiator
from coterie.kuscia.gateway.handshake.effective_tokens import EffectiveTokens, tokens_of
from coterie.kuscia.gateway.handshake.handshake_client import HttpHandshakeTransport
from coterie.kuscia.gateway.handshake.server import HandshakeServer
from coterie.kuscia.gateway.model import DomainService, SnapshotInputs

PERIOD = 2
ROUNDS = 4


@contextlib.asynccontextmanager
async def organisation(domain: Domain, there: SnapshotInputs) -> AsyncIterator[Client]:
    """The control plane of a domain and the parts of its gateway around Envoy."""
    name = domain.name
    async with contextlib.AsyncExitStack() as stack:
        store = MemoryStore()
        await store.open()
        stack.push_async_callback(store.close)
        server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
        await server.start()
        stack.push_async_callback(server.stop)
        transport = InProcessTransport(server.handle, ADMIN)
        stack.push_async_callback(transport.close)
        client = Client(transport)
        caller = HttpHandshakeTransport(domain.inputs.node_socket)
        stack.push_async_callback(caller.close)
        informers = Informers(client)
        door = HandshakeServer(
            client,
            informers,
            identity(name),
            "gw",
            path=Path(domain.inputs.handshake.host),
            certificates=lambda who: [pem(who)],
        )
        effective = EffectiveTokens(client, informers, name, "gw")
        shaking = negotiator.make(client, informers, identity(name), "gw", caller)
        keeping = domainroute.make(client, informers)
        runs: tuple[Any, ...] = (informers, door, effective.controller, shaking, keeping)
        tasks = [asyncio.create_task(each.run()) for each in runs]
        tasks.append(asyncio.create_task(_feed(domain, there, informers, effective)))
        stack.push_async_callback(_end, tasks)
        await client.create(NAMESPACE, {"metadata": {"name": name}})
        await client.create(GATEWAY, {"metadata": {"name": "gw", "namespace": name}})
        now = rfc3339(datetime.now(UTC))
        status = {"address": "127.0.0.1", "uptime": now, "heartbeatTime": now, "publicKey": "", "version": "1"}
        await client.patch_status(GATEWAY, "gw", name, {"status": status})
        async with asyncio.timeout(30):
            await door.ready.wait()
        await client.create(DR, a_route(namespace=name, rollingUpdatePeriod=PERIOD))
        yield client


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.wait(tasks)


async def _feed(domain: Domain, there: SnapshotInputs, informers: Informers, effective: EffectiveTokens) -> None:
    """Tokens into Envoy; told as loaded only when Envoy has taken them."""
    changed = asyncio.Event()
    routes = informers.get(DOMAIN_ROUTES, domain.name)
    routes.add_handler(lambda change: changed.set())
    while True:
        await changed.wait()
        changed.clear()
        found: DomainRoute | None = routes.cache.get("alice-bob", domain.name)
        if found is None:
            continue
        tokens = tokens_of(found, identity(domain.name))
        await domain.change(routes=(gateway_route("alice", "bob", there, domain.name, tokens=tokens),))
        newest = found.token_status.newest
        if newest is not None:
            effective.loaded("alice-bob", newest.revision, found.metadata.uid)


@pytest.mark.timeout(180)
async def test_tokens_roll_under_load_without_a_failed_call(tmp_path: Path) -> None:
    alice, bob = make_inputs("alice", tmp_path, Protocol.MTLS), make_inputs("bob", tmp_path, Protocol.MTLS)
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(echo(HOSTS["bob"]))
        bob = replace(bob, services=(DomainService("echo", (plain,)),))
        # Pinned from the beginning, or alice's Envoy may not even call for the handshake.
        alice = replace(alice, routes=(gateway_route("alice", "bob", bob, "alice", tokens=()),))
        bob = replace(bob, routes=(gateway_route("alice", "bob", bob, "bob", tokens=()),))
        domains = await stack.enter_async_context(running(alice, bob, root=tmp_path, accept_seconds=60.0))
        there = await stack.enter_async_context(organisation(domains[1], bob))
        here = await stack.enter_async_context(organisation(domains[0], bob))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)))

        async def revision() -> int:
            newest = (await here.get(DOMAIN_ROUTES, "alice-bob", "alice")).token_status.newest
            return newest.revision if newest is not None else 0

        async def talk() -> int:
            return (await call(http, f"{domains[0].inside}/", "echo.bob.svc"))[0]

        async with asyncio.timeout(100):
            while await talk() != 200:
                await asyncio.sleep(0.05)
            seen: list[int] = []
            first = await revision()
            while await revision() < first + ROUNDS:
                seen += await asyncio.gather(*(talk() for _ in range(4)))
        assert set(seen) == {200}
        held = (await there.get(DOMAIN_ROUTES, "alice-bob", "bob")).token_status.tokens
        assert held is not None and any(each.heart_beat_time for each in held)
        told = (await here.get(DOMAIN_ROUTES, "alice-bob", "alice")).status
        assert told is not None and (told.is_destination_authorized, told.is_destination_unreachable) == (True, False)
