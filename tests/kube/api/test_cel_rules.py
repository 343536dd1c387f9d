"""Rules in schemas: what a definition is refused for, and what an object is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api import cel
from coterie.kube.api.errors import FieldError
from coterie.kube.api.schema.node import Schema
from coterie.kube.api.schema.structural import compile_crd

ROOT = "spec.versions[0].schema.openAPIV3Schema"
Raw = dict[str, Any]


def rule(text: str, **more: Any) -> Raw:
    return {"rule": text, **more}


def crd(spec: Raw, *rules: Raw, root_rules: tuple[Raw, ...] = ()) -> Schema:
    """A custom resource whose `spec` has these properties and rules."""
    return compile_crd(
        {
            "type": "object",
            "x-kubernetes-validations": list(root_rules),
            "properties": {
                "spec": {"type": "object", "properties": spec, "x-kubernetes-validations": list(rules)},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    )


def compiled(schema: Schema) -> Schema:
    assert cel.compile_rules(schema, ROOT) == []
    return schema


def told(spec: Any, schema: Schema, old: Any = None, **more: Any) -> list[str]:
    old_obj = None if old is None else {"spec": old}
    return [str(error) for error in cel.check({"spec": spec}, old_obj, schema, **more)]


INT = {"type": "integer"}
STR = {"type": "string"}


@pytest.mark.parametrize(
    ("properties", "made", "spec", "errors"),
    [
        ({"a": INT, "b": INT}, rule("self.a <= self.b"), {"a": 1, "b": 2}, []),
        ({"a": INT, "b": INT}, rule("self.a <= self.b"), {"a": 3, "b": 2}, ['spec: Invalid value: "object": failed rule: self.a <= self.b']),
        ({"a": INT, "b": INT}, rule("self.a <= self.b", message="a over b"), {"a": 3, "b": 2}, ['spec: Invalid value: "object": a over b']),
        ({"a": INT}, rule("self.a < 3", messageExpression="'a is ' + string(self.a)"), {"a": 3}, ['spec: Invalid value: "object": a is 3']),
        ({"a": INT}, rule("self.a < 3", messageExpression="string(1 / 0)", message="plain"), {"a": 3}, ['spec: Invalid value: "object": plain']),
        ({"a": INT}, rule("self.a < 3", messageExpression="''"), {"a": 3}, ['spec: Invalid value: "object": failed rule: self.a < 3']),
        ({"a": INT}, rule("self.a < 3", fieldPath=".a", message="m"), {"a": 3}, ['spec.a: Invalid value: "object": m']),
        ({"a-b": INT}, rule("self.a__dash__b < 3", fieldPath="['a-b']", message="m"), {"a-b": 3}, ['spec.a-b: Invalid value: "object": m']),
        ({"a": INT}, rule("has(self.a)", reason="FieldValueRequired", message="need a"), {}, ["spec: Required value: need a"]),
        ({"a": INT}, rule("!has(self.a)", reason="FieldValueForbidden", message="no a"), {"a": 1}, ["spec: Forbidden: no a"]),
        ({"a": INT}, rule("!has(self.a)", reason="FieldValueDuplicate", message="dup"), {"a": 1}, ['spec: Duplicate value: "object": dup']),
        ({"a": INT}, rule("self.a > 0"), {}, ['spec: Invalid value: "object": no such key: a evaluating rule: failed rule: self.a > 0']),
        ({"namespace": STR}, rule("self.__namespace__ == 'x'"), {"namespace": "x"}, []),
        ({"a.b/c": STR, "x__y": STR}, rule("self.a__dot__b__slash__c == self.x__underscores__y"), {"a.b/c": "x", "x__y": "x"}, []),
        ({"t": {"type": "string", "format": "date-time"}}, rule("self.t < timestamp('2024-01-01T00:00:00Z')"), {"t": "2023-01-01T00:00:00Z"}, []),
        ({"t": {"type": "string", "format": "date"}}, rule("self.t.getFullYear() == 2023"), {"t": "2023-05-06"}, []),
        ({"d": {"type": "string", "format": "duration"}}, rule("self.d <= duration('1h')"), {"d": "90m"}, ["spec: Invalid value: \"object\": failed rule: self.d <= duration('1h')"]),
        ({"b": {"type": "string", "format": "byte"}}, rule("self.b == b'hi'"), {"b": "aGk="}, []),
        ({"p": {"x-kubernetes-int-or-string": True}}, rule("type(self.p) == int ? self.p > 0 : self.p.endsWith('%')"), {"p": "5%"}, []),
        ({"p": {"x-kubernetes-int-or-string": True}}, rule("type(self.p) == int ? self.p > 0 : self.p == '100%'"), {"p": 5}, []),
        ({"l": {"type": "array", "items": STR, "x-kubernetes-list-type": "set"}}, rule("self.l == ['b', 'a'] && self.l + ['a', 'c'] == ['c', 'b', 'a']"), {"l": ["a", "b"]}, []),
        ({"m": {"type": "object", "additionalProperties": INT}}, rule("self.m.all(k, self.m[k] > 0)"), {"m": {"x": 0}}, ['spec: Invalid value: "object": failed rule: self.m.all(k, self.m[k] > 0)']),
        ({"n": {"type": "number"}}, rule("self.n * 2.0 > 1.0"), {"n": 1}, []),
        ({"q": STR}, rule("quantity(self.q).isLessThan(quantity('2Gi'))"), {"q": "1Gi"}, []),
        ({"o": {"type": "object", "nullable": True, "properties": {"x": INT}}}, rule("self.o == null"), {"o": None}, []),
    ],
)  # fmt: skip
def test_rule_on_spec(properties: Raw, made: Raw, spec: Raw, errors: list[str]) -> None:
    assert told(spec, compiled(crd(properties, made))) == errors


def test_rules_stand_at_every_depth() -> None:
    positive = {"type": "integer", "x-kubernetes-validations": [rule("self > 0", message="positive")]}
    schema = compiled(
        crd(
            {
                "list": {"type": "array", "items": positive},
                "map": {"type": "object", "additionalProperties": positive},
                "deep": {"type": "object", "properties": {"n": positive}},
            }
        )
    )
    assert told({"list": [1, 0], "map": {"k": 0}, "deep": {"n": -1}}, schema) == [
        'spec.list[1]: Invalid value: "integer": positive',
        'spec.map[k]: Invalid value: "integer": positive',
        'spec.deep.n: Invalid value: "integer": positive',
    ]
    assert told({"list": [1, None], "map": {}}, schema) == []


def test_root_rules_see_name_and_generate_name_only() -> None:
    schema = compiled(crd({}, root_rules=(rule("self.metadata.name.startsWith('a')", message="name"),)))
    assert cel.check({"metadata": {"name": "abc"}}, None, schema) == []
    (error,) = cel.check({"metadata": {"name": "xyz"}}, None, schema)
    assert error == FieldError("<nil>", "FieldValueInvalid", 'Invalid value: "object": name')
    refused = cel.compile_rules(crd({}, root_rules=(rule("self.metadata.labels.size() > 0"),)), ROOT)
    assert "undefined field 'labels'" in refused[0].detail


# -- transitions ------------------------------------------------------------------------------------------------------


def test_transition_rules_run_on_update_only() -> None:
    schema = compiled(crd({"a": {**INT, "x-kubernetes-validations": [rule("self == oldSelf", message="immutable")]}}))
    assert told({"a": 1}, schema) == []
    assert told({"a": 1}, schema, old={"a": 1}) == []
    assert told({"a": 2}, schema, old={}) == []
    assert told({"a": 2}, schema, old={"a": 1}) == ['spec.a: Invalid value: "integer": immutable']


def test_optional_old_self_runs_on_create_too() -> None:
    text = "oldSelf.hasValue() ? self >= oldSelf.value() : self == 0"
    made = rule(text, optionalOldSelf=True, message="only upwards from 0")
    schema = compiled(crd({"a": {**INT, "x-kubernetes-validations": [made]}}))
    assert told({"a": 0}, schema) == []
    assert told({"a": 1}, schema) == ['spec.a: Invalid value: "integer": only upwards from 0']
    assert told({"a": 2}, schema, old={"a": 1}) == []
    assert told({"a": 0}, schema, old={"a": 1}) == ['spec.a: Invalid value: "integer": only upwards from 0']


def test_map_list_items_are_found_again_by_key() -> None:
    item = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": STR, "v": INT},
        "x-kubernetes-validations": [rule("self.v >= oldSelf.v", message="only upwards")],
    }
    keyed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    schema = compiled(crd({"l": keyed}))
    old = {"l": [{"name": "a", "v": 5}, {"name": "b", "v": 1}]}
    assert told({"l": [{"name": "b", "v": 2}, {"name": "a", "v": 6}, {"name": "c", "v": 0}]}, schema, old=old) == []
    assert told({"l": [{"name": "b", "v": 0}]}, schema, old=old) == ['spec.l[0]: Invalid value: "object": only upwards']


def test_old_self_is_refused_where_items_cannot_be_found_again() -> None:
    item = {**INT, "x-kubernetes-validations": [rule("self == oldSelf")]}
    (error,) = cel.compile_rules(crd({"l": {"type": "array", "items": item}}), ROOT)
    assert error.field == f"{ROOT}.properties[spec].properties[l].items.x-kubernetes-validations[0].rule"
    assert "oldSelf cannot be used on the uncorrelatable portion" in error.detail


def test_ratcheting_spares_what_did_not_change() -> None:
    schema = compiled(crd({"a": INT}, rule("self.a > 5", message="m")))
    assert told({"a": 1}, schema, old={"a": 1}, ratchet=True) == []
    assert told({"a": 2}, schema, old={"a": 1}, ratchet=True) == ['spec: Invalid value: "object": m']
    assert told({"a": 1}, schema, old={"a": 1}) == ['spec: Invalid value: "object": m']


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "field", "detail"),
    [
        (rule("self.foo > 1"), "rule", "compilation failed: ERROR: <input>:1:5: undefined field 'foo'\n | self.foo > 1\n | ....^"),
        (rule("self.a >"), "rule", "compilation failed: ERROR: <input>:1:9: Syntax error"),
        (rule("self.a"), "rule", "cel expression must evaluate to a bool"),
        (rule("self.a == 'x'"), "rule", "found no matching overload for '_==_' applied to '(int, string)'"),
        (rule("true", messageExpression="self.a"), "messageExpression", "messageExpression must evaluate to a string"),
        (rule("true", messageExpression="self.b"), "messageExpression", "undefined field 'b'"),
        (rule("true", fieldPath=".nope"), "fieldPath", "does not refer to a valid field"),
        (rule("true", fieldPath="nope"), "fieldPath", "fieldPath must be a valid path"),
        (rule("true", optionalOldSelf=True), "optionalOldSelf", "may not be set if oldSelf is not used in rule"),
        (rule("self.open.x == 1"), "rule", "undefined field 'x'"),
    ],
)  # fmt: skip
def test_rule_is_refused(made: Raw, field: str, detail: str) -> None:
    open_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    (error,) = cel.compile_rules(crd({"a": INT, "open": open_object}, made), ROOT)
    assert error.field == f"{ROOT}.properties[spec].x-kubernetes-validations[0].{field}"
    assert detail in error.detail


def test_budget_is_shared_by_all_rules_of_an_object() -> None:
    made = rule("self.l.all(a, self.l.all(b, a + b >= 0))")
    schema = compiled(crd({"l": {"type": "array", "items": INT}}, made, made, made))
    errors = told({"l": list(range(100))}, schema, budget=120_000)
    assert errors[-1].startswith('<nil>: Invalid value: "": validation failed due to running out of cost budget')


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "l", "m", "t", "name", "v", "k"]), inner, max_size=4)
    ),
    max_leaves=10,
)
HOSTILE = compiled(
    crd(
        {
            "a": {**INT, "x-kubernetes-validations": [rule("self + 1 > 0 && self >= oldSelf")]},
            "l": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": STR, "v": INT}, "x-kubernetes-validations": [rule("self.v > oldSelf.v || self.name.size() > 1")]},
            },
            "m": {"type": "object", "additionalProperties": {**STR, "x-kubernetes-validations": [rule("self.matches('a')")]}},
            "t": {"type": "string", "format": "date-time", "x-kubernetes-validations": [rule("self.getHours() > 3")]},
        },
        rule("self.l.map(x, x.v).sum() < 10 && self.m == oldSelf.m"),
    )
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(new=values, old=values)
def test_hostile_objects_give_field_errors_only(new: Any, old: Any) -> None:
    for error in cel.check({"spec": new}, {"spec": old}, HOSTILE, ratchet=True):
        assert isinstance(error, FieldError)
    cel.check(new, None, HOSTILE)


def test_ratcheting_of_elements_that_cannot_be_told_apart() -> None:
    element = {"type": "string", "x-kubernetes-validations": [rule("self.size() > 1", message="short")]}
    listed = {"type": "array", "items": element}
    schema = compiled(crd({"l": listed, "n": INT}))
    assert told({"l": ["a"], "n": 2}, schema, old={"l": ["a"], "n": 1}, ratchet=True) == []
    changed = told({"l": ["a", "bb"]}, schema, old={"l": ["a"]}, ratchet=True)
    assert changed == ['spec.l[0]: Invalid value: "string": short']


def test_ratcheting_of_elements_with_keys() -> None:
    element = {
        "type": "object",
        "required": ["k"],
        "properties": {"k": STR, "v": INT},
        "x-kubernetes-validations": [rule("self.v > 1", message="low")],
    }
    listed = {"type": "array", "items": element, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    schema = compiled(crd({"l": listed}))
    old = {"l": [{"k": "a", "v": 0}, {"k": "b", "v": 2}]}
    assert told({"l": [{"k": "b", "v": 3}, {"k": "a", "v": 0}]}, schema, old=old, ratchet=True) == []
    assert told({"l": [{"k": "a", "v": 1}]}, schema, old=old, ratchet=True) == [
        'spec.l[0]: Invalid value: "object": low'
    ]


def test_ratcheting_never_spares_transition_rules() -> None:
    schema = compiled(crd({"a": INT}, rule("self.a > oldSelf.a", message="must grow")))
    assert told({"a": 1}, schema, old={"a": 1}, ratchet=True) == ['spec: Invalid value: "object": must grow']
