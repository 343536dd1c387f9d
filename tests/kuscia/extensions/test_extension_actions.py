"""Actions, Triggers and ActionGrants at a real API server: refusals, warnings, roles."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import Request, Response, UserInfo
from coterie.kube.api.errors import Invalid
from coterie.kube.api.types.nodes import SHARED_NETWORK
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.functions import code
from coterie.kuscia.api.functions.types import ACTIONS, ActionSpec
from coterie.kuscia.extensions.actions import ActionAdmission
from coterie.kuscia.extensions.apiserver import KUSCIA

ROOT = "/apis/coterie.io/v1alpha1/namespaces/default"
ADMIN = UserInfo("admin", ("system:masters",))
SCRIPT = "def action(req):\n    return None\n"
MERGE = "application/merge-patch+json"


class Server:
    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def call(
        self, method: str, path: str, body: Any = None, user: UserInfo = ADMIN, content: str = "application/json"
    ) -> tuple[int, Any, list[str]]:
        data = orjson.dumps(body) if body is not None else b""
        request = Request(
            method, posixpath.normpath(f"{ROOT}/{path}"), headers={"content-type": content}, body=data, user=user
        )
        response = await self._server.call(request)
        assert isinstance(response, Response)
        warnings = [value for name, value in response.headers if name.lower() == "warning"]
        return response.status, orjson.loads(response.body), warnings

    async def create(self, plural: str, kind: str, name: str, **spec: Any) -> tuple[int, str]:
        meta = {"apiVersion": "coterie.io/v1alpha1", "kind": kind, "metadata": {"name": name}}
        status, answer, _ = await self.call("POST", plural, {**meta, "spec": spec})
        return status, answer.get("message", "")

    async def action(self, name: str, **spec: Any) -> tuple[int, str]:
        return await self.create("actions", "Action", name, **{"script": SCRIPT, **spec})

    async def trigger(self, name: str, **spec: Any) -> tuple[int, str]:
        return await self.create("triggers", "Trigger", name, **spec)

    async def patch(self, path: str, spec: Any) -> tuple[int, str, list[str]]:
        status, answer, warnings = await self.call("PATCH", path, {"spec": spec}, content=MERGE)
        return status, answer.get("message", ""), warnings


@pytest.fixture
async def api() -> AsyncIterator[Server]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    yield Server(server)
    await server.stop()
    await store.close()


async def test_c37_a_cycle_is_refused_and_named(api: Server) -> None:
    assert (await api.action("b"))[0] == 201
    assert (await api.action("a", next=["b", "bob/score"]))[0] == 201
    status, message, _ = await api.patch("actions/b", {"next": ["a"]})
    assert status == 422 and "b -> a -> b" in message
    status, message = await api.action("c", next=["a", "nobody"])
    assert status == 422 and 'spec.next[1]: Not found: "nobody"' in message
    status, message = await api.action("self", next=["self"])
    assert status == 422 and "self -> self" in message


async def test_of_two_writes_at_once_that_form_a_cycle_one_is_refused(api: Server) -> None:
    assert [await api.action(name) for name in "abcd"] == [(201, "")] * 4
    done = await asyncio.gather(
        *(api.patch(f"actions/{name}", {"next": [target]}) for name, target in ("ab", "bc", "cd", "da"))
    )
    assert sorted(status for status, _, _ in done) == [200, 200, 200, 422]


def test_a_write_in_progress_counts() -> None:
    """Two requests at once, before either is stored."""
    admit = ActionAdmission(lambda key: None)

    def attempt(name: str, target: str, old: Any) -> AdmissionRequest:
        spec = {"script": SCRIPT, "next": [target]}
        return AdmissionRequest("update", ACTIONS.resource, "default", name, {"spec": spec}, old, ADMIN, dry_run=False)

    first = attempt("a", "b", {"spec": {"script": SCRIPT, "next": ["b"], "concurrency": 2}})
    admit(first)
    with pytest.raises(Invalid, match="b -> a -> b"):
        admit(attempt("b", "a", {"spec": {"script": SCRIPT}}))
    for undo in first.release:
        undo()
    admit(attempt("b", "a", {"spec": {"script": SCRIPT, "next": ["a"], "concurrency": 2}}))


async def test_who_is_called_cannot_be_deleted(api: Server) -> None:
    await api.action("b")
    await api.action("a", next=["b"])
    status, answer, _ = await api.call("DELETE", "actions/b")
    assert status == 403 and "named in spec.next of a;" in answer["message"]
    await api.trigger("t", action="a", schedule="@daily")
    status, _, warnings = await api.call("DELETE", "actions/a")
    assert status == 200 and "Trigger t calls this action" in warnings[0]
    assert (await api.call("DELETE", "actions/b"))[0] == 200
    await api.action("b")
    await api.action("a", next=["b"])
    assert (await api.call("DELETE", "actions/b", user=UserInfo("system:coterie-controllers", ("system:masters",))))[
        0
    ] == 200


@pytest.mark.parametrize(
    ("name", "spec", "why"),
    [
        ("a_b", {}, "is invalid"),
        ("a.b", {}, "at most 40 lower case letters"),
        ("1a", {}, "a letter"),
        ("x" * 41, {}, "at most 40"),
        ("a", {"script": "def action(:\n"}, "spec.script: Invalid value: action.py, line 1: "),
        ("a", {"script": None}, "the code is missing"),
        ("a", {"archive": "AAAA"}, "name a script or an archive, not both"),
        ("a", {"script": None, "archive": "AAAA"}, "spec.archive: Invalid value: the archive cannot be read"),
        ("a", {"handler": "main.run"}, "a script is the module action"),
        ("a", {"command": ["x"]}, "command is for images"),
        ("a", {"next": ["../x"]}, "spec.next[0]"),
        ("a", {"env": [{"name": "COTERIE_ACTOR_TOKEN", "value": "x"}]}, "set by the system"),
        ("a", {"scaling": {"minReplicas": 9}}, "minReplicas is more than maxReplicas"),
        ("a", {"traffic": [{"version": "v0123456789", "percent": 100}]}, "the versions of this action are: v"),
        ("a", {"next": "b"}, "spec.next"),
        (
            "a",
            {"script": None, "image": "mine", "traffic": [{"version": "v0123456789", "percent": 100}]},
            "not of an image",
        ),
    ],
)
async def test_actions_that_are_refused(api: Server, name: str, spec: Any, why: str) -> None:
    whole = {"script": SCRIPT, **spec}
    given = {key: value for key, value in whole.items() if value is not None}
    status, message = await api.create("actions", "Action", name, **given)
    assert status == 422 and why in message, message


async def test_a_syntax_error_in_an_update_is_a_warning(api: Server) -> None:
    await api.action("a")
    status, _, warnings = await api.patch("actions/a", {"script": "def action(:\n"})
    assert status == 200 and "line 1" in warnings[0] and "go on with the code that they have" in warnings[0]


async def test_traffic_names_versions_that_exist(api: Server) -> None:
    await api.action("a")
    own = code.version_name(ActionSpec(script=SCRIPT))
    assert (await api.patch("actions/a", {"traffic": [{"version": own, "percent": 100}]}))[0] == 200
    old = "v0123456789"
    split = {"traffic": [{"version": own, "percent": 60}, {"version": old, "percent": 30}]}
    status, message, _ = await api.patch("actions/a", split)
    assert status == 422 and f'"{old}"' in message and "instead of 100" in message
    status_body = {"status": {"versions": [{"name": old}, {"name": own}]}}
    assert (await api.call("PATCH", "actions/a/status", status_body, content=MERGE))[0] == 200
    split["traffic"][1]["percent"] = 40
    assert (await api.patch("actions/a", split))[0] == 200


async def test_triggers(api: Server) -> None:
    await api.action("a")
    assert (await api.trigger("t", action="a", http={"path": "/a", "methods": ["GET"]}))[0] == 201
    status, message = await api.trigger("t2", action="a", http={"path": "/a"})
    assert status == 422 and "Trigger t has this path with GET already" in message
    assert (await api.patch("triggers/t", {"http": {"methods": ["GET", "POST"]}}))[0] == 200
    status, message = await api.trigger("t3", action="b", schedule="* * * * *")
    assert status == 422 and 'spec.action: Not found: "b"' in message
    for spec in ({}, {"schedule": "@daily", "topic": "x"}):
        status, message = await api.trigger("t4", action="a", **spec)
        assert status == 422 and "exactly one of http, schedule, topic and domainData" in message
    status, message = await api.trigger("t5", action="a", schedule="60 * * * *")
    assert status == 422 and "spec.schedule" in message


async def test_dead_letters_can_only_be_replayed(api: Server) -> None:
    assert (await api.create("deadletters", "DeadLetter", "d", action="a", request="r"))[0] == 201
    assert (await api.patch("deadletters/d", {"replay": True}))[0] == 200
    status, message, _ = await api.patch("deadletters/d", {"action": "b"})
    assert status == 422 and "only replay can be changed" in message


async def test_grants(api: Server) -> None:
    await api.action("score")
    create = ("actiongrants", "ActionGrant", "g")
    assert (await api.create(*create, action="other", grantDomain="bob"))[0] == 422
    assert (await api.create(*create, action="score", grantDomain="default"))[0] == 422
    assert (await api.create(*create, action="score", grantDomain="bob", limit={"calls": 5}))[0] == 201
    status, message, _ = await api.patch("actiongrants/g", {"grantDomain": "carol"})
    assert status == 422 and "cannot be changed" in message
    assert (await api.patch("actiongrants/g", {"limit": {"calls": 6}}))[0] == 200


async def test_who_writes_where_no_domain_is_is_warned(api: Server) -> None:
    body = {
        "apiVersion": "coterie.io/v1alpha1",
        "kind": "Action",
        "metadata": {"name": "a"},
        "spec": {"script": SCRIPT},
    }
    status, _, warnings = await api.call("POST", "actions", body)
    assert status == 201 and "no domain has the namespace default" in warnings[0]


async def test_lites_and_partners_have_no_functions_here(api: Server) -> None:
    """Nobody would run them: a lite makes no pods itself, and a partner's namespace here is a mirror."""
    centers: dict[str, Any] = {
        "default": {},
        "lite": {"authCenter": {"authenticationType": "Token", "tokenGenMethod": "UID-RSA-GEN"}},
        "partner": {"role": "partner", "interConnProtocols": ["kuscia"]},
        "far-lite": {"role": "partner", "master": "partner", "interConnProtocols": ["kuscia"]},
    }
    for name, spec in centers.items():
        domain = {
            "apiVersion": "kuscia.secretflow/v1alpha1",
            "kind": "Domain",
            "metadata": {"name": name},
            "spec": spec,
        }
        status, answer, _ = await api.call("POST", "../../../../kuscia.secretflow/v1alpha1/domains", domain)
        assert status == 201, answer
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await api.call("POST", "../../../../../api/v1/namespaces", space)
    body = {
        "apiVersion": "coterie.io/v1alpha1",
        "kind": "Action",
        "metadata": {"name": "a"},
        "spec": {"script": SCRIPT},
    }
    for name, why in (("lite", "the domain lite is a lite"), ("partner", "is a partner"), ("far-lite", "is a partner")):
        status, answer, _ = await api.call("POST", f"../{name}/actions", body)
        assert status == 403 and why in answer["message"], answer
    assert (await api.action("a", next=["partner/score", "unknown/score"])) == (201, "")
    for name in ("lite", "far-lite"):
        status, message = await api.action("b", next=[f"{name}/score"])
        assert status == 422 and f'spec.next: Invalid value: "{name}": the domain is a lite' in message
        grant = {"action": "a", "grantDomain": name}
        status, message = await api.create("actiongrants", "ActionGrant", "g", **grant)
        assert status == 422 and f'spec.grantDomain: Invalid value: "{name}"' in message
    status, message = await api.create("actiongrants", "ActionGrant", "g", action="a", grantDomain="partner")
    assert status == 201, message


