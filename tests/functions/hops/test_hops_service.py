"""Calls between domains put together, with a real API server and the embedded bus: status of grants, outboxes that come and go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hops_kit import Objects

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.embedded import EmbeddedBus
from coterie.functions.bus.protocol import Entry
from coterie.functions.hops import wire
from coterie.functions.hops.outbox import PostResult
from coterie.functions.hops.service import DomainObjects, HopService
from coterie.functions.messages import RESULTS_TOPIC, FunctionResponse, Invoke, action_topic, outbox_topic
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH

NAMESPACES = Kind.dynamic(builtin("namespaces"))
ADMIN = UserInfo("admin", ("system:masters",))


class _Partner:
    """Takes everything, unless it is away."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, dict[str, Any]]] = []
        self.away = False

    async def post(self, partner: str, path: str, body: bytes) -> PostResult:
        if self.away:
            return PostResult(0, problem="nobody answers")
        self.taken.append((partner, path, msgspec.json.decode(body)))
        return PostResult(202)


class _World:
    def __init__(self, client: Client, bus: EmbeddedBus, hops: HopService, partner: _Partner) -> None:
        self.client, self.bus, self.hops, self.partner = client, bus, hops, partner

    async def action(self, name: str, **spec: Any) -> None:
        made = {"metadata": {"name": name}, "spec": {"script": "def action(req):\n    return 'x'\n", **spec}}
        await self.client.create(ACTIONS.as_dynamic, made, "bob")
        await self.bus.create_topic(action_topic(name))

    async def grant(self, name: str, **spec: Any) -> None:
        made = {"metadata": {"name": name}, "spec": {"action": "score", "grantDomain": "alice", **spec}}
        await self.client.create(ACTION_GRANTS.as_dynamic, made, "bob")

    async def status(self, name: str) -> Object:
        return (await self.client.get(ACTION_GRANTS.as_dynamic, name, "bob")).get("status") or {}

    async def call(self, uid: str) -> int:
        return (
            await self.hops.inbox.call("alice", msgspec.json.encode({"requestUID": uid, "hop": 1, "action": "score"}))
        ).status


