"""Two domains whose functions call each other: real ledgers, outboxes and inboxes on a bus in memory, gateways that only say who calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coterie.base.clock import VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.protocol import BusError, Commit, Entry, Position, Record, UnknownTopic, partition_of
from coterie.functions.hops.inbox import HopInbox
from coterie.functions.hops.ledger import HopLedger
from coterie.functions.hops.outbox import OutboxSender, PostResult, answer_overdue
from coterie.functions.hops.wire import CALLER_HEADER
from coterie.functions.messages import RESULTS_TOPIC, FunctionResponse, Invoke, action_topic, outbox_topic
from coterie.http.messages import Request
from coterie.kuscia.api.functions.types import ActionGrant
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder


class MemoryBus:
    """Outlives the processes of a test. `fail`: the next writes fail; with `kept` they are on the bus all the same."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.logs: dict[str, list[list[Record]]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.fail = 0
        self.kept = False
        self._written = asyncio.Event()

    async def create_topic(self, name: str, partitions: int = 2) -> None:
        self.logs.setdefault(name, [[] for _ in range(partitions)])

    async def delete_topic(self, name: str) -> None:
        self.logs.pop(name, None)

    async def topics(self) -> Mapping[str, int]:
        return {name: len(each) for name, each in self.logs.items()}

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        await asyncio.sleep(0)
        for each in entries:
            if each.topic not in self.logs:
                raise UnknownTopic(each.topic)
        if self.fail:
            self.fail -= 1
            if not self.kept:
                raise BusError("the disk is full")
            self._append(entries, commits)
            raise BusError("the disk did not answer")
        return self._append(entries, commits)

    def _append(self, entries: Sequence[Entry], commits: Sequence[Commit]) -> list[Position]:
        found = []
        for each in entries:
            partitions = self.logs[each.topic]
            number = partition_of(each.key, len(partitions))
            offset = len(partitions[number])
            time = int(self._clock.now().timestamp() * 1000)
            partitions[number].append(Record(each.topic, number, offset, each.key, each.value, time))
            found.append(Position(each.topic, number, offset))
        for commit in commits:
            self.offsets[commit.group, commit.topic, commit.partition] = commit.offset
        self._written.set()
        self._written = asyncio.Event()
        return found

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        while True:
            if topic not in self.logs:
                raise UnknownTopic(topic)
            found = self.logs[topic][partition][offset : offset + limit]
            if found or not wait:
                return found
            await self._written.wait()

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        return {p: offset for (g, t, p), offset in self.offsets.items() if (g, t) == (group, topic)}

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        return {}

    async def ends(self, topic: str) -> Mapping[int, int]:
        return {number: len(each) for number, each in enumerate(self.logs[topic])}

    async def trim(self, topic: str, before: int) -> None:
        pass

    async def close(self) -> None:
        pass

    def values(self, topic: str) -> list[bytes]:
        return [each.value for partition in self.logs.get(topic, []) for each in partition]

    def calls(self, action: str) -> list[Invoke]:
        return [msgspec.json.decode(each, type=Invoke) for each in self.values(action_topic(action))]

    def answers(self, topic: str) -> list[FunctionResponse]:
        return [msgspec.json.decode(each, type=FunctionResponse) for each in self.values(topic)]


@dataclass
class Objects:
    """A `PartnerAccess`, and `LocalFunctions` that remember."""

    granted: list[ActionGrant] = field(default_factory=list)
    actions: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    own_tables: tuple[str, ...] = ()
    """Actions that read tables for the domain itself."""
    demands: list[tuple[str, int]] = field(default_factory=list)
    expected: int = 0
    room: bool = True
    sizes: list[tuple[str, int]] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)

    def grants(self) -> Sequence[ActionGrant]:
        return self.granted

    def timeouts(self) -> Mapping[str, float]:
        return self.actions

    def reads_own_tables(self, action: str) -> bool:
        return action in self.own_tables

    def missing_tables(self, grant: ActionGrant) -> Sequence[str]:
        return self.missing if grant.spec.tables else ()

    def wanted(self, action: str, calls_per_minute: int) -> None:
        self.demands.append((action, calls_per_minute))

    def has_room(self, pool: str, size: int) -> bool:
        return self.room

    def added(self, pool: str, size: int) -> None:
        self.sizes.append((pool, size))

    def version(self, pool: str, request_uid: str) -> str:
        return ""

    def expected_calls(self, source: str, target: str) -> int:
        return self.expected

    def result_published(self, response: FunctionResponse, position: Position) -> None:
        self.results.append((response.request_uid, position.topic))


def action_grant(action: str, partner: str, name: str = "g", uses: int = 0, **spec: Any) -> ActionGrant:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "bob", "uid": f"uid-{name}"},
            "spec": {"action": action, "grantDomain": partner, **spec},
            "status": {"uses": uses},
        },
        ActionGrant,
    )


