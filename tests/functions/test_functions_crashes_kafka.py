"""A dispatcher, and the hops of two domains, that are killed at any moment while their bus is a real Apache Kafka (`make kafka`): no accepted call is
lost and none is answered twice. What is checked is read from the broker."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest
from dispatcher_kit import RETURN, FakeActors, running
from hops_kit import FakeGateways, FunctionsDomain, action_grant
from kafka_broker import kafka_wanted, shared_kafka
from memory_bus_kit import DyingBus, RecordedBus
from test_functions_dispatcher_crashes import CALLS, CONFIGS, Effects, calls, send_all

from coterie.base.clock import VirtualClock
from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import Bus, Record
from coterie.functions.messages import MONITOR_TOPIC, FunctionResponse, Invoke, action_topic

pytestmark = [pytest.mark.skipif(not kafka_wanted(), reason="COTERIE_KAFKA is not set"), pytest.mark.timeout(120)]

_TICK = 0.01
_PARTNER_CALLS = 30


async def all_of(bus: Bus, topic: str) -> list[Record]:
    found: list[Record] = []
    for partition, end in (await bus.ends(topic)).items():
        offset = 0
        while offset < end and (records := await bus.read(topic, partition, offset, 1000)):
            found += records
            offset = records[-1].offset + 1
    return found


async def answers(bus: Bus, topic: str) -> list[FunctionResponse]:
    return [msgspec.json.decode(each.value, type=FunctionResponse) for each in await all_of(bus, topic)]


@pytest.mark.parametrize("seed", range(2))
async def test_a_dispatcher_that_is_killed_again_and_again(seed: int, tmp_path: Path) -> None:
    random, clock = Random(seed), VirtualClock()
    url = shared_kafka().url(f"crash{os.getpid()}-{seed}-")
    effects, accepted = Effects(seed), set[str]()
    for round_number in range(6):
        broker = await open_bus(url, tmp_path / "unused")
        store = RecordedBus(broker)
        last = round_number == 5
        bus = DyingBus(store, 10**6 if last else random.randrange(2, 7), before=random.random() < 0.5)  # type: ignore[arg-type]
        actors = FakeActors(effects.code(), clock)  # type: ignore[arg-type]
        async with running({}, CONFIGS, 2, store=store, clock=clock, bus=bus, actors=actors) as world:
            sending = asyncio.ensure_future(send_all(world, accepted))
            for step in range(2000):
                await asyncio.sleep(_TICK)
                await clock.advance(0.05)
                if bus.dead.is_set() or (step % 20 == 19 and len(await answers(store, RETURN)) >= CALLS):
                    break
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if last:
                await world.settle(30)
                found = await answers(store, RETURN)
                assert Counter(each.request_uid for each in found) == Counter(uid for uid, _ in calls())
                assert {each.payload for each in found} == {"-abc"}
                assert len(await all_of(store, MONITOR_TOPIC)) == 3 * CALLS, "each step is recorded once"
                assert set(effects.done) == {(uid, action) for uid, _ in calls() for action in "abc"}
        await broker.close()


@dataclass
class KilledDomain:
    """A domain whose process is killed and started again; the broker stays."""

    domain: FunctionsDomain
    url: str
    folder: Path
    done: dict[int, int] = field(default_factory=dict)
    """Of the calls at this domain, up to which offset they are answered, by partition."""

    async def start(self) -> None:
        self.domain.bus = await open_bus(self.url, self.folder / "unused")  # type: ignore[assignment]
        await self.domain.start()

    async def kill(self) -> None:
        await self.domain.kill()
        await self.domain.bus.close()

    async def answer_calls(self) -> None:
        """As its dispatcher does, each once."""
        topic = action_topic("score")
        for partition, end in (await self.domain.bus.ends(topic)).items():
            while (at := self.done.get(partition, 0)) < end:
                records = await self.domain.bus.read(topic, partition, at, 1)
                if not records:
                    break
                call = msgspec.json.decode(records[0].value, type=Invoke)
                await self.domain.answer(call, f"for {call.payload}")
                self.done[partition] = records[0].offset + 1


async def test_partners_that_are_killed_again_and_again(tmp_path: Path) -> None:
    random, clock = Random(4), VirtualClock()
    gateways = FakeGateways(clock)
    sides = []
    for name, partners in (("alice", ("bob",)), ("bob", ("alice",))):
        domain = FunctionsDomain(name, partners, gateways, clock, None)  # type: ignore[arg-type]
        sides.append(KilledDomain(domain, shared_kafka().url(f"hops{os.getpid()}-{name}-"), tmp_path))
    alice, bob = sides
    bob.domain.objects.actions = {"score": 30.0}
    bob.domain.objects.granted = [action_grant("score", "alice")]
    alice.domain.objects.actions = {"prepare": 30.0}
    for side in sides:
        await side.start()
    try:
        sent = 0
        for step in range(2000):
            if sent < _PARTNER_CALLS and step % 3 == 0:
                await alice.domain.invoke("bob/score", f"r{sent}", payload=f"r{sent}")
                sent += 1
            if step % 12 == 11 and sent < _PARTNER_CALLS:
                side = random.choice(sides)
                await side.kill()
                await side.start()
            await asyncio.sleep(_TICK)
            await clock.advance(0.2)
            await bob.answer_calls()
            if len(await answers(alice.domain.bus, "ReturnGateway-1")) >= _PARTNER_CALLS:
                break
        for _ in range(50):  # what would come twice comes now
            await asyncio.sleep(_TICK)
            await clock.advance(1.0)
            await bob.answer_calls()
        found = await answers(alice.domain.bus, "ReturnGateway-1")
        wanted = {f"r{number}": f"for r{number}" for number in range(_PARTNER_CALLS)}
        assert Counter(each.request_uid for each in found) == Counter(wanted.keys())
        assert {each.request_uid: each.payload for each in found} == wanted
        assert len(await all_of(bob.domain.bus, action_topic("score"))) == _PARTNER_CALLS, "each ran once"
    finally:
        for side in sides:
            await side.kill()
