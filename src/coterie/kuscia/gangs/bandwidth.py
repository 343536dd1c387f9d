"""Bandwidth of nodes and links: what is reserved, what is really used, and when enough will be free. Pure.

    DomainRoutes (annotation)  ──> capacity of links        ┐
    Gateways (status.usage)    ──> what each task uses      ├──> shortage of a gang on a link; over-use of nodes
    KusciaTasks                ──> how long tasks will run  ┘

A task takes the larger of what it reserved and what it uses (`kuscia.api.bandwidth.larger`). A link is one pair of domains
seen from our side; its two directions have the same capacity, and the busier one counts. A measurement that nobody renewed
for a minute is dropped: the gateway is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import BandwidthError, bits_text, larger, parse_bits
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.domain import DomainRoute, Gateway
from coterie.kuscia.api.types.job import KusciaTask

MEASURED_SECONDS = 60.0
_SHORT = 90.0
_MOST_ROWS = 2000
"""Of one gateway: it says how many it has."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one task takes of a link or node."""

    task: str
    bits: int


@dataclass(frozen=True, slots=True)
class LinkShortage:
    domain: str
    peer: str
    capacity: int
    claims: tuple[Claim, ...]
    wanted: int

    @property
    def taken(self) -> int:
        return sum(each.bits for each in self.claims)


@dataclass(frozen=True, slots=True)
class TaskTimes:
    began: datetime | None
    progress: float
    deadline_seconds: int | None


class BandwidthState:
    def __init__(self, wall: Callable[[], datetime]) -> None:
        self._wall = wall
        self._capacity: dict[ObjectKey, tuple[str, str, int]] = {}
        """By route: our domain, the peer, bits."""
        self._usage: dict[ObjectKey, tuple[float, Mapping[tuple[str, str], int], Mapping[str, int]]] = {}
        """By gateway: when it was seen; by task and peer, and by task, the busier direction."""
        self._times: dict[str, TaskTimes] = {}

    # What is seen. Each answers whether something changed that could matter to who waits.

    def route_seen(self, route: DomainRoute) -> bool:
        domain = route.metadata.namespace
        ends = {route.spec.source, route.spec.destination} - {domain}
        text = (route.metadata.annotations or {}).get(labels.COTERIE_LINK_BANDWIDTH, "")
        before = self._capacity.pop(route.key, None)
        if text and len(ends) == 1 and not route.metadata.deleting:
            with contextlib.suppress(BandwidthError):  # as if nothing were written
                self._capacity[route.key] = (domain, ends.pop(), parse_bits(text))
        return before != self._capacity.get(route.key)

    def route_gone(self, key: ObjectKey) -> bool:
        return self._capacity.pop(key, None) is not None

    def gateway_seen(self, gateway: Gateway, now: float) -> bool:
        measured = gateway.status.usage if gateway.status is not None else None
        if not measured:
            return self._usage.pop(gateway.key, None) is not None
        links: dict[tuple[str, str], int] = {}
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for each in measured[:_MOST_ROWS]:
            links[each.task, each.peer] = max(0, each.sent_bits_per_second, each.received_bits_per_second)
            sent[each.task] = sent.get(each.task, 0) + max(0, each.sent_bits_per_second)
            received[each.task] = received.get(each.task, 0) + max(0, each.received_bits_per_second)
        tasks = {task: max(sent[task], received[task]) for task in sent}
        before = self._usage.get(gateway.key)
        self._usage[gateway.key] = (now, links, tasks)
        return before is None or before[1:] != (links, tasks)

    def gateway_gone(self, key: ObjectKey) -> bool:
        return self._usage.pop(key, None) is not None

    def expire(self, now: float) -> bool:
        stale = [key for key, (seen, *_) in self._usage.items() if now - seen >= MEASURED_SECONDS]
        for key in stale:
            del self._usage[key]
        return bool(stale)

    def next_expiry(self) -> float | None:
        return min((seen + MEASURED_SECONDS for seen, *_ in self._usage.values()), default=None)

    def task_seen(self, task: KusciaTask) -> None:
        if task.status.phase in TASK_ENDED or task.metadata.deleting:
            self._times.pop(task.metadata.name, None)
            return
        config = task.spec.schedule_config
        self._times[task.metadata.name] = TaskTimes(
            parse_time(task.status.start_time),
            task.status.progress,
            config.active_deadline_seconds if config is not None else None,
        )

    def task_gone(self, name: str) -> None:
        self._times.pop(name, None)

    # What is known.

    @property
    def measures(self) -> bool:
        return bool(self._usage)

    def link_capacity(self, domain: str, peer: str) -> int | None:
        """None: nobody said one. When the routes of both directions differ, the smaller."""
        found = [bits for ours, theirs, bits in self._capacity.values() if (ours, theirs) == (domain, peer)]
        return min(found, default=None)

    def link_use(self, domain: str, task: str, peer: str) -> int:
        """Over all gateways of the domain."""
        return sum(links.get((task, peer), 0) for key, (_, links, _) in self._usage.items() if key.namespace == domain)

    def task_use(self, domain: str, task: str) -> int:
        return sum(tasks.get(task, 0) for key, (_, _, tasks) in self._usage.items() if key.namespace == domain)

    def users_of(self, domain: str, peer: str) -> set[str]:
        """Tasks that were seen to use the link."""
        return {
            task
            for key, (_, links, _) in self._usage.items()
            if key.namespace == domain
            for task, other in links
            if other == peer
        }

    def seconds_left(self, task: str) -> float | None:
        """An estimate from the task's own progress; else until its deadline; None when neither is known."""
        times = self._times.get(task)
        if times is None or times.began is None:
            return None
        elapsed = max(0.0, (self._wall() - times.began).total_seconds())
        if 0.01 <= times.progress < 1.0:
            return elapsed * (1 - times.progress) / times.progress
        return max(0.0, times.deadline_seconds - elapsed) if times.deadline_seconds else None

    def expected(self, claims: Iterable[Claim], missing: int) -> str:
        """When so many bits will be free, if the tasks end as they say."""
        ends = sorted(
            ((left, each.bits) for each in claims if (left := self.seconds_left(each.task)) is not None),
        )
        freed = 0
        for left, bits in ends:
            freed += bits
            if freed >= missing:
                return f"expected in about {duration_text(left)}"
        return "when it will be free is not known, because the tasks that take it report no progress"


