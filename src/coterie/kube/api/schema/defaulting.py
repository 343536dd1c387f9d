"""Filling in the defaults of a structural schema, only along the branches that have any."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.schema.node import MISSING, Schema


def apply_defaults(obj: Any, schema: Schema) -> Any:
    """Set missing fields to their defaults, in place; the same object is returned.

    A null stands for "missing" where the field is not nullable. Defaults are filled from the outside in, so a default
    object receives the defaults of its own fields.
    """
    if not schema.has_defaults:
        return obj
    if type(obj) is dict:
        for key, node in schema.properties.items():
            if node.default is not MISSING and (key not in obj or (obj[key] is None and not node.nullable)):
                obj[key] = copy_json(node.default)
            if node.has_defaults and key in obj:
                apply_defaults(obj[key], node)
        additional = schema.additional
        if additional is not None and additional.has_defaults:
            for key, value in obj.items():
                if key in schema.properties:
                    continue
                if value is None and not additional.nullable and additional.default is not MISSING:
                    value = obj[key] = copy_json(additional.default)
                apply_defaults(value, additional)
    elif type(obj) is list and schema.items is not None and schema.items.has_defaults:
        node = schema.items
        for index, value in enumerate(obj):
            if value is None and not node.nullable and node.default is not MISSING:
                value = obj[index] = copy_json(node.default)
            apply_defaults(value, node)
    return obj


def copy_json(value: Any) -> Any:
    """A deep copy of plain JSON data; several times faster than `copy.deepcopy`."""
    if type(value) is dict:
        return {key: copy_json(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_json(item) for item in value]
    return value