def node(name: str, reason: str) -> dict[str, Any]:
    condition = {"type": "NetworkUnavailable", "status": "False", "reason": reason}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kuscia.secretflow/namespace": "default"}},
        "status": {"conditions": [condition]},
    }


async def test_functions_are_refused_where_no_node_has_pod_networks(api: Server) -> None:
    domain = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "default"}, "spec": {}}
    assert (await api.call("POST", "../../../../kuscia.secretflow/v1alpha1/domains", domain))[0] == 201
    nodes = "../../../../../api/v1/nodes"
    assert await api.action("before") == (201, "")
    for name, reason in (("n1", SHARED_NETWORK), ("other", "AgentHasNetwork")):
        body = node(name, reason)
        if name == "other":
            body["metadata"]["labels"] = {}
        assert (await api.call("POST", nodes, body))[0] == 201
        assert (await api.call("PUT", f"{nodes}/{name}/status", body))[0] == 200
    for refused in (await api.action("a"), await api.trigger("t", action="before", http={"path": "/t"})):
        assert refused[0] == 403 and "NotFenced" in refused[1] and "coterie status" in refused[1]
    # What is there can be changed and removed.
    assert (await api.patch("actions/before", {"timeoutSeconds": 5}))[0] == 200
    body = node("n2", "AgentHasNetwork")
    assert (await api.call("POST", nodes, body))[0] == 201
    assert await api.action("a") == (201, "")
