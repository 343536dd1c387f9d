"""OpenAPI documents: whole, consistent, cheap to name, and served as clients cache them."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from coterie.http.messages import Request, Response
from coterie.kube.api.errors import MethodNotAllowed, NotAcceptable, NotFound
from coterie.kube.api.resources import BUILTIN, SCALE, STATUS, Resource
from coterie.kube.apiserver.openapi import OpenApi, gnostic, service
from coterie.kube.apiserver.openapi.operations import operations
from coterie.kube.apiserver.openapi.v2 import lower, v2_document
from coterie.kube.apiserver.openapi.v3 import v3_document

PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
WIDGET = Resource("lab.io", "v1", "widgets", "Widget", True, "widget", subresources=(SCALE, STATUS), custom=True)
CLUSTER_WIDE = Resource("lab.io", "v1", "gadgets", "Gadget", False, "gadget", custom=True)
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def crd(plural: str, kind: str, schema: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}} if schema is not None else {"name": "v1"}
    return {
        "metadata": {"name": f"{plural}.lab.io", "uid": f"uid-{plural}", "generation": 1},
        "spec": {"group": "lab.io", "names": {"plural": plural, "kind": kind}, "versions": [version], **spec},
    }


SCHEMA = {
    "type": "object",
    "description": "A widget.",
    "x-kubernetes-validations": [{"rule": "true"}],
    "properties": {
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["size", "maybe"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "default": 1},
                "maybe": {"type": "string", "nullable": True},
                "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "loose": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {}}},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": True},
                "map": {"type": "object", "additionalProperties": {"type": "string", "nullable": True}},
            },
        },
    },
}
CRDS = [crd("widgets", "Widget", SCHEMA), crd("gadgets", "Gadget", None)]
ALL = (*BUILTIN, WIDGET, CLUSTER_WIDE)
GROUP_VERSIONS = sorted({service.path_of(resource) for resource in ALL})


def everything_below(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from everything_below(value)
    elif isinstance(node, list):
        for value in node:
            yield from everything_below(value)


def v3(path: str) -> dict[str, Any]:
    document = v3_document([resource for resource in ALL if service.path_of(resource) == path], CRDS)
    plain: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return plain


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in ("get", "put", "post", "patch", "delete"):
            if method in item:
                yield f"{method} {path}", item, item[method]


# ---- v3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GROUP_VERSIONS)
def test_a_v3_document_is_whole(path: str) -> None:
    document = v3(path)
    schemas = document["components"]["schemas"]
    ids: list[str] = []
    for node in everything_below(document):
        if isinstance(node.get("$ref"), str):
            assert node["$ref"].removeprefix("#/components/schemas/") in schemas
            assert set(node) == {"$ref"}
        assert not isinstance(node.get("type"), list)
    for name, item, operation in operations_of(document):
        ids.append(operation["operationId"])
        placed = {each["name"] for each in item["parameters"] if each["in"] == "path"}
        assert placed == set(re.findall(r"{(\w+)}", name)), name
        assert operation["x-kubernetes-group-version-kind"].keys() == {"group", "version", "kind"}
    assert len(ids) == len(set(ids)) > 0


@pytest.mark.parametrize("path", GROUP_VERSIONS)
def test_every_kind_has_a_schema_and_its_patch_offers_field_validation(path: str) -> None:
    """kubectl leaves validation to the server only when it sees that parameter on the PATCH of the kind."""
    document = v3(path)
    described = {
        (gvk["group"], gvk["version"], gvk["kind"])
        for schema in document["components"]["schemas"].values()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
    }
    for resource in ALL:
        if service.path_of(resource) != path:
            continue
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        assert tuple(gvk.values()) in described
        assert "list" not in resource.verbs or (resource.group, resource.version, resource.list_kind) in described
        offered = {
            each["name"]
            for name, _, operation in operations_of(document)
            if name.startswith("patch ") and operation["x-kubernetes-group-version-kind"] == gvk
            for each in operation["parameters"]
        }
        assert "patch" not in resource.verbs or {"fieldValidation", "dryRun", "force", "fieldManager"} <= offered


def test_what_json_schema_says_otherwise_is_undone() -> None:
    schemas = v3("apis/apps/v1")["components"]["schemas"]
    deployment = schemas["io.k8s.api.apps.v1.Deployment"]
    assert deployment["properties"]["kind"].keys() == {"description", "type"}
    assert deployment["properties"]["spec"]["allOf"] == [
        {"$ref": "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"}
    ]
    assert schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["format"] == "int-or-string"
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert "io.k8s.api.batch.v1.Job" not in schemas  # only what the group-version reaches


def test_a_custom_kind_gets_the_common_fields() -> None:
    schemas = v3("apis/lab.io/v1")["components"]["schemas"]
    widget = schemas["io.lab.v1.Widget"]
    assert widget["description"] == "A widget."
    assert widget["x-kubernetes-validations"] == [{"rule": "true"}]
    assert widget["x-kubernetes-group-version-kind"] == [{"group": "lab.io", "kind": "Widget", "version": "v1"}]
    assert widget["properties"]["metadata"]["allOf"] == [{"$ref": f"#/components/schemas/{OBJECT_META}"}]
    assert widget["properties"]["spec"]["properties"]["maybe"] == {"type": "string", "nullable": True}
    assert widget["properties"]["spec"]["properties"]["pod"]["properties"].keys() == {"apiVersion", "kind", "metadata"}
    assert schemas["io.lab.v1.WidgetList"]["properties"]["items"]["items"] == {
        "$ref": "#/components/schemas/io.lab.v1.Widget"
    }
    assert schemas["io.lab.v1.Gadget"]["x-kubernetes-preserve-unknown-fields"] is True
    assert "metadata" in SCHEMA["properties"] and SCHEMA["properties"]["metadata"] == {"type": "object"}  # not touched


def test_custom_kinds_take_no_strategic_merge() -> None:
    paths = v3("apis/lab.io/v1")["paths"]
    patch = paths["/apis/lab.io/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    assert "/apis/lab.io/v1/gadgets/{name}" in paths
    scale = paths["/apis/lab.io/v1/namespaces/{namespace}/widgets/{name}/scale"]["get"]
    assert scale["x-kubernetes-group-version-kind"] == {"group": "autoscaling", "kind": "Scale", "version": "v1"}


def test_operations_are_called_as_the_official_client_calls_them() -> None:
    """The official client is generated from Kubernetes' own document, so its methods tell the ids of that document."""
    client = pytest.importorskip("kubernetes.client")
    compared = 0
    for resource in BUILTIN:
        for operation in operations(resource):
            group, version = operation.tag.split("_")
            name = group[0].upper() + group[1:] + version.capitalize()
            api = getattr(client, f"{name}Api", None)
            if api is None:
                assert version != "v1", operation.tag
                continue
            method = re.sub(
                r"(?<=[a-z0-9])[A-Z]|(?<=[A-Z])[A-Z](?=[a-z])", r"_\g<0>", operation.id.replace(name, "", 1)
            )
            assert hasattr(api, method.lower()), operation.id
            compared += 1
    assert compared > 350


