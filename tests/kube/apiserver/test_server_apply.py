"""Server-side apply over HTTP: creation, ownership, conflicts, force, removal, status, races."""

import asyncio

import pytest
from server_kit import APPLY, CMS, CRDS, WIDGETS, Api, config_map, crd, version, widget
from test_server_create import DEPLOYMENTS, deployment

D = {"apiVersion": "apps/v1", "kind": "Deployment"}


async def test_apply_creates_then_changes(api: Api):
    made = await api.apply(f"{CMS}/a", config_map("a", x="1"))
    assert made.status == 201 and made.json["metadata"]["uid"]
    (entry,) = made.json["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("me", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}
    changed = await api.apply(f"{CMS}/a", config_map("a", x="2", y="3"))
    assert changed.status == 200 and changed.json["data"] == {"x": "2", "y": "3"}
    assert changed.json["metadata"]["uid"] == made.json["metadata"]["uid"]


async def test_yaml_and_json_are_the_same(api: Api):
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: '1'\n"
    assert (await api.apply(f"{CMS}/a", body)).json["data"] == {"x": "1"}
    before = api.revision
    assert (await api.apply(f"{CMS}/a", config_map("a", x="1"))).status == 200
    assert api.revision == before, "the same again changes nothing"


async def test_the_name_may_be_left_to_the_path(api: Api):
    answer = await api.apply(f"{CMS}/a", {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "1"}})
    assert answer.status == 201 and answer.json["metadata"]["name"] == "a"


async def test_conflicts_name_the_owner_and_force_takes_over(api: Api):
    await api.apply(f"{CMS}/a", config_map("a", x="1", y="1"), "one")
    answer = await api.apply(f"{CMS}/a", config_map("a", x="2"), "two")
    assert answer.status == 409 and answer.reason == "Conflict"
    (cause,) = answer.causes
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x") and '"one"' in cause["message"]
    assert (await api.get(f"{CMS}/a"))["data"]["x"] == "1"
    forced = await api.apply(f"{CMS}/a", config_map("a", x="2"), "two", force=True)
    assert forced.json["data"] == {"x": "2", "y": "1"}
    owners = {entry["manager"]: entry["fieldsV1"] for entry in forced.json["metadata"]["managedFields"]}
    assert owners == {"one": {"f:data": {"f:y": {}}}, "two": {"f:data": {"f:x": {}}}}


async def test_equal_values_are_shared(api: Api):
    await api.apply(f"{CMS}/a", config_map("a", x="1"), "one")
    assert (await api.apply(f"{CMS}/a", config_map("a", x="1"), "two")).status == 200
    dropped = await api.apply(f"{CMS}/a", config_map("a"), "one")
    assert dropped.json["data"] == {"x": "1"}, "two still wants it"
    gone = await api.apply(f"{CMS}/a", config_map("a"), "two")
    assert not gone.json.get("data")


async def test_what_is_no_longer_applied_goes(api: Api):
    await api.apply(f"{CMS}/a", config_map("a", labels={"l": "1"}, x="1", y="2"))
    changed = await api.apply(f"{CMS}/a", config_map("a", y="2"))
    assert changed.json["data"] == {"y": "2"} and "labels" not in changed.json["metadata"]


async def test_updates_conflict_with_applies(api: Api):
    await api.apply(f"{CMS}/a", config_map("a", x="1"), "one")
    await api.patch(f"{CMS}/a?fieldManager=hand", {"data": {"x": "2"}})
    answer = await api.apply(f"{CMS}/a", config_map("a", x="3"), "one")
    assert answer.status == 409 and '"hand"' in answer.causes[0]["message"]


