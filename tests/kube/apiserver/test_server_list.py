"""list: pages, snapshots, selectors, shapes."""

import base64

import orjson
import pytest
import yaml
from server_kit import CMS, PODS, WIDGETS, Api, config_map, crd, pod, version, widget

from coterie.kube.apiserver import list_body
from coterie.kube.apiserver.state.entry import ObjectEntry

TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
PARTIAL = {"accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}


async def some(api: Api, *names: str) -> None:
    for name in names:
        await api.config_map(name)


# ---- pages ----


async def test_pages_cover_everything_once_and_count_what_remains(api: Api):
    await some(api, "a", "b", "c", "d", "e")
    first = await api.get(f"{CMS}?limit=2")
    assert first["metadata"]["remainingItemCount"] == 3
    second = await api.get(CMS, query={"limit": 2, "continue": first["metadata"]["continue"]})
    third = await api.get(CMS, query={"limit": 2, "continue": second["metadata"]["continue"]})
    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == ["a", "b", "c", "d", "e"]
    assert "continue" not in third["metadata"] and "remainingItemCount" not in third["metadata"]
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {str(api.revision)}


async def test_later_pages_show_the_snapshot_of_the_first(api: Api):
    await some(api, "a", "b", "c", "d")
    first = await api.get(f"{CMS}?limit=2")
    await api.ok("DELETE", f"{CMS}/c")
    await api.patch(f"{CMS}/d", {"data": {"new": "1"}})
    await some(api, "bb", "e")
    token = first["metadata"]["continue"]
    second = await api.get(CMS, query={"limit": 2, "continue": token})
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert not second["items"][1].get("data")
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]


async def test_a_page_may_be_followed_without_a_limit(api: Api):
    await some(api, "a", "b", "c")
    token = (await api.get(f"{CMS}?limit=1"))["metadata"]["continue"]
    assert [item["metadata"]["name"] for item in (await api.get(CMS, query={"continue": token}))["items"]] == ["b", "c"]


@pytest.mark.parametrize("changed", [False, True], ids=["in memory", "from the past"])
async def test_pages_of_a_selection(api: Api, changed: bool):
    for index in range(10):
        await api.config_map(f"c{index}", labels={"odd": str(index % 2)})
    query = {"limit": 2, "labelSelector": "odd=1"}
    page = await api.get(CMS, query=query)
    if changed:
        await api.config_map("c55", labels={"odd": "1"})
    found = [item["metadata"]["name"] for item in page["items"]]
    assert "remainingItemCount" not in page["metadata"], "a selection is not counted"
    while token := page["metadata"].get("continue"):
        page = await api.get(CMS, query={**query, "continue": token})
        found += [item["metadata"]["name"] for item in page["items"]]
    assert found == ["c1", "c3", "c5", "c7", "c9"]


async def test_pages_across_namespaces_follow_the_keys(api: Api):
    for namespace in ("a", "a-b", "b"):
        await api.namespace(namespace)
        for name in ("x", "y"):
            await api.config_map(name, namespace)

    def keys(page):
        return [f"{i['metadata']['namespace']}/{i['metadata']['name']}" for i in page["items"]]

    whole = await api.get("/api/v1/configmaps")
    assert keys(whole) == ["a-b/x", "a-b/y", "a/x", "a/y", "b/x", "b/y"]
    page = await api.get("/api/v1/configmaps?limit=3")
    await api.ok("DELETE", "/api/v1/namespaces/b/configmaps/x")
    rest = await api.get("/api/v1/configmaps", query={"limit": 3, "continue": page["metadata"]["continue"]})
    assert keys(page) + keys(rest) == keys(whole)


async def test_a_token_expires_with_its_history(api: Api):
    await some(api, "a", "b", "c")
    token = (await api.get(f"{CMS}?limit=1"))["metadata"]["continue"]
    await some(api, "d")
    await api.store.compact(api.revision)
    answer = await api.refused(410, "GET", CMS, query={"limit": 1, "continue": token})
    assert answer.reason == "Expired"


