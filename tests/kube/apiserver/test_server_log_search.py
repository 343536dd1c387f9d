"""Searching the logs of a namespace: who may, which nodes are asked, and what they are believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
import pytest
from server_kit import Api, serving

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.auth.nodes import NodeOwnership
from coterie.kube.apiserver.extension import ApiServerExtension
from coterie.kube.apiserver.server import Settings

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/alice"
SEARCH = "/api/v1/namespaces/alice/pods/*/log"
READER, NAMED, OUTSIDER = (UserInfo(name, ("system:authenticated",)) for name in ("reader", "named", "outsider"))


SERVERS: list[asyncio.Server] = []


def line(second: int, text: str = "x", **more: str) -> dict[str, str]:
    return {"at": f"2026-01-02T03:04:{second:02d}.000000000Z", "text": text, "source": "engine", **more}


class Agent:
    """An agent that has one page."""

    def __init__(self, *lines: dict[str, str], frontier: str = "", status: int = 200) -> None:
        self.answer: Any = {"lines": list(lines), "frontier": frontier, "notes": []}
        self.status = status
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path, _, query = head.split(" ")[1].partition("?")
        self.asked.append((path, dict(parse_qsl(query))))
        body = orjson.dumps(self.answer)
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (self.status, len(body), body))
        await writer.drain()
        writer.close()


class PlaneLogs:
    async def search(self, namespace: str, params: Mapping[str, str]) -> bytes:
        return orjson.dumps({"lines": [line(7, f"plane for {namespace}")], "frontier": "", "notes": []})


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    owned = ApiServerExtension("test", node_ownership=NodeOwnership("owner"))
    async with serving(Settings(extensions=[owned], log_search=PlaneLogs())) as api:
        await api.namespace("alice")
        for user, names in (("reader", None), ("named", ["one-pod"])):
            rule = {
                "apiGroups": [""],
                "resources": ["pods/log"],
                "verbs": ["get"],
                **({"resourceNames": names} if names else {}),
            }
            await api.post(f"{RBAC}/roles", {"metadata": {"name": user}, "rules": [rule]})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
            subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}
            binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
            await api.post(f"{RBAC}/rolebindings", binding)
        yield api
    while SERVERS:
        SERVERS.pop().close()


async def node(api: Api, name: str, owner: str, agent: Agent) -> None:
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    SERVERS.append(server)
    agent.port = server.sockets[0].getsockname()[1]
    await api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {"owner": owner} if owner else {}}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": agent.port}},
    }
    await api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


async def test_only_who_may_read_every_log_of_the_namespace_may_search(api: Api) -> None:
    await api.get(SEARCH + "?job=j", user=READER)
    for user in (NAMED, OUTSIDER):
        await api.refused(403, "GET", SEARCH + "?job=j", user=user)
    await api.refused(403, "GET", "/api/v1/namespaces/default/pods/*/log?job=j", user=READER)


async def test_the_nodes_of_the_namespace_are_asked_and_no_others(api: Api) -> None:
    mine, shared, theirs = Agent(line(1, "mine")), Agent(line(2, "shared")), Agent(line(3, "theirs"))
    await node(api, "n-alice", "alice", mine)
    await node(api, "n-shared", "", shared)
    await node(api, "n-bob", "bob", theirs)
    found = await api.get(SEARCH + "?job=j&grep=a%2Bb", user=READER)
    assert [each["text"] for each in found["lines"]] == ["mine", "shared", "plane for alice"]
    assert mine.asked == [("/podLogs/alice", {"job": "j", "grep": "a+b"})]
    assert theirs.asked == []
    skipped = await api.get(SEARCH + "?job=j&skipNodes=n-alice", user=READER)
    assert [each["text"] for each in skipped["lines"]] == ["shared", "plane for alice"]


async def test_pages_of_several_nodes_are_one_page(api: Api) -> None:
    """What is older than the newest frontier is not complete yet."""
    first = Agent(line(5, "a5"), line(9, "a9"), frontier=line(5)["at"])
    second = Agent(line(1, "b1"), line(6, "b6"), line(8, "b8"))
    await node(api, "n-1", "alice", first)
    await node(api, "n-2", "alice", second)
    found = await api.get(SEARCH + "?job=j", user=READER)
    assert [each["text"] for each in found["lines"]] == ["a5", "b6", "plane for alice", "b8", "a9"]
    assert found["cursor"] == line(5)["at"]
    cut = await api.get(SEARCH + "?job=j&limit=2", user=READER)
    assert ([each["text"] for each in cut["lines"]], cut["cursor"]) == (["b8", "a9"], line(8)["at"])


async def test_an_agent_is_believed_only_about_the_namespace(api: Api) -> None:
    liar = Agent(line(1, "x", party="bob", node="elsewhere"))
    await node(api, "n-1", "alice", liar)
    found = (await api.get(SEARCH + "?job=j", user=READER))["lines"][0]
    assert (found["party"], found["node"]) == ("alice", "n-1")


@pytest.mark.parametrize("answer", [[], {"lines": [{"at": 5}]}, {"lines": "x"}, {}])
async def test_an_answer_that_is_not_understood_becomes_a_note(api: Api, answer: Any) -> None:
    agent = Agent()
    agent.answer = answer
    await node(api, "n-1", "alice", agent)
    found = await api.get(SEARCH + "?job=j", user=READER)
    assert len(found["lines"]) == 1
    assert "node n-1 was not searched" in found["notes"][0]


async def test_nodes_that_do_not_answer_become_notes(api: Api) -> None:
    await api.post("/api/v1/nodes", {"metadata": {"name": "silent", "labels": {"owner": "alice"}}})
    old = Agent(status=404)
    await node(api, "old", "alice", old)
    found = await api.get(SEARCH + "?job=j", user=READER)
    assert sorted(each.split(" was not")[0] for each in found["notes"]) == ["node old", "node silent"]


async def test_what_a_node_refuses_is_refused(api: Api) -> None:
    agent = Agent(status=400)
    agent.answer = {"kind": "Status", "code": 400, "reason": "BadRequest", "message": "grep: is no regular expression"}
    await node(api, "n-1", "alice", agent)
    assert "grep: is no regular" in (await api.refused(400, "GET", SEARCH + "?job=j", user=READER)).message


async def test_parameters_are_bounded(api: Api) -> None:
    await api.refused(400, "GET", SEARCH + "?job=" + "j" * 20_000, user=READER)
