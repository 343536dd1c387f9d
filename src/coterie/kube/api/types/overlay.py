"""Lays the change made to a typed view over the whole object it was read from.

A typed object knows only some fields. To write a change of it without erasing the rest, the view before and after the
change are compared and only the difference is carried into the original JSON. Elements of lists are matched by the
key that names them (`name`, `type`, `uid`, ...), else by position, so fields the view does not know survive there too.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import Object

_NAMING_KEYS = ("uid", "name", "type", "key", "ip", "containerPort", "port")


def overlay(original: Object, before: Object, after: Object) -> Object:
    """`original` with what changed between `before` and `after`; none of the three is modified."""
    out = dict(original)
    for key in before:
        if key not in after:
            out.pop(key, None)
    for key, new in after.items():
        if key not in before:
            out[key] = _join(original.get(key), None, new)
        elif before[key] != new:
            out[key] = _join(original.get(key), before[key], new)
    return out


def _join(original: Any, before: Any, after: Any) -> Any:
    if isinstance(after, dict) and isinstance(original, dict):
        return overlay(original, before if isinstance(before, dict) else {}, after)
    if isinstance(after, list) and isinstance(original, list) and isinstance(before, list):
        return _join_lists(original, before, after)
    return after


def _join_lists(original: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    # The view was decoded from the original, so both have the same elements in the same places.
    if len(original) != len(before):
        return after
    name_of = _naming_key(before, after)
    if name_of is None:
        same_length = len(before) == len(after)
        return [
            _join(original[i], before[i], new) if same_length and isinstance(new, dict) else new
            for i, new in enumerate(after)
        ]
    places = {element[name_of]: i for i, element in enumerate(before)}
    out = []
    for new in after:
        i = places.get(new[name_of])
        out.append(new if i is None else _join(original[i], before[i], new))
    return out


def _naming_key(before: list[Any], after: list[Any]) -> str | None:
    """The first key that tells all elements apart, on both sides."""
    if not all(isinstance(element, dict) for element in (*before, *after)):
        return None
    for key in _NAMING_KEYS:
        if all(_names_all(elements, key) for elements in (before, after)):
            return key
    return None


def _names_all(elements: list[dict[str, Any]], key: str) -> bool:
    values = [element.get(key) for element in elements]
    return all(isinstance(v, (str, int)) for v in values) and len(set(values)) == len(values)