# ---- v2 ------------------------------------------------------------------------------------------------------------


def test_the_v2_document_is_whole() -> None:
    document = orjson.loads(orjson.dumps(v2_document(ALL, CRDS)))
    definitions = document["definitions"]
    for node in everything_below(document):
        if isinstance(node.get("$ref"), str):
            assert node["$ref"].removeprefix("#/definitions/") in definitions
    for name, item, operation in operations_of(document):
        placed = {each["name"] for each in item["parameters"] if each["in"] == "path"}
        assert placed == set(re.findall(r"{(\w+)}", name)), name
        assert "401" in operation["responses"]
    assert definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] == {"type": "string"}
    assert len(document["paths"]) > 100


def test_v2_leaves_out_what_it_cannot_say() -> None:
    spec = lower(SCHEMA)["properties"]["spec"]
    assert spec["required"] == ["size"]
    assert spec["properties"] == {
        "size": {"type": "integer", "minimum": 1},
        "maybe": {},
        "port": {"x-kubernetes-int-or-string": True},
        "loose": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": True},
        "map": {"type": "object", "additionalProperties": {}},
    }
    assert lower({"type": "array"}) == {}
    open_kind = v2_document(ALL, CRDS)["definitions"]["io.lab.v1.Gadget"]
    assert "properties" not in open_kind  # else old clients refuse every other field


