"""update and patch: versions, what may not change, sub-resources, each kind of patch, races."""

import asyncio

import pytest
from server_kit import (
    CMS,
    CRDS,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    WIDGETS,
    Api,
    config_map,
    crd,
    pod,
    version,
    widget,
)
from test_server_create import DEPLOYMENTS, deployment

STALE = "the object has been modified"


# ---- versions ----


async def test_an_update_moves_the_version_and_keeps_the_identity(api: Api):
    made = await api.config_map("a", x="1")
    await api.clock.advance(60)
    changed = await api.put(f"{CMS}/a", {**made, "data": {"x": "2"}})
    assert changed["data"] == {"x": "2"}
    assert int(changed["metadata"]["resourceVersion"]) == api.revision > int(made["metadata"]["resourceVersion"])
    for key in ("uid", "creationTimestamp", "name", "namespace"):
        assert changed["metadata"][key] == made["metadata"][key]


async def test_old_versions_conflict(api: Api):
    made = await api.config_map("a")
    await api.put(f"{CMS}/a", {**made, "data": {"x": "1"}})
    answer = await api.refused(409, "PUT", f"{CMS}/a", {**made, "data": {"x": "2"}})
    assert answer.reason == "Conflict" and STALE in answer.message
    assert answer.message.startswith('Operation cannot be fulfilled on configmaps "a":')
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"x": "3"}}
    await api.refused(409, "PATCH", f"{CMS}/a", patch, headers={"content-type": MERGE})
    assert (await api.get(f"{CMS}/a"))["data"] == {"x": "1"}


async def test_a_write_that_changes_nothing_keeps_the_version(api: Api):
    made = await api.config_map("a", x="1")
    watch, before = await api.watch(f"{CMS}?resourceVersion={api.revision}"), api.revision
    await api.clock.advance(60)
    assert await api.put(f"{CMS}/a", made) == made
    assert await api.put(f"{CMS}/a", config_map("a", x="1")) == made
    assert await api.patch(f"{CMS}/a", {"data": {"x": "1"}}) == made
    assert await api.patch(f"{CMS}/a", [{"op": "test", "path": "/data/x", "value": "1"}], JSON_PATCH) == made
    assert api.revision == before and watch.told() == []


async def test_built_in_kinds_may_be_overwritten_without_a_version(api: Api):
    await api.config_map("a", x="1")
    assert (await api.put(f"{CMS}/a", config_map("a", y="2")))["data"] == {"y": "2"}


async def test_custom_kinds_may_not(api: Api):
    await api.post(CRDS, crd())
    made = await api.post(WIDGETS, widget("w", spec={"a": 1}))
    answer = await api.refused(422, "PUT", f"{WIDGETS}/w", widget("w", spec={"a": 2}))
    assert answer.causes[0]["field"] == "metadata.resourceVersion"
    assert answer.json["details"]["kind"] == "Widget" and "must be specified for an update" in answer.message
    assert (await api.put(f"{WIDGETS}/w", {**made, "spec": {"a": 2}}))["spec"] == {"a": 2}
    assert (await api.patch(f"{WIDGETS}/w", {"spec": {"a": 3}}))["spec"] == {"a": 3}, "patches need none"


async def test_the_uid_is_a_precondition(api: Api):
    made = await api.config_map("a")
    other = {**made, "metadata": {**made["metadata"], "uid": "other"}}
    assert "UID in precondition" in (await api.refused(409, "PUT", f"{CMS}/a", other)).message


async def test_an_update_does_not_create(api: Api):
    for method, body, kind in (("PUT", config_map("a"), ""), ("PATCH", {}, MERGE), ("PATCH", [], JSON_PATCH)):
        answer = await api.refused(404, method, f"{CMS}/a", body, headers={"content-type": kind})
        assert answer.message == 'configmaps "a" not found'


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"metadata": {"name": "b"}}, 400, "does not match the name on the URL"),
        ({"metadata": {}}, 400, "name must be provided"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "namespace"),
        ({"kind": "Secret"}, 400, "Secret"),
        ({"apiVersion": "apps/v1"}, 400, "apps/v1"),
        ({"data": {"x": 1}}, 400, "data"),
    ],
)
async def test_updates_that_are_refused(api: Api, change: dict, code: int, words: str):
    await api.config_map("a")
    assert words in (await api.refused(code, "PUT", f"{CMS}/a", {**config_map("a"), **change})).message


