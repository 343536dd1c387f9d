"""delete and deletecollection: preconditions, propagation, finalizers, grace; namespaces."""

import asyncio

import pytest
from server_kit import CMS, PODS, Api, config_map, pod

NAMESPACES = "/api/v1/namespaces"


async def deleted(api: Api, path: str, body: object = None, **more: object):
    return await api.call("DELETE", path, body, **more)


async def test_what_is_answered(api: Api):
    made = await api.config_map("a")
    answer = await deleted(api, f"{CMS}/a")
    assert answer.status == 200
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]},
    }
    again = await api.refused(404, "DELETE", f"{CMS}/a")
    assert again.reason == "NotFound" and again.json["details"] == {"name": "a", "kind": "configmaps"}
    await api.post(PODS, pod("p"))
    assert (await deleted(api, f"{PODS}/p")).json["kind"] == "Pod", "some kinds answer the object"
    await api.refused(404, "GET", f"{PODS}/p")


async def test_a_name_can_be_used_again(api: Api):
    first = await api.config_map("a")
    await deleted(api, f"{CMS}/a")
    second = await api.config_map("a")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


# ---- options ----


@pytest.mark.parametrize(
    "body",
    [
        {"preconditions": {"uid": "other"}},
        {"preconditions": {"resourceVersion": "1"}},
        {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}},
    ],
)
async def test_preconditions(api: Api, body: object):
    made = await api.config_map("a")
    answer = await api.refused(409, "DELETE", f"{CMS}/a", body)
    assert answer.reason == "Conflict" and "Precondition failed" in answer.message
    right = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    assert (await deleted(api, f"{CMS}/a", {"preconditions": right})).status == 200


@pytest.mark.parametrize(
    ("body", "query", "code"),
    [
        ({"kind": "Pod"}, "", 400),
        ({"preconditions": []}, "", 400),
        ({"preconditions": "x"}, "", 400),
        ({"preconditions": {"uid": 5}}, "", 400),
        ({"orphanDependents": "no"}, "", 400),
        ({"gracePeriodSeconds": -1}, "", 422),
        ({"gracePeriodSeconds": "5"}, "", 400),
        ({"gracePeriodSeconds": True}, "", 400),
        ({"propagationPolicy": "Sideways"}, "", 422),
        ({"propagationPolicy": 5}, "", 400),
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, "", 422),
        ({"dryRun": "All"}, "", 400),
        ({"dryRun": ["Some"]}, "", 422),
        ([], "", 400),
        (b"{", "", 400),
        (None, "gracePeriodSeconds=soon", 400),
        (None, "propagationPolicy=Sideways", 422),
        (None, "dryRun=x", 422),
    ],
)
async def test_options_that_are_refused(api: Api, body: object, query: str, code: int):
    await api.config_map("a")
    answer = await api.call("DELETE", f"{CMS}/a?{query}", body)
    assert answer.status == code, answer
    await api.get(f"{CMS}/a")


@pytest.mark.parametrize(("body", "query"), [({"dryRun": ["All"]}, ""), (None, "dryRun=All")])
async def test_a_dry_run(api: Api, body: object, query: str):
    await api.config_map("a")
    before = api.revision
    assert (await deleted(api, f"{CMS}/a?{query}", body)).status == 200
    assert (await deleted(api, f"{CMS}?{query}", body)).status == 200
    assert api.revision == before and await api.get(f"{CMS}/a")
    await api.refused(404, "DELETE", f"{CMS}/none?dryRun=All")


# ---- finalizers and propagation ----


async def test_a_finalizer_holds_the_object(api: Api):
    body = config_map("a")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.post(CMS, body)
    watch = await api.watch(f"{CMS}?resourceVersion={api.revision}")
    answer = await deleted(api, f"{CMS}/a")
    assert answer.json["kind"] == "ConfigMap"
    assert answer.json["metadata"]["deletionTimestamp"] == "2026-01-02T03:04:05Z"
    assert answer.json["metadata"]["deletionGracePeriodSeconds"] == 0
    before = api.revision
    await api.clock.advance(100)
    assert (await deleted(api, f"{CMS}/a")).json["metadata"]["deletionTimestamp"] == "2026-01-02T03:04:05Z"
    assert api.revision == before, "a second deletion changes nothing"
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    refusal = await api.refused(
        422, "PATCH", f"{CMS}/a", more, headers={"content-type": "application/merge-patch+json"}
    )
    assert refusal.causes[0]["field"] == "metadata.finalizers"
    await api.patch(f"{CMS}/a", {"metadata": {"deletionTimestamp": None}})
    assert (await api.get(f"{CMS}/a"))["metadata"]["deletionTimestamp"], "there is no way back"
    assert watch.told() == [("MODIFIED", "a")]
    last = await api.patch(f"{CMS}/a", {"metadata": {"finalizers": None}})
    assert last["metadata"]["name"] == "a"
    assert watch.told() == [("DELETED", "a")]
    await api.refused(404, "GET", f"{CMS}/a")


