"""The merge patch that turns one state of a typed object into another: only what differs, nulls for what went away."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.meta import Model, Object


def changes(before: Model, after: Model) -> Object | None:
    """None when both write the same JSON, so that callers can skip the request."""
    return difference(msgspec.to_builtins(before), msgspec.to_builtins(after)) or None


def difference(before: Object, after: Object) -> Object:
    """RFC 7386: objects are compared inside, everything else is replaced whole."""
    out: dict[str, Any] = dict.fromkeys(key for key in before if key not in after)
    for key, new in after.items():
        old = before.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := difference(old, new):
                out[key] = inner
        elif key not in before or not _same(old, new):
            out[key] = new
    return out


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
