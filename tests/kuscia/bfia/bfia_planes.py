"""A control plane in virtual time, and partners that speak BFIA with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bfia_partner import BfiaInitiator, BfiaParticipant
from job_world import JOB_PLANE, JobWorld, job_world

from coterie.http.messages import Request
from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.bfia import controller as bfia
from coterie.kuscia.bfia import mapping, wire
from coterie.kuscia.bfia.client import BfiaAnswer, parse_answer, request_line
from coterie.kuscia.bfia.server import BfiaServer

ORIGIN = "x-origin"


@dataclass(slots=True)
class Plane:
    """One control plane (alice), and its partners by name."""

    world: JobWorld
    partners: dict[str, BfiaParticipant]
    server: BfiaServer

    async def send(
        self, caller: str, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        path, _, query = target.partition("?")
        made = await self.server.handle(Request(method, path, query, {**headers, ORIGIN: caller}, body))
        return made.status, made.body

    def initiator(self, node: str) -> BfiaInitiator:
        async def send(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
            return await self.send(node, method, target, headers, body)

        return BfiaInitiator(node, send)


@asynccontextmanager
async def plane(*partners: str, makes: tuple[Any, ...] = JOB_PLANE) -> AsyncIterator[Plane]:
    known = {name: BfiaParticipant(name) for name in partners}

    class Calls:
        async def call(self, partner: str, path: str, message: object) -> BfiaAnswer:
            found = known[partner].answer(*request_line(path, message))
            return parse_answer(found) if found is not None else BfiaAnswer(message="away", repeated=True)

    servers: list[BfiaServer] = []

    def made(client: Any, informers: Any, clock: Any) -> Any:
        servers.append(BfiaServer(client, informers, Path("unused"), ORIGIN, clock))
        return bfia.make(client, informers, Calls(), clock=clock)

    async with job_world(domains=("alice",), makes=(*makes, made)) as world:
        for name in partners:
            await world.add_domain(name, nodes=0, role="partner", interConnProtocols=["bfia"])
        await world.settle(2)
        yield Plane(world, known, servers[-1])


def own_job(name: str, body: Object, **more: Any) -> Object:
    """A KusciaJob of ours from a request: what the user of an initiator writes."""
    request = json.dumps(body).encode()
    spec = json.loads(wire.write(mapping.job_spec(wire.read(request, wire.CreateJobRequest))))
    return {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": {**spec, **more}}
