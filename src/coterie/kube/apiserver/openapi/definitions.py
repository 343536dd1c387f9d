"""Schemas of the built-in kinds as OpenAPI wants them, from the definitions that kubernetes-validate ships.

The file is 1.3 MB. It is split, not parsed, when a document is built: only the definitions that the document reaches
become Python objects, and nothing is kept afterwards.

The file is JSON Schema and says so in ways that OpenAPI does not know: `type: [string, null]`, and an `enum` on
`apiVersion` and `kind`. Both are undone.
"""

from __future__ import annotations

from typing import Any

import orjson

from coterie.kube.api.schema.builtin import read_definitions

Schema = dict[str, Any]

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
REF = "#/$defs/"


class SchemaDefinitions:
    """The split file. Make one for each document and let it go."""

    def __init__(self) -> None:
        self._raw = read_definitions()

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def __getitem__(self, name: str) -> Schema:
        schema: Schema = orjson.loads(bytes(self._raw[name]))
        if name == INT_OR_STRING:
            schema["format"] = "int-or-string"
        properties = schema.get("properties", {})
        for pinned in ("apiVersion", "kind"):
            if "x-kubernetes-group-version-kind" in schema and pinned in properties:
                properties[pinned].pop("enum", None)
        _undo_null(schema)
        return schema


def _undo_null(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _undo_null(item)
    elif isinstance(node, dict):
        kind = node.get("type")
        if isinstance(kind, list):
            (node["type"],) = (item for item in kind if item != "null")
        for value in node.values():
            if isinstance(value, (dict, list)):
                _undo_null(value)


def references(node: Any, prefix: str, found: set[str]) -> None:
    """Collect the names that a schema refers to."""
    if isinstance(node, list):
        for item in node:
            references(item, prefix, found)
    elif isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str) and ref.startswith(prefix):
            found.add(ref[len(prefix) :])
        for value in node.values():
            if isinstance(value, (dict, list)):
                references(value, prefix, found)


def closure(definitions: SchemaDefinitions, roots: set[str]) -> dict[str, Schema]:
    """The named definitions and all they refer to, by name in alphabetical order."""
    found: dict[str, Schema] = {}
    waiting = {name for name in roots if name in definitions}
    while waiting:
        name = waiting.pop()
        found[name] = definitions[name]
        reached: set[str] = set()
        references(found[name], REF, reached)
        waiting |= {other for other in reached if other not in found and other in definitions}
    return dict(sorted(found.items()))
