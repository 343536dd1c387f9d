"""Definitions of strangers: schemas and rules that make no sense are refused; what is taken can be lived with."""

from __future__ import annotations

import copy
import time
from typing import Any

import orjson
import pytest
from fuzz_definitions import CEL, DEFINITIONS, NAME, PATHS, PATTERNS, WIDGETS, Definer, definition, with_rule
from fuzz_objects import CRD
from fuzz_server import FuzzServer, examples

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = (("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),)
GOOD_WIDGET: Object = {
    "apiVersion": "fuzz.example/v1",
    "kind": "Widget",
    "metadata": {"name": "w"},
    "spec": {"size": 3, "names": ["a", "b"], "parts": [{"id": "a", "port": 1}], "kind": "a", "labels": {"x": "y"}, "free": {"x": 1}},
}  # fmt: skip
A_LONG_TIME = 2.0
"""Seconds that no single request may take: the loop serves everybody."""


def ask(server: FuzzServer, method: str, path: str, body: Any = None, **more: Any) -> Any:
    began = time.process_time()
    answer = server.ask(method, path, b"" if body is None else orjson.dumps(body), **more)
    assert time.process_time() - began < A_LONG_TIME, (method, path, body)
    return answer


def live(server: FuzzServer, maker: Definer, count: int) -> None:
    """Use a definition that was taken in every way there is."""
    for index in range(count):
        path, widget = f"{WIDGETS}/w{index}", maker.widget(f"w{index}")
        ask(server, "POST", WIDGETS, widget)
        ask(server, "PATCH", path + "?fieldManager=f&force=1", widget, content_type=APPLY)
        ask(server, "PATCH", path, {"spec": maker.wrong()}, content_type=MERGE)
        ask(server, "PUT", path + "/status", widget)
        ask(server, "GET", path + "/scale")
        ask(server, "PUT", path + "/scale", {"spec": {"replicas": 3}})
    ask(server, "GET", WIDGETS, headers=TABLE)
    ask(server, "GET", WIDGETS + "?fieldSelector=spec.kind=a")
    ask(server, "GET", "/apis/fuzz.example/v1")
    ask(server, "DELETE", WIDGETS)


def withdraw(server: FuzzServer) -> None:
    """Delete the definition as its controller would, which does not run here."""
    ask(server, "DELETE", f"{DEFINITIONS}/{NAME}")
    ask(server, "PATCH", f"{DEFINITIONS}/{NAME}", {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert ask(server, "GET", f"{DEFINITIONS}/{NAME}").status == 404


def test_schemas_of_any_shape(server: FuzzServer) -> None:
    taken = 0
    for seed in range(examples(250)):
        maker = Definer(seed)
        if ask(server, "POST", DEFINITIONS, maker.definition()).status != 201:
            continue
        taken += 1
        live(server, maker, 3)
        if taken % 20 == 0:
            server.ask("GET", "/openapi/v3/apis/fuzz.example/v1")
        withdraw(server)
    assert taken > 20
    server.ask("GET", "/openapi/v2")


@pytest.mark.parametrize("place", ["rule", "messageExpression"])
def test_rules_of_any_kind(server: FuzzServer, place: str) -> None:
    """Every expression, as a rule and as a message: refused with the definition, or evaluated within bounds."""
    for text in CEL:
        rule = {"rule": text} if place == "rule" else {"rule": "false", "messageExpression": text}
        if ask(server, "POST", DEFINITIONS, with_rule(**rule)).status == 201:
            ask(server, "POST", WIDGETS, GOOD_WIDGET)
            ask(server, "PUT", WIDGETS + "/w", {**GOOD_WIDGET, "spec": {**GOOD_WIDGET["spec"], "size": 4}})
            live(server, Definer(1), 2)
            withdraw(server)


def test_patterns_of_any_kind(server: FuzzServer) -> None:
    for pattern in PATTERNS:
        spec = copy.deepcopy(CRD)
        items = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["names"]["items"]
        items |= {"pattern": pattern, "maxLength": 100_000}
        if ask(server, "POST", DEFINITIONS, definition(spec)).status == 201:
            ask(server, "POST", WIDGETS, {**GOOD_WIDGET, "spec": {"size": 3, "names": ["a" * 50_000 + "!"]}})
            withdraw(server)


def test_columns_of_any_path(server: FuzzServer) -> None:
    for path in PATHS:
        spec = copy.deepcopy(CRD)
        columns = [{"name": "a", "type": "string", "jsonPath": path}]
        spec["versions"][0]["additionalPrinterColumns"] = columns
        if ask(server, "POST", DEFINITIONS, definition(spec)).status == 201:
            wide = {**GOOD_WIDGET["spec"], "free": {f"k{n}": {f"k{m}": [1, 2, 3] for m in range(8)} for n in range(8)}}
            assert ask(server, "POST", WIDGETS, {**GOOD_WIDGET, "spec": wide}).status == 201
            assert ask(server, "GET", WIDGETS, headers=TABLE).status == 200
            ask(server, "DELETE", WIDGETS)
            withdraw(server)


def test_many_costly_items_are_bounded(server: FuzzServer) -> None:
    spec = copy.deepcopy(CRD)
    inside = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    inside["properties"]["names"] = {"type": "array", "items": {"type": "string"}}
    inside["x-kubernetes-validations"] = [{"rule": "self.names.all(x, self.names.exists(y, x == y))"}]
    if ask(server, "POST", DEFINITIONS, definition(spec)).status == 201:
        names = [f"n{number}" for number in range(20_000)]
        assert ask(server, "POST", WIDGETS, {**GOOD_WIDGET, "spec": {"size": 3, "names": names}}).status == 422


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "X"}]},
        {"conditions": [{}]},
        {"conditions": [{"status": "True"}]},
        {"conditions": None, "acceptedNames": None, "storedVersions": None},
        {"acceptedNames": {}, "storedVersions": ["v1", "v9"]},
        {"acceptedNames": {"plural": "x", "kind": "y"}, "storedVersions": ["v1"]},
        {"conditions": [{"type": "Established", "status": "False"}], "storedVersions": ["v1"]},
    ],
    ids=orjson.dumps,
)
def test_a_status_cannot_take_a_definition_out_of_service(server: FuzzServer, status: Object) -> None:
    assert ask(server, "POST", DEFINITIONS, definition(CRD)).status == 201
    assert ask(server, "POST", WIDGETS, GOOD_WIDGET).status == 201
    ask(server, "PATCH", f"{DEFINITIONS}/{NAME}/status", {"status": status}, content_type=MERGE)
    ask(server, "PUT", f"{DEFINITIONS}/{NAME}/status", {**definition(CRD), "status": status})
    assert ask(server, "GET", WIDGETS + "/w").status == 200


