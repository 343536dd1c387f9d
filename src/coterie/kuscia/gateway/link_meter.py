"""Rates from counters: what each task sends and receives per second, over the last few samples. Pure.

Counters of Envoy begin again at zero when it restarts: a counter that fell is counted from zero. Rates are means over at
most `WINDOW` samples (six seconds), so that one late sample or one burst does not look like over-use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from coterie.kuscia.api.bandwidth import KIB_BITS
from coterie.kuscia.api.types.domain import LinkUsage, TaskLinkUsage
from coterie.kuscia.gateway.model import TaskBandwidthLimit, TaskLink
from coterie.kuscia.gateway.task_bandwidth import BandwidthCounters, ByteCount

WINDOW = 3
_NOTICEABLE_SHARE = 0.05
_NOTICEABLE_BITS = 100_000
_NONE = ByteCount()
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class MeasuredBandwidth:
    tasks: tuple[TaskLinkUsage, ...] = ()
    links: tuple[LinkUsage, ...] = ()


class LinkMeter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """No task runs: the next sample is a first one."""
        self._last: BandwidthCounters | None = None
        self._totals: dict[TaskLink, ByteCount] = {}
        self._task_rates: dict[TaskLink, deque[tuple[float, ByteCount]]] = {}
        self._link_rates: dict[str, deque[tuple[float, ByteCount]]] = {}
        self._at: float | None = None

    def observe(
        self,
        at: float,
        counters: BandwidthCounters,
        links: Iterable[TaskLink],
        limits: Iterable[TaskBandwidthLimit],
        stamp: str,
    ) -> MeasuredBandwidth:
        """`at`: monotonic seconds. `links`: of the tasks that run; others are forgotten."""
        running = tuple(links)
        before, since = self._last, self._at
        self._last, self._at = counters, at
        elapsed = at - since if since is not None else 0.0
        limit_of = {TaskLink(each.task, each.destination): each.kib_per_second * KIB_BITS for each in limits}
        for link in running:
            new = _grown(before.called if before else {}, counters.called, link) + _grown(
                before.served if before else {}, counters.served, link
            )
            # The first sample of a task may hold what passed before we looked; it is counted, but is no rate.
            self._totals[link] = self._totals.get(link, _NONE) + new
            if elapsed > 0:
                _keep(self._task_rates, link, (elapsed, new))
        peers = {link.peer for link in running}
        for peer in peers:
            tasks = [link for link in running if link.peer == peer]
            served = _sum(_grown(before.served if before else {}, counters.served, link) for link in tasks)
            called = _sum(_grown(before.called if before else {}, counters.called, link) for link in tasks)
            wire = _grown(before.outbound if before else {}, counters.outbound, peer)
            # Calls through a third domain or a tunnel have no connection of their own to count.
            out = ByteCount(max(called.sent, wire.sent), max(called.received, wire.received))
            if elapsed > 0:
                _keep(self._link_rates, peer, (elapsed, out + served))
        for gone in self._totals.keys() - set(running):
            del self._totals[gone]
            self._task_rates.pop(gone, None)
        for lost in self._link_rates.keys() - peers:
            del self._link_rates[lost]
        return MeasuredBandwidth(
            tuple(
                TaskLinkUsage(
                    task=link.task,
                    peer=link.peer,
                    sent_bits_per_second=_rate(self._task_rates.get(link), "sent"),
                    received_bits_per_second=_rate(self._task_rates.get(link), "received"),
                    sent_bytes=self._totals[link].sent,
                    received_bytes=self._totals[link].received,
                    limit_bits_per_second=limit_of.get(link),
                    at=stamp,
                )
                for link in sorted(running)
            ),
            tuple(
                LinkUsage(
                    peer=peer,
                    sent_bits_per_second=_rate(self._link_rates.get(peer), "sent"),
                    received_bits_per_second=_rate(self._link_rates.get(peer), "received"),
                )
                for peer in sorted(peers)
            ),
        )


def noticeable(old: MeasuredBandwidth, new: MeasuredBandwidth) -> bool:
    """Whether the difference is worth a write: another task or limit, or a rate that moved by more than 5 % and 100 kbit/s."""
    if [(u.task, u.peer, u.limit_bits_per_second) for u in old.tasks] != [
        (u.task, u.peer, u.limit_bits_per_second) for u in new.tasks
    ] or [u.peer for u in old.links] != [u.peer for u in new.links]:
        return True
    rates: list[tuple[int, int]] = []
    for task, task_now in zip(old.tasks, new.tasks, strict=True):
        rates.append((task.sent_bits_per_second, task_now.sent_bits_per_second))
        rates.append((task.received_bits_per_second, task_now.received_bits_per_second))
    for link, link_now in zip(old.links, new.links, strict=True):
        rates.append((link.sent_bits_per_second, link_now.sent_bits_per_second))
        rates.append((link.received_bits_per_second, link_now.received_bits_per_second))
    return any(
        abs(was - now) > max(_NOTICEABLE_BITS, _NOTICEABLE_SHARE * max(was, now)) or (was > 0) != (now > 0)
        for was, now in rates
    )


def _grown(before: Mapping[K, ByteCount], now: Mapping[K, ByteCount], key: K) -> ByteCount:
    old, new = before.get(key, _NONE), now.get(key, _NONE)
    return ByteCount(_growth(old.sent, new.sent), _growth(old.received, new.received))


def _growth(old: int, new: int) -> int:
    return new - old if new >= old else new


def _sum(counts: Iterable[ByteCount]) -> ByteCount:
    total = _NONE
    for each in counts:
        total += each
    return total


def _keep(into: dict[K, deque[tuple[float, ByteCount]]], key: K, sample: tuple[float, ByteCount]) -> None:
    into.setdefault(key, deque(maxlen=WINDOW)).append(sample)


def _rate(samples: Iterable[tuple[float, ByteCount]] | None, which: str) -> int:
    kept = list(samples or ())
    seconds = sum(elapsed for elapsed, _ in kept)
    return round(8 * sum(getattr(count, which) for _, count in kept) / seconds) if seconds else 0
