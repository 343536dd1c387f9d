"""Cluster roles, as far as aggregation looks at them."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind, builtin


class AggregationRule(Model, frozen=True, kw_only=True):
    cluster_role_selectors: tuple[dict[str, Any], ...] | None = None


class ClusterRole(ApiObject, frozen=True, kw_only=True):
    """Rules stay plain data: they are compared and copied, never interpreted here."""

    rules: tuple[dict[str, Any], ...] | None = None
    aggregation_rule: AggregationRule | None = None


CLUSTER_ROLES = Kind(builtin("clusterroles", "rbac.authorization.k8s.io"), ClusterRole)