def link_shortage(
    state: BandwidthState, domain: str, peer: str, wanted: int, reserved: Mapping[str, int], task: str
) -> LinkShortage | None:
    """`reserved`: by task, what others hold of the link. Our own measurements do not count against us."""
    capacity = state.link_capacity(domain, peer)
    if capacity is None or wanted <= 0:
        return None
    tasks = (set(reserved) | state.users_of(domain, peer)) - {task}
    claims = tuple(
        Claim(each, bits)
        for each in sorted(tasks)
        if (bits := larger(reserved.get(each, 0), state.link_use(domain, each, peer)))
    )
    found = LinkShortage(domain, peer, capacity, claims, wanted)
    return found if found.taken + wanted > capacity else None


def shortage_text(state: BandwidthState, short: LinkShortage) -> str:
    """Told to the partners of the task: other tasks are not named."""
    name = f"link {short.domain}-{short.peer}"
    if short.wanted > short.capacity:
        return f"{name} has {bits_text(short.capacity)} and the task requests {bits_text(short.wanted)}: it can never start"
    expected = state.expected(short.claims, short.taken + short.wanted - short.capacity)
    return (
        f"{name} has {bits_text(short.capacity)}, {bits_text(coarse(short.taken))} of it are taken "
        f"and the task requests {bits_text(short.wanted)}; {expected}"
    )


def coarse(bits: int) -> int:
    """Two digits: a message does not change with each measurement."""
    digits = len(str(bits)) - 2
    return round(bits, -digits) if digits > 0 else bits


def duration_text(seconds: float) -> str:
    """Coarse, so that a message does not change with each look."""
    if seconds < _SHORT:
        return "a minute"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
