"""Sets of fields, the fields of values, and differences: FieldsV1 as Kubernetes writes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import BadRequest
from coterie.kube.api.fields.fieldset import contains, difference, intersection, parse, paths, pretty, union, without
from coterie.kube.api.fields.ownership import changed, created_fields, owned_by_object
from coterie.kube.api.schema.node import Schema

M: dict[str, Any] = {}
STRING, INTEGER = Schema(type="string"), Schema(type="integer")


def obj(*required: str, **properties: Schema) -> Schema:
    return Schema(type="object", properties=properties, required=required)


PORTS = Schema(
    type="array",
    list_type="map",
    list_keys=("port", "protocol"),
    items=obj("port", port=INTEGER, protocol=Schema(type="string", default="TCP"), name=STRING),
)
CONTAINERS = Schema(
    type="array",
    list_type="map",
    list_keys=("name",),
    items=obj("name", name=STRING, image=STRING, ports=PORTS, args=Schema(type="array", items=STRING)),
)
SCHEMA = obj(
    spec=obj(
        "containers",
        containers=CONTAINERS,
        replicas=INTEGER,
        tags=Schema(type="array", list_type="set", items=STRING),
        selector=Schema(type="object", additional=STRING, atomic_map=True),
        strategy=obj(kind=STRING, surge=Schema(int_or_string=True)),
        nodes=Schema(type="object", additional=STRING),
        free=Schema(type="object", preserve_unknown=True),
        groups=Schema(type="object", additional=obj(size=INTEGER)),
    ),
    status=obj(phase=STRING),
)


def thing(meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": "Thing", "metadata": {"name": "t", **(meta or {})}, "spec": spec}


@pytest.mark.parametrize(
    ("left", "right", "joined", "less", "both"),
    [
        pytest.param({"f:a": M}, {}, {"f:a": M}, {"f:a": M}, {}, id="empty"),
        pytest.param({"f:a": M}, {"f:a": M}, {"f:a": M}, {}, {"f:a": M}, id="same"),
        pytest.param({"f:a": M}, {"f:b": M}, {"f:a": M, "f:b": M}, {"f:a": M}, {}, id="other"),
        pytest.param({"f:a": M}, {"f:a": {"f:b": M}}, {"f:a": {".": M, "f:b": M}}, {"f:a": M}, {}, id="member-and-child"),
        pytest.param({"f:a": {".": M, "f:b": M}}, {"f:a": M}, {"f:a": {".": M, "f:b": M}}, {"f:a": {"f:b": M}}, {"f:a": M}, id="minus-member"),
        pytest.param({"f:a": {".": M, "f:b": M}}, {"f:a": {"f:b": M}}, {"f:a": {".": M, "f:b": M}}, {"f:a": M}, {"f:a": {"f:b": M}}, id="minus-child"),
        pytest.param({"f:a": {"f:b": M}}, {"f:a": {"f:b": M}}, {"f:a": {"f:b": M}}, {}, {"f:a": {"f:b": M}}, id="child"),
    ],
)  # fmt: skip
def test_algebra(left: Any, right: Any, joined: Any, less: Any, both: Any) -> None:
    assert union(left, right) == joined
    assert difference(left, right) == less
    assert intersection(left, right) == both


def test_without_takes_what_lies_below() -> None:
    fields = {"f:a": {".": M, "f:b": {"f:c": M}}, "f:z": M}
    assert without(fields, {"f:a": M}) == {"f:z": M}
    assert without(fields, {"f:a": {"f:b": M}}) == {"f:a": M, "f:z": M}
    assert without(fields, {"f:a": {".": M}}) == {"f:a": {"f:b": {"f:c": M}}, "f:z": M}


_elements = st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}', 'v:"q"'])
_paths = st.lists(_elements, min_size=1, max_size=3).map(tuple)


def fieldset(members: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path in members:
        node: dict[str, Any] = M
        for element in reversed(path):
            node = {element: node}
        out = union(out, node)
    return out


@given(st.frozensets(_paths, max_size=6), st.frozensets(_paths, max_size=6))
@settings(max_examples=200, deadline=None)
def test_sets_behave_like_sets(left: frozenset[Any], right: frozenset[Any]) -> None:
    a, b = fieldset(left), fieldset(right)
    assert set(paths(a)) == left
    assert set(paths(union(a, b))) == left | right
    assert set(paths(difference(a, b))) == left - right
    assert set(paths(intersection(a, b))) == left & right
    assert difference(a, b) == fieldset(left - right)
    assert intersection(a, b) == fieldset(left & right)
    assert all(contains(a, path) == (path in left) for path in left | right)
    assert parse(a) == a
    below = {path for path in left if not any(path[: len(r)] == r for r in right if r not in _inner(right))}
    assert set(paths(without(a, b))) == below - right


def _inner(members: frozenset[Any]) -> set[Any]:
    """Members with others below them: those take only themselves along."""
    return {p for p in members if any(q != p and q[: len(p)] == p for q in members)}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:spec", "f:replicas"), ".spec.replicas"),
        (("f:metadata", "f:labels", "f:example.com/app"), ".metadata.labels.example.com/app"),
        (("f:spec", "f:containers", 'k:{"name":"nginx"}', "f:image"), '.spec.containers[name="nginx"].image'),
        (("f:ports", 'k:{"containerPort":80,"protocol":"TCP"}'), '.ports[containerPort=80,protocol="TCP"]'),
        (("f:metadata", "f:finalizers", 'v:"x/y"'), '.metadata.finalizers[="x/y"]'),
        (("f:list", "i:3"), ".list[3]"),
    ],
)
def test_pretty(path: tuple[str, ...], text: str) -> None:
    assert pretty(path) == text


@pytest.mark.parametrize(
    ("given_fields", "read"),
    [
        pytest.param({".": {}, "f:a": {".": {}}}, {"f:a": M}, id="tidied"),
        pytest.param({'k:{ "b": 1, "a":"x"}': {}}, {'k:{"a":"x","b":1}': M}, id="keys-sorted"),
        pytest.param({'v: "x"': {}, "i:7": {}}, {'v:"x"': M, "i:7": M}, id="values"),
    ],
)
def test_parse_brings_into_canonical_form(given_fields: Any, read: Any) -> None:
    assert parse(given_fields) == read


@pytest.mark.parametrize(
    "bad", [[], {"f:a": 1}, {"x:a": {}}, {"k:[]": {}}, {"k:{": {}}, {"i:x": {}}, {"": {}}, {"k:{}": {}}]
)
def test_parse_refuses(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"fieldsV1|path element"):
        parse(bad)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        pytest.param(thing(), {"f:spec": M}, id="empty-struct"),
        pytest.param({"metadata": {"name": "x", "labels": {}}}, {"f:metadata": {"f:labels": M}}, id="empty-labels"),
        pytest.param({"metadata": {}}, {}, id="bare-metadata"),
        pytest.param(thing(replicas=1), {"f:spec": {"f:replicas": M}}, id="scalar"),
        pytest.param(thing(selector={"a": "b"}), {"f:spec": {"f:selector": M}}, id="atomic-map"),
        pytest.param(thing(nodes={"a": "b"}), {"f:spec": {"f:nodes": {"f:a": M}}}, id="map"),
        pytest.param(thing(nodes={}), {"f:spec": {"f:nodes": M}}, id="empty-map"),
        pytest.param(thing(strategy={"kind": "x"}), {"f:spec": {"f:strategy": {"f:kind": M}}}, id="struct"),
        pytest.param(thing(groups={"a": {"size": 1}}), {"f:spec": {"f:groups": {"f:a": {".": M, "f:size": M}}}}, id="map-of-structs"),
        pytest.param(thing(containers=[]), {}, id="empty-list"),
        pytest.param(thing(replicas=None), {"f:spec": {"f:replicas": M}}, id="null"),
        pytest.param(thing(tags=["x"]), {"f:spec": {"f:tags": {'v:"x"': M}}}, id="set"),
        pytest.param(
            thing(containers=[{"name": "a", "image": "i", "ports": [{"port": 80}], "args": ["x"]}]),
            {"f:spec": {"f:containers": {'k:{"name":"a"}': {".": M, "f:name": M, "f:image": M, "f:args": M,
                "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": M, "f:port": M}}}}}},
            id="keyed-list-with-defaulted-key",
        ),
        pytest.param(thing(free={"a": {"b": [1, {"c": 2}]}}), {"f:spec": {"f:free": {"f:a": {".": M, "f:b": M}}}}, id="deduced"),
        pytest.param(
            thing({"labels": {"a": "b"}, "finalizers": ["f"], "uid": "u", "ownerReferences": [{"uid": "u", "name": "n"}]}),
            {"f:metadata": {"f:labels": {"f:a": M}, "f:finalizers": {'v:"f"': M}, "f:ownerReferences": {'k:{"uid":"u"}': M}}, "f:spec": M},
            id="metadata",
        ),
    ],
)  # fmt: skip
def test_owned_by_object(value: dict[str, Any], fields: dict[str, Any]) -> None:
    assert owned_by_object(value, SCHEMA) == fields


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (thing(containers=[{"name": "a"}, {"name": "a"}]), '.spec.containers: duplicate entries for key [name="a"]'),
        (thing(tags=["x", "x"]), '.spec.tags: duplicate entries for key [="x"]'),
        (thing(containers=[{"image": "i"}]), '.spec.containers: element 0: associative list with keys has an element that omits key field "name"'),
        (thing(containers={"a": 1}), ".spec.containers: expected list, got map"),
        (thing(strategy=[1]), ".spec.strategy: expected map, got list"),
        (thing(wrong=1), ".spec.wrong: field not declared in schema"),
        ({"metadata": "x"}, ".metadata: expected map, got string"),
        (thing({"wrong": 1}), ".metadata.wrong: field not declared in schema"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(value: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        owned_by_object(value, SCHEMA)
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        pytest.param(thing(replicas=1), {"f:replicas": M}, id="scalar"),
        pytest.param(thing(strategy={"kind": "x"}), {"f:strategy": {".": M, "f:kind": M}}, id="struct-is-member"),
        pytest.param(thing(nodes={"a": "b"}), {"f:nodes": {".": M, "f:a": M}}, id="map-is-member"),
        pytest.param(thing(strategy={}, nodes={}, tags=[]), {"f:strategy": M, "f:nodes": M, "f:tags": M}, id="empty"),
        pytest.param(thing(containers=[{"name": "a", "image": "i"}]), {"f:containers": {'k:{"name":"a"}': {".": M, "f:name": M, "f:image": M}}}, id="required-is-no-member"),
        pytest.param(thing(containers=[{"name": "a"}, {"name": "a", "image": "x"}, {"name": "b"}]), {"f:containers": {'k:{"name":"a"}': M, 'k:{"name":"b"}': {".": M, "f:name": M}}}, id="duplicates"),
        pytest.param(thing(containers=[{"image": "i"}]), {"f:containers": M}, id="no-key"),
        pytest.param(thing(containers=[{"name": 'q"\\\n'}]), {"f:containers": {'k:{"name":"q\\"\\\\\\n"}': {".": M, "f:name": M}}}, id="escaped-key"),
        pytest.param(thing(free={"a": {"b": 1}, "c": []}), {"f:free": {".": M, "f:a": {".": M, "f:b": M}, "f:c": M}}, id="deduced"),
    ],
)  # fmt: skip
def test_created_fields(value: dict[str, Any], fields: dict[str, Any]) -> None:
    for _ in range(2):  # the second time from what was remembered
        assert created_fields(value, SCHEMA) == {"f:spec": fields}


@pytest.mark.parametrize(
    ("old", "new", "more", "less"),
    [
        pytest.param({"replicas": 1}, {"replicas": 1}, {}, {}, id="same"),
        pytest.param({"replicas": 1}, {"replicas": 2}, {"f:replicas": M}, {}, id="modified"),
        pytest.param({}, {"replicas": 2}, {"f:replicas": M}, {}, id="added"),
        pytest.param({"replicas": 1}, {}, {}, {"f:replicas": M}, id="removed"),
        pytest.param({"nodes": {"a": "1", "b": "2"}}, {"nodes": {"a": "2", "c": "3"}}, {"f:nodes": {"f:a": M, "f:c": M}}, {"f:nodes": {"f:b": M}}, id="map"),
        pytest.param({}, {"strategy": {"kind": "x"}}, {"f:strategy": {".": M, "f:kind": M}}, {}, id="new-struct"),
        pytest.param({"strategy": {"kind": "x"}}, {}, {}, {"f:strategy": M}, id="removed-struct"),
        pytest.param({"selector": {"a": "1"}}, {"selector": {"a": "2"}}, {"f:selector": M}, {}, id="atomic"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["b", "c"]}, {"f:tags": {'v:"c"': M}}, {"f:tags": {'v:"a"': M}}, id="set"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, {}, {}, id="set-order-only"),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "c"}, {"name": "a", "image": "2"}]},
            {"f:containers": {'k:{"name":"a"}': {"f:image": M}, 'k:{"name":"c"}': {".": M, "f:name": M}}},
            {"f:containers": {'k:{"name":"b"}': M}},
            id="keyed-list",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "a", "image": "2"}]},
            {"f:containers": {'k:{"name":"a"}': M}},
            {"f:containers": {'k:{"name":"a"}': M}},
            id="becomes-duplicate",
        ),
        pytest.param({"free": {"a": 1}}, {"free": {"a": {"b": 1}}}, {"f:free": {"f:a": {".": M, "f:b": M}}}, {}, id="scalar-to-object"),
        pytest.param({"free": {"a": {"b": 1}}}, {"free": {"a": 1}}, {"f:free": {"f:a": M}}, {}, id="object-to-scalar"),
        pytest.param({"strategy": None}, {"strategy": {"kind": "x"}}, {"f:strategy": {".": M, "f:kind": M}}, {}, id="null-to-struct"),
    ],
)  # fmt: skip
def test_changed(old: dict[str, Any], new: dict[str, Any], more: dict[str, Any], less: dict[str, Any]) -> None:
    taken, removed = changed(thing(**old), thing(**new), SCHEMA)
    assert taken == ({"f:spec": more} if more else {})
    assert removed == ({"f:spec": less} if less else {})


def test_what_the_server_sets_is_never_owned() -> None:
    server_set = {"uid": "u", "resourceVersion": "1", "generation": 1, "creationTimestamp": "t", "selfLink": "s"}
    new = thing({**server_set, "namespace": "n", "managedFields": [{}], "labels": {"a": "b"}})
    assert changed(thing(), new, SCHEMA)[0] == {"f:metadata": {"f:labels": {".": M, "f:a": M}}}
    assert changed(new, thing(), SCHEMA)[1] == {"f:metadata": {"f:labels": M}}


def test_depth_is_no_crash() -> None:
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    for act in (created_fields, owned_by_object):
        with pytest.raises(BadRequest, match="too deep"):
            act(thing(free=deep), SCHEMA)
