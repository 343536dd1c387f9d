"""What a Kubernetes cluster needs before a control plane of ours works with it (`apiServer.kubeconfig`). Pure.

    Namespaces                        the one of the service account, `cross-domain`
    CustomResourceDefinitions         Kuscia's kinds, and Dns
    ClusterRole coterie:controllers   what the controllers do; bound to the service account
    ClusterRoles coterie:domain, coterie:partner, domain-cluster-res
                                      what domains may do in their namespaces and with their nodes; the service account may bind
                                      exactly these, and holds neither `escalate` nor their rights
    ValidatingAdmissionPolicies       the service account writes in namespaces of domains alone; domains write their own Nodes and
                                      Leases alone
    FlowSchema                        the controllers' requests do not wait behind everybody's
    with an agent                     the namespace of its domain, rights on Nodes and on what its pods name

Rules are exact: `tests/real_kubernetes` compares them with the audit log of a kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from coterie.kube.api.meta import Object
from coterie.kube.apiserver.auth.default_roles import parse_rule
from coterie.kuscia.api.definitions import crds
from coterie.kuscia.api.labels import KUSCIA_DOMAIN_NAME, KUSCIA_NODE_NAMESPACE
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.controllers.domain.objects import CLUSTER_ROLE, INSTALLED_ROLES

NAMESPACE: Final = "coterie-system"
ACCOUNT: Final = "coterie"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "coterie-install"}
"""Label of all that is installed; `--delete` removes what carries it."""
CONTROLLERS_ROLE: Final = "coterie:controllers"
AGENT_ROLE: Final = "coterie:agent"
NODE_POLICY, WRITE_POLICY = "coterie-nodes-of-domains", "coterie-namespaces-of-domains"
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io/v1"
_NODE_LEASES = "kube-node-lease"
_LEFT_OUT = frozenset(
    f"{plural}.coterie.io"
    for plural in ("actions", "actiongrants", "deadletters", "gpujobs", "slurmclusters", "triggers")
)
"""Their rules are in admission and authorization of our own API server."""

CONTROLLER_RULES: Final = (
    f"READ | {crds.GROUP} | *",
    f"create delete patch update | {crds.GROUP} | *",
    "READ | coterie.io | dnses",
    "READ | core | configmaps endpoints namespaces nodes persistentvolumeclaims persistentvolumes pods resourcequotas",
    "READ | core | serviceaccounts services",
    "READ | discovery.k8s.io | endpointslices",
    "READ | apps | deployments",
    "READ | autoscaling | horizontalpodautoscalers",
    "READ | policy | poddisruptionbudgets",
    "READ | storage.k8s.io | storageclasses",
    f"READ | {_RBAC} | clusterrolebindings rolebindings",
    "create patch | core | namespaces",
    "create delete patch | core | pods serviceaccounts resourcequotas",
    "create delete patch update | core | configmaps services",
    "create delete update | apps | deployments",
    "create | core | pods/binding serviceaccounts/token",
    "patch | core | persistentvolumeclaims pods/status",
    "get | core | pods/log",
    "create patch | core | events",
    f"create delete patch | {_RBAC} | clusterrolebindings rolebindings",
)
LEASE_RULES: Final = ("create get update | coordination.k8s.io | leases",)
"""In `cross-domain`: who runs the controllers."""
NODE_LEASE_RULES: Final = ("get | coordination.k8s.io | leases",)
"""Whether nodes live, as `coterie status` and `coterie up` tell."""
DOMAIN_NODE_RULES: Final = (
    "own create delete get list patch update watch | core | nodes",
    "get patch update | core | nodes/status",
    "create get patch update | coordination.k8s.io | leases",
)
"""Of domains' accounts; NODE_POLICY limits them to what carries the domain's label. `own` is what that policy asks for."""
AGENT_RULES: Final = ("create delete patch update | core | nodes", "patch update | core | nodes/status")
AGENT_LEASE_RULES: Final = ("create get patch update | coordination.k8s.io | leases",)


def install_objects(namespace: str = NAMESPACE, agent: str = "") -> list[Object]:
    """In the order in which they are applied. `agent`: the domain whose own agent registers as a node; empty: none does."""
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    made: list[Object] = [
        _object("v1", "Namespace", namespace),
        _object("v1", "Namespace", CROSS_DOMAIN),
        *definitions(),
        _object("v1", "ServiceAccount", ACCOUNT, namespace),
        _role(CONTROLLERS_ROLE, [*map(parse_rule, CONTROLLER_RULES), _bind_rule()]),
        _binding(CONTROLLERS_ROLE, "ClusterRole", CONTROLLERS_ROLE, account),
        _role("coterie:election", map(parse_rule, LEASE_RULES), CROSS_DOMAIN),
        _binding("coterie:election", "Role", "coterie:election", account, CROSS_DOMAIN),
        _role("coterie:node-leases", map(parse_rule, NODE_LEASE_RULES), _NODE_LEASES),
        _binding("coterie:node-leases", "Role", "coterie:node-leases", account, _NODE_LEASES),
        *(_role(name, rules) for name, rules in INSTALLED_ROLES.items()),
        _role(CLUSTER_ROLE, map(parse_rule, DOMAIN_NODE_RULES)),
        *_aggregated(),
        *_policies(namespace),
        _flow_schema(namespace),
    ]
    if agent:
        made += _agent(agent, account)
    return made


def definitions() -> list[Object]:
    """Kinds whose rules do not depend on an API server of our own."""
    made = crds.load([name for name in crds.hashes() if name not in _LEFT_OUT])
    return [{**each, "metadata": {**each["metadata"], "labels": dict(MANAGED_BY)}} for each in made]


def _agent(domain: str, account: Object) -> Iterator[Object]:
    yield _object("v1", "Namespace", domain, labels={KUSCIA_DOMAIN_NAME: domain})
    yield _role(AGENT_ROLE, map(parse_rule, AGENT_RULES))
    yield _binding(AGENT_ROLE, "ClusterRole", AGENT_ROLE, account)
    yield _binding(AGENT_ROLE, "ClusterRole", "coterie:domain", account, domain)
    yield _role(AGENT_ROLE, map(parse_rule, AGENT_LEASE_RULES), _NODE_LEASES)
    yield _binding(AGENT_ROLE, "Role", AGENT_ROLE, account, _NODE_LEASES)


def _object(api: str, kind: str, name: str, namespace: str = "", labels: dict[str, str] | None = None) -> Object:
    meta: Object = {"name": name, "labels": {**MANAGED_BY, **(labels or {})}}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": meta}


def _role(name: str, rules: Iterable[Object], namespace: str = "", labels: dict[str, str] | None = None) -> Object:
    made = _object(f"{_RBAC}/v1", "Role" if namespace else "ClusterRole", name, namespace, labels)
    return {**made, "rules": list(rules)}


def _binding(name: str, kind: str, role: str, subject: Object, namespace: str = "") -> Object:
    made = _object(f"{_RBAC}/v1", "RoleBinding" if namespace else "ClusterRoleBinding", name, namespace)
    return {**made, "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role}, "subjects": [subject]}


def _bind_rule() -> Object:
    """The only rules that may be given away, and nobody's by the verb `escalate`."""
    names = sorted((*INSTALLED_ROLES, CLUSTER_ROLE))
    return {"apiGroups": [_RBAC], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": names}


def _aggregated() -> Iterator[Object]:
    """For people with the cluster's own roles view, edit and admin."""
    edited = "domaindatas domaindatagrants domaindatasources domainappimages kusciadeployments kusciajobs kusciatasks"
    for name, target, line in (
        ("kuscia:aggregate-to-view", "view", f"READ | {crds.GROUP} | *"),
        ("kuscia:aggregate-to-edit", "edit", f"WRITE | {crds.GROUP} | {edited}"),
        ("kuscia:aggregate-to-admin", "admin", f"WRITE | {crds.GROUP} | *"),
    ):
        yield _role(name, [parse_rule(line)], labels={f"{_RBAC}/aggregate-to-{target}": "true"})


def _policies(namespace: str) -> Iterator[Object]:
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    has_label = f"has(%s.metadata.labels) && '{KUSCIA_DOMAIN_NAME}' in %s.metadata.labels"
    of_node = f"has(%s.metadata.labels) && '{KUSCIA_NODE_NAMESPACE}' in %s.metadata.labels"
    yield from _policy(
        WRITE_POLICY,
        [
            # With subresources: a token of an account in another namespace would be that account.
            _rule("", ["*/*"], "*"),
            _rule("apps", ["*/*"], "*"),
            _rule(_RBAC, ["*/*"], "*"),
            _rule("coordination.k8s.io", ["*/*"], "*"),
        ],
        [("by-the-controllers", f"request.userInfo.username == '{user}'")],
        [
            (
                "request.resource.resource != 'namespaces' || (oldObject != null ? "
                f"{_of('oldObject', has_label)} : {_of('object', has_label)})",
                "the controllers of Coterie change namespaces of domains only (label " + KUSCIA_DOMAIN_NAME + ")",
            ),
            (
                f"!(request.resource.resource == 'nodes' || (has(request.namespace) && request.namespace == '{_NODE_LEASES}')) || "
                f"((object == null || {_of('object', of_node)}) && (oldObject == null || {_of('oldObject', of_node)}))",
                f"the agent of Coterie writes Nodes and Leases with the label {KUSCIA_NODE_NAMESPACE} only",
            ),
            (
                # Nodes, of an agent; events about objects of the cluster are in `default`.
                "request.resource.resource in ['namespaces', 'clusterrolebindings', 'nodes', 'events'] || "
                f"request.namespace in ['{CROSS_DOMAIN}', '{_NODE_LEASES}'] || "
                f"(namespaceObject != null && {_of('namespaceObject', has_label)})",
                "the controllers of Coterie write in namespaces of domains only",
            ),
            (
                f"request.resource.resource != 'clusterrolebindings' || object == null || object.roleRef.name == '{CLUSTER_ROLE}'",
                f"the controllers of Coterie bind {CLUSTER_ROLE} only in the whole cluster",
            ),
            (
                f"request.resource.resource != 'clusterrolebindings' || oldObject == null || oldObject.roleRef.name == '{CLUSTER_ROLE}'",
                f"the controllers of Coterie change bindings of {CLUSTER_ROLE} only in the whole cluster",
            ),
        ],
    )
    nodes = "authorizer.group('').resource('nodes')"
    domain = "request.userInfo.username.split(':')[2]"
    own = f"has(%s.metadata.labels) && '{KUSCIA_NODE_NAMESPACE}' in %s.metadata.labels && %s.metadata.labels['{KUSCIA_NODE_NAMESPACE}'] == {domain}"
    yield from _policy(
        NODE_POLICY,
        [_rule("", ["nodes", "nodes/status"], "*"), _rule("coordination.k8s.io", ["leases"], "*")],
        [
            # Who has every verb is an administrator.
            ("by-a-domain", f"{nodes}.check('own').allowed() && !{nodes}.check('unlimited').allowed()"),
        ],
        [
            (
                f"(object == null || {_of('object', own)}) && (oldObject == null || {_of('oldObject', own)})",
                f"a domain writes Nodes and Leases with its own label {KUSCIA_NODE_NAMESPACE} only",
            ),
            (
                f"request.resource.resource != 'leases' || request.namespace == '{_NODE_LEASES}'",
                f"a domain writes Leases in {_NODE_LEASES} only",
            ),
        ],
    )


def _of(name: str, template: str) -> str:
    return f"({template.replace('%s', name)})"


def _rule(group: str, resources: list[str], operation: str) -> Object:
    versions = ["*"]
    return {"apiGroups": [group], "apiVersions": versions, "operations": [operation], "resources": resources}


def _policy(
    name: str, rules: list[Object], conditions: list[tuple[str, str]], validations: list[tuple[str, str]]
) -> Iterator[Object]:
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": each, "expression": expression} for each, expression in conditions],
        "validations": [{"expression": expression, "message": message} for expression, message in validations],
    }
    yield {**_object(_ADMISSION, "ValidatingAdmissionPolicy", name), "spec": spec}
    bound = {"policyName": name, "validationActions": ["Deny"]}
    yield {**_object(_ADMISSION, "ValidatingAdmissionPolicyBinding", name), "spec": bound}


def _flow_schema(namespace: str) -> Object:
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": ACCOUNT, "namespace": namespace}}
    resources = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"], "clusterScope": True}
    spec = {
        "priorityLevelConfiguration": {"name": "workload-high"},
        "matchingPrecedence": 1000,
        "distinguisherMethod": {"type": "ByNamespace"},
        "rules": [{"subjects": [subject], "resourceRules": [resources]}],
    }
    return {**_object("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", ACCOUNT), "spec": spec}
