"""Pruning, unknown fields, defaulting and validation against schemas of custom resources."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import FieldError
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.defaulting import apply_defaults
from coterie.kube.api.schema.formats import is_of_format
from coterie.kube.api.schema.node import Schema
from coterie.kube.api.schema.pattern import Pattern, PatternError
from coterie.kube.api.schema.prune import prune, unknown_fields
from coterie.kube.api.schema.structural import compile_crd
from coterie.kube.api.schema.validate import validate

Raw = dict[str, Any]
META = builtin.load().object_meta


def crd(**spec: Raw) -> Schema:
    return compile_crd({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}, META)


def obj(object_type: str = "object", **properties: Raw) -> Raw:
    return {"type": object_type, "properties": properties}


INT: Raw = {"type": "integer"}
STR: Raw = {"type": "string"}
OPEN: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

# -- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec_schema", "spec", "kept", "unknown"),
    [
        ({"a": INT}, {"a": 1, "b": 2}, {"a": 1}, ["spec.b"]),
        ({"a": obj(b=INT)}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, ["spec.a.c"]),
        ({"l": {"type": "array", "items": obj(a=INT)}}, {"l": [{"a": 1}, {"z": 1}]}, {"l": [{"a": 1}, {}]}, ["spec.l[1].z"]),
        ({"m": {"type": "object", "additionalProperties": obj(a=INT)}}, {"m": {"k": {"a": 1, "z": 2}}}, {"m": {"k": {"a": 1}}}, ["spec.m.k.z"]),
        ({"o": OPEN}, {"o": {"x": {"y": [1]}}}, {"o": {"x": {"y": [1]}}}, []),
        ({"o": {**OPEN, "properties": {"k": obj(a=INT)}}}, {"o": {"x": 1, "k": {"a": 1, "z": 2}}}, {"o": {"x": 1, "k": {"a": 1}}}, ["spec.o.k.z"]),
        ({"o": {"x-kubernetes-preserve-unknown-fields": True}}, {"o": [{"x": 1}]}, {"o": [{"x": 1}]}, []),
        ({"m": {"type": "object", "additionalProperties": True}}, {"m": {"x": {"y": 1}}}, {"m": {"x": {"y": 1}}}, []),
        ({"a": STR}, {"a": {"b": 1}}, {"a": {}}, ["spec.a.b"]),
    ],
)  # fmt: skip
def test_prune(spec_schema: Raw, spec: Raw, kept: Raw, unknown: list[str]) -> None:
    schema = crd(**spec_schema)
    given_obj = {"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": copy.deepcopy(spec)}
    assert unknown_fields(given_obj, schema) == unknown
    assert given_obj["spec"] == spec
    assert prune(given_obj, schema) is given_obj
    assert given_obj == {"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": kept}


def test_metadata_is_pruned_by_object_meta() -> None:
    given_obj = {"metadata": {"name": "n", "labels": {"a": "b"}, "wrong": 1}}
    assert unknown_fields(given_obj, crd()) == ["metadata.wrong"]
    assert prune(given_obj, crd()) == {"metadata": {"name": "n", "labels": {"a": "b"}}}


def test_embedded_resources_keep_their_type_and_metadata() -> None:
    schema = crd(e={"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": obj(a=INT)}})
    embedded = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "bad": 1}, "spec": {"a": 1, "b": 2}, "c": 1}
    pruned = prune({"spec": {"e": embedded}}, schema)
    assert pruned["spec"]["e"] == {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {"a": 1}}
    assert [str(e) for e in validate({"spec": {"e": {"kind": "X"}}}, schema)] == [
        "spec.e.apiVersion: Required value: must not be empty"
    ]


def test_nulls_of_fields_that_are_not_nullable_go() -> None:
    schema = crd(a=INT, b={**INT, "nullable": True}, c={**INT, "default": 3}, d={**INT, "default": 3, "nullable": True})
    pruned = prune({"spec": {"a": None, "b": None, "c": None, "d": None}}, schema)
    assert pruned == {"spec": {"b": None, "c": None, "d": None}}
    assert apply_defaults(pruned, schema) == {"spec": {"b": None, "c": 3, "d": None}}


# -- defaults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec_schema", "spec", "filled"),
    [
        ({"a": {**INT, "default": 1}}, {}, {"a": 1}),
        ({"a": {**INT, "default": 1}}, {"a": 2}, {"a": 2}),
        ({"a": {**obj(b={**INT, "default": 1}), "default": {}}}, {}, {"a": {"b": 1}}),
        ({"a": obj(b={**INT, "default": 1})}, {}, {}),
        ({"l": {"type": "array", "items": obj(b={**INT, "default": 1})}}, {"l": [{}, {"b": 2}]}, {"l": [{"b": 1}, {"b": 2}]}),
        ({"m": {"type": "object", "additionalProperties": obj(b={**INT, "default": 1})}}, {"m": {"k": {}}}, {"m": {"k": {"b": 1}}}),
        ({"m": {"type": "object", "additionalProperties": {**INT, "default": 1}}}, {"m": {"k": None}}, {"m": {"k": 1}}),
        ({"l": {"type": "array", "items": {**INT, "default": 1}}}, {"l": [None, 2]}, {"l": [1, 2]}),
        ({"a": {**INT, "default": 1}}, {"a": "wrong"}, {"a": "wrong"}),
        ({"a": {**STR, "default": ""}, "b": {"type": "boolean", "default": False}}, {}, {"a": "", "b": False}),
    ],
)  # fmt: skip
def test_defaults(spec_schema: Raw, spec: Raw, filled: Raw) -> None:
    schema = crd(**spec_schema)
    assert apply_defaults({"spec": spec}, schema) == {"spec": filled}


def test_defaults_are_copied() -> None:
    schema = crd(a={"type": "array", "items": INT, "default": [1]})
    first = apply_defaults({"spec": {}}, schema)
    first["spec"]["a"].append(2)
    assert apply_defaults({"spec": {}}, schema) == {"spec": {"a": [1]}}


def test_branches_without_defaults_are_not_walked() -> None:
    schema = crd(a=obj(b=INT), c={**INT, "default": 1})
    assert not schema.properties["spec"].properties["a"].has_defaults
    assert schema.has_defaults


# -- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "value", "errors"),
    [
        (INT, 3, []),
        (INT, 3.0, []),
        (INT, "x", ['spec.f: Invalid value: "string": spec.f in body must be of type integer: "string"']),
        (INT, 3.5, ['spec.f: Invalid value: "number": spec.f in body must be of type integer: "number"']),
        (INT, True, ['spec.f: Invalid value: "boolean": spec.f in body must be of type integer: "boolean"']),
        (INT, None, ['spec.f: Invalid value: "null": spec.f in body must be of type integer: "null"']),
        ({**INT, "nullable": True}, None, []),
        (STR, 1, ['spec.f: Invalid value: "integer": spec.f in body must be of type string: "integer"']),
        ({"type": "number"}, 1, []),
        ({"type": "boolean"}, "true", ['spec.f: Invalid value: "string": spec.f in body must be of type boolean: "string"']),
        (obj(), [], ['spec.f: Invalid value: "array": spec.f in body must be of type object: "array"']),
        ({"type": "array", "items": INT}, {}, ['spec.f: Invalid value: "object": spec.f in body must be of type array: "object"']),
        ({"type": "array", "items": INT}, [1, "x"], ['spec.f[1]: Invalid value: "string": spec.f[1] in body must be of type integer: "string"']),
        ({**obj(size=INT), "required": ["size"]}, {}, ["spec.f.size: Required value"]),
        ({**STR, "enum": ["a", "b"]}, "x", ['spec.f: Unsupported value: "x": supported values: "a", "b"']),
        ({**INT, "enum": [1, 2]}, 3, ['spec.f: Unsupported value: 3: supported values: "1", "2"']),
        ({**STR, "enum": ["a"]}, "a", []),
        ({**INT, "minimum": 1}, 0, ["spec.f: Invalid value: 0: spec.f in body should be greater than or equal to 1"]),
        ({**INT, "minimum": 1, "exclusiveMinimum": True}, 1, ["spec.f: Invalid value: 1: spec.f in body should be greater than 1"]),
        ({**INT, "maximum": 5}, 6, ["spec.f: Invalid value: 6: spec.f in body should be less than or equal to 5"]),
        ({"type": "number", "maximum": 2.5, "exclusiveMaximum": True}, 2.5, ["spec.f: Invalid value: 2.5: spec.f in body should be less than 2.5"]),
        ({**INT, "multipleOf": 3}, 7, ["spec.f: Invalid value: 7: spec.f in body should be a multiple of 3"]),
        ({"type": "number", "multipleOf": 0.1}, 0.3, []),
        ({**STR, "maxLength": 2}, "abc", ["spec.f: Too long: may not be more than 2 bytes"]),
        ({**STR, "minLength": 2}, "a", ['spec.f: Invalid value: "a": spec.f in body should be at least 2 chars long']),
        ({**STR, "pattern": "^a+$"}, "b", ["spec.f: Invalid value: \"b\": spec.f in body should match '^a+$'"]),
        ({**STR, "pattern": "a"}, "bab", []),
        ({"type": "array", "items": INT, "maxItems": 1}, [1, 2], ["spec.f: Too many: 2: must have at most 1 items"]),
        ({"type": "array", "items": INT, "minItems": 1}, [], ["spec.f: Invalid value: 0: spec.f in body should have at least 1 items"]),
        ({"type": "object", "additionalProperties": INT, "maxProperties": 1}, {"a": 1, "b": 2}, ["spec.f: Too many: 2: must have at most 1 items"]),
        ({"type": "object", "additionalProperties": INT, "minProperties": 1}, {}, ['spec.f: Invalid value: "object": spec.f in body should have at least 1 properties']),
        ({"type": "object", "additionalProperties": INT}, {"k": "x"}, ['spec.f.k: Invalid value: "string": spec.f.k in body must be of type integer: "string"']),
        ({**STR, "format": "date-time"}, "now", ['spec.f: Invalid value: "now": spec.f in body must be of type date-time: "now"']),
        ({**INT, "format": "int32"}, 2**31, ["spec.f: Invalid value: 2147483648: Checked value must be of type integer with format int32"]),
        ({"x-kubernetes-int-or-string": True}, "5%", []),
        ({"x-kubernetes-int-or-string": True}, 5, []),
        ({"x-kubernetes-int-or-string": True}, 1.5, ['spec.f: Invalid value: "number": spec.f in body must be of type integer,string: "number"']),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, {}, ['spec.f: Invalid value: "object": spec.f in body must be of type integer,string: "object"']),
        ({"type": "array", "items": STR, "x-kubernetes-list-type": "set"}, ["a", "b", "a"], ['spec.f[2]: Duplicate value: "a"']),
        ({"type": "array", "items": obj(name=STR), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}, [{"name": "a"}, {"name": "a"}],
         ['spec.f[1]: Duplicate value: map[string]interface {}{"name":"a"}']),
        ({**obj(a=INT, b=INT), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, []),
        ({**obj(a=INT, b=INT), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1},
         ['spec.f: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found 2 valid alternatives']),
        ({**obj(a=INT, b=INT), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {},
         ['spec.f: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found none valid', "spec.f.a: Required value"]),
        ({**STR, "anyOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "c",
         ['spec.f: Invalid value: "": "spec.f" must validate at least one schema (anyOf)', "spec.f: Invalid value: \"c\": spec.f in body should match '^a'"]),
        ({**STR, "allOf": [{"minLength": 2}, {"pattern": "^a"}]}, "ab", []),
        ({**STR, "allOf": [{"minLength": 2}]}, "a", ['spec.f: Invalid value: "a": spec.f in body should be at least 2 chars long']),
        ({**STR, "not": {"enum": ["x"]}}, "x", ['spec.f: Invalid value: "": "spec.f" must not validate the schema (not)']),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"any": [1, None]}, []),
    ],
)  # fmt: skip
def test_validate(node: Raw, value: Any, errors: list[str]) -> None:
    assert [str(error) for error in validate({"spec": {"f": value}}, crd(f=node))] == errors


def test_type_errors_have_their_own_reason() -> None:
    (error,) = validate({"spec": {"f": "x"}}, crd(f=INT))
    assert error.reason == "FieldValueTypeInvalid"


def test_metadata_may_be_narrowed() -> None:
    raw = {"type": "object", "properties": {"metadata": obj(name={**STR, "maxLength": 3})}}
    schema = compile_crd(raw, META)
    assert [str(e) for e in validate({"metadata": {"name": "long", "labels": {}}}, schema)] == [
        "metadata.name: Too long: may not be more than 3 bytes"
    ]


FORMATS = {
    "date": (["2023-01-31"], ["2023-02-30", "x", "2023-1-1"]),
    "date-time": (["2023-01-02T03:04:05Z", "2023-01-02T03:04:05.5+01:00"], ["2023-01-02", "2023-13-02T03:04:05Z"]),
    "duration": (["1h30m", "1.5s", "0", "3 days"], ["1x", "h", ""]),
    "byte": (["aGk=", ""], ["a", "%%%%"]),
    "email": (["a@b.co", "Name <a@b.co>"], ["a", "@b", "a@", "a..b@c", "<>"]),
    "uri": (["https://a/b", "/abs", "urn:x:y"], ["rel", "http://a b", "http://[::1"]),
    "hostname": (["a.b", "x"], ["-a", "a..b", "a" * 300, ""]),
    "ipv4": (["1.2.3.4"], ["1.2.3", "::1", "1.2.3.256"]),
    "ipv6": (["::1", "2001:db8::"], ["1.2.3.4", "fe80::1%eth0"]),
    "cidr": (["10.0.0.0/8", "::/0"], ["10.0.0.0", "10.0.0.0/33", "x/8", "1.2.3.4/²"]),
    "mac": (["01:23:45:67:89:ab", "01-23-45-67-89-ab", "0123.4567.89ab"], ["01:23", "zz:23:45:67:89:ab"]),
    "uuid": (["0d5c2b4e-8f19-4c3f-9b35-2a7d9e6a1c11"], ["x"]),
    "uuid4": (["0d5c2b4e-8f19-4c3f-9b35-2a7d9e6a1c11"], ["0d5c2b4e-8f19-3c3f-9b35-2a7d9e6a1c11"]),
    "password": (["anything"], []),
    "hexcolor": (["#fff", "#A0B0C0"], ["#ggg"]),
    "rgbcolor": (["rgb(1,2,3)"], ["rgb(1,2,300)"]),
    "isbn": (["978-3-16-148410-0", "0-306-40615-2"], ["978-3-16-148410-1"]),
    "creditcard": (["4111 1111 1111 1111"], ["4111 1111 1111 1112"]),
    "ssn": (["123-45-6789"], ["12-345-6789"]),
    "bsonobjectid": (["507f1f77bcf86cd799439011"], ["507f"]),
    "k8s-short-name": (["a-b"], ["A", "a.b"]),
    "nobody-knows": (["anything"], []),
}


@pytest.mark.parametrize(
    ("format", "text", "good"),
    [(name, text, good) for name, rows in FORMATS.items() for good, texts in ((True, rows[0]), (False, rows[1])) for text in texts],
)  # fmt: skip
def test_formats(format: str, text: str, good: bool) -> None:
    assert is_of_format(text, format) is good


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_patterns_run_in_linear_time() -> None:
    assert not Pattern("^(a+)+$").search("a" * 50_000 + "b")


@pytest.mark.parametrize("text", ["(", "a(?=b)", r"(a)\1", "[z-a]", "a{2000}"])
def test_what_re2_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(PatternError, match="error parsing regexp"):
        Pattern(text)


def test_patterns_find_in_code_points() -> None:
    assert Pattern("é+").find("caféé!") == "éé"
    assert Pattern(".").find_all("aé", 1) == ["a"]
    assert not Pattern("^x$").search("\ud800")


# -- hostile objects --------------------------------------------------------------------------------------------------

EVERYTHING = compile_crd(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["a"],
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                "properties": {
                    "a": {**INT, "minimum": 1, "multipleOf": 2, "format": "int32", "default": 2},
                    "b": {**STR, "pattern": "^a", "maxLength": 3, "format": "date-time", "enum": ["a", "b"]},
                    "c": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "number", "multipleOf": 0.3}},
                    "d": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"], "items": obj(a=STR)},
                    "e": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}, "maxProperties": 2},
                    "f": {**OPEN, "x-kubernetes-embedded-resource": True},
                },
            }
        },
    },
    META,
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*"abcdefg", "spec", "metadata", "name"]), inner, max_size=5),
    max_leaves=14,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(value=st.one_of(json_values, json_values.map(lambda spec: {"spec": spec})))
def test_hostile_objects_give_field_errors_only(value: Any) -> None:
    pruned = prune(value, EVERYTHING)
    assert unknown_fields(pruned, EVERYTHING) == []
    filled = apply_defaults(pruned, EVERYTHING)
    for error in validate(filled, EVERYTHING):
        assert isinstance(error, FieldError)
        assert str(error)


def test_deep_values_are_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    schema = Schema(type="array", list_type="set")
    assert validate(deep, schema)[0].detail.endswith("is nested too deeply")
