"""create: names, identities, what is refused, dry runs, races."""

import asyncio
import re

import orjson
import pytest
from server_kit import CMS, CRDS, IN_PROCESS, PODS, WIDGETS, Api, config_map, crd, pod, serving, version, widget

from coterie.kube.apiserver.server import Settings

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


async def test_what_the_server_adds(api: Api):
    answer = await api.call("POST", CMS, config_map("a", x="1"))
    made = answer.json
    assert answer.status == 201
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")
    metadata = made["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", metadata["uid"])
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert metadata["resourceVersion"] == str(api.revision)
    assert metadata["namespace"] == "default"
    assert await api.get(f"{CMS}/a") == made


async def test_what_only_the_server_may_set(api: Api):
    body = config_map("a")
    body["metadata"] |= {
        "uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7, "selfLink": "/x",
        "deletionTimestamp": "2000-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5,
    }  # fmt: skip
    metadata = (await api.post(CMS, body))["metadata"]
    assert metadata["uid"] != "mine" and metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert not {"generation", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} & set(metadata)


async def test_kind_and_version_may_be_left_out(api: Api):
    made = await api.post(CMS, {"metadata": {"name": "a"}})
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")


async def test_generated_names(api: Api):
    made = [await api.post(CMS, {"metadata": {"generateName": "job-"}}) for _ in range(3)]
    names = {obj["metadata"]["name"] for obj in made}
    assert len(names) == 3 and all(re.fullmatch(r"job-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)
    assert made[0]["metadata"]["generateName"] == "job-"
    named = await api.post(CMS, {"metadata": {"name": "given", "generateName": "job-"}})
    assert named["metadata"]["name"] == "given"


async def test_a_long_prefix_is_cut_so_that_the_name_is_a_label(api: Api):
    made = await api.post(CMS, {"metadata": {"generateName": "x" * 200}})
    assert made["metadata"]["name"].startswith("x" * 58) and len(made["metadata"]["name"]) == 63


async def test_a_generated_name_that_is_taken_is_made_again(api: Api, monkeypatch: pytest.MonkeyPatch):
    suffixes = iter(["aaaaa", "aaaaa", "bbbbb"])
    monkeypatch.setattr("coterie.base.ids.suffix", lambda: next(suffixes))
    made = [(await api.post(CMS, {"metadata": {"generateName": "g-"}}))["metadata"]["name"] for _ in range(2)]
    assert made == ["g-aaaaa", "g-bbbbb"]


async def test_the_same_name_twice(api: Api):
    await api.config_map("a")
    answer = await api.refused(409, "POST", CMS, config_map("a"))
    assert answer.reason == "AlreadyExists"
    assert answer.message == 'configmaps "a" already exists'
    assert answer.json["details"] == {"name": "a", "kind": "configmaps"}


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"metadata": {}}, 422, "name or generateName is required"),
        ({}, 422, "name or generateName is required"),
        ({"metadata": {"name": "A_b"}}, 422, "metadata.name"),
        ({"metadata": {"name": "x" * 254}}, 422, "metadata.name"),
        ({"metadata": {"name": ""}}, 422, "name or generateName is required"),
        ({"metadata": {"name": 1}}, 400, "metadata.name"),
        ({"metadata": []}, 400, "metadata"),
        ({"metadata": None, "kind": "ConfigMap"}, 422, "name"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "does not match the namespace"),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, 400, "resourceVersion should not be set"),
        ({"metadata": {"name": "a", "labels": {"a b": "c"}}}, 422, "metadata.labels"),
        ({"metadata": {"name": "a", "labels": {"a": 1}}}, 400, "labels"),
        ({"metadata": {"name": "a", "annotations": {"x": "y" * 300_000}}}, 422, "metadata.annotations"),
        ({"metadata": {"name": "a", "finalizers": ["no slash"]}}, 422, "metadata.finalizers"),
        ({"kind": "Secret", "metadata": {"name": "a"}}, 400, "Secret"),
        ({"kind": 5, "metadata": {"name": "a"}}, 400, "cannot be handled"),
        ({"apiVersion": "v2", "metadata": {"name": "a"}}, 400, "v2"),
        ({"metadata": {"name": "a"}, "data": {"x": 1}}, 400, "data"),
        ({"metadata": {"name": "a"}, "data": []}, 400, "data"),
        ({"metadata": {"name": "a"}, "data": {"a/b": "c"}}, 422, "data"),
        ([], 400, "one JSON object"),
        ("text", 400, "one JSON object"),
        (b"{", 400, "not valid JSON"),
        (b"", 400, "no body"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b'{"metadata":{"name":"\\ud800"}}', 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b"[" * 500 + b"]" * 500, 400, "nested deeper"),
        (b'{"metadata":{"name":"a"},"data":' + b'{"a":' * 300 + b"1" + b"}" * 301, 400, "nested deeper"),
    ],
)
async def test_bodies_that_are_refused(api: Api, body: object, code: int, words: str):
    before = api.revision
    assert words in (await api.refused(code, "POST", CMS, body)).message
    assert api.revision == before


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json; charset=utf-8", b'{"metadata":{"name":"a"}}', 201),
        ("", b'{"metadata":{"name":"a"}}', 201),
        ("application/yaml", b"metadata:\n  name: a\n", 201),
        ("application/yaml", b"metadata:\n  name: a\ndata:\n  when: 2026-01-01\n", 201),
        ("application/yaml", b"a: &x 1\nb: *x\n", 400),
        ("application/yaml", b"a: [1\n", 400),
        ("application/yaml", b"- 1\n", 400),
        ("application/yaml", b"\xff", 400),
        ("application/yaml", b"[" * 5000, 400),
        ("application/yaml", b"{1: 2}", 422),
        ("text/plain", b"{}", 415),
        ("application/merge-patch+json", b"{}", 415),
        ("application/vnd.kubernetes.protobuf", b"k8s\0\xff\xff", 400),
        ("application/vnd.kubernetes.protobuf", b"{}", 400),
    ],
)
async def test_forms_of_bodies(api: Api, content_type: str, body: bytes, code: int):
    assert (await api.call("POST", CMS, body, headers={"content-type": content_type})).status == code


