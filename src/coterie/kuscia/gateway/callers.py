"""Which engine pods may call what, and whether Envoy knows it yet.

    callers.set("100.96.128.7", {"task-x-0-psi.bob.svc", "reporter.master.svc"}, task="task-x")
    await callers.loaded("100.96.128.7", timeout=5.0)       # before the pod's first container starts
    ...
    callers.remove("100.96.128.7")
    await callers.loaded("100.96.128.7", timeout=5.0)       # before the address is given to another pod

After a restart of the node the entries of its earlier life stay in force until the agent has found its pods again and calls
`drop_stale`: engines that went on running are never refused in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from coterie.kuscia.gateway.model import PodCaller


class PodCallers:
    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        """Called after each change."""
        self._wanted: dict[str, PodCaller] = {}
        self._in_force: dict[str, PodCaller] = {}
        self._stale: set[str] = set()
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self, address: str, hosts: Iterable[str], task: str = "") -> None:
        """The pod with this address may call these hosts and no others, and use the message queue for this task."""
        caller = PodCaller(address, frozenset(each.lower() for each in hosts), task)
        self._stale.discard(address)
        if self._wanted.get(address) != caller:
            self._wanted[address] = caller
            self.on_change()

    def remove(self, address: str) -> None:
        """There is no such pod any more."""
        self._stale.discard(address)
        if self._wanted.pop(address, None) is not None:
            self.on_change()

    def snapshot(self) -> tuple[PodCaller, ...]:
        return tuple(caller for _, caller in sorted(self._wanted.items()))

    async def loaded(self, address: str, timeout: float) -> None:
        """Until Envoy decides by what was last set, or removed, for this address. TimeoutError."""
        async with asyncio.timeout(timeout):
            while self._wanted.get(address) != self._in_force.get(address):
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiters.discard(waiter)

    # ---- an earlier life of this node ----

    def restore(self, known: Iterable[PodCaller]) -> None:
        """What Envoy was last given by an earlier life. What was set since then counts."""
        for each in known:
            if each.address not in self._wanted:
                self._wanted[each.address] = each
                self._stale.add(each.address)

    def drop_stale(self) -> None:
        """The agent knows all its pods: restored entries that it did not set again are removed."""
        stale, self._stale = self._stale, set()
        for address in stale:
            del self._wanted[address]
        if stale:
            self.on_change()

    # ---- SnapshotSource ----

    def accepted(self, callers: Iterable[PodCaller]) -> None:
        """Envoy decides by these now."""
        self._in_force = {each.address: each for each in callers}
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
