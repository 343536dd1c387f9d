"""What nodes may do: their own Node, their own lease, their own pods, and what those pods name. Nothing of others.

Three kinds of callers bring nodes:

    system:node:<name>, group system:nodes     one node, by its certificate (`coterie node add`)
    an account that holds the verb `own` on    agents of a namespace, by its service account: all Nodes whose label
    nodes                                      (`NodeOwnership.label`) is the account's namespace
    the same account, impersonating            one of the Nodes that it owns. It has the rights of a node, and only in the
    system:node:<name>                         account's namespace (`OWNER_EXTRA`)

An owner lists Nodes with a label selector that asks for its own label.

Both rights are asked for only when RBAC says no, so an operator may always give more by a binding. What depends on the
body of a request is the admission step's (`admission/nodes.py`). Follows Kubernetes' Node authorizer, with three
differences: nodes may list Endpoints and read all Pods (their DNS server names them), read all Nodes (they make the network
between them), and make no mirror pods. They read single PersistentVolumes: those of claims that their pods name, and
local-path volumes that were made on them.

A pod is looked for by the bytes of its JSON first: only those that hold both names are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from coterie.http.messages import UserInfo
from coterie.kube.api.labels import LOCAL_PATH_PROVISIONER, PROVISIONED_BY, SELECTED_NODE
from coterie.kube.api.selectors import parse_label_selector
from coterie.kube.apiserver.auth.default_roles import rules_of
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer, RbacDecision, Source
from coterie.kube.apiserver.auth.rules import Attributes, PolicyRule, compile_rules
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]

NODE_PREFIX = "system:node:"
NODES_GROUP = "system:nodes"
LEASE_NAMESPACE = "kube-node-lease"
OWN = "own"
"""The verb that says: those with the label of my namespace."""
OWNER_EXTRA = "coterie.io/node-owner"
"""In `UserInfo.extra` of a node that acts through the account of its owner: the namespace to which it is limited."""
_ACCOUNT = "system:serviceaccount:"
_LEASES = ("coordination.k8s.io", "leases")
_NAMED_BY_PODS = frozenset(("secrets", "configmaps", "persistentvolumeclaims"))
_OWN_PODS = frozenset((("delete", ""), ("update", "status"), ("patch", "status"), ("create", "eviction")))
_OWNER_VERBS = frozenset(("create", "get", "update", "patch", "delete"))
_LIST_VERBS = frozenset(("list", "watch"))
_READ_VERBS = frozenset(("get", "list", "watch"))
_YES, _NO = RbacDecision(True, ""), RbacDecision(False, "")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_EPHEMERAL = b'"ephemeral":'
_SECRET_VOLUMES = ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")


def node_of(user: UserInfo) -> str:
    """The node a caller is; empty: none."""
    if user.name.startswith(NODE_PREFIX) and NODES_GROUP in user.groups:
        return user.name.removeprefix(NODE_PREFIX)
    return ""


def owner_limit(user: UserInfo) -> str:
    """The namespace to which a node is limited that acts through its owner's account; empty: it is not."""
    if not node_of(user):
        return ""
    return next((values[0] for key, values in user.extra if key == OWNER_EXTRA and values), "")


def account_namespace(user: UserInfo) -> str:
    """The namespace of a service account; empty for everybody else."""
    return user.name.removeprefix(_ACCOUNT).partition(":")[0] if user.name.startswith(_ACCOUNT) else ""


