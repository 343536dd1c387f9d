"""The objects a domain has around it: namespace, accounts, quota, its route to the control plane. Pure.

    object                                    self                    partner
    Namespace D                               yes                     yes: a mirror
    ServiceAccount, Role, RoleBinding D       own namespace, broadly  own namespace: mirrored kinds, nothing else
    ClusterRoleBinding D                      domain-cluster-res      never
    ConfigMap domain-config                   yes                     no
    ResourceQuota resource-limitation         if podMaxCount is set   no
    ClusterDomainRoute D-<control plane>      if authCenter is set    if authCenter is set and it is its own master

A partner that lives under a foreign master (a partner lite) never calls us itself: its master does. It gets neither
accounts nor a route.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES, RESOURCE_QUOTAS, SERVICE_ACCOUNTS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.api.domain_ownership import is_partner_lite
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.labels import KUSCIA_DELETED, KUSCIA_DOMAIN_NAME, KUSCIA_INTERCONN_PROTOCOLS, KUSCIA_ROLE
from coterie.kuscia.api.types.domain import (
    BFIA_PROTOCOL,
    CLUSTER_DOMAIN_ROUTES,
    DOMAIN_CONFIG,
    DOMAINS,
    GROUP,
    KUSCIA_PROTOCOL,
    RSA_GEN,
    TOKEN,
    UID_RSA_GEN,
    Domain,
)

_RBAC = "rbac.authorization.k8s.io"
NAMESPACE = NAMESPACES.as_dynamic
ROLE = Kind.dynamic(builtin("roles", _RBAC))
ROLE_BINDING = Kind.dynamic(builtin("rolebindings", _RBAC))
CLUSTER_ROLE_BINDING = Kind.dynamic(builtin("clusterrolebindings", _RBAC))
SERVICE_ACCOUNT = SERVICE_ACCOUNTS.as_dynamic
CONFIG_MAP = CONFIG_MAPS.as_dynamic
QUOTA = RESOURCE_QUOTAS.as_dynamic
ROUTE = CLUSTER_DOMAIN_ROUTES.as_dynamic

CLUSTER_ROLE = "domain-cluster-res"
SELF_ROLE, PARTNER_ROLE = "coterie:domain", "coterie:partner"
"""ClusterRoles with the rules of domains, on clusters where they are installed beforehand (`INSTALLED_ROLES`)."""
RESOURCE_LIMITATION = "resource-limitation"
ROLLING_PERIOD = 86400

_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "patch", "update"]


@dataclass(frozen=True, slots=True)
class DesiredObject:
    kind: Kind[Object]
    object: Object

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"].get("namespace", ""))


def namespace_labels(domain: Domain) -> dict[str, str | None]:
    """As a patch: None removes what does not belong there (any more)."""
    return {
        KUSCIA_DOMAIN_NAME: domain.metadata.name,
        KUSCIA_ROLE: domain.spec.role or None,
        KUSCIA_INTERCONN_PROTOCOLS: domain.protocol or None,
        KUSCIA_DELETED: None,
    }


def accounts(domain: Domain, control_plane: str, *, installed_roles: bool = False) -> Iterator[DesiredObject]:
    """What the domain may do at this API, and as whom. `installed_roles`: the rules are in ClusterRoles that somebody else
    made (`INSTALLED_ROLES`), since who may write rules may give itself any."""
    if is_partner_lite(domain):
        return
    name = domain.metadata.name
    meta, cluster_meta = _owned(domain, name), _owned(domain)
    if name == control_plane:
        # The collector would take what belongs to a Domain that was deleted by mistake.
        del meta["ownerReferences"], cluster_meta["ownerReferences"]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": name}
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    yield DesiredObject(SERVICE_ACCOUNT, {"metadata": meta})
    if installed_roles:
        reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": PARTNER_ROLE if domain.partner else SELF_ROLE}
    else:
        yield DesiredObject(ROLE, {"metadata": meta, "rules": PARTNER_RULES if domain.partner else SELF_RULES})
    yield DesiredObject(ROLE_BINDING, {"metadata": meta, "roleRef": reference, "subjects": [subject]})
    if not domain.partner:
        cluster = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": CLUSTER_ROLE}
        yield DesiredObject(CLUSTER_ROLE_BINDING, {"metadata": cluster_meta, "roleRef": cluster, "subjects": [subject]})


def namespace_objects(domain: Domain) -> Iterator[DesiredObject]:
    """What else lies in the namespace of a domain of ours."""
    if domain.partner:
        return
    name = domain.metadata.name
    quota = domain.spec.resource_quota
    if quota is not None and quota.pod_max_count is not None:
        meta = {"name": RESOURCE_LIMITATION, "namespace": name, "labels": {KUSCIA_DOMAIN_NAME: name}}
        yield DesiredObject(QUOTA, {"metadata": meta, "spec": {"hard": {"pods": str(quota.pod_max_count)}}})


def domain_config(domain: Domain) -> Object | None:
    """The map that the Config API fills: made once, never overwritten."""
    if domain.partner:
        return None
    name = domain.metadata.name
    return {"metadata": {"name": DOMAIN_CONFIG, "namespace": name, "labels": {KUSCIA_DOMAIN_NAME: name}}, "data": {}}


def route(domain: Domain, control_plane: str) -> Object | None:
    """The domain's way to this control plane: made once, then its owner's to change.

    It holds no credentials. The gateway of the control plane calls the API in the name of the source's service account.
    """
    center = domain.spec.auth_center
    if center is None or is_partner_lite(domain) or domain.metadata.name == control_plane:
        return None
    protocol = BFIA_PROTOCOL if domain.partner and domain.protocol not in ("", KUSCIA_PROTOCOL) else KUSCIA_PROTOCOL
    spec: Object = {
        "source": domain.metadata.name,
        "destination": control_plane,
        "interConnProtocol": protocol,
        "authenticationType": center.authentication_type,
    }
    if center.authentication_type == TOKEN:
        method = center.token_gen_method if center.token_gen_method in (RSA_GEN, UID_RSA_GEN) else RSA_GEN
        spec["tokenConfig"] = {"tokenGenMethod": method, "rollingUpdatePeriod": ROLLING_PERIOD}
    meta = {**_owned(domain), "name": route_name(domain.metadata.name, control_plane)}
    return {"metadata": meta, "spec": spec}


def _owned(domain: Domain, namespace: str = "") -> Object:
    resource = DOMAINS.resource
    owner = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": domain.metadata.name,
        "uid": domain.metadata.uid,
    }
    out: Object = {
        "name": domain.metadata.name,
        "labels": {KUSCIA_DOMAIN_NAME: domain.metadata.name},
        "ownerReferences": [owner],
    }
    if namespace:
        out["namespace"] = namespace
    return out


def _rule(group: str, resources: str, verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs}


SELF_RULES = [
    _rule("", "pods", [*_READ, "delete"]),
    _rule("", "pods/status", ["get", "patch", "update"]),
    _rule("", "pods/log", ["get"]),
    _rule("", "pods/eviction serviceaccounts/token", ["create"]),
    _rule("", "endpoints namespaces persistentvolumeclaims secrets services", _READ),
    _rule("discovery.k8s.io", "endpointslices", _READ),
    _rule("networking.k8s.io", "ingresses", _READ),
    _rule("networking.k8s.io", "ingresses/status", ["patch", "update"]),
    _rule("coterie.io", "dnses", _READ),
    _rule("", "configmaps", [*_READ, "patch", "update"]),
    _rule("", "events", [*_READ, "create", "patch", "update"]),
    _rule("events.k8s.io", "events", [*_READ, "create", "patch", "update"]),
    _rule("networking.k8s.io", "networkpolicies", _READ),
    _rule(GROUP, "*", _READ),
    _rule(GROUP, "domainroutes/status", ["patch", "update"]),
    _rule(
        GROUP,
        "gateways gateways/status domaindatas domaindatas/status domaindatasources domaindatasources/status "
        "domaindatagrants domaindatagrants/status domaindatarecords logrequests",
        _WRITE,
    ),
]
"""What a lite does itself: its agent runs the pods, its API shows what they printed, its gateway agrees on tokens and tells
that it lives, its data mesh keeps data, its pod network enforces NetworkPolicies. Pods, services, routes and tasks are made by the control plane, never by the lite
they are for."""

_MIRRORED = (
    "kusciajobs kusciajobsummaries kusciatasks kusciatasksummaries kusciadeployments kusciadeploymentsummaries "
    "taskresources domaindatas domaindatagrants logrequests"
)
PARTNER_RULES = [
    _rule("", "namespaces", _READ),
    _rule(GROUP, _MIRRORED, _READ + _WRITE),
    _rule(GROUP, "jobplanrequests", _READ),
    _rule(GROUP, "jobplanrequests/status", ["get", "patch", "update"]),
    _rule(
        GROUP,
        " ".join(
            f"{each}/status" for each in _MIRRORED.split() if not each.endswith("summaries") and each != "taskresources"
        ),
        ["get", "patch", "update"],
    ),
]

INSTALLED_ROLES = {SELF_ROLE: SELF_RULES, PARTNER_ROLE: PARTNER_RULES}
