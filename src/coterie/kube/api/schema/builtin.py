"""Schemas of the built-in kinds, read from the Kubernetes definitions that the package kubernetes-validate ships.

Only what the catalogue in `resources.py` reaches is compiled, and rare kinds only when they are asked for. Nodes are
shared, by definition and by content (thousands of fields are just "a string"), which keeps the whole catalogue near a
megabyte; so nobody may change one.
Descriptions are dropped: the OpenAPI writer reads them from the file when it is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.schema.node import Schema

VERSION: Final = "v1.36.0"
_REF: Final = "#/$defs/"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_OPEN: Final = frozenset({_META + "FieldsV1", _META + "Patch", "io.k8s.apimachinery.pkg.runtime.RawExtension"})
"""Definitions that say "an object" and mean "any object"."""
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_META_GROUP: Final = "meta.k8s.io/v1/"
_META_KINDS: Final = ("DeleteOptions", "Status", "ObjectMeta", "ListMeta", "LabelSelector")
_ROOTS: Final = {
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
    "apiregistration.k8s.io": "io.k8s.kube-aggregator.pkg.apis.apiregistration",
}
_COMMON_GROUPS: Final = frozenset(
    {
        "",
        "apiextensions.k8s.io",
        "apps",
        "batch",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "rbac.authorization.k8s.io",
    }
)
"""Groups that every server uses. The kinds of all others are compiled one by one, when they are first asked for."""
_REMOVED: Final = (("authentication.k8s.io", "v1beta1", "SelfSubjectReview", "v1"),)
"""Kinds that old clients ask for and that the definitions no longer have: group, version, kind, version with the same fields."""

Definition = dict[str, Any]


class SchemasMissing(RuntimeError):
    """The package with the Kubernetes definitions is not installed, so the server cannot know its kinds."""


@dataclass(slots=True)
class BuiltinSchemas:
    """By `Resource.schema_name`: `v1/Pod`, `apps/v1/Deployment`; options and meta under `meta.k8s.io/v1/`."""

    definition_of: dict[str, str]
    """Definition of each kind of the catalogue, by schema name."""
    common: frozenset[str]
    """Schema names that are compiled together when the first of them is asked for."""
    _compiled: dict[str, Schema] = field(default_factory=dict)
    _compiler: _Compiler = field(default_factory=lambda: _Compiler())

    def get(self, schema_name: str) -> Schema | None:
        found = self._compiled.get(schema_name)
        if found is None and schema_name in self.definition_of:
            self._compile(self.common if schema_name in self.common else (schema_name,))
            found = self._compiled.get(schema_name)
        return found

    def __getitem__(self, schema_name: str) -> Schema:
        found = self.get(schema_name)
        if found is None:
            raise KeyError(schema_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.definition_of)

    @property
    def object_meta(self) -> Schema:
        return self[f"{_META_GROUP}ObjectMeta"]

    @property
    def compiled(self) -> Collection[str]:
        """Schema names that have been compiled so far."""
        return self._compiled.keys()

    def compile_common(self) -> None:
        """For a process that forks: what its children need in any case is then shared by them."""
        self.get(f"{_META_GROUP}ObjectMeta")

    def _compile(self, schema_names: Iterable[str]) -> None:
        # The definitions stay bytes until they are needed and are dropped afterwards: all at once would be the peak
        # of the process. Reading them again takes a few milliseconds, once for each rare kind that is used.
        self._compiler.definitions = read_definitions()
        for schema_name in schema_names:
            definition = self.definition_of[schema_name]
            if definition in self._compiler.definitions:
                self._compiled[schema_name] = self._compiler.definition(definition)
        self._compiler.definitions = {}


def definitions_file() -> Path:
    """Where the JSON lies; the package itself is never imported (it would bring jsonschema into the process)."""
    spec = find_spec("kubernetes_validate")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = Path(folder) / "kubernetes-json-schema" / f"{VERSION}-local" / "_definitions.json"
        if found.is_file():
            return found
    raise SchemasMissing(f"the package kubernetes-validate with the definitions of Kubernetes {VERSION} is missing")


class _File(msgspec.Struct):
    definitions: dict[str, msgspec.Raw] = msgspec.field(name="$defs")


def read_definitions() -> dict[str, msgspec.Raw]:
    """All definitions by name, each still as bytes."""
    found = msgspec.json.decode(definitions_file().read_bytes(), type=_File).definitions
    for group, version, kind, newer in _REMOVED:
        current = found.get(definition_name(group, newer, kind))
        if current is not None:
            found[definition_name(group, version, kind)] = _in_version(current, group, version, kind)
    return found


def _in_version(current: msgspec.Raw, group: str, version: str, kind: str) -> msgspec.Raw:
    definition = orjson.loads(memoryview(current))
    definition["properties"]["apiVersion"]["enum"] = [f"{group}/{version}"]
    definition["x-kubernetes-group-version-kind"] = [{"group": group, "version": version, "kind": kind}]
    return msgspec.Raw(orjson.dumps(definition))


def definition_name(group: str, version: str, kind: str) -> str:
    """`io.k8s.api.apps.v1.Deployment`: the Go name of a built-in kind."""
    root = _ROOTS.get(group) or f"io.k8s.api.{group.partition('.')[0] or 'core'}"
    return f"{root}.{version}.{kind}"


@cache
def load(resources: tuple[Resource, ...] = BUILTIN) -> BuiltinSchemas:
    """Once: the result is shared by all who ask. Nothing is compiled before it is asked for."""
    definition_of: dict[str, str] = {}
    common: list[str] = []
    for resource in resources:
        for group, version, kind in _kinds_of(resource):
            name = f"{group}/{version}/{kind}" if group else f"{version}/{kind}"
            definition_of[name] = definition_name(group, version, kind)
            if resource.group in _COMMON_GROUPS:
                common.append(name)
    for kind in _META_KINDS:
        names = (f"{_META_GROUP}{kind}", f"v1/{kind}") if kind in ("DeleteOptions", "Status") else (_META_GROUP + kind,)
        definition_of.update(dict.fromkeys(names, _META + kind))
        common.extend(names)
    return BuiltinSchemas(definition_of, frozenset(common))


def _kinds_of(resource: Resource) -> Iterable[tuple[str, str, str]]:
    yield resource.group, resource.version, resource.kind
    for sub in resource.subresources:
        if sub.kind:
            yield sub.group, sub.version, sub.kind


@dataclass(slots=True)
class _Compiler:
    definitions: dict[str, msgspec.Raw] = field(default_factory=dict)
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