def wire(data: bytes) -> list[tuple[int, Any]]:
    """Fields of a protobuf message."""
    found, pos = [], 0

    def varint() -> int:
        nonlocal pos
        value = shift = 0
        while True:
            byte = data[pos]
            pos += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while pos < len(data):
        tag = varint()
        match tag & 7:
            case 0:
                found.append((tag >> 3, varint()))
            case 1:
                found.append((tag >> 3, data[pos : pos + 8]))
                pos += 8
            case 2:
                size = varint()
                found.append((tag >> 3, data[pos : pos + size]))
                pos += size
            case other:
                raise AssertionError(other)
    return found


def test_the_protobuf_form_says_the_same() -> None:
    document = v2_document(ALL, CRDS)
    fields = wire(gnostic.encode(document))
    assert fields[0] == (1, b"2.0")
    (definitions,) = (value for number, value in fields if number == 9)
    named = {dict(wire(entry))[1].decode(): dict(wire(entry))[2] for _, entry in wire(definitions)}
    assert named.keys() == document["definitions"].keys()
    widget = wire(named["io.lab.v1.Widget"])
    extensions = {dict(wire(value))[1]: dict(wire(dict(wire(value))[2]))[2] for number, value in widget if number == 31}
    assert orjson.loads(extensions[b"x-kubernetes-group-version-kind"]) == [
        {"group": "lab.io", "kind": "Widget", "version": "v1"}
    ]
    (properties,) = (value for number, value in widget if number == 25)
    assert {dict(wire(entry))[1] for _, entry in wire(properties)} == {b"apiVersion", b"kind", b"metadata", b"spec"}
    (paths,) = (value for number, value in fields if number == 8)
    assert [dict(wire(entry))[1].decode() for _, entry in wire(paths)] == list(document["paths"])


@pytest.mark.parametrize(
    ("schema", "encoded"),
    [
        ({"additionalProperties": False}, "aa01021000"),
        ({"additionalProperties": {"type": "string"}}, "aa010d0a0bb201080a06737472696e67"),
        ({"type": "integer", "minimum": 1}, "b201090a07696e7465676572" + "49000000000000f03f"),
        ({"required": ["a", "b"], "uniqueItems": True}, "9a0101619a010162" + "800101"),
        ({"enum": ["a"], "maxLength": 300}, "a2010612042261220a" + "58ac02"),
        ({"minItems": 0, "description": ""}, ""),
    ],
    ids=str,
)
def test_schema_bytes(schema: dict[str, Any], encoded: str) -> None:
    assert gnostic._schema(schema).hex() == encoded


# ---- serving -------------------------------------------------------------------------------------------------------


class Catalogue:
    def __init__(self) -> None:
        self.resources = list(ALL)
        self.crds = list(CRDS)
        self.openapi = OpenApi(lambda: self.resources, lambda: self.crds)

    async def get(self, target: str, **headers: str) -> Response:
        path, _, query = target.partition("?")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.openapi.respond(Request("GET", path, query, given))
        return answer if isinstance(answer, Response) else await answer

    async def urls(self) -> dict[str, str]:
        index = orjson.loads(plain(await self.get("/openapi/v3")))
        return {name: entry["serverRelativeURL"] for name, entry in index["paths"].items()}


def plain(response: Response) -> bytes:
    return gzip.decompress(response.body) if ("Content-Encoding", "gzip") in response.headers else response.body


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue()


async def test_the_index_leads_to_documents_that_may_be_kept_for_ever(catalogue: Catalogue) -> None:
    urls = await catalogue.urls()
    assert sorted(urls) == GROUP_VERSIONS
    response = await catalogue.get(urls["apis/lab.io/v1"], accept_encoding="gzip")
    headers = dict(response.headers)
    assert response.status == 200
    assert headers["Cache-Control"] == "public, immutable"
    assert headers["Expires"].endswith("GMT")
    assert headers["Content-Encoding"] == "gzip"
    assert "io.lab.v1.Widget" in orjson.loads(plain(response))["components"]["schemas"]
    again = await catalogue.get(urls["apis/lab.io/v1"], if_none_match=headers["ETag"])
    assert (again.status, again.body) == (304, b"")


