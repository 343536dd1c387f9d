"""Audit policies (`audit.k8s.io/v1` Policy): read from a file, strictly, and asked what to record of a request. Pure.

The first rule that matches decides. Matching follows Kubernetes to the letter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import yaml

from coterie.http.messages import UserInfo

API_VERSION = "audit.k8s.io/v1"
RECEIVED, STARTED, COMPLETE, PANIC = "RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"
STAGES = (RECEIVED, STARTED, COMPLETE, PANIC)
_POLICY_KEYS = frozenset(("apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"))
_RULE_KEYS = frozenset(
    (
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    )
)
_RESOURCE_KEYS = frozenset(("group", "resources", "resourceNames"))


class AuditLevel(IntEnum):
    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3


LEVELS = {
    "None": AuditLevel.NONE,
    "Metadata": AuditLevel.METADATA,
    "Request": AuditLevel.REQUEST,
    "RequestResponse": AuditLevel.REQUEST_RESPONSE,
}
LEVEL_NAMES = {level: name for name, level in LEVELS.items()}


class AuditPolicyError(Exception):
    """The file is not a policy; the message says where and why."""


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """What rules look at. A request for a resource has `resource`, any other only `path`."""

    user: UserInfo
    verb: str
    path: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class GroupResources:
    group: str = ""
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def matches(self, request: AuditedRequest) -> bool:
        if self.group != request.group:
            return False
        if not self.resources:
            return True
        if self.names and request.name not in self.names:
            return False
        return any(_resource_matches(each, request) for each in self.resources)

    def names_resource(self, request: AuditedRequest) -> bool:
        """Whether the resource itself stands here, not `*` or its whole group."""
        own = {_combined(request), f"{request.resource}/*"}
        return self.matches(request) and not own.isdisjoint(self.resources)


def _combined(request: AuditedRequest) -> str:
    return f"{request.resource}/{request.subresource}" if request.subresource else request.resource


def _resource_matches(pattern: str, request: AuditedRequest) -> bool:
    if pattern in ("*", _combined(request)):
        return True
    if request.subresource and pattern == f"*/{request.subresource}":
        return True
    return pattern == f"{request.resource}/*"


@dataclass(frozen=True, slots=True)
class AuditRule:
    level: AuditLevel
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: tuple[GroupResources, ...] = ()
    namespaces: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()
    omit_stages: frozenset[str] = frozenset()
    omit_managed_fields: bool = False

    def matches(self, request: AuditedRequest) -> bool:
        if self.users and request.user.name not in self.users:
            return False
        if self.groups and self.groups.isdisjoint(request.user.groups):
            return False
        if self.verbs and request.verb not in self.verbs:
            return False
        if self.resources or self.namespaces:
            return bool(request.resource) and self._matches_resource(request)
        if self.urls:
            return not request.resource and any(_url_matches(each, request.path) for each in self.urls)
        return True

    def _matches_resource(self, request: AuditedRequest) -> bool:
        if self.namespaces and request.namespace not in self.namespaces:
            return False
        return not self.resources or any(each.matches(request) for each in self.resources)

    def names_resource(self, request: AuditedRequest) -> bool:
        return any(each.names_resource(request) for each in self.resources)


def _url_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


_NOTHING = AuditRule(AuditLevel.NONE)


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    rules: tuple[AuditRule, ...]

    def rule_for(self, request: AuditedRequest) -> AuditRule:
        """The first that matches; without one nothing is recorded."""
        return next((rule for rule in self.rules if rule.matches(request)), _NOTHING)


# ---- reading ----


def parse_policy(text: bytes) -> AuditPolicy:
    """Raises AuditPolicyError."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise AuditPolicyError(f"is not YAML: {str(error).partition(chr(10))[0]}") from error
    top = _mapping(document, "the policy", _POLICY_KEYS)
    if (top.get("apiVersion"), top.get("kind")) != (API_VERSION, "Policy"):
        raise AuditPolicyError(f"must have apiVersion {API_VERSION} and kind Policy")
    rules = top.get("rules")
    if not isinstance(rules, list) or not rules:
        raise AuditPolicyError("rules: there must be at least one rule")
    stages = _stages(top, "omitStages")
    managed = _flag(top, "omitManagedFields", "omitManagedFields", default=False)
    return AuditPolicy(tuple(_rule(each, f"rules[{index}]", stages, managed) for index, each in enumerate(rules)))


def _rule(value: Any, path: str, stages: frozenset[str], managed: bool) -> AuditRule:
    given = _mapping(value, path, _RULE_KEYS)
    level = given.get("level")
    if not isinstance(level, str) or level not in LEVELS:
        raise AuditPolicyError(f"{path}.level: must be one of {', '.join(LEVELS)}, not {level!r}")
    resources = given.get("resources") or []
    if not isinstance(resources, list):
        raise AuditPolicyError(f"{path}.resources: must be a list")
    urls, namespaces = _texts(given, "nonResourceURLs", path), _texts(given, "namespaces", path)
    if urls and (resources or namespaces):
        why = "rules cannot apply to both regular resources and non-resource URLs"
        raise AuditPolicyError(f"{path}.nonResourceURLs: {why}")
    for url in urls:
        if url != "*" and (not url.startswith("/") or "*" in url[:-1]):
            why = "must begin with / and may have * only at the end"
            raise AuditPolicyError(f"{path}.nonResourceURLs: {url!r} {why}")
    return AuditRule(
        level=LEVELS[level],
        users=frozenset(_texts(given, "users", path)),
        groups=frozenset(_texts(given, "userGroups", path)),
        verbs=frozenset(_texts(given, "verbs", path)),
        resources=tuple(_resources(each, f"{path}.resources[{index}]") for index, each in enumerate(resources)),
        namespaces=frozenset(namespaces),
        urls=urls,
        omit_stages=stages | _stages(given, f"{path}.omitStages"),
        omit_managed_fields=_flag(given, "omitManagedFields", f"{path}.omitManagedFields", default=managed),
    )


def _resources(value: Any, path: str) -> GroupResources:
    given = _mapping(value, path, _RESOURCE_KEYS)
    group = given.get("group") or ""
    if not isinstance(group, str) or "/" in group:
        raise AuditPolicyError(f"{path}.group: must be the name of an API group without version, not {group!r}")
    resources, names = _texts(given, "resources", path), _texts(given, "resourceNames", path)
    if names and not resources:
        raise AuditPolicyError(f"{path}.resourceNames: using resourceNames requires at least one resource")
    return GroupResources(group, resources, names)


def _mapping(value: Any, path: str, known: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AuditPolicyError(f"{path}: must be a mapping")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise AuditPolicyError(f"{path}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return value


def _texts(given: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
    value = given.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AuditPolicyError(f"{path}.{key}: must be a list of texts")
    return tuple(value)


def _stages(given: Mapping[str, Any], path: str) -> frozenset[str]:
    value: Sequence[Any] = given.get("omitStages") or ()
    if not isinstance(value, (list, tuple)) or not all(each in STAGES for each in value):
        raise AuditPolicyError(f"{path}: must be a list of {', '.join(STAGES)}")
    return frozenset(value)


def _flag(given: Mapping[str, Any], key: str, path: str, *, default: bool) -> bool:
    value = given.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise AuditPolicyError(f"{path}: must be true or false")
    return value