async def test_the_place_must_fit_the_kind(api: Api):
    await api.refused(405, "POST", "/api/v1/configmaps", config_map("a"))
    await api.refused(405, "DELETE", "/api/v1/configmaps")
    await api.refused(404, "POST", "/api/v1/namespaces/default/nodes", {"metadata": {"name": "n"}})
    await api.refused(404, "GET", "/api/v1/namespaces/default/namespaces")
    await api.refused(404, "GET", "/api/v1/configmaps/a")
    await api.refused(404, "POST", "/api/v2/namespaces/default/configmaps", config_map("a"))
    await api.refused(405, "POST", f"{CMS}/a", config_map("a"))
    await api.refused(405, "PUT", CMS, config_map("a"))
    await api.refused(405, "OPTIONS", CMS)
    await api.refused(405, "DELETE", "/api/v1/namespaces")
    node = {"metadata": {"name": "n", "namespace": "default"}}
    assert "metadata.namespace" in (await api.refused(400, "POST", "/api/v1/nodes", node)).message


async def test_paths_behind_a_subresource_lead_nowhere(api: Api):
    await api.post(PODS, pod("p"))
    for rest in ("p/status/more", "p/nothing", "p/status/"):
        await api.refused(404, "GET", f"{PODS}/{rest}")


# ---- unknown and repeated fields ----


@pytest.mark.parametrize("kind", ["built-in", "custom"])
async def test_unknown_fields(api: Api, kind: str):
    if kind == "built-in":
        path, body = DEPLOYMENTS, deployment("a")
        body["spec"]["template"]["spec"]["oops"] = 1
        field = "spec.template.spec.oops"
    else:
        schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}
        await api.post(CRDS, crd(versions=[version(schema=schema)]))
        path, body, field = WIDGETS, widget("a", spec={"a": "1", "oops": 2}), "spec.oops"
    strict = await api.refused(400, "POST", f"{path}?fieldValidation=Strict", body)
    assert strict.message.endswith(f'strict decoding error: unknown field "{field}"')
    silent = await api.call("POST", f"{path}?fieldValidation=Ignore&dryRun=All", body)
    assert silent.status == 201 and silent.warnings() == []
    for query in ("dryRun=All", "fieldValidation=Warn"):
        warned = await api.call("POST", f"{path}?{query}", body)
        assert warned.status == 201
        assert warned.warnings() == [f'299 - "unknown field \\"{field}\\""']
    assert b"oops" not in (await api.call("GET", f"{path}/a")).body.replace(b'"f:oops"', b"")
    assert "fieldValidation" in (await api.refused(422, "POST", f"{path}?fieldValidation=Maybe", body)).message


async def test_very_many_warnings_are_cut(api: Api):
    body = config_map("a") | {f"unknown{n}": n for n in range(5000)}
    answer = await api.call("POST", CMS, body)
    assert answer.status == 201
    assert 0 < len(answer.warnings()) <= 50 and sum(map(len, answer.warnings())) < 8192


async def test_repeated_fields(api: Api):
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"}}'
    assert 'duplicate field "x"' in (await api.refused(400, "POST", f"{CMS}?fieldValidation=Strict", body)).message
    warned = await api.call("POST", f"{CMS}?fieldValidation=Warn&dryRun=All", body)
    assert warned.status == 201 and 'duplicate field \\"x\\"' in warned.warnings()[0]
    made = await api.post(f"{CMS}?fieldValidation=Ignore", body)
    assert made["data"] == {"x": "2"}, "the last one counts"


# ---- dry runs ----


