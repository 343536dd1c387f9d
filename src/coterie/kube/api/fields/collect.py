"""All fields of one value, in two readings that Kubernetes keeps apart.

`created` is what a manager owns that brought the value into being by create or update: every node of it, containers
too. `applied` is what a configuration given to server-side apply claims: leaves, list items and free map keys, but
not the named containers around them (they vanish when the last field in them does).

Creates are the hot path. Objects of one kind come in few shapes, and the leaves of a shape are always the same, so
each layout remembers for a tuple of keys the finished node of leaves and the few fields below which it must look.
Results therefore share nodes between objects.
"""

from __future__ import annotations

from typing import Any, Final

from coterie.kube.api.errors import BadRequest
from coterie.kube.api.fields.fieldset import MEMBER, SELF, FieldsV1, Path, pretty
from coterie.kube.api.fields.layout import FieldLayout, Form, Plan, Walk

_PLANS: Final = 256
"""Shapes remembered by one layout."""
_WIDEST: Final = 16
"""Free keys (labels, data) in a shape worth remembering."""

_SHORT: Final = 64
"""Length of list items' names worth remembering."""


class MalformedConfiguration(BadRequest):
    """An applied configuration whose form does not fit its schema."""


def created(layout: FieldLayout, value: Any) -> FieldsV1:
    """The fields of a new value, the value's own node included."""
    return _CREATED[layout.form](layout, value)


def created_object(root: FieldLayout, obj: dict[str, Any]) -> FieldsV1:
    """The fields of a whole new object; a root has no node of its own."""
    return without_bare_metadata(_created_map(root, obj))


def without_bare_metadata(fields: FieldsV1) -> FieldsV1:
    """Metadata is nobody's, only fields in it are: it must not look like a member when all of them were skipped."""
    if fields.get("f:metadata", True):
        return fields
    return {element: node for element, node in fields.items() if element != "f:metadata"}


def _created_leaf(layout: FieldLayout, value: Any) -> FieldsV1:
    return MEMBER


def _created_map(layout: FieldLayout, value: Any) -> FieldsV1:
    if value.__class__ is not dict:
        return MEMBER
    shape = tuple(value)
    try:
        node, below = layout.plans[shape]
    except KeyError:
        node, below = _make_plan(layout, shape)
    if below:
        node = node.copy()
        for key, element, walk, child in below:
            node[element] = walk(child, value[key])
    return node


def _make_plan(layout: FieldLayout, shape: tuple[str, ...]) -> Plan:
    node: FieldsV1 = {SELF: MEMBER} if layout.dotted and shape else {}
    below: list[tuple[str, str, Walk, FieldLayout]] = []
    free = 0
    for key in shape:
        if key in layout.skip:
            continue
        free += not layout.is_named(key)
        child = layout.child(key)
        node["f:" + key] = MEMBER  # also where it will be replaced: a copy that need not grow is cheaper
        if child.form is not Form.LEAF:
            below.append((key, "f:" + key, _CREATED[child.form], child))
    plan: Plan = (node, tuple(below))
    if free <= _WIDEST:
        if len(layout.plans) >= _PLANS:
            layout.plans.clear()
        layout.plans[shape] = plan
    return plan


def _created_list(layout: FieldLayout, value: Any) -> FieldsV1:
    if value.__class__ is not list or not value:
        return MEMBER
    node: FieldsV1 = {SELF: MEMBER} if layout.dotted else {}
    size = len(node)
    if layout.form is Form.SET:
        for item in value:
            node[layout.element(item) or SELF] = MEMBER
        return node
    items = layout.item or layout.items()
    walk = _CREATED[items.form]
    key, known = layout.key, layout.names
    for item in value:
        # By far most lists have one key, a short string that was seen before.
        name = item.get(key) if item.__class__ is dict else None
        element = known.get(name) if name.__class__ is str else None
        if element is None:
            element = layout.element(item)
            if element is None:
                return MEMBER  # an item without key: the list cannot be owned in parts
            if key and name.__class__ is str and len(name) <= _SHORT:
                layout.remember(name, element)
        node[element] = walk(items, item)
    if len(node) - size != len(value):
        _only_membership(layout, value, node)
    return node


def _only_membership(layout: FieldLayout, value: list[Any], node: FieldsV1) -> None:
    """Items that share a key are owned as one: nothing below them can be named."""
    seen: set[str | None] = set()
    for item in value:
        element = layout.element(item)
        if element in seen and element is not None:
            node[element] = MEMBER
        seen.add(element)


def _created_any(layout: FieldLayout, value: Any) -> FieldsV1:
    if value.__class__ is not dict or not value:
        return MEMBER
    node: FieldsV1 = {SELF: MEMBER}
    for key, below in value.items():
        node["f:" + key] = _created_any(layout, below) if below.__class__ is dict else MEMBER
    return node


_CREATED: Final[dict[Form, Walk]] = {
    Form.LEAF: _created_leaf,
    Form.MAP: _created_map,
    Form.KEYED: _created_list,
    Form.SET: _created_list,
    Form.ANY: _created_any,
}


def applied(layout: FieldLayout, value: dict[str, Any]) -> FieldsV1:
    """The fields that an applied configuration claims; `MalformedConfiguration` when it does not fit the schema."""
    return without_bare_metadata(_applied_map(layout, value, ()) or {})


def _applied(layout: FieldLayout, value: Any, path: Path) -> FieldsV1 | None:
    """None: the value claims nothing (a container without content says nothing about itself)."""
    form = layout.form
    if form is Form.LEAF or value is None or (form is Form.ANY and value.__class__ is not dict):
        return MEMBER
    if form is Form.MAP or form is Form.ANY:
        if value.__class__ is not dict:
            raise MalformedConfiguration(f"{pretty(path)}: expected map, got {_named(value)}")
        return _applied_map(layout, value, path) if value else MEMBER
    if value.__class__ is not list:
        raise MalformedConfiguration(f"{pretty(path)}: expected list, got {_named(value)}")
    return _applied_list(layout, value, path)


def _applied_map(layout: FieldLayout, value: dict[str, Any], path: Path) -> FieldsV1 | None:
    node: FieldsV1 = {}
    for key, below in value.items():
        if key in layout.skip:
            continue
        element = "f:" + key
        child = layout.child(key)
        named = layout.is_named(key)
        if not named and not layout.declares(key):
            raise MalformedConfiguration(f"{pretty((*path, element))}: field not declared in schema")
        if child.form is Form.LEAF:
            node[element] = MEMBER
            continue
        found = _applied(child, below, (*path, element))
        if not named:
            found = _member(found)
        if found is not None:
            node[element] = found
    return node or None


def _applied_list(layout: FieldLayout, value: list[Any], path: Path) -> FieldsV1 | None:
    node: FieldsV1 = {}
    items = layout.items() if layout.form is Form.KEYED else None
    for index, item in enumerate(value):
        element = layout.element(item)
        if element is None:
            keys = ", ".join(f'"{key}"' for key, _ in layout.keys)
            raise MalformedConfiguration(
                f"{pretty(path)}: element {index}: associative list with keys has an element that omits key field "
                f"{keys} (and doesn't have default value)"
            )
        if element in node:
            raise MalformedConfiguration(f"{pretty(path)}: duplicate entries for key {pretty((element,))}")
        node[element] = MEMBER if items is None else _member(_applied(items, item, (*path, element)))
    return node or None


def _member(found: FieldsV1 | None) -> FieldsV1:
    if not found:
        return MEMBER
    return found if SELF in found else {SELF: MEMBER, **found}


def _named(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return {"str": "string", "list": "list", "dict": "map"}.get(type(value).__name__, "null")
