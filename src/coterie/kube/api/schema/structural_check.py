"""Why a CustomResourceDefinition's schema is refused, in the words of Kubernetes.

`check_structural` answers in three steps, each only when the one before found nothing: the JSON has the shapes the
keywords want (nothing later needs to fear a list where an object belongs); the schema is structural; its defaults are
valid against itself. CEL rules are compiled elsewhere (`coterie.kube.api.cel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from coterie.kube.api.errors import FieldError, forbidden_field, invalid, not_supported, required, type_invalid
from coterie.kube.api.schema.defaulting import apply_defaults, copy_json
from coterie.kube.api.schema.node import MISSING, Schema
from coterie.kube.api.schema.prune import unknown_fields
from coterie.kube.api.schema.structural import Raw, compile_crd, is_int_or_string_union
from coterie.kube.api.schema.structural_junctors import JUNCTORS, check_junctor, check_value_keywords
from coterie.kube.api.schema.structural_lists import check_list_and_map
from coterie.kube.api.schema.validate import validate

MAX_DEPTH: Final = 100
_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_REASONS: Final = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")

_SHAPES: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "type": ("string", (str,)),
    "format": ("string", (str,)),
    "title": ("string", (str,)),
    "description": ("string", (str,)),
    "pattern": ("string", (str,)),
    "properties": ("object", (dict,)),
    "additionalProperties": ("object", (dict, bool)),
    "items": ("object", (dict, list)),
    "required": ("array", (list,)),
    "enum": ("array", (list,)),
    "allOf": ("array", (list,)),
    "anyOf": ("array", (list,)),
    "oneOf": ("array", (list,)),
    "not": ("object", (dict,)),
    "nullable": ("boolean", (bool,)),
    "uniqueItems": ("boolean", (bool,)),
    "minimum": ("number", (int, float)),
    "maximum": ("number", (int, float)),
    "multipleOf": ("number", (int, float)),
    "exclusiveMinimum": ("boolean", (bool,)),
    "exclusiveMaximum": ("boolean", (bool,)),
    "minLength": ("integer", (int,)),
    "maxLength": ("integer", (int,)),
    "minItems": ("integer", (int,)),
    "maxItems": ("integer", (int,)),
    "minProperties": ("integer", (int,)),
    "maxProperties": ("integer", (int,)),
    "x-kubernetes-preserve-unknown-fields": ("boolean", (bool,)),
    "x-kubernetes-embedded-resource": ("boolean", (bool,)),
    "x-kubernetes-int-or-string": ("boolean", (bool,)),
    "x-kubernetes-list-type": ("string", (str,)),
    "x-kubernetes-list-map-keys": ("array", (list,)),
    "x-kubernetes-map-type": ("string", (str,)),
    "x-kubernetes-validations": ("array", (list,)),
}
_RULE_SHAPES: Final = {
    "rule": str,
    "message": str,
    "messageExpression": str,
    "reason": str,
    "fieldPath": str,
    "optionalOldSelf": bool,
}


def check_structural(schema: Raw, path: str, object_meta: Schema | None = None) -> list[FieldError]:
    """The refusals of one version's schema; `path` is e.g. `spec.versions[0].schema.openAPIV3Schema`."""
    errors = list(_shape_errors(schema, path, 0))
    if not errors:
        errors = [*_root_errors(schema, path), *_node_errors(schema, path, root=True)]
    if not errors:
        errors = list(_default_errors(schema, compile_crd(schema, object_meta), path))
    return errors


# -- shapes -----------------------------------------------------------------------------------------------------------


def _shape_errors(raw: Any, path: str, depth: int) -> Iterator[FieldError]:
    if type(raw) is not dict:
        yield type_invalid(path, raw, "must be an object")
        return
    if depth > MAX_DEPTH:
        yield forbidden_field(path, f"a schema may nest at most {MAX_DEPTH} levels deep")
        return
    for key, value in raw.items():
        shape_name, types = _SHAPES.get(key, ("", ()))
        if not shape_name or value is None:
            continue
        if type(value) not in types:
            yield type_invalid(f"{path}.{key}", value, f"must be of type {shape_name}")
        elif key in ("required", "x-kubernetes-list-map-keys"):
            for index, item in enumerate(value):
                if type(item) is not str:
                    yield type_invalid(f"{path}.{key}[{index}]", item, "must be of type string")
        elif key == "x-kubernetes-validations":
            yield from _rule_shape_errors(value, f"{path}.{key}")
    for child_path, child in _children(raw, path):
        yield from _shape_errors(child, child_path, depth + 1)