@dataclass(frozen=True, slots=True)
class NodeOwnership:
    """Nodes may belong to a namespace: its service account manages them, if it holds the verb `own` on nodes."""

    label: str
    """The label of a Node that names its namespace."""
    fixed_labels: tuple[str, ...] = ()
    """Labels that a node may not change about itself once they are set."""
    own_taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of taints that a node may set and remove itself: they follow its configuration."""


class NodeAuthorizer(RbacAuthorizer):
    """RBAC, and after its "no" the rights of nodes."""

    def __init__(
        self,
        *,
        roles: Source,
        role_bindings: Source,
        cluster_roles: Source,
        cluster_role_bindings: Source,
        pods: Collection,
        nodes: Collection,
        volumes: Collection,
        ownership: NodeOwnership | None = None,
        configmap_annotations: Sequence[str] = (),
        configmaps: Sequence[str] = (),
    ) -> None:
        super().__init__(
            roles=roles,
            role_bindings=role_bindings,
            cluster_roles=cluster_roles,
            cluster_role_bindings=cluster_role_bindings,
        )
        self._pods = pods
        self._nodes = nodes
        self._volumes = volumes
        self.ownership = ownership
        self._configmap_annotations = tuple(configmap_annotations)
        self._configmaps = frozenset(configmaps)
        self._node_rules: tuple[PolicyRule, ...] = compile_rules(rules_of("system:node"))

    def allowed(self, user: UserInfo, attributes: Attributes) -> RbacDecision:
        limit = owner_limit(user) if user.extra else ""
        if limit and attributes.resource:
            # Bindings of nodes do not count: the owner chooses the name that it acts as.
            why = self._outside(limit, attributes)
            return RbacDecision(False, why) if why else self._as_node(node_of(user), attributes, _NO)
        decision = super().allowed(user, attributes)
        if decision.allowed or not attributes.resource:
            return decision
        node = node_of(user)
        if node:
            return self._as_node(node, attributes, decision)
        if attributes.verb == "impersonate":
            return self._as_impersonator(user, attributes, decision)
        if not _is_of_nodes(attributes):
            return decision
        owner = self.owner_of(user)
        if owner and attributes.resource == "persistentvolumes":
            return self._volume_of_owner(owner, attributes, decision)
        return self._as_owner(owner, attributes, decision) if owner else decision

    def acting_as(self, user: UserInfo, other: UserInfo) -> UserInfo:
        """An owner that acts as one of its nodes stays in its namespace."""
        if not node_of(other) or self.plainly(user, Attributes("impersonate", "", "users", name=other.name)):
            return other
        return UserInfo(other.name, other.groups, other.uid, ((OWNER_EXTRA, (self.owner_of(user),)),))

    def plainly(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether a binding gives it, so that no limit of nodes holds."""
        return super().allowed(user, attributes).allowed

    def owner_of(self, user: UserInfo) -> str:
        """The namespace whose nodes this account manages; empty: none."""
        namespace = account_namespace(user) if self.ownership is not None else ""
        return namespace if namespace and self.plainly(user, Attributes(OWN, "", "nodes")) else ""

    def belongs_to(self, node: str, owner: str) -> bool:
        """Whether the Node is this namespace's, or nobody's yet."""
        entry = self._nodes.get("", node)
        label = self.ownership.label if self.ownership is not None else ""
        return entry is None or (entry.labels or {}).get(label) == owner

    def _is_of(self, node: str, owner: str) -> bool:
        """As `belongs_to`, for what lasts: a Node that does not exist yet may become another's."""
        return self._nodes.get("", node) is not None and self.belongs_to(node, owner)

    def other_nodes(self, but: str) -> Iterator[tuple[str, Object]]:
        """Names and Nodes, without the one named."""
        for name, entry in self._nodes.names("").items():
            if name != but:
                yield name, entry.load()

    def pod_of(self, node: str, namespace: str, name: str) -> Object | None:
        """A pod that runs on this node."""
        entry = self._pods.get(namespace, name)
        pod = entry.load() if entry is not None else None
        return pod if pod is not None and (pod.get("spec") or {}).get("nodeName") == node else None

    def _as_impersonator(self, user: UserInfo, attributes: Attributes, no: RbacDecision) -> RbacDecision:
        """Owners act as their nodes. The group is allowed with such a user only: each is asked for."""
        _, group, resource, subresource, _, _, name, _ = attributes
        if group or subresource or not self.owner_of(user):
            return no
        if resource == "groups":
            return _YES if name == NODES_GROUP else no
        if resource != "users" or not name.startswith(NODE_PREFIX):
            return no
        owner, node = self.owner_of(user), name.removeprefix(NODE_PREFIX)
        return _YES if node and self.belongs_to(node, owner) else RbacDecision(False, f"the node is not of {owner!r}")

    def _outside(self, owner: str, attributes: Attributes) -> str:
        """Why a node that is limited to its owner's namespace may not even ask."""
        _, group, resource, _, namespace, _, name, labels = attributes
        if (group, resource) == _LEASES:
            return ""  # its own only
        if group == "" and resource == "persistentvolumes":
            seen = self._volume_of_owner(owner, attributes, _NO).allowed
            return "" if seen else f"not a volume of {owner!r}"
        if group == "" and resource == "nodes":
            watches = attributes.verb == "watch"
            named = bool(name) and (self._is_of(name, owner) if watches else self.belongs_to(name, owner))
            creates = attributes.verb == "create" and not name
            return "" if named or creates or self._selects_own(labels, owner) else f"not a node of {owner!r}"
        return "" if namespace == owner else f"nodes of {owner!r} are limited to that namespace"

    def _selects_own(self, selector: str, owner: str) -> bool:
        """Whether a label selector leaves nothing but the Nodes of this owner."""
        return (
            bool(selector)
            and self.ownership is not None
            and parse_label_selector(selector).exact(self.ownership.label) == owner
        )

    def _as_node(self, node: str, attributes: Attributes, no: RbacDecision) -> RbacDecision:
        verb, group, resource, subresource, namespace, _, name, _ = attributes
        if not any(rule.allows_resource(verb, group, resource, subresource) for rule in self._node_rules):
            return no
        why = ""
        if group == "" and resource == "nodes":
            if name != node and verb not in _READ_VERBS and not (verb == "create" and not name):
                why = f"node {node!r} may change its own Node only"
        elif (group, resource) == _LEASES:
            if namespace != LEASE_NAMESPACE or (name != node and not (verb == "create" and not name)):
                why = f"node {node!r} may use its own lease in {LEASE_NAMESPACE} only"
        elif group == "" and resource == "pods" and (verb, subresource) in _OWN_PODS:
            if self._pods.get(namespace, name) is not None and self.pod_of(node, namespace, name) is None:
                why = f"the pod does not run on node {node!r}"
        elif group == "" and (resource in _NAMED_BY_PODS or (resource, subresource) == ("serviceaccounts", "token")):
            if not name:
                why = "nodes may only ask for single objects of this kind, by name"
            elif not self._is_named(node, namespace, resource, name):
                why = f"no pod on node {node!r} names this object"
        elif group == "" and resource == "persistentvolumes":
            if not name:
                why = "nodes may only ask for single objects of this kind, by name"
            elif not self._is_volume_of(node, name):
                why = f"the volume is neither on node {node!r} nor used by a pod there"
        return RbacDecision(False, why) if why else _YES

    def _is_volume_of(self, node: str, name: str) -> bool:
        """Made on this node, or bound to a claim that a pod there names. One that does not exist tells nothing."""
        entry = self._volumes.get("", name)
        if entry is None:
            return True
        volume = entry.load()
        if made_on(volume) == node:
            return True
        claim = (volume.get("spec") or {}).get("claimRef") or {}
        namespace, claimed = claim.get("namespace") or "", claim.get("name") or ""
        return bool(claimed) and self._is_named(node, namespace, "persistentvolumeclaims", claimed)

    def _is_named(self, node: str, namespace: str, resource: str, name: str) -> bool:
        on, wanted = b'"nodeName":' + orjson.dumps(node), orjson.dumps(name)
        if resource == "configmaps" and name in self._configmaps:
            return any(self.pod_of(node, namespace, each) is not None for each in self._pods.names(namespace))
        # The name of an ephemeral volume's claim is that of the pod and that of the volume.
        made = resource == "persistentvolumeclaims"
        for entry in self._pods.names(namespace).values():
            if on in entry.raw and (wanted in entry.raw or (made and _EPHEMERAL in entry.raw)):
                pod = entry.load()
                spec = pod.get("spec") or {}
                if spec.get("nodeName") == node and (resource, name) in {
                    *named_by(spec, entry.name),
                    *self._named_by_annotations(pod),
                }:
                    return True
        return False

    def _as_owner(self, owner: str, attributes: Attributes, no: RbacDecision) -> RbacDecision:
        verb, _, resource, subresource, namespace, _, name, labels = attributes
        if subresource not in (("", "status") if resource == "nodes" else ("",)):
            return no
        if resource == "leases" and namespace != LEASE_NAMESPACE:
            return no
        if verb == "create" and not name and not subresource:
            return _YES  # the body tells which; the admission step looks
        if not name and resource == "nodes" and verb in _LIST_VERBS and self._selects_own(labels, owner):
            return _YES
        if not name or verb not in _OWNER_VERBS | _LIST_VERBS:
            why = "the owner of nodes may use single nodes only, by name, and list those with its own label"
            return RbacDecision(False, why)
        if not (self._is_of(name, owner) if verb == "watch" else self.belongs_to(name, owner)):
            return RbacDecision(False, f"the node does not belong to {owner!r}")
        return _YES

    def _volume_of_owner(self, owner: str, attributes: Attributes, no: RbacDecision) -> RbacDecision:
        """Agents of a namespace read single volumes: those of its claims, and those that were made on its nodes."""
        if attributes.verb not in ("get", "list", "watch") or attributes.subresource or not attributes.name:
            return no
        entry = self._volumes.get("", attributes.name)
        if entry is None:
            return _YES
        volume = entry.load()
        node = made_on(volume)
        there = self._nodes.get("", node) if node else None
        if there is not None and self.belongs_to(node, owner):
            return _YES
        claim = (volume.get("spec") or {}).get("claimRef") or {}
        return _YES if claim.get("namespace") == owner else no

    def _named_by_annotations(self, pod: Object) -> Iterator[tuple[str, str]]:
        annotations = pod["metadata"].get("annotations") or {}
        for key in self._configmap_annotations:
            yield "configmaps", annotations.get(key) or ""


