"""JSON merge patch (RFC 7386): a partial object; objects merge, null deletes, everything else replaces."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import BadRequest

Object = dict[str, Any]


def merge_patch(current: Object, patch: object) -> Object:
    if not isinstance(patch, dict):
        raise BadRequest("error decoding patch: a merge patch must be a JSON object")
    return _merge(current, patch)


def _merge(current: Object, patch: Object) -> Object:
    out: Object | None = None
    for key, wanted in patch.items():
        if wanted is None:
            if key in current:
                out = dict(current) if out is None else out
                del out[key]
            continue
        before = current.get(key)
        if isinstance(wanted, dict):
            after: Any = _merge(before if isinstance(before, dict) else {}, wanted)
            if after is before and key in current:
                continue
        elif before is wanted and key in current:
            continue
        else:
            after = wanted
        out = dict(current) if out is None else out
        out[key] = after
    return current if out is None else out
