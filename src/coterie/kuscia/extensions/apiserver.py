"""What Kuscia adds to the API server: its kinds, roles, the ownership of nodes by domains, trust in their agents."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from coterie.base.clock import Clock
from coterie.kube.apiserver.auth.default_roles import RoleRules
from coterie.kube.apiserver.auth.nodes import NodeOwnership
from coterie.kube.apiserver.extension import ApiServerExtension, Object
from coterie.kube.apiserver.state.state import ResourceStorage
from coterie.kuscia.api import labels
from coterie.kuscia.api.definitions import crds
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.extensions.actions import ActionAdmission, deletion_steps
from coterie.kuscia.extensions.agent_trust import DOMAINS_KEY, DomainAgents
from coterie.kuscia.extensions.app_images import PinnedEngineAdmission, pinned_deletion_steps, warn_of_image_id
from coterie.kuscia.extensions.data_sources import check_data_source
from coterie.kuscia.extensions.gpu_jobs import GpuJobUse
from coterie.kuscia.extensions.job_approvals import JobApprovalAdmission
from coterie.kuscia.extensions.kinds import STORED_ONLY
from coterie.kuscia.extensions.log_requests import LogRequestAdmission

DOMAIN_ROLE = "domain-cluster-res"
"""Kuscia's name of the ClusterRole that lets a domain's account manage the domain's nodes."""
_NODE_NAMESPACE = labels.KUSCIA_NODE_NAMESPACE


class _Definitions:
    hash_annotation = crds.HASH_ANNOTATION

    def hashes(self) -> Mapping[str, str]:
        return crds.hashes()

    def load(self, names: Collection[str]) -> Iterable[Object]:
        return crds.load(names)


_ROLES = RoleRules(
    # What a domain may do outside its own namespace: manage its nodes. Which are its own, their labels say.
    roles={DOMAIN_ROLE: ("own | core | nodes",)},
    aggregated={
        ("kuscia:aggregate-to-view", "view"): (
            f"READ | {crds.GROUP} | *",
            "READ | coterie.io | gpujobs gpujobs/status slurmclusters slurmclusters/status",
            "READ | coterie.io | actions actions/status triggers triggers/status actiongrants actiongrants/status deadletters",
        ),
        ("kuscia:aggregate-to-edit", "edit"): (
            f"WRITE | {crds.GROUP} | domainappimages domaindatas domaindatagrants domaindatasources kusciadeployments "
            "kusciajobs kusciatasks",
            "WRITE | coterie.io | gpujobs actions triggers deadletters",
            # A GpuJob runs as the SSH user of a SlurmCluster and takes data along: gpu_jobs.py.
            "use | coterie.io | slurmclusters",
            f"use | {crds.GROUP} | domaindatas",
        ),
        # An ActionGrant lets a partner in.
        ("kuscia:aggregate-to-admin", "admin"): (f"WRITE | {crds.GROUP} | *", "WRITE | coterie.io | actiongrants"),
    },
    exact=frozenset((DOMAIN_ROLE,)),
)


def apiserver_extension(agent_tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> ApiServerExtension:
    """`agent_tls`: TLS towards agents of registered domains: shows our certificate; theirs is checked by `agent_trust`."""

    def verifier(state: ResourceStorage, clock: Clock) -> DomainAgents:
        return DomainAgents(partial(state.find_collection, DOMAINS_KEY), agent_tls, clock)

    return ApiServerExtension(
        name="kuscia",
        namespaces=(CROSS_DOMAIN,),
        definitions=_Definitions(),
        roles=_ROLES,
        admission=lambda state, clock: (
            check_data_source,
            warn_of_image_id,
            PinnedEngineAdmission(state.find_collection),
            LogRequestAdmission(state.find_collection),
            JobApprovalAdmission(clock),
            ActionAdmission(state.find_collection),
        ),
        deletion=lambda state: {
            **deletion_steps(state.find_collection),
            **pinned_deletion_steps(state.find_collection),
        },
        authorization=lambda authorizer: (GpuJobUse(authorizer),),
        node_ownership=NodeOwnership(
            _NODE_NAMESPACE,
            fixed_labels=(_NODE_NAMESPACE, "domain"),
            # Whether the node takes ordinary pods is a setting of the node (`agent.taint`).
            own_taints=((labels.KUSCIA_AGENT_TAINT, labels.KUSCIA_AGENT_TAINT_VALUE, "NoSchedule"),),
        ),
        metrics_annotations=((labels.KUSCIA_METRIC_PORT, labels.KUSCIA_METRIC_PATH),),
        configmap_annotations=(labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM,),
        # Its values are encrypted for the domain; a node that joined sees which there are.
        configmaps_for_nodes=(DOMAIN_CONFIG,),
        stored_only=STORED_ONLY,
        # Deploy tokens, tokens of routes, access keys of data sources, log lines.
        sensitive_resources=tuple(
            (crds.GROUP, plural, subresource)
            for plural in ("domains", "domainroutes", "clusterdomainroutes", "domaindatasources", "logrequests")
            for subresource in ("", "status")
        ),
        agent_verifier=verifier,
    )


KUSCIA = apiserver_extension()
"""For control planes whose nodes all joined with a file."""
