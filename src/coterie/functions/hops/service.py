"""Calls between domains, put together: outboxes, inbox, ledger, status of grants.

    HopService(domain, bus, client, objects, transport, functions, clock, listener=...)      a Runnable, after the dispatcher

An outbox exists while an action declares its partner in `next`, while the partner has an ActionGrant, and until it is drained.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

from coterie.base.clock import Clock
from coterie.base.exposition import Family, labels
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.protocol import Bus, BusError
from coterie.functions.hops import call_grants, wire
from coterie.functions.hops.grant_status import GrantStatuses
from coterie.functions.hops.inbox import HopInbox
from coterie.functions.hops.ledger import HopLedger
from coterie.functions.hops.local_functions import LocalFunctions
from coterie.functions.hops.outbox import HopTransport, OutboxSender, answer_overdue
from coterie.functions.messages import is_outbox, outbox_topic
from coterie.http.server import HttpLimits, HttpServer, HttpShares
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.functions.partners import declared_partners
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS, Action, ActionGrant
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainData, DomainDataGrant
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder

log = logger("functions.hops")

_LIMITS = HttpLimits(max_body=wire.MAX_MESSAGE, max_body_in_flight=128 << 20, max_connections=1024)
_REQUESTS_OF_ONE = 128
"""Of one partner at once."""
_ADJUST_SECONDS = 60.0
"""After which outboxes that are not needed any more are looked for though nothing changed."""


class DomainObjects:
    """A `PartnerAccess` from informers of the domain's namespace."""

    def __init__(self, informers: Informers, domain: str, clock: Clock) -> None:
        self._domain = domain
        self._clock = clock
        self._actions: Informer[Action] = informers.get(ACTIONS, domain)
        self._grants: Informer[ActionGrant] = informers.get(ACTION_GRANTS, domain)
        self._datas: Informer[DomainData] = informers.get(DOMAIN_DATAS, domain)
        self._data_grants: Informer[DomainDataGrant] = informers.get(DOMAIN_DATA_GRANTS, domain)
        self.changed = asyncio.Event()
        for each in (self._actions, self._grants, self._datas, self._data_grants):
            each.add_handler(lambda _: self.changed.set())

    async def synced(self) -> None:
        for each in (self._actions, self._grants, self._datas, self._data_grants):
            await each.ready.wait()

    def grants(self) -> Sequence[ActionGrant]:
        return self._grants.cache.list(self._domain)

    def timeouts(self) -> Mapping[str, float]:
        return {
            each.metadata.name: float(each.spec.timeout_seconds)
            for each in self._actions.cache.list(self._domain)
            if not each.metadata.deleting
        }

    def reads_own_tables(self, action: str) -> bool:
        found = self._actions.cache.get(action, self._domain)
        return found is not None and bool(found.spec.tables)

    def missing_tables(self, grant: ActionGrant) -> Sequence[str]:
        if not grant.spec.tables:
            return ()
        datas = call_grants.own_tables(self._datas.cache.list(self._domain), self._domain)
        granted = self._data_grants.cache.list(self._domain)
        return call_grants.missing_tables(grant, datas, granted, self._domain, self._clock.now())

    def partners(self) -> frozenset[str]:
        """Those who get something from us: calls, or answers."""
        targets = [target for each in self._actions.cache.list(self._domain) for target in each.spec.targets]
        return declared_partners(targets) | {each.spec.grant_domain for each in self.grants()}


class HopService:
    """A Runnable."""

    name = "hops"

    def __init__(
        self,
        domain: str,
        bus: Bus,
        client: Client,
        objects: DomainObjects,
        transport: HopTransport,
        functions: LocalFunctions,
        clock: Clock,
        *,
        listener: socket.socket | None = None,
        evidence: EvidenceRecorder | None = None,
    ) -> None:
        """`listener`: where only our own Envoy connects; None: nobody calls. `evidence` None: there is no evidence log."""
        self.ready = asyncio.Event()
        self.ledger = HopLedger(bus, clock)
        self.statuses = GrantStatuses(client, domain, objects, self.ledger, clock)
        self.inbox = HopInbox(
            domain,
            bus,
            self.ledger,
            objects,
            functions,
            clock,
            on_use=lambda _: self.statuses.changed(),
            evidence=evidence,
        )
        self.senders: dict[str, OutboxSender] = {}
        self._bus = bus
        self._objects = objects
        self._transport = transport
        self._clock = clock
        self._functions = functions
        self._listener = listener
        shares = HttpShares(self.inbox.caller_of, _REQUESTS_OF_ONE, _LIMITS.max_body_in_flight // 2)
        self._server = HttpServer(self.inbox.handle, limits=_LIMITS, shares=shares)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is cancelled, or something fails."""
        try:
            async with TaskOwner(self.name) as owner:
                await self._objects.synced()
                await self.ledger.load()
                await self._adjust(owner)
                owner.start("ledger", self.ledger.keep_short(), endless=True)
                owner.start("deadlines", answer_overdue(self.ledger, self._functions, self._clock), endless=True)
                owner.start("grant status", self.statuses.run(), endless=True)
                owner.start("outboxes", self._keep_adjusting(owner), endless=True)
                if self._listener is not None:
                    await self._server.serve(self._listener)
                self.ready.set()
                await owner.wait()
        finally:
            await self._server.stop()

    def families(self) -> list[Family]:
        """For the page of metrics. Partners are those that Actions and ActionGrants name."""
        senders = sorted(self.senders.items())
        return [
            Family(
                "coterie_function_partner_up",
                "Whether the last message to a partner's functions was taken.",
                "gauge",
                [(labels(partner=partner), int(sender.reached)) for partner, sender in senders],
            ),
            Family(
                "coterie_function_partner_waiting_calls",
                "Calls to a partner without an answer.",
                "gauge",
                [(labels(partner=partner), self.ledger.waiting(partner)) for partner, _ in senders],
            ),
        ]

    # Outboxes.

    async def _keep_adjusting(self, owner: TaskOwner) -> None:
        while True:
            sleeping = asyncio.ensure_future(self._clock.sleep(_ADJUST_SECONDS))
            changing = asyncio.ensure_future(self._objects.changed.wait())
            try:
                await asyncio.wait((sleeping, changing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (sleeping, changing):
                    each.cancel()
                await asyncio.gather(sleeping, changing, return_exceptions=True)
            self._objects.changed.clear()
            self.statuses.changed()
            try:
                await self._adjust(owner)
            except BusError as problem:
                log.warning("The outboxes cannot be looked at now", error=problem)
                await self._clock.sleep(1.0)
                self._objects.changed.set()

    async def _adjust(self, owner: TaskOwner) -> None:
        wanted = self._objects.partners()
        there = {topic.removeprefix(outbox_topic("")) for topic in await self._bus.topics() if is_outbox(topic)}
        for partner in sorted((wanted | there) - self._running.keys()):
            await self._bus.create_topic(outbox_topic(partner))
            sender = OutboxSender(partner, self._bus, self.ledger, self._transport, self._functions, self._clock)
            self.senders[partner] = sender
            self._running[partner] = owner.start(f"outbox {partner}", sender.run(), endless=True)
        for partner in sorted(self._running.keys() - wanted):
            if not await self.senders[partner].needed():
                await self._end(partner)
                self.inbox.forget_outbox(partner)
                await self._bus.delete_topic(outbox_topic(partner))
                log.info("An outbox was removed", partner=partner)

    async def _end(self, partner: str) -> None:
        task = self._running.pop(partner)
        del self.senders[partner]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
