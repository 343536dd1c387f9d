"""Discovery documents: order, plain and aggregated forms, negotiation, caching."""

from __future__ import annotations

import gzip
import random
from typing import Any

import orjson
import pytest

from coterie.http.messages import Request, Response
from coterie.kube.api.errors import MethodNotAllowed, NotAcceptable, NotFound
from coterie.kube.api.resources import BUILTIN, SCALE, STATUS, Resource
from coterie.kube.apiserver import discovery
from coterie.kube.apiserver.discovery import Discovery

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
KUBECTL = f"{AGGREGATED.format('v2')},{AGGREGATED.format('v2beta1')},application/json"
OLD_KUBECTL = f"{AGGREGATED.format('v2beta1')},application/json"
WIDGETS = tuple(
    Resource("lab.io", version, "widgets", "Widget", True, "widget", ("wd",), ("all",), custom=True, subresources=subs)
    for version, subs in (("v1alpha1", ()), ("v1", (SCALE, STATUS)), ("v1beta1", ()))
)
ALL = (*BUILTIN, *WIDGETS)


def get(found: Discovery, path: str, accept: str = "application/json", **headers: str) -> Response:
    return found.respond(Request("GET", path, headers={"accept": accept, **headers}))


def body(response: Response) -> Any:
    packed = ("Content-Encoding", "gzip") in response.headers
    return orjson.loads(gzip.decompress(response.body) if packed else response.body)


@pytest.fixture
def served() -> Discovery:
    return Discovery(lambda: ALL)


def test_versions_are_ordered_as_kubernetes_orders_them() -> None:
    wanted = [
        "v10",
        "v2",
        "v1",
        "v11beta2",
        "v10beta3",
        "v3beta1",
        "v12alpha1",
        "v11alpha2",
        "foo1",
        "foo10",
        "v0",
        "v1b1",
    ]
    shuffled = random.Random(7).sample(wanted, len(wanted))
    assert sorted(shuffled, key=discovery.version_order) == wanted


def test_groups_come_in_the_order_in_which_clients_search_them() -> None:
    groups = list(discovery.group_versions(ALL))
    assert groups[:3] == ["apiregistration.k8s.io", "", "apps"]
    assert groups[-1] == "lab.io"


def test_plain_roots(served: Discovery) -> None:
    assert body(get(served, "/api"))["versions"] == ["v1"]
    groups = {group["name"]: group for group in body(get(served, "/apis"))["groups"]}
    assert "" not in groups
    assert groups["autoscaling"]["preferredVersion"] == {"groupVersion": "autoscaling/v2", "version": "v2"}
    assert [each["version"] for each in groups["lab.io"]["versions"]] == ["v1", "v1beta1", "v1alpha1"]
    assert body(get(served, "/apis/lab.io"))["preferredVersion"]["version"] == "v1"


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/"])
def test_resources_of_the_core(served: Discovery, path: str) -> None:
    listed = body(get(served, path))
    assert listed["groupVersion"] == "v1"
    by_name = {entry["name"]: entry for entry in listed["resources"]}
    assert by_name["pods"]["shortNames"] == ["po"]
    assert by_name["pods"]["categories"] == ["all"]
    assert by_name["namespaces"]["namespaced"] is False
    assert by_name["pods/status"] == {
        "name": "pods/status",
        "singularName": "",
        "namespaced": True,
        "kind": "Pod",
        "verbs": ["get", "patch", "update"],
    }
    assert by_name["pods/eviction"] | {"verbs": []} == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": [],
    }
    assert list(by_name) == sorted(by_name)


@pytest.mark.parametrize(
    ("accept", "version"),
    [(KUBECTL, "v2"), (OLD_KUBECTL, "v2beta1"), (f"application/json;q=0.5,{AGGREGATED.format('v2')}", "v2")],
)
@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_aggregated_form(served: Discovery, path: str, accept: str, version: str) -> None:
    response = get(served, path, accept)
    assert response.content_type == AGGREGATED.format(version)
    told = body(response)
    assert (told["kind"], told["apiVersion"]) == ("APIGroupDiscoveryList", f"apidiscovery.k8s.io/{version}")
    plain = {(resource.group, resource.version) for resource in ALL if (resource.group == "") is (path == "/api")}
    assert plain == {
        (item["metadata"].get("name", ""), each["version"]) for item in told["items"] for each in item["versions"]
    }