async def test_a_dry_run_shows_and_stores_nothing(api: Api):
    watch, before = await api.watch(CMS), api.revision
    made = await api.post(f"{CMS}?dryRun=All", config_map("a", x="1"))
    assert made["metadata"]["uid"] and made["data"] == {"x": "1"} and "resourceVersion" not in made["metadata"]
    assert api.revision == before and watch.told() == []
    await api.refused(404, "GET", f"{CMS}/a")
    await api.config_map("a")
    await api.refused(409, "POST", f"{CMS}?dryRun=All", config_map("a"))
    assert "dryRun" in (await api.refused(422, "POST", f"{CMS}?dryRun=Some", config_map("b"))).message


# ---- defaults and statuses ----


def deployment(name: str) -> dict:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


async def test_defaults_generation_and_status(api: Api):
    made = await api.post(DEPLOYMENTS, {**deployment("d"), "status": {"replicas": 9}})
    assert made["spec"]["replicas"] == 1 and made["spec"]["strategy"]["type"] == "RollingUpdate"
    assert made["metadata"]["generation"] == 1
    assert "replicas" not in made["status"]
    validated = await api.refused(422, "POST", DEPLOYMENTS, {"metadata": {"name": "x"}, "spec": {}})
    assert {"spec.selector", "spec.template"} <= {cause["field"] for cause in validated.causes}
    assert validated.json["details"]["group"] == "apps"


async def test_managers_are_recorded(api: Api):
    made = await api.post(CMS, config_map("a", x="1"), headers={"user-agent": "kubectl/v1.30.0 (linux)"})
    (entry,) = made["metadata"]["managedFields"]
    assert entry == {
        "manager": "kubectl",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-02T03:04:05Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {".": {}, "f:x": {}}},
    }
    named = await api.post(f"{CMS}?fieldManager=robot", config_map("b", x="1"))
    assert named["metadata"]["managedFields"][0]["manager"] == "robot"
    await api.refused(422, "POST", CMS, config_map("c"), query={"fieldManager": "x" * 129})
    await api.refused(422, "POST", CMS, config_map("c"), query={"fieldManager": "\x01"})


# ---- races ----


async def test_of_many_creators_one_wins(api: Api):
    answers = await asyncio.gather(*(api.call("POST", CMS, config_map("a", by=str(n))) for n in range(40)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 39
    winner = next(answer for answer in answers if answer.status == 201)
    assert await api.get(f"{CMS}/a") == winner.json


@IN_PROCESS
async def test_a_client_that_goes_away_still_gets_its_object(api: Api):
    task = asyncio.create_task(api.call("POST", CMS, config_map("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    await api.get(f"{CMS}/a")
    await api.patch(f"{CMS}/a", {"data": {"x": "1"}})
    assert api.server.state._busy == {}


async def test_big_and_foreign_text_survives(api: Api):
    text = 'größe 🦀 \u2028 \\ " \t' + "x" * 200_000
    made = await api.config_map("a", text=text)
    assert made["data"]["text"] == text
    assert orjson.loads(orjson.dumps(await api.get(f"{CMS}/a")))["data"]["text"] == text


@pytest.mark.parametrize("version", ["0", "v1", "", "-1"])
async def test_a_resource_version_that_is_no_revision_is_none(api: Api, version: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": version}}
    assert (await api.post(CMS, body))["metadata"]["name"] == "a"


async def test_base64_may_have_line_breaks_and_keeps_none(api: Api) -> None:
    data = {"key": "aGVs\nbG8g\r\nd29ybGQ="}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data}
    made = await api.post("/api/v1/namespaces/default/secrets", body)
    assert made["data"] == {"key": "aGVsbG8gd29ybGQ="}
    bad = {**body, "metadata": {"name": "t"}, "data": {"key": "aGV\ns!"}}
    await api.refused(400, "POST", "/api/v1/namespaces/default/secrets", bad)


async def test_pods_get_the_default_tolerations():
    def seconds(found: dict) -> dict[str, object]:
        return {each.get("key", ""): each.get("tolerationSeconds") for each in found["spec"]["tolerations"]}

    async with serving(Settings(toleration_seconds=7)) as api:
        made = await api.post(PODS, pod("a"))
        ready, reachable = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
        assert seconds(made) == {ready: 7, reachable: 7}
        assert all(
            (each["operator"], each["effect"]) == ("Exists", "NoExecute") for each in made["spec"]["tolerations"]
        )
        # They belong to nobody, and an update that leaves them out keeps them.
        assert "tolerations" not in str(made["metadata"]["managedFields"])
        del made["spec"]["tolerations"]
        assert seconds(await api.put(f"{PODS}/a", made)) == {ready: 7, reachable: 7}
        own = {"key": ready, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
        assert seconds(await api.post(PODS, pod("b", tolerations=[own]))) == {ready: 60, reachable: 7}
        assert seconds(await api.post(PODS, pod("c", tolerations=[{"operator": "Exists"}]))) == {"": None}
        other = {"key": ready, "operator": "Exists", "effect": "NoSchedule"}
        assert len((await api.post(PODS, pod("d", tolerations=[other])))["spec"]["tolerations"]) == 3
