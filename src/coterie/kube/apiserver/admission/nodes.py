"""NodeRestriction: what a node's request says must be about the node itself.

The authorizer knows names in paths; this step knows bodies. It holds for callers whose right comes from being a node, or
from owning nodes (`NodeOwnership`); who has the right by a binding of his own is not limited.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any

from coterie import __version__
from coterie.http.messages import UserInfo
from coterie.kube.api import errors
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.version_skew import skew_problem
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.auth.nodes import NodeAuthorizer, node_of, owner_limit
from coterie.kube.apiserver.auth.rules import Attributes

Object = dict[str, Any]
_RESTRICTED_PREFIX = "node-restriction.kubernetes.io/"
_KINDS = frozenset((("", "nodes"), ("", "pods"), ("coordination.k8s.io", "leases")))


class NodeRestriction:
    def __init__(self, authorizer: NodeAuthorizer, version: str = __version__) -> None:
        """`version`: of this control plane."""
        self._authorizer = authorizer
        self._own_version = version

    def __call__(self, attempt: AdmissionRequest) -> None:
        resource = attempt.resource
        if (resource.group, resource.plural) not in _KINDS:
            return
        user, node = attempt.user, node_of(attempt.user)
        if not node and resource.plural == "pods":
            return
        owner = "" if node else self._authorizer.owner_of(user)
        if not node and not owner:
            return
        asked = Attributes(
            attempt.verb, resource.group, resource.plural, attempt.subresource, attempt.namespace, "", attempt.name
        )
        limit = owner_limit(user)
        if not limit and self._authorizer.plainly(user, asked):
            return
        if node:
            why = self._of_node(node, attempt)
            if not why and limit and resource.plural == "nodes":
                why = self._of_owner(limit, attempt)
        else:
            why = self._of_owner(owner, attempt)
        if why:
            raise errors.Forbidden(
                f'{resource.group_resource} "{attempt.name}" is forbidden: {why}',
                name=attempt.name,
                group=resource.group,
                kind=resource.plural,
            )

    def _of_node(self, node: str, attempt: AdmissionRequest) -> str:
        plural = attempt.resource.plural
        if plural == "pods":
            changed = attempt.old is not None and _labels(attempt.old) != _labels(attempt.obj)
            return f'node "{node}" may not change the labels of pods' if changed else ""
        if attempt.name != node:
            return f'node "{node}" is not allowed to modify {attempt.resource.kind.lower()} "{attempt.name}"'
        if plural == "nodes" and (why := self._version(attempt) or self._pod_ranges(attempt)):
            return why
        if plural == "leases" or attempt.old is None:
            restricted = plural == "nodes" and any(key.startswith(_RESTRICTED_PREFIX) for key in _labels(attempt.obj))
            return f"labels below {_RESTRICTED_PREFIX} are not the node's to set" if restricted else ""
        return self._change(attempt.old, attempt.obj, node)

    def _of_owner(self, owner: str, attempt: AdmissionRequest) -> str:
        # A Node that exists is told as such, whoever's it is: a name is taken, and that is no secret.
        new_node = attempt.resource.plural == "nodes" and attempt.old is None
        if not new_node and not self._authorizer.belongs_to(attempt.name, owner):
            return f'the node "{attempt.name}" does not belong to "{owner}"'
        ownership = self._authorizer.ownership
        if ownership is None or attempt.resource.plural != "nodes":
            return ""
        if why := self._version(attempt) or self._pod_ranges(attempt):
            return why
        labelled = _labels(attempt.obj).get(ownership.label) == owner
        return "" if labelled else f'nodes of "{owner}" must have the label {ownership.label}={owner}'

    def _version(self, attempt: AdmissionRequest) -> str:
        version = _node_version(attempt.obj)
        if attempt.old is not None and attempt.subresource != "status" and _node_version(attempt.old) == version:
            return ""  # a node that is too old may still be cordoned and its labels changed
        return skew_problem(version, self._own_version) if version else ""

    def _pod_ranges(self, attempt: AdmissionRequest) -> str:
        """Whoever announces pod addresses is sent the traffic to them, so they must not be another node's."""
        wanted = _pod_cidrs(attempt.obj)
        if not wanted or (attempt.old is not None and _pod_cidrs(attempt.old) == wanted):
            return ""
        pool = _labels(attempt.obj).get(COTERIE_POD_NAMESPACE, "")
        for name, other in self._authorizer.other_nodes(attempt.name):
            if _labels(other).get(COTERIE_POD_NAMESPACE, "") != pool:
                continue
            for cidr in wanted:
                if any(_overlap(cidr, each) for each in _pod_cidrs(other)):
                    return f'the pod addresses {cidr} are in use by node "{name}"'
        return ""

    def _change(self, old: Object, new: Object, node: str) -> str:
        """What a node may not change about itself: where it belongs, what keeps pods off it, who owns it."""
        before, after = _labels(old), _labels(new)
        ownership = self._authorizer.ownership
        fixed = ownership.fixed_labels if ownership is not None else ()
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) == after.get(key):
                continue
            if key.startswith(_RESTRICTED_PREFIX) or (key in fixed and key in before):
                return f'node "{node}" is not allowed to change its label {key}; delete the Node first to move it'
        own_taints = ownership.own_taints if ownership is not None else ()
        if _foreign_taints(old, own_taints) != _foreign_taints(new, own_taints):
            return f'node "{node}" is not allowed to modify taints'
        if old["metadata"].get("ownerReferences") != new["metadata"].get("ownerReferences"):
            return f'node "{node}" is not allowed to modify ownerReferences'
        return ""


def check_token_request(authorizer: NodeAuthorizer, user: UserInfo, namespace: str, account: str, body: Object) -> None:
    """A node gets tokens for pods that it runs, bound to them, so that they end with the pod. Raises Forbidden."""
    node = node_of(user)
    asked = Attributes("create", "", "serviceaccounts", "token", namespace, "", account)
    if not node or (not owner_limit(user) and authorizer.plainly(user, asked)):
        return
    bound = (body.get("spec") or {}).get("boundObjectRef") or {}
    pod = authorizer.pod_of(node, namespace, bound.get("name") or "") if bound.get("kind") == "Pod" else None
    if pod is None or bound.get("uid") != pod["metadata"].get("uid"):
        why = f'node "{node}" may only ask for tokens that are bound to a pod it runs'
    elif ((pod.get("spec") or {}).get("serviceAccountName") or "default") != account:
        why = f'the pod "{bound["name"]}" runs as another account'
    else:
        return
    raise errors.Forbidden(f'serviceaccounts "{account}" is forbidden: {why}', name=account, kind="serviceaccounts")


def _foreign_taints(node: Object, own: Collection[tuple[str, str, str]]) -> list[Object]:
    """All but those that say how the node is set up, which are its own to change."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return [each for each in taints if (each.get("key"), each.get("value"), each.get("effect")) not in own]


def _node_version(node: Object) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def _pod_cidrs(node: Object) -> list[str]:
    spec = node.get("spec") or {}
    return [each for each in (spec.get("podCIDRs") or [spec.get("podCIDR")]) if each]


def _overlap(one: str, other: str) -> bool:
    """False as well for what is no range: validation says so."""
    try:
        first, second = ipaddress.ip_network(one, strict=False), ipaddress.ip_network(other, strict=False)
    except ValueError:
        return False
    if first.version != second.version:
        return False
    shorter = min(first.prefixlen, second.prefixlen)
    shift = first.max_prefixlen - shorter
    return int(first.network_address) >> shift == int(second.network_address) >> shift


def _labels(obj: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] | None = obj["metadata"].get("labels")
    return labels or {}