def test_aggregated_sub_resources_name_what_they_answer(served: Discovery) -> None:
    groups = {item["metadata"]["name"]: item for item in body(get(served, "/apis", KUBECTL))["items"]}
    (widgets,) = groups["lab.io"]["versions"][0]["resources"]
    assert widgets["scope"] == "Namespaced"
    assert widgets["subresources"][0]["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert widgets["subresources"][1]["responseKind"] == {"group": "lab.io", "version": "v1", "kind": "Widget"}


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/json", f"application/json,{AGGREGATED.format('v2')}", AGGREGATED.format("v9") + ",*/*"],
    ids=str,
)
def test_plain_form_when_preferred(served: Discovery, accept: str) -> None:
    response = get(served, "/apis", accept)
    assert response.content_type == "application/json"
    assert body(response)["kind"] == "APIGroupList"


def test_nothing_but_json_is_served(served: Discovery) -> None:
    with pytest.raises(NotAcceptable):
        get(served, "/apis", "application/xml")


@pytest.mark.parametrize(
    "path", ["/api/v2", "/apis/nothing", "/apis/apps/v9", "/apis//v1", "/apis/apps/v1/deployments", "/other"]
)
def test_unknown_paths(served: Discovery, path: str) -> None:
    with pytest.raises(NotFound):
        get(served, path)


def test_only_reading(served: Discovery) -> None:
    with pytest.raises(MethodNotAllowed):
        served.respond(Request("POST", "/apis"))


def test_a_client_that_has_the_document_is_told_so() -> None:
    resources = list(BUILTIN)
    served = Discovery(lambda: resources)
    first = get(served, "/apis", KUBECTL)
    tag = dict(first.headers)["ETag"]
    again = get(served, "/apis", KUBECTL, **{"if-none-match": f'"x", {tag}'})
    assert (again.status, again.body) == (304, b"")
    resources.extend(WIDGETS)
    assert get(served, "/apis", KUBECTL, **{"if-none-match": tag}).status == 304  # nobody said it changed
    served.invalidate()
    changed = get(served, "/apis", KUBECTL, **{"if-none-match": tag})
    assert changed.status == 200
    assert dict(changed.headers)["ETag"] != tag


def test_gzip_for_those_who_take_it(served: Discovery) -> None:
    packed = get(served, "/apis", KUBECTL, **{"accept-encoding": "br, gzip;q=0.8"})
    plain = get(served, "/apis", KUBECTL, **{"accept-encoding": "gzip;q=0"})
    assert ("Content-Encoding", "gzip") in packed.headers
    assert ("Content-Encoding", "gzip") not in plain.headers
    assert gzip.decompress(packed.body) == plain.body


def test_version_is_one_that_clients_can_parse() -> None:
    told = discovery.version_document()
    assert (told["major"], told["minor"]) == ("1", "36")
    assert told["gitVersion"].startswith("v1.36.0+coterie")
    assert all(isinstance(value, str) for value in told.values())


def test_api_services_stand_for_each_group_version() -> None:
    services = {each["metadata"]["name"]: each for each in discovery.apiservices(ALL, "2025-01-01T00:00:00Z")}
    assert len(services) == len({(resource.group, resource.version) for resource in ALL})
    assert services["v1."]["spec"] == {"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1}
    priority = {name: services[f"{name}.lab.io"]["spec"]["versionPriority"] for name in ("v1", "v1beta1", "v1alpha1")}
    assert priority["v1"] > priority["v1beta1"] > priority["v1alpha1"]
    assert services["v1.lab.io"]["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "true"}
    assert len({each["metadata"]["uid"] for each in services.values()}) == len(services)


def test_storage_version_hashes_are_those_of_kubernetes() -> None:
    found = discovery.api_resource_list(ALL, "", "v1")
    assert found is not None
    hashes = {each["name"]: each.get("storageVersionHash") for each in found["resources"]}
    assert hashes["pods"] == "xPOwRZ+Yhw8=" and hashes["pods/status"] is None and hashes["bindings"] is None
