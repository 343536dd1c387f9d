"""The fields in which two values differ: a walk that enters only branches that do.

A status patch leaves everything else of a pod identical, mostly even the same Python object, so identity first and
equality second cut off all other branches before they cost anything.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.fields.collect import created, without_bare_metadata
from coterie.kube.api.fields.fieldset import MEMBER, SELF, FieldsV1
from coterie.kube.api.fields.layout import FieldLayout, Form
from coterie.kube.api.schema.node import MISSING

Change = tuple[FieldsV1 | None, FieldsV1 | None]
"""(added or modified, removed). A removed path stands for everything below it too."""


def difference_of(layout: FieldLayout, old: dict[str, Any], new: dict[str, Any]) -> tuple[FieldsV1, FieldsV1]:
    """What an object's change touches. `layout` is a root layout."""
    if old is new:
        return {}, {}
    changed, removed = _diff_map(layout, old, new)
    return without_bare_metadata(changed or {}), removed or {}


def _diff(layout: FieldLayout, old: Any, new: Any) -> Change:
    """Of two values that are known to differ and both exist."""
    form = layout.form
    if form is Form.LEAF:
        return MEMBER, None
    if form is Form.MAP or form is Form.ANY:
        if old.__class__ is dict and new.__class__ is dict:
            return _diff_map(layout, old, new)
    elif old.__class__ is list and new.__class__ is list:
        return _diff_list(layout, old, new)
    # Another type, or null: the new value replaces the old one with all its fields.
    node = created(layout, new)
    return (node if not node or SELF in node else {SELF: MEMBER, **node}), None


def _diff_map(layout: FieldLayout, old: dict[str, Any], new: dict[str, Any]) -> Change:
    changed: FieldsV1 = {}
    removed: FieldsV1 = {}
    skip = layout.skip
    kept = 0
    for key, after in new.items():
        before = old.get(key, MISSING)
        if before is not MISSING:
            kept += 1
            if before is after or before == after or key in skip:
                continue
            more, less = _diff(layout.child(key), before, after)
            if more is not None:
                changed["f:" + key] = more
            if less is not None:
                removed["f:" + key] = less
        elif key not in skip:
            changed["f:" + key] = created(layout.child(key), after)
    if kept != len(old):
        for key in old:
            if key not in new and key not in skip:
                removed["f:" + key] = MEMBER
    return changed or None, removed or None


def _diff_list(layout: FieldLayout, old: list[Any], new: list[Any]) -> Change:
    before = by_element(layout, old)
    after = by_element(layout, new)
    if before is None or after is None:
        return MEMBER, None
    changed: FieldsV1 = {}
    removed: FieldsV1 = {}
    for element, items in after.items():
        were = before.get(element)
        if were == items:
            continue
        if were is None:
            changed[element] = _fresh(layout, items)
        elif len(were) > 1 or len(items) > 1:
            # Items that share a key are owned as one. What was owned below the key ends; the key is owned anew.
            changed[element] = _fresh(layout, items)
            if len(were) == 1:
                removed[element] = MEMBER
        else:
            more, less = _diff(layout.items(), were[0], items[0])
            if more is not None:
                changed[element] = more
            if less is not None:
                removed[element] = less
    for element in before:
        if element not in after:
            removed[element] = MEMBER
    return changed or None, removed or None


def _fresh(layout: FieldLayout, items: list[Any]) -> FieldsV1:
    return MEMBER if len(items) > 1 or layout.form is Form.SET else created(layout.items(), items[0])


def by_element(layout: FieldLayout, value: list[Any]) -> dict[str, list[Any]] | None:
    """The items of a list under their path elements; None when one cannot be named."""
    out: dict[str, list[Any]] = {}
    for item in value:
        element = layout.element(item)
        if element is None:
            return None
        same = out.get(element)
        if same is None:
            out[element] = [item]
        else:
            same.append(item)
    return out
