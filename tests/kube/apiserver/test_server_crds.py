"""Custom resources: from a definition to objects and back."""

import asyncio

import pytest
from server_kit import CRDS, JSON_PATCH, MERGE, WIDGETS, Api, crd, serving, version, widget

from coterie.kuscia.api.definitions import crds as kuscia_crds

NAME = f"{CRDS}/widgets.example.com"
V2 = WIDGETS.replace("/v1/", "/v2/")


def conditions(definition: dict) -> dict[str, str]:
    return {c["type"]: c["status"] for c in definition["status"]["conditions"]}


def schema(**properties: object) -> dict:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


# ---- definitions ----


async def test_a_definition_is_served_when_its_creation_is_answered(api: Api):
    made = await api.post(CRDS, crd(names={"shortNames": ["wd"], "categories": ["all"]}))
    assert conditions(made) == {"NamesAccepted": "True", "Established": "True"}
    assert made["status"]["acceptedNames"]["plural"] == "widgets" and made["status"]["storedVersions"] == ["v1"]
    assert made["spec"]["names"]["singular"] == "widget" and made["spec"]["names"]["listKind"] == "WidgetList"
    assert made["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert (await api.get(WIDGETS))["kind"] == "WidgetList"
    (found,) = [r for r in (await api.get("/apis/example.com/v1"))["resources"] if r["name"] == "widgets"]
    assert found["shortNames"] == ["wd"] and found["categories"] == ["all"]


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (crd("gadgets", "Widget"), "Widget"),
        (crd("gadgets", "Gadget", names={"shortNames": ["wd"]}), "wd"),
        (crd("gadgets", "Gadget", names={"singular": "widget"}), "widget"),
    ],
    ids=["kind", "short name", "singular"],
)
async def test_names_that_are_taken(api: Api, other: dict, word: str):
    await api.post(CRDS, crd(names={"shortNames": ["wd"]}))
    made = await api.post(CRDS, other)
    assert conditions(made) == {"NamesAccepted": "False", "Established": "False"}
    told = next(c for c in made["status"]["conditions"] if c["type"] == "NamesAccepted")
    assert told["reason"] == "NamesConflict" and word.lower() in told["message"].lower()
    await api.refused(404, "GET", "/apis/example.com/v1/namespaces/default/gadgets")
    await api.post(CRDS, crd(group="other.com", plural="widgets"))


async def test_a_definition_keeps_its_names_when_new_ones_are_taken(api: Api):
    await api.post(CRDS, crd("gadgets", "Gadget", names={"shortNames": ["gd"]}))
    made = await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w"))
    made["spec"]["names"]["shortNames"] = ["gd"]
    changed = await api.put(NAME, made)
    assert conditions(changed) == {"NamesAccepted": "False", "Established": "True"}
    await api.get(f"{WIDGETS}/w")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"group": ""}, "spec.group"),
        ({"scope": "Planet"}, "spec.scope"),
        ({"versions": []}, "spec.versions"),
        ({"versions": [version("v1", storage=False)]}, "spec.versions"),
        ({"versions": [version("v1"), version("v2")]}, "spec.versions"),
        ({"versions": [version("v1"), version("v1", storage=False)]}, "spec.versions"),
        ({"versions": [{"name": "v1", "served": True, "storage": True}]}, "spec.versions[0].schema.openAPIV3Schema"),
        ({"versions": [version(schema={"type": "array"})]}, "spec.versions[0].schema.openAPIV3Schema"),
        (
            {"versions": [version(schema={"type": "object", "properties": {"spec": {"properties": {}}}})]},
            "spec.versions[0].schema.openAPIV3Schema",
        ),
        (
            {
                "versions": [
                    version(schema={"type": "object", "x-kubernetes-validations": [{"rule": "self.none == 1"}]})
                ]
            },
            "spec.versions[0].schema.openAPIV3Schema",
        ),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion"),
        ({"names": {"plural": "other", "kind": "Widget"}}, "metadata.name"),
    ],
)
async def test_definitions_that_are_refused(api: Api, change: dict, field: str):
    body = crd()
    body["spec"].update(change)
    answer = await api.refused(422, "POST", CRDS, body)
    assert any(cause["field"].startswith(field) for cause in answer.causes), answer.causes


