"""A schema as field ownership sees it: what is a leaf, what has named fields, how list items are told apart.

Layouts are made from schema nodes on first use and remembered. Each keeps what was learnt about the shapes (sets of
keys) of the objects that passed, which makes the fields of a new object a matter of a few look-ups (`collect.py`).

Parts without a schema are deduced from the value, as Kubernetes does: objects are granular, everything else is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from json.encoder import encode_basestring
from typing import Any, Final

import orjson

from coterie.kube.api.fields.fieldset import FieldsV1
from coterie.kube.api.schema.node import MISSING, Schema


class Form(IntEnum):
    LEAF = 0
    """Owned as a whole: scalars, atomic lists, atomic maps."""
    MAP = 1
    """Named fields, free keys, or both."""
    KEYED = 2
    """A list whose items are told apart by some of their fields."""
    SET = 3
    """A list whose items are told apart by their value."""
    ANY = 4
    """No schema: an object is a map of ANY, everything else a leaf."""


Walk = Callable[["FieldLayout", Any], FieldsV1]
Plan = tuple[FieldsV1, tuple[tuple[str, str, Walk, "FieldLayout"], ...]]
"""For one shape of object: the node with all its leaves, and the fields below which must be looked at."""


class FieldLayout:
    """One node. Read-only for everybody but the caches in here."""

    __slots__ = (
        "_children",
        "dotted",
        "form",
        "item",
        "key",
        "keys",
        "names",
        "parts",
        "plans",
        "prefix",
        "rest",
        "schema",
        "skip",
    )

    def __init__(self, schema: Schema, form: Form, dotted: bool, skip: frozenset[str] = frozenset()) -> None:
        self.schema = schema
        self.form = form
        self.dotted = dotted
        """Is the node itself a member when it is new? Not where Kubernetes always has the (empty) node already."""
        self.skip = skip
        """Fields nobody owns."""
        self.plans: dict[tuple[str, ...], Plan] = {}
        self._children: dict[str, FieldLayout] = {}
        self.rest: FieldLayout | None = None
        """Layout behind keys that the schema does not name; None while unknown."""
        self.item: FieldLayout | None = None
        self.keys: tuple[tuple[str, Any], ...] = ()
        """(field, default or MISSING) of a KEYED list, by name."""
        self.parts: tuple[tuple[str, str, Any], ...] = ()
        """The same as pieces of the items' path elements."""
        self.key = ""
        self.names: dict[str, str] = {}
        """Path elements of items whose one key had this value."""
        self.prefix = ""
        """The constant beginning of items' path elements when one field is the key."""
        if form is Form.KEYED and schema.items is not None:
            self.keys = tuple((key, _key_default(schema.items, key)) for key in sorted(schema.list_keys))
            self.parts = tuple((f",{encode_basestring(key)}:", key, default) for key, default in self.keys)
            if len(self.keys) == 1:
                self.key = self.keys[0][0]
                self.prefix = "k:{" + encode_basestring(self.key) + ":"

    def child(self, key: str) -> FieldLayout:
        """The layout of a field of this MAP (or ANY)."""
        known = self._children.get(key)
        if known is not None:
            return known
        named = self.schema.properties.get(key)
        if named is not None:
            found = layout_of(named, dotted=key not in self.schema.required)
            self._children[key] = found
            return found
        if self.rest is None:
            additional = self.schema.additional
            self.rest = ANY if additional is None else layout_of(additional)
        return self.rest

    def put_child(self, key: str, layout: FieldLayout) -> None:
        """Lay down a field by hand; only while a root is built."""
        self._children[key] = layout

    def items(self) -> FieldLayout:
        """The layout of the items of this KEYED list."""
        if self.item is None:
            self.item = layout_of(self.schema.items) if self.schema.items is not None else ANY
        return self.item

    def remember(self, name: str, element: str) -> None:
        if len(self.names) >= _NAMES:
            self.names.clear()
        self.names[name] = element

    def is_named(self, key: str) -> bool:
        return key in self.schema.properties or key in self._children

    def declares(self, key: str) -> bool:
        """May an applied configuration have this field? Open-ended nodes take any."""
        schema = self.schema
        return (
            self.is_named(key)
            or schema.additional is not None
            or schema.preserve_unknown
            or self.form is Form.ANY
            or not schema.properties
        )

    def element(self, item: Any) -> str | None:
        """The path element of a list item, or None when the item has no usable key."""
        if self.form is Form.SET:
            return "v:" + (encode_basestring(item) if item.__class__ is str else _dumps(item))
        if item.__class__ is not dict:
            return None
        if self.prefix:
            key, default = self.keys[0]
            value = item.get(key, default)
            if value.__class__ is str:
                return self.prefix + encode_basestring(value) + "}"
            return None if value is MISSING or value is None else self.prefix + _dumps(value) + "}"
        text = ""
        for opening, key, default in self.parts:
            value = item.get(key, default)
            if value is None:
                value = default
            if value.__class__ is str:
                text += opening + encode_basestring(value)
            elif value is not MISSING:
                text += opening + _dumps(value)
        return "k:{" + text[1:] + "}" if text else None


