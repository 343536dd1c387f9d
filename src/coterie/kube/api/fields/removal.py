"""Removes from a merged object what a manager applied last time, does not apply now, and nobody else owns.

A named field counts as owned when anything below it is (its container must stand); list items and free map keys only
when they are members themselves. A removed value goes with everything in it, so an item disappears with its owner
even if others changed single fields of it.
"""

from __future__ import annotations

from typing import Any, Final

from coterie.kube.api.fields.fieldset import SELF, FieldsV1, is_member
from coterie.kube.api.fields.layout import FieldLayout, Form

_GONE: Final = object()
_NAME: Final[FieldsV1] = {"f:metadata": {"f:name": {}}}


def remove_abandoned(layout: FieldLayout, obj: dict[str, Any], gone: FieldsV1, owned: list[FieldsV1]) -> dict[str, Any]:
    """`gone`: what the manager owned before and does not now; `owned`: what everybody, the manager included, owns."""
    # The object's name is in every configuration, but never recorded: it keeps the metadata standing.
    left = _remove_from_map(layout, obj, gone, [*owned, _NAME])
    return {} if left is _GONE else left


def _remove(layout: FieldLayout, value: Any, gone: FieldsV1, owned: list[FieldsV1]) -> Any:
    form = layout.form
    if form is Form.MAP or form is Form.ANY:
        return _remove_from_map(layout, value, gone, owned) if value.__class__ is dict else value
    if form is Form.LEAF or value.__class__ is not list:
        return value
    return _remove_from_list(layout, value, gone, owned)


def _remove_from_map(layout: FieldLayout, value: dict[str, Any], gone: FieldsV1, owned: list[FieldsV1]) -> Any:
    out: dict[str, Any] | None = None
    for element, node in gone.items():
        key = element[2:]
        if element == SELF or key not in value:
            continue
        left = _remaining(layout.child(key), value[key], node, _below(owned, element), layout.is_named(key))
        if left is value[key]:
            continue
        if out is None:
            out = dict(value)
        if left is _GONE:
            del out[key]
        else:
            out[key] = left
    if out is None:
        return value
    return out or _GONE


def _remove_from_list(layout: FieldLayout, value: list[Any], gone: FieldsV1, owned: list[FieldsV1]) -> Any:
    out: list[Any] = []
    is_same = True
    for item in value:
        element = layout.element(item)
        node = gone.get(element) if element is not None else None
        left = item
        if node is not None and element is not None:
            items = layout.items()
            left = _remaining(items, item, node, _below(owned, element), False)
        if left is not item:
            is_same = False
        if left is not _GONE:
            out.append(left)
    if is_same:
        return value
    return out or _GONE


def _remaining(layout: FieldLayout, value: Any, node: FieldsV1, owned: list[FieldsV1], named: bool) -> Any:
    was_ours = named or is_member(node)
    if was_ours and not (owned and (named or any(map(is_member, owned)))):
        return _GONE
    left = _remove(layout, value, node, owned) if node else value
    if left is _GONE and not all(owned):
        return value.__class__()  # somebody owns the container as an empty one
    return left


def _below(owned: list[FieldsV1], element: str) -> list[FieldsV1]:
    return [node for fields in owned if (node := fields.get(element)) is not None]
