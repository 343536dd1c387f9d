"""A gateway, its link and a dispatcher on loopback ports, over a bus in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from dispatcher_kit import Code, FakeActors, actor
from memory_bus_kit import MemoryBus

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.functions.dispatcher.dispatcher import CallDispatcher
from coterie.functions.gateway.link_messages import TriggerRoute
from coterie.functions.gateway.links import GatewayAddress, GatewayLinks
from coterie.functions.gateway.server import GatewayServer, HttpGatewaySettings
from coterie.functions.model import ActionConfig
from coterie.functions.pod_connections import PodConnections
from coterie.functions.topic_records import TopicRecords
from coterie.http.plain_client import Pool

LINK_TOKEN, INVOKE_TOKEN = "link-token", "invoke-token"


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:200]!r} {dict(self.headers)}"


class GatewayWorld:
    def __init__(self, code: Mapping[str, Code], configs: Sequence[ActionConfig]) -> None:
        self.bus = MemoryBus(lambda: int(time.time() * 1000))
        self.actors = FakeActors(code, SYSTEM_CLOCK)  # type: ignore[arg-type]
        self.configs = configs
        self.routes: list[TriggerRoute] = []
        self.routes_known = True
        self.gateways: list[tuple[GatewayServer, GatewayAddress, Pool]] = []
        self.dispatcher: CallDispatcher
        self.links: GatewayLinks
        self.records: TopicRecords
        self._tasks: list[asyncio.Future[None]] = []

    async def start_functions(self) -> None:
        self.dispatcher = CallDispatcher(self.bus, self.actors)
        self.dispatcher.configure({each.name: each for each in self.configs})
        for each in self.configs:
            self.dispatcher.set_actors(each.name, [actor(each.name, number) for number in range(4)])
        self.records = TopicRecords(self.bus, SYSTEM_CLOCK)
        self.links = GatewayLinks(self.bus, self.dispatcher, PodConnections().connect, records=self.records)
        if self.routes_known:
            self.links.set_routes(self.routes)
        self.links.set_gateways([address for _, address, _ in self.gateways])
        self._tasks = [asyncio.ensure_future(self.dispatcher.run()), asyncio.ensure_future(self.links.run())]

    async def stop_functions(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def add_gateway(self, settings: HttpGatewaySettings) -> GatewayServer:
        server = GatewayServer(settings)
        _, port = await server.http.listen("127.0.0.1", 0)
        _, link_port = await server.link.listen("127.0.0.1", 0)
        address = GatewayAddress(f"g{len(self.gateways) + 1}", "127.0.0.1", link_port, LINK_TOKEN)
        self.gateways.append((server, address, Pool(("127.0.0.1", port))))
        return server

    async def linked(self, *, number: int = 0, wanted: bool = True) -> None:
        for _ in range(500):
            if self.gateways[number][0].linked == wanted:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"linked is not {wanted}")

    async def request(self, method: str, target: str, body: bytes = b"", *, number: int = 0, **headers: str) -> Answer:
        given = {"Host": "gateway", **{name.replace("_", "-"): value for name, value in headers.items()}}
        response = await self.gateways[number][2].request(method, target, given, body)
        return Answer(response.status, response.headers, await response.read())


@asynccontextmanager
async def gateway_world(
    code: Mapping[str, Code],
    configs: Sequence[ActionConfig],
    routes: Sequence[TriggerRoute] = (),
    *,
    replicas: int = 1,
    own_network: bool = False,
    max_body: int = 1 << 20,
    functions: bool = True,
    link_wait: float = 10.0,
) -> AsyncIterator[GatewayWorld]:
    world = GatewayWorld(code, configs)
    world.routes = list(routes)
    settings = HttpGatewaySettings(SecretValue(LINK_TOKEN), SecretValue(INVOKE_TOKEN), own_network, max_body, link_wait)
    for _ in range(replicas):
        await world.add_gateway(settings)
    try:
        if functions:
            await world.start_functions()
            for number in range(replicas):
                await world.linked(number=number)
        yield world
    finally:
        await world.stop_functions()
        for server, _, pool in world.gateways:
            await pool.close()
            await server.stop(0.1)
