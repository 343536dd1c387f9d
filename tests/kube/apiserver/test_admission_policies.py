"""Admission policies on a server: the examples of Kubernetes' documentation, and what can go wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from server_kit import CMS, CRDS, MERGE, PODS, WIDGETS, Api, crd, pod, serving, widget

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import MemorySink
from coterie.kube.apiserver.server import Settings

Object = dict[str, Any]
API = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{API}/validatingadmissionpolicies"
BINDINGS = f"{API}/validatingadmissionpolicybindings"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NAMESPACES = "/api/v1/namespaces"


def rule(*resources: str, group: str = "", operations: tuple[str, ...] = ("CREATE", "UPDATE"), **more: Any) -> Object:
    return {
        "apiGroups": [group], "apiVersions": ["v1"], "operations": list(operations), "resources": list(resources),
        **more,
    }  # fmt: skip


def policy(name: str, *rules: Object, **spec: Any) -> Object:
    match = {"resourceRules": list(rules or (rule("configmaps"),)), **spec.pop("match", {})}
    return {"metadata": {"name": name}, "spec": {"matchConstraints": match, **spec}}


def binding(name: str, to: str, *actions: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"policyName": to, "validationActions": list(actions or ("Deny",)), **spec},
    }


def check(expression: str, **more: Any) -> Object:
    return {"expression": expression, **more}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "data": data or {}}


def deployment(name: str, replicas: int, image: str = "example.com/nginx") -> Object:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod},
    }


async def bind(api: Api, made: Object, *actions: str, **spec: Any) -> None:
    name = made["metadata"]["name"]
    await api.post(POLICIES, made)
    await api.post(BINDINGS, binding(f"{name}-binding", name, *actions, **spec))


# ---- the documentation's examples ----


async def test_replicas_are_limited(api: Api):
    made = policy(
        "demo-policy.example.com",
        rule("deployments", group="apps"),
        failurePolicy="Fail",
        validations=[check("object.spec.replicas <= 5")],
    )
    await api.post(POLICIES, made)
    await api.post(DEPLOYMENTS, deployment("unbound", 6))
    selector = {"matchLabels": {"environment": "test"}}
    await api.post(
        BINDINGS,
        binding(
            "demo-binding-test.example.com", "demo-policy.example.com", matchResources={"namespaceSelector": selector}
        ),
    )
    await api.post(DEPLOYMENTS, deployment("elsewhere", 6))
    await api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": {"environment": "test"}}})
    answer = await api.refused(422, "POST", DEPLOYMENTS, deployment("nginx", 6))
    said_by = "ValidatingAdmissionPolicy 'demo-policy.example.com' with binding 'demo-binding-test.example.com'"
    why = f"{said_by} denied request: failed expression: object.spec.replicas <= 5"
    assert answer.message == f'deployments.apps "nginx" is forbidden: {why}'
    assert answer.reason == "Invalid" and answer.causes == [{"message": why}]
    await api.post(DEPLOYMENTS, deployment("nginx", 5))
    await api.refused(422, "PATCH", f"{DEPLOYMENTS}/nginx", {"spec": {"replicas": 9}}, headers={"content-type": MERGE})


async def test_a_custom_object_is_the_parameter(api: Api):
    await api.post(CRDS, crd())
    await api.post(WIDGETS, widget("replica-limit", spec={"maxReplicas": 3}))
    made = policy(
        "replicalimit-policy.example.com",
        rule("deployments", group="apps"),
        paramKind={"apiVersion": "example.com/v1", "kind": "Widget"},
        validations=[
            check(
                "object.spec.replicas <= params.spec.maxReplicas",
                reason="Forbidden",
                messageExpression="'object.spec.replicas must be no greater than ' + string(params.spec.maxReplicas)",
            )
        ],
    )
    ref = {"name": "replica-limit", "namespace": "default", "parameterNotFoundAction": "Deny"}
    await bind(api, made, paramRef=ref)
    answer = await api.refused(403, "POST", DEPLOYMENTS, deployment("a", 4))
    assert answer.reason == "Forbidden"
    assert answer.message.endswith("denied request: object.spec.replicas must be no greater than 3")
    await api.post(DEPLOYMENTS, deployment("a", 3))
    await api.ok("DELETE", f"{WIDGETS}/replica-limit")
    answer = await api.refused(422, "POST", DEPLOYMENTS, deployment("b", 1))
    assert "failed to configure binding: no params found for policy binding with `Deny`" in answer.message
    found = await api.get(f"{BINDINGS}/replicalimit-policy.example.com-binding")
    found["spec"]["paramRef"]["parameterNotFoundAction"] = "Allow"
    await api.put(f"{BINDINGS}/replicalimit-policy.example.com-binding", found)
    await api.post(DEPLOYMENTS, deployment("b", 1))


async def test_config_maps_chosen_by_labels_are_parameters(api: Api):
    made = policy(
        "limits",
        rule("secrets"),
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        validations=[check("object.metadata.name.startsWith(params.data.prefix)")],
    )
    ref = {"selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Allow"}
    await bind(api, made, paramRef=ref)
    secrets = "/api/v1/namespaces/default/secrets"
    await api.post(secrets, {"metadata": {"name": "free"}})
    await api.post(CMS, config_map("one", {"prefix": "a"}, labels={"limits": "yes"}))
    await api.post(CMS, config_map("two", {"prefix": "ab"}, labels={"limits": "yes"}))
    await api.post(CMS, config_map("other", {"prefix": "x"}))
    await api.post(secrets, {"metadata": {"name": "abc"}})
    await api.refused(422, "POST", secrets, {"metadata": {"name": "ac"}})


async def test_variables_and_namespace(api: Api):
    made = policy(
        "image-matches-namespace-environment.policy.example.com",
        rule("deployments", group="apps"),
        variables=[
            {
                "name": "environment",
                "expression": "'environment' in namespaceObject.metadata.labels ? "
                "namespaceObject.metadata.labels['environment'] : 'prod'",
            },
            {"name": "exempt", "expression": "has(object.metadata.labels) && 'exempt' in object.metadata.labels"},
            {"name": "containers", "expression": "object.spec.template.spec.containers"},
            {
                "name": "containersToCheck",
                "expression": "variables.containers.filter(c, c.image.contains('example.com/'))",
            },
        ],
        validations=[
            check(
                "variables.exempt || variables.containersToCheck.all(c, c.image.startsWith(variables.environment + '.'))",
                messageExpression="'only ' + variables.environment + ' images are allowed in namespace ' + "
                "namespaceObject.metadata.name",
            )
        ],
    )
    await api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": {"environment": "staging"}}})
    await bind(api, made)
    answer = await api.refused(422, "POST", DEPLOYMENTS, deployment("d", 1, "prod.example.com/nginx"))
    assert answer.message.endswith("denied request: only staging images are allowed in namespace default")
    await api.post(DEPLOYMENTS, deployment("d", 1, "staging.example.com/nginx"))


# ---- matching ----


@pytest.mark.parametrize(
    ("match", "refused"),
    [
        ({"resourceRules": [rule("configmaps")]}, True),
        ({"resourceRules": [rule("*")]}, True),
        ({"resourceRules": [rule("*/*")]}, True),
        ({"resourceRules": [rule("configmaps", operations=("*",))]}, True),
        ({"resourceRules": [rule("configmaps", scope="Namespaced")]}, True),
        ({"resourceRules": [rule("configmaps", resourceNames=["c"])]}, True),
        ({"resourceRules": [rule("configmaps", scope="Cluster")]}, False),
        ({"resourceRules": [rule("configmaps", resourceNames=["d"])]}, False),
        ({"resourceRules": [rule("configmaps", operations=("UPDATE",))]}, False),
        ({"resourceRules": [rule("configmaps", group="apps")]}, False),
        ({"resourceRules": [rule("secrets")]}, False),
        ({"resourceRules": [rule("configmaps/status")]}, False),
        ({"resourceRules": [rule("*")], "excludeResourceRules": [rule("configmaps")]}, False),
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchLabels": {"a": "c"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}}, False),
    ],
)  # fmt: skip
async def test_which_requests_match(api: Api, match: Object, refused: bool):
    await bind(api, policy("p", match=match, validations=[check("false")]))
    answer = await api.call("POST", CMS, config_map("c", labels={"a": "b"}))
    assert answer.status == (422 if refused else 201), answer


async def test_equivalent_versions_match(api: Api):
    hpa = {
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}},
    }
    path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
    about = {**rule("horizontalpodautoscalers", group="autoscaling"), "apiVersions": ["v2"]}
    seen = (
        "object.apiVersion == 'autoscaling/v2' && request.requestKind.version == 'v1' && request.kind.version == 'v2'"
    )
    await bind(api, policy("p", about, validations=[check(f"!({seen})")]))
    await api.refused(422, "POST", path, hpa)
    found = await api.get(f"{POLICIES}/p")
    found["spec"]["matchConstraints"]["matchPolicy"] = "Exact"
    await api.put(f"{POLICIES}/p", found)
    await api.post(path, hpa)


async def test_match_conditions(api: Api):
    conditions = [
        {"name": "not-a-node", "expression": "!('system:nodes' in request.userInfo.groups)"},
        {"name": "has-data", "expression": "object.data.size() > 0"},
    ]
    await bind(api, policy("p", matchConditions=conditions, validations=[check("false", message="no")]))
    await api.refused(422, "POST", CMS, config_map("c", {"a": "b"}))
    await api.post(CMS, config_map("d"))
    del (bare := config_map("e"))["data"]
    answer = await api.refused(422, "POST", CMS, bare)
    assert "expression 'object.data.size() > 0' resulted in error: no such key: data" in answer.message


async def test_what_configures_admission_is_exempt(api: Api):
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    await bind(api, policy("p", everything, validations=[check("false")]))
    await api.refused(422, "POST", CMS, config_map("c"))
    await api.ok("DELETE", f"{BINDINGS}/p-binding")
    await api.post(CMS, config_map("c"))


# ---- decisions ----


async def test_deletion(api: Api):
    about = rule("configmaps", operations=("DELETE",))
    made = policy("p", about, validations=[check("object != null || oldObject.data.keep != 'yes'", message="is kept")])
    await bind(api, made)
    await api.post(CMS, config_map("kept", {"keep": "yes"}))
    await api.post(CMS, config_map("other", {"keep": "no"}))
    answer = await api.refused(422, "DELETE", f"{CMS}/kept")
    assert answer.message.endswith("denied request: is kept")
    await api.ok("DELETE", f"{CMS}/other")


async def test_warnings(api: Api):
    await bind(api, policy("p", validations=[check("object.data.size() > 0", message="no data")]), "Warn")
    answer = await api.call("POST", CMS, config_map("c"))
    assert answer.status == 201
    text = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-binding': no data"
    assert answer.warnings() == [f'299 - "{text}"']
    assert (await api.call("POST", CMS, config_map("d", {"a": "b"}))).warnings() == []


@pytest.mark.parametrize("closed", [True, False])
async def test_expressions_that_fail(api: Api, closed: bool):
    failure = "Fail" if closed else "Ignore"
    made = policy(
        "p", failurePolicy=failure, validations=[check("object.data.none == 'x'"), check("object.data.a != 'b'")]
    )
    await bind(api, made)
    answer = await api.call("POST", CMS, config_map("c", {"a": "c"}))
    assert answer.status == (422 if closed else 201)
    assert not closed or "resulted in error: no such key: none" in answer.message
    assert (
        "failed expression: object.data.a != 'b'"
        in (await api.refused(422, "POST", CMS, config_map("d", {"a": "b"}))).message
        or closed
    )


async def test_endless_work_is_refused(api: Api):
    loop = "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != ''))))"
    await bind(api, policy("p", validations=[check(loop)]))
    answer = await api.refused(422, "POST", CMS, config_map("c", {f"k{n}": "v" for n in range(100)}))
    assert "running out of cost budget" in answer.message


async def test_variables_that_use_each_other_are_bounded(api: Api):
    """Each would be allowed alone; a chain of them is not."""
    loop = "object.data.all(a, object.data.all(b, object.data.all(c, a + b + c != '')))"
    variables = [{"name": "v0", "expression": loop}]
    variables += [{"name": f"v{n}", "expression": f"variables.v{n - 1} && {loop}"} for n in range(1, 40)]
    await bind(api, policy("p", variables=variables, validations=[check("variables.v39")]))
    answer = await api.refused(422, "POST", CMS, config_map("c", {f"k{n}": "v" for n in range(40)}))
    assert "running out of cost budget" in answer.message


async def test_what_the_user_may_do(api: Api):
    may = "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()"
    own = "authorizer.requestResource.check('create').allowed()"
    account = "authorizer.serviceAccount('default', 'robot').group('').resource('secrets').check('get').allowed()"
    await bind(api, policy("p", validations=[check(f"{may} && {own} && !{account}")]))
    await api.post(CMS, config_map("c"))
    role = {
        "metadata": {"name": "maps"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}],
    }
    await api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    grant = {
        "metadata": {"name": "maps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", grant)
    jane = UserInfo("jane", ("system:authenticated",))
    assert (await api.call("POST", CMS, config_map("d"), user=jane)).status == 422


async def test_a_policy_whose_parameters_have_no_kind(api: Api):
    kind = {"apiVersion": "example.com/v1", "kind": "Nothing"}
    await bind(api, policy("p", paramKind=kind, validations=[check("true")]))
    answer = await api.refused(422, "POST", CMS, config_map("c"))
    assert "failed to find resource referenced by paramKind: 'example.com/v1, Kind=Nothing'" in answer.message


async def test_a_changed_policy_is_compiled_again(api: Api):
    await bind(api, policy("p", validations=[check("false")]))
    await api.refused(422, "POST", CMS, config_map("c"))
    found = await api.get(f"{POLICIES}/p")
    found["spec"]["validations"] = [check("true")]
    await api.put(f"{POLICIES}/p", found)
    await api.post(CMS, config_map("c"))


async def test_scale_and_status(api: Api):
    about = rule("deployments/scale", group="apps")
    await bind(api, policy("p", about, validations=[check("object.kind == 'Scale' && object.spec.replicas < 3")]))
    await api.post(DEPLOYMENTS, deployment("d", 5))
    scale = await api.get(f"{DEPLOYMENTS}/d/scale")
    scale["spec"]["replicas"] = 2
    await api.put(f"{DEPLOYMENTS}/d/scale", scale)
    scale = await api.get(f"{DEPLOYMENTS}/d/scale")
    scale["spec"]["replicas"] = 4
    await api.refused(422, "PUT", f"{DEPLOYMENTS}/d/scale", scale)


async def test_connections_and_evictions(api: Api):
    connect = rule("pods/exec", "pods/portforward", operations=("CONNECT",))
    evict = rule("pods/eviction", operations=("CREATE",))
    bind_rule = rule("pods/binding", operations=("CREATE",))
    checks = [
        check("request.operation != 'CONNECT' || object.kind != 'PodExecOptions' || !('sh' in object.command)", message="no shell"),
        check("request.kind.kind != 'Eviction' || object.metadata.name != 'p'", message="p stays"),
        check("request.kind.kind != 'Binding' || object.target.name != 'n'", message="not there"),
    ]  # fmt: skip
    await bind(api, policy("p", connect, evict, bind_rule, validations=checks))
    await api.post(PODS, pod("p"))
    upgrade = {"upgrade": "websocket", "connection": "upgrade"}
    answer = await api.call("GET", f"{PODS}/p/exec?command=sh&stdout=1", headers=upgrade)
    assert answer.status == 422 and answer.message.endswith("denied request: no shell"), answer
    answer = await api.call("GET", f"{PODS}/p/exec?command=ls&stdout=1", headers=upgrade)
    assert "denied request" not in answer.message
    answer = await api.refused(422, "POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    assert answer.message.endswith("denied request: p stays")
    answer = await api.refused(422, "POST", f"{PODS}/p/binding", {"target": {"name": "n"}})
    assert answer.message.endswith("denied request: not there")
    await api.ok("POST", f"{PODS}/p/binding", {"target": {"name": "m"}})


async def test_audit_annotations():
    sink = MemorySink()
    async with serving(Settings(audit_sinks=(sink,))) as api:
        made = policy("p.example.com", validations=[check("false", message="never")], auditAnnotations=[
            {"key": "size", "valueExpression": "string(size(object.data))"},
            {"key": "none", "valueExpression": "object.data.size() > 5 ? 'large' : ''"},
        ])  # fmt: skip
        await bind(api, made, "Audit")
        await api.post(CMS, config_map("c", {"a": "b"}))
        event = sink.events[-1].as_json()["annotations"]
        assert event["p.example.com/size"] == "1" and "p.example.com/none" not in event
        (failure,) = orjson.loads(event["validation.policy.admission.k8s.io/validation_failure"])
        assert failure == {
            "message": "never", "policy": "p.example.com", "binding": "p.example.com-binding", "expressionIndex": 0,
            "validationActions": ["Audit"],
        }  # fmt: skip


# ---- the policies themselves ----


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"validations": [check("object.x +")]}, "spec.validations[0].expression", "compilation failed: ERROR: <input>:1:"),
        ({"validations": [check("nothing.x == 1")]}, "spec.validations[0].expression", "undeclared reference to 'nothing'"),
        ({"validations": [check("1 + 1")]}, "spec.validations[0].expression", "must evaluate to bool but got int"),
        ({"validations": [check("params.x == 1")]}, "spec.validations[0].expression", "undeclared reference to 'params'"),
        ({"validations": [check("request.nothing == 'a'")]}, "spec.validations[0].expression", "undefined field 'nothing'"),
        ({"validations": [check("variables.x == 1")]}, "spec.validations[0].expression", "undeclared reference to 'variables'"),
        ({"validations": [check("true", messageExpression="1")]}, "spec.validations[0].messageExpression", "must evaluate to string but got int"),
        ({"validations": [check("true", message="a\nb")]}, "spec.validations[0].message", "must not contain line breaks"),
        ({"validations": [check("true", reason="Gone")]}, "spec.validations[0].reason", "Unsupported value"),
        ({"validations": []}, "spec.validations", "validations or auditAnnotations must contain at least one item"),
        ({"variables": [{"name": "a-b", "expression": "1"}]}, "spec.variables[0].name", "name is not a valid CEL identifier"),
        ({"matchConditions": [{"name": "a", "expression": "1"}]}, "spec.matchConditions[0].expression", "must evaluate to bool"),
        ({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}, "spec.auditAnnotations[0].valueExpression", "must evaluate to one of [string null_type] but got int"),
        ({"failurePolicy": "Maybe"}, "spec.failurePolicy", "Unsupported value"),
        ({"match": {"resourceRules": []}}, "spec.matchConstraints.resourceRules", "Required value"),
        ({"match": {"matchPolicy": "None"}}, "spec.matchConstraints.matchPolicy", "Unsupported value"),
    ],
)  # fmt: skip
async def test_policies_that_are_refused(api: Api, spec: Object, field: str, words: str):
    made = policy("p", **{"validations": [check("true")], **spec})
    answer = await api.refused(422, "POST", POLICIES, made)
    causes = {cause["field"]: cause["message"] for cause in answer.causes}
    assert words in causes[field], causes


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"policyName": ""}, "spec.policyName"),
        ({"validationActions": []}, "spec.validationActions"),
        ({"validationActions": ["Deny", "Warn"]}, "spec.validationActions"),
        ({"validationActions": ["Shout"]}, "spec.validationActions[0]"),
        ({"paramRef": {"parameterNotFoundAction": "Deny"}}, "spec.paramRef"),
        ({"paramRef": {"name": "a"}}, "spec.paramRef.parameterNotFoundAction"),
    ],
)
async def test_bindings_that_are_refused(api: Api, spec: Object, field: str):
    made = binding("b", "p")
    made["spec"].update(spec)
    answer = await api.refused(422, "POST", BINDINGS, made)
    assert field in [cause["field"] for cause in answer.causes]


async def test_defaults_and_type_checking(api: Api):
    made = policy("p", rule("deployments", group="apps"), validations=[check("object.spec.nothing > 1")])
    stored = await api.post(POLICIES, made)
    assert stored["spec"]["failurePolicy"] == "Fail"
    assert stored["spec"]["matchConstraints"]["matchPolicy"] == "Equivalent"
    assert stored["spec"]["matchConstraints"]["resourceRules"][0]["scope"] == "*"
    assert stored["status"]["observedGeneration"] == 1
    (warning,) = stored["status"]["typeChecking"]["expressionWarnings"]
    assert warning["fieldRef"] == "spec.validations[0].expression"
    assert warning["warning"].startswith("apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'nothing'")
    stored["spec"]["validations"] = [check("object.spec.replicas > 1")]
    stored = await api.put(f"{POLICIES}/p", stored)
    assert stored["status"] == {"observedGeneration": 2, "typeChecking": {}}


async def permit(api: Api, user: str, *rules: Object) -> UserInfo:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await api.post(f"{rbac}/clusterroles", {"metadata": {"name": user}, "rules": list(rules)})
    grant = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await api.post(f"{rbac}/clusterrolebindings", grant)
    return UserInfo(user, ("system:authenticated",))


@pytest.mark.parametrize("mutating", [False, True])
async def test_an_author_uses_no_parameters_that_he_may_not_read(api: Api, mutating: bool):
    """The message of a policy may repeat them."""
    every = {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    maps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    one = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["one"]}
    jane = await permit(api, "jane", every, maps)
    john = await permit(api, "john", every, one)
    kind = "Mutating" if mutating else "Validating"
    policies, bindings = (path.replace("validating", kind.lower()) for path in (POLICIES, BINDINGS))

    def made(name: str, of: str) -> Object:
        spec: Object = {"paramKind": {"apiVersion": "v1", "kind": of}}
        if mutating:
            spec["reinvocationPolicy"] = "Never"
            expression = "Object{metadata: Object.metadata{labels: {'a': string(params.data.a)}}}"
            spec["mutations"] = [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]
        else:
            spec["validations"] = [check("false", messageExpression="string(params.data.a)")]
        return policy(name, **spec)

    def bound(called: str, to: str, **ref: Any) -> Object:
        out = binding(called, to, paramRef={"parameterNotFoundAction": "Deny", **ref})
        if mutating:
            del out["spec"]["validationActions"]
        return out

    refused = await api.refused(422, "POST", policies, made("leak", "Secret"), user=jane)
    assert 'must have "get" permission on all objects of the referenced paramKind' in refused.message
    await api.refused(422, "POST", policies, made("leak", "Secret"), user=john)
    assert (await api.call("POST", policies, made("fine", "ConfigMap"), user=jane)).status == 201
    changed = {"spec": {"paramKind": {"apiVersion": "v1", "kind": "Secret"}}}
    await api.refused(422, "PATCH", f"{policies}/fine", changed, headers={"content-type": MERGE}, user=jane)

    await api.post(policies, made("leak", "Secret"))
    for ref in ({"name": "one", "namespace": "default"}, {"selector": {}, "namespace": "default"}, {"selector": {}}):
        refused = await api.refused(422, "POST", bindings, bound("b", "leak", **ref), user=jane)
        assert 'does not have "get" permission on the object referenced by paramRef' in refused.message
    await api.refused(422, "POST", bindings, bound("b", "no-such-policy", name="x", namespace="default"), user=jane)
    await api.refused(422, "POST", bindings, bound("b", "leak", name="two", namespace="default"), user=john)
    named = bound("b", "leak", name="one", namespace="default")
    assert (await api.call("POST", bindings, named, user=john)).status == 201
    moved = {"spec": {"paramRef": {"name": "two", "namespace": "default"}}}
    await api.refused(422, "PATCH", f"{bindings}/b", moved, headers={"content-type": MERGE}, user=john)
    assert (await api.call("POST", bindings, bound("c", "fine", selector={}), user=jane)).status == 201
