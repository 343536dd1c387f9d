"""The control plane's parts: the API, what keeps its objects in order, and the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.api.types.apps import DEPLOYMENTS, REPLICA_SETS
from coterie.kube.api.types.batch import CRON_JOBS, JOBS
from coterie.kube.api.types.core import RESOURCE_QUOTAS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network import ENDPOINTS, SERVICES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.lazy_controller import Dormant
from coterie.kube.control.manager import Runnable
from coterie.kube.controllers.clusterrole_aggregation import controller as clusterrole_aggregation
from coterie.kube.controllers.crd import controller as crd
from coterie.kube.controllers.gc import controller as gc
from coterie.kube.controllers.namespace import controller as namespace
from coterie.kube.controllers.rootca import controller as rootca
from coterie.kube.controllers.serviceaccount import controller as serviceaccount
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, GATEWAYS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, TASK_RESOURCE_GROUPS
from coterie.kuscia.control.port_pool import PortPool, PortRange
from coterie.kuscia.controllers.domain import controller as domain
from coterie.kuscia.engine.builtin_appimages import engines_known
from coterie.node.config import NodeSettings
from coterie.node.parts.apiserver import ApiPlane
from coterie.node.parts.own_domain import own_domain

if TYPE_CHECKING:
    from coterie.kube.controllers.cronjob import controller as cronjob
    from coterie.kube.controllers.deployment import controller as deployment
    from coterie.kube.controllers.endpoints import controller as endpoints
    from coterie.kube.controllers.endpointslice import controller as endpointslice
    from coterie.kube.controllers.job import controller as job
    from coterie.kube.controllers.nodelifecycle import controller as nodelifecycle
    from coterie.kube.controllers.nodelifecycle import plan as nodeplan
    from coterie.kube.controllers.podgc import controller as podgc
    from coterie.kube.controllers.quota import controller as quota
    from coterie.kube.controllers.replicaset import controller as replicaset
    from coterie.kube.scheduler import scheduler
    from coterie.kuscia.controllers.clusterdomainroute import controller as clusterdomainroute
    from coterie.kuscia.controllers.domaindatagrant import controller as domaindatagrant
    from coterie.kuscia.controllers.domainroute import controller as domainroute
    from coterie.kuscia.controllers.gateway import controller as gateway
    from coterie.kuscia.controllers.kusciadeployment import controller as kusciadeployment
    from coterie.kuscia.controllers.kusciajob import controller as kusciajob
    from coterie.kuscia.controllers.kusciatask import controller as kusciatask
    from coterie.kuscia.controllers.taskresourcegroup import controller as taskresourcegroup
else:
    # Loaded when there is something for them to do (kube/control/lazy_controller.py).
    clusterdomainroute = lazy_import("coterie.kuscia.controllers.clusterdomainroute.controller")
    cronjob = lazy_import("coterie.kube.controllers.cronjob.controller")
    deployment = lazy_import("coterie.kube.controllers.deployment.controller")
    domaindatagrant = lazy_import("coterie.kuscia.controllers.domaindatagrant.controller")
    domainroute = lazy_import("coterie.kuscia.controllers.domainroute.controller")
    endpoints = lazy_import("coterie.kube.controllers.endpoints.controller")
    endpointslice = lazy_import("coterie.kube.controllers.endpointslice.controller")
    gateway = lazy_import("coterie.kuscia.controllers.gateway.controller")
    job = lazy_import("coterie.kube.controllers.job.controller")
    kusciadeployment = lazy_import("coterie.kuscia.controllers.kusciadeployment.controller")
    kusciajob = lazy_import("coterie.kuscia.controllers.kusciajob.controller")
    kusciatask = lazy_import("coterie.kuscia.controllers.kusciatask.controller")
    nodelifecycle = lazy_import("coterie.kube.controllers.nodelifecycle.controller")
    nodeplan = lazy_import("coterie.kube.controllers.nodelifecycle.plan")
    podgc = lazy_import("coterie.kube.controllers.podgc.controller")
    quota = lazy_import("coterie.kube.controllers.quota.controller")
    replicaset = lazy_import("coterie.kube.controllers.replicaset.controller")
    taskresourcegroup = lazy_import("coterie.kuscia.controllers.taskresourcegroup.controller")
    scheduler = lazy_import("coterie.kube.scheduler.scheduler")

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
            requires_approval=settings.workload_approve,
            retention=settings.job_gc_hours * 3600.0,
        ),
        sleeper("kusciatask", (KUSCIA_TASKS,), lambda: kusciatask.make, "kusciatask", ports=ports),
        sleeper(
            "kusciadeployment", (KUSCIA_DEPLOYMENTS,), lambda: kusciadeployment.make, "kusciadeployment", ports=ports
        ),
        sleeper("domaindatagrant", (DOMAIN_DATA_GRANTS,), lambda: domaindatagrant.make),
        sleeper("taskresourcegroup", (TASK_RESOURCE_GROUPS,), lambda: taskresourcegroup.make),
    ]
