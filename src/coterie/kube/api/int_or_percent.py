"""Values that are a number or a percentage of a total, such as maxUnavailable and maxSurge."""

from __future__ import annotations

from coterie.kube.api.types.apps import IntOrPercent


def resolve(value: IntOrPercent | None, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total; a part of a pod is rounded as asked."""
    if value is None:
        return 0
    if isinstance(value, int):
        return max(0, value)
    share = int(value.rstrip("%")) * total
    return -(-share // 100) if up else share // 100
