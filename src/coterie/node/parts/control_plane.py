"""The control plane: the API server, informers, the controllers, and the domain's own objects.

Provides `client`, `informers`, `api` (the ApiPlane), `pod_dialler`, `controllers`, `controller_metrics`
(their sources), where the node has an agent, `agent_tls`, and where its store may have other members, `leadership`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kube.control.manager import Runnable
from coterie.kube.store.metrics import StoreSource
from coterie.kuscia.control.job_metrics import JobStateSource, KusciaControllerSource
from coterie.kuscia.engine.builtin_appimages import engines_known
from coterie.kuscia.gateway.names import ERROR, ORIGIN
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.cluster_network import published_network
from coterie.node.parts.apiserver import BOOTSTRAP_USER, KUSCIA_API_USER, ApiPlane
from coterie.node.parts.context import NodeContext
from coterie.node.parts.controllers import ControllerCounts, Recording, controllers
from coterie.node.parts.leadership import Leadership, TermParts
from coterie.node.parts.own_domain import own_domain, prepared
from coterie.node.parts.pod_dialler import PodDialler

if TYPE_CHECKING:
    from coterie.kuscia.evidence import (
        access_follower,
        api_writes,
        follower,
        job_events,
        service,
        shared_log,
        shared_log_term,
        statement_exchange,
        witness_transport,
        witnesses,
    )
    from coterie.node.parts import agent_endpoint
else:
    # A control plane without gateway keeps no evidence.
    access_follower = lazy_import("coterie.kuscia.evidence.access_follower")
    api_writes = lazy_import("coterie.kuscia.evidence.api_writes")
    follower = lazy_import("coterie.kuscia.evidence.follower")
    job_events = lazy_import("coterie.kuscia.evidence.job_events")
    service = lazy_import("coterie.kuscia.evidence.service")
    shared_log = lazy_import("coterie.kuscia.evidence.shared_log")
    shared_log_term = lazy_import("coterie.kuscia.evidence.shared_log_term")
    statement_exchange = lazy_import("coterie.kuscia.evidence.statement_exchange")
    witness_transport = lazy_import("coterie.kuscia.evidence.witness_transport")
    witnesses = lazy_import("coterie.kuscia.evidence.witnesses")
    # A master has no agent.
    agent_endpoint = lazy_import("coterie.node.parts.agent_endpoint")


def build(node: NodeContext) -> list[list[Runnable]]:
    settings, clock = node.settings, node.clock
    with prepared(settings, clock):
        dialler = PodDialler()
        recorder = node.get("evidence", service.EvidenceService) if settings.gateway.enabled else None
        gate = api_writes.EvidenceGate(recorder) if recorder is not None else None
        plane = ApiPlane(settings, clock, dialler, gate=gate)
        client = plane.client()
        informers = Informers(client)
        counts = ControllerCounts()

        def term(its_client: Client, its_informers: Informers) -> list[Runnable]:
            """What runs once in a control plane, however many members it has."""
            signing: list[Runnable] = []
            recording = Recording()
            if recorder is not None:
                recording, signing = _evidence(node, recorder, its_client, its_informers)
            ca = plane.ca_pem.decode()
            return [
                *controllers(settings, its_client, its_informers, ca, clock, counts, recording=recording),
                *signing,
            ]

        started = _elected(node, plane, informers, term, recorder) if plane.member else term(client, informers)
        if settings.agent is not None and settings.mode != "master":
            chosen = settings.agent
            tls = agent_endpoint.AgentTls.of_plane(settings.paths, chosen.node_name, chosen.address, clock)
            node.provide("agent_tls", tls)
    node.provide("api", plane)
    node.provide("pod_dialler", dialler)
    node.provide("client", client)
    node.provide("kusciaapi_client", plane.client(KUSCIA_API_USER))
    node.provide("informers", informers)
    node.provide("controllers", started)
    running = ControllerMetrics()
    node.provide("controller_metrics", [running, KusciaControllerSource(counts.jobs, running, clock)])
    if settings.metrics.enabled:
        node.metrics_sources += [StoreSource(plane.store), counts.scheduler, JobStateSource(informers, clock)]
    own = plane.client(BOOTSTRAP_USER)
    once = [own_domain(own, settings), engines_known(own), published_network(own, settings)]
    return [[plane], [informers, *once], started]


def _elected(
    node: NodeContext,
    plane: ApiPlane,
    informers: Informers,
    term: TermParts,
    recorder: service.EvidenceService | None,
) -> list[Runnable]:
    leadership = Leadership(plane.member, plane.client().transport, informers, node.clock)
    plane.reports = lambda: leadership.leads
    leadership.add(term)
    if recorder is not None:
        shared = shared_log.SharedEvidence(plane.store, node.clock)
        recorder.share(shared)
        leadership.add(lambda *_: [shared_log_term.SharedLogTerm(recorder, shared)], first=True)
    node.provide("leadership", leadership)
    return [leadership.elected]


def _evidence(
    node: NodeContext, recorder: service.EvidenceService, client: Client, informers: Informers
) -> tuple[Recording, list[Runnable]]:
    """What the controllers record with, and what runs beside them."""
    places, clock = GatewayPaths.of(node.settings.paths), node.clock
    transport = witness_transport.WitnessTransport(Path(places.node_socket.host), ERROR)
    events = job_events.JobEvents(recorder)
    statements = statement_exchange.StatementExchange(recorder, events, informers, transport, clock)
    cosigning = witnesses.Witnesses(
        recorder,
        client,
        informers,
        transport,
        Path(places.witness_socket.host),
        ORIGIN,
        clock,
        statements=statements.answer,
    )
    events.witnesses = cosigning
    beside: list[Runnable] = [
        cosigning,
        follower.EvidenceFollower(recorder, events, informers, clock),
        access_follower.AccessFollower(recorder, informers, clock),
        statement_exchange.make(statements, clock),
    ]
    return Recording(recorder, events, cosigning), beside
