"""The control plane's parts: the API, what keeps its objects in order, and the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.api.types.apps import DEPLOYMENTS, REPLICA_SETS
from coterie.api.types.batch import CRON_JOBS, JOBS
from coterie.api.types.core import RESOURCE_QUOTAS
from coterie.api.types.kind import Kind
from coterie.api.types.kuscia_data import DOMAIN_DATA_GRANTS
from coterie.api.types.kuscia_deployment import KUSCIA_DEPLOYMENTS
from coterie.api.types.kuscia_domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, GATEWAYS
from coterie.api.types.kuscia_job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, TASK_RESOURCE_GROUPS
from coterie.api.types.network import ENDPOINTS, SERVICES
from coterie.api.types.nodes import NODES
from coterie.api.types.pods import PODS
from coterie.base.clock import Clock
from coterie.base.later import later
from coterie.client.client import Client
from coterie.client.informers import Informers
from coterie.control.dormant import Dormant
from coterie.control.events import EventRecorder
from coterie.control.manager import Runnable
from coterie.control.ports import PortPool, PortRange
from coterie.controllers.clusterrole_aggregation import controller as clusterrole_aggregation
from coterie.controllers.crd import controller as crd
from coterie.controllers.domain import controller as domain
from coterie.controllers.gc import controller as gc
from coterie.controllers.namespace import controller as namespace
from coterie.controllers.rootca import controller as rootca
from coterie.controllers.serviceaccount import controller as serviceaccount
from coterie.engines.catalogue import engines_known
from coterie.node.config import NodeSettings
from coterie.node.owndomain import own_domain
from coterie.node.plane import ApiPlane

if TYPE_CHECKING:
    from coterie.controllers.clusterdomainroute import controller as clusterdomainroute
    from coterie.controllers.cronjob import controller as cronjob
    from coterie.controllers.deployment import controller as deployment
    from coterie.controllers.domaindatagrant import controller as domaindatagrant
    from coterie.controllers.domainroute import controller as domainroute
    from coterie.controllers.endpoints import controller as endpoints
    from coterie.controllers.endpointslice import controller as endpointslice
    from coterie.controllers.gateway import controller as gateway
    from coterie.controllers.job import controller as job
    from coterie.controllers.kusciadeployment import controller as kusciadeployment
    from coterie.controllers.kusciajob import controller as kusciajob
    from coterie.controllers.kusciatask import controller as kusciatask
    from coterie.controllers.nodelifecycle import controller as nodelifecycle
    from coterie.controllers.nodelifecycle import plan as nodeplan
    from coterie.controllers.podgc import controller as podgc
    from coterie.controllers.quota import controller as quota
    from coterie.controllers.replicaset import controller as replicaset
    from coterie.controllers.taskresourcegroup import controller as taskresourcegroup
    from coterie.scheduler import runnable as scheduler
else:
    # Loaded when there is something for them to do (control/dormant.py).
    clusterdomainroute = later("coterie.controllers.clusterdomainroute.controller")
    cronjob = later("coterie.controllers.cronjob.controller")
    deployment = later("coterie.controllers.deployment.controller")
    domaindatagrant = later("coterie.controllers.domaindatagrant.controller")
    domainroute = later("coterie.controllers.domainroute.controller")
    endpoints = later("coterie.controllers.endpoints.controller")
    endpointslice = later("coterie.controllers.endpointslice.controller")
    gateway = later("coterie.controllers.gateway.controller")
    job = later("coterie.controllers.job.controller")
    kusciadeployment = later("coterie.controllers.kusciadeployment.controller")
    kusciajob = later("coterie.controllers.kusciajob.controller")
    kusciatask = later("coterie.controllers.kusciatask.controller")
    nodelifecycle = later("coterie.controllers.nodelifecycle.controller")
    nodeplan = later("coterie.controllers.nodelifecycle.plan")
    podgc = later("coterie.controllers.podgc.controller")
    quota = later("coterie.controllers.quota.controller")
    replicaset = later("coterie.controllers.replicaset.controller")
    taskresourcegroup = later("coterie.controllers.taskresourcegroup.controller")
    scheduler = later("coterie.scheduler.runnable")

Make = Callable[..., Runnable]


def control_groups(settings: NodeSettings, clock: Clock) -> tuple[list[list[Runnable]], Client, Informers]:
    """The groups of a control plane, and the client and informers that others in this process may share."""
    plane = ApiPlane(settings, clock)
    client = plane.client()
    informers = Informers(client)
    keepers = controllers(settings, client, informers, plane.ca_pem.decode(), clock)
    first: list[Runnable] = [informers, own_domain(client, settings), engines_known(client)]
    return [[plane], first, keepers], client, informers


def controllers(settings: NodeSettings, client: Client, informers: Informers, ca: str, clock: Clock) -> list[Runnable]:
    """What keeps the objects of every control plane in order: those that always have work, then those that may sleep."""
    told = EventRecorder(client, "domain-controller", clock=clock)
    return [
        told,
        gc.GarbageCollector(client, clock=clock),
        namespace.make(client, informers, clock=clock),
        crd.make(client, informers, clock=clock),
        serviceaccount.make(client, informers, clock=clock),
        rootca.make(client, informers, ca, clock=clock),
        clusterrole_aggregation.make(client, informers, clock=clock),
        domain.make(client, informers, control_plane=settings.domain, events=told, clock=clock),
        *sleepers(settings, client, informers, clock),
    ]


def sleepers(settings: NodeSettings, client: Client, informers: Informers, clock: Clock) -> list[Runnable]:
    chosen = settings.controllers
    shared = (KUSCIA_JOBS, KUSCIA_TASKS, KUSCIA_DEPLOYMENTS)
    ports = PortPool(PortRange(*chosen.port_range), informers=informers)

    def awaken(make: Make, component: str, options: dict[str, Any]) -> Sequence[Runnable]:
        if not component:
            return [make(client, informers, clock=clock, **options)]
        # Kubernetes' names: people look for them in the column From of a description.
        told = EventRecorder(client, f"{component}-controller", clock=clock)
        return [told, make(client, informers, events=told, clock=clock, **options)]

    def sleeper(
        name: str, kinds: Sequence[Kind[Any]], make: Callable[[], Make], tells: str = "", **options: Any
    ) -> Dormant:
        wakers = [informers.get(kind, CROSS_DOMAIN if kind in shared else "") for kind in kinds]
        return Dormant(name, wakers, lambda: awaken(make(), tells, options))

    def lifecycle() -> Make:
        patience = nodeplan.Settings(grace=chosen.node_grace_seconds, eviction=chosen.pod_eviction_seconds)
        return partial(nodelifecycle.make, settings=patience)

    return [
        sleeper("scheduler", (PODS,), lambda: scheduler.make),
        sleeper("quota", (RESOURCE_QUOTAS,), lambda: quota.make),
        sleeper("replicaset", (REPLICA_SETS,), lambda: replicaset.make, "replicaset", ports=ports),
        sleeper("deployment", (DEPLOYMENTS,), lambda: deployment.make, "deployment"),
        sleeper("job", (JOBS,), lambda: job.make, "job"),
        sleeper("cronjob", (CRON_JOBS,), lambda: cronjob.make, "cronjob"),
        # Endpoints have no owner, so that those of services long gone must be looked for too.
        sleeper("endpoints", (SERVICES, ENDPOINTS), lambda: endpoints.make),
        sleeper("endpointslice", (SERVICES,), lambda: endpointslice.make),
        sleeper("nodelifecycle", (NODES,), lifecycle, "node"),
        sleeper("podgc", (PODS,), lambda: podgc.make),
        sleeper(
            "clusterdomainroute",
            (CLUSTER_DOMAIN_ROUTES,),
            lambda: clusterdomainroute.make,
            "clusterdomainroute",
            control_plane=settings.domain,
        ),
        sleeper("domainroute", (DOMAIN_ROUTES,), lambda: domainroute.make, "domainroute"),
        sleeper("gateway", (GATEWAYS,), lambda: gateway.make),
        sleeper(
            "kusciajob",
            (KUSCIA_JOBS,),
            lambda: kusciajob.make,
            "kusciajob",
            approve=settings.workload_approve,
            retention=settings.job_gc_hours * 3600.0,
        ),
        sleeper("kusciatask", (KUSCIA_TASKS,), lambda: kusciatask.make, "kusciatask", ports=ports),
        sleeper(
            "kusciadeployment", (KUSCIA_DEPLOYMENTS,), lambda: kusciadeployment.make, "kusciadeployment", ports=ports
        ),
        sleeper("domaindatagrant", (DOMAIN_DATA_GRANTS,), lambda: domaindatagrant.make),
        sleeper("taskresourcegroup", (TASK_RESOURCE_GROUPS,), lambda: taskresourcegroup.make),
    ]
