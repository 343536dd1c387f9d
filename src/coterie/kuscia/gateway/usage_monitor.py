"""Measures what tasks send and receive while tasks run, and writes it into the status of our Gateway object.

    a task has services ──> every 2 s: Envoy's counters ──LinkMeter──> status.usage, status.links
    the last task ended ──> both are emptied once; then nothing is asked and nothing written

Whoever schedules, shows or alarms reads it there. A value that hardly changes is written every 15 seconds only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import GATEWAYS, TaskLinkUsage
from coterie.kuscia.gateway.admin import AdminError
from coterie.kuscia.gateway.link_meter import LinkMeter, MeasuredBandwidth, noticeable
from coterie.kuscia.gateway.model import SnapshotInputs
from coterie.kuscia.gateway.task_bandwidth import STATS_FILTER, read_counters

EVERY = 2.0
REFRESH = 15.0
_PLAIN = GATEWAYS.as_dynamic
_NOTHING = MeasuredBandwidth()


class EnvoyStats(Protocol):
    async def ask(self, path: str) -> str: ...


class UsageMonitor:
    """A Runnable; ready at once."""

    name = "gateway-usage"

    def __init__(
        self,
        client: Client,
        domain: str,
        instance: str,
        admin: EnvoyStats,
        inputs: Callable[[], SnapshotInputs | None],
        running: asyncio.Event,
        *,
        record: Callable[[Sequence[TaskLinkUsage]], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`inputs`: what Envoy was last configured with. `running`: set while one of our tasks has services. `record`: gets
        each measurement."""
        self.ready = asyncio.Event()
        self._client = client
        self._domain = domain
        self._instance = instance
        self._admin = admin
        self._inputs = inputs
        self._running = running
        self._record = record
        self._clock = clock
        self._meter = LinkMeter()
        self._written: MeasuredBandwidth | None = None
        """None: an earlier life may have left something there."""
        self._written_at = 0.0
        self._log = logger("gateway.usage").bind(domain=domain, gateway=instance)

    async def run(self) -> None:
        self.ready.set()
        while True:
            if not self._running.is_set():
                self._meter.reset()
                if self._written != _NOTHING and not await self._write(_NOTHING):
                    await self._clock.sleep(EVERY)
                    continue
                await self._running.wait()
            await self.measure_once()
            await self._clock.sleep(EVERY)

    async def measure_once(self) -> None:
        inputs = self._inputs()
        if inputs is None:
            return
        try:
            stats = await self._admin.ask(f"/stats?type=Counters&usedonly&filter={STATS_FILTER}")
        except AdminError:
            return  # Envoy restarts
        peers = {link.peer for link in inputs.task_links}
        counters = read_counters(stats, self._domain, peers)
        now = self._clock.monotonic()
        found = self._meter.observe(now, counters, inputs.task_links, inputs.limits, rfc3339(self._clock.now()))
        if self._record is not None:
            self._record(found.tasks)
        due = now - self._written_at >= REFRESH
        if self._written is None or due or noticeable(self._written, found):
            await self._write(found)

    async def _write(self, usage: MeasuredBandwidth) -> bool:
        status: Object = {"usage": msgspec.to_builtins(usage.tasks), "links": msgspec.to_builtins(usage.links)}
        try:
            await self._client.patch_status(_PLAIN, self._instance, self._domain, {"status": status})
        except (ApiError, TransportError) as error:
            # The heartbeat makes the object; until then, or while the control plane is away, nobody could read it.
            self._log.debug("Measured bandwidth was not written", why=str(error))
            return False
        self._written, self._written_at = usage, self._clock.monotonic()
        return True
