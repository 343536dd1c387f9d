"""The roles and bindings every server begins with, as Kubernetes users know them, and how they are kept up to date.

Written as lines `verbs | group | resources [| names]` or `verbs | URLs`, because fifty YAML documents hide what a page
of lines shows. `admin`, `edit` and `view` hold nothing themselves: they are the sum of roles with a label, so that
whoever adds a kind also says who may see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.apiserver.auth.rules import GROUP, compile_rule, compile_rules, covers

Object = Mapping[str, Any]
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

_SHORTHANDS = {
    "READ": "get list watch",
    "WRITE": "create delete deletecollection patch update",
    "ALL": "create delete deletecollection get list patch update watch",
    "EVENTS": "create patch update",
    "core": "",
}

_HEALTH = "/healthz /livez /readyz /version /version/"
_LEASE = "create get list update watch | coordination.k8s.io | leases"
_EMIT = ("EVENTS | core | events", "EVENTS | events.k8s.io | events")

_ROLES: dict[str, Sequence[str]] = {
    "cluster-admin": ("* | * | *", "* | URL | *"),
    "system:discovery": (f"get | URL | {_HEALTH} /api /api/* /apis /apis/* /openapi /openapi/*",),
    "system:public-info-viewer": (f"get | URL | {_HEALTH}",),
    "system:monitoring": (
        "get | URL | /healthz /healthz/* /livez /livez/* /readyz /readyz/* /metrics /metrics/slis /statusz /flagz",
    ),
    "system:basic-user": (
        "create | authorization.k8s.io | selfsubjectaccessreviews selfsubjectrulesreviews",
        "create | authentication.k8s.io | selfsubjectreviews",
    ),
    "system:auth-delegator": (
        "create | authentication.k8s.io | tokenreviews",
        "create | authorization.k8s.io | subjectaccessreviews",
    ),
    "system:service-account-issuer-discovery": (
        "get | URL | /.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
    ),
    "system:node": (
        "create | authentication.k8s.io | tokenreviews",
        "create | authorization.k8s.io | localsubjectaccessreviews subjectaccessreviews",
        "READ | core | services",
        "create get list watch delete patch update | core | nodes",
        "get patch update | core | nodes/status",
        *_EMIT,
        "READ | core | pods",
        "delete | core | pods",
        "patch update | core | pods/status",
        "create | core | pods/eviction",
        "READ | core | configmaps secrets",
        "READ | core | persistentvolumeclaims persistentvolumes",
        # Kubernetes lets nodes read slices only; our nodes have a DNS server, which reads the older kind.
        "READ | core | endpoints",
        "create get list watch | certificates.k8s.io | certificatesigningrequests",
        "create delete get patch update | coordination.k8s.io | leases",
        "create | core | serviceaccounts/token",
        "READ | discovery.k8s.io | endpointslices",
        # Nodes enforce NetworkPolicies, which select by the labels of namespaces too.
        "READ | core | namespaces",
        "READ | networking.k8s.io | networkpolicies",
        # And resolve the names of Dns objects.
        "READ | coterie.io | dnses",
    ),
    "system:node-bootstrapper": ("create get list watch | certificates.k8s.io | certificatesigningrequests",),
    "system:node-problem-detector": ("get | core | nodes", "patch | core | nodes/status", *_EMIT),
    "system:node-proxier": (
        "list watch | core | endpoints services",
        "get list watch | core | nodes",
        "list watch | discovery.k8s.io | endpointslices",
        "list watch | networking.k8s.io | servicecidrs",
        *_EMIT,
    ),
    "system:kubelet-api-admin": (
        "get list watch proxy | core | nodes",
        "* | core | nodes/log nodes/metrics nodes/proxy nodes/stats",
    ),
    "system:kube-aggregator": ("READ | core | endpoints services",),
    "system:kube-dns": ("list watch | core | endpoints services", "list watch | discovery.k8s.io | endpointslices"),
    **{
        f"system:certificates.k8s.io:certificatesigningrequests:{each}": (
            f"create | certificates.k8s.io | certificatesigningrequests/{each}",
        )
        for each in ("nodeclient", "selfnodeclient")
    },
    **{
        f"system:certificates.k8s.io:{each}-approver": (
            f"approve | certificates.k8s.io | signers | kubernetes.io/{each}",
        )
        for each in ("kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown")
    },
    "system:persistent-volume-provisioner": (
        "create delete get list watch | core | persistentvolumes",
        "get list update watch | core | persistentvolumeclaims",
        "READ | storage.k8s.io | storageclasses",
        "watch | core | events",
        *_EMIT,
    ),
    "system:volume-scheduler": (
        "get list patch update watch | core | persistentvolumes",
        "READ | storage.k8s.io | storageclasses",
        "get list patch update watch | core | persistentvolumeclaims",
    ),
    "system:kube-scheduler": (
        *_EMIT,
        _LEASE,
        "get update | coordination.k8s.io | leases | kube-scheduler",
        "READ | core | nodes namespaces",
        "delete get list watch | core | pods",
        "create | core | bindings pods/binding",
        "patch update | core | pods/status",
        "READ | core | replicationcontrollers services",
        "READ | apps | replicasets statefulsets",
        "READ | policy | poddisruptionbudgets",
        "READ | core | persistentvolumeclaims persistentvolumes",
        "READ | storage.k8s.io | csidrivers csinodes csistoragecapacities storageclasses volumeattachments",
        "READ | resource.k8s.io | deviceclasses resourceslices",
        "get list patch update watch | resource.k8s.io | resourceclaims resourceclaims/status",
        "create delete | resource.k8s.io | resourceclaims",
        "create | authentication.k8s.io | tokenreviews",
        "create | authorization.k8s.io | subjectaccessreviews",
    ),
    "system:kube-controller-manager": (
        *_EMIT,
        _LEASE,
        "get update | coordination.k8s.io | leases | kube-controller-manager",
        "create | core | secrets serviceaccounts",
        "delete | core | secrets",
        "get | core | configmaps namespaces secrets serviceaccounts",
        "update | core | secrets serviceaccounts",
        "create | authentication.k8s.io | tokenreviews",
        "create | authorization.k8s.io | subjectaccessreviews",
        "list watch | * | *",
        "create | core | serviceaccounts/token",
    ),
}

_APPS = "daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale"
_APPS_SEEN = f"controllerrevisions {_APPS} daemonsets/status deployments/status replicasets/status statefulsets/status"
_CORE_VIEW = (
    "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
    "replicationcontrollers/scale serviceaccounts services services/status"
)
_CORE_SEEN = (
    "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas "
    "resourcequotas/status"
)

_AGGREGATED: dict[tuple[str, str], Sequence[str]] = {
    ("system:aggregate-to-view", "view"): (
        f"READ | core | {_CORE_VIEW}",
        f"READ | core | {_CORE_SEEN}",
        "READ | core | namespaces podtemplates",
        "READ | discovery.k8s.io | endpointslices",
        f"READ | apps | {_APPS_SEEN}",
        "READ | autoscaling | horizontalpodautoscalers horizontalpodautoscalers/status",
        "READ | batch | cronjobs cronjobs/status jobs jobs/status",
        "READ | metrics.k8s.io | nodes pods",
        "READ | policy | poddisruptionbudgets poddisruptionbudgets/status",
        "READ | networking.k8s.io | ingresses ingresses/status networkpolicies",
        "READ | events.k8s.io | events",
        "READ | resource.k8s.io | resourceclaims resourceclaims/status resourceclaimtemplates",
    ),
    ("system:aggregate-to-edit", "edit"): (
        "READ | core | pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy",
        "impersonate | core | serviceaccounts",
        "WRITE | core | pods pods/attach pods/exec pods/portforward pods/proxy podtemplates",
        "create | core | pods/eviction",
        "WRITE | core | configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale "
        "secrets serviceaccounts services services/proxy",
        "create | core | serviceaccounts/token",
        f"WRITE | apps | {_APPS} deployments/rollback",
        "WRITE | autoscaling | horizontalpodautoscalers",
        "WRITE | batch | cronjobs jobs",
        "WRITE | policy | poddisruptionbudgets",
        "WRITE | networking.k8s.io | ingresses networkpolicies",
        "WRITE | resource.k8s.io | resourceclaims resourceclaimtemplates",
        "ALL | coordination.k8s.io | leases",
    ),
    ("system:aggregate-to-admin", "admin"): (
        "create | authorization.k8s.io | localsubjectaccessreviews",
        f"ALL | {GROUP} | rolebindings roles",
    ),
}

_SUMS = {"view": ("view",), "edit": ("edit", "view"), "admin": ("admin", "edit", "view")}

_BINDINGS: dict[str, tuple[str, ...]] = {
    "cluster-admin": ("Group system:masters",),
    "system:discovery": ("Group system:authenticated",),
    "system:basic-user": ("Group system:authenticated",),
    "system:public-info-viewer": ("Group system:authenticated", "Group system:unauthenticated"),
    "system:monitoring": ("Group system:monitoring",),
    "system:service-account-issuer-discovery": ("Group system:serviceaccounts",),
    # Nobody: which of this a node may do depends on whose it is, and that the node authorizer knows (`auth/nodes.py`).
    "system:node": (),
    "system:node-bootstrapper": ("Group system:bootstrappers",),
    # A node renews its own certificate. New nodes (`nodeclient`) are approved by people unless an operator binds that role.
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": ("Group system:nodes",),
    "system:node-proxier": ("User system:kube-proxy",),
    "system:kube-dns": ("ServiceAccount kube-system/kube-dns",),
    "system:kube-scheduler": ("User system:kube-scheduler",),
    "system:volume-scheduler": ("User system:kube-scheduler",),
    "system:kube-controller-manager": ("User system:kube-controller-manager",),
}

_NAMESPACED: dict[tuple[str, str], tuple[str, Sequence[str], tuple[str, ...]]] = {
    ("kube-system", "extension-apiserver-authentication-reader"): (
        "system::extension-apiserver-authentication-reader",
        ("READ | core | configmaps | extension-apiserver-authentication",),
        ("User system:kube-controller-manager", "User system:kube-scheduler"),
    ),
}
"""(namespace, name of the Role): name of its RoleBinding, rules, subjects."""


@dataclass(frozen=True, slots=True)
class RoleRules:
    """Default roles of a product, in the notation of this module."""

    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    aggregated: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """(name of the role, `view`, `edit` or `admin`): rules that are added to that role."""
    exact: frozenset[str] = frozenset()
    """Roles whose rules are overwritten at start: rules of an older version are revoked."""


def parse_rule(line: str) -> dict[str, list[str]]:
    """`READ | apps | deployments | names...` or `get | URL | /path ...` as a PolicyRule."""
    verbs, group, things, *names = (part.strip() for part in line.split("|"))
    rule: dict[str, list[str]] = {"verbs": _SHORTHANDS.get(verbs, verbs).split()}
    if group == "URL":
        rule["nonResourceURLs"] = things.split()
        return rule
    rule["apiGroups"] = [_SHORTHANDS.get(group, group)]
    rule["resources"] = things.split()
    if names:
        rule["resourceNames"] = names[0].split()
    return rule


_REVOKED = {"system:node": ("Group system:nodes",)}
"""Subjects that an older version bound."""


def rules_of(role: str) -> list[dict[str, list[str]]]:
    """The rules a default role begins with."""
    return [parse_rule(line) for line in _ROLES[role]]


def default_objects(extensions: Sequence[RoleRules] = ()) -> list[dict[str, Any]]:
    """All default roles and bindings; sums are already added up, so that they hold from the start."""
    plain, aggregated = dict(_ROLES), dict(_AGGREGATED)
    for extension in extensions:
        plain.update(extension.roles)
        aggregated.update(extension.aggregated)
    roles = [_role(name, [parse_rule(line) for line in lines]) for name, lines in plain.items()]
    pieces: dict[str, list[dict[str, list[str]]]] = {target: [] for target in _SUMS}
    for (name, target), lines in sorted(aggregated.items()):
        rules = [parse_rule(line) for line in lines]
        pieces[target] += rules
        labels = {f"{_AGGREGATE}{target}": "true"}
        roles.append(_role(name, rules, labels))
    for name, targets in _SUMS.items():
        role = _role(name, _unique(rule for target in targets for rule in pieces[target]))
        role["aggregationRule"] = {
            "clusterRoleSelectors": [{"matchLabels": {f"{_AGGREGATE}{target}": "true"}} for target in targets]
        }
        roles.append(role)
    bindings = [_binding(name, subjects) for name, subjects in _BINDINGS.items()]
    return sorted(roles, key=_name) + sorted(bindings, key=_name) + _namespaced_objects()


def _namespaced_objects() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for (namespace, name), (binding_name, lines, subjects) in _NAMESPACED.items():
        role = {**_role(name, [parse_rule(line) for line in lines]), "kind": "Role"}
        binding = {**_binding(binding_name, subjects), "kind": "RoleBinding"}
        binding["roleRef"] = {"apiGroup": GROUP, "kind": "Role", "name": name}
        for each in (role, binding):
            each["metadata"]["namespace"] = namespace
            out.append(each)
    return out


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _unique(rules: Any) -> list[dict[str, list[str]]]:
    out: list[dict[str, list[str]]] = []
    for rule in rules:
        if rule not in out:
            out.append(rule)
    return out


def _metadata(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "labels": {**_LABELS, **(labels or {})}, "annotations": {AUTOUPDATE: "true"}}


def _role(name: str, rules: Sequence[dict[str, list[str]]], labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": _metadata(name, labels),
        "rules": list(rules),
    }


def _binding(name: str, subjects: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": _metadata(name),
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [_subject(text) for text in subjects],
    }


def _subject(text: str) -> dict[str, str]:
    kind, name = text.split(" ")
    if kind == "ServiceAccount":
        namespace, name = name.split("/")
        return {"kind": kind, "name": name, "namespace": namespace}
    return {"apiGroup": GROUP, "kind": kind, "name": name}


def reconcile(existing: Object | None, default: Object, exact: frozenset[str] = frozenset()) -> dict[str, Any] | None:
    """What must be written so that `existing` holds at least what `default` says; None: nothing.

    `exact`: roles whose rules are overwritten, so that rules of an older version are revoked.
    What people added stays. `autoupdate: "false"` on the existing object keeps our hands off it.
    """
    if existing is None:
        return dict(default)
    meta = existing["metadata"]
    if (meta.get("annotations") or {}).get(AUTOUPDATE) == "false":
        return None
    wanted: dict[str, Any] = {**existing, "metadata": dict(meta)}
    for key in ("labels", "annotations"):
        wanted["metadata"][key] = {**default["metadata"].get(key, {}), **(meta.get(key) or {})}
    if default["kind"] in ("ClusterRole", "Role"):
        _add_rules(wanted, existing, default, exact)
    elif existing.get("roleRef") == default["roleRef"]:
        revoked = [_subject(text) for text in _REVOKED.get(meta["name"], ())]
        present = [each for each in existing.get("subjects") or () if each not in revoked]
        wanted["subjects"] = present + [each for each in default["subjects"] if each not in present]
    else:
        # A role reference cannot be changed in place; somebody chose another one on purpose.
        return None
    return None if wanted == existing else wanted


def _add_rules(wanted: dict[str, Any], existing: Object, default: Object, exact: frozenset[str]) -> None:
    if "aggregationRule" in default:
        # The rules of a sum belong to the controller that adds them up.
        wanted.setdefault("aggregationRule", default["aggregationRule"])
        return
    if default["metadata"]["name"] in exact:
        wanted["rules"] = default["rules"]
        return
    present = list(existing.get("rules") or ())
    held = compile_rules(present)
    missing = [rule for rule in default["rules"] if covers(held, compile_rule(rule))]
    if missing:
        wanted["rules"] = present + missing
