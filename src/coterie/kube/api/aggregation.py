"""Aggregated cluster roles: the rules of a role that is the sum of others, chosen by label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.rbac import ClusterRole


def aggregated_rules(role: ClusterRole, roles: Iterable[ClusterRole]) -> tuple[dict[str, Any], ...] | None:
    """The rules the role should have, or None when it is not an aggregate.

    Roles are taken selector by selector, by name, so the result does not depend on the order of `roles`; a rule that
    is there already is not added again. A role never takes its own rules: it could then never lose one.
    """
    if role.aggregation_rule is None:
        return None
    rules: list[dict[str, Any]] = []
    others = sorted((r for r in roles if r.metadata.name != role.metadata.name), key=lambda r: r.metadata.name)
    for raw in role.aggregation_rule.cluster_role_selectors or ():
        selector = selector_of(raw)
        for other in others:
            if selector.matches(other.metadata.labels):
                rules += [rule for rule in other.rules or () if rule not in rules]
    return tuple(rules)
