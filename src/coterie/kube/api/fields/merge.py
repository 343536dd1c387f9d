"""An applied configuration laid over a live value, as the schema says each part merges.

Maps merge key by key, keyed lists item by item, sets by value, everything else is replaced. The order of a merged
list is the applied one for applied items; items of others keep their place between them. What is equal is kept as
the live object, so an apply that changes nothing gives back the live object itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from coterie.kube.api.fields.layout import FieldLayout, Form
from coterie.kube.api.schema.node import MISSING


def merge(layout: FieldLayout, live: Any, config: Any) -> Any:
    if live is config:
        return live
    form = layout.form
    if form is Form.MAP or form is Form.ANY:
        if live.__class__ is dict and config.__class__ is dict:
            return _merge_map(layout, live, config)
    elif form is not Form.LEAF and live.__class__ is list and config.__class__ is list:
        return _merge_list(layout, live, config)
    return live if same(live, config) else fresh(layout, config)


def _merge_map(layout: FieldLayout, live: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] | None = None
    for key, wanted in config.items():
        before = live.get(key, MISSING)
        if before is wanted:
            continue
        child = layout.child(key)
        if wanted is None and child.form is not Form.ANY:
            after = _null(layout, child, key, before)
        elif before is MISSING:
            after = fresh(child, wanted)
        else:
            after = merge(child, before, wanted)
        if after is before:
            continue
        if out is None:
            out = dict(live)
        if after is MISSING:
            del out[key]
        else:
            out[key] = after
    return live if out is None else out


def _null(layout: FieldLayout, child: FieldLayout, key: str, before: Any) -> Any:
    """An applied null clears a scalar field and says nothing about containers or about what the server sets."""
    return MISSING if child.form is Form.LEAF and key not in layout.skip else before


def fresh(layout: FieldLayout, config: Any) -> Any:
    """A value that was not there before: the configuration without its nulls (null is "not given")."""
    if config.__class__ is dict and layout.form is Form.MAP:
        return _fresh_map(layout, config)
    if config.__class__ is list and layout.form is Form.KEYED:
        items = layout.items()
        out = [fresh(items, item) for item in config]
        return config if all(map(_is, out, config)) else out
    return config


def _fresh_map(layout: FieldLayout, config: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] | None = None
    for key, value in config.items():
        child = layout.child(key)
        if value is None and child.form is not Form.ANY:
            after = MISSING
        elif value.__class__ is dict or value.__class__ is list:
            after = fresh(child, value)
        else:
            continue
        if after is not value:
            if out is None:
                out = dict(config)
            if after is MISSING:
                del out[key]
            else:
                out[key] = after
    return config if out is None else out


def _is(left: Any, right: Any) -> bool:
    return left is right


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: Python's True == 1 is no equality here."""
    if left.__class__ is bool or right.__class__ is bool:
        return left is right
    if left != right:
        return False
    if left.__class__ is dict:
        return all(same(value, right[key]) for key, value in left.items())
    if left.__class__ is list:
        return all(map(same, left, right))
    return True


def _merge_list(layout: FieldLayout, live: list[Any], config: list[Any]) -> list[Any]:
    ours = [layout.element(item) for item in live]
    theirs = [layout.element(item) for item in config]
    if None in ours:
        return config  # the live list cannot be merged by key; it is replaced
    wanted = dict(zip(theirs, config, strict=True))
    where: dict[str | None, int] = {}
    for index, element in enumerate(ours):
        # Live items that share a key have no counterpart to merge with: the applied one replaces them all.
        where[element] = -1 if element in where else index
    places = [where.get(element, -1) for element in theirs]
    merged = [
        fresh(layout.items(), item) if place < 0 else _merge_item(layout, live[place], item)
        for place, item in zip(places, config, strict=True)
    ]
    if -1 not in places and all(a < b for a, b in pairwise(places)):
        if all(merged[n] is live[place] for n, place in enumerate(places)):
            return live
        out = list(live)
        for place, item in zip(places, merged, strict=True):
            out[place] = item
        return out
    return _interleave(live, ours, merged, theirs, wanted)


def _merge_item(layout: FieldLayout, live: Any, config: Any) -> Any:
    return live if layout.form is Form.SET else merge(layout.items(), live, config)


def _interleave(
    live: list[Any], ours: list[str | None], merged: list[Any], theirs: list[str | None], wanted: dict[str | None, Any]
) -> list[Any]:
    """Applied items in applied order; a live-only item stands behind the live items it stood behind."""
    out: list[Any] = []
    known = set(ours)
    shared = [element for element in theirs if element in known]
    done: set[str | None] = set()
    left = right = turn = 0
    while left < len(ours) or right < len(theirs):
        next_shared = shared[turn] if turn < len(shared) else None
        if left < len(ours):
            element = ours[left]
            if element not in wanted:
                out.append(live[left])
                left += 1
                continue
            if element in done:
                left += 1
                continue
            if right < len(theirs) and next_shared is not None and element != next_shared and element != theirs[right]:
                left += 1  # shared, but applied later than others: it is placed when its turn comes
                continue
        if right < len(theirs):
            element = theirs[right]
            out.append(merged[right])
            done.add(element)
            if left < len(ours) and ours[left] == element:
                left += 1
            if element == next_shared:
                turn += 1
            right += 1
    return out
