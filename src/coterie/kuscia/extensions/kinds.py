"""Which of Kuscia's kinds mean something here, and which are only stored; as `kube/apiserver/stored_only.py` for Kubernetes' own."""

from __future__ import annotations

from coterie.kuscia.api.definitions.crds import GROUP

_CONTROLLERS = "coterie.kuscia.controllers"

ACTED_ON = {
    (GROUP, "AppImage"): f"{_CONTROLLERS}.kusciatask.controller",
    (GROUP, "ClusterDomainRoute"): f"{_CONTROLLERS}.clusterdomainroute.controller",
    (GROUP, "Domain"): f"{_CONTROLLERS}.domain.controller",
    (GROUP, "DomainData"): "coterie.kuscia.datamesh.grpc_server",
    (GROUP, "DomainDataGrant"): f"{_CONTROLLERS}.domaindatagrant.controller",
    (GROUP, "DomainDataRecord"): "coterie.kuscia.sources.data_records",
    (GROUP, "DomainDataSource"): "coterie.kuscia.datamesh.grpc_server",
    (GROUP, "DomainRoute"): f"{_CONTROLLERS}.domainroute.controller",
    (GROUP, "Gateway"): f"{_CONTROLLERS}.gateway.controller",
    (GROUP, "InteropConfig"): "coterie.kuscia.interconn.runnable",
    (GROUP, "JobPlanRequest"): f"{_CONTROLLERS}.jobplan.controller",
    (GROUP, "KusciaDeployment"): f"{_CONTROLLERS}.kusciadeployment.controller",
    (GROUP, "KusciaDeploymentSummary"): "coterie.kuscia.interconn.runnable",
    (GROUP, "KusciaJob"): f"{_CONTROLLERS}.kusciajob.controller",
    (GROUP, "KusciaJobSummary"): "coterie.kuscia.interconn.runnable",
    (GROUP, "KusciaTask"): f"{_CONTROLLERS}.kusciatask.controller",
    (GROUP, "KusciaTaskSummary"): "coterie.kuscia.interconn.runnable",
    (GROUP, "LogRequest"): f"{_CONTROLLERS}.logrequest.controller",
    (GROUP, "PartnerPolicy"): "coterie.kuscia.api.partner_policy",
    (GROUP, "TaskResource"): f"{_CONTROLLERS}.taskresourcegroup.controller",
    (GROUP, "TaskResourceGroup"): f"{_CONTROLLERS}.taskresourcegroup.controller",
    ("coterie.io", "Action"): "coterie.functions.controller",
    ("coterie.io", "ActionGrant"): "coterie.functions.hops.call_grants",
    ("coterie.io", "DeadLetter"): "coterie.functions.dead_letter_objects",
    ("coterie.io", "Trigger"): "coterie.functions.triggers",
    ("coterie.io", "Dns"): "coterie.kube.network.ingress.plan",
    ("coterie.io", "GpuJob"): "coterie.gpujobs.controller",
    ("coterie.io", "SlurmCluster"): "coterie.gpujobs.controller",
}
"""(group, kind): the module that acts on it."""

STORED_ONLY = {(GROUP, "DomainAppImage"): "DomainAppImage is stored only: tasks use AppImages"}
