"""The control plane: the API server, informers, the controllers, and the domain's own objects.

Provides `client`, `informers`, `api` (the ApiPlane), `api_ready` (an Event), `pod_dialler`, `controllers`, `controller_metrics`
(their sources) and, where the node has an agent, `agent_tls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
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
from coterie.node.parts.own_domain import own_domain, prepared
from coterie.node.parts.pod_dialler import PodDialler

if TYPE_CHECKING:
    from coterie.kuscia.evidence import api_writes, service
    from coterie.node.parts import agent_endpoint, evidence_recording
else:
    # A control plane without gateway keeps no evidence.
    api_writes = lazy_import("coterie.kuscia.evidence.api_writes")
    service = lazy_import("coterie.kuscia.evidence.service")
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
        signing: list[Runnable] = []
        recording = Recording()
        if recorder is not None:
            recording, signing = evidence_recording.recording_parts(node, recorder, client, informers)
        started = controllers(settings, client, informers, plane.ca_pem.decode(), clock, counts, recording=recording)
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
    return [[plane], [informers, *once], [*started, *signing]]
