"""RBAC rules as compiled values: what a rule allows, and what one rule grants of another.

Matching follows Kubernetes to the letter, because people reason about it from there:
`*` stands alone (never `pod*`); `pods` is not `pods/log`; `*/scale` is `scale` of anything, but `pods/*` is nothing;
resource names limit a rule only when given; non-resource URLs may end in `*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

GROUP = "rbac.authorization.k8s.io"
ALL = "*"


class Attributes(NamedTuple):
    """What is asked. A request for a resource has `resource`, any other has `path`. What stands before `name` is the key
    under which an answer is remembered."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    path: str = ""
    name: str = ""
    labels: str = ""
    """The label selector of a list or watch of Nodes: an owner of nodes may list those that have its label. RBAC does not look at it."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()

    def allows_resource(self, verb: str, group: str, resource: str, subresource: str) -> bool:
        """Whether the rule is about this at all; `names` may still limit it to some objects."""
        if verb not in self.verbs and ALL not in self.verbs:
            return False
        if group not in self.groups and ALL not in self.groups:
            return False
        resources = self.resources
        if ALL in resources:
            return True
        if not subresource:
            return resource in resources
        return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources

    def allows_url(self, verb: str, path: str) -> bool:
        if verb not in self.verbs and ALL not in self.verbs:
            return False
        return any(url_covers(url, path) for url in self.urls)


def url_covers(pattern: str, path: str) -> bool:
    return pattern in (ALL, path) or (pattern.endswith(ALL) and path.startswith(pattern[:-1]))


def compile_rule(rule: Mapping[str, Any]) -> PolicyRule:
    return PolicyRule(
        verbs=frozenset(rule.get("verbs") or ()),
        groups=frozenset(rule.get("apiGroups") or ()),
        resources=frozenset(rule.get("resources") or ()),
        names=frozenset(rule.get("resourceNames") or ()),
        urls=tuple(rule.get("nonResourceURLs") or ()),
    )


def compile_rules(rules: Iterable[Mapping[str, Any]] | None) -> tuple[PolicyRule, ...]:
    return tuple(compile_rule(rule) for rule in rules or ())


def rule_json(rule: PolicyRule) -> dict[str, list[str]]:
    """The rule as objects hold it, without what is empty."""
    parts = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
        "resourceNames": sorted(rule.names),
        "nonResourceURLs": list(rule.urls),
    }
    return {key: value for key, value in parts.items() if value}


def covers(held: Sequence[PolicyRule], wanted: PolicyRule) -> list[PolicyRule]:
    """The simple pieces of `wanted` (one verb, one resource, one name) that no rule of `held` grants."""
    return [piece for piece in _pieces(wanted) if not any(_covers_piece(rule, piece) for rule in held)]


def _pieces(rule: PolicyRule) -> Iterable[PolicyRule]:
    names: Iterable[frozenset[str]] = [frozenset({name}) for name in sorted(rule.names)] or [frozenset()]
    for verb in sorted(rule.verbs):
        for group in sorted(rule.groups):
            for resource in sorted(rule.resources):
                for name in names:
                    yield PolicyRule(frozenset({verb}), frozenset({group}), frozenset({resource}), name)
        for url in rule.urls:
            yield PolicyRule(frozenset({verb}), urls=(url,))


def _covers_piece(held: PolicyRule, piece: PolicyRule) -> bool:
    if not (piece.verbs <= held.verbs or ALL in held.verbs):
        return False
    if piece.urls:
        return any(url_covers(url, piece.urls[0]) for url in held.urls)
    if not (piece.groups <= held.groups or ALL in held.groups):
        return False
    if held.names and not (piece.names and piece.names <= held.names):
        return False
    if ALL in held.resources or piece.resources <= held.resources:
        return True
    (resource,) = piece.resources
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in held.resources