async def until(question: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(200):
        if found := await question():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("not within 10 s")


@asynccontextmanager
async def service(tmp_path: Path, listener: socket.socket | None = None) -> AsyncIterator[_World]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    await client.create(NAMESPACES, {"metadata": {"name": "bob"}})
    bus = await EmbeddedBus.open(tmp_path / "bus.db")
    await bus.create_topic(RESULTS_TOPIC)
    partner = _Partner()
    informers = Informers(client)
    objects = DomainObjects(informers, "bob", SYSTEM_CLOCK)
    hops = HopService("bob", bus, client, objects, partner, Objects(), SYSTEM_CLOCK, listener=listener)
    try:
        async with TaskOwner("test") as owner:
            owner.start("informers", informers.run())
            owner.start("hops", hops.run())
            await asyncio.wait_for(hops.ready.wait(), 10)
            yield _World(client, bus, hops, partner)
    finally:
        await bus.close()
        await server.stop()
        await store.close()


@pytest.mark.timeout(30)
async def test_uses_and_phases_are_in_the_status(tmp_path: Path) -> None:
    async with service(tmp_path) as world:
        await world.action("score")
        await world.grant("g", limit={"calls": 2})

        async def phase(wanted: str) -> Object | None:
            found = await world.status("g")
            return found if found.get("phase") == wanted else None

        await until(lambda: phase("Ready"))
        assert [await world.call("u1"), await world.call("u1"), await world.call("u2"), await world.call("u3")] == [
            202,
            202,
            202,
            403,
        ]
        found = await until(lambda: phase("Exhausted"))
        assert (found["uses"], found["message"]) == (2, "all 2 calls were used")
        assert [sorted(each) for each in found["useRecords"]] == [["bytes", "request", "time"]] * 2
        assert found["lastUseTime"] == found["useRecords"][-1]["time"]
        await world.client.delete(ACTION_GRANTS.as_dynamic, "g", "bob")

        async def revoked() -> bool:
            return await world.call("u9") == 403 and not world.hops.inbox._access.grants()

        await until(revoked)


@pytest.mark.timeout(30)
async def test_tables_without_a_grant_are_named(tmp_path: Path) -> None:
    async with service(tmp_path) as world:
        await world.action("score")
        columns = [{"name": "id", "type": "str"}]
        data = {
            "author": "bob",
            "name": "customers",
            "type": "table",
            "relativeURI": "c.csv",
            "dataSource": "d",
            "columns": columns,
        }
        await world.client.create(DOMAIN_DATAS.as_dynamic, {"metadata": {"name": "customers"}, "spec": data}, "bob")
        await world.grant("g", tables=["customers"])

        async def phase(wanted: str) -> Object | None:
            found = await world.status("g")
            return found if found.get("phase") == wanted else None

        found = await until(lambda: phase("Unavailable"))
        assert 'table "customers": no DomainDataGrant covers it for "alice"' in found["message"]
        assert await world.call("u1") == 403
        spec = {"author": "bob", "domainDataID": "customers", "grantDomain": "alice"}
        await world.client.create(DOMAIN_DATA_GRANTS.as_dynamic, {"metadata": {"name": "dg"}, "spec": spec}, "bob")
        await until(lambda: phase("Ready"))
        await world.bus.create_topic("score.alice_TOPIC")
        assert await world.call("u1") == 202


@pytest.mark.timeout(30)
async def test_an_outbox_is_there_while_an_action_declares_the_partner_and_until_it_is_drained(tmp_path: Path) -> None:
    async with service(tmp_path) as world:
        await world.action("prepare", next=["carol/score"])

        async def there() -> bool:
            return "carol" in world.hops.senders

        await until(there)
        world.partner.away = True
        call = Invoke(request_uid="r1", action="carol/score", return_topic="", hop=1)
        await world.bus.publish([Entry(outbox_topic("carol"), "r1", msgspec.json.encode(call))])
        await world.client.delete(ACTIONS.as_dynamic, "prepare", "bob")
        await asyncio.sleep(0.3)
        assert await there(), "a call waits in it"
        world.partner.away = False

        async def taken() -> bool:
            return bool(world.partner.taken)

        await until(taken)
        rows = {family.name: dict(family.rows) for family in world.hops.families()}
        assert rows["coterie_function_partner_waiting_calls"] == {'partner="carol"': 1}
        assert rows["coterie_function_partner_up"].keys() == {'partner="carol"'}
        ((partner, _, message),) = world.partner.taken
        assert (partner, message["action"], message["hop"]) == ("carol", "score", 1)
        reply = {"requestUID": message["requestUID"], "hop": 1, "payload": "42"}
        assert (await world.hops.inbox.reply("carol", msgspec.json.encode(reply))).status == 202
        (record,) = [each for number in range(6) for each in await world.bus.read(RESULTS_TOPIC, number, 0, 9)]
        assert msgspec.json.decode(record.value, type=FunctionResponse).payload == "42"

        async def gone() -> bool:
            world.hops._objects.changed.set()
            return outbox_topic("carol") not in await world.bus.topics() and not await there()

        await until(gone)


@pytest.mark.timeout(30)
async def test_a_call_that_runs_when_its_grant_is_revoked_is_answered(tmp_path: Path) -> None:
    async with service(tmp_path) as world:
        await world.action("score")
        await world.grant("g")

        async def accepted() -> bool:
            return await world.call("u1") == 202

        await until(accepted)
        await world.client.delete(ACTION_GRANTS.as_dynamic, "g", "bob")

        async def revoked() -> bool:
            return await world.call("u2") == 403

        await until(revoked)
        await asyncio.sleep(0.2)
        (request,) = world.hops.ledger._tables.requests
        response = FunctionResponse(request_uid=request, payload="42")
        await world.bus.publish([Entry(outbox_topic("alice"), request, msgspec.json.encode(response))])

        async def taken() -> bool:
            return bool(world.partner.taken)

        await until(taken)
        assert world.partner.taken[0][2] == {
            "requestUID": "u1",
            "hop": 1,
            "payload": "42",
            "contentType": "text/plain; charset=utf-8",
        }


async def test_calls_that_a_partner_does_not_finish_hold_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.functions.hops.service._REQUESTS_OF_ONE", 3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        async with service(tmp_path, listener):

            async def begun(partner: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
                head = f"POST {FUNCTION_CALLS_PATH} HTTP/1.1\r\nhost: x\r\n{wire.CALLER_HEADER}: {partner}\r\ncontent-length: 2\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
                return reader, writer

            made = [await begun("alice", b"{") for _ in range(3)]
            made += [await begun("alice", b"{}"), await begun("carol", b"{}")]
            statuses = [(await asyncio.wait_for(reader.readline(), 10)).split()[1] for reader, _ in made[3:]]
            assert statuses == [b"429", b"403"], "carol has no grant"
            for _, writer in made:
                writer.close()
