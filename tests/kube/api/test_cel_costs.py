"""Cost estimates: the figures at which the validator of Kubernetes begins to refuse, and its sentences."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api import cel
from coterie.kube.api.cel.cost import estimate
from coterie.kube.api.cel.types import BOOL, INT, STRING, CelType, list_of
from coterie.kube.api.schema.node import Schema
from coterie.kube.api.schema.structural import compile_crd

ROOT = "spec.versions[0].schema.openAPIV3Schema"
ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are "
    "declared)"
)
Raw = dict[str, Any]


def faults(spec: Raw) -> list[str]:
    schema = compile_crd({"type": "object", "properties": {"spec": {"type": "object", **spec}}})
    assert cel.compile_rules(schema, ROOT) == []
    return [str(fault) for fault in cel.cost_faults(schema, ROOT)]


def rules(*texts: str) -> Raw:
    return {"x-kubernetes-validations": [{"rule": text} for text in texts]}


@pytest.mark.parametrize(
    ("length", "most"), [(16, 909_090), (63, 333_333), (253, 94_339), (1024, 24_154)]
)  # published measurements of the validator of Kubernetes 1.36
def test_limit_of_one_rule_is_where_kubernetes_has_it(length: int, most: int) -> None:
    def tags(items: int) -> Raw:
        each = {"type": "string", "maxLength": length}
        return {"tags": {"type": "array", "maxItems": items, "items": each, **rules("self.all(x, x.contains('gpu'))")}}

    assert faults({"properties": tags(most)}) == []
    (refused,) = faults({"properties": tags(most + 1)})
    assert refused.startswith(
        f"{ROOT}.properties[spec].properties[tags].x-kubernetes-validations[0].rule: Forbidden: "
        "estimated rule cost exceeds budget by factor of 1.0000"
    )


def test_no_limits_at_all() -> None:
    tags = {"type": "array", "items": {"type": "string"}, **rules("self.all(x, x.contains('gpu'))")}
    at = f"{ROOT}.properties[spec].properties[tags].x-kubernetes-validations[0].rule"
    assert faults({"properties": {"tags": tags}}) == [
        f"{at}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {ADVICE}",
        f"{at}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
        f"{ROOT}: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds "
        f"budget by factor of more than 100x {ADVICE}",
    ]


def test_message_expressions_count() -> None:
    rule = {"rule": "self.min > 1", "messageExpression": "'min is ' + string(self.min)"}
    spec = {"properties": {"min": {"type": "integer"}}, "x-kubernetes-validations": [rule]}
    assert any("estimated messageExpression cost exceeds" in fault for fault in faults(spec))
    rule["messageExpression"] = "'min is %d'.format([self.min])"
    assert faults(spec) == []


def test_many_rules_that_are_allowed_one_by_one() -> None:
    items = {"type": "array", "maxItems": 800_000, "items": {"type": "string", "maxLength": 16}}
    expensive = {f"l{n}": {**items, **rules("self.all(x, x.contains('gpu'))")} for n in range(12)}
    found = faults({"properties": expensive})
    assert len(found) == 5 and "exceeds budget by factor of 1.0" in found[-1]
    assert all("contributed to estimated rule cost total" in fault for fault in found[:-1])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: {"type": "array", "maxItems": 10, "items": inner},
        lambda inner: {"type": "object", "maxProperties": 10, "additionalProperties": inner},
    ],
)
def test_rule_below_a_list_runs_for_each_element(wrap: Any) -> None:
    text = {"type": "string", "maxLength": 100_000, **rules("self.matches('^[a-z]{1,10}([-a-z0-9]*[a-z0-9])?$')")}
    assert faults({"properties": {"a": wrap(text)}}) == []
    assert faults({"properties": {"a": wrap(wrap(text))}})
    assert any("more than 100x" in fault for fault in faults({"properties": {"a": {"type": "array", "items": text}}}))


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("self.n == oldSelf.n", True),
        ("self == oldSelf", True),
        ("self.s == oldSelf.s", True),
        ("self.s.matches('^[a-z]+$')", True),
        ("self.m.all(k, k.startsWith('a'))", True),
        ("size(self.l) < 3 && self.s.startsWith('a')", True),
        ("self.l.all(x, self.l.exists(y, x == y))", False),
        ("self.l.map(x, x + 'a').size() > 0", False),
        ("self.l.isSorted()", False),
        ("self.e == 'a' && self.l.all(x, x == self.e)", True),
        ("self.s.split(',').all(x, x.matches('a'))", False),
        ("has(self.n) ? self.n > 1 : self.s.lowerAscii() == 'a'", True),
    ],
)
def test_rules_without_limits(text: str, accepted: bool) -> None:
    properties = {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "e": {"type": "string", "enum": ["a", "bb"]},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "l": {"type": "array", "items": {"type": "string"}},
    }
    assert (faults({"properties": properties, **rules(text)}) == []) is accepted


LIST = Schema(type="array", max_items=10, items=Schema(type="string", max_length=5))
VARIABLES: dict[str, CelType] = {"l": list_of(STRING), "n": INT, "b": BOOL}


@pytest.mark.parametrize(
    ("source", "cost"),
    [
        ("b", 1),
        ("n + 1 == 2", 3),
        ("b && b || b", 3),
        ("b ? n == 1 : b", 3),
        ("l.all(x, x == 'abc')", 1 + 1 + 10 * (3 + 1 + 1)),
        ("l.exists(x, x == 'abc')", 1 + 1 + 10 * (4 + 1 + 1)),
        ("l.exists_one(x, x == 'abc')", 1 + 2 + 10 * (2 + 1 + 1)),
        ("l.map(x, x)[0] == 'a'", 1 + 11 + 10 * (12 + 1) + 1 + 1),
        ("l.filter(x, true).size() == 1", 1 + 11 + 10 * 13 + 1 + 1),
        ("'a' in l", 1 + 10),
        ("[1, 2] == [1, 2]", 21),
        ("l.join(',') == 'a'", 1 + 21 + 1),
    ],
)
def test_costs_are_those_of_cel(source: str, cost: int) -> None:
    assert estimate(source, VARIABLES, {"l": LIST}) == cost