async def test_what_of_a_definition_is_fixed(api: Api):
    made = await api.post(CRDS, crd())
    for path, value in (("scope", "Cluster"), ("group", "other.com"), ("names/kind", "Thing")):
        patch = [{"op": "replace", "path": f"/spec/{path}", "value": value}]
        answer = await api.call("PATCH", NAME, patch, headers={"content-type": JSON_PATCH})
        if path != "names/kind":
            assert answer.status == 422, (path, answer)
    assert made["metadata"]["generation"] == 1


async def test_nobody_else_says_what_is_served(api: Api):
    await api.post(CRDS, crd())
    lie = {"status": {"conditions": [{"type": "Established", "status": "False"}]}}
    changed = await api.patch(f"{NAME}/status", lie)
    assert conditions(changed)["Established"] == "True"
    await api.get(WIDGETS)


async def test_discovery_and_openapi_follow(api: Api):
    async def known() -> tuple[bool, bool, bool]:
        groups = {group["name"] for group in (await api.get("/apis"))["groups"]}
        paths = set((await api.get("/openapi/v3"))["paths"])
        v2 = (await api.get("/openapi/v2"))["definitions"]
        return "example.com" in groups, "apis/example.com/v1" in paths, any("Widget" in name for name in v2)

    assert await known() == (False, False, False)
    await api.post(CRDS, crd())
    assert await known() == (True, True, True)
    await api.ok("DELETE", NAME)
    await api.patch(NAME, {"metadata": {"finalizers": None}})
    assert await known() == (False, False, False)


# ---- objects ----


async def test_objects_are_pruned_defaulted_and_checked(api: Api):
    rules = [{"rule": "self.low <= self.high", "message": "low must not be above high"}]
    spec = {
        "type": "object",
        "required": ["low"],
        "properties": {
            "low": {"type": "integer", "minimum": 0},
            "high": {"type": "integer", "default": 10},
            "name": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "fixed": {
                "type": "string",
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is fixed"}],
            },
        },
        "x-kubernetes-validations": rules,
    }
    await api.post(CRDS, crd(versions=[version(schema={"type": "object", "properties": {"spec": spec}})]))
    made = await api.post(WIDGETS, widget("w", spec={"low": 1, "fixed": "x", "unknown": {"y": 1}}, extra=5))
    assert made["spec"] == {"low": 1, "high": 10, "name": "a", "fixed": "x"} and "extra" not in made
    for body, field, words in (
        ({"low": 11}, "spec", "low must not be above high"),
        ({"low": -1}, "spec.low", "greater than or equal to 0"),
        ({"low": "1"}, "spec.low", "integer"),
        ({}, "spec.low", "Required"),
        ({"low": 1, "name": "c"}, "spec.name", "Unsupported"),
    ):
        answer = await api.refused(422, "POST", WIDGETS, widget("x", spec=body))
        (cause,) = answer.causes
        assert cause["field"] == field and words in cause["message"], cause
    fixed = await api.refused(422, "PATCH", f"{WIDGETS}/w", {"spec": {"fixed": "y"}}, headers={"content-type": MERGE})
    assert fixed.causes[0]["field"] == "spec.fixed" and "is fixed" in fixed.message
    await api.patch(f"{WIDGETS}/w", {"spec": {"low": 2}})


async def test_rules_that_could_take_too_long(api: Api):
    tags = {"type": "array", "items": {"type": "string"}}
    dear = {**tags, "x-kubernetes-validations": [{"rule": "self.all(x, self.exists(y, x == y))"}]}
    answer = await api.refused(422, "POST", CRDS, crd(versions=[version(schema=schema(tags=dear))]))
    at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[tags].x-kubernetes-validations[0].rule"
    assert f"{at}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x" in answer.message
    limited = {**dear, "maxItems": 50, "items": {"type": "string", "maxLength": 63}}
    await api.post(CRDS, crd(versions=[version(schema=schema(tags=limited))]))