class FakeGateways:
    """Says who calls, as Envoy does, and may be cut."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.inboxes: dict[str, HopInbox] = {}
        self.cut: set[str] = set()
        self.lose_answers = 0
        """Of so many messages that arrive, the answer is lost."""
        self.posts: list[tuple[str, str, str, int]] = []

    async def post(self, source: str, partner: str, path: str, body: bytes) -> PostResult:
        inbox = self.inboxes.get(partner)
        if inbox is None or partner in self.cut or source in self.cut:
            self.posts.append((source, partner, path, 0))
            return PostResult(503, b"no healthy upstream", "status 503: no healthy upstream")
        response = await inbox.handle(Request("POST", path, headers={CALLER_HEADER: source}, body=body))
        self.posts.append((source, partner, path, response.status))
        if self.lose_answers:
            self.lose_answers -= 1
            return PostResult(0, problem="no answer within 30 s")
        after = next((float(value) for name, value in response.headers if name == "Retry-After"), 0.0)
        return PostResult(response.status, response.body, f"status {response.status}", after)


class _Transport:
    def __init__(self, gateways: FakeGateways, source: str) -> None:
        self._gateways = gateways
        self._source = source

    async def post(self, partner: str, path: str, body: bytes) -> PostResult:
        return await self._gateways.post(self._source, partner, path, body)


@dataclass
class FunctionsDomain:
    """One domain's hops. `start` and `kill` are those of its functions process; the bus stays."""

    name: str
    partners: tuple[str, ...]
    gateways: FakeGateways
    clock: VirtualClock
    bus: MemoryBus
    objects: Objects = field(default_factory=Objects)
    owner: TaskOwner | None = None
    evidence: EvidenceRecorder | None = None

    async def start(self) -> None:
        for topic in (RESULTS_TOPIC, "ReturnGateway-1", *map(action_topic, self.objects.actions)):
            await self.bus.create_topic(topic)
        for partner in self.partners:
            await self.bus.create_topic(outbox_topic(partner))
        self.ledger = HopLedger(self.bus, self.clock)
        await self.ledger.load()
        self.inbox = HopInbox(
            self.name, self.bus, self.ledger, self.objects, self.objects, self.clock, evidence=self.evidence
        )
        self.owner = TaskOwner(self.name)
        transport = _Transport(self.gateways, self.name)
        self.senders = {
            each: OutboxSender(each, self.bus, self.ledger, transport, self.objects, self.clock)
            for each in self.partners
        }
        for partner, sender in self.senders.items():
            self.owner.start(f"outbox {partner}", sender.run())
        self.owner.start("deadlines", answer_overdue(self.ledger, self.objects, self.clock))
        self.gateways.inboxes[self.name] = self.inbox

    async def kill(self) -> None:
        self.gateways.inboxes.pop(self.name, None)
        if self.owner is not None:
            await self.owner.close()
            self.owner = None

    async def invoke(self, target: str, request: str, **more: Any) -> None:
        """As the dispatcher does when an action calls a partner's."""
        partner = target.partition("/")[0]
        call = Invoke(request_uid=request, action=target, return_topic="ReturnGateway-1", hop=1, **more)
        await self.bus.publish([Entry(outbox_topic(partner), call.key or request, msgspec.json.encode(call))])

    async def publish_surely(self, target: str, request: str, **more: Any) -> None:
        """The same, on a bus that does not fail just now."""
        fails, self.bus.fail = self.bus.fail, 0
        await self.invoke(target, request, payload=request, **more)
        self.bus.fail = fails

    async def answer(self, call: Invoke, text: str, **more: Any) -> None:
        """As the dispatcher does when an actor answered."""
        response = FunctionResponse(request_uid=call.request_uid, payload=text, action=call.action, **more)
        await self.bus.publish([Entry(call.return_topic, call.request_uid, msgspec.json.encode(response))])

    def answers(self) -> list[tuple[str, int, str]]:
        return [(each.request_uid, each.status_code, each.payload) for each in self.bus.answers("ReturnGateway-1")]


@asynccontextmanager
async def two_domains() -> AsyncIterator[tuple[FunctionsDomain, FunctionsDomain, FakeGateways, VirtualClock]]:
    """bob has the action `score` and grants it to alice."""
    clock = VirtualClock()
    gateways = FakeGateways(clock)
    alice = FunctionsDomain("alice", ("bob",), gateways, clock, MemoryBus(clock))
    bob = FunctionsDomain("bob", ("alice", "carol"), gateways, clock, MemoryBus(clock))
    bob.objects.actions = {"score": 30.0, "secret": 30.0}
    bob.objects.granted = [action_grant("score", "alice")]
    alice.objects.actions = {"prepare": 30.0}
    await alice.start()
    await bob.start()
    try:
        yield alice, bob, gateways, clock
    finally:
        await alice.kill()
        await bob.kill()


async def settle(turns: int = 60) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
