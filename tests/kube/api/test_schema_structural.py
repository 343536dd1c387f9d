"""Schemas of definitions: what makes them structural, and how each refusal is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import FieldError
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.node import MISSING
from coterie.kube.api.schema.structural import compile_crd
from coterie.kube.api.schema.structural_check import check_structural
from coterie.kube.api.schema.validate import validate_update

Raw = dict[str, Any]
PATH = "spec.versions[0].schema.openAPIV3Schema"
INT: Raw = {"type": "integer"}
STR: Raw = {"type": "string"}
UNION: list[Raw] = [{"type": "integer"}, {"type": "string"}]


def root(**properties: Raw) -> Raw:
    return {"type": "object", "properties": properties}


def items(item: Raw, **more: Any) -> Raw:
    return {"type": "array", "items": item, **more}


def told(schema: Raw) -> list[str]:
    return [str(error).removeprefix(PATH) for error in check_structural(schema, PATH)]


KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        root(apiVersion=STR, kind=STR, metadata={"type": "object"}, spec=root(a=INT)),
        root(metadata={"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}),
        root(a={"x-kubernetes-int-or-string": True}),
        root(a={"x-kubernetes-int-or-string": True, "anyOf": UNION}),
        root(a={"x-kubernetes-int-or-string": True, "allOf": [{"anyOf": UNION}, {"pattern": "x"}]}),
        root(a={"x-kubernetes-preserve-unknown-fields": True}),
        root(
            a={"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
        ),
        root(a=items({"type": "object", "required": ["k"], "properties": {"k": STR}}, **KEYED)),
        root(a=items({"type": "object", "properties": {"k": {"type": "string", "default": "x"}}}, **KEYED)),
        root(a=items(STR, **{"x-kubernetes-list-type": "set"})),
        root(a={"type": "object", "additionalProperties": INT, "x-kubernetes-map-type": "granular"}),
        root(a={"type": "object", "additionalProperties": True}),
        {**root(a=INT, b=INT), "oneOf": [{"required": ["a"]}, {"properties": {"b": {"minimum": 3}}}]},
        root(a={"type": "object", "properties": {"b": {**INT, "default": 1}}, "default": {}}),
        root(a={**INT, "minimum": 1, "default": 1}, b={"type": "object", "nullable": True, "properties": {}}),
    ],
)
def test_structural_schemas_pass(schema: Raw) -> None:
    assert told(schema) == []


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({}, ".type: Required value: must not be empty at the root"),
        ({"type": "array", "items": INT}, '.type: Invalid value: "array": must be object at the root'),
        ({"type": "object", "nullable": True}, ".nullable: Forbidden: nullable cannot be true at the root"),
        (root(spec={}), ".properties[spec].type: Required value: must not be empty for specified object fields"),
        (root(spec=root(a={"properties": {}})), ".properties[spec].properties[a].type: Required value: must not be empty for specified object fields"),
        (root(a=items({})), ".properties[a].items.type: Required value: must not be empty for specified array items"),
        (root(a={"type": "array"}), ".properties[a].items: Required value: must be specified for arrays"),
        (root(a={"type": "list"}), '.properties[a].type: Unsupported value: "list": supported values: "array", "boolean", "integer", "number", "object", "string"'),
        (root(a={"type": "null"}), ".properties[a].type: Forbidden: type cannot be set to null, use nullable as an alternative"),
        (root(a={"type": "object", "$ref": "#/x"}), ".properties[a].$ref: Forbidden: $ref is not supported"),
        (root(a={"type": "object", "definitions": {"x": {}}}), ".properties[a].definitions: Forbidden: definitions is not supported"),
        (root(a=items(INT, uniqueItems=True)), ".properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"),
        (root(a={**root(b=INT), "additionalProperties": INT}), ".properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"),
        (root(a={"type": "object", "additionalProperties": False}), ".properties[a].additionalProperties: Forbidden: additionalProperties cannot be set to false"),
        (root(a={"type": "array", "items": [INT]}), ".properties[a].items: Forbidden: items must be a schema object and not an array"),
        (root(a={**STR, "pattern": "("}), '.properties[a].pattern: Invalid value: "(": must be a valid regular expression, but isn\'t: error parsing regexp: missing ): ('),
        (root(a={**STR, "pattern": "a(?!b)"}), "must be a valid regular expression"),
        (root(a={**INT, "multipleOf": 0}), ".properties[a].multipleOf: Invalid value: 0: must be greater than 0"),
        (root(a={**STR, "maxLength": -1}), ".properties[a].maxLength: Invalid value: -1"),
        (root(a={"type": "object", "x-kubernetes-preserve-unknown-fields": False}), ".properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"),
        (root(a={**STR, "x-kubernetes-preserve-unknown-fields": True}), "must be object if x-kubernetes-preserve-unknown-fields is true"),
        (root(a={**STR, "x-kubernetes-int-or-string": True}), '.properties[a].type: Invalid value: "string": must be empty if x-kubernetes-int-or-string is true'),
        (root(a={"x-kubernetes-int-or-string": True, "anyOf": [{"type": "string"}]}), ".properties[a].anyOf[0].type: Forbidden: must be empty to be structural"),
        (root(a={**STR, "x-kubernetes-embedded-resource": True}), '.properties[a].type: Invalid value: "string": must be object if x-kubernetes-embedded-resource is true'),
        (root(a={"type": "object", "x-kubernetes-embedded-resource": True}), ".properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"),
        (root(metadata=root(labels={"type": "object", "additionalProperties": STR})), ".properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"),
        (root(kind=INT), '.properties[kind].type: Invalid value: "integer": must be string'),
        ({**root(a=INT), "anyOf": [{"type": "object"}]}, ".anyOf[0].type: Forbidden: must be empty to be structural"),
        ({**root(a=INT), "allOf": [{"properties": {"a": {"default": 1}}}]}, ".allOf[0].properties[a].default: Forbidden: must be undefined to be structural"),
        ({**root(a=INT), "oneOf": [{"description": "x"}]}, ".oneOf[0].description: Forbidden: must be empty to be structural"),
        ({**root(a=INT), "not": {"nullable": True}}, ".not.nullable: Forbidden: must be false to be structural"),
        ({**root(a=INT), "anyOf": [{"properties": {"b": {"minimum": 1}}}]}, f".properties[b]: Required value: because it is defined in {PATH}.anyOf[0].properties[b]"),
        ({**root(a=INT), "anyOf": [{"allOf": [{"properties": {"a": {"items": {}}}}]}]}, f".properties[a].items: Required value: because it is defined in {PATH}.anyOf[0].allOf[0].properties[a].items"),
        ({**root(a=INT), "anyOf": [{"not": {"$ref": "x"}}]}, ".anyOf[0].not.$ref: Forbidden: $ref is not supported"),
        (root(a=items(INT, **{"x-kubernetes-list-type": "bag"})), '.properties[a].x-kubernetes-list-type: Unsupported value: "bag": supported values: "atomic", "map", "set"'),
        (root(a={**INT, "x-kubernetes-list-type": "set"}), "must be array if x-kubernetes-list-type is specified"),
        (root(a=items(INT, **{"x-kubernetes-list-type": "map"})), ".properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"),
        (root(a=items(INT, **KEYED)), '.properties[a].items.type: Invalid value: "integer": must be object if parent array\'s x-kubernetes-list-type is map'),
        (root(a=items(root(), **KEYED)), '.properties[a].x-kubernetes-list-map-keys[0]: Invalid value: "k": entries must all be names of item properties'),
        (root(a=items(root(k=STR), **KEYED)), ".properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"),
        (root(a=items({**root(k={**STR, "nullable": True}), "required": ["k"]}, **KEYED)), ".properties[a].items.properties[k].nullable: Forbidden"),
        (root(a=items({**root(k=root()), "required": ["k"]}, **KEYED)), "must be a scalar type if parent array's x-kubernetes-list-type is map"),
        (root(a=items(STR, **{"x-kubernetes-list-map-keys": ["k"]})), "must be map if x-kubernetes-list-map-keys is non-empty"),
        (root(a=items(root(), **{"x-kubernetes-list-type": "set"})), "must be atomic as item of a list with x-kubernetes-list-type=set"),
        (root(a={**STR, "x-kubernetes-map-type": "atomic"}), "must be object if x-kubernetes-map-type is specified"),
        (root(a={"type": "object", "x-kubernetes-map-type": "x"}), 'Unsupported value: "x": supported values: "atomic", "granular"'),
        (root(a={**INT, "default": "x"}), '.properties[a].default: Invalid value: "string":  in body must be of type integer: "string"'),
        (root(a={**INT, "minimum": 3, "default": 1}), ".properties[a].default: Invalid value: 1:  in body should be greater than or equal to 3"),
        (root(a={**root(b=INT), "default": {"c": 1}}), ".properties[a].default: Invalid value: \"object\": must not have unknown fields: c"),
        (root(a={**root(b=INT), "default": {"b": "x"}}), '.properties[a].default.b: Invalid value: "string": b in body must be of type integer: "string"'),
        (root(a=items({**INT, "default": "x"})), ".properties[a].items.default: Invalid value"),
        (root(a={**INT, "x-kubernetes-validations": [{"rule": " "}]}), ".properties[a].x-kubernetes-validations[0].rule: Required value: rule is not specified"),
        (root(a={**INT, "x-kubernetes-validations": [{"rule": "true", "message": "a\nb"}]}), ".message: Invalid value: \"a\nb\": message must not contain line breaks"),
        (root(a={**INT, "x-kubernetes-validations": [{"rule": "true", "reason": "Bad"}]}), 'reason: Unsupported value: "Bad"'),
        (root(a={**INT, "x-kubernetes-validations": [{"rule": 1}]}), ".properties[a].x-kubernetes-validations[0].rule: Invalid value: 1: must be of type str"),
        ({"type": 1}, ".type: Invalid value: 1: must be of type string"),
        ({"type": "object", "properties": []}, '.properties: Invalid value: "array": must be of type object'),
        ({"type": "object", "properties": {"a": None}}, ".properties[a]: Invalid value: null: must be an object"),
        ({"type": "object", "required": [1]}, ".required[0]: Invalid value: 1: must be of type string"),
    ],
)  # fmt: skip
def test_refusal(schema: Raw, error: str) -> None:
    errors = told(schema)
    assert error in errors[0]
    assert len(errors) <= 2, errors


def test_deep_schemas_are_refused() -> None:
    schema: Raw = {"type": "object"}
    for _ in range(3000):
        schema = root(a=schema)
    (error,) = told(schema)
    assert "a schema may nest at most 100 levels deep" in error


def test_compiled_nodes_say_what_the_schema_says() -> None:
    raw = root(
        spec={
            **root(a={**INT, "default": None}, b={**STR, "default": "x", "nullable": True, "pattern": "^x"}),
            "required": ["b"],
        },
        l=items(root(k=STR), **KEYED),
        m={"type": "object", "additionalProperties": INT, "x-kubernetes-map-type": "atomic"},
        v={**INT, "x-kubernetes-validations": [{"rule": "self > 0", "fieldPath": ".x", "optionalOldSelf": True}]},
    )
    schema = compile_crd(raw)
    spec = schema.properties["spec"]
    assert spec.required == ("b",)
    assert spec.properties["a"].default is MISSING
    assert spec.properties["b"].default == "x" and spec.properties["b"].nullable
    assert spec.has_defaults and schema.has_defaults and not schema.properties["m"].has_defaults
    assert (schema.properties["l"].list_type, schema.properties["l"].list_keys) == ("map", ("k",))
    assert schema.properties["m"].atomic_map
    (rule,) = schema.properties["v"].rules
    assert (rule.rule, rule.field_path, rule.optional_old_self) == ("self > 0", ".x", True)
    assert schema.has_rules and not spec.has_rules
    assert set(schema.properties) >= {"apiVersion", "kind", "metadata"}


def test_given_object_meta_is_shared() -> None:
    meta = builtin.load().object_meta
    assert compile_crd(root(), meta).properties["metadata"] is meta


words = st.sampled_from(
    ["type", "properties", "items", "additionalProperties", "allOf", "anyOf", "not", "default", "pattern", "required",
     "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-int-or-string", "nullable", "a", "enum",
     "x-kubernetes-embedded-resource", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations", "minimum"]
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["object", "array", "string", "map", "(", "a"])
)
schemas = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(raw=st.dictionaries(words, schemas, max_size=5))
def test_any_schema_is_refused_or_compiles(raw: Raw) -> None:
    errors = check_structural(raw, PATH)
    assert all(isinstance(error, FieldError) for error in errors)
    if not errors:
        compile_crd(raw)


def test_an_update_checks_what_is_not_the_stored_objects_own() -> None:
    schema = compile_crd({**root(spec=root(n=INT), status=root(n=INT)), "required": ["spec"]})
    wrong: Raw = {"n": "text"}
    old: Raw = {"spec": wrong, "status": {"n": 1}}
    assert not validate_update({"spec": wrong, "status": {"n": 2}}, old, schema)
    assert [fault.field for fault in validate_update({"spec": wrong, "status": {"n": "x"}}, old, schema)] == [
        "status.n"
    ]
    assert [fault.field for fault in validate_update({"spec": {"n": "text"}}, old, schema)] == ["spec.n"]
    assert [fault.field for fault in validate_update({"status": old["status"]}, old, schema)] == ["spec"]