def token_of(content: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(content)).decode()


@pytest.mark.parametrize(
    "token",
    [
        "nonsense",
        "ä",
        token_of([]),
        token_of("text"),
        token_of({"rv": "1", "start": "a"}),
        token_of({"rv": -1, "start": "a"}),
        token_of({"rv": 0, "start": "a"}),
        token_of({"rv": 1, "start": 1}),
        token_of({"start": "a"}),
    ],
)
async def test_tokens_that_no_list_gave(api: Api, token: str):
    assert (await api.refused(400, "GET", CMS, query={"continue": token})).reason == "BadRequest"


async def test_a_token_of_a_revision_that_is_yet_to_come(api: Api):
    await api.refused(504, "GET", CMS, query={"continue": token_of({"rv": api.revision + 1, "start": "default/a"})})


# ---- resource versions ----


async def test_resource_versions(api: Api):
    await some(api, "a")
    before = api.revision
    await some(api, "b")
    now = api.revision

    async def names(**query: object) -> tuple[list[str], str]:
        found = await api.get(CMS, query=query)
        return [item["metadata"]["name"] for item in found["items"]], found["metadata"]["resourceVersion"]

    assert await names() == (["a", "b"], str(now))
    assert await names(resourceVersion="0") == (["a", "b"], str(now))
    assert await names(resourceVersion=before) == (["a", "b"], str(now)), "not older than"
    assert await names(resourceVersion=before, resourceVersionMatch="NotOlderThan") == (["a", "b"], str(now))
    assert await names(resourceVersion="0", resourceVersionMatch="NotOlderThan") == (["a", "b"], str(now))
    assert await names(resourceVersion=before, resourceVersionMatch="Exact") == (["a"], str(before))
    assert await names(resourceVersion=now, resourceVersionMatch="Exact") == (["a", "b"], str(now))
    assert await names(resourceVersion=before, limit=5) == (["a"], str(before)), "with a limit, as of then"


async def test_an_exact_version_that_was_compacted(api: Api):
    await some(api, "a")
    before = api.revision
    await some(api, "b")
    await api.store.compact(api.revision)
    query = {"resourceVersion": before, "resourceVersionMatch": "Exact"}
    assert (await api.refused(410, "GET", CMS, query=query)).reason == "Expired"


@pytest.mark.parametrize("path", [CMS, f"{CMS}/a", f"{CMS}?watch=true", f"{CMS}?resourceVersionMatch=Exact"])
async def test_a_version_from_the_future(api: Api, path: str):
    await some(api, "a")
    path, _, more = path.partition("?")
    answer = await api.refused(504, "GET", path, query=f"resourceVersion={api.revision + 1}&{more}")
    assert answer.reason == "Timeout"
    assert answer.causes == [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    assert answer.json["details"]["retryAfterSeconds"] == 1


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resourceVersion=abc", 422),
        ("resourceVersion=-1", 422),
        ("resourceVersion=1.5", 422),
        ("resourceVersion=99999999999999999999", 422),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("resourceVersion=1&resourceVersionMatch=Newest", 422),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
        ("continue=x&resourceVersion=1&resourceVersionMatch=Exact", 422),
        ("sendInitialEvents=true", 422),
        ("watch=true&resourceVersionMatch=NotOlderThan", 422),
        ("watch=true&sendInitialEvents=true", 422),
        ("watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("limit=-1", 400),
        ("limit=x", 400),
        ("watch=maybe", 400),
        ("timeoutSeconds=soon", 400),
        ("allowWatchBookmarks=2", 400),
        ("labelSelector=a%20in", 400),
        ("labelSelector=%3D", 400),
        ("fieldSelector=x", 400),
        ("fieldSelector=data.x%3D1", 400),
    ],
)
async def test_options_that_make_no_sense(api: Api, query: str, code: int):
    await api.refused(code, "GET", f"{CMS}?{query}")


