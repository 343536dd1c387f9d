"""Which rules an aggregated role should be given. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.kube.api.aggregation import aggregated_rules
from coterie.kube.api.meta import Object
from coterie.kube.api.types.rbac import ClusterRole


def correction(role: ClusterRole | None, roles: Iterable[ClusterRole]) -> Object | None:
    """The merge patch that makes the rules right, if they are not."""
    if role is None or role.metadata.deleting:
        return None
    wanted = aggregated_rules(role, roles)
    if wanted is None or list(wanted) == list(role.rules or ()):
        return None
    # The version makes the patch void when somebody changed the selectors meanwhile.
    return {"metadata": {"resourceVersion": role.metadata.resource_version}, "rules": list(wanted)}
