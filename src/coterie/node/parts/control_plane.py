"""The control plane: the API server, informers, the controllers, and the domain's own objects.

Provides `client`, `informers`, `api` (the ApiPlane), `api_ready` (an Event), `pod_dialler`, `controllers`, `controller_metrics`
(their sources), where the node has an agent, `agent_tls`, and where its store may have other members, `leadership`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kube.control.manager import Runnable
from coterie.kube.store.metrics import StoreSource
from coterie.kuscia.control.job_metrics import JobStateSource, KusciaControllerSource
from coterie.kuscia.engine.builtin_appimages import engines_known
from coterie.node.cluster_network import published_network
from coterie.node.parts.apiserver import BOOTSTRAP_USER, KUSCIA_API_USER, ApiPlane
from coterie.node.parts.context import NodeContext
from coterie.node.parts.controllers import ControllerCounts, Recording, controllers
from coterie.node.parts.leadership import Leadership, TermParts
from coterie.node.parts.own_domain import own_domain, prepared
from coterie.node.parts.pod_dialler import PodDialler

if TYPE_CHECKING:
    from coterie.kuscia.evidence import api_writes, service, shared_log, shared_log_term
    from coterie.node.parts import agent_endpoint, evidence_recording
else:
    # A control plane without gateway keeps no evidence.
    api_writes = lazy_import("coterie.kuscia.evidence.api_writes")
    service = lazy_import("coterie.kuscia.evidence.service")
    shared_log = lazy_import("coterie.kuscia.evidence.shared_log")
    shared_log_term = lazy_import("coterie.kuscia.evidence.shared_log_term")
    evidence_recording = lazy_import("coterie.node.parts.evidence_recording")
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
                recording, signing = evidence_recording.recording_parts(node, recorder, its_client, its_informers)
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
    node.provide("api_ready", plane.ready)
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