def _rule_shape_errors(rules: list[Any], path: str) -> Iterator[FieldError]:
    for index, rule in enumerate(rules):
        if type(rule) is not dict:
            yield type_invalid(f"{path}[{index}]", rule, "must be of type object")
            continue
        for key, wanted in _RULE_SHAPES.items():
            if rule.get(key) is not None and type(rule[key]) is not wanted:
                yield type_invalid(f"{path}[{index}].{key}", rule[key], f"must be of type {wanted.__name__}")


def _children(raw: Raw, path: str) -> Iterator[tuple[str, Any]]:
    """All schemas directly inside, whatever their shape."""
    yield from _skeleton(raw, path)
    for junctor in JUNCTORS:
        parts = raw.get(junctor)
        for index, part in enumerate(parts if type(parts) is list else ()):
            yield f"{path}.{junctor}[{index}]", part
    if type(raw.get("not")) is dict:
        yield f"{path}.not", raw["not"]


def _skeleton(raw: Raw, path: str) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside that give the object its structure."""
    properties = raw.get("properties")
    for key, child in properties.items() if type(properties) is dict else ():
        yield f"{path}.properties[{key}]", child
    for keyword in ("items", "additionalProperties"):
        if type(raw.get(keyword)) is dict:
            yield f"{path}.{keyword}", raw[keyword]


# -- structure --------------------------------------------------------------------------------------------------------


def _root_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    if not raw.get("type"):
        yield required(f"{path}.type", "must not be empty at the root")
    elif raw["type"] != "object":
        yield invalid(f"{path}.type", raw["type"], "must be object at the root")
    if raw.get("nullable"):
        yield forbidden_field(f"{path}.nullable", "nullable cannot be true at the root")
    if raw.get("x-kubernetes-embedded-resource"):
        yield forbidden_field(f"{path}.x-kubernetes-embedded-resource", "must be false at the root")


def _node_errors(raw: Raw, path: str, root: bool = False) -> Iterator[FieldError]:
    yield from _keyword_errors(raw, path)
    yield from _extension_errors(raw, path)
    yield from _rule_errors(raw, path)
    yield from check_list_and_map(raw, path)
    if root or raw.get("x-kubernetes-embedded-resource"):
        yield from _resource_errors(raw, path)
    for child_path, child in _skeleton(raw, path):
        if not child.get("type") and not _may_lack_type(child):
            kind = "array items" if child_path.endswith(".items") else "object fields"
            yield required(f"{child_path}.type", f"must not be empty for specified {kind}")
        yield from _node_errors(child, child_path)
    union_allowed = bool(raw.get("x-kubernetes-int-or-string"))
    for junctor in JUNCTORS:
        for index, part in enumerate(raw.get(junctor) or ()):
            inner = f"{path}.{junctor}[{index}]"
            if union_allowed and _is_union_part(raw, junctor, part):
                continue
            yield from check_junctor(part, raw, inner)
    if raw.get("not"):
        yield from check_junctor(raw["not"], raw, f"{path}.not")


def _may_lack_type(raw: Raw) -> bool:
    return bool(raw.get("x-kubernetes-int-or-string") or raw.get("x-kubernetes-preserve-unknown-fields"))


def _is_union_part(raw: Raw, junctor: str, part: Raw) -> bool:
    if junctor == "anyOf":
        return is_int_or_string_union(raw["anyOf"])
    return junctor == "allOf" and is_int_or_string_union(part.get("anyOf")) and len(part) == 1


def _keyword_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    kind = raw.get("type")
    if kind == "null":
        yield forbidden_field(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    elif kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if raw.get("uniqueItems"):
        yield forbidden_field(
            f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        )
    additional = raw.get("additionalProperties")
    if additional is False:
        yield forbidden_field(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    elif additional not in (None, True) and raw.get("properties"):
        yield forbidden_field(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if kind == "array" and raw.get("items") is None:
        yield required(f"{path}.items", "must be specified for arrays")
    yield from check_value_keywords(raw, path)


def _extension_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    kind = raw.get("type")
    preserve = raw.get("x-kubernetes-preserve-unknown-fields")
    if preserve is False:
        yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if preserve and kind and kind != "object":
        yield invalid(f"{path}.type", kind, "must be object if x-kubernetes-preserve-unknown-fields is true")
    if raw.get("x-kubernetes-int-or-string"):
        if kind:
            yield invalid(f"{path}.type", kind, "must be empty if x-kubernetes-int-or-string is true")
        for keyword in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if raw.get(keyword):
                yield forbidden_field(f"{path}.{keyword}", "must be false if x-kubernetes-int-or-string is true")
    if raw.get("x-kubernetes-embedded-resource"):
        if kind != "object":
            yield invalid(f"{path}.type", kind or "", "must be object if x-kubernetes-embedded-resource is true")
        if not preserve and not raw.get("properties"):
            message = (
                "must not be empty if x-kubernetes-embedded-resource is true "
                "without x-kubernetes-preserve-unknown-fields"
            )
            yield required(f"{path}.properties", message)


def _resource_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    """`apiVersion`, `kind` and `metadata` are known; a schema may repeat them, hardly more."""
    properties = raw.get("properties") or {}
    for key, wanted in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object")):
        given = (properties.get(key) or {}).get("type")
        if key in properties and given != wanted:
            yield invalid(f"{path}.properties[{key}].type", given or "", f"must be {wanted}")
    meta = properties.get("metadata")
    if not isinstance(meta, dict):
        return
    extra = set(meta) - {"type", "description", "title", "properties"}
    if extra or set(meta.get("properties") or {}) - {"name", "generateName"}:
        message = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield forbidden_field(f"{path}.properties[metadata]", message)


def _rule_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    for index, rule in enumerate(raw.get("x-kubernetes-validations") or ()):
        inner = f"{path}.x-kubernetes-validations[{index}]"
        if not (rule.get("rule") or "").strip():
            yield required(f"{inner}.rule", "rule is not specified")
        message = rule.get("message")
        if message is not None and not message.strip():
            yield invalid(f"{inner}.message", message, "message must be non-empty if specified")
        elif message and ("\n" in message.strip() or "\r" in message.strip()):
            yield invalid(f"{inner}.message", message, "message must not contain line breaks")
        elif "\n" in (rule.get("rule") or "").strip() and not message:
            yield required(f"{inner}.message", "message must be specified if rule contains line breaks")
        if rule.get("messageExpression") is not None and not rule["messageExpression"].strip():
            yield required(f"{inner}.messageExpression", "must be non-empty if specified")
        if rule.get("reason") and rule["reason"] not in _REASONS:
            yield not_supported(f"{inner}.reason", rule["reason"], _REASONS)


# -- defaults ---------------------------------------------------------------------------------------------------------


def _default_errors(raw: Raw, node: Schema, path: str) -> Iterator[FieldError]:
    if not node.has_defaults:
        return
    if node.default is not MISSING:
        yield from _one_default_errors(node, f"{path}.default")
    for key, child in (raw.get("properties") or {}).items():
        yield from _default_errors(child, node.properties[key], f"{path}.properties[{key}]")
    if node.items is not None:
        yield from _default_errors(raw["items"], node.items, f"{path}.items")
    if node.additional is not None and type(raw.get("additionalProperties")) is dict:
        yield from _default_errors(raw["additionalProperties"], node.additional, f"{path}.additionalProperties")


def _one_default_errors(node: Schema, path: str) -> Iterator[FieldError]:
    value = copy_json(node.default)
    unknown = unknown_fields(value, node)
    if unknown:
        yield invalid(path, node.default, f"must not have unknown fields: {', '.join(unknown)}")
        return
    for error in validate(apply_defaults(value, node), node):
        inner = f"{path}.{error.field}" if error.field != "<nil>" else path
        yield FieldError(inner.replace(".[", "["), error.reason, error.detail)
