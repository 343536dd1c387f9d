"""Bad objects of every kind, by every way in: the server refuses them with a `Status`, or takes them and stays whole.

Objects are made along the schemas of the built-in kinds. What is accepted is then read in every form, changed by every
kind of patch, given a status, scaled and deleted, because an odd object that was stored must not break what comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from zlib import crc32

import orjson
import pytest
from fuzz_objects import STORED, VIRTUAL, Maker, changed, good, name_of, path_of, pointers, wrong_types
from fuzz_server import LONG, FuzzServer, examples

from coterie.kube.api.resources import Resource, Subresource
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.node import Schema

SCHEMAS = builtin.load()
TABLE = (("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),)
FORMS = (
    (),
    TABLE,
    (("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),),
    (("Accept", "application/yaml"),),
)
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
STREAMED = ("log", "exec", "attach", "portforward", "proxy")
METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "get": "GET"}
Object = dict[str, Any]


def label(resource: Resource) -> str:
    return resource.schema_name


def maker_of(resource: Resource) -> Maker:
    return Maker(crc32(resource.schema_name.encode()))


def writable(resources: list[Resource]) -> list[Resource]:
    return [resource for resource in resources if "create" in resource.verbs]


@pytest.mark.parametrize("resource", writable([*STORED, *VIRTUAL]), ids=label)
def test_a_good_object_is_taken(server: FuzzServer, resource: Resource) -> None:
    """Without this, the tests below could pass because everything is refused at the door."""
    obj = good(resource)
    if resource.kind == "Binding":
        pods = next(each for each in STORED if each.kind == "Pod")
        assert server.ask("POST", path_of(pods), orjson.dumps(good(pods))).status == 201
        obj["target"] = {"kind": "Node", "name": "n"}
    assert server.ask("POST", path_of(resource) + "?fieldValidation=Strict", orjson.dumps(obj)).status == 201


@pytest.mark.parametrize("resource", writable([*STORED, *VIRTUAL]), ids=label)
def test_wrong_types_at_every_place(server: FuzzServer, resource: Resource) -> None:
    """Each field that the object has or could have, with each value of a wrong type; all of them in a long run."""
    schema, draw, obj = SCHEMAS[resource.schema_name], maker_of(resource).random, good(resource)
    every = wrong_types(obj, schema)
    for path, value in every if LONG else draw.sample(every, min(200, len(every))):
        server.ask("POST", path_of(resource) + "?dryRun=All", orjson.dumps(changed(obj, path, value)))


@pytest.mark.parametrize("resource", writable(VIRTUAL), ids=label)
def test_reviews_of_any_shape(server: FuzzServer, resource: Resource) -> None:
    schema, maker = SCHEMAS[resource.schema_name], maker_of(resource)
    for _ in range(examples(60)):
        server.ask("POST", path_of(resource), orjson.dumps(spoiled(maker, resource, schema)))


@pytest.mark.parametrize("resource", writable(STORED), ids=label)
def test_the_lives_of_odd_objects(server: FuzzServer, resource: Resource) -> None:
    schema, maker = SCHEMAS[resource.schema_name], maker_of(resource)
    for _ in range(examples(25)):
        made = server.ask("POST", path_of(resource), orjson.dumps(spoiled(maker, resource, schema)))
        if made.status != 201:
            continue
        stored = made.json()
        path = path_of(resource, quote(stored["metadata"]["name"], safe=""))
        read(server, resource, path)
        server.ask("PUT", path, orjson.dumps(maker.spoil(stored, schema, 2)))
        for sub in resource.subresources:
            if sub.name not in STREAMED:
                change_subresource(server, maker, f"{path}/{sub.name}", sub, stored, schema)
        for media, body in patches(maker, stored, schema):
            server.ask("PATCH", path + "?fieldManager=fuzz&force=true" * (media == APPLY), body, content_type=media)
        read(server, resource, path)
        remove(server, maker, resource, path, stored)


def spoiled(maker: Maker, resource: Resource, schema: Schema) -> Object:
    """Mostly a good object with a few changes, sometimes one that never was good."""
    if maker.random.random() < 0.75:
        return maker.spoil(good(resource), schema, maker.random.choice((1, 1, 2, 3, 6)))
    obj: Object = maker.value(schema) or {}
    if maker.random.random() < 0.8:
        obj["metadata"] = good(resource)["metadata"]
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def read(server: FuzzServer, resource: Resource, path: str) -> None:
    for form in FORMS:
        server.ask("GET", path, headers=form)
    server.ask("GET", path_of(resource), headers=TABLE)


def change_subresource(
    server: FuzzServer, maker: Maker, path: str, sub: Subresource, stored: Object, schema: Schema
) -> None:
    taken = (SCHEMAS.get(f"{sub.group}/{sub.version}/{sub.kind}".lstrip("/")) if sub.kind else schema) or schema
    for verb in sub.verbs:
        if verb == "get":
            server.ask("GET", path)
            continue
        if sub.kind:
            body: Object = maker.value(taken, 6) or {}
        else:
            metadata = {key: value for key, value in stored["metadata"].items() if key != "resourceVersion"}
            body = {**stored, "metadata": metadata, "status": maker.value(schema.properties.get("status"), 6)}
        if sub.name == "ephemeralcontainers":
            added = maker.value(schema.properties["spec"].properties["ephemeralContainers"], 4)
            body["spec"] = {**stored["spec"], "ephemeralContainers": added}
        if maker.random.random() < 0.5:
            body = maker.spoil(body, taken, 1)
        if verb == "patch":
            server.ask("PATCH", path, orjson.dumps(body), content_type=MERGE_PATCH)
            server.ask("PATCH", path + "?fieldManager=f&force=1", orjson.dumps(body), content_type=APPLY)
            server.ask("PATCH", path, orjson.dumps(operations(maker, body, taken)), content_type=JSON_PATCH)
        else:
            server.ask(METHODS[verb], path, orjson.dumps(body))


def patches(maker: Maker, stored: Object, schema: Schema) -> Iterator[tuple[str, bytes]]:
    for media in (MERGE_PATCH, STRATEGIC, APPLY):
        part = maker.spoil({key: value for key, value in stored.items() if key != "metadata"}, schema, 2)
        part["metadata"] = {"name": stored["metadata"]["name"]}
        if maker.random.random() < 0.3:
            part["metadata"] |= maker.value(schema.properties["metadata"], 3) or {}
        if media == STRATEGIC and maker.random.random() < 0.5:
            part |= maker.random.choice(DIRECTIVES)
        yield media, orjson.dumps(part)
    yield JSON_PATCH, orjson.dumps(operations(maker, stored, schema))


DIRECTIVES: tuple[Object, ...] = (
    {"$patch": "replace"},
    {"$patch": "delete"},
    {"$patch": 1},
    {"$retainKeys": ["x", None]},
    {"$retainKeys": 1},
    {"$setElementOrder/finalizers": [1]},
    {"$setElementOrder/x": {}},
    {"$deleteFromPrimitiveList/finalizers": {}},
    {"spec": {"$setElementOrder/containers": [{}], "containers": [{"$patch": "delete"}, {"name": None}, 1]}},
    {"spec": {"$retainKeys": [[]], "containers": [{"$patch": "merge", "name": "main"}]}},
    {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/ownerReferences": [{"uid": 1}]}},
)


def operations(maker: Maker, stored: Object, schema: Schema) -> list[Any]:
    """A JSON patch over real places and their bad neighbours."""
    draw, places = maker.random, pointers(stored, schema)
    bad = ("/-", "/0", "/x", "/~2", "/~", "/99999999999999999999", "/01", "/-1", "//", "")
    out: list[Any] = []
    for _ in range(draw.choice((1, 2, 3))):
        path = draw.choice(places) + (draw.choice(bad) if draw.random() < 0.2 else "")
        op = draw.choice(("add", "remove", "replace", "move", "copy", "test", "x"))
        out.append({"op": op, "path": path, "from": draw.choice(places), "value": maker.wrong()})
    return out if draw.random() < 0.9 else [*out, maker.wrong()]


def remove(server: FuzzServer, maker: Maker, resource: Resource, path: str, stored: Object) -> None:
    asked = maker.spoil({"kind": "DeleteOptions", "gracePeriodSeconds": 0}, SCHEMAS["v1/DeleteOptions"], 1, ("kind",))
    server.ask("DELETE", path, orjson.dumps(asked))
    server.ask("PATCH", path, b'{"metadata":{"finalizers":null}}', content_type=MERGE_PATCH)
    server.ask("DELETE", path + "?gracePeriodSeconds=0")
    if resource.kind == "Namespace":
        server.ask("PUT", path + "/finalize", orjson.dumps({"metadata": {"name": stored["metadata"]["name"]}}))
    server.ask("PATCH", path, b'{"metadata":{"finalizers":null}}', content_type=MERGE_PATCH)
    protected = resource.kind == "Namespace" and stored["metadata"]["name"] == "default"
    assert protected or server.ask("GET", path).status == 404


@pytest.mark.parametrize("resource", writable(STORED), ids=label)
def test_every_media_type_with_every_body(server: FuzzServer, resource: Resource) -> None:
    """Bodies that are not what their type says, as create, update and patch."""
    server.ask("POST", path_of(resource), orjson.dumps(good(resource)))
    path, maker = path_of(resource, name_of(resource)), maker_of(resource)
    wanted = [(media, body, method) for media in MEDIA for body in BODIES for method in ("POST", "PUT", "PATCH")]
    for media, body, method in wanted if LONG else maker.random.sample(wanted, 60):
        where = path_of(resource) if method == "POST" else path + "?fieldManager=f&force=1" * (media == APPLY)
        server.ask(method, where, body, content_type=media)


MEDIA = (
    "application/json", "", MERGE_PATCH, JSON_PATCH, STRATEGIC, APPLY, "application/apply-patch+json",
    "application/apply-patch+cbor", "application/yaml", "application/vnd.kubernetes.protobuf", "text/plain", "application/json;charset=utf-8", ";", "\xe9", "a/b;" * 200,
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b'{"a":}', b"\xff\xfe", b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b"\xef\xbb\xbf{}",
    b'{"kind":1}', b'{"kind":null,"apiVersion":{}}', b'{"metadata":null}', b'{"metadata":[]}', b'{"metadata":{"name":1}}', b'{"metadata":{"name":null}}', b'{"spec":null,"status":null}',
    b'{"metadata":{"name":"a","managedFields":[{}]}}', b'{"metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v9","fieldsType":"FieldsV1","fieldsV1":{"f:x":1,"k:{":{},"v:":{},".":[]}}]}}',
    b"NaN", b'{"a":NaN}', b'{"a":1e999}', b'{"a":' + b"9" * 400 + b"}", b'{"a":-' + b"9" * 5000 + b"}", b"[" * 300, b'{"a":' * 300, b'{"spec":' * 150 + b"1" + b"}" * 150,
    b"k8s\x00", b"k8s\x00\xff\xff\xff", b"k8s\x00\x0a\xff\xff\xff\xff\x0f", b"k8s\x00\x12\x02\x0a\x7f", b'[{"op":"add"}]', b"[1]", b'[{"op":"copy","from":"","path":"/x"}]', b'[{"op":"remove","path":""}]',
    b"a: &x [1]\nb: *x", b"- " * 300, b"a: " * 300, b"!!python/object:os.system x", b"? [a]\n: b", b"1: 2", b"a: .nan", b"a: !!binary AAAA", b"a: 1\n---\nb: 2", b"\x00", b"%YAML 9.9\n---\n", "a: \u2028".encode(),
)  # fmt: skip