async def test_lists_are_merged_by_key(api: Api):
    first = {**D, **deployment("d")}
    await api.apply(f"{DEPLOYMENTS}/d", first, "one")
    sidecar = {"name": "side", "image": "s"}
    second = {**D, "metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [sidecar]}}}}
    both = await api.apply(f"{DEPLOYMENTS}/d", second, "two")
    assert both.status == 200, both
    assert [c["name"] for c in both.json["spec"]["template"]["spec"]["containers"]] == ["c", "side"]
    assert both.json["metadata"]["generation"] == 2
    left = await api.apply(f"{DEPLOYMENTS}/d", {**D, "metadata": {"name": "d"}}, "two")
    assert [c["name"] for c in left.json["spec"]["template"]["spec"]["containers"]] == ["c"]


async def test_status(api: Api):
    await api.apply(f"{DEPLOYMENTS}/d", {**D, **deployment("d")})
    body = {**D, "metadata": {"name": "d"}, "status": {"replicas": 3}}
    answer = await api.apply(f"{DEPLOYMENTS}/d/status", body, "agent")
    assert answer.json["status"]["replicas"] == 3
    entry = next(e for e in answer.json["metadata"]["managedFields"] if e["manager"] == "agent")
    assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:replicas": {}}})
    assert (await api.apply(f"{DEPLOYMENTS}/none/status", {**body, "metadata": {"name": "none"}})).status == 404


async def test_custom_resources(api: Api):
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer", "default": 1},
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port"],
                        "items": {
                            "type": "object",
                            "required": ["port"],
                            "properties": {"port": {"type": "integer"}, "name": {"type": "string"}},
                        },
                    },
                },
            }
        },
    }
    await api.post(CRDS, crd(versions=[version(schema=schema, subresources={"status": {}})]))
    made = await api.apply(f"{WIDGETS}/w", widget("w", spec={"ports": [{"port": 1, "name": "a"}]}), "one")
    assert made.status == 201 and made.json["spec"]["size"] == 1
    both = await api.apply(f"{WIDGETS}/w", widget("w", spec={"ports": [{"port": 2}]}), "two")
    assert [port["port"] for port in both.json["spec"]["ports"]] == [1, 2]
    clash = await api.apply(f"{WIDGETS}/w", widget("w", spec={"ports": [{"port": 1, "name": "b"}]}), "two")
    assert clash.status == 409 and clash.causes[0]["field"] == ".spec.ports[port=1].name"


@pytest.mark.parametrize(
    ("body", "query", "code", "words"),
    [
        (config_map("a"), "", 422, "fieldManager"),
        (config_map("b"), "fieldManager=x", 400, "name"),
        ({**config_map("a"), "kind": "Secret"}, "fieldManager=x", 400, "Secret"),
        (b"- 1", "fieldManager=x", 400, "one object"),
        (b"a: [", "fieldManager=x", 400, "YAML"),
        (b"", "fieldManager=x", 400, ""),
        (
            {**config_map("a"), "metadata": {"name": "a", "resourceVersion": "5"}},
            "fieldManager=x",
            409,
            "does not exist",
        ),
        ({**config_map("a"), "metadata": {"name": "a", "uid": "u"}}, "fieldManager=x", 409, "does not exist"),
        ({**config_map("a"), "metadata": {"name": "a", "managedFields": [{}]}}, "fieldManager=x", 400, "managedFields"),
        ({**config_map("a"), "metadata": "x"}, "fieldManager=x", 400, "metadata must be an object"),
        ({**config_map("a"), "metadata": []}, "fieldManager=x", 400, "metadata must be an object"),
        ({**config_map("a"), "oops": 1}, "fieldManager=x&fieldValidation=Strict", 400, "oops"),
        ({**config_map("a"), "data": {"x": 1}}, "fieldManager=x", 400, "data"),
        ({**config_map("a"), "metadata": {"name": "a", "labels": {"l": "no!"}}}, "fieldManager=x", 422, "labels"),
    ],
)
async def test_applies_that_are_refused(api: Api, body: object, query: str, code: int, words: str):
    answer = await api.refused(code, "PATCH", f"{CMS}/a?{query}", body, headers={"content-type": APPLY})
    assert words in answer.message
    await api.refused(404, "GET", f"{CMS}/a")


async def test_a_dry_run(api: Api):
    query = {"fieldManager": "me", "dryRun": "All"}
    headers = {"content-type": APPLY}
    shown = await api.call("PATCH", f"{CMS}/a", config_map("a", x="1"), query=query, headers=headers)
    assert shown.status == 201
    await api.refused(404, "GET", f"{CMS}/a")
    await api.apply(f"{CMS}/a", config_map("a", x="1"))
    shown = await api.call("PATCH", f"{CMS}/a", config_map("a", x="2"), query=query, headers=headers)
    assert shown.json["data"] == {"x": "2"}
    assert (await api.get(f"{CMS}/a"))["data"] == {"x": "1"}


async def test_managers_that_start_together_all_get_through(api: Api):
    applies = [api.apply(f"{CMS}/a", config_map("a", **{f"k{n}": "1"}), f"m{n}") for n in range(20)]
    answers = await asyncio.gather(*applies)
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert (await api.get(f"{CMS}/a"))["data"] == {f"k{n}": "1" for n in range(20)}


async def test_applying_against_deletion_always_ends_in_an_answer(api: Api):
    async def one(n: int) -> int:
        status = (await api.apply(f"{CMS}/a", config_map("a", **{f"k{n}": "1"}), f"m{n}")).status
        await api.call("DELETE", f"{CMS}/a")
        return status

    assert set(await asyncio.gather(*(one(n) for n in range(20)))) <= {200, 201}