def _is_of_nodes(attributes: Attributes) -> bool:
    return (attributes.group, attributes.resource) in (("", "nodes"), ("", "persistentvolumes"), _LEASES)


def made_on(volume: Object) -> str:
    """The node on which a local-path volume was made; empty for all others."""
    annotations = (volume.get("metadata") or {}).get("annotations") or {}
    return annotations.get(SELECTED_NODE) or "" if annotations.get(PROVISIONED_BY) == LOCAL_PATH_PROVISIONER else ""


def named_by(spec: Object, pod_name: str = "") -> Iterator[tuple[str, str]]:
    """(resource, name) of everything in its namespace that a pod names."""
    yield "serviceaccounts", spec.get("serviceAccountName") or "default"
    for secret in _items(spec.get("imagePullSecrets")):
        yield "secrets", secret.get("name") or ""
    for group in _CONTAINERS:
        for container in _items(spec.get(group)):
            yield from _named_by_container(container)
    for volume in _items(spec.get("volumes")):
        yield from _named_by_volume(volume)
        if volume.get("ephemeral") and pod_name:
            yield "persistentvolumeclaims", f"{pod_name}-{volume.get('name')}"


def _named_by_container(container: Object) -> Iterator[tuple[str, str]]:
    for variable in _items(container.get("env")):
        source = variable.get("valueFrom") or {}
        yield "secrets", (source.get("secretKeyRef") or {}).get("name") or ""
        yield "configmaps", (source.get("configMapKeyRef") or {}).get("name") or ""
    for source in _items(container.get("envFrom")):
        yield "secrets", (source.get("secretRef") or {}).get("name") or ""
        yield "configmaps", (source.get("configMapRef") or {}).get("name") or ""


def _named_by_volume(volume: Object) -> Iterator[tuple[str, str]]:
    yield "secrets", (volume.get("secret") or {}).get("secretName") or ""
    yield "configmaps", (volume.get("configMap") or {}).get("name") or ""
    yield "persistentvolumeclaims", (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
    yield "secrets", (volume.get("azureFile") or {}).get("secretName") or ""
    yield "secrets", ((volume.get("csi") or {}).get("nodePublishSecretRef") or {}).get("name") or ""
    for kind in _SECRET_VOLUMES:
        yield "secrets", ((volume.get(kind) or {}).get("secretRef") or {}).get("name") or ""
    for part in _items((volume.get("projected") or {}).get("sources")):
        yield "secrets", (part.get("secret") or {}).get("name") or ""
        yield "configmaps", (part.get("configMap") or {}).get("name") or ""


def _items(value: Any) -> Iterable[Object]:
    return value or ()