async def test_more_query_parameters_than_anybody_needs(api: Api):
    await api.refused(400, "GET", CMS, query="&".join(f"a{n}=1" for n in range(2000)))


@pytest.mark.parametrize("yes", ["true", "True", "TRUE", "1", "t"])
async def test_booleans_as_go_reads_them(api: Api, yes: str):
    assert (await api.raw("GET", CMS, query=f"watch={yes}")).stream is not None


# ---- selectors ----

FIELDS = [
    ("pods", "metadata.name", "one"),
    ("pods", "metadata.namespace", "default"),
    ("pods", "spec.nodeName", "n1"),
    ("pods", "spec.restartPolicy", "Never"),
    ("pods", "spec.schedulerName", "other"),
    ("pods", "spec.serviceAccountName", "default"),
    ("pods", "spec.hostNetwork", "false"),
    ("pods", "status.phase", "Running"),
    ("pods", "status.podIP", "10.0.0.1"),
    ("pods", "status.podIPs", "10.0.0.1"),
    ("pods", "status.nominatedNodeName", "n9"),
    ("secrets", "type", "example.com/x"),
    ("services", "spec.type", "ExternalName"),
    ("events", "reason", "Started"),
    ("events", "type", "Warning"),
    ("events", "involvedObject.kind", "Pod"),
    ("events", "involvedObject.name", "one"),
    ("events", "involvedObject.namespace", "default"),
    ("events", "involvedObject.uid", "u1"),
    ("events", "involvedObject.apiVersion", "v1"),
    ("events", "involvedObject.resourceVersion", "7"),
    ("events", "involvedObject.fieldPath", "spec.containers{main}"),
    ("events", "source", "agent"),
    ("events", "reportingComponent", "agent"),
]


async def selectable(api: Api) -> None:
    """One of each kind that is selected, and another that is not."""
    one = pod("one", nodeName="n1", restartPolicy="Never", schedulerName="other")
    await api.post(PODS, one)
    status = {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "nominatedNodeName": "n9"}
    await api.patch(f"{PODS}/one/status", {"status": status})
    involved = {
        "apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": "default", "uid": "u1", "resourceVersion": "7",
        "fieldPath": "spec.containers{main}",
    }  # fmt: skip
    events = "/api/v1/namespaces/default/events"
    event = {"metadata": {"name": "one"}, "involvedObject": involved, "reason": "Started", "type": "Warning"}
    await api.post(events, {**event, "source": {"component": "agent"}, "reportingComponent": "agent"})
    other = {"metadata": {"name": "other"}, "involvedObject": {"kind": "Node", "name": "n", "namespace": "default"}}
    await api.post(events, {**other, "type": "Normal"})
    await api.post("/api/v1/namespaces/default/secrets", {"metadata": {"name": "one"}, "type": "example.com/x"})
    await api.post("/api/v1/namespaces/default/secrets", {"metadata": {"name": "other"}})
    services = "/api/v1/namespaces/default/services"
    await api.post(services, {"metadata": {"name": "one"}, "spec": {"type": "ExternalName", "externalName": "a.b"}})
    await api.post(services, {"metadata": {"name": "other"}, "spec": {"ports": [{"port": 1}]}})


async def test_every_field_of_namespaced_kinds(api: Api):
    await selectable(api)
    for plural, field, value in FIELDS:
        path = f"/api/v1/namespaces/default/{plural}"
        for operator in ("=", "=="):
            found = await api.call("GET", path, query={"fieldSelector": f"{field}{operator}{value}"})
            assert found.status == 200, (field, found)
            assert "one" in found.names, field
            if field not in ("metadata.namespace", "involvedObject.namespace"):
                assert "other" not in found.names, field
        found = await api.call("GET", path, query={"fieldSelector": f"{field}!={value}"})
        assert "one" not in found.names, field