@pytest.mark.parametrize(
    ("options", "finalizers"),
    [
        ({"propagationPolicy": "Foreground"}, ["foregroundDeletion"]),
        ({"propagationPolicy": "Orphan"}, ["orphan"]),
        ({"orphanDependents": True}, ["orphan"]),
    ],
)
async def test_propagation_is_left_to_a_finalizer(api: Api, options: dict, finalizers: list[str]):
    await api.config_map("a")
    answer = await deleted(api, f"{CMS}/a", options)
    assert answer.json["metadata"]["finalizers"] == finalizers
    await api.config_map("b")
    query = "propagationPolicy=" + options.get("propagationPolicy", "Orphan")
    assert (await deleted(api, f"{CMS}/b?{query}")).json["metadata"]["finalizers"] == finalizers
    later = await deleted(api, f"{CMS}/a", {"propagationPolicy": "Background"})
    assert later.json["metadata"]["finalizers"] == finalizers, "the first deletion decided"


@pytest.mark.parametrize("options", [{"propagationPolicy": "Background"}, {"orphanDependents": False}, None])
async def test_background_deletion_is_at_once(api: Api, options: object):
    await api.config_map("a")
    await deleted(api, f"{CMS}/a", options)
    await api.refused(404, "GET", f"{CMS}/a")


async def test_an_object_may_have_chosen_its_propagation_itself(api: Api):
    for name in ("a", "b"):
        body = config_map(name)
        body["metadata"]["finalizers"] = ["orphan"]
        await api.post(CMS, body)
    assert (await deleted(api, f"{CMS}/a")).json["metadata"]["finalizers"] == ["orphan"]
    await deleted(api, f"{CMS}/b", {"propagationPolicy": "Background"})
    await api.refused(404, "GET", f"{CMS}/b")


# ---- grace ----


async def bound(api: Api, name: str = "p", **spec: object) -> None:
    await api.post(PODS, pod(name, **spec))
    await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "n"}})


