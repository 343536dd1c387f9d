"""Validation ratcheting: an update is not refused for what was invalid before it and stays as it was.

Faults are found first and looked up afterwards, so that valid objects pay nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from coterie.kube.api.errors import FieldError
from coterie.kube.api.schema.node import MISSING, Schema

_INDEX: Final = re.compile(r"\[(\d+)\]")


def new_faults(faults: Iterable[FieldError], obj: Any, old: Any, schema: Schema) -> list[FieldError]:
    """The faults that the update brings in."""
    return [fault for fault in faults if not _is_old(fault.field, obj, old, schema)]


def _is_old(path: str, obj: Any, old: Any, schema: Schema) -> bool:
    """Follow `path` in both objects as far as their parts belong together; a field that is missing is its object's."""
    node: Schema | None = schema
    rest = "" if path == "<nil>" else path
    while rest:
        if type(obj) is dict and type(old) is dict:
            key, after = _key(rest, obj)
            if key is None or key not in old:
                break
            obj, old, rest = obj[key], old[key], after
            node = node and (node.properties.get(key) or node.additional)
        elif type(obj) is list and type(old) is list and node is not None and node.list_type == "map":
            found = _INDEX.match(rest)
            if found is None or int(found[1]) >= len(obj):
                break
            item = obj[int(found[1])]
            old = _same_item(item, old, node.list_keys)
            if old is MISSING:
                return False
            obj, rest, node = item, rest[found.end() :], node.items
        else:
            break
    return bool(obj == old)


def _key(rest: str, obj: dict[str, Any]) -> tuple[str | None, str]:
    """The key at the front of `rest` and what follows: keys may hold dots and brackets, so the object decides."""
    best: str | None = None
    after = ""
    text = rest.removeprefix(".")
    for key in obj:
        if rest.startswith(f"[{key}]"):
            return key, rest[len(key) + 2 :]
        if text.startswith(key) and text[len(key) : len(key) + 1] in ("", ".", "[") and len(key) > len(best or ""):
            best, after = key, text[len(key) :]
    return best, after


def _same_item(item: Any, old: list[Any], keys: tuple[str, ...]) -> Any:
    if type(item) is not dict:
        return MISSING
    wanted = [item.get(key) for key in keys]
    for other in old:
        if type(other) is dict and [other.get(key) for key in keys] == wanted:
            return other
    return MISSING