async def test_fields_of_cluster_kinds(api: Api):
    await api.post("/api/v1/nodes", {"metadata": {"name": "up"}})
    await api.post("/api/v1/nodes", {"metadata": {"name": "down"}, "spec": {"unschedulable": True}})
    nodes = await api.call("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue")
    assert nodes.names == ["down"]
    assert (await api.call("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable!%3Dtrue")).names == ["up"]
    active = await api.call("GET", "/api/v1/namespaces?fieldSelector=status.phase%3DActive")
    assert "default" in active.names
    assert (await api.call("GET", "/api/v1/namespaces?fieldSelector=status.phase%3DTerminating")).names == []


async def test_fields_of_events_mean_the_same_in_both_groups(api: Api):
    """The order of asking matters: what one group looked up must not answer for the other."""
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "source": {"component": "agent"},
        "reportingComponent": "agent",
        "type": "Normal",
        "reason": "Went",
    }
    await api.post("/api/v1/namespaces/default/events", body)
    new, old = "/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/namespaces/default/events"
    for path, field, value in (
        (old, "source", "agent"),
        (new, "reportingController", "agent"),
        (new, "regarding.name", "p"),
        (old, "involvedObject.name", "p"),
        (old, "reportingComponent", "agent"),
        (new, "reason", "Went"),
    ):
        assert (await api.call("GET", path, query={"fieldSelector": f"{field}={value}"})).names == ["e"], field


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (PODS, "spec.containers"),
        (PODS, "metadata.labels"),
        (CMS, "data.x"),
        ("/api/v1/nodes", "metadata.uid"),
        ("/apis/apps/v1/deployments", "spec.replicas"),
        ("/apis/events.k8s.io/v1/events", "involvedObject.name"),
        ("/api/v1/events", "regarding.name"),
    ],
)
async def test_fields_that_cannot_be_selected(api: Api, path: str, field: str):
    for verb in ("", "watch=true&"):
        assert field in (await api.refused(400, "GET", f"{path}?{verb}fieldSelector={field}%3D1")).message


async def test_each_version_of_a_custom_resource_has_its_own_selectable_fields(api: Api):
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}  # fmt: skip
    await api.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        crd(
            versions=[
                version("v1", schema=schema, selectableFields=[{"jsonPath": ".spec.a"}]),
                version("v2", schema=schema, storage=False, selectableFields=[{"jsonPath": ".spec.b"}]),
            ]
        ),
    )
    await api.post(WIDGETS, widget("w", spec={"a": "1", "b": "2"}))
    assert (await api.call("GET", f"{WIDGETS}?fieldSelector=spec.a%3D1")).names == ["w"]
    second = WIDGETS.replace("/v1/", "/v2/")
    assert (await api.call("GET", f"{second}?fieldSelector=spec.b%3D2")).names == ["w"]
    await api.refused(400, "GET", f"{second}?fieldSelector=spec.a%3D1")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier", ["b"]),
        ("app!=web", ["c", "d"]),
        ("!app", ["d"]),
        ("app in (web,db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier>3", ["b"]),
        ("app=nothing", []),
    ],
)
async def test_label_selectors(api: Api, selector: str, names: list[str]):
    for name, labels in (("a", {"app": "web"}), ("b", {"app": "web", "tier": "5"}), ("c", {"app": "db"}), ("d", None)):
        await api.config_map(name, labels=labels)
    assert (await api.call("GET", CMS, query={"labelSelector": selector})).names == names


