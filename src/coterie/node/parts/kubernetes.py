"""A control plane on somebody's Kubernetes (`apiServer.kubeconfig`): Kuscia's controllers and its gang scheduler, elected by a Lease.

The cluster has the API server, the store, the garbage collector, quotas, deployments, and a scheduler for everything else.
Provides what `control_plane.py` does, without the API server itself: `client`, `informers`, `api_ready`, `controllers`,
`controller_metrics` and, where the node has an agent, `agent_tls`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base import files
from coterie.base.lazy_import import lazy_import
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kube.control.leader import LeaderElected, LeaderElection
from coterie.kube.control.manager import Runnable, RunOnce
from coterie.kube.control.registry import ControllerSpec
from coterie.kube.controllers.registry import CONTROLLERS as PLATFORM
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.control.job_metrics import JobStateSource, KusciaControllerSource
from coterie.kuscia.controllers.registry import CONTROLLERS as KUSCIA
from coterie.kuscia.engine.builtin_appimages import engines_known
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import AgentConfig, ConfigError, NodeSettings
from coterie.node.kubernetes_access import as_kubeconfig, check_cluster, connection_of
from coterie.node.parts.context import NodeContext
from coterie.node.parts.controllers import ControllerCounts, controllers
from coterie.node.parts.evidence_recording import recording_parts
from coterie.node.parts.kubernetes_relay import KubernetesRelay
from coterie.node.parts.own_domain import own_domain, prepared

if TYPE_CHECKING:
    from coterie.node.parts import agent_endpoint
else:
    # A master has no agent.
    agent_endpoint = lazy_import("coterie.node.parts.agent_endpoint")

LEASE = "coterie-controllers"
"""In `cross-domain`: who of several processes runs the controllers."""
_NOT_THERE = frozenset(("logrequest",))
"""They need what only our own API server has: the search in logs of nodes."""


def build(node: NodeContext) -> list[list[Runnable]]:
    settings, clock = node.settings, node.clock
    connection = connection_of(settings.api.kubeconfig)
    with prepared(settings, clock):
        client = Client(
            HttpTransport(connection, user_agent="coterie-controllers", clock=clock), field_validation="Ignore"
        )
        informers = Informers(client)
        counts = ControllerCounts()
        recorder = node.get("evidence", EvidenceService)
        recording, signing = recording_parts(node, recorder, client, informers)
        election = LeaderElection(client, LEASE, CROSS_DOMAIN, _identity(settings), clock=clock)

        def term() -> list[list[Runnable]]:
            ca = connection.ca.decode("ascii", "replace")
            return [controllers(settings, client, informers, ca, clock, counts, recording=recording, specs=specs())]

        elected = LeaderElected("controllers", election, term, clock=clock)
        relay = KubernetesRelay(connection, Path(GatewayPaths.of(settings.paths).api_socket.host))
    if settings.agent is not None:
        node.provide("agent_tls", _agent_tls(settings, settings.agent, connection, node))
    node.provide("api_ready", relay.ready)
    node.provide("client", client)
    node.provide("informers", informers)
    node.provide("controllers", [elected])
    running = ControllerMetrics()
    node.provide("controller_metrics", [running, KusciaControllerSource(counts.jobs, running, clock)])
    if settings.metrics.enabled:
        node.metrics_sources += [counts.scheduler, JobStateSource(informers, clock)]
    return [
        [RunOnce("cluster", lambda: _enter(client, settings, connection, node))],
        [relay, informers, own_domain(client, settings), engines_known(client)],
        [elected, *signing],
    ]


def specs() -> list[ControllerSpec]:
    """Kuscia's controllers, and the scheduler for pods of tasks alone."""
    scheduler = next(spec for spec in PLATFORM if spec.name == "scheduler")
    return [
        replace(scheduler, needs={**scheduler.needs, "names": "kuscia_scheduler"}),
        *(spec for spec in KUSCIA if spec.name not in _NOT_THERE),
    ]


async def _enter(client: Client, settings: NodeSettings, connection: ClusterConnection, node: NodeContext) -> None:
    await check_cluster(client, settings.domain, node.clock)
    as_kubeconfig(settings.domain, connection, settings.api.kubeconfig).write(settings.paths.kubeconfig)


def _identity(settings: NodeSettings) -> str:
    return f"{settings.domain}/{socket.gethostname()}-{os.getpid()}"


def _agent_tls(
    settings: NodeSettings, chosen: AgentConfig, connection: ClusterConnection, node: NodeContext
) -> agent_endpoint.AgentTls:
    """Signed by the domain's own key; callers are those that the cluster's authority has signed."""
    if not connection.ca:
        raise ConfigError(
            "apiServer.kubeconfig: certificate-authority is missing: the agent has to know whom to answer"
        )
    files.private_directory(settings.paths.pki)
    made = agent_endpoint.AgentTls.of_domain(settings.paths, chosen.node_name, chosen.address, node.clock)
    files.write_atomic(made.ca, connection.ca)
    return made