async def test_what_was_invalid_before_may_stay(api: Api):
    await api.post(CRDS, crd(versions=[version(schema=schema(size={"type": "integer"}, note={"type": "string"}))]))
    await api.post(WIDGETS, widget("w", spec={"size": 1, "note": "long"}))
    stricter = {
        "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "message": "too small"}]},
        "note": {"type": "string", "maxLength": 2},
    }
    definition = await api.get(NAME)
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema(**stricter)
    await api.put(NAME, definition)
    kept = await api.patch(f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}})
    assert kept["spec"] == {"size": 1, "note": "long"}
    await api.patch(f"{WIDGETS}/w", {"spec": {"size": 2}})
    for spec, field in (({"size": 0}, "spec.size"), ({"note": "longer"}, "spec.note")):
        answer = await api.refused(422, "PATCH", f"{WIDGETS}/w", {"spec": spec}, headers={"content-type": MERGE})
        assert [cause["field"] for cause in answer.causes] == [field]


@pytest.mark.parametrize("body", [{"metadata": []}, {"metadata": {"name": "w", "labels": {"a": 1}}}, {"metadata": "x"}])
async def test_metadata_that_cannot_be_read(api: Api, body: dict):
    await api.post(CRDS, crd())
    await api.refused(400, "POST", WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", **body})


async def test_cluster_scope(api: Api):
    await api.post(CRDS, crd(scope="Cluster"))
    made = await api.post("/apis/example.com/v1/widgets", widget("w"))
    assert "namespace" not in made["metadata"]
    await api.refused(404, "GET", WIDGETS)
    assert (await api.call("GET", "/apis/example.com/v1/widgets")).names == ["w"]


async def test_printer_columns(api: Api):
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Secret", "type": "string", "jsonPath": ".spec.secret", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    await api.post(CRDS, crd(versions=[version(additionalPrinterColumns=columns)]))
    await api.post(WIDGETS, widget("w", spec={"size": 3, "secret": "s"}))
    table = await api.get(WIDGETS, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert [(c["name"], c["priority"]) for c in table["columnDefinitions"]] == [("Name", 0), ("Size", 0), ("Secret", 1), ("Age", 0)]  # fmt: skip
    assert table["rows"][0]["cells"] == ["w", 3, "s", "0s"]


async def test_scale(api: Api):
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    await api.post(CRDS, crd(versions=[version(subresources={"scale": scale, "status": {}})]))
    await api.post(WIDGETS, widget("w", spec={"replicas": 2}))
    await api.patch(f"{WIDGETS}/w/status", {"status": {"replicas": 1, "selector": "a=b"}})
    seen = await api.get(f"{WIDGETS}/w/scale")
    assert (seen["kind"], seen["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert seen["spec"] == {"replicas": 2} and seen["status"] == {"replicas": 1, "selector": "a=b"}
    changed = await api.patch(f"{WIDGETS}/w/scale", {"spec": {"replicas": 5}})
    assert changed["spec"]["replicas"] == 5
    put = await api.put(f"{WIDGETS}/w/scale", {**seen, "spec": {"replicas": 6}, "metadata": {"name": "w"}})
    assert put["spec"]["replicas"] == 6
    obj = await api.get(f"{WIDGETS}/w")
    assert obj["spec"]["replicas"] == 6 and obj["metadata"]["generation"] == 3
    await api.refused(422, "PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": -1}}, headers={"content-type": MERGE})
    await api.refused(409, "PUT", f"{WIDGETS}/w/scale", seen)
    for bad in ([], "x", {"spec": []}, {"spec": {"replicas": "1"}}, {"metadata": []}):
        answer = await api.call("PATCH", f"{WIDGETS}/w/scale", bad, headers={"content-type": MERGE})
        assert 400 <= answer.status < 500, (bad, answer)
    await api.refused(422, "PATCH", f"{WIDGETS}/w/scale", [{"op": "replace", "path": "", "value": []}], headers={"content-type": JSON_PATCH})  # fmt: skip


async def test_custom_list_kinds(api: Api):
    await api.post(CRDS, crd("mice", "Mouse", names={"listKind": "Mice"}))
    assert (await api.get("/apis/example.com/v1/namespaces/default/mice"))["kind"] == "Mice"


# ---- versions ----


async def test_versions_show_the_same_objects(api: Api):
    await api.post(CRDS, crd(versions=[version("v1"), version("v2", storage=False)]))
    await api.post(V2, widget("w", "example.com/v2", spec={"a": 1}))
    old, new = await api.get(f"{WIDGETS}/w"), await api.get(f"{V2}/w")
    assert (old["apiVersion"], new["apiVersion"]) == ("example.com/v1", "example.com/v2")
    assert {**old, "apiVersion": ""} == {**new, "apiVersion": ""}
    changed = await api.put(f"{V2}/w", {**new, "spec": {"a": 2}})
    assert changed["apiVersion"] == "example.com/v2"
    assert (await api.get(WIDGETS))["items"][0]["spec"] == {"a": 2}
    assert [item["apiVersion"] for item in (await api.get(V2))["items"]] == ["example.com/v2"]
    await api.refused(400, "PUT", f"{V2}/w", {**old, "spec": {}})


async def test_the_storage_version_may_change(api: Api):
    made = await api.post(CRDS, crd(versions=[version("v1"), version("v2", storage=False)]))
    before = await api.post(WIDGETS, widget("w", spec={"a": 1}))
    watch = await api.watch(WIDGETS)
    made["spec"]["versions"][0]["storage"], made["spec"]["versions"][1]["storage"] = False, True
    changed = await api.put(NAME, made)
    assert changed["status"]["storedVersions"] == ["v1", "v2"]
    assert await api.get(f"{WIDGETS}/w") == before, "nothing was rewritten"
    assert (await api.get(f"{V2}/w"))["apiVersion"] == "example.com/v2"
    await api.patch(f"{WIDGETS}/w", {"spec": {"a": 2}})
    assert (await api.get(f"{V2}/w"))["spec"] == {"a": 2}
    stored = await api.store.get("/registry/example.com/widgets/default/w")
    assert stored is not None and stored.value.startswith(b'{"apiVersion":"example.com/v2"')
    assert watch.ended, "its client comes back and goes on"
    again = await api.watch(f"{WIDGETS}?resourceVersion={before['metadata']['resourceVersion']}")
    for _ in range(100):
        await asyncio.sleep(0)
    (event,) = again.take()
    assert event["type"] == "MODIFIED" and event["object"]["apiVersion"] == "example.com/v1"


async def test_a_version_that_is_exchanged_for_another_keeps_the_objects(api: Api):
    made = await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w", spec={"a": 1}))
    made["spec"]["versions"] = [version("v1", storage=False, served=False), version("v2")]
    made = await api.put(NAME, made)
    await api.refused(404, "GET", f"{WIDGETS}/w")
    assert (await api.get(f"{V2}/w"))["spec"] == {"a": 1}


async def test_unserved_and_served_again(api: Api):
    await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w", spec={"a": 1}))
    switch = [{"op": "replace", "path": "/spec/versions/0/served", "value": False}]
    await api.patch(NAME, switch, JSON_PATCH)
    await api.refused(404, "GET", f"{WIDGETS}/w")
    switch[0]["value"] = True
    await api.patch(NAME, switch, JSON_PATCH)
    assert (await api.get(f"{WIDGETS}/w"))["spec"] == {"a": 1}
    await api.post(WIDGETS, widget("x"))
    await api.patch(f"{WIDGETS}/w", {"spec": {"a": 2}})


# ---- the end, and a new beginning ----


async def test_deletion_waits_for_the_objects(api: Api):
    await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w"))
    marked = await api.ok("DELETE", NAME)
    assert marked["metadata"]["deletionTimestamp"]
    assert (await api.call("GET", WIDGETS)).names == ["w"], "still there to be cleaned up"
    await api.ok("DELETE", WIDGETS)
    await api.patch(NAME, {"metadata": {"finalizers": None}})
    await api.refused(404, "GET", NAME)
    await api.refused(404, "GET", WIDGETS)
    await api.post(CRDS, crd())
    assert (await api.get(WIDGETS))["items"] == []
    await api.post(WIDGETS, widget("w"))


async def test_no_objects_are_made_while_the_definition_goes(api: Api):
    await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w"))
    await api.ok("DELETE", NAME)
    answer = await api.refused(405, "POST", WIDGETS, widget("x"))
    assert "while custom resource definition is terminating" in answer.message


async def test_after_a_restart():
    async with serving() as api:
        await api.post(CRDS, crd(versions=[version("v1"), version("v2", storage=False)]))
        made = await api.post(WIDGETS, widget("w", spec={"a": 1}))
        await api.server.stop()
        async with serving(store=api.store, clock=api.clock) as again:
            assert await again.get(f"{WIDGETS}/w") == made
            await again.patch(f"{V2}/w", {"spec": {"a": 2}})
            assert "example.com" in {group["name"] for group in (await again.get("/apis"))["groups"]}


async def test_the_definitions_the_server_brings_pass_everybodys_checks():
    """At a first start they are stored unchecked; here everybody's rules are put to them."""
    async with serving() as api:
        for definition in kuscia_crds.load():
            made = await api.post(CRDS, definition)
            assert conditions(made) == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("text", ["", "example.com/v1 widgets go away in v3; use v2"])
async def test_a_deprecated_version_says_so_with_every_answer(api: Api, text: str):
    old = {**version("v1"), "deprecated": True, **({"deprecationWarning": text} if text else {})}
    await api.post(CRDS, crd(versions=[old, version("v2", storage=False)]))
    expected = [("Warning", f'299 - "{text or "example.com/v1 Widget is deprecated"}"')]
    made = await api.call("POST", WIDGETS, widget("w"))
    assert (made.status, made.headers) == (201, expected)
    for method, path in (("GET", WIDGETS), ("GET", f"{WIDGETS}/w"), ("DELETE", f"{WIDGETS}/w")):
        assert (await api.call(method, path)).headers == expected
    assert (await api.call("GET", V2)).headers == []


async def test_known_fields_beside_any_others(api: Api):
    spec = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    whole = {"type": "object", "properties": {"spec": spec}}
    await api.post(CRDS, crd(versions=[version("v1", schema=whole)]))
    made = await api.post(WIDGETS, {**widget("w"), "spec": {"a": 1, "b": "kept"}})
    assert made["spec"] == {"a": 1, "b": "kept"}
    await api.refused(422, "POST", WIDGETS, {**widget("x"), "spec": {"a": "text"}})


async def test_an_object_without_kind_is_refused_in_the_words_of_kubernetes(api: Api):
    await api.post(CRDS, crd())
    refused = await api.refused(400, "POST", WIDGETS, {"metadata": {"name": "a"}})
    assert refused.message == (
        "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in "
        """'{"metadata":{"name":"a"}}' ({"metadata":{"name":"a"}})"""
    )
    await api.post(WIDGETS, widget("a"))
    for body, text in (
        ({"kind": None}, "Object 'Kind' is missing"),
        ({"metadata": {"labels": {"x": 1}}}, "of type string"),
    ):
        patched = await api.refused(422, "PATCH", f"{WIDGETS}/a", body, headers={"content-type": MERGE})
        assert "patch: Invalid value: " in patched.message and text in patched.message
    other = await api.refused(422, "PATCH", f"{WIDGETS}/a", {"kind": "X"}, headers={"content-type": MERGE})
    assert 'kind: Invalid value: "X": must be Widget' in other.message
