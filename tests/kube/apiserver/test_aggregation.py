"""Aggregated API servers: a real HTTPS server behind an APIService, and ones that are down, hang or answer nonsense."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from http_backend import Asked, Backend, answer
from server_kit import Api, Watch, serving

from coterie.base import pki
from coterie.http.messages import UserInfo
from coterie.kube.apiserver import outgoing
from coterie.kube.apiserver.extension import ApiServerExtension
from coterie.kube.apiserver.server import Settings

Object = dict[str, Any]
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
FORM = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "wardle.example.com/v1",
    "resources": [
        {"name": "flunders", "singularName": "flunder", "namespaced": True, "kind": "Flunder", "verbs": ["get", "list"], "shortNames": ["fl"]},
        {"name": "flunders/status", "singularName": "", "namespaced": True, "kind": "Flunder", "verbs": ["get"]},
    ],
}  # fmt: skip
OPENAPI_V2 = {
    "swagger": "2.0",
    "info": {"title": "x", "version": "1"},
    "paths": {
        "/apis/wardle.example.com/v1/flunders": {"get": {"operationId": "listFlunders", "responses": {}}},
        "/apis/apps/v1/stolen": {"get": {"operationId": "no", "responses": {}}},
    },
    "definitions": {"com.example.Flunder": {"type": "object"}, "io.k8s.api.core.v1.Pod": {"type": "string"}},
}


def json_answer(content: Any, status: int = 200) -> bytes:
    return answer(status, orjson.dumps(content), "application/json")


class Wardle:
    """An API server with one group."""

    def __init__(self, directory: Path) -> None:
        now = datetime.now(UTC)
        authority = pki.self_signed_ca("aggregated", pki.new_key(), now=now)
        key = pki.new_key()
        issued = pki.issue_server(authority, "wardle", key.public_key(), names=("api.wardle.svc",), now=now)
        self.ca = pki.certificate_pem(authority.certificate)
        front = pki.self_signed_ca("front-proxy", pki.new_key(), now=now)
        client_key = pki.new_key()
        client = pki.issue_client(front, "front-proxy-client", client_key.public_key(), now=now)
        self.front_proxy = directory / "client.pem", directory / "client.key"
        self.front_proxy[0].write_bytes(pki.certificate_pem(client))
        self.front_proxy[1].write_bytes(pki.key_pem(client_key))
        pair = directory / "server.pem"
        pair.write_bytes(pki.certificate_pem(issued) + pki.key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        context.load_verify_locations(cadata=pki.certificate_pem(front.certificate).decode())
        context.verify_mode = ssl.CERT_REQUIRED
        self.server = Backend(self.respond, context)
        self.answers: dict[str, bytes | None] = {
            "/apis/wardle.example.com/v1": json_answer(RESOURCES),
            "/openapi/v3": json_answer(
                {
                    "paths": {
                        "apis/wardle.example.com/v1": {
                            "serverRelativeURL": "/openapi/v3/apis/wardle.example.com/v1?hash=1"
                        }
                    }
                }
            ),
            "/openapi/v3/apis/wardle.example.com/v1": json_answer({"openapi": "3.0.0"}),
            "/openapi/v2": json_answer(OPENAPI_V2),
        }

    def respond(self, asked: Asked) -> bytes | None:
        path = asked.target.partition("?")[0]
        return self.answers.get(path, json_answer({"kind": "FlunderList", "items": []}))

    def requests(self) -> list[Asked]:
        return [each for each in self.server.asked if each.header("x-remote-user") != "system:kube-aggregator"]


def registration(group: str = "wardle.example.com", version: str = "v1", **spec: Any) -> Object:
    return {
        "metadata": {"name": f"{version}.{group}"},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 10, **spec},
    }


@pytest.fixture
async def wardle(tmp_path: Path) -> AsyncIterator[Wardle]:
    made = Wardle(tmp_path)
    async with made.server:
        yield made


@asynccontextmanager
async def served(wardle: Wardle) -> AsyncIterator[Api]:
    async def dial(address: str, port: int) -> socket.socket:
        if address != "100.96.0.9":
            raise ConnectionRefusedError(111, "Connection refused")
        return await outgoing.dial_machine("127.0.0.1", wardle.server.port)

    certificate = (str(wardle.front_proxy[0]), str(wardle.front_proxy[1]))
    async with serving(Settings(dial=dial, front_proxy=certificate)) as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "wardle"}})
        yield api


@pytest.fixture
async def api(wardle: Wardle) -> AsyncIterator[Api]:
    async with served(wardle) as api:
        yield api


async def service(api: Api, name: str = "api", address: str = "100.96.0.9") -> None:
    ports = [{"port": 443, "targetPort": 8443}]
    await api.post("/api/v1/namespaces/wardle/services", {"metadata": {"name": name}, "spec": {"ports": ports}})
    await api.post(
        "/apis/discovery.k8s.io/v1/namespaces/wardle/endpointslices",
        {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8443}],
            "endpoints": [{"addresses": [address]}],
        },
    )


def remote(wardle: Wardle, name: str = "api", **spec: Any) -> Object:
    bundle = {} if "insecureSkipTLSVerify" in spec else {"caBundle": base64.b64encode(wardle.ca).decode()}
    return {"service": {"namespace": "wardle", "name": name}, **bundle, **spec}


async def condition(api: Api, name: str = "v1.wardle.example.com") -> Object:
    found = await api.get(f"{SERVICES}/{name}")
    conditions = [each for each in (found.get("status") or {}).get("conditions") or () if each["type"] == "Available"]
    return conditions[0] if conditions else {}


async def until(api: Api, reason: str, name: str = "v1.wardle.example.com") -> Object:
    async with asyncio.timeout(20):
        while (found := await condition(api, name)).get("reason") != reason:
            await asyncio.sleep(0.01)
    return found


async def registered(api: Api, wardle: Wardle, **spec: Any) -> None:
    await service(api)
    await api.post(SERVICES, registration(**remote(wardle, **spec)))
    await until(api, "Passed")


async def test_requests_carry_the_name_of_the_caller(api: Api, wardle: Wardle):
    await registered(api, wardle)
    user = UserInfo("jane", ("system:masters", "devs"), "u1", (("example.com/Team", ("a", "b")),))
    headers = {"authorization": "Bearer x", "x-remote-user": "root", "x-remote-group": "system:masters"}
    path = "/apis/wardle.example.com/v1/namespaces/default/flunders"
    found = await api.call("POST", f"{path}?dryRun=All", {"a": 1}, headers=headers, user=user)
    assert found.status == 200 and found.json["kind"] == "FlunderList"
    (asked,) = wardle.requests()
    assert (asked.method, asked.target, asked.body) == ("POST", f"{path}?dryRun=All", b'{"a":1}')
    assert asked.all("x-remote-user") == ["jane"] and asked.all("x-remote-group") == ["system:masters", "devs"]
    assert asked.all("x-remote-extra-example.com%2fteam") == ["a", "b"] and asked.all("x-remote-uid") == ["u1"]
    assert not asked.header("authorization") and asked.header("host") == "api.wardle.svc"


async def test_rights_are_checked_here_first(api: Api, wardle: Wardle):
    await registered(api, wardle)
    user = UserInfo("jane", ("system:authenticated",))
    base = "/apis/wardle.example.com/v1/namespaces/default/flunders"
    for path in (base, f"{base}/x", f"{base}/x/status", f"{base}/x/status/more/and/more"):
        await api.refused(403, "GET", path, user=user)
    for path in (f"{base}/../../other/flunders", f"{base}//x", f"{base}/./x"):
        await api.refused(400, "GET", path, user=user)
    assert not wardle.requests()
    assert (await api.call("GET", "/apis/wardle.example.com/v1", user=user)).json == RESOURCES


async def test_discovery_is_merged(api: Api, wardle: Wardle):
    await registered(api, wardle)
    groups = (await api.get("/apis"))["groups"]
    (own,) = [each for each in groups if each["name"] == "wardle.example.com"]
    assert own["preferredVersion"] == {"groupVersion": "wardle.example.com/v1", "version": "v1"}
    assert (await api.get("/apis/wardle.example.com"))["versions"] == own["versions"]
    listed = (await api.get("/apis", headers=FORM))["items"]
    (item,) = [each for each in listed if each["metadata"]["name"] == "wardle.example.com"]
    (version,) = item["versions"]
    assert version["freshness"] == "Current"
    (resource,) = version["resources"]
    assert resource["resource"] == "flunders" and resource["shortNames"] == ["fl"] and resource["scope"] == "Namespaced"
    assert [each["subresource"] for each in resource["subresources"]] == ["status"]
    await api.ok("DELETE", f"{SERVICES}/v1.wardle.example.com")
    assert not [each for each in (await api.get("/apis"))["groups"] if each["name"] == "wardle.example.com"]
    await api.refused(404, "GET", "/apis/wardle.example.com/v1")


async def test_priorities_order_groups_and_versions(api: Api, wardle: Wardle):
    await registered(api, wardle)
    await api.post(SERVICES, registration(version="v2alpha1", **remote(wardle, versionPriority=100)))
    await api.post(SERVICES, registration("first.example.com", **remote(wardle, groupPriorityMinimum=19000)))
    names = [each["name"] for each in (await api.get("/apis"))["groups"]]
    assert names.index("apiregistration.k8s.io") < names.index("first.example.com") < names.index("apps")
    versions = (await api.get("/apis/wardle.example.com"))["versions"]
    assert [each["version"] for each in versions] == ["v2alpha1", "v1"]


async def test_openapi_is_merged(api: Api, wardle: Wardle):
    await registered(api, wardle)
    index = (await api.get("/openapi/v3"))["paths"]
    assert index["apis/wardle.example.com/v1"]["serverRelativeURL"].endswith("?hash=1") and "apis/apps/v1" in index
    assert await api.get("/openapi/v3/apis/wardle.example.com/v1?hash=1") == {"openapi": "3.0.0"}
    document = await api.get("/openapi/v2")
    assert "/apis/wardle.example.com/v1/flunders" in document["paths"]
    assert "/apis/apps/v1/stolen" not in document["paths"] and "/apis/apps/v1/deployments" in document["paths"]
    assert document["definitions"]["com.example.Flunder"] == {"type": "object"}
    assert document["definitions"]["io.k8s.api.core.v1.Pod"]["type"] == "object"


async def test_watches_stream(api: Api, wardle: Wardle):
    chunks = b'8\r\n{"a":1}\n\r\n8\r\n{"a":2}\n\r\n0\r\n\r\n'
    wardle.answers["/apis/wardle.example.com/v1/flunders"] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    )
    await registered(api, wardle)
    response = await api.raw("GET", "/apis/wardle.example.com/v1/flunders?watch=true")
    assert response.stream is not None
    watch = Watch(response.stream)
    async with asyncio.timeout(10):
        while not watch.ended:
            await asyncio.sleep(0.01)
    assert watch.all == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        ("no service", "ServiceNotFound", 'service/api in "wardle" is not present'),
        ("no port", "ServicePortError", "is not listening on port 8"),
        ("no endpoints", "MissingEndpoints", "have no addresses"),
        ("refused", "FailedDiscoveryCheck", "connection refused"),
        ("authority", "FailedDiscoveryCheck", "failed to verify certificate"),
        ("status", "FailedDiscoveryCheck", "bad status"),
        ("hangs", "FailedDiscoveryCheck", "context deadline exceeded"),
        ("no http", "FailedDiscoveryCheck", "not HTTP"),
    ],
)
async def test_a_server_that_is_down_affects_its_group_only(
    api: Api, wardle: Wardle, monkeypatch: pytest.MonkeyPatch, broken: str, reason: str, words: str
):
    monkeypatch.setattr("coterie.kube.apiserver.aggregator._CHECK_TIMEOUT", 0.3)
    spec = remote(wardle)
    if broken == "no endpoints":
        await api.post(
            "/api/v1/namespaces/wardle/services", {"metadata": {"name": "api"}, "spec": {"ports": [{"port": 443}]}}
        )
    elif broken != "no service":
        await service(api, address="100.96.0.9" if broken != "refused" else "100.96.0.10")
    if broken == "no port":
        spec["service"]["port"] = 8
    if broken == "authority":
        spec["caBundle"] = base64.b64encode(wardle.front_proxy[0].read_bytes()).decode()
    answers = {"status": answer(500), "hangs": None, "no http": b"SSH-2.0\r\n\r\n"}
    if broken in answers:
        wardle.answers["/apis/wardle.example.com/v1"] = answers[broken]
    await api.post(SERVICES, registration(**spec))
    found = await until(api, reason)
    assert found["status"] == "False" and words in found["message"]
    refused = await api.refused(503, "GET", "/apis/wardle.example.com/v1/flunders")
    assert reason in refused.message
    await api.refused(503, "GET", "/apis/wardle.example.com/v1")
    listed = (await api.get("/apis", headers=FORM))["items"]
    fresh = {each["metadata"]["name"]: each["versions"][0]["freshness"] for each in listed}
    assert fresh["wardle.example.com"] == "Stale" and fresh["apps"] == "Current"
    assert (await api.get("/apis/apps/v1"))["resources"] and (await api.get("/openapi/v2"))["paths"]
    table = await api.get(SERVICES, headers={"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"})
    (cells,) = [row["cells"] for row in table["rows"] if row["cells"][0] == "v1.wardle.example.com"]
    assert cells[1:3] == ["wardle/api", f"False ({reason})"]


@pytest.mark.parametrize(
    "garbage", [b"[]", b"{", b"\xff", b'{"groupVersion":"apps/v1","resources":[]}', b'{"resources":{}}']
)
async def test_garbage_discovery_is_stale(api: Api, wardle: Wardle, garbage: bytes):
    wardle.answers["/apis/wardle.example.com/v1"] = answer(200, garbage, "application/json")
    wardle.answers["/openapi/v3"] = wardle.answers["/openapi/v2"] = answer(200, garbage, "application/json")
    await registered(api, wardle)
    listed = (await api.get("/apis", headers=FORM))["items"]
    (item,) = [each for each in listed if each["metadata"]["name"] == "wardle.example.com"]
    assert item["versions"] == [{"version": "v1", "resources": [], "freshness": "Stale"}]
    assert "apis/wardle.example.com/v1" not in (await api.get("/openapi/v3"))["paths"]
    assert (await api.get("/openapi/v2"))["paths"]


async def test_availability_follows_the_service_and_the_clock(api: Api, wardle: Wardle):
    await api.post(SERVICES, registration(**remote(wardle)))
    await until(api, "ServiceNotFound")
    await service(api)
    passed = await until(api, "Passed")
    assert passed["status"] == "True"
    wardle.answers["/apis/wardle.example.com/v1"] = answer(503)
    async with asyncio.timeout(20):
        while (await condition(api)).get("reason") != "FailedDiscoveryCheck":
            await api.clock.advance(31)
            await asyncio.sleep(0.01)
    # What was known of it stays known, as stale.
    (item,) = [
        each
        for each in (await api.get("/apis", headers=FORM))["items"]
        if each["metadata"]["name"] == "wardle.example.com"
    ]
    assert item["versions"][0]["freshness"] == "Stale" and len(item["versions"][0]["resources"]) == 1


async def test_without_verification(api: Api, wardle: Wardle):
    await registered(api, wardle, insecureSkipTLSVerify=True)
    assert (await api.get("/apis/wardle.example.com/v1/flunders"))["kind"] == "FlunderList"


async def test_a_local_group_can_be_given_to_a_service_and_taken_back(api: Api, wardle: Wardle):
    await service(api)
    name = "v1beta1.metrics.k8s.io"
    wardle.answers["/apis/metrics.k8s.io/v1beta1"] = json_answer(
        {**RESOURCES, "groupVersion": "metrics.k8s.io/v1beta1"}
    )
    found = await api.get(f"{SERVICES}/{name}")
    await api.patch(f"{SERVICES}/{name}", {"spec": remote(wardle)})
    await until(api, "Passed", name)
    assert (await api.get("/apis/metrics.k8s.io/v1beta1/nodes"))["kind"] == "FlunderList"
    await api.ok("DELETE", f"{SERVICES}/{name}")
    async with asyncio.timeout(10):
        while (await api.call("GET", f"{SERVICES}/{name}")).status != 200:
            await asyncio.sleep(0.01)
    assert (await api.get(f"{SERVICES}/{name}"))["spec"] == found["spec"]
    assert (await api.get("/apis/metrics.k8s.io/v1beta1/nodes"))["kind"] == "NodeMetricsList"


@pytest.mark.parametrize(
    "name",
    [
        "v1.",
        "v1.apiregistration.k8s.io",
        "v1.rbac.authorization.k8s.io",
        "v1.apps",
        "v1.authentication.k8s.io",
        "v1.certificates.k8s.io",
        "v1.coordination.k8s.io",
    ],
)
async def test_some_groups_are_always_answered_here(api: Api, wardle: Wardle, name: str):
    """Who may write APIServices would get the tokens of all TokenReviews, and decide what controllers see."""
    await service(api)
    await api.patch(f"{SERVICES}/{name}", {"spec": remote(wardle)})
    assert await api.get(SERVICES) and await api.get("/api/v1/namespaces/default")
    assert not api.server.aggregator.served


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"name": "x"}, "metadata.name", 'must be `spec.version+"."+spec.group`: "v1.wardle.example.com"'),
        ({"groupPriorityMinimum": 0}, "spec.groupPriorityMinimum", "must be greater than 0"),
        ({"groupPriorityMinimum": 20001}, "spec.groupPriorityMinimum", "may not be greater than 20000"),
        ({"versionPriority": 1001}, "spec.versionPriority", "may not be greater than 1000"),
        ({"service": {"name": "a"}}, "spec.service.namespace", "Required value"),
        ({"service": {"name": "a", "namespace": "b", "port": 70000}}, "spec.service.port", "port is not valid"),
        ({"caBundle": "YQ=="}, "spec.caBundle", "local APIServices"),
        ({"insecureSkipTLSVerify": True, "caBundle": "YQ==", "service": {"name": "a", "namespace": "b"}}, "spec.insecureSkipTLSVerify", "may not be true if caBundle is present"),
    ],
)  # fmt: skip
async def test_validation(api: Api, changes: Object, field: str, words: str):
    made = registration(**{key: value for key, value in changes.items() if key != "name"})
    made["metadata"]["name"] = changes.get("name", made["metadata"]["name"])
    refused = await api.refused(422, "POST", SERVICES, made)
    assert [each["field"] for each in refused.causes] == [field] and words in refused.message


async def test_a_local_registration_is_available(api: Api):
    made = await api.post(SERVICES, registration())
    assert made["status"]["conditions"][0]["reason"] == "Local"


async def test_redirects_are_not_passed_on(api: Api, wardle: Wardle):
    """A client would follow, with its credentials for this server (CVE-2022-3172)."""
    await registered(api, wardle)
    path = "/apis/wardle.example.com/v1/flunders"
    for location in ("https://evil.example/", "/api/v1/secrets"):
        wardle.answers[path] = answer(302, Location=location)
        refused = await api.refused(503, "GET", path)
        assert "attempted to redirect this request, which is not permitted" in refused.message
    wardle.answers[path] = answer(304)
    assert (await api.call("GET", path)).status == 304


async def test_only_protocols_of_one_request_are_switched_to(api: Api, wardle: Wardle):
    """Over h2c a client would send requests of its own through a connection on which any name is believed."""
    await registered(api, wardle)
    path = "/apis/wardle.example.com/v1/flunders/x/exec"
    for protocol in ("h2c", "tcp", "websocket, h2c"):
        headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": protocol, "http2-settings": "AAMAAABk"}
        await api.refused(400, "GET", path, headers=headers)
    assert not wardle.requests()
    wardle.answers[path] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    await api.refused(503, "GET", path)


@pytest.mark.parametrize("header", ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-scopes"])
async def test_an_identity_is_not_put_together_by_the_caller(api: Api, wardle: Wardle, header: str):
    await registered(api, wardle)
    user = UserInfo("jane", ("system:masters",))
    headers = {header: "root", "connection": "x-remote-user, x-remote-group", "x_remote_user": "root"}
    await api.call("GET", "/apis/wardle.example.com/v1/flunders", headers=headers, user=user)
    (asked,) = wardle.requests()
    assert asked.all("x-remote-user") == ["jane"] and asked.all("x-remote-group") == ["system:masters"]
    assert not [value for _, value in asked.headers if value == "root"]


async def test_groups_of_a_product_are_always_answered_here(wardle: Wardle):
    class Definitions:
        hash_annotation = "h"

        def hashes(self) -> dict[str, str]:
            return {"jobs.product.example.com": ""}

        def load(self, names: Any) -> list[Object]:
            return []

    extension = ApiServerExtension("product", definitions=Definitions())
    async with serving(Settings(extensions=[extension])) as api:
        await api.namespace("wardle")
        await api.post(SERVICES, registration("product.example.com", **remote(wardle)))
        assert not api.server.aggregator.served
        await api.post(SERVICES, registration(**remote(wardle)))
        assert api.server.aggregator.served


@pytest.mark.parametrize("query", ["watch=1", "watch=", "watch", "wat%63h=true", "limit=1&watch=t&watch=false"])
async def test_a_watch_takes_the_right_to_watch_however_it_is_written(api: Api, wardle: Wardle, query: str):
    await registered(api, wardle)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": ["wardle.example.com"], "resources": ["flunders"], "verbs": ["list"]}]
    await api.post(f"{rbac}/clusterroles", {"metadata": {"name": "r"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}
    await api.post(f"{rbac}/clusterrolebindings", {"metadata": {"name": "r"}, "roleRef": role, "subjects": [subject]})
    user = UserInfo("jane", ("system:authenticated",))
    path = "/apis/wardle.example.com/v1/flunders"
    assert (await api.call("GET", f"{path}?watch=false", user=user)).status == 200
    await api.refused(403, "GET", f"{path}?{query}", user=user)
