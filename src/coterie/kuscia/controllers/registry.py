"""Kuscia's controllers: see `kube/control/registry.py`.

The node provides: `control_plane` (the domain that runs it), `installed_roles` (whether roles of domains are somebody else's), `port_pool`, `partner_quotas`, `workload_approve`, `job_retention` (seconds), `stall_seconds`,
`interconn` (whether it runs), `evidence` (EvidenceRecorder, None where nothing is recorded), `job_evidence` (JobEvidence) and `witnesses` likewise, `job_metrics`, `grant_signer` (of the domain's own grants), and `domaindata_gc` (settings) where old DomainData is to be removed.
"""

from __future__ import annotations

from coterie.kube.control.registry import ControllerSpec
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, GATEWAYS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, TASK_RESOURCE_GROUPS
from coterie.kuscia.api.types.job_plan import JOB_PLAN_REQUESTS
from coterie.kuscia.api.types.log_request import LOG_REQUESTS

_HERE = "coterie.kuscia.controllers"

CONTROLLERS = (
    ControllerSpec(
        "domain",
        f"{_HERE}.domain.controller",
        events="domain-controller",
        needs={"control_plane": "control_plane", "installed_roles": "installed_roles"},
    ),
    ControllerSpec(
        "clusterdomainroute",
        f"{_HERE}.clusterdomainroute.controller",
        wakes_for=(CLUSTER_DOMAIN_ROUTES,),
        events="clusterdomainroute-controller",
        needs={"control_plane": "control_plane"},
    ),
    ControllerSpec(
        "domainroute", f"{_HERE}.domainroute.controller", wakes_for=(DOMAIN_ROUTES,), events="domainroute-controller"
    ),
    ControllerSpec("gateway", f"{_HERE}.gateway.controller", wakes_for=(GATEWAYS,)),
    ControllerSpec(
        "kusciajob",
        f"{_HERE}.kusciajob.controller",
        wakes_for=(KUSCIA_JOBS,),
        namespace=CROSS_DOMAIN,
        events="kusciajob-controller",
        needs={
            "requires_approval": "workload_approve",
            "quotas": "partner_quotas",
            "retention": "job_retention",
            "shows": "interconn",
            "metrics": "job_metrics",
            "evidence": "job_evidence",
            "witnesses": "witnesses",
        },
    ),
    ControllerSpec(
        "kusciatask",
        f"{_HERE}.kusciatask.controller",
        wakes_for=(KUSCIA_TASKS,),
        namespace=CROSS_DOMAIN,
        events="kusciatask-controller",
        needs={
            "ports": "port_pool",
            "quotas": "partner_quotas",
            "stall_seconds": "stall_seconds",
            "metrics": "job_metrics",
        },
    ),
    ControllerSpec(
        "kusciadeployment",
        f"{_HERE}.kusciadeployment.controller",
        wakes_for=(KUSCIA_DEPLOYMENTS,),
        namespace=CROSS_DOMAIN,
        events="kusciadeployment-controller",
        needs={"requires_approval": "workload_approve", "ports": "port_pool", "quotas": "partner_quotas"},
    ),
    ControllerSpec(
        "domaindatagrant",
        f"{_HERE}.domaindatagrant.controller",
        wakes_for=(DOMAIN_DATA_GRANTS,),
        needs={"signer": "grant_signer"},
    ),
    ControllerSpec(
        "domaindatagc",
        f"{_HERE}.domaindatagc.controller",
        needs={"settings": "domaindata_gc"},
        only_with="domaindata_gc",
    ),
    ControllerSpec(
        "logrequest",
        f"{_HERE}.logrequest.controller",
        wakes_for=(LOG_REQUESTS,),
        events="logrequest-controller",
        needs={"evidence": "job_evidence"},
    ),
    ControllerSpec(
        "jobplan",
        f"{_HERE}.jobplan.controller",
        wakes_for=(JOB_PLAN_REQUESTS,),
        needs={"requires_approval": "workload_approve", "quotas": "partner_quotas"},
    ),
    ControllerSpec("taskresourcegroup", f"{_HERE}.taskresourcegroup.controller", wakes_for=(TASK_RESOURCE_GROUPS,)),
)
