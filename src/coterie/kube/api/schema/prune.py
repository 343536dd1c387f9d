"""Dropping what a structural schema does not know, and naming it for strict clients.

Both walks go over the object, never over the schema alone. Nodes with `x-kubernetes-preserve-unknown-fields` keep
unknown fields but still look into the fields they know, as Kubernetes does. Embedded resources need no special case:
their `apiVersion`, `kind` and `metadata` are properties since the schema was compiled.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.schema.node import MISSING, Schema


def prune(obj: Any, schema: Schema) -> Any:
    """Drop unknown fields of a custom resource, in place; the same object is returned.

    A null for a field that is not nullable and has no default counts as "not given" and goes too, so it must run
    before defaults are applied.
    """
    if type(obj) is dict:
        properties, additional = schema.properties, schema.additional
        keep = schema.preserve_unknown
        gone: list[str] | None = None
        for key, value in obj.items():
            node = properties.get(key) or additional
            if node is None:
                if keep:
                    continue
            elif value is None:
                if node.nullable or node.default is not MISSING:
                    continue
            else:
                if type(value) is dict or type(value) is list:
                    prune(value, node)
                continue
            gone = [key] if gone is None else [*gone, key]
        for key in gone or ():
            del obj[key]
    elif type(obj) is list and schema.items is not None:
        for item in obj:
            if type(item) is dict or type(item) is list:
                prune(item, schema.items)
    return obj


def unknown_fields(obj: Any, schema: Schema, path: str = "") -> list[str]:
    """Paths of the fields that `prune` would drop as unknown, as strict validation shows them; nothing is changed."""
    out: list[str] = []
    _gather(obj, schema, path, out)
    return out


def _gather(obj: Any, schema: Schema, path: str, out: list[str]) -> None:
    if type(obj) is dict:
        prefix = f"{path}." if path else ""
        for key, value in obj.items():
            node = schema.properties.get(key) or schema.additional
            if node is not None:
                if type(value) is dict or type(value) is list:
                    _gather(value, node, prefix + key, out)
            elif not schema.preserve_unknown:
                out.append(prefix + str(key))
    elif type(obj) is list and schema.items is not None:
        for index, item in enumerate(obj):
            if type(item) is dict or type(item) is list:
                _gather(item, schema.items, f"{path}[{index}]", out)
