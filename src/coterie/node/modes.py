"""What each mode runs, and in which order. `run` is one node's whole life.

    master:    store, API server, port ─> informers ─> controllers, scheduler
    lite:      informers ─> runtime ─> node ─> pods
    autonomy:  all of master, then all of lite, in one process

The first part that fails stops the rest, and its error is what `run` raises. Pods go on: the next start finds them.
"""

from __future__ import annotations

import asyncio
import gc as collector
import signal
from dataclasses import replace

from coterie.agent import agent as agents
from coterie.agent.runtimes.runp.runtime import RunpRuntime
from coterie.agent.runtimes.runp.settings import RunpSettings
from coterie.agent.settings import AgentSettings, PodSettings
from coterie.agent.settings import NodeSettings as NodeObjectSettings
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import LogSettings, configure, logger
from coterie.client.client import Client
from coterie.client.http import HttpTransport
from coterie.client.informers import Informers
from coterie.control.events import EventRecorder
from coterie.control.manager import Manager, Runnable
from coterie.controllers.clusterrole_aggregation import controller as clusterrole_aggregation
from coterie.controllers.crd import controller as crd
from coterie.controllers.cronjob import controller as cronjob
from coterie.controllers.deployment import controller as deployment
from coterie.controllers.endpoints import controller as endpoints
from coterie.controllers.endpointslice import controller as endpointslice
from coterie.controllers.gc import controller as gc
from coterie.controllers.job import controller as job
from coterie.controllers.namespace import controller as namespace
from coterie.controllers.nodelifecycle import controller as nodelifecycle
from coterie.controllers.nodelifecycle.plan import Settings as NodeLifecycleSettings
from coterie.controllers.podgc import controller as podgc
from coterie.controllers.quota import controller as quota
from coterie.controllers.replicaset import controller as replicaset
from coterie.controllers.rootca import controller as rootca
from coterie.controllers.serviceaccount import controller as serviceaccount
from coterie.node import joining
from coterie.node.agentport import AgentPort, AgentTls
from coterie.node.config import AgentConfig, ConfigError, NodeSettings
from coterie.node.plane import ApiPlane
from coterie.scheduler import runnable as scheduler

log = logger("node")


def groups(settings: NodeSettings, clock: Clock = SYSTEM_CLOCK) -> list[list[Runnable]]:
    """The parts of a node in the order in which they start."""
    if settings.mode == "lite":
        assert settings.join is not None and settings.agent is not None
        bundle = joining.read_bundle(settings.join)
        client = Client(HttpTransport(bundle.connection()))
        informers = Informers(client)
        tls = AgentTls.of_bundle(bundle, settings.paths)
        chosen = named_by(bundle, settings.agent)
        return [[informers], *agent_groups(settings, chosen, client, informers, tls, clock)]
    plane = ApiPlane(settings, clock)
    client = plane.client()
    informers = Informers(client)
    out: list[list[Runnable]] = [
        [plane],
        [informers],
        [
            *controllers(settings, client, informers, plane.ca_pem.decode(), clock),
            scheduler.make(client, informers, clock=clock),
        ],
    ]
    if settings.agent is not None:
        tls = AgentTls.of_plane(settings.paths, settings.agent.node_name, settings.agent.address, clock)
        out += agent_groups(settings, settings.agent, client, informers, tls, clock)
    return out


def named_by(bundle: joining.Bundle, chosen: AgentConfig) -> AgentConfig:
    """A node that joined is who its certificate says it is."""
    if chosen.node_name not in ("", bundle.node):
        raise ConfigError(f'agent.nodeName: the file under `join` is for "{bundle.node}", not "{chosen.node_name}"')
    return replace(chosen, node_name=bundle.node)


def controllers(settings: NodeSettings, client: Client, informers: Informers, ca: str, clock: Clock) -> list[Runnable]:
    """What keeps the objects of every control plane in order."""
    patience = NodeLifecycleSettings(
        grace=settings.controllers.node_grace_seconds, eviction=settings.controllers.pod_eviction_seconds
    )
    events = EventRecorder(client, "controllers", clock=clock)
    return [
        events,
        gc.GarbageCollector(client, clock=clock),
        namespace.make(client, informers, clock=clock),
        crd.make(client, informers, clock=clock),
        serviceaccount.make(client, informers, clock=clock),
        rootca.make(client, informers, ca, clock=clock),
        quota.make(client, informers, clock=clock),
        clusterrole_aggregation.make(client, informers, clock=clock),
        replicaset.make(client, informers, events=events, clock=clock),
        deployment.make(client, informers, events=events, clock=clock),
        job.make(client, informers, events=events, clock=clock),
        cronjob.make(client, informers, events=events, clock=clock),
        endpoints.make(client, informers, clock=clock),
        endpointslice.make(client, informers, clock=clock),
        nodelifecycle.make(client, informers, events=events, settings=patience, clock=clock),
        podgc.make(client, informers, clock=clock),
    ]


def agent_groups(
    settings: NodeSettings, chosen: AgentConfig, client: Client, informers: Informers, tls: AgentTls, clock: Clock
) -> list[list[Runnable]]:
    """The node agent with its endpoint. The endpoint's port is known before the Node object names it."""
    paths = settings.paths
    runtime = RunpRuntime(
        RunpSettings(
            directory=paths.run / "runp",
            images=paths.images,
            node=chosen.node_name,
            address=chosen.address,
            hidden=(paths.certs, paths.etc, paths.database.parent),
        )
    )
    port = AgentPort(runtime, chosen, tls, clock)
    agent = agents.make(
        client,
        informers,
        runtime,
        AgentSettings(
            node_name=chosen.node_name,
            domain=settings.domain,
            paths=settings.paths,
            address=chosen.address,
            port=port.port,
            capacity=chosen.capacity,
            node=NodeObjectSettings(
                lease_seconds=chosen.lease_seconds, renew_seconds=chosen.lease_seconds / 4, taint=chosen.taint
            ),
            pods=PodSettings(host_paths=chosen.host_paths, allow_privileged=chosen.allow_privileged),
        ),
        clock,
    )
    first, *rest = agent.groups
    return [first, [port], *rest]


async def run(settings: NodeSettings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run a node until SIGTERM or SIGINT."""
    configure(LogSettings(level=settings.log_level, format="json" if settings.log_json else "plain"))
    settings.paths.prepare()
    manager = Manager(groups(settings, clock), name=settings.domain, clock=clock)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.stop)
    _spare_the_collector()
    await manager.run()
    log.info("The node stopped", domain=settings.domain)


def _spare_the_collector() -> None:
    """What was loaded at start lives as long as the process, and caches hold many small objects that have no cycles:
    looking at all of them again and again would cost more than it could ever free."""
    collector.collect()
    collector.freeze()
    collector.set_threshold(50_000, 20, 50)
