"""From the `openAPIV3Schema` of a CustomResourceDefinition to `Schema` nodes.

The schema must have passed `check_structural` (structural_check.py) first; compiling then cannot fail. The root and
embedded resources get `apiVersion`, `kind` and `metadata` here, so no walk needs to know that they are special.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from coterie.kube.api.schema.node import MISSING, Schema, ValidationRule
from coterie.kube.api.schema.pattern import Pattern

Raw = dict[str, Any]
_PLAIN_META: Final = Schema(type="object", preserve_unknown=True, nullable=True)
"""Metadata where no ObjectMeta schema was given."""


def compile_crd(openapi_v3_schema: Raw, object_meta: Schema | None = None) -> Schema:
    """The schema of one version of a custom resource; `object_meta` is `BuiltinSchemas.object_meta`."""
    return _node(openapi_v3_schema, object_meta or _PLAIN_META, root=True)


def is_int_or_string_union(raw: Any) -> bool:
    """`anyOf: [{type: integer}, {type: string}]`, the one way in which a type may stand inside `anyOf`."""
    return bool(raw == [{"type": "integer"}, {"type": "string"}])


def _node(raw: Raw, meta: Schema, root: bool = False) -> Schema:
    int_or_string = bool(raw.get("x-kubernetes-int-or-string"))
    embedded = bool(raw.get("x-kubernetes-embedded-resource"))
    additional = raw.get("additionalProperties")
    any_of = raw.get("anyOf") or ()
    if int_or_string and is_int_or_string_union(any_of):
        any_of = ()
    default = raw.get("default")
    node = Schema(
        type=raw.get("type") or "",
        properties={key: _node(child, meta) for key, child in (raw.get("properties") or {}).items()},
        additional=_additional(additional, meta),
        items=_node(raw["items"], meta) if isinstance(raw.get("items"), dict) else None,
        required=tuple(raw.get("required") or ()),
        list_type=raw.get("x-kubernetes-list-type") or "atomic",
        list_keys=tuple(raw.get("x-kubernetes-list-map-keys") or ()),
        atomic_map=raw.get("x-kubernetes-map-type") == "atomic",
        nullable=bool(raw.get("nullable")),
        preserve_unknown=bool(raw.get("x-kubernetes-preserve-unknown-fields")),
        embedded_resource=embedded,
        int_or_string=int_or_string,
        default=MISSING if default is None else default,
        format=raw.get("format") or "",
        enum=tuple(raw["enum"]) if raw.get("enum") else None,
        pattern=Pattern(raw["pattern"]) if raw.get("pattern") else None,
        minimum=raw.get("minimum"),
        maximum=raw.get("maximum"),
        exclusive_minimum=bool(raw.get("exclusiveMinimum")),
        exclusive_maximum=bool(raw.get("exclusiveMaximum")),
        multiple_of=raw.get("multipleOf"),
        min_length=raw.get("minLength"),
        max_length=raw.get("maxLength"),
        min_items=raw.get("minItems"),
        max_items=raw.get("maxItems"),
        unique_items=bool(raw.get("uniqueItems")),
        min_properties=raw.get("minProperties"),
        max_properties=raw.get("maxProperties"),
        all_of=tuple(_node(part, meta) for part in raw.get("allOf") or () if not _only_union(part, int_or_string)),
        any_of=tuple(_node(part, meta) for part in any_of),
        one_of=tuple(_node(part, meta) for part in raw.get("oneOf") or ()),
        not_=_node(raw["not"], meta) if raw.get("not") else None,
        rules=tuple(map(_rule, raw.get("x-kubernetes-validations") or ())),
    )
    if root or embedded:
        _add_type_and_meta(node, meta)
    below = [*node.properties.values(), *filter(None, (node.additional, node.items))]
    node.has_defaults = node.default is not MISSING or any(child.has_defaults for child in below)
    node.has_rules = bool(node.rules) or any(child.has_rules for child in below)
    return node


def _additional(raw: Any, meta: Schema) -> Schema | None:
    if isinstance(raw, dict):
        return _node(raw, meta)
    return Schema(preserve_unknown=True, nullable=True) if raw is True else None


def _only_union(raw: Raw, int_or_string: bool) -> bool:
    return int_or_string and set(raw) == {"anyOf"} and is_int_or_string_union(raw["anyOf"])


def _add_type_and_meta(node: Schema, meta: Schema) -> None:
    own = node.properties.get("metadata")
    if own is not None and own.properties:
        # A schema may narrow metadata.name and metadata.generateName; everything else stays ObjectMeta's.
        meta = replace(
            meta,
            properties={**meta.properties, **own.properties},
            required=own.required,
            has_rules=own.has_rules,
            fast_check=None,
            cel_type=None,
        )
    for key in ("apiVersion", "kind"):
        node.properties.setdefault(key, Schema(type="string"))
    node.properties["metadata"] = meta


def _rule(raw: Raw) -> ValidationRule:
    return ValidationRule(
        rule=raw.get("rule") or "",
        message=raw.get("message") or "",
        message_expression=raw.get("messageExpression") or "",
        reason=raw.get("reason") or "FieldValueInvalid",
        field_path=raw.get("fieldPath") or "",
        optional_old_self=bool(raw.get("optionalOldSelf")),
    )
