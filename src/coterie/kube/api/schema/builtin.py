"""Schemas of the built-in kinds, read from the Kubernetes definitions that the package kubernetes-validate ships.

`load` compiles only what the catalogue in `resources.py` reaches. Nodes are shared, by definition and by content
(thousands of fields are just "a string"), which keeps the whole catalogue near a megabyte; so nobody may change one.
Descriptions are dropped: the OpenAPI writer reads them from the file when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.schema.node import Schema

VERSION: Final = "v1.32.0"
_REF: Final = "#/$defs/"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_OPEN: Final = frozenset({_META + "FieldsV1", _META + "Patch", "io.k8s.apimachinery.pkg.runtime.RawExtension"})
"""Definitions that say "an object" and mean "any object"."""
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_META_KINDS: Final = ("DeleteOptions", "Status", "ObjectMeta", "ListMeta", "LabelSelector")

Definition = dict[str, Any]


class SchemasMissing(RuntimeError):
    """The package with the Kubernetes definitions is not installed, so the server cannot know its kinds."""


@dataclass(frozen=True, slots=True)
class BuiltinSchemas:
    """`kinds` by `Resource.schema_name`: `v1/Pod`, `apps/v1/Deployment`; options and meta under `meta.k8s.io/v1/`."""

    kinds: dict[str, Schema]

    def get(self, schema_name: str) -> Schema | None:
        return self.kinds.get(schema_name)

    def __getitem__(self, schema_name: str) -> Schema:
        return self.kinds[schema_name]

    @property
    def object_meta(self) -> Schema:
        return self.kinds["meta.k8s.io/v1/ObjectMeta"]


def definitions_file() -> Path:
    """Where the JSON lies; the package itself is never imported (it would bring jsonschema into the process)."""
    spec = find_spec("kubernetes_validate")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = Path(folder) / "kubernetes-json-schema" / f"{VERSION}-local" / "_definitions.json"
        if found.is_file():
            return found
    raise SchemasMissing(f"the package kubernetes-validate with the definitions of Kubernetes {VERSION} is missing")


class _Named(msgspec.Struct):
    kinds: list[dict[str, str]] = msgspec.field(name="x-kubernetes-group-version-kind", default_factory=list)


class _File(msgspec.Struct):
    definitions: dict[str, msgspec.Raw] = msgspec.field(name="$defs")


@cache
def load(resources: tuple[Resource, ...] = BUILTIN) -> BuiltinSchemas:
    """Once: the result is shared by all who ask."""
    # Each definition stays bytes until it is needed: half are not, and all at once would be the peak of the process.
    definitions = msgspec.json.decode(definitions_file().read_bytes(), type=_File).definitions
    compiler = _Compiler(definitions)
    by_kind = _names_by_kind(definitions)
    kinds: dict[str, Schema] = {}
    for group, version, kind in _kinds_of(resources):
        name = by_kind.get((group, version, kind))
        if name is not None:
            kinds[f"{group}/{version}/{kind}" if group else f"{version}/{kind}"] = compiler.definition(name)
    for kind in _META_KINDS:
        node = compiler.definition(_META + kind)
        kinds[f"meta.k8s.io/v1/{kind}"] = node
        if kind in ("DeleteOptions", "Status"):
            kinds[f"v1/{kind}"] = node
    return BuiltinSchemas(kinds)


def _kinds_of(resources: Iterable[Resource]) -> Iterable[tuple[str, str, str]]:
    for resource in resources:
        yield resource.group, resource.version, resource.kind
        for sub in resource.subresources:
            if sub.kind:
                yield sub.group, sub.version, sub.kind


def _names_by_kind(definitions: dict[str, msgspec.Raw]) -> dict[tuple[str, str, str], str]:
    out: dict[tuple[str, str, str], str] = {}
    read = msgspec.json.Decoder(_Named).decode
    for name, definition in definitions.items():
        for gvk in read(definition).kinds:
            out[gvk["group"], gvk["version"], gvk["kind"]] = name
    return out


@dataclass(slots=True)
class _Compiler:
    definitions: dict[str, msgspec.Raw]
    named: dict[str, Schema] = field(default_factory=dict)
    interned: dict[tuple[Any, ...], Schema] = field(default_factory=dict)

    def definition(self, name: str) -> Schema:
        node = self.named.get(name)
        if node is None:
            # Entered before its fields are compiled: a definition may contain itself.
            node = self.named[name] = Schema()
            self._fill(node, orjson.loads(memoryview(self.definitions[name])), name)
        return node

    def _fill(self, node: Schema, raw: Definition, name: str) -> None:
        node.type = _type(raw)
        node.nullable = True
        node.format = raw.get("format", "")
        node.required = tuple(raw.get("required", ()))
        node.atomic_map = raw.get("x-kubernetes-map-type") == "atomic"
        node.quantity = name == _QUANTITY
        node.int_or_string = name == _INT_OR_STRING
        typeless = not node.type and not node.quantity and not node.int_or_string
        node.preserve_unknown = name in _OPEN or typeless
        properties = node.properties
        for key, child in raw.get("properties", {}).items():
            properties[key] = self.node(child)

    def node(self, raw: Definition) -> Schema:
        strategy = frozenset(filter(None, raw.get("x-kubernetes-patch-strategy", "").split(",")))
        ref = raw.get("$ref")
        if ref is not None:
            node = self.definition(ref.removeprefix(_REF))
            atomic = raw.get("x-kubernetes-map-type") == "atomic"
            if not strategy and atomic <= node.atomic_map:
                return node
            key: tuple[Any, ...] = (ref, strategy, atomic)
            known = self.interned.get(key)
            if known is None:
                # The copy shares `properties`, so it is complete even when the definition is still being filled.
                known = self.interned[key] = replace(
                    node, patch_strategy=strategy, atomic_map=atomic or node.atomic_map
                )
            return known
        items = self.node(raw["items"]) if "items" in raw else None
        additional = self.node(raw["additionalProperties"]) if raw.get("additionalProperties") else None
        if raw.get("properties"):
            inline = Schema()
            self._fill(inline, raw, "")
            return inline
        return self._leaf(raw, items, additional, strategy)

    def _leaf(
        self, raw: Definition, items: Schema | None, additional: Schema | None, strategy: frozenset[str]
    ) -> Schema:
        type_ = _type(raw)
        list_type = raw.get("x-kubernetes-list-type", "atomic")
        list_keys = tuple(raw.get("x-kubernetes-list-map-keys", ()))
        merge_key = raw.get("x-kubernetes-patch-merge-key", "")
        atomic_map = raw.get("x-kubernetes-map-type") == "atomic"
        format_ = raw.get("format", "")
        key = (type_, format_, id(items), id(additional), list_type, list_keys, merge_key, atomic_map, strategy)
        node = self.interned.get(key)
        if node is None:
            node = self.interned[key] = Schema(
                type=type_,
                format=format_,
                items=items,
                additional=additional,
                list_type=list_type,
                list_keys=list_keys,
                patch_merge_key=merge_key,
                patch_strategy=strategy,
                atomic_map=atomic_map,
                nullable=True,
                preserve_unknown=not type_ or (type_ == "object" and additional is None),
            )
        return node


def _type(raw: Definition) -> str:
    """`[x, null]` is x: built-in kinds read null as "not given"."""
    type_ = raw.get("type", "")
    if isinstance(type_, list):
        return next((name for name in type_ if name != "null"), "")
    return str(type_)