async def test_a_bound_pod_gets_its_grace(api: Api):
    await bound(api, terminationGracePeriodSeconds=7)
    answer = (await deleted(api, f"{PODS}/p")).json["metadata"]
    assert (answer["deletionGracePeriodSeconds"], answer["deletionTimestamp"]) == (7, "2026-01-02T03:04:12Z")
    same = (await deleted(api, f"{PODS}/p", {"gracePeriodSeconds": 60})).json["metadata"]
    assert same["deletionGracePeriodSeconds"] == 7, "it can only be shortened"
    shorter = (await deleted(api, f"{PODS}/p?gracePeriodSeconds=3")).json["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], shorter["deletionTimestamp"]) == (3, "2026-01-02T03:04:08Z")
    await api.patch(f"{PODS}/p/status", {"status": {"phase": "Failed"}})
    await api.get(f"{PODS}/p")
    await deleted(api, f"{PODS}/p", {"gracePeriodSeconds": 0})
    await api.refused(404, "GET", f"{PODS}/p")


@pytest.mark.parametrize("case", ["unbound", "finished", "forced", "zero"])
async def test_pods_without_grace(api: Api, case: str):
    options = None
    if case == "unbound":
        await api.post(PODS, pod("p"))
    else:
        await bound(api, terminationGracePeriodSeconds=0 if case == "zero" else 30)
    if case == "finished":
        await api.patch(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    if case == "forced":
        options = {"gracePeriodSeconds": 0}
    await deleted(api, f"{PODS}/p", options)
    await api.refused(404, "GET", f"{PODS}/p")


async def test_other_kinds_have_no_grace(api: Api):
    await api.config_map("a")
    await deleted(api, f"{CMS}/a", {"gracePeriodSeconds": 30})
    await api.refused(404, "GET", f"{CMS}/a")


# ---- collections ----


async def test_a_selection_of_a_collection(api: Api):
    await api.namespace("other")
    await api.config_map("x", "other", labels={"on": "yes"})
    for n in range(150):
        await api.config_map(f"c{n:03}", labels={"on": "yes" if n % 3 else "no"})
    answer = await deleted(api, f"{CMS}?labelSelector=on%3Dyes")
    assert answer.status == 200 and answer.json["kind"] == "ConfigMapList" and len(answer.json["items"]) == 100
    assert len((await api.get(CMS))["items"]) == 50
    await deleted(api, f"{CMS}?fieldSelector=metadata.name%3Dc000")
    assert len((await api.get(CMS))["items"]) == 49
    await deleted(api, CMS)
    assert (await api.get(CMS))["items"] == []
    assert len((await api.get(f"{NAMESPACES}/other/configmaps"))["items"]) == 1


async def test_finalizers_hold_objects_of_a_collection(api: Api):
    await api.config_map("a")
    body = config_map("b")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.post(CMS, body)
    await deleted(api, CMS)
    (left,) = (await api.get(CMS))["items"]
    assert left["metadata"]["name"] == "b" and left["metadata"]["deletionTimestamp"]


async def test_collections_deleted_twice_at_once(api: Api):
    for n in range(20):
        await api.config_map(f"c{n}")
    answers = await asyncio.gather(*(deleted(api, CMS) for _ in range(4)))
    assert {answer.status for answer in answers} == {200}
    assert (await api.get(CMS))["items"] == []


async def test_of_many_deleters_one_wins(api: Api):
    await api.config_map("a")
    answers = await asyncio.gather(*(deleted(api, f"{CMS}/a") for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] + [404] * 19


# ---- namespaces ----


async def test_a_namespace_ends_in_two_steps(api: Api):
    made = await api.namespace("n")
    assert made["status"]["phase"] == "Active" and made["spec"]["finalizers"] == ["kubernetes"]
    path = f"{NAMESPACES}/n"
    await api.post(f"{path}/configmaps", config_map("a"))
    gone = await deleted(api, path)
    assert gone.json["status"]["phase"] == "Terminating" and gone.json["metadata"]["deletionTimestamp"]
    answer = await api.refused(403, "POST", f"{path}/configmaps", config_map("b"))
    assert answer.reason == "Forbidden" and "because it is being terminated" in answer.message
    assert answer.causes[0]["reason"] == "NamespaceTerminating"
    assert answer.causes[0]["field"] == "metadata.namespace"
    changed = await api.patch(f"{path}/configmaps/a", {"data": {"x": "1"}})
    assert changed["data"] == {"x": "1"}, "what is there can still be changed, and so be cleaned up"
    await deleted(api, f"{path}/configmaps/a")
    current = await api.get(path)
    current["spec"]["finalizers"] = []
    await api.put(f"{path}/finalize", current)
    await api.refused(404, "GET", path)
    await api.namespace("n")


async def test_a_namespace_that_does_not_exist(api: Api):
    answer = await api.refused(404, "POST", f"{NAMESPACES}/none/configmaps", config_map("a"))
    assert answer.message == 'namespaces "none" not found' and answer.json["details"]["kind"] == "namespaces"
    applied = await api.apply(f"{NAMESPACES}/none/configmaps/a", config_map("a"))
    assert applied.status == 404


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_namespaces_that_stay(api: Api, name: str):
    answer = await api.refused(403, "DELETE", f"{NAMESPACES}/{name}")
    assert "may not be deleted" in answer.message


async def test_namespace_finalizers_only_go_through_finalize(api: Api):
    await api.namespace("n")
    await api.patch(f"{NAMESPACES}/n", {"spec": {"finalizers": []}})
    assert (await api.get(f"{NAMESPACES}/n"))["spec"]["finalizers"] == ["kubernetes"]
    await api.refused(400, "PUT", f"{NAMESPACES}/n/finalize", {"spec": {"finalizers": "x"}})
    await api.refused(400, "PUT", f"{NAMESPACES}/n/finalize", {"kind": "Pod"})
    stale = {"metadata": {"name": "n", "resourceVersion": "1"}, "spec": {"finalizers": []}}
    await api.refused(409, "PUT", f"{NAMESPACES}/n/finalize", stale)


async def test_a_grace_beyond_all_time(api: Api):
    await bound(api, terminationGracePeriodSeconds=2**62)
    assert (await deleted(api, f"{PODS}/p")).json["metadata"]["deletionTimestamp"].startswith("2057-")
    await bound(api, "q")
    assert (await deleted(api, f"{PODS}/q", {"gracePeriodSeconds": 2**62})).status == 200
