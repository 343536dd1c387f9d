"""Two domains, gangs that need all of both, opposite order, random delays: somebody always proceeds, then the others.

Each domain has its own scheduler that sees only its own TaskResources. A group controller per gang acts as section 4.7 of
the Kuscia specification says. Every message takes a random time; time is virtual.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_kit import GangEngine, bound, gang_pod, node, task

from coterie.kube.api.types.scheduling import TaskResource
from coterie.kube.scheduler.effects import Bind
from coterie.kuscia.gangs.effects import MarkFailed, MarkReserved

HOLD = 12.0
RETRY = 10.0
DELAY = 2.0
"""The longest a message takes: less than what is left of a hold after the patience of others."""
DOMAINS = ("alice", "bob")


class World:
    def __init__(
        self, seed: int, gangs: dict[str, dict[str, float]], pods: int, work: float, jitter: float = 1.0
    ) -> None:
        """`gangs`: name -> when its TaskResource appears in each domain. `jitter`: how much of a delay is random."""
        self.jitter = jitter
        self.starts = gangs
        self.random = Random(seed)
        self.now = 0.0
        self.work = work
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.versions: dict[tuple[str, str], int] = {}
        self._channels: dict[str, float] = {}
        self.engines = {domain: GangEngine(lambda: self.now, seed=seed) for domain in DOMAINS}
        self.phases: dict[tuple[str, str], str] = {}
        self.states: dict[str, str] = {name: "Reserving" for name in gangs}
        self.started: dict[str, float] = {}
        self.running: dict[str, set[str]] = {name: set() for name in gangs}
        self.finished: set[str] = set()
        self.longest_hold = 0.0
        self.pods = pods
        for domain, engine in self.engines.items():
            engine.node_seen(node(f"{domain}-node", str(pods)))
        for name, starts in gangs.items():
            for domain, at in starts.items():
                self.at(at, lambda n=name, d=domain: self._appear(n, d))  # type: ignore[misc]

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), act))

    def send(self, channel: str, act: Callable[[], None]) -> None:
        """After a random time, but never before what was sent earlier on the same channel."""
        delay = self.random.uniform(DELAY * (1 - self.jitter), DELAY) if self.jitter else DELAY / 2
        when = max(self.now + delay, self._channels.get(channel, 0.0))
        self._channels[channel] = when
        self.at(when, act)

    def run(self, until: float, enough: Callable[[], bool]) -> None:
        while not enough():
            dues = [due for due in (engine.next_due() for engine in self.engines.values()) if due is not None]
            moments = [*dues, *(event[0] for event in self._events[:1])]
            if not moments or min(moments) > until:
                return
            self.now = max(self.now, min(moments))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for domain, engine in self.engines.items():
                self._tick(domain, engine)

    def _tick(self, domain: str, engine: GangEngine) -> None:
        for effect in engine.run():
            if isinstance(effect, MarkReserved):
                name = effect.key.name
                self.send(f"{domain}-writes-{name}", lambda n=name: self._mark(n, domain, ("Reserving",), "Reserved"))  # type: ignore[misc]
            elif isinstance(effect, MarkFailed):
                name = effect.key.name
                self.send(
                    f"{domain}-writes-{name}", lambda n=name: self._mark(n, domain, ("Reserving", "Reserved"), "Failed")
                )  # type: ignore[misc]
            elif isinstance(effect, Bind):
                self.send(f"{domain}-pods", lambda e=effect: self._bound(e, domain))  # type: ignore[misc]
        for gang in engine.holding():
            assert gang.hold is not None
            self.longest_hold = max(self.longest_hold, self.now - gang.hold.since)

    # The API servers.

    def _appear(self, name: str, domain: str) -> None:
        self.phases[(name, domain)] = "Reserving"
        self._tell(name, domain)
        for i in range(self.pods):
            made = gang_pod(f"{name}-{i}", name, domain, group=name)
            self.send(f"to-{domain}", lambda p=made: self.engines[domain].pod_seen(p))  # type: ignore[misc]

    def _tell(self, name: str, domain: str) -> None:
        self.versions[(name, domain)] = next(self._count)
        seen = self._task(name, domain)
        self.send(f"to-{domain}", lambda: self.engines[domain].task_seen(seen))

    def _task(self, name: str, domain: str) -> TaskResource:
        created = f"2026-01-01T00:00:{self.starts[name][domain] * 10:04.1f}Z"
        phase = self.phases[(name, domain)]
        made = task(name, phase, domain, least=self.pods, seconds=int(HOLD), group=name, created=created)
        meta = msgspec.structs.replace(made.metadata, resource_version=str(self.versions[(name, domain)] + 1))
        return msgspec.structs.replace(made, metadata=meta)

    def _set(self, name: str, domain: str, phase: str) -> None:
        if self.phases.get((name, domain)) != phase:
            self.phases[(name, domain)] = phase
            self._tell(name, domain)
            self.send(f"group-{name}", lambda: self._group(name))

    def _mark(self, name: str, domain: str, before: tuple[str, ...], phase: str) -> None:
        if self.phases[(name, domain)] in before:
            self._set(name, domain, phase)
        # The answer to the write is seen at once, before what the watch will tell.
        self.engines[domain].task_seen(self._task(name, domain))

    def _bound(self, effect: Bind, domain: str) -> None:
        name = effect.pod.key.name.rpartition("-")[0]
        made = gang_pod(effect.pod.key.name, name, domain, group=name)
        self.engines[domain].pod_seen(bound(made, effect.node))
        self.running[name].add(f"{domain}/{made.metadata.name}")
        if len(self.running[name]) == self.pods * len(DOMAINS):
            self.started[name] = self.now
            self.at(self.now + self.work, lambda: self._end(name))

    def _end(self, name: str) -> None:
        self.finished.add(name)
        for domain in DOMAINS:
            for i in range(self.pods):
                ended = bound(gang_pod(f"{name}-{i}", name, domain, group=name), f"{domain}-node", "Succeeded")
                self.engines[domain].pod_seen(ended)

    # The group controller.

    def _group(self, name: str) -> None:
        phases = [self.phases.get((name, domain), "") for domain in DOMAINS]
        if self.states[name] != "Reserving":
            return
        if "Failed" in phases:
            self.states[name] = "ReserveFailed"
            for domain in DOMAINS:
                if (name, domain) in self.phases:
                    self._set(name, domain, "Failed")
            self.at(self.now + RETRY, lambda: self._retry(name))
        elif phases == ["Reserved"] * len(DOMAINS):
            self.states[name] = "Reserved"
            for domain in DOMAINS:
                self._set(name, domain, "Schedulable")

    def _retry(self, name: str) -> None:
        self.states[name] = "Reserving"
        for domain in DOMAINS:
            if (name, domain) in self.phases:
                self._set(name, domain, "Reserving")


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    gap=st.floats(0, 3),
    other_gap=st.floats(0, 3),
    first=st.booleans(),
    jitter=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_two_gangs_in_opposite_order_never_block_each_other(
    seed: int, gap: float, other_gap: float, first: bool, jitter: float
) -> None:
    a, b = ("a", "b") if first else ("b", "a")
    gangs = {a: {"alice": 0.0, "bob": gap}, b: {"alice": other_gap, "bob": 0.0}}
    world = World(seed, gangs, pods=2, work=20.0, jitter=jitter)
    world.run(until=60.0, enough=lambda: bool(world.started))
    assert world.started, "nobody proceeded"
    world.run(until=200.0, enough=lambda: len(world.finished) == 2)
    assert world.finished == {"a", "b"}
    assert world.longest_hold <= HOLD + DELAY  # and the write that ends it


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), starts=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=3, max_size=5)
)
def test_many_gangs_all_run_in_the_end(seed: int, starts: list[tuple[float, float]]) -> None:
    gangs = {f"g{i}": {"alice": one, "bob": other} for i, (one, other) in enumerate(starts)}
    world = World(seed, gangs, pods=2, work=5.0)
    world.run(until=900.0, enough=lambda: len(world.finished) == len(gangs))
    assert world.finished == set(gangs)
    assert world.longest_hold <= HOLD + DELAY  # and the write that ends it


def test_without_a_rival_a_gang_starts_in_its_first_round() -> None:
    world = World(1, {"a": {"alice": 0.0, "bob": 1.0}}, pods=2, work=5.0)
    world.run(until=HOLD, enough=lambda: bool(world.started))
    assert world.started["a"] < HOLD


def test_a_domain_that_never_answers_holds_nobody_up() -> None:
    """The partner of gang `a` never appears: its room at alice is free again and again for `b`."""
    world = World(3, {"a": {"alice": 0.0}, "b": {"alice": 1.0, "bob": 1.0}}, pods=2, work=5.0)
    world.run(until=300.0, enough=lambda: "b" in world.finished)
    assert world.finished == {"b"}
    assert world.longest_hold <= HOLD + DELAY  # and the write that ends it
