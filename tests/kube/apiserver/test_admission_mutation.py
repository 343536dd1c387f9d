"""Mutating admission policies: what they change, what they may not change, and how they fail."""

from __future__ import annotations

from typing import Any

import pytest
from server_kit import CMS, CRDS, PODS, WIDGETS, Api, crd, widget

Object = dict[str, Any]
API = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{API}/mutatingadmissionpolicies"
BINDINGS = f"{API}/mutatingadmissionpolicybindings"
MAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
PODS_RULE = {**MAPS, "operations": ["CREATE"], "resources": ["pods"]}


def apply(expression: str) -> Object:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patch(expression: str) -> Object:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


async def bind(api: Api, name: str, *mutations: Object, rule: Object = MAPS, **spec: Any) -> None:
    match = {"resourceRules": [rule]}
    body = {"metadata": {"name": name}, "spec": {"matchConstraints": match, "mutations": list(mutations), **spec}}
    await api.post(POLICIES, body)
    await api.post(BINDINGS, {"metadata": {"name": f"{name}-binding"}, "spec": {"policyName": name}})


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def test_sidecar_of_the_documentation(api: Api):
    """The example of Kubernetes' documentation: an init container is added to pods that lack it."""
    sidecar = (
        "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{"
        "name: 'mesh-proxy', image: 'mesh/proxy:v1.0.0', args: ['proxy', 'sidecar'], restartPolicy: 'Always'}]}}"
    )
    conditions = [
        {"name": "lacks", "expression": "!object.spec.?initContainers.orValue([]).exists(c, c.name == 'mesh-proxy')"}
    ]
    answer = await api.call("POST", POLICIES, {
        "metadata": {"name": "sidecar"},
        "spec": {
            "matchConstraints": {"resourceRules": [PODS_RULE]}, "matchConditions": conditions, "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "mutations": [patch(
                "[JSONPatch{op: 'add', path: '/spec/initContainers', value: [Object.spec.initContainers{"
                "name: 'mesh-proxy', image: 'mesh/proxy:v1.0.0', restartPolicy: 'Always'}]}]"
            )],
        },
    })  # fmt: skip
    assert answer.status == 201, answer
    await api.post(BINDINGS, {"metadata": {"name": "sidecar"}, "spec": {"policyName": "sidecar"}})
    made = await api.post(PODS, pod("p"))
    (added,) = made["spec"]["initContainers"]
    assert added["name"] == "mesh-proxy" and added["imagePullPolicy"] == "IfNotPresent"
    assert [each["name"] for each in made["spec"]["containers"]] == ["c"]
    await api.ok("DELETE", f"{POLICIES}/sidecar")
    await bind(api, "second", apply(sidecar), rule=PODS_RULE)
    refused = await api.refused(403, "POST", PODS, pod("q"))
    assert "may not mutate atomic arrays, maps or structs: .spec.initContainers[0].args" in refused.message
    assert "policy 'second' with binding 'second-binding' denied request: error applying patch" in refused.message


async def test_mutations_of_a_policy_build_on_each_other(api: Api):
    await bind(
        api,
        "p",
        apply("Object{data: Object.data{a: object.data.a + '1'}}"),
        patch("[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('b.c'), value: object.data.a + '2'}]"),
        patch("[JSONPatch{op: 'test', path: '/data/a', value: 'none'}, JSONPatch{op: 'remove', path: '/data/a'}]"),
    )
    made = await api.post(CMS, config_map("c", a="0"))
    assert made["data"] == {"a": "01", "b.c": "012"}


async def test_policies_that_want_it_run_again(api: Api):
    again = {"reinvocationPolicy": "IfNeeded"}
    mark = "Object{{metadata: Object.metadata{{labels: Object.metadata.labels{{{0}: string(size(object.data))}}}}}}"
    await bind(api, "a-once", apply(mark.format("once")))
    await bind(api, "b-again", apply(mark.format("again")), **again)
    await bind(api, "c-adds", apply("Object{data: Object.data{more: 'x'}}"))
    made = await api.post(CMS, config_map("c", a="0"))
    assert made["metadata"]["labels"] == {"once": "1", "again": "2"}