def _dumps(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:
        raise RecursionError from None  # the encoder refuses depths that Python still walks: told as the same fault


def _key_default(items: Schema, key: str) -> Any:
    """The value of an absent key field. The published built-in definitions leave these two defaults out."""
    named = items.properties.get(key)
    if named is not None and named.default is not MISSING:
        return named.default
    if key in items.required:
        return MISSING
    return {"protocol": "TCP", "name": ""}.get(key, MISSING)


def _form_of(schema: Schema) -> Form:
    if schema.int_or_string or schema.quantity:
        return Form.LEAF
    if schema.type == "object" or (not schema.type and (schema.properties or schema.additional is not None)):
        return Form.LEAF if schema.atomic_map else Form.MAP
    if schema.type == "array" or (not schema.type and schema.items is not None):
        if schema.list_type == "map" and schema.list_keys and schema.items is not None:
            return Form.KEYED
        return Form.SET if schema.list_type == "set" else Form.LEAF
    return Form.ANY if not schema.type else Form.LEAF


ANY: Final = FieldLayout(Schema(), Form.ANY, dotted=True)
_LEAF: Final = FieldLayout(Schema(type="string"), Form.LEAF, dotted=True)

_NAMES: Final = 1024
_LIMIT: Final = 20_000
"""Layouts kept; custom resource definitions come and go, so the memory must not grow with their history."""
_layouts: dict[tuple[int, bool], FieldLayout] = {}
_roots: dict[tuple[int, str], FieldLayout] = {}


def layout_of(schema: Schema, dotted: bool = True) -> FieldLayout:
    form = _form_of(schema)
    if form is Form.LEAF:
        return _LEAF
    if form is Form.ANY:
        return ANY
    known = _layouts.get((id(schema), dotted))
    if known is not None:
        return known
    if len(_layouts) >= _LIMIT:
        _layouts.clear()
        _roots.clear()
    # The layout holds its schema, so the id cannot be given to another one while the entry exists.
    made = _layouts[id(schema), dotted] = FieldLayout(schema, form, dotted)
    return made


MAIN, STATUS, WHOLE = "main", "status", "whole"
"""What a write can change: all but status, nothing but status, everything (kinds without that sub-resource)."""


def scope_of(subresource: str, has_status: bool) -> str:
    if subresource in ("status", "approval"):
        return STATUS
    return MAIN if has_status else WHOLE


_SKIPPED: Final = {
    MAIN: frozenset(("apiVersion", "kind", "status")),
    STATUS: frozenset(("apiVersion", "kind", "metadata")),
    WHOLE: frozenset(("apiVersion", "kind")),
}


def in_scope(obj: dict[str, Any], scope: str) -> dict[str, Any]:
    """The part of an object that a write in this scope can change (`root_layout` skips the rest of MAIN and WHOLE)."""
    if scope != STATUS:
        return obj
    return {"status": obj["status"]} if "status" in obj else {}


def root_layout(schema: Schema, scope: str) -> FieldLayout:
    """The layout of a whole object; its metadata is laid out alike for all kinds, whatever their schema says."""
    known = _roots.get((id(schema), scope))
    if known is not None:
        return known
    root = FieldLayout(schema, Form.MAP, dotted=False, skip=_SKIPPED[scope])
    root.put_child("metadata", _META)
    for key in ("spec", "status"):
        named = schema.properties.get(key)
        if named is not None:
            root.put_child(key, layout_of(named, dotted=False))
    if len(_roots) >= _LIMIT:
        _roots.clear()
    _roots[id(schema), scope] = root
    return root


_STRING: Final = Schema(type="string")
_STRINGS: Final = Schema(type="object", additional=_STRING)
OBJECT_META: Final = Schema(
    type="object",
    properties={
        "name": _STRING,
        "generateName": _STRING,
        "namespace": _STRING,
        "selfLink": _STRING,
        "uid": _STRING,
        "resourceVersion": _STRING,
        "generation": Schema(type="integer"),
        "creationTimestamp": _STRING,
        "deletionTimestamp": _STRING,
        "deletionGracePeriodSeconds": Schema(type="integer"),
        "labels": _STRINGS,
        "annotations": _STRINGS,
        "finalizers": Schema(type="array", items=_STRING, list_type="set"),
        "ownerReferences": Schema(
            type="array",
            list_type="map",
            list_keys=("uid",),
            items=Schema(
                type="object",
                atomic_map=True,
                required=("uid",),
                properties={
                    "apiVersion": _STRING,
                    "kind": _STRING,
                    "name": _STRING,
                    "uid": _STRING,
                    "controller": Schema(type="boolean"),
                    "blockOwnerDeletion": Schema(type="boolean"),
                },
            ),
        ),
        "managedFields": Schema(type="array"),
        "clusterName": _STRING,
    },
)
NEVER_OWNED: Final = frozenset(
    (
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    )
)
_META: Final = FieldLayout(OBJECT_META, Form.MAP, dotted=False, skip=NEVER_OWNED)
