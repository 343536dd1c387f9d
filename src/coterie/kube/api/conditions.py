"""Conditions of a status: a list keyed by `type`, whose transition time moves only when the status does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Condition = dict[str, Any]


def find_condition(conditions: Sequence[Condition] | None, kind: str) -> Condition | None:
    for condition in conditions or ():
        if condition.get("type") == kind:
            return condition
    return None


def is_true(conditions: Sequence[Condition] | None, kind: str) -> bool:
    found = find_condition(conditions, kind)
    return found is not None and found.get("status") == "True"


def with_condition(
    conditions: Sequence[Condition] | None, kind: str, status: str, reason: str, message: str, now: str
) -> list[Condition]:
    """The conditions with one of them set; equal to the input when nothing changed, so a caller can skip the write."""
    before = find_condition(conditions, kind)
    since = before.get("lastTransitionTime") if before and before.get("status") == status else None
    updated = {
        **(before or {"type": kind}),
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or now,
    }
    if before is None:
        return [*(conditions or ()), updated]
    return [updated if condition is before else condition for condition in conditions or ()]
