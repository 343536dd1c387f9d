"""Admission webhooks against a real HTTPS server: which are called, what they see, and what bad ones can do."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from server_kit import CMS, CRDS, PODS, Api, Settings, config_map, pod, serving
from webhook_server import WebhookServer, hang, webhook_server

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import MemorySink

Object = dict[str, Any]
GROUP = "/apis/admissionregistration.k8s.io/v1"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@pytest.fixture
async def hooks() -> AsyncIterator[WebhookServer]:
    async with webhook_server() as server:
        yield server


def rule(*resources: str, operations: tuple[str, ...] = ("*",), group: str = "", version: str = "v1") -> Object:
    return {
        "operations": list(operations),
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(resources or ("configmaps",)),
    }


def answer(review: Object, **response: Any) -> Object:
    return {
        "apiVersion": review["apiVersion"],
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": True, **response},
    }


def patching(*operations: Object) -> Callable[[Object], Object]:
    encoded = base64.b64encode(orjson.dumps(operations)).decode()
    return lambda review: answer(review, patch=encoded, patchType="JSONPatch")


def labelling(key: str, value: str = "yes") -> Callable[[Object], Object]:
    def behave(review: Object) -> Object:
        path = "/metadata/labels"
        if "labels" not in review["request"]["object"]["metadata"]:
            return patching({"op": "add", "path": path, "value": {key: value}})(review)
        return patching({"op": "add", "path": f"{path}/{key}", "value": value})(review)

    return behave


def denying(**status: Any) -> Callable[[Object], Object]:
    return lambda review: answer(review, allowed=False, **({"status": status} if status else {}))


async def register(
    api: Api, config: Object, *rules: Object, name: str = "hook", where: str = VALIDATING, **more: Any
) -> None:
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": config,
        "rules": list(rules or (rule(),)),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **more,
    }
    await api.post(where, {"metadata": {"name": name}, "webhooks": [webhook]})


# -- what is asked ------------------------------------------------------------------------------------------------


async def test_defaults_are_filled_in(api: Api) -> None:
    service = {"service": {"name": "s", "namespace": "n"}}
    await register(api, service, where=MUTATING)
    webhook = (await api.get(f"{MUTATING}/hook"))["webhooks"][0]
    assert webhook["failurePolicy"] == "Fail" and webhook["matchPolicy"] == "Equivalent"
    assert webhook["timeoutSeconds"] == 10 and webhook["reinvocationPolicy"] == "Never"
    assert webhook["namespaceSelector"] == {} and webhook["objectSelector"] == {}
    assert webhook["clientConfig"]["service"]["port"] == 443 and webhook["rules"][0]["scope"] == "*"
    assert (await api.get(f"{MUTATING}/hook"))["metadata"]["generation"] == 1


async def test_a_webhook_sees_the_whole_request(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/see", answer))
    user = UserInfo("jane", ("system:masters", "devs"), "u1", (("team", ("a", "b")),))
    await api.post(f"{CMS}?fieldManager=me", config_map("one", a="1"), user=user)
    (request,) = hooks.requests("/see")
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"} == request["requestKind"]
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert request["name"] == "one" and request["namespace"] == "default" and request["operation"] == "CREATE"
    assert request["userInfo"] == {
        "username": "jane",
        "uid": "u1",
        "groups": ["system:masters", "devs"],
        "extra": {"team": ["a", "b"]},
    }
    assert request["object"]["data"] == {"a": "1"} and request["oldObject"] is None and request["dryRun"] is False
    assert request["object"]["metadata"]["managedFields"][0]["manager"] == "me"
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"}
    path, review = hooks.reviews[0]
    assert path == "/see" and review["apiVersion"] == "admission.k8s.io/v1" and review["kind"] == "AdmissionReview"


async def test_update_and_delete_bring_the_old_object(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one", a="1")
    await register(api, hooks.on("/see", answer))
    await api.patch(f"{CMS}/one", {"data": {"a": "2"}})
    await api.ok("DELETE", f"{CMS}/one?gracePeriodSeconds=5")
    update, delete = hooks.requests("/see")
    assert update["operation"] == "UPDATE" and update["options"]["kind"] == "UpdateOptions"
    assert update["oldObject"]["data"] == {"a": "1"} and update["object"]["data"] == {"a": "2"}
    assert delete["operation"] == "DELETE" and delete["object"] is None and delete["oldObject"]["data"] == {"a": "2"}
    assert delete["options"]["gracePeriodSeconds"] == 5


async def test_each_object_of_a_collection_is_reviewed(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one")
    await api.config_map("two")
    await register(
        api,
        hooks.on("/no", lambda review: answer(review, allowed=review["request"]["name"] != "two")),
        rule(operations=("DELETE",)),
    )
    refused = await api.refused(400, "DELETE", CMS)
    assert "denied the request without explanation" in refused.message
    assert {request["name"] for request in hooks.requests("/no")} == {"one", "two"}
    assert (await api.call("GET", CMS)).names == ["two"]


async def test_dry_run_is_told(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/see", answer))
    await api.post(f"{CMS}?dryRun=All", config_map("one"))
    (request,) = hooks.requests("/see")
    assert request["dryRun"] is True and request["options"]["dryRun"] == ["All"]
    assert (await api.call("GET", f"{CMS}/one")).status == 404


async def test_the_older_review_version_is_spoken(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/old", answer), admissionReviewVersions=["v1beta1", "v1"])
    await api.config_map("one")
    assert hooks.reviews[0][1]["apiVersion"] == "admission.k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("resources", "operations", "asked"),
    [
        (("secrets",), ("*",), 0),
        (("configmaps",), ("CREATE",), 1),
        (("configmaps",), ("UPDATE", "DELETE"), 0),
        (("*",), ("*",), 1),
        (("*/*",), ("*",), 1),
        (("*/status",), ("*",), 0),
        (("configmaps/*",), ("*",), 1),
    ],
)
async def test_rules_choose(
    api: Api, hooks: WebhookServer, resources: tuple[str, ...], operations: tuple[str, ...], asked: int
) -> None:
    await register(api, hooks.on("/see", answer), rule(*resources, operations=operations))
    await api.config_map("one")
    assert len(hooks.reviews) == asked


async def test_scope_chooses(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/see", answer), {**rule("*"), "scope": "Cluster"})
    await api.config_map("one")
    await api.namespace("team")
    assert [(r["name"], r["namespace"]) for r in hooks.requests("/see")] == [("team", "team")]


async def test_selectors_choose(api: Api, hooks: WebhookServer) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "watched", "labels": {"watch": "yes"}}})
    chosen = {"matchLabels": {"watch": "yes"}}
    await register(api, hooks.on("/ns", answer), name="ns", namespaceSelector=chosen)
    await register(api, hooks.on("/obj", answer), name="obj", objectSelector=chosen)
    await api.config_map("one")
    await api.config_map("one", "watched")
    await api.config_map("two", labels={"watch": "yes"})
    # The label is taken off: the old object is still of the selection.
    await api.patch(f"{CMS}/two", {"metadata": {"labels": {"watch": None}}})
    assert [r["namespace"] for r in hooks.requests("/ns")] == ["watched"]
    assert [(r["name"], r["operation"]) for r in hooks.requests("/obj")] == [("two", "CREATE"), ("two", "UPDATE")]


async def test_match_conditions_choose(api: Api, hooks: WebhookServer) -> None:
    conditions = [
        {"name": "not-ours", "expression": "!request.userInfo.username.startsWith('system:')"},
        {"name": "data", "expression": "has(object.data) && object.data.size() > 1"},
        {
            "name": "may",
            "expression": "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()",
        },
    ]
    await register(api, hooks.on("/see", answer), matchConditions=conditions)
    await api.config_map("one", a="1")
    await api.config_map("two", a="1", b="2")
    assert [r["name"] for r in hooks.requests("/see")] == ["two"]


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
async def test_a_condition_that_cannot_be_evaluated_is_a_failure(
    api: Api, hooks: WebhookServer, policy: str, status: int
) -> None:
    conditions = [{"name": "broken", "expression": "object.nothing.here == 1"}]
    await register(api, hooks.on("/see", answer), matchConditions=conditions, failurePolicy=policy)
    assert (await api.call("POST", CMS, config_map("one"))).status == status
    assert not hooks.reviews


async def test_an_equivalent_version_is_shown_as_the_rules_name_it(api: Api, hooks: WebhookServer) -> None:
    scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
    config = hooks.on("/v1", labelling("seen"))
    await register(api, config, rule("horizontalpodautoscalers", group="autoscaling"), where=MUTATING)
    await register(
        api,
        hooks.on("/exact", answer),
        rule("horizontalpodautoscalers", group="autoscaling"),
        name="exact",
        matchPolicy="Exact",
    )
    target = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}
    made = await api.post(scalers, {"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "scaleTargetRef": target}})
    (request,) = hooks.requests("/v1")
    assert request["kind"]["version"] == "v1" and request["requestKind"]["version"] == "v2"
    assert request["object"]["apiVersion"] == "autoscaling/v1"
    assert made["apiVersion"] == "autoscaling/v2" and made["metadata"]["labels"] == {"seen": "yes"}
    assert not hooks.requests("/exact")


async def test_configurations_are_nobodys_to_review(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/no", denying()), {**rule("*/*"), "apiGroups": ["*"]})
    await api.refused(400, "POST", CMS, config_map("one"))
    await api.patch(f"{VALIDATING}/hook", {"metadata": {"labels": {"a": "b"}}})
    await api.ok("DELETE", f"{VALIDATING}/hook")
    await api.config_map("one")


DEPLOYMENT: Object = {
    "metadata": {"name": "d"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]},
    },
}


# -- sub-resources ------------------------------------------------------------------------------------------------


async def test_status_scale_and_bindings_are_reviewed(api: Api, hooks: WebhookServer) -> None:
    await api.post(DEPLOYMENTS, DEPLOYMENT)
    await api.post(PODS, pod("p"))
    subs = ("deployments/scale", "deployments/status", "pods/binding", "pods/eviction")
    await register(api, hooks.on("/see", answer), {**rule(*subs), "apiGroups": ["*"]})
    await api.patch(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 3}})
    await api.patch(f"{DEPLOYMENTS}/d/status", {"status": {"replicas": 3}})
    await api.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n"}})
    await api.post(f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    scale, status, binding, eviction = hooks.requests("/see")
    assert scale["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert scale["subResource"] == "scale" and scale["oldObject"]["spec"]["replicas"] == 1
    assert scale["object"]["spec"]["replicas"] == 3 and scale["operation"] == "UPDATE"
    assert status["subResource"] == "status" and status["object"]["status"]["replicas"] == 3
    assert binding["kind"]["kind"] == "Binding" and binding["operation"] == "CREATE"
    assert binding["object"]["target"]["name"] == "n" and binding["name"] == "p"
    assert eviction["kind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert eviction["resource"]["resource"] == "pods"


async def test_a_scale_can_be_changed(api: Api, hooks: WebhookServer) -> None:
    await api.post(DEPLOYMENTS, DEPLOYMENT)
    config = hooks.on("/two", patching({"op": "replace", "path": "/spec/replicas", "value": 2}))
    await register(api, config, rule("deployments/scale", group="apps"), where=MUTATING)
    assert (await api.patch(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 9}}))["spec"]["replicas"] == 2
    assert (await api.get(f"{DEPLOYMENTS}/d"))["spec"]["replicas"] == 2


async def test_connections_are_reviewed(api: Api, hooks: WebhookServer) -> None:
    await api.post(PODS, pod("p"))
    await register(api, hooks.on("/no", denying(message="no shells")), rule("pods/exec", operations=("CONNECT",)))
    refused = await api.refused(400, "POST", f"{PODS}/p/exec?command=sh&command=-c&stdin=true&container=main")
    assert refused.message == 'admission webhook "hook.example.com" denied the request: no shells'
    (request,) = hooks.requests("/no")
    assert request["operation"] == "CONNECT" and request["name"] == "p" and request["subResource"] == "exec"
    assert request["object"] == {
        "kind": "PodExecOptions",
        "apiVersion": "v1",
        "stdin": True,
        "container": "main",
        "command": ["sh", "-c"],
    }


async def test_proxied_requests_are_reviewed(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/no", denying()), rule("services/proxy", operations=("CONNECT",)))
    await api.refused(400, "GET", "/api/v1/namespaces/default/services/https:web:443/proxy/a/b")
    (request,) = hooks.requests("/no")
    assert request["name"] == "https:web:443" and request["resource"]["resource"] == "services"
    assert request["object"] == {"kind": "ServiceProxyOptions", "apiVersion": "v1", "path": "/a/b"}


# -- what a verdict does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({}, 400, "denied the request without explanation"),
        ({"message": "too big"}, 400, "denied the request: too big"),
        ({"reason": "Forbidden"}, 400, "denied the request: Forbidden"),
        ({"code": 403, "reason": "Forbidden", "message": "no"}, 403, "denied the request: no"),
        ({"code": 200, "message": "no"}, 400, "denied the request: no"),
        ({"code": 418, "message": "teapot"}, 418, "denied the request: teapot"),
    ],
)
async def test_a_denial_is_worded_as_kubernetes_does(
    api: Api, hooks: WebhookServer, status: Object, code: int, message: str
) -> None:
    await register(api, hooks.on("/no", denying(**status)))
    refused = await api.refused(code, "POST", CMS, config_map("one"))
    assert refused.message == f'admission webhook "hook.example.com" {message}'
    assert (await api.call("GET", f"{CMS}/one")).status == 404


async def test_warnings_and_audit_annotations_are_passed_on(hooks: WebhookServer) -> None:
    sink = MemorySink()
    async with serving(Settings(audit_sinks=[sink])) as api:
        config = hooks.on("/warn", lambda r: answer(r, warnings=["careful"], auditAnnotations={"why": "test"}))
        await register(api, config)
        made = await api.call("POST", CMS, config_map("one"))
        assert made.status == 201 and made.warnings() == ['299 - "careful"']
        event = next(each for each in sink.events if each.path == CMS)
        assert event.as_json()["annotations"] == {"hook.example.com/why": "test"}


async def test_mutations_are_defaulted_validated_and_nobodys(api: Api, hooks: WebhookServer) -> None:
    container = {"name": "sidecar", "image": "busybox", "ports": [{"containerPort": 80}]}
    config = hooks.on("/add", patching({"op": "add", "path": "/spec/containers/-", "value": container}))
    await register(api, config, rule("pods", operations=("CREATE",)), where=MUTATING)
    made = await api.post(f"{PODS}?fieldManager=me", pod("p"))
    added = made["spec"]["containers"][1]
    assert added["imagePullPolicy"] == "Always" and added["ports"][0]["protocol"] == "TCP"
    (entry,) = made["metadata"]["managedFields"]
    owned = entry["fieldsV1"]["f:spec"]["f:containers"]
    assert list(owned) == ['k:{"name":"main"}']
    # What built-in admission adds, webhooks see.
    assert hooks.requests("/add")[0]["object"]["spec"]["serviceAccountName"] == "default"


async def test_an_invalid_mutation_is_refused_as_invalid(api: Api, hooks: WebhookServer) -> None:
    config = hooks.on("/bad", patching({"op": "replace", "path": "/spec/containers/0/name", "value": "Not A Name"}))
    await register(api, config, rule("pods"), where=MUTATING)
    refused = await api.refused(422, "POST", PODS, pod("p"))
    assert "spec.containers[0].name" in refused.message


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ({"op": "replace", "path": "/metadata/name", "value": "other"}, "attempted to change metadata.name"),
        ({"op": "replace", "path": "/metadata/namespace", "value": "other"}, "attempted to change metadata.namespace"),
        ({"op": "replace", "path": "/metadata/uid", "value": "other"}, "attempted to change metadata.uid"),
        ({"op": "replace", "path": "/apiVersion", "value": "v2"}, "attempted to change apiVersion"),
        ({"op": "replace", "path": "/kind", "value": "Secret"}, "attempted to change kind"),
        ({"op": "remove", "path": "/metadata"}, "whose result is no object"),
        ({"op": "replace", "path": "", "value": []}, "cannot be applied"),
        ({"op": "remove", "path": "/not/there"}, "cannot be applied"),
        ({"op": "add", "path": "/data", "value": "text"}, "returned a patch"),
    ],
)
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_forbidden_changes_are_refused_whatever_the_policy(
    api: Api, hooks: WebhookServer, operation: Object, words: str, policy: str
) -> None:
    await register(api, hooks.on("/bad", patching(operation)), where=MUTATING, failurePolicy=policy)
    refused = await api.refused(500, "POST", CMS, config_map("one", a="1"))
    assert words in refused.message and 'webhook "hook.example.com"' in refused.message
    assert (await api.call("GET", f"{CMS}/one")).status == 404


async def test_what_the_server_owns_a_webhook_cannot_touch(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one", a="1")
    before = await api.get(f"{CMS}/one")
    operations = [
        {"op": "replace", "path": "/metadata/creationTimestamp", "value": "2001-01-01T00:00:00Z"},
        {"op": "add", "path": "/metadata/managedFields", "value": []},
        {"op": "add", "path": "/metadata/deletionTimestamp", "value": "2001-01-01T00:00:00Z"},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    ]
    await register(api, hooks.on("/sly", patching(*operations)), where=MUTATING)
    after = await api.patch(f"{CMS}/one", {"data": {"a": "2"}})
    assert after["metadata"]["creationTimestamp"] == before["metadata"]["creationTimestamp"]
    assert after["metadata"]["managedFields"] and "deletionTimestamp" not in after["metadata"]
    assert after["metadata"]["labels"] == {"a": "b"} and after["data"] == {"a": "2"}


async def test_mutating_webhooks_follow_each_other_by_name(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/b", labelling("b")), name="b", where=MUTATING)
    await register(api, hooks.on("/a", labelling("a")), name="a", where=MUTATING, reinvocationPolicy="IfNeeded")
    await register(api, hooks.on("/v", answer), name="v")
    made = await api.config_map("one")
    assert made["metadata"]["labels"] == {"a": "yes", "b": "yes"}
    assert [path for path, _ in hooks.reviews] == ["/a", "/b", "/a", "/v"]
    assert "labels" not in hooks.requests("/a")[0]["object"]["metadata"]
    assert hooks.requests("/a")[1]["object"]["metadata"]["labels"] == {"a": "yes", "b": "yes"}
    assert hooks.requests("/v")[0]["object"]["metadata"]["labels"] == {"a": "yes", "b": "yes"}


async def test_validating_webhooks_are_asked_at_once(api: Api, hooks: WebhookServer) -> None:
    both = asyncio.Barrier(2)

    async def together(review: Object) -> Object:
        await both.wait()
        return answer(review)

    await register(api, hooks.on("/a", together), name="a")
    await register(api, hooks.on("/b", together), name="b")
    await api.config_map("one")


async def test_an_apply_is_a_create_and_then_an_update(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/see", labelling("seen")), where=MUTATING)
    assert (await api.apply(f"{CMS}/one", config_map("one", a="1"))).status == 201
    again = await api.apply(f"{CMS}/one", config_map("one", a="2"))
    assert again.status == 200 and again.json["metadata"]["labels"] == {"seen": "yes"}
    assert [r["operation"] for r in hooks.requests("/see")] == ["CREATE", "UPDATE"]
    (entry,) = again.json["metadata"]["managedFields"]
    assert entry["operation"] == "Apply" and "f:metadata" not in entry["fieldsV1"]


async def test_a_patch_of_a_deletion_is_an_error(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one")
    config = hooks.on("/bad", patching({"op": "add", "path": "/data", "value": {}}))
    await register(api, config, rule(operations=("DELETE",)), where=MUTATING)
    refused = await api.refused(500, "DELETE", f"{CMS}/one")
    assert "attempted to modify the object, which is not supported for this operation" in refused.message


async def test_custom_resources_are_reviewed(api: Api, hooks: WebhookServer) -> None:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    definition = {"group": "x.example", "scope": "Namespaced", "names": names, "versions": [version]}
    await api.post(CRDS, {"metadata": {"name": "widgets.x.example"}, "spec": definition})
    path = "/apis/x.example/v1/namespaces/default/widgets"
    operations = [{"op": "add", "path": "/spec", "value": {"unknown": 1}}]
    await register(api, hooks.on("/w", patching(*operations)), rule("widgets", group="x.example"), where=MUTATING)
    made = await api.post(path, {"apiVersion": "x.example/v1", "kind": "Widget", "metadata": {"name": "w"}})
    assert made["spec"] == {"size": 1}


# -- bad webhooks -------------------------------------------------------------------------------------------------


def other_object(review: Object) -> Object:
    return {**answer(review), "kind": "Pod", "apiVersion": "v1"}


BAD: dict[str, tuple[Callable[[Object], Any], str]] = {
    "hangs": (hang, "context deadline exceeded"),
    "closes": (lambda _: None, "EOF"),
    "lies about the uid": (lambda r: answer(r, uid="other"), "expected response.uid="),
    "answers another object": (other_object, "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"),
    "answers nothing": (lambda r: {**answer(r), "response": None}, "webhook response was absent"),
    "answers no json": (lambda _: (200, {}, b"<html>"), "couldn't decode"),
    "answers a list": (lambda _: [], "is no AdmissionReview"),
    "redirects": (lambda _: (307, {"Location": "https://127.0.0.1/"}, b""), "redirects are not followed"),
    "answers 10 MB": (lambda _: (200, {}, b" " * (10 << 20)), "larger than"),
    "breaks": (lambda _: (500, {}, b"oops"), "the server answered 500: oops"),
    "patches without a type": (lambda r: answer(r, patch="W10="), "not response.patchType"),
    "patches otherwise": (lambda r: answer(r, patch="e30=", patchType="Merge"), "invalid response.patchType"),
    "patches no json": (lambda r: answer(r, patch="eA==", patchType="JSONPatch"), "no JSON in base64"),
    "patches no list": (lambda r: answer(r, patch="e30=", patchType="JSONPatch"), "no list of operations"),
    "warns wrongly": (lambda r: answer(r, warnings="x"), "response.warnings"),
    "allows wrongly": (lambda r: answer(r, allowed="yes"), "response.allowed"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_webhook_fails_or_is_ignored(api: Api, hooks: WebhookServer, name: str) -> None:
    behaviour, words = BAD[name]
    await register(api, hooks.on("/bad", behaviour), where=MUTATING, timeoutSeconds=1)
    refused = await api.refused(500, "POST", CMS, config_map("one"))
    assert refused.message.startswith('Internal error occurred: failed calling webhook "hook.example.com": ')
    assert words in refused.message, refused.message
    await api.ok("DELETE", f"{MUTATING}/hook")
    await register(api, hooks.on("/bad", behaviour), where=MUTATING, timeoutSeconds=1, failurePolicy="Ignore")
    await api.config_map("one")


async def test_a_validating_webhook_may_not_patch(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/bad", labelling("x")))
    refused = await api.refused(500, "POST", CMS, config_map("one"))
    assert "validating webhook may not return response.patch" in refused.message


async def test_a_certificate_of_somebody_else_is_not_trusted(api: Api, hooks: WebhookServer) -> None:
    async with webhook_server() as other:
        config = {**hooks.on("/ok", answer), "caBundle": other.ca_bundle}
        await register(api, config)
        refused = await api.refused(500, "POST", CMS, config_map("one"))
        assert "tls: failed to verify certificate: x509:" in refused.message and not hooks.reviews


async def test_a_service_that_is_not_there_is_told(api: Api) -> None:
    await register(api, {"service": {"name": "gone", "namespace": "default"}})
    refused = await api.refused(500, "POST", CMS, config_map("one"))
    assert refused.message == (
        'Internal error occurred: failed calling webhook "hook.example.com": failed to call webhook: '
        'Post "https://gone.default.svc:443/?timeout=10s": service "gone" not found'
    )


async def test_failures_are_counted(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/no", denying(code=403)), name="no")
    await api.refused(403, "POST", CMS, config_map("one"))
    await api.ok("DELETE", f"{VALIDATING}/no")
    await register(api, hooks.on("/off", lambda _: None), name="off", failurePolicy="Ignore")
    await api.config_map("one")
    text = (await api.raw("GET", "/metrics")).body.decode()
    labels = 'name="no.example.com",type="validating",operation="CREATE"'
    assert (
        f'apiserver_admission_webhook_rejection_count{{{labels},error_type="no_error",rejection_code="403"}} 1' in text
    )
    assert f'apiserver_admission_webhook_request_total{{{labels},code="403",rejected="true"}} 1' in text
    assert 'apiserver_admission_webhook_fail_open_count{name="off.example.com",type="validating"} 1' in text


# -- time and other writers ---------------------------------------------------------------------------------------


class Slow:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, review: Object) -> Object:
        self.asked.set()
        await self.go.wait()
        return answer(review)


async def test_a_slow_webhook_holds_up_nobody_else(api: Api, hooks: WebhookServer) -> None:
    await api.post(
        "/api/v1/namespaces/default/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "2"}}}
    )
    slow = Slow()
    only = [{"name": "slow", "expression": "object.metadata.name == 'slow'"}]
    await register(api, hooks.on("/slow", slow), matchConditions=only)
    waiting = asyncio.create_task(api.call("POST", CMS, config_map("slow")))
    await slow.asked.wait()
    # Neither other objects nor the room in a quota wait for it.
    await api.config_map("other")
    await api.config_map("another")
    assert (await api.call("GET", CMS)).names == ["another", "other"]
    slow.go.set()
    assert "exceeded quota" in (await waiting).message


async def test_a_write_is_done_again_when_the_object_changed_meanwhile(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one", a="1")
    slow = Slow()
    only = [{"name": "a", "expression": "object.data.a == '2'"}]
    await register(api, hooks.on("/slow", slow), matchConditions=only)
    waiting = asyncio.create_task(api.patch(f"{CMS}/one", {"data": {"a": "2"}}))
    await slow.asked.wait()
    await api.patch(f"{CMS}/one", {"data": {"b": "from somebody else"}})
    slow.go.set()
    assert (await waiting)["data"] == {"a": "2", "b": "from somebody else"}
    first, second = hooks.requests("/slow")
    assert "b" not in first["object"]["data"] and second["oldObject"]["data"]["b"] == "from somebody else"


async def test_a_write_of_an_old_version_stays_a_conflict(api: Api, hooks: WebhookServer) -> None:
    one = await api.config_map("one", a="1")
    slow = Slow()
    only = [{"name": "a", "expression": "object.data.a == '2'"}]
    await register(api, hooks.on("/slow", slow), matchConditions=only)
    waiting = asyncio.create_task(api.call("PUT", f"{CMS}/one", {**one, "data": {"a": "2"}}))
    await slow.asked.wait()
    await api.patch(f"{CMS}/one", {"data": {"b": "x"}})
    slow.go.set()
    assert (await waiting).status == 409
    assert (await api.get(f"{CMS}/one"))["data"] == {"a": "1", "b": "x"}


async def test_an_object_that_never_rests_is_a_conflict(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one", a="0")
    count = 0

    async def disturb(review: Object) -> Object:
        nonlocal count
        count += 1
        await api.patch(f"{CMS}/one", {"data": {"b": str(count)}})
        return answer(review)

    only = [{"name": "a", "expression": "object.data.a == '2'"}]
    await register(api, hooks.on("/disturb", disturb), matchConditions=only)
    refused = await api.refused(
        409, "PATCH", f"{CMS}/one", {"data": {"a": "2"}}, headers={"content-type": "application/merge-patch+json"}
    )
    assert "the object has been modified" in refused.message and count == 5


async def test_a_deletion_waits_for_its_webhook_and_sees_the_newest_object(api: Api, hooks: WebhookServer) -> None:
    await api.config_map("one", a="1")
    slow = Slow()
    await register(api, hooks.on("/slow", slow), rule(operations=("DELETE",)))
    waiting = asyncio.create_task(api.ok("DELETE", f"{CMS}/one"))
    await slow.asked.wait()
    await api.patch(f"{CMS}/one", {"data": {"a": "2"}})
    slow.go.set()
    await waiting
    assert [r["oldObject"]["data"]["a"] for r in hooks.requests("/slow")] == ["1", "2"]


async def test_a_restart_finds_the_configurations(hooks: WebhookServer) -> None:
    async with serving() as api:
        await register(api, hooks.on("/no", denying()))
        await api.server.stop()
        await api.server.start()
        await api.refused(400, "POST", CMS, config_map("one"))


async def test_without_a_match_nothing_is_called(api: Api, hooks: WebhookServer) -> None:
    await register(api, hooks.on("/no", denying()), rule("secrets"))
    await api.config_map("one")
    await api.patch(f"{CMS}/one", {"data": {"a": "1"}})
    await api.ok("DELETE", f"{CMS}/one")
    assert hooks.connections == 0


def test_a_server_without_webhooks_loads_nothing_of_them() -> None:
    script = """
import asyncio, sys
from coterie.http.messages import Request, UserInfo
from coterie.kube.apiserver.server import ApiServer
from coterie.kube.store.memory import MemoryStore
async def main():
    store = MemoryStore()
    await store.open()
    server = ApiServer(store)
    await server.start()
    path, user = "/api/v1/namespaces/default/configmaps", UserInfo("admin", ("system:masters",))
    made = await server.call(Request("POST", path, body=b'{"metadata":{"name":"a"}}', user=user))
    gone = await server.call(Request("DELETE", path + "/a", user=user))
    assert (made.status, gone.status) == (201, 200)
    await server.stop()
asyncio.run(main())
package = "coterie.kube.apiserver."
print(*sorted(name for name in sys.modules if name.startswith((package + "webhooks.", package + "outgoing"))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["coterie.kube.apiserver.webhooks.registry"]