def test_objects_survive_a_time_without_service(server: FuzzServer) -> None:
    assert ask(server, "POST", DEFINITIONS, definition(CRD)).status == 201
    assert ask(server, "POST", WIDGETS, GOOD_WIDGET).status == 201
    for served, code in ((False, 404), (True, 200)):
        change = [{"op": "replace", "path": "/spec/versions/0/served", "value": served}]
        patched = ask(server, "PATCH", f"{DEFINITIONS}/{NAME}", change, content_type="application/json-patch+json")
        assert patched.status == 200
        assert ask(server, "GET", WIDGETS + "/w").status == code
    assert ask(server, "PUT", WIDGETS + "/w", GOOD_WIDGET).status in (200, 422)


def test_names_in_use_stay_when_new_ones_are_taken(server: FuzzServer) -> None:
    other = copy.deepcopy(CRD)
    other["names"] = {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]}
    for each in (CRD, other):
        assert ask(server, "POST", DEFINITIONS, definition(each)).status == 201
    assert ask(server, "POST", WIDGETS, GOOD_WIDGET).status == 201
    change = {"spec": {"names": {"shortNames": ["gd"]}}}
    patched = ask(server, "PATCH", f"{DEFINITIONS}/{NAME}", change, content_type=MERGE).json()
    states = {each["type"]: each["status"] for each in patched["status"]["conditions"]}
    assert (states["NamesAccepted"], states["Established"]) == ("False", "True")
    assert patched["status"]["acceptedNames"]["shortNames"] == ["wd"]
    assert ask(server, "GET", WIDGETS + "/w").status == 200
