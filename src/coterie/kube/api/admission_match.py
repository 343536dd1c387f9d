"""Which requests a policy or webhook of admission is about: rules over resources, and selectors. Pure functions.

`matchPolicy: Equivalent` means that a rule for one version of a resource also holds for requests by another one: callers
pass every version in which the object is served, that of the request first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.kube.api.resources import Resource
from coterie.kube.api.selectors import selector_of

Obj = Mapping[str, Any]
_GROUP = "admissionregistration.k8s.io"
_EXEMPT = frozenset(
    (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    )
)


class MatchedRequest(NamedTuple):
    """What matching looks at. `labels`: of the object, then of the old one, where they exist."""

    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    versions: Sequence[Resource]
    subresource: str
    name: str
    namespace_labels: Obj | None
    """None: the object belongs to no namespace."""
    labels: Sequence[Obj]


def is_exempt(resource: Resource) -> bool:
    """Nobody may lock himself out: the objects that configure admission do not pass through it."""
    return resource.group == _GROUP and resource.plural in _EXEMPT


def matching_version(match: Obj, request: MatchedRequest) -> Resource | None:
    """The version of the resource that `match` (MatchResources) is about, None if it is not about this request."""
    if not _selected(match, request):
        return None
    exact = request.versions[0]
    if any(rule_matches(rule, request, exact) for rule in match.get("excludeResourceRules") or ()):
        return None
    rules = match.get("resourceRules") or ()
    if not rules:
        return exact
    candidates = request.versions if match.get("matchPolicy") != "Exact" else request.versions[:1]
    for version in candidates:
        if any(rule_matches(rule, request, version) for rule in rules):
            return version
    return None


def _selected(match: Obj, request: MatchedRequest) -> bool:
    wanted = match.get("namespaceSelector")
    if wanted and request.namespace_labels is not None and not selector_of(wanted).matches(request.namespace_labels):
        return False
    wanted = match.get("objectSelector")
    if not wanted:
        return True
    selector = selector_of(wanted)
    return any(selector.matches(labels) for labels in request.labels)


def rule_matches(rule: Obj, request: MatchedRequest, version: Resource) -> bool:
    return (
        _listed(rule.get("operations"), request.operation)
        and _listed(rule.get("apiGroups"), version.group)
        and _listed(rule.get("apiVersions"), version.version)
        and _in_scope(rule.get("scope"), version)
        and _about_resource(rule.get("resources") or (), version.plural, request.subresource)
        and (not rule.get("resourceNames") or request.name in rule["resourceNames"])
    )


def _listed(allowed: Sequence[str] | None, value: str) -> bool:
    return allowed is not None and (value in allowed or "*" in allowed)


def _in_scope(scope: str | None, version: Resource) -> bool:
    if scope == "Namespaced":
        return version.namespaced
    # A Namespace has no namespace, so it is of the cluster.
    return scope != "Cluster" or not version.namespaced


def _about_resource(allowed: Sequence[str], plural: str, subresource: str) -> bool:
    for text in allowed:
        resource, _, sub = text.partition("/")
        if resource in ("*", plural) and sub in ("*", subresource):
            return True
    return False
