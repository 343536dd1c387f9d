"""metrics.k8s.io and custom.metrics.k8s.io, with an agent of a few lines on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
import pytest
from server_kit import PODS, Api, pod, serving

from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.extension import ApiServerExtension
from coterie.kube.apiserver.server import Settings

METRICS = "/apis/metrics.k8s.io/v1beta1"
CUSTOM = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods"
TIME = "2026-01-02T12:00:00Z"


def used(nanocores: int, bytes_: int, window: float = 14.25) -> Object:
    return {
        "cpu": {"time": TIME, "usageNanoCores": nanocores, "usageCoreNanoSeconds": 1, "windowSeconds": window},
        "memory": {"time": TIME, "workingSetBytes": bytes_},
    }


class Agent:
    def __init__(self) -> None:
        self.summary: Object = {"node": {}, "pods": []}
        self.series: dict[str, list[Object]] = {}
        self.asked: list[dict[str, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path, _, query = head.split(" ")[1].partition("?")
        if path == "/stats/summary":
            body = orjson.dumps(self.summary)
        else:
            self.asked.append(dict(parse_qsl(query)))
            body = orjson.dumps({"time": TIME, "samples": self.series.get(unquote(path.rsplit("/", 1)[1]), [])})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()


@pytest.fixture
async def agent() -> Agent:
    return Agent()


@pytest.fixture
async def api(agent: Agent) -> AsyncIterator[Api]:
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with serving() as api:
        await api.post("/api/v1/nodes", {"metadata": {"name": "n", "labels": {"zone": "a"}}})
        await api.post("/api/v1/nodes", {"metadata": {"name": "silent"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await api.patch("/api/v1/nodes/n/status", {"status": status})
        containers = []
        for name, app in (("p", "web"), ("q", "web"), ("r", "db")):
            made = pod(name, labels={"app": app})
            made["metadata"]["annotations"] = {"prometheus.io/port": "8080"} if name != "r" else {}
            uid = (await api.post(PODS, made))["metadata"]["uid"]
            await api.post(f"{PODS}/{name}/binding", {"target": {"name": "n"}})
            await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
            reference = {"name": name, "namespace": "default", "uid": uid}
            containers.append({"podRef": reference, "containers": [{"name": "main", **used(1_500_000, 2**20)}]})
        agent.summary = {"node": {"nodeName": "n", **used(500_000_000, 2**31)}, "pods": containers[:2]}
        yield api
    server.close()


async def test_pods_with_the_time_and_window_of_the_agent(api: Api) -> None:
    found = await api.get(f"{METRICS}/namespaces/default/pods")
    assert (found["kind"], found["apiVersion"]) == ("PodMetricsList", "metrics.k8s.io/v1beta1")
    assert [each["metadata"]["name"] for each in found["items"]] == ["p", "q"], "the agent knows nothing of r"
    one = found["items"][0]
    assert (one["timestamp"], one["window"]) == (TIME, "14.25s")
    assert one["metadata"]["labels"] == {"app": "web"} and one["metadata"]["namespace"] == "default"
    assert one["containers"] == [{"name": "main", "usage": {"cpu": "2m", "memory": "1024Ki"}}]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("pods", ["p", "q"]),
        ("namespaces/other/pods", []),
        ("pods?labelSelector=app%3Ddb", []),
        ("pods?labelSelector=app%3Dweb", ["p", "q"]),
        ("nodes", ["n"]),
        ("nodes?labelSelector=zone%3Da", ["n"]),
        ("nodes?labelSelector=zone%3Db", []),
    ],
)
async def test_lists_by_namespace_and_labels(api: Api, path: str, names: list[str]) -> None:
    found = await api.get(f"{METRICS}/{path}")
    assert [each["metadata"]["name"] for each in found["items"]] == names


async def test_one_object_and_what_has_no_figures(api: Api) -> None:
    assert (await api.get(f"{METRICS}/nodes/n"))["usage"] == {"cpu": "500m", "memory": "2097152Ki"}
    assert (await api.get(f"{METRICS}/namespaces/default/pods/p"))["kind"] == "PodMetrics"
    for path in ("nodes/silent", "nodes/none", "namespaces/default/pods/r", "namespaces/default/pods/none"):
        await api.refused(404, "GET", f"{METRICS}/{path}")


async def test_the_metrics_of_pods_that_serve_some(api: Api, agent: Agent) -> None:
    agent.series = {
        "p": [{"labels": {"q": "a"}, "value": 3}, {"labels": {"q": "b"}, "value": 4.5, "windowSeconds": 15.0}],
        "r": [{"labels": {}, "value": 9}],
    }
    found = await api.get(f"{CUSTOM}/*/queue_length")
    assert found["kind"] == "MetricValueList"
    assert [(each["describedObject"]["name"], each["value"]) for each in found["items"]] == [("p", "7500m")]
    assert found["items"][0]["windowSeconds"] == 15 and found["items"][0]["timestamp"] == TIME
    assert agent.asked[0] == {"port": "8080", "path": "/metrics", "metric": "queue_length"}
    some = await api.get(f"{CUSTOM}/*/queue_length?metricLabelSelector=q%3Da")
    assert [each["value"] for each in some["items"]] == ["3"]
    none = await api.refused(404, "GET", f"{CUSTOM}/*/queue_length?labelSelector=app%3Ddb")
    assert "prometheus.io/port" in none.message


async def test_an_agent_is_believed_about_its_own_pods_only(api: Api, agent: Agent) -> None:
    """Agents of other domains report here too: they must not decide what an autoscaler sees of our pods."""
    uid = (await api.post(PODS, pod("elsewhere")))["metadata"]["uid"]
    await api.post(f"{PODS}/elsewhere/binding", {"target": {"name": "silent"}})
    reference = {"name": "elsewhere", "namespace": "default", "uid": uid}
    agent.summary["pods"].append({"podRef": reference, "containers": [{"name": "main", **used(10**9, 1)}]})
    await api.refused(404, "GET", f"{METRICS}/namespaces/default/pods/elsewhere")
    found = await api.get(f"{METRICS}/namespaces/default/pods")
    assert [each["metadata"]["name"] for each in found["items"]] == ["p", "q"]


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"node": {}},
        {"node": used(-1, 1)},
        {"node": used(2**70, 1)},
        {"node": used(1, 1), "pods": [{"podRef": 5}]},
        [],
    ],
)
async def test_strange_figures_leave_the_node_out(api: Api, agent: Agent, summary: Any) -> None:
    agent.summary = summary
    assert (await api.get(f"{METRICS}/nodes"))["items"] == []
    assert (await api.get(f"{METRICS}/pods"))["items"] == []


async def test_engines_announce_metrics_in_their_own_words(agent: Agent) -> None:
    """The annotations of a product, which an extension of the server names."""
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    agent.series = {"e": [{"labels": {}, "value": 2}]}
    extension = ApiServerExtension("x", metrics_annotations=(("x.example/port", "x.example/path"),))
    async with serving(Settings(extensions=(extension,))) as api:
        await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.sockets[0].getsockname()[1]}},
        }
        await api.patch("/api/v1/nodes/n/status", {"status": status})
        made = pod("e")
        made["metadata"]["annotations"] = {"x.example/port": "9000", "x.example/path": "/m"}
        await api.post(PODS, made)
        await api.post(f"{PODS}/e/binding", {"target": {"name": "n"}})
        await api.patch(f"{PODS}/e/status", {"status": {"phase": "Running"}})
        found = await api.get(f"{CUSTOM}/e/load")
        assert found["items"][0]["value"] == "2"
        assert agent.asked == [{"port": "9000", "path": "/m", "metric": "load"}]
    server.close()


async def test_who_may_view_a_namespace_may_see_what_it_uses(api: Api) -> None:
    viewer = UserInfo("eve", ("system:authenticated",))
    await api.refused(403, "GET", f"{METRICS}/namespaces/default/pods", user=viewer)
    binding = {
        "metadata": {"name": "eve"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}],
    }
    await api.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
    assert (await api.get(f"{METRICS}/namespaces/default/pods", user=viewer))["items"]
    await api.refused(403, "GET", f"{METRICS}/nodes", user=viewer)


async def test_custom_metrics_are_not_a_listed_resource(api: Api) -> None:
    groups = [each["name"] for each in (await api.get("/apis"))["groups"]]
    assert "metrics.k8s.io" in groups and "custom.metrics.k8s.io" not in groups
    await api.refused(405, "POST", f"{CUSTOM}/p/queue", {})