async def test_what_the_server_sets_stays(api: Api):
    await bind(
        api,
        "p",
        patch(
            "[JSONPatch{op: 'replace', path: '/metadata/name', value: 'other'},"
            " JSONPatch{op: 'replace', path: '/metadata/uid', value: 'u'},"
            " JSONPatch{op: 'replace', path: '/kind', value: 'Secret'},"
            " JSONPatch{op: 'add', path: '/metadata/annotations', value: {'a': 'b'}}]"
        ),
    )
    made = await api.post(CMS, config_map("c"))
    assert made["metadata"]["name"] == "c" and made["metadata"]["uid"] != "u" and made["kind"] == "ConfigMap"
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert [each["manager"] for each in made["metadata"].get("managedFields", ())] != ["p"]


@pytest.mark.parametrize(
    "mutation",
    [
        patch("[JSONPatch{op: 'add', path: '/data', value: 'text'}]"),
        patch("[JSONPatch{op: 'add', path: '/data/a/b', value: 1}]"),
        patch("[JSONPatch{op: 'remove', path: '/metadata'}]"),
        patch("[JSONPatch{op: 'dance', path: '/data'}]"),
        patch("[JSONPatch{op: 'add', path: '/data/a', value: object.data.none}]"),
        patch("[JSONPatch{op: 'replace', path: '', value: 1}]"),
        apply("Object{nothing: 1}"),
        apply("Object{data: Object.data{a: 1}}"),
        apply("Object{data: Object.data{a: [1, 2].map(x, string(1 / 0))[0]}}"),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
async def test_mutations_that_fail(api: Api, mutation: Object, closed: bool):
    await bind(api, "p", mutation, failurePolicy="Fail" if closed else "Ignore")
    answer = await api.call("POST", CMS, config_map("c", a="0"))
    if closed:
        assert answer.status == 403 and "policy 'p' with binding 'p-binding' denied request" in answer.message, answer
    else:
        assert answer.status == 201 and answer.json["data"] == {"a": "0"}


@pytest.mark.parametrize(
    ("mutations", "field"),
    [
        ([], "spec.mutations"),
        ([{"patchType": "Magic"}], "spec.mutations[0].patchType"),
        ([{"patchType": "JSONPatch"}], "spec.mutations[0].jsonPatch.expression"),
        ([patch("['a']")], "spec.mutations[0].jsonPatch.expression"),
        ([patch("[JSONPatch{op: 1}]")], "spec.mutations[0].jsonPatch.expression"),
        ([patch("[JSONPatch{nothing: 'a'}]")], "spec.mutations[0].jsonPatch.expression"),
        ([apply("Object.spec{}")], "spec.mutations[0].applyConfiguration.expression"),
        ([apply("Object{spec: Object.status{}}")], "spec.mutations[0].applyConfiguration.expression"),
        ([apply("Thing{}")], "spec.mutations[0].applyConfiguration.expression"),
    ],
)
async def test_policies_that_are_refused(api: Api, mutations: list[Object], field: str):
    spec = {"matchConstraints": {"resourceRules": [MAPS]}, "mutations": mutations}
    answer = await api.refused(422, "POST", POLICIES, {"metadata": {"name": "p"}, "spec": spec})
    assert field in [cause["field"] for cause in answer.causes], answer


async def test_deletions_cannot_be_mutated(api: Api):
    rule = {**MAPS, "operations": ["DELETE"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "mutations": [apply("Object{}")]}
    answer = await api.refused(422, "POST", POLICIES, {"metadata": {"name": "p"}, "spec": spec})
    assert answer.causes[0]["field"] == "spec.matchConstraints.resourceRules[0].operations[0]"


async def test_custom_objects(api: Api):
    await api.post(CRDS, crd())
    rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["widgets"]}
    await bind(api, "p", apply("Object{spec: Object.spec{size: 3}}"), rule=rule)
    made = await api.post(WIDGETS, widget("w", spec={"colour": "red"}))
    assert made["spec"] == {"colour": "red", "size": 3}
