"""Policies of strangers: any expression is refused with its policy, or evaluated within bounds; requests are always answered."""

from __future__ import annotations

import random
import time
from typing import Any

import orjson
import pytest
from fuzz_definitions import CEL
from fuzz_server import FuzzServer, examples

Object = dict[str, Any]
API = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
A_LONG_TIME = 4.0
"""Seconds of CPU that no single request may take."""
RULE: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["*"],
    "resources": ["configmaps", "configmaps/*"],
}
OBJECT: Object = {"metadata": {"name": "c", "labels": {"a": "b"}}, "data": {f"k{n}": "v" * n for n in range(40)}}
MORE = (
    "object == oldObject", "object.data == params", "variables.v", "variables.none == 1", "variables.v == variables.v",
    "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != ''))))",
    "object.data.map(k, object.data[k].replace('', 'x').replace('', 'x').replace('', 'x').replace('', 'x')).size() > 1",
    "authorizer.requestResource.check('get').allowed()", "authorizer.serviceAccount('a', 'b').path('/x').check('y').allowed()",
    "object.data.all(k, authorizer.group('').resource(k).check('get').allowed())", "authorizer", "authorizer == authorizer",
    "namespaceObject.metadata.labels['x'] == ''", "namespaceObject.status.conditions.all(c, c.type == '')", "request.options.x",
    "request.userInfo.extra.all(k, v, v.size() > 0)", "request == null", "oldObject.metadata.name == ''", "object[?'x'].hasValue()",
    "semver('1.' + '9' * 100)", "semver(object.metadata.name).major() > 1", "math.greatest(object.data.map(k, size(k))) > 1",
    "Object{}", "Object{spec: Object.spec{a: object}}", "Object{data: Object.data{a: 'b'}}", "Object{metadata: Object.metadata{name: 'x'}}",
    "Object{metadata: object.metadata}", "Object{data: null}", "[JSONPatch{}]", "[JSONPatch{op: 'remove', path: ''}]",
    "[JSONPatch{op: 'add', path: '/data', value: object}]", "[JSONPatch{op: 'replace', path: '', value: {}}]",
    "[JSONPatch{op: 'copy', from: '', path: '/data/x'}, JSONPatch{op: 'copy', from: '', path: '/data/y'}]",
    "object.data.map(k, JSONPatch{op: 'add', path: '/metadata/annotations', value: object.data})", "[]", "null", "dyn(object)",
    "[JSONPatch{op: 'add', path: '/metadata/finalizers', value: ['a/b']}]", "[JSONPatch{op: 'add', path: '/x', value: 0.0 / 0.0}]",
    "[JSONPatch{op: 'add', path: '/data/x', value: bytes('a')}]", "[JSONPatch{op: 'add', path: '/data/x', value: ip('1.1.1.1')}]",
)  # fmt: skip
EXPRESSIONS = (*(text.replace("oldSelf", "oldObject").replace("self", "object") for text in CEL), *MORE)


def ask(server: FuzzServer, method: str, path: str, body: Any = None) -> Any:
    began = time.process_time()
    answer = server.ask(method, path, b"" if body is None else orjson.dumps(body))
    assert time.process_time() - began < A_LONG_TIME, (method, path, body)
    return answer


def use(server: FuzzServer, kind: str, spec: Object, **binding: Any) -> bool:
    """Whether the policy is taken; if so, requests that it is about are made."""
    base = {"matchConstraints": {"resourceRules": [RULE]}, "variables": [{"name": "v", "expression": "object.data.k1"}]}
    policies, bindings = f"{API}/{kind}admissionpolicies", f"{API}/{kind}admissionpolicybindings"
    if ask(server, "POST", policies, {"metadata": {"name": "p"}, "spec": {**base, **spec}}).status != 201:
        return False
    actions = {"validationActions": ["Deny", "Audit"]} if kind == "validating" else {}
    ask(server, "POST", bindings, {"metadata": {"name": "b"}, "spec": {"policyName": "p", **actions, **binding}})
    ask(server, "POST", MAPS, OBJECT)
    ask(server, "PUT", f"{MAPS}/c", {**OBJECT, "data": {"k1": "x"}})
    ask(server, "DELETE", f"{MAPS}/c")
    ask(server, "DELETE", f"{bindings}/b")
    ask(server, "DELETE", f"{policies}/p")
    ask(server, "DELETE", f"{MAPS}/c")
    return True


@pytest.mark.parametrize(
    "place", ["validation", "message", "variable", "condition", "annotation", "JSONPatch", "Apply"]
)
def test_expressions_of_any_kind(server: FuzzServer, place: str) -> None:
    taken = 0
    for text in EXPRESSIONS:
        if place == "JSONPatch":
            spec: Object = {"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": text}}]}
        elif place == "Apply":
            spec = {"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}}]}
        else:
            spec = {
                "validation": {"validations": [{"expression": text}]},
                "message": {"validations": [{"expression": "false", "messageExpression": text}]},
                "variable": {
                    "variables": [{"name": "v", "expression": text}],
                    "validations": [{"expression": "dyn(variables.v) != 1"}],
                },
                "condition": {
                    "matchConditions": [{"name": "c", "expression": text}],
                    "validations": [{"expression": "false"}],
                },
                "annotation": {"auditAnnotations": [{"key": "k", "valueExpression": text}]},
            }[place]
        taken += use(server, "mutating" if "mutations" in spec else "validating", spec)
    assert taken > 1


def test_policies_of_any_shape(server: FuzzServer) -> None:
    for seed in range(examples(120)):
        draw = random.Random(seed)
        values: tuple[Any, ...] = (
            None,
            "",
            "x",
            0,
            -1,
            [],
            {},
            [{}],
            ["*"],
            {"name": "a"},
            {"matchLabels": {"a": "b"}},
            True,
        )
        keys = ("failurePolicy", "paramKind", "matchConstraints", "matchConditions", "validations", "auditAnnotations", "variables",
                "mutations", "reinvocationPolicy")  # fmt: skip
        spec = {key: draw.choice(values) for key in draw.sample(keys, 3)}
        rule = {
            **RULE,
            draw.choice(("operations", "resources", "scope", "resourceNames", "apiGroups")): draw.choice(values),
        }
        match = {
            "resourceRules": [rule],
            draw.choice(("objectSelector", "namespaceSelector", "matchPolicy")): draw.choice(values),
        }
        body = {"matchConstraints": match, "validations": [{"expression": "true"}], **spec}
        kind = draw.choice(("validating", "mutating"))
        binding = {draw.choice(("paramRef", "matchResources", "policyName")): draw.choice(values)}
        use(server, kind, body, **binding)
        ask(server, "DELETE", f"{API}/{kind}admissionpolicybindings/b")
        ask(server, "DELETE", f"{API}/{kind}admissionpolicies/p")
