"""Custom resources whose versions a webhook converts: reads, lists, watches, writes, and webhooks that lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from server_kit import CRDS, JSON_PATCH, Api, Watch, serving
from webhook_server import WebhookServer, hang, webhook_server

from coterie.kube.store.memory import MemoryStore

Object = dict[str, Any]
GROUP = "x.example"
NAME = f"hosts.{GROUP}"
V1 = f"/apis/{GROUP}/v1/namespaces/default/hosts"
V2 = f"/apis/{GROUP}/v2/namespaces/default/hosts"


def convert(obj: Object, desired: str) -> Object:
    """v1 has `spec.address` ("host:port"), v2 has `spec.host` and `spec.port`."""
    spec = dict(obj.get("spec") or {})
    if desired.endswith("/v2") and "address" in spec:
        host, _, port = spec.pop("address").partition(":")
        spec |= {"host": host, "port": int(port)}
    elif desired.endswith("/v1") and "host" in spec:
        spec["address"] = f"{spec.pop('host')}:{spec.pop('port')}"
    return {**obj, "apiVersion": desired, "spec": spec}


def converting(change: Callable[[list[Object]], list[Object]] = lambda objects: objects) -> Callable[[Object], Object]:
    def behave(review: Object) -> Object:
        request = review["request"]
        done = [convert(obj, request["desiredAPIVersion"]) for obj in request["objects"]]
        response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": change(done)}
        return {"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response}

    return behave


def definition(client: Object, storage: str = "v2") -> Object:
    def version(name: str, **fields: Object) -> Object:
        spec = {"type": "object", "properties": fields}
        schema = {
            "type": "object",
            "properties": {"spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }
        return {
            "name": name,
            "served": True,
            "storage": name == storage,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [
                {"name": field.title(), "type": "string", "jsonPath": f".spec.{field}"} for field in fields
            ],
        }

    return {
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "hosts", "kind": "Host"},
            "versions": [
                version("v1", address={"type": "string", "maxLength": 40}),
                version("v2", host={"type": "string"}, port={"type": "integer", "maximum": 65535}),
            ],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client},
            },
        },
    }


@pytest.fixture
async def hooks() -> AsyncIterator[WebhookServer]:
    async with webhook_server() as server:
        yield server


def v1(name: str, address: str = "a:1") -> Object:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Host", "metadata": {"name": name}, "spec": {"address": address}}


def v2(name: str, host: str = "b", port: int = 2) -> Object:
    spec = {"host": host, "port": port}
    return {"apiVersion": f"{GROUP}/v2", "kind": "Host", "metadata": {"name": name}, "spec": spec}


async def test_the_definition_is_checked_and_defaulted(api: Api) -> None:
    service = {"service": {"name": "s", "namespace": "n"}}
    made = await api.post(CRDS, definition(service))
    assert made["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 443
    await api.ok("DELETE", f"{CRDS}/{NAME}")
    bad = definition(service)
    del bad["spec"]["conversion"]["webhook"]["conversionReviewVersions"]
    refused = await api.refused(422, "POST", f"{CRDS}?dryRun=All", {**bad, "metadata": {"name": NAME}})
    assert "spec.conversion.webhook.conversionReviewVersions: Required value" in refused.message
    del bad["spec"]["conversion"]["webhook"]
    refused = await api.refused(422, "POST", f"{CRDS}?dryRun=All", bad)
    assert 'spec.conversion.webhook: Required value: required when strategy is set to "Webhook"' in refused.message


async def test_an_object_is_seen_in_every_version(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    made = await api.post(V1, v1("one", "a:1"))
    assert made["spec"] == {"address": "a:1"} and made["apiVersion"] == f"{GROUP}/v1"
    stored = await api.get(f"{V2}/one")
    assert stored["spec"] == {"host": "a", "port": 1}
    (owner,) = stored["metadata"]["managedFields"]
    assert owner["apiVersion"] == f"{GROUP}/v1" and "f:address" in owner["fieldsV1"]["f:spec"]
    await api.post(V2, v2("two"))
    listed = await api.get(V1)
    assert [item["spec"]["address"] for item in listed["items"]] == ["a:1", "b:2"]
    assert [item["apiVersion"] for item in listed["items"]] == [f"{GROUP}/v1"] * 2
    assert (await api.get(f"{V1}/two/status"))["spec"] == {"address": "b:2"}
    table = await api.get(V1, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert [row["cells"] for row in table["rows"]] == [["one", "a:1"], ["two", "b:2"]]


async def test_one_request_converts_a_whole_list_and_answers_are_remembered(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    for number in range(20):
        await api.post(V2, v2(f"h{number:02}", port=number))
    assert not hooks.reviews
    assert len((await api.get(V1))["items"]) == 20
    assert len(hooks.reviews) == 1 and len(hooks.requests("/c")[0]["objects"]) == 20
    await api.get(V1)
    await api.get(f"{V1}/h05")
    assert len(hooks.reviews) == 1


async def test_pages_and_past_lists_are_converted(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    for name in ("a", "b", "c"):
        await api.post(V2, v2(name))
    first = await api.get(f"{V1}?limit=2")
    await api.ok("DELETE", f"{V2}/c")
    rest = await api.get(f"{V1}?limit=2&continue={first['metadata']['continue']}")
    assert [item["spec"]["address"] for item in (*first["items"], *rest["items"])] == ["b:2"] * 3


async def test_updates_are_checked_in_their_own_version_and_stored_in_the_other(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    await api.post(V2, v2("one"))
    changed = await api.patch(f"{V1}/one", {"spec": {"address": "c:3"}})
    assert changed["spec"] == {"address": "c:3"} and changed["metadata"]["generation"] == 2
    assert (await api.get(f"{V2}/one"))["spec"] == {"host": "c", "port": 3}
    await api.patch(f"{V1}/one", [{"op": "replace", "path": "/spec/address", "value": "d:4"}], JSON_PATCH)
    applied = await api.apply(f"{V1}/one", {"apiVersion": f"{GROUP}/v1", "kind": "Host", "spec": {"address": "d:4"}})
    assert applied.status == 200 and applied.json["spec"] == {"address": "d:4"}
    current = await api.get(f"{V1}/one")
    await api.put(f"{V1}/one", {**current, "spec": {"address": "e:5"}})
    assert (await api.patch(f"{V1}/one/status", {"status": {"ready": True}}))["status"] == {"ready": True}
    assert (await api.get(f"{V2}/one"))["spec"] == {"host": "e", "port": 5}
    refused = await api.refused(422, "PUT", f"{V1}/one", {**await api.get(f"{V1}/one"), "spec": {"address": "x" * 50}})
    assert "spec.address: Too long" in refused.message
    assert (await api.refused(409, "PUT", f"{V1}/one", current)).reason == "Conflict"
    gone = await api.ok("DELETE", f"{V1}/one")
    assert gone["status"] == "Success"


async def eventually(watch: Watch, count: int) -> list[Object]:
    for _ in range(400):
        if len(watch.all) >= count or watch.ended:
            break
        await asyncio.sleep(0.01)
    return watch.all


async def test_a_watch_converts_in_order(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    await api.post(V2, v2("one"))
    watch = await api.watch(V1)
    await api.patch(f"{V2}/one", {"spec": {"port": 7}})
    await api.post(V1, v1("two"))
    await api.ok("DELETE", f"{V2}/one")
    events = await eventually(watch, 4)
    assert [(e["type"], e["object"]["metadata"]["name"], e["object"]["spec"]) for e in events] == [
        ("ADDED", "one", {"address": "b:2"}),
        ("MODIFIED", "one", {"address": "b:7"}),
        ("ADDED", "two", {"address": "a:1"}),
        ("DELETED", "one", {"address": "b:7"}),
    ]
    watch.leave()


async def test_a_watch_that_cannot_be_converted_says_so_and_ends(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", lambda _: None)))
    watch = await api.watch(V1)
    await api.post(V2, v2("one"))
    (event,) = await eventually(watch, 1)
    assert (
        event["type"] == "ERROR"
        and "conversion webhook for x.example/v2, Kind=Host failed" in event["object"]["message"]
    )
    for _ in range(100):
        if watch.ended:
            break
        await asyncio.sleep(0.01)
    assert watch.ended == "closed"


async def test_objects_of_an_older_storage_version_are_converted_too(hooks: WebhookServer) -> None:
    async with serving() as api:
        crd = definition(hooks.on("/c", converting()), storage="v1")
        await api.post(CRDS, crd)
        await api.post(V1, v1("old", "o:1"))
        crd["spec"]["versions"][0]["storage"], crd["spec"]["versions"][1]["storage"] = False, True
        await api.patch(f"{CRDS}/{NAME}", {"spec": crd["spec"]})
        assert (await api.get(f"{V2}/old"))["spec"] == {"host": "o", "port": 1}
        assert (await api.get(f"{V1}/old"))["spec"] == {"address": "o:1"}
        await api.server.stop()
        await api.server.start()
        assert (await api.get(f"{V2}/old"))["spec"] == {"host": "o", "port": 1}
        await api.patch(f"{V2}/old", {"spec": {"port": 9}})
        asked = len(hooks.reviews)
        assert (await api.get(f"{V2}/old"))["spec"] == {"host": "o", "port": 9}
        assert len(hooks.reviews) == asked, "it is stored in the new version by now"
        assert (await api.get(f"{V1}/old"))["spec"] == {"address": "o:9"}


async def test_the_store_holds_the_storage_version(hooks: WebhookServer) -> None:
    store = MemoryStore()
    await store.open()
    async with serving(store=store) as api:
        await api.post(CRDS, definition(hooks.on("/c", converting())))
        await api.post(V1, v1("one"))
        record = await store.get(f"/registry/{GROUP}/hosts/default/one")
        assert record is not None and b'"host":"a"' in record.value and b'"address"' not in record.value
    await store.close()


def renamed(objects: list[Object]) -> list[Object]:
    return [{**obj, "metadata": {**obj["metadata"], "name": "other"}} for obj in objects]


def other_uid(objects: list[Object]) -> list[Object]:
    return [{**obj, "metadata": {**obj["metadata"], "uid": "other"}} for obj in objects]


def failing(review: Object) -> Object:
    response = {"uid": review["request"]["uid"], "result": {"status": "Failure", "message": "no such thing"}}
    return {"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response}


def wrong_uid(review: Object) -> Object:
    good = converting()(review)
    return {**good, "response": {**good["response"], "uid": "x"}}


BAD: dict[str, tuple[Callable[[Object], Any], str]] = {
    "fails": (failing, "no such thing"),
    "closes": (lambda _: None, "EOF"),
    "breaks": (lambda _: (500, {}, b"oops"), "the server answered 500: oops"),
    "redirects": (lambda _: (302, {"Location": "/"}, b""), "redirects are not followed"),
    "answers 10 MB": (lambda _: (200, {}, b" " * (10 << 20)), "larger than"),
    "lies about the uid": (wrong_uid, "expected response.uid="),
    "loses objects": (converting(lambda objects: []), "returned 0 objects, expected 1"),
    "renames": (converting(renamed), "must have the same name"),
    "changes the uid": (converting(other_uid), "must have the same uid"),
    "converts to nothing": (converting(lambda objects: [None for _ in objects]), "it has no metadata"),  # type: ignore[misc,list-item]
    "converts to another version": (
        converting(lambda objects: [{**obj, "apiVersion": "v9"} for obj in objects]),
        "invalid groupVersion (expected x.example/v1, received v9)",
    ),
    "converts to another kind": (
        converting(lambda objects: [{**obj, "kind": "Pod"} for obj in objects]),
        "invalid kind (expected Host, received Pod)",
    ),
    "labels wrongly": (
        converting(lambda objects: [{**obj, "metadata": {**obj["metadata"], "labels": {"a": 1}}} for obj in objects]),
        "metadata.labels must be a map of strings",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_conversion_is_an_error_and_hurts_only_its_version(
    api: Api, hooks: WebhookServer, name: str
) -> None:
    behaviour, words = BAD[name]
    await api.post(CRDS, definition(hooks.on("/c", behaviour)))
    await api.post(V2, v2("one"))
    for method, path in (("GET", f"{V1}/one"), ("GET", V1)):
        refused = await api.refused(500, method, path)
        assert "conversion webhook for x.example/v2, Kind=Host failed: " in refused.message
        assert words in refused.message, refused.message
    assert (await api.call("POST", V1, v1("two"))).status == 500
    assert (await api.get(f"{V2}/one"))["spec"] == {"host": "b", "port": 2}
    assert (await api.call("GET", V2)).names == ["one"]


async def test_only_labels_and_annotations_of_metadata_are_the_webhooks(api: Api, hooks: WebhookServer) -> None:
    def relabel(objects: list[Object]) -> list[Object]:
        more = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"], "resourceVersion": "1"}
        return [{**obj, "metadata": {**obj["metadata"], **more}} for obj in objects]

    await api.post(CRDS, definition(hooks.on("/c", converting(relabel))))
    made = await api.post(V2, v2("one"))
    seen = (await api.get(f"{V1}/one"))["metadata"]
    assert seen["labels"] == {"a": "b"} and seen["annotations"] == {"c": "d"} and "finalizers" not in seen
    assert seen["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_webhook_that_hangs_holds_up_nobody_else(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", hang)))
    await api.post(V2, v2("one"))
    waiting = asyncio.create_task(api.call("GET", V1))
    await asyncio.sleep(0)
    await api.patch(f"{V2}/one", {"spec": {"port": 3}})
    assert not waiting.done()
    waiting.cancel()


async def test_admission_webhooks_see_the_version_of_their_rules(api: Api, hooks: WebhookServer) -> None:
    await api.post(CRDS, definition(hooks.on("/c", converting())))
    seen = []

    def admit(review: Object) -> Object:
        seen.append(review["request"]["object"]["spec"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}

    webhook = {
        "name": "h.x.example",
        "clientConfig": hooks.on("/a", admit),
        "rules": [{"operations": ["*"], "apiGroups": [GROUP], "apiVersions": ["v1"], "resources": ["hosts"]}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await api.post(path, {"metadata": {"name": "h"}, "webhooks": [webhook]})
    await api.post(V2, v2("one"))
    await api.patch(f"{V1}/one", {"spec": {"address": "z:9"}})
    assert seen == [{"address": "b:2"}, {"address": "z:9"}]
