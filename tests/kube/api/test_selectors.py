"""Label and field selectors: what they match, and how bad ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api import selectors
from coterie.kube.api.errors import BadRequest
from coterie.kube.api.resources import BUILTIN, Resource

RESOURCES = {(resource.group, resource.plural): resource for resource in BUILTIN}
LABELS = {"app": "web", "tier": "front", "size": "5", "x.io/y": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier = front ", True),
        ("app=db", False),
        ("app!=db", True),
        ("missing!=db", True),
        ("app!=web", False),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("missing in (db)", False),
        ("app notin (db)", True),
        ("app notin (web,db)", False),
        ("missing notin (db)", True),
        ("x.io/y=", True),
        ("x.io/y=,app=web", True),
        ("app=", False),
        ("x.io/y in (,a)", True),
        ("size>4", True),
        ("size>5", False),
        ("size<6", True),
        ("app>1", False),
        ("in in (a)", False),
        ("app=web,tier in (front),!missing,size", True),
    ],
)
def test_label_selectors(text: str, matches: bool) -> None:
    assert selectors.parse_label_selector(text).matches(LABELS) is matches


def test_no_labels_at_all() -> None:
    assert selectors.parse_label_selector("!a").matches(None)
    assert not selectors.parse_label_selector("a").matches(None)
    assert selectors.parse_label_selector(None).everything


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a b", "found 'b', expected: in, notin, =, ==, !=, <, >"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a in b", "found 'b' expected: '('"),
        ("a in (b", "found '', expected: ',', ')' or identifier"),
        ("=b", "found '=', expected: !, identifier, or 'end of string'"),
        ("!", "found '', expected: identifier"),
        ("a==(", "found '(', expected: identifier"),
        ("a=b_", 'values[0][a]: Invalid value: "b_": a valid label must be'),
        ("-a=b", 'key: Invalid value: "-a": name part must consist'),
        ("a>b", "values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer"),
    ],
)
def test_malformed_label_selectors(text: str, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        selectors.parse_label_selector(text)
    assert caught.value.message.startswith("unable to parse requirement: " + told), caught.value.message


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=!,()<> in.x-", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        selector = selectors.parse_label_selector(text)
    except BadRequest:
        return
    again = selectors.parse_label_selector(str(selector))
    for labels in ({}, {"a": "b"}, {"ab": ""}, {"a": "in"}):
        assert selector.matches(labels) == again.matches(labels)


@pytest.mark.parametrize(
    ("obj", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "q", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "q", "operator": "Exists"}]}, False),
    ],
)
def test_selector_objects(obj: dict[str, Any] | None, matches: bool) -> None:
    assert selectors.selector_of(obj).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("term", "told"),
    [
        (
            {"key": "a", "operator": "In"},
            "values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        ({"key": "a", "operator": "Exists", "values": ["b"]}, "values: Forbidden: may not be specified when"),
        (
            {"key": "a", "operator": "Gt", "values": ["1"]},
            'operator: Invalid value: "Gt": not a valid selector operator',
        ),
        ({"key": "a b", "operator": "Exists"}, 'key: Invalid value: "a b": name part'),
        ({"key": "a", "operator": "In", "values": ["b c"]}, 'values[0]: Invalid value: "b c"'),
    ],
)
def test_faulty_selector_objects(term: dict[str, Any], told: str) -> None:
    (error,) = selectors.validate_selector({"matchExpressions": [term]}, "spec.selector")
    assert str(error).startswith("spec.selector.matchExpressions[0]." + told)


def test_exact_values_can_be_looked_up() -> None:
    assert selectors.parse_label_selector("a=b,c in (d,e)").exact("a") == "b"
    assert selectors.parse_label_selector("a=b,c in (d,e)").exact("c") is None
    assert selectors.parse_field_selector("metadata.name=x").exact("metadata.name") == "x"
    assert selectors.parse_field_selector("metadata.name!=x").exact("metadata.name") is None


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("a=b", [("a", "b", True)]),
        ("a==b", [("a", "b", True)]),
        ("a!=b", [("a", "b", False)]),
        ("a=,b!=", [("a", "", True), ("b", "", False)]),
        (r"a=b\,c\=d\\e,f=g", [("a", r"b,c=d\e", True), ("f", "g", True)]),
        (",,a=b,", [("a", "b", True)]),
    ],
)
def test_field_selectors(text: str, terms: list[tuple[str, str, bool]]) -> None:
    parsed = selectors.parse_field_selector(text)
    assert [(term.field, term.value, term.equal) for term in parsed.terms] == terms


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        (r"a=b\x", r"invalid field selector: invalid escape sequence: \x"),
        ("a=b=c", "invalid field selector: unescaped character in value: ="),
    ],
)
def test_malformed_field_selectors(text: str, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        selectors.parse_field_selector(text)
    assert caught.value.message == told


@given(st.text(max_size=12))
def test_escaping_is_undone(value: str) -> None:
    escaped = "".join(f"\\{each}" if each in "\\,=" else each for each in value)
    (term,) = selectors.parse_field_selector("a=" + escaped).terms
    assert term.value == value


POD = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "x"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("resource", "obj", "text", "matches"),
    [
        (("", "pods"), POD, "metadata.name=p,metadata.namespace=n", True),
        (("", "pods"), POD, "spec.nodeName=x,status.phase!=Failed", True),
        (("", "pods"), POD, "spec.nodeName=", False),
        (("", "pods"), POD, "spec.hostNetwork=false", True),
        (("", "nodes"), {}, "spec.unschedulable=false", True),
        (("", "nodes"), {"spec": {"unschedulable": True}}, "spec.unschedulable=true", True),
        (("", "events"), {"involvedObject": {"kind": "Pod", "uid": "u"}}, "involvedObject.uid=u", True),
        (("", "events"), {"source": {"component": "kubelet"}}, "source=kubelet", True),
        (("events.k8s.io", "events"), {"involvedObject": {"name": "p"}}, "regarding.name=p", True),
        (("", "secrets"), {"type": "Opaque"}, "type=Opaque", True),
        (("", "namespaces"), {"status": {"phase": "Active"}}, "status.phase=Active", True),
        (("apps", "replicasets"), {"status": {"replicas": 3}}, "status.replicas=3", True),
        (("batch", "jobs"), {"status": {"succeeded": 2}}, "status.successful=2", True),
        (("", "services"), {"spec": {"clusterIP": "None"}}, "spec.clusterIP=None", True),
        (("", "configmaps"), {"metadata": {"name": "c"}}, "metadata.name=d", False),
    ],
)
def test_fields_of_kinds(resource: tuple[str, str], obj: dict[str, Any], text: str, matches: bool) -> None:
    selector = selectors.parse_field_selector(text)
    assert selector.bind(RESOURCES[resource])(obj) is matches
    assert selector.matches(selectors.selectable_fields(RESOURCES[resource], obj)) is matches


CUSTOM = Resource("example.com", "v1", "widgets", "Widget", True, custom=True)


@pytest.mark.parametrize(
    ("resource", "field", "told"),
    [
        (RESOURCES["", "pods"], "spec.foo", "field label not supported: spec.foo"),
        (CUSTOM, "spec.color", "field label not supported: spec.color"),
        (
            RESOURCES["", "configmaps"],
            "data",
            '"data" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
    ],
)
def test_unknown_fields(resource: Resource, field: str, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        selectors.parse_field_selector(f"{field}=x").bind(resource)
    assert caught.value.message == told


def test_selectable_fields_of_a_custom_resource() -> None:
    selector = selectors.parse_field_selector("spec.color=blue,spec.size=3,spec.on=true")
    matches = selector.bind(CUSTOM, (".spec.color", ".spec.size", ".spec.on"))
    assert matches({"spec": {"color": "blue", "size": 3, "on": True}})
    assert not matches({"spec": {"color": "red"}})
    assert not matches({"spec": "odd"})