async def test_immutable_fields(api: Api):
    made = await api.post(CMS, {**config_map("a", x="1"), "immutable": True})
    assert "data" in (await api.refused(422, "PUT", f"{CMS}/a", {**made, "data": {"x": "2"}})).causes[0]["field"]
    await api.post(DEPLOYMENTS, deployment("d"))
    patch = {
        "spec": {"selector": {"matchLabels": {"other": "1"}}, "template": {"metadata": {"labels": {"other": "1"}}}}
    }
    answer = await api.refused(422, "PATCH", f"{DEPLOYMENTS}/d", patch, headers={"content-type": MERGE})
    assert any("immutable" in cause["message"] for cause in answer.causes)
    await api.post(PODS, pod("p"))
    rename = {"spec": {"containers": [{"name": "other", "image": "i"}]}}
    await api.refused(422, "PATCH", f"{PODS}/p", rename, headers={"content-type": MERGE})


async def test_what_only_the_server_may_change(api: Api):
    made = await api.config_map("a")
    body = {**made, "data": {"x": "1"}}
    body["metadata"] = {**made["metadata"], "creationTimestamp": "2000-01-01T00:00:00Z", "deletionTimestamp": "2000-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "generation": 9, "selfLink": "/x"}  # fmt: skip
    changed = (await api.put(f"{CMS}/a", body))["metadata"]
    assert changed["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"} & set(changed)


async def test_generations(api: Api):
    made = await api.post(DEPLOYMENTS, deployment("d"))
    labelled = await api.patch(f"{DEPLOYMENTS}/d", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1, "labels are not what is wanted of the object"
    scaled = await api.patch(f"{DEPLOYMENTS}/d", {"spec": {"replicas": 3}})
    assert scaled["metadata"]["generation"] == 2
    cheat = await api.patch(f"{DEPLOYMENTS}/d", {"metadata": {"generation": 50}})
    assert cheat["metadata"]["generation"] == 2
    status = await api.patch(f"{DEPLOYMENTS}/d/status", {"status": {"replicas": 3}})
    assert status["metadata"]["generation"] == 2 and made["metadata"]["generation"] == 1


# ---- the status sub-resource ----


async def test_status_and_the_rest_are_written_apart(api: Api):
    made = await api.post(DEPLOYMENTS, deployment("d"))
    both = {**made, "spec": {**made["spec"], "replicas": 7}, "status": {"replicas": 5}}
    by_status = await api.put(f"{DEPLOYMENTS}/d/status", both)
    assert (by_status["spec"]["replicas"], by_status["status"]["replicas"]) == (1, 5)
    fresh = {**by_status, "spec": {**made["spec"], "replicas": 7}, "status": {"replicas": 6}}
    by_spec = await api.put(f"{DEPLOYMENTS}/d", fresh)
    assert (by_spec["spec"]["replicas"], by_spec["status"]["replicas"]) == (7, 5)
    assert await api.get(f"{DEPLOYMENTS}/d/status") == by_spec


@pytest.mark.parametrize("separate", [True, False])
async def test_status_of_custom_resources(api: Api, separate: bool):
    subresources = {"subresources": {"status": {}}} if separate else {}
    await api.post(CRDS, crd(versions=[version(**subresources)]))
    made = await api.post(WIDGETS, widget("w", spec={"a": 1}, status={"b": 1}))
    assert made["metadata"]["generation"] == 1
    if not separate:
        assert made["status"] == {"b": 1}
        changed = await api.patch(f"{WIDGETS}/w", {"status": {"b": 2}})
        assert changed["metadata"]["generation"] == 2
        await api.refused(404, "GET", f"{WIDGETS}/w/status")
        return
    assert "status" not in made
    seen = await api.patch(
        f"{WIDGETS}/w/status", {"status": {"b": 2}, "spec": {"a": 9}, "metadata": {"labels": {"x": "y"}}}
    )
    assert (seen["spec"], seen["status"], seen["metadata"]["generation"]) == ({"a": 1}, {"b": 2}, 1)
    assert "labels" not in seen["metadata"]
    changed = await api.patch(f"{WIDGETS}/w", {"status": {"b": 3}, "spec": {"a": 4}})
    assert (changed["spec"], changed["status"], changed["metadata"]["generation"]) == ({"a": 4}, {"b": 2}, 2)


async def test_who_wrote_what_is_recorded(api: Api):
    await api.post(f"{DEPLOYMENTS}?fieldManager=maker", deployment("d"))
    await api.patch(f"{DEPLOYMENTS}/d?fieldManager=scaler", {"spec": {"replicas": 4}})
    await api.patch(f"{DEPLOYMENTS}/d/status?fieldManager=watcher", {"status": {"replicas": 4}})
    obj = await api.get(f"{DEPLOYMENTS}/d")
    obj["metadata"].setdefault("labels", {})["l"] = "1"
    obj = await api.put(f"{DEPLOYMENTS}/d?fieldManager=labeller", obj)
    entries = {entry["manager"]: entry for entry in obj["metadata"]["managedFields"]}
    assert set(entries) == {"maker", "scaler", "watcher", "labeller"}
    assert "f:replicas" not in entries["maker"]["fieldsV1"]["f:spec"], "taken over"
    assert entries["scaler"]["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
    assert entries["watcher"]["subresource"] == "status"
    assert entries["watcher"]["fieldsV1"] == {"f:status": {"f:replicas": {}}}
    assert entries["labeller"]["fieldsV1"] == {"f:metadata": {"f:labels": {".": {}, "f:l": {}}}}
    assert {entry["operation"] for entry in entries.values()} == {"Update"}


# ---- patches ----


async def test_three_kinds_of_patches(api: Api):
    await api.post(PODS, pod("p", labels={"a": "1", "b": "2"}))
    merged = await api.patch(f"{PODS}/p", {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert merged["metadata"]["labels"] == {"b": "2", "c": "3"}
    steps = [{"op": "test", "path": "/metadata/labels/b", "value": "2"}, {"op": "remove", "path": "/metadata/labels/b"}]
    assert (await api.patch(f"{PODS}/p", steps, JSON_PATCH))["metadata"]["labels"] == {"c": "3"}
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    strategic = await api.patch(f"{PODS}/p", image, STRATEGIC)
    assert [(c["name"], c["image"]) for c in strategic["spec"]["containers"]] == [("main", "other")]
    assert strategic["spec"]["containers"][0]["imagePullPolicy"], "merged by name, not replaced"


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        (MERGE, [], 400),
        (MERGE, "x", 400),
        (MERGE, b"{", 400),
        (MERGE, b"", 400),
        (MERGE, None, 400),
        (MERGE, {"metadata": None}, 400),
        (MERGE, {"metadata": []}, 400),
        (MERGE, {"metadata": {"name": "b"}}, 400),
        (MERGE, {"metadata": {"namespace": "b"}}, 400),
        (MERGE, {"kind": "Secret"}, 422),
        (MERGE, {"apiVersion": "v2"}, 422),
        (MERGE, {"data": {"x": 1}}, 422),
        (MERGE, {"metadata": {"labels": {"x": "not valid!"}}}, 422),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, [1], 400),
        (JSON_PATCH, [{"op": "what", "path": "/x"}], 400),
        (JSON_PATCH, [{"op": "remove", "path": "/none"}], 422),
        (JSON_PATCH, [{"op": "test", "path": "/data/x", "value": "9"}], 422),
        (JSON_PATCH, [{"op": "replace", "path": "", "value": []}], 422),
        (JSON_PATCH, [{"op": "replace", "path": "", "value": {}}], 400),
        (JSON_PATCH, [{"op": "remove", "path": "/metadata"}], 400),
        (JSON_PATCH, [{"op": "add", "path": "/data/y", "value": 1}], 422),
        (STRATEGIC, [], 400),
        (STRATEGIC, {"data": {"$patch": "explode"}}, 400),
        ("application/json", {}, 415),
        ("text/plain", {}, 415),
        ("", {}, 415),
    ],
)
async def test_patches_that_are_refused(api: Api, kind: str, body: object, code: int):
    made = await api.config_map("a", x="1")
    await api.refused(code, "PATCH", f"{CMS}/a", body, headers={"content-type": kind})
    assert await api.get(f"{CMS}/a") == made


async def test_strategic_patches_are_for_built_in_kinds(api: Api):
    await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("w"))
    answer = await api.refused(415, "PATCH", f"{WIDGETS}/w", {}, headers={"content-type": STRATEGIC})
    assert answer.reason == "UnsupportedMediaType" and MERGE in answer.message and STRATEGIC not in answer.message


async def test_a_patch_cannot_be_forced(api: Api):
    await api.config_map("a")
    await api.refused(422, "PATCH", f"{CMS}/a?force=true", {}, headers={"content-type": MERGE})


async def test_unknown_fields_in_a_patch(api: Api):
    await api.config_map("a")
    headers = {"content-type": MERGE}
    warned = await api.call("PATCH", f"{CMS}/a", {"oops": 1}, headers=headers)
    assert warned.warnings() == ['299 - "unknown field \\"oops\\""'] and "oops" not in warned.json
    strict = await api.refused(422, "PATCH", f"{CMS}/a?fieldValidation=Strict", {"oops": 1}, headers=headers)
    assert "unknown field" in strict.message


async def test_a_dry_run(api: Api):
    made = await api.config_map("a", x="1")
    before, watch = api.revision, await api.watch(f"{CMS}?resourceVersion={api.revision}")
    shown = await api.patch(f"{CMS}/a?dryRun=All", {"data": {"x": "2"}})
    assert shown["data"] == {"x": "2"} and shown["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert (await api.put(f"{CMS}/a?dryRun=All", {**made, "data": {"x": "3"}}))["data"] == {"x": "3"}
    await api.refused(409, "PUT", f"{CMS}/a?dryRun=All", {**made, "metadata": {"name": "a", "resourceVersion": "1"}})
    assert await api.get(f"{CMS}/a") == made
    assert api.revision == before and watch.told() == []


async def test_the_answer_takes_the_shape_that_is_wanted(api: Api):
    await api.config_map("a")
    headers = {"content-type": MERGE, "accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    assert (await api.call("PATCH", f"{CMS}/a", {"data": {"x": "1"}}, headers=headers)).json["kind"] == "Table"


# ---- races ----


async def test_of_many_updates_of_one_version_one_wins(api: Api):
    made = await api.config_map("a")
    puts = [api.call("PUT", f"{CMS}/a", {**made, "data": {"by": str(n)}}) for n in range(30)]
    answers = await asyncio.gather(*puts)
    assert sorted(answer.status for answer in answers) == [200] + [409] * 29
    winner = next(answer for answer in answers if answer.status == 200)
    assert await api.get(f"{CMS}/a") == winner.json


async def test_all_patches_are_applied(api: Api):
    await api.config_map("a")
    patches = (api.patch(f"{CMS}/a", {"data": {f"k{n}": str(n)}}) for n in range(50))
    versions = {answer["metadata"]["resourceVersion"] for answer in await asyncio.gather(*patches)}
    assert len(versions) == 50
    assert (await api.get(f"{CMS}/a"))["data"] == {f"k{n}": str(n) for n in range(50)}


async def test_updates_deletes_and_creates_of_one_name_keep_in_order(api: Api):
    watch = await api.watch(CMS)

    async def churn(n: int) -> None:
        await api.call("POST", CMS, config_map("a", by=str(n)))
        await api.call("PATCH", f"{CMS}/a", {"data": {f"k{n}": "1"}}, headers={"content-type": MERGE})
        await api.call("DELETE", f"{CMS}/a")

    await asyncio.gather(*(churn(n) for n in range(20)))
    exists = False
    for event in watch.take():
        assert (event["type"] == "ADDED") != exists
        exists = event["type"] != "DELETED"
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watch.all]
    assert versions == sorted(set(versions))
    assert ((await api.call("GET", f"{CMS}/a")).status == 200) == exists


async def test_defaults_that_came_later_count_as_a_change(api: Api):
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    made = await api.post(CRDS, crd(versions=[version(schema=schema)]))
    await api.post(WIDGETS, widget("w", spec={}))
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["default"] = 5
    await api.put(f"{CRDS}/widgets.example.com", made)
    changed = await api.patch(f"{WIDGETS}/w", {"metadata": {"labels": {"x": "y"}}})
    assert changed["spec"] == {"a": 5} and changed["metadata"]["generation"] == 2


# what admission added

_PODS = "/api/v1/namespaces/default/pods"
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
_ADMITTED = ("priority", "preemptionPolicy", "serviceAccountName", "serviceAccount")


async def test_what_admission_added_belongs_to_nobody(api: Api) -> None:
    made = await api.post(_PODS, _POD)
    assert all(name in made["spec"] for name in _ADMITTED)
    (entry,) = made["metadata"]["managedFields"]
    assert not [name for name in _ADMITTED if f"f:{name}" in entry["fieldsV1"]["f:spec"]]
    assert "f:containers" in entry["fieldsV1"]["f:spec"]


async def test_an_update_that_leaves_out_what_admission_added_keeps_it(api: Api) -> None:
    made = await api.post(_PODS, _POD)
    changed = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}, "spec": dict(made["spec"])}
    for name in _ADMITTED:
        del changed["spec"][name]
    kept = await api.put(f"{_PODS}/p", changed)
    assert kept["spec"] == made["spec"]
    assert kept["metadata"]["labels"] == {"a": "b"}


