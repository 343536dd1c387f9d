"""Helpers of the tests of rules: a good object, one place changed, and what the rules then say."""

from __future__ import annotations

import copy
import re
from typing import Any

from coterie.kube.api.rules import RULES

Obj = dict[str, Any]
GONE: Any = object()
"""Stands for "take this field away"."""


def put(obj: Obj, path: str, value: Any) -> Obj:
    """A copy with the value at a path such as `spec.containers[0].image`."""
    out = copy.deepcopy(obj)
    *parents, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    place: Any = out
    for part in parents:
        if isinstance(place, dict) and part not in place:
            place[part] = {}
        place = place[part]
    if value is GONE:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return out


def created(kind: tuple[str, str], obj: Obj) -> Obj:
    """The object as the server would store it."""
    out = copy.deepcopy(obj)
    RULES[kind].default(out)
    out.setdefault("metadata", {}).setdefault("uid", "uid-1")
    RULES[kind].prepare_create(out)
    return out


def faults(kind: tuple[str, str], obj: Obj) -> list[str]:
    """What is wrong with a new object."""
    return [str(error) for error in RULES[kind].validate_create(created(kind, obj))]


def change_faults(kind: tuple[str, str], old: Obj, new: Obj) -> list[str]:
    """What is wrong with a change of a stored object; `new` is what the client sends."""
    new = copy.deepcopy(new)
    RULES[kind].default(new)
    RULES[kind].prepare_update(new, old)
    return [str(error) for error in RULES[kind].validate_update(new, old)]
