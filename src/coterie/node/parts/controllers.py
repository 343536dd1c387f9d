"""The controllers of a control plane: the platform's and Kuscia's registries, and what they need of this node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.gpujobs.registry import CONTROLLERS as GPU_JOBS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control import registry
from coterie.kube.control.manager import Runnable
from coterie.kube.controllers.registry import CONTROLLERS as PLATFORM
from coterie.kube.scheduler.metrics import SchedulerSource
from coterie.kuscia.api import labels
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder
from coterie.kuscia.control.job_evidence import JobEvidence
from coterie.kuscia.control.job_metrics import JobMetrics
from coterie.kuscia.control.port_pool import PortPool, PortRange
from coterie.kuscia.control.task_witnesses import TaskWitnesses
from coterie.kuscia.controllers.registry import CONTROLLERS as KUSCIA
from coterie.node import api_identity
from coterie.node.api_addresses import certificate_names
from coterie.node.config import NodeSettings

if TYPE_CHECKING:
    from coterie.base import pki
    from coterie.gpujobs import controller as gpu_jobs
    from coterie.kube.controllers.nodeipam import plan as nodeipam
    from coterie.kube.controllers.nodelifecycle import plan as nodelifecycle
    from coterie.kuscia.control import deployment_scaling, partner_quotas
    from coterie.kuscia.controllers.domaindatagc import plan as domaindatagc
    from coterie.kuscia.controllers.domaindatagrant import controller as domaindatagrant
    from coterie.kuscia.gangs import plugin as gangs
    from coterie.kuscia.identity import domain_identity
else:
    pki = lazy_import("coterie.base.pki")
    gpu_jobs = lazy_import("coterie.gpujobs.controller")
    nodeipam = lazy_import("coterie.kube.controllers.nodeipam.plan")
    nodelifecycle = lazy_import("coterie.kube.controllers.nodelifecycle.plan")
    deployment_scaling = lazy_import("coterie.kuscia.control.deployment_scaling")
    partner_quotas = lazy_import("coterie.kuscia.control.partner_quotas")
    domaindatagc = lazy_import("coterie.kuscia.controllers.domaindatagc.plan")
    domaindatagrant = lazy_import("coterie.kuscia.controllers.domaindatagrant.controller")
    gangs = lazy_import("coterie.kuscia.gangs.plugin")
    domain_identity = lazy_import("coterie.kuscia.identity.domain_identity")


@dataclass(frozen=True, slots=True)
class ControllerCounts:
    """What controllers count, for the page of metrics."""

    jobs: JobMetrics = field(default_factory=JobMetrics)
    scheduler: SchedulerSource = field(default_factory=SchedulerSource)


@dataclass(frozen=True, slots=True)
class Recording:
    """What the controllers write evidence with; None where nothing is recorded."""

    recorder: EvidenceRecorder | None = None
    jobs: JobEvidence | None = None
    witnesses: TaskWitnesses | None = None


def controllers(
    settings: NodeSettings,
    client: Client,
    informers: Informers,
    ca: str,
    clock: Clock,
    counts: ControllerCounts | None = None,
    *,
    recording: Recording | None = None,
    specs: Sequence[registry.ControllerSpec] = (*PLATFORM, *KUSCIA, *GPU_JOBS),
) -> list[Runnable]:
    """`ca`: the API's authority, PEM. `recording`: None: nothing is recorded."""
    if settings.workload_approve is False:
        words = "enableWorkloadApprove: false: workloads of partners without a PartnerPolicy are accepted, as in Kuscia"
        logger("node").warning(words, advice="remove the line, and `coterie policy allow PARTNER` where it is wanted")
    given = provided(settings, informers, ca, counts, recording=recording)
    return registry.build(specs, client, informers, given, clock)


def provided(
    settings: NodeSettings,
    informers: Informers,
    ca: str,
    counts: ControllerCounts | None = None,
    *,
    recording: Recording | None = None,
) -> registry.Provided:
    """What controllers ask for by name. The port pool is one for all: it follows pods from the start."""
    chosen = settings.controllers
    counted = counts or ControllerCounts()
    records = recording or Recording()
    ports = PortPool(PortRange(*chosen.port_range), informers=informers)
    quotas = cache(lambda: partner_quotas.PartnerQuotas(informers))
    given: dict[str, Callable[[], Any]] = {
        "root_ca": lambda: ca,
        "control_plane": lambda: settings.domain,
        "installed_roles": lambda: bool(settings.api.kubeconfig),
        "grant_signer": lambda: domaindatagrant.GrantSigner(
            settings.domain, cache(lambda: domain_identity.load(settings.paths, settings.domain).key)
        ),
        "port_pool": lambda: ports,
        "pod_hook": lambda: ports,
        "partner_quotas": quotas,
        "scale_hook": lambda: deployment_scaling.PartnerScaleHook(informers, quotas()),
        "scheduler_plugins": lambda: [gangs.GangPlugin()],
        "scheduler_metrics": lambda: counted.scheduler,
        "kuscia_scheduler": lambda: (labels.KUSCIA_SCHEDULER,),
        "evidence": lambda: records.recorder,
        "job_metrics": lambda: counted.jobs,
        "job_evidence": lambda: records.jobs,
        "witnesses": lambda: records.witnesses,
        "workload_approve": lambda: settings.workload_approve,
        "stall_seconds": lambda: chosen.stall_seconds,
        "job_retention": lambda: settings.job_gc_hours * 3600.0,
        "interconn": lambda: settings.gateway.enabled,
        "autoscaler_period": lambda: float(chosen.autoscaler_seconds),
        "node_lifecycle": cache(
            lambda: nodelifecycle.Settings(grace=chosen.node_grace_seconds, eviction=chosen.pod_eviction_seconds)
        ),
        "node_ipam": cache(lambda: _node_ipam(settings)),
        "gpu_jobs": lambda: gpu_jobs.GpuJobSettings(
            settings.paths.run / "gpujobs",
            local_user=chosen.local_slurm_user,
            domain=settings.domain,
            data_directory=settings.paths.data,
        ),
        "certificate_authority": lambda: lambda: _certificate_authority(settings),
        "api_names": lambda: _api_names(settings),
    }
    hours = settings.data_gc_hours
    if hours is not None:
        given["domaindata_gc"] = lambda: domaindatagc.Settings(retention=hours * 3600.0)
    return given


def _certificate_authority(settings: NodeSettings) -> pki.Authority:
    """The API's own; its key is read when something is to be signed."""
    where = settings.paths.pki
    return pki.Authority(
        pki.load_certificate((where / "ca.crt").read_bytes()), pki.load_key((where / "ca.key").read_bytes())
    )


def _api_names(settings: NodeSettings) -> tuple[str, ...]:
    """Names that no certificate of a node has: those of the API server, and addresses of Services."""
    names = certificate_names(settings.api, settings.agent)
    return (*api_identity.SERVICE_NAMES, *names, settings.network.service_cidr)


def _node_ipam(settings: NodeSettings) -> nodeipam.Settings:
    """The range of the control plane's own node is for nobody else, even before that node has registered."""
    network, own = settings.network, settings.agent
    return nodeipam.Settings(
        ranges=(nodeipam.ClusterRange.of(network.pod_cidr, network.node_mask_size),),
        reserved={own.node_name: own.pod_cidr} if own is not None else {},
    )
