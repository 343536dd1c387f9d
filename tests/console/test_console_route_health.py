"""Which routes answer now, asked of a gateway that this test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_world import control_plane

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.base.tasks import TaskOwner
from coterie.console import route_health
from coterie.console.route_health import RouteHealth
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.routes.reachability import LONGEST_LIMIT, SHORTEST_LIMIT, PartnerAnswer, answer_limit

ROUTES = CLUSTER_DOMAIN_ROUTES.as_dynamic


class PlayedGateway:
    """Answers with `status`; 0: not at all."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        if self.status:
            body = b"connect refused" if self.status >= 500 else b"{}"
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (self.status, len(body), body))
        await reader.read()  # until the caller has closed it


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[PlayedGateway]:
    file = GatewayPaths.of(DomainPaths(tmp_path)).directory / "lds.json"
    file.parent.mkdir(parents=True)
    place = str(tmp_path / "gw.sock")
    file.write_text(json.dumps({"resources": [{"name": "node", "address": {"pipe": {"path": place}}}]}))
    made = PlayedGateway()
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            await made.serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, place)
    yield made
    server.close()
    await asyncio.gather(*(task for task in served if task is not None))


async def a_route(client: Client, source: str, destination: str, *, ready: bool) -> None:
    name = f"{source}-{destination}"
    spec = {"source": source, "destination": destination, "authenticationType": "Token", "interConnProtocol": "kuscia"}
    ports = [{"name": "http", "port": 1080, "protocol": "HTTP"}]
    spec |= {"endpoint": {"host": "10.0.0.2", "ports": ports}, "tokenConfig": {"tokenGenMethod": "RSA-GEN"}}
    await client.create(ROUTES, {"metadata": {"name": name}, "spec": spec})
    token = {"revision": 7, "isReady": True, "token": "x", "revisionTime": "2026-01-01T00:00:00Z"}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"conditions": [condition], "tokenStatus": {"sourceTokens": [token]}}
    await client.patch_status(ROUTES, name, None, {"status": status})


async def test_ready_routes_of_ours_are_asked_once_for_all_who_watch(tmp_path: Path, gateway: PlayedGateway) -> None:
    async with control_plane() as client, TaskOwner("console") as owner:
        await a_route(client, "alice", "bob", ready=True)
        await a_route(client, "alice", "carol", ready=False)
        await a_route(client, "bob", "alice", ready=True)
        health = RouteHealth("alice", DomainPaths(tmp_path), SYSTEM_CLOCK, owner)
        first, second = await asyncio.gather(health.view(client), health.view(client))
        assert first == second and list(first["routes"]) == ["alice-bob"]
        assert first["routes"]["alice-bob"]["answers"] is True
        (request,) = gateway.requests
        assert "kuscia-token-revision: 7" in request and "kuscia-handshake.bob.svc" in request


@pytest.mark.parametrize(("status", "message"), [(503, "connect refused"), (0, "no answer within 0.2 s")])
async def test_a_partner_that_does_not_answer(
    tmp_path: Path, gateway: PlayedGateway, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr(route_health, "answer_limit", lambda last: 0.2)
    gateway.status = status
    async with control_plane() as client, TaskOwner("console") as owner:
        await a_route(client, "alice", "bob", ready=True)
        found: Any = await RouteHealth("alice", DomainPaths(tmp_path), SYSTEM_CLOCK, owner).view(client)
        assert found["routes"]["alice-bob"]["answers"] is False
        assert found["routes"]["alice-bob"]["message"] == message


async def test_where_no_gateway_runs_nothing_is_known(tmp_path: Path) -> None:
    async with control_plane() as client, TaskOwner("console") as owner:
        await a_route(client, "alice", "bob", ready=True)
        assert await RouteHealth("alice", DomainPaths(tmp_path), SYSTEM_CLOCK, owner).view(client) == {"routes": {}}


def test_silence_counts_sooner_where_answers_were_quick() -> None:
    assert answer_limit(None) == LONGEST_LIMIT
    assert answer_limit(PartnerAnswer(True, 0.01)) == SHORTEST_LIMIT
    assert answer_limit(PartnerAnswer(True, 0.6)) == pytest.approx(2.4)
    assert answer_limit(PartnerAnswer(False, 4.0)) == LONGEST_LIMIT