async def test_a_name_as_field_selector(api: Api):
    await api.namespace("other")
    await some(api, "a", "b")
    await api.config_map("a", "other")
    assert (await api.call("GET", f"{CMS}?fieldSelector=metadata.name%3Da")).names == ["a"]
    both = await api.call("GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Da")
    assert [item["metadata"]["namespace"] for item in both.json["items"]] == ["default", "other"]
    one = await api.call("GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Da,metadata.namespace%3Dother")
    assert [item["metadata"]["namespace"] for item in one.json["items"]] == ["other"]
    assert (await api.call("GET", f"{CMS}?fieldSelector=metadata.name%3Dnone")).names == []
    assert (await api.call("GET", f"{CMS}?fieldSelector=metadata.name!%3Da")).names == ["b"]


# ---- shapes ----


async def test_an_empty_list_has_items(api: Api):
    for path in (CMS, "/api/v1/namespaces/nowhere/configmaps"):
        found = await api.get(path)
        assert found == {
            "kind": "ConfigMapList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(api.revision)},
            "items": [],
        }


async def test_a_table(api: Api):
    await some(api, "a", "b")
    table = await api.get(f"{CMS}?limit=1", headers=TABLE)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["a", 0]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert table["metadata"]["resourceVersion"] == str(api.revision)
    assert table["metadata"]["remainingItemCount"] == 1 and table["metadata"]["continue"]
    one = await api.get(f"{CMS}/b", headers=TABLE)
    assert [row["cells"][0] for row in one["rows"]] == ["b"] and one["columnDefinitions"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "ConfigMap")]
)
async def test_what_rows_include(api: Api, include: str, kind: str | None):
    await api.config_map("a", x="y")
    for path in (CMS, f"{CMS}/a"):
        row = (await api.get(f"{path}?includeObject={include}", headers=TABLE))["rows"][0]
        assert (row.get("object") or {}).get("kind") == kind
    await api.refused(400, "GET", f"{CMS}?includeObject=Everything", headers=TABLE)


async def test_metadata_only(api: Api):
    await api.config_map("a", x="y")
    found = await api.get(CMS, headers=PARTIAL)
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert set(found["items"][0]) == {"kind", "apiVersion", "metadata"}
    one = await api.get(f"{CMS}/a", headers={"accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"})
    assert one["kind"] == "PartialObjectMetadata" and one["metadata"]["name"] == "a"


async def test_yaml(api: Api):
    await api.config_map("a", x="y")
    answer = await api.call("GET", CMS, headers={"accept": "application/yaml"})
    assert answer.content_type == "application/yaml"
    found = yaml.safe_load(answer.body)
    assert found["kind"] == "ConfigMapList" and found["items"][0]["data"] == {"x": "y"}
    one = await api.call("GET", f"{CMS}/a", headers={"accept": "application/yaml"})
    assert yaml.safe_load(one.body)["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/json;stream=watch", 200),
        ("text/html, */*;q=0.1", 200),
        ("application/vnd.kubernetes.protobuf", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("application/json;as=Table;v=v9;g=meta.k8s.io", 406),
    ],
)
async def test_accepted_forms(api: Api, accept: str, status: int):
    assert (await api.call("GET", CMS, headers={"accept": accept})).status == status


async def test_quality_decides_between_forms(api: Api):
    accept = "application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io"
    assert (await api.get(CMS, headers={"accept": accept}))["kind"] == "Table"


async def test_names_that_are_no_names(api: Api):
    for name in ("..", "%00", "a b", "ä"):
        assert (await api.call("GET", f"{CMS}/{name}")).status == 404
    await api.refused(422, "POST", CMS, config_map("../x"))


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 5), (300, 3000), (2, list_body.PIECE), (2000, 1500)])
async def test_a_long_list_is_as_long_as_announced(count: int, size: int):
    head = b'{"items":['
    entry = ObjectEntry("", "x", b'{"metadata":{"uid":"u"},"data":"%b"}' % (b"x" * size), 1, 1)
    entries = [entry] * count
    whole = b"".join([piece async for piece in list_body.stored_pieces(head, entries)])
    assert whole == head + b",".join(each.raw for each in entries) + b"]}\n"
    assert len(whole) == list_body.stored_length(head, entries)