async def test_an_outdated_hash_is_led_to_the_current_one(catalogue: Catalogue) -> None:
    urls = await catalogue.urls()
    response = await catalogue.get("/openapi/v3/apis/apps/v1?hash=OLD")
    assert (response.status, dict(response.headers)["Location"]) == (301, urls["apis/apps/v1"])


async def test_without_a_hash_nothing_is_cached_for_good(catalogue: Catalogue) -> None:
    response = await catalogue.get("/openapi/v3/apis/policy/v1")
    assert dict(response.headers)["Cache-Control"] == "no-cache, private"
    assert "Content-Encoding" not in dict(response.headers)
    assert orjson.loads(response.body)["openapi"] == "3.0.0"


async def test_a_changed_definition_changes_only_its_own_hash(catalogue: Catalogue) -> None:
    before = await catalogue.urls()
    first = await catalogue.get(before["apis/policy/v1"])
    catalogue.crds[0] = {**CRDS[0], "metadata": {**CRDS[0]["metadata"], "generation": 2}}
    assert await catalogue.urls() == before
    catalogue.openapi.invalidate()
    after = await catalogue.urls()
    assert {name for name in after if after[name] != before[name]} == {"apis/lab.io/v1"}
    answer = catalogue.openapi.respond(Request("GET", "/openapi/v3/apis/policy/v1"))
    assert isinstance(answer, Response)  # still kept: no thread needed
    assert answer.body == first.body


async def test_hashes_do_not_depend_on_the_run(catalogue: Catalogue) -> None:
    assert await catalogue.urls() == await Catalogue().urls()
    unnamed = [{"spec": each["spec"]} for each in CRDS]
    assert service.hashes(ALL, unnamed) == service.hashes(ALL, [{"spec": dict(each["spec"])} for each in CRDS])


@pytest.mark.parametrize(
    ("accept", "sent"),
    [
        (PROTOBUF, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"),
        ("application/json", "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        (f"application/json;q=0.9,{PROTOBUF}", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"),
    ],
)
async def test_v2_comes_in_the_form_that_was_asked_for(catalogue: Catalogue, accept: str, sent: str) -> None:
    response = await catalogue.get("/openapi/v2", accept=accept)
    assert response.content_type == sent
    assert (response.body[:1] == b"{") is (sent == "application/json")
    tag = dict(response.headers)["ETag"]
    assert (await catalogue.get("/openapi/v2", accept=accept, if_none_match=tag)).status == 304


async def test_those_who_ask_at_once_share_one_build(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(name: str, *rest: Any) -> Any:
        built.append(name)
        return real(name, *rest)

    real = service.build
    monkeypatch.setattr(service, "build", counted)
    waiting = [asyncio.ensure_future(catalogue.get("/openapi/v3/apis/batch/v1")) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    answers = await asyncio.gather(*waiting[1:])
    assert {answer.status for answer in answers} == {200}
    assert built == ["apis/batch/v1"]


@pytest.mark.parametrize(
    "path", ["/openapi", "/openapi/v1", "/openapi/v3/api/v9", "/openapi/v3/openapi/v2", "/openapi/v3/"]
)
async def test_paths_that_are_no_documents(catalogue: Catalogue, path: str) -> None:
    if path.endswith("v3/"):
        assert (await catalogue.get(path)).status == 200  # a trailing slash is forgiven
        return
    with pytest.raises(NotFound):
        await catalogue.get(path)


async def test_refusals(catalogue: Catalogue) -> None:
    with pytest.raises(MethodNotAllowed):
        catalogue.openapi.respond(Request("POST", "/openapi/v3"))
    with pytest.raises(NotAcceptable):
        await catalogue.get("/openapi/v3/api/v1", accept="text/plain")


def test_every_parameter_and_body_is_described() -> None:
    for node in everything_below(v2_document(ALL, CRDS)["paths"]):
        for each in node.get("parameters") or ():
            assert each.get("description"), each
    path = v2_document(ALL, CRDS)["paths"]["/api/v1/namespaces/{namespace}/services/{name}/proxy/{path}"]
    assert {"get", "put", "post", "delete", "options", "head", "patch"} <= set(path)
    assert {each["name"] for each in path["parameters"]} >= {"name", "namespace", "path"}
