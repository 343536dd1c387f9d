"""The control plane's parts: the API, what keeps its objects in order, and the scheduler."""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.client.client import Client
from coterie.client.informers import Informers
from coterie.control.events import EventRecorder
from coterie.control.manager import Runnable
from coterie.controllers.clusterdomainroute import controller as clusterdomainroute
from coterie.controllers.clusterrole_aggregation import controller as clusterrole_aggregation
from coterie.controllers.crd import controller as crd
from coterie.controllers.cronjob import controller as cronjob
from coterie.controllers.deployment import controller as deployment
from coterie.controllers.domain import controller as domain
from coterie.controllers.domainroute import controller as domainroute
from coterie.controllers.endpoints import controller as endpoints
from coterie.controllers.endpointslice import controller as endpointslice
from coterie.controllers.gateway import controller as gateway
from coterie.controllers.gc import controller as gc
from coterie.controllers.job import controller as job
from coterie.controllers.kusciajob import controller as kusciajob
from coterie.controllers.kusciatask import controller as kusciatask
from coterie.controllers.kusciatask.ports import PortRange
from coterie.controllers.namespace import controller as namespace
from coterie.controllers.nodelifecycle import controller as nodelifecycle
from coterie.controllers.nodelifecycle.plan import Settings as NodeLifecycleSettings
from coterie.controllers.podgc import controller as podgc
from coterie.controllers.quota import controller as quota
from coterie.controllers.replicaset import controller as replicaset
from coterie.controllers.rootca import controller as rootca
from coterie.controllers.serviceaccount import controller as serviceaccount
from coterie.controllers.taskresourcegroup import controller as taskresourcegroup
from coterie.engines.catalogue import engines_known
from coterie.node.config import NodeSettings
from coterie.node.owndomain import own_domain
from coterie.node.plane import ApiPlane
from coterie.scheduler import runnable as scheduler


def control_groups(settings: NodeSettings, clock: Clock) -> tuple[list[list[Runnable]], Client, Informers]:
    """The groups of a control plane, and the client and informers that others in this process may share."""
    plane = ApiPlane(settings, clock)
    client = plane.client()
    informers = Informers(client)
    keepers = controllers(settings, client, informers, plane.ca_pem.decode(), clock)
    known = own_domain(client, settings)
    return [[plane], [informers, known, engines_known(client)], [*keepers, scheduler.make(client, informers, clock=clock)]], client, informers


def controllers(settings: NodeSettings, client: Client, informers: Informers, ca: str, clock: Clock) -> list[Runnable]:
    """What keeps the objects of every control plane in order."""
    patience = NodeLifecycleSettings(
        grace=settings.controllers.node_grace_seconds, eviction=settings.controllers.pod_eviction_seconds
    )
    # Kubernetes' names: people look for them in the column From of a description.
    told = {
        name: EventRecorder(client, f"{name}-controller", clock=clock)
        for name in (
            "replicaset",
            "deployment",
            "job",
            "cronjob",
            "node",
            "domain",
            "clusterdomainroute",
            "domainroute",
            "kusciajob",
            "kusciatask",
        )
    }
    return [
        *told.values(),
        gc.GarbageCollector(client, clock=clock),
        namespace.make(client, informers, clock=clock),
        crd.make(client, informers, clock=clock),
        serviceaccount.make(client, informers, clock=clock),
        rootca.make(client, informers, ca, clock=clock),
        quota.make(client, informers, clock=clock),
        clusterrole_aggregation.make(client, informers, clock=clock),
        replicaset.make(client, informers, events=told["replicaset"], clock=clock),
        deployment.make(client, informers, events=told["deployment"], clock=clock),
        job.make(client, informers, events=told["job"], clock=clock),
        cronjob.make(client, informers, events=told["job"], clock=clock),
        endpoints.make(client, informers, clock=clock),
        endpointslice.make(client, informers, clock=clock),
        nodelifecycle.make(client, informers, events=told["node"], settings=patience, clock=clock),
        podgc.make(client, informers, clock=clock),
        domain.make(client, informers, control_plane=settings.domain, events=told["domain"], clock=clock),
        clusterdomainroute.make(
            client, informers, control_plane=settings.domain, events=told["clusterdomainroute"], clock=clock
        ),
        domainroute.make(client, informers, events=told["domainroute"], clock=clock),
        gateway.make(client, informers, clock=clock),
        kusciajob.make(
            client,
            informers,
            approve=settings.workload_approve,
            retention=settings.job_gc_hours * 3600.0,
            events=told["kusciajob"],
            clock=clock,
        ),
        kusciatask.make(
            client,
            informers,
            ports=PortRange(*settings.controllers.port_range),
            events=told["kusciatask"],
            clock=clock,
        ),
        taskresourcegroup.make(client, informers, clock=clock),
    ]
