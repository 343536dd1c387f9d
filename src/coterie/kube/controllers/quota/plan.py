"""What a quota's status should say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kube.api.quota import as_json, quota_usage, tracked_resource
from coterie.kube.api.types.core import ResourceQuota

FULL_OBJECTS = frozenset(("pods", "services", "persistentvolumeclaims"))
"""Resources of which more than the number matters."""


def needed_resources(quota: ResourceQuota) -> set[str]:
    """`<plural>.<group>` of what has to be counted."""
    return {tracked_resource(name) for name in quota.spec.hard or ()}


def status_patch(quota: ResourceQuota, objects: Mapping[str, Iterable[Mapping[str, Any]]]) -> Object | None:
    """The change of the status, or None when it is right already."""
    spec = msgspec.to_builtins(quota.spec)
    hard = {name: quantity.canonical(value) for name, value in (quota.spec.hard or {}).items()}
    used = as_json(quota_usage(spec, objects))
    status = quota.status
    if status.hard == hard and status.used == used:
        return None
    return {"status": {"hard": _replacing(status.hard, hard), "used": _replacing(status.used, used)}}


def _replacing(old: Mapping[str, Any] | None, new: Mapping[str, str]) -> dict[str, str | None]:
    """A merge patch that leaves exactly `new`."""
    return {**{name: None for name in old or () if name not in new}, **new}