async def test_an_update_cannot_change_what_admission_added(api: Api) -> None:
    made = await api.post(_PODS, _POD)
    await api.refused(422, "PUT", f"{_PODS}/p", {**made, "spec": {**made["spec"], "priority": 7}})


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (STRATEGIC, {"data": {"x": 1}}, '"map[data:map[x:1]]": cannot convert int64 to string'),
        (STRATEGIC, {"data": {"x": True}}, '"map[data:map[x:true]]": unrecognized type: string'),
        (STRATEGIC, {"data": 1}, '"map[data:1]": cannot restore map from int64'),
        (STRATEGIC, {"metadata": {"finalizers": 1}}, '"map[metadata:map[finalizers:1]]": cannot restore slice from int64'),
        (STRATEGIC, {"immutable": "x"}, '"map[immutable:x]": unrecognized type: bool'),
        (
            MERGE,
            {"data": {"x": 1}},
            '"{\\"data\\":{\\"x\\":1}}": json: cannot unmarshal number into Go struct field ConfigMap.data of type string',
        ),
    ],
)  # fmt: skip
async def test_a_patch_with_a_wrong_value_is_answered_as_by_kubernetes(api: Api, kind: str, body: object, message: str):
    await api.config_map("a", x="1")
    refused = await api.refused(422, "PATCH", f"{CMS}/a", body, headers={"content-type": kind})
    assert refused.message == f' "" is invalid: patch: Invalid value: {message}'
    assert refused.causes[0]["field"] == "patch" and "kind" not in refused.json["details"]


async def test_a_patch_that_takes_kind_or_version_away_leaves_them(api: Api):
    made = await api.config_map("a", x="1")
    for body in ({"kind": None}, {"apiVersion": None}):
        assert await api.patch(f"{CMS}/a", body) == made
