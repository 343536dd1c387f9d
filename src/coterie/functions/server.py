"""All of the functions process, put together.

    informers ──> dispatcher, events ──> actors ──> controllers of actions, triggers, dead letters ──> links to gateways, calls from and to partners

The first part that fails ends the process; its node starts it again. What was accepted is on the bus.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from coterie.base import trace
from coterie.base.clock import Clock
from coterie.base.exposition import Family
from coterie.base.trace import RING, TraceRing
from coterie.functions.actor_monitor import ActorMonitor
from coterie.functions.actor_pods import SPARE_LABEL
from coterie.functions.bus.protocol import Bus
from coterie.functions.call_traces import call_span
from coterie.functions.controller import ActionController
from coterie.functions.dead_letter_objects import DeadLetterObjects
from coterie.functions.dispatcher.actor_client import HttpActorCaller
from coterie.functions.dispatcher.dead_letters import DeadCall
from coterie.functions.dispatcher.dispatcher import CallDispatcher
from coterie.functions.dispatcher.served_action import DispatcherEvents, DispatcherLimits
from coterie.functions.gateway.links import GatewayLinks
from coterie.functions.gateway_objects import GATEWAY_SELECTOR, GatewayDeployment, gateway_addresses
from coterie.functions.gateway_pods import GatewayPods
from coterie.functions.hops.gateway_transport import GatewayTransport
from coterie.functions.hops.service import DomainObjects, HopService
from coterie.functions.messages import CallRecord, Invoke
from coterie.functions.metrics import FunctionsMetrics
from coterie.functions.partner_calls import PartnerCalls
from coterie.functions.pod_connections import PodConnections
from coterie.functions.settings import FunctionsSettings
from coterie.functions.spare_actors import SpareActors
from coterie.functions.topic_records import TopicRecords
from coterie.functions.triggers import TriggerController
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.manager import Manager, Runnable
from coterie.kuscia.api.functions.types import ACTION_LABEL
from coterie.kuscia.control.evidence_recorder import EvidenceSocket


class FunctionsServer:
    def __init__(
        self,
        settings: FunctionsSettings,
        client: Client,
        bus: Bus,
        clock: Clock,
        *,
        partners: socket.socket | None = None,
        traces: TraceRing = RING,
    ) -> None:
        """`partners`: where our own Envoy brings the calls of partners; None: there is no gateway to partners."""
        self._settings = settings
        self.metrics = FunctionsMetrics()
        self._traces = traces
        connections = PodConnections(settings.netns)
        informers = Informers(client)
        events = EventRecorder(client, "functions", clock=clock)
        self.dispatcher = CallDispatcher(
            bus,
            HttpActorCaller(connections.connect),
            events=DispatcherEvents(
                wanted=lambda action, version: self.actions.wanted(action, version),
                stuck=lambda actor: self.actions.stuck(actor),
                why_ended=lambda actor, seconds: self.actions.monitor.why_ended(actor.name, seconds),
                dead_letter=self._gave_up,
                ended=self._ended,
            ),
            index=settings.directory / "results.db",
            clock=clock,
            limits=DispatcherLimits(max_answer=settings.max_body),
        )
        pods = informers.get(PODS, settings.domain, labels=ACTION_LABEL)
        self._records = TopicRecords(bus, clock)
        self.links = GatewayLinks(bus, self.dispatcher, connections.connect, clock, records=self._records)
        labelled = informers.get(PODS, settings.domain, labels=GATEWAY_SELECTOR)
        self._gateway_pods = GatewayPods(client, labelled, clock, settings.domain, self._gateways_changed)
        self.gateways = GatewayDeployment(client, settings, self._gateways_changed, clock)
        self.spares = SpareActors(
            client,
            informers.get(PODS, settings.domain, labels=SPARE_LABEL),
            connections.connect,
            clock,
            settings.domain,
            settings.spares,
        )
        self.actions = ActionController(
            client,
            informers,
            self.dispatcher,
            bus,
            lambda changed, is_ours: ActorMonitor(pods, connections.connect, clock, changed, is_ours),
            events,
            clock,
            settings.domain,
            gateways=self.gateways,
            spares=self.spares,
            image=settings.image,
        )
        self.triggers = TriggerController(
            client, informers, bus, self.dispatcher, clock, settings.domain, self.links.set_routes, self._records
        )
        self.letters = DeadLetterObjects(client, informers, self.dispatcher, clock, settings.domain)
        groups: list[list[Runnable]] = [
            [informers, events],
            [self.dispatcher, self.actions.monitor, self.spares],
            [self.actions],
            [self.links, self._gateway_pods, self.gateways, self.triggers, self.letters.controller, self._records],
        ]
        self._transport: GatewayTransport | None = None
        self._evidence = EvidenceSocket(settings.evidence) if settings.evidence is not None else None
        self._hops: HopService | None = None
        if settings.gateway is not None and partners is not None:
            self._transport = GatewayTransport(settings.gateway)
            self._hops = HopService(
                settings.domain,
                bus,
                client,
                DomainObjects(informers, settings.domain, clock),
                self._transport,
                PartnerCalls(self.dispatcher, self.actions, settings.domain),
                clock,
                listener=partners,
                evidence=self._evidence,
            )
            groups.append([self._hops])
        self._manager = Manager(groups, name="functions", clock=clock)

    @property
    def ready(self) -> asyncio.Event:
        return self._manager.ready

    async def run(self) -> None:
        """Until `stop`, or the first failure."""
        try:
            await self._manager.run()
        finally:
            if self._transport is not None:
                await self._transport.close()
            if self._evidence is not None:
                await self._evidence.close()

    def stop(self) -> None:
        self._manager.stop()

    def families(self) -> Sequence[Family]:
        found = self.metrics.families(
            self.dispatcher.loads(), self.actions.desired(), self.actions.ready_actors(), self.spares.ready_count()
        )
        return [*found, *(self._hops.families() if self._hops is not None else ())]

    def _ended(self, record: CallRecord, invoke: Invoke) -> None:
        self.metrics.ended(record)
        if self._traces.on and (span := call_span(invoke, record, trace.now())) is not None:
            self._traces.record(span)

    def _gave_up(self, letter: DeadCall) -> None:
        self.metrics.gave_up(letter.action)
        self.letters.changed(letter)

    def _gateways_changed(self) -> None:
        if self.gateways.token:
            self.links.set_gateways(gateway_addresses(self._gateway_pods.pods(), self.gateways.token))
