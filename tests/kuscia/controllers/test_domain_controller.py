"""Domains: what is made around them, what their accounts may do, their tokens and their end. Rows, then the API server."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from domain_world import (
    ACCOUNT,
    CDR,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    DOMAIN,
    DR,
    NAMESPACE,
    PLANE,
    ROLE,
    ROLE_BINDING,
    WITH_COLLECTOR,
    Mesh,
    a_domain,
    mesh,
)
from workload_world import NODE, POD, QUOTA

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import BUILTIN
from coterie.kube.api.types.core import NAMESPACES, Namespace
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.apiserver.auth.rules import compile_rules
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.domain import DOMAINS, DeployToken, Domain, kuscia_resource
from coterie.kuscia.controllers.domain import objects, plan
from coterie.kuscia.controllers.domain.controller import holds

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
STAMP = "2026-01-02T12:00:00Z"


def token(text: str, state: str, at: int = 0) -> DeployToken:
    return DeployToken(token=text, state=state, last_transition_time=f"2026-01-01T00:00:{at:02}Z")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [("new", "unused")]),
        ([token("a", "unused")], [("a", "unused")]),
        ([token("a", "used")], [("a", "used"), ("new", "unused")]),
        ([token("a", "used"), token("b", "unused")], [("a", "used"), ("b", "unused")]),
        ([token("a", "used", 1), token("b", "used", 2)], [("b", "used"), ("new", "unused")]),
        ([token("a", "unused", 2), token("b", "unused", 1)], [("a", "unused")]),
        ([token("a", "used", 2), token("b", "used", 1), token("c", "unused")], [("a", "used"), ("c", "unused")]),
        ([token("a", "burnt")], [("new", "unused")]),
    ],
    ids=["none", "unused", "used", "both", "two-used", "two-unused", "used-again", "unknown-state"],
)
def test_deploy_tokens(before: list[DeployToken], after: list[tuple[str, str]]) -> None:
    made = plan.deploy_tokens(before, STAMP, lambda: "new")
    assert [(each.token, each.state) for each in made] == after
    assert plan.deploy_tokens(made, STAMP, lambda: "other") == made


def test_tokens_are_random_and_hidden() -> None:
    drawn = {plan.new_token() for _ in range(50)}
    assert len(drawn) == 50
    assert all(len(each) == 32 and not set(each) & set("01oO") for each in drawn)
    secret = plan.new_token()
    domain = Domain(status=plan.DomainStatus(deploy_token_statuses=(DeployToken(token=secret, state="unused"),)))
    assert secret not in repr(domain)


def a_typed(name: str = "alice", **spec: Any) -> Domain:
    return DOMAINS.decode(DOMAINS.as_dynamic.encode({"metadata": {"name": name, "uid": "u"}, "spec": spec}))


PARTNER = {"role": "partner"}
FULL = {"authCenter": {"authenticationType": "Token", "tokenGenMethod": "RAND-GEN"}}
SELF_KINDS = ["ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding"]


@pytest.mark.parametrize(
    ("domain", "kinds", "route"),
    [
        (a_typed(), SELF_KINDS, None),
        (a_typed(**FULL), SELF_KINDS, ("Token", "kuscia", "RSA-GEN")),
        (a_typed(PLANE, **FULL), SELF_KINDS, None),
        (a_typed(authCenter={"authenticationType": "MTLS"}), SELF_KINDS, ("MTLS", "kuscia", None)),
        (a_typed(**PARTNER), SELF_KINDS[:3], None),
        (a_typed(**PARTNER, **FULL), SELF_KINDS[:3], ("Token", "kuscia", "RSA-GEN")),
        (a_typed(**PARTNER, **FULL, master="alice"), SELF_KINDS[:3], ("Token", "kuscia", "RSA-GEN")),
        (a_typed(**PARTNER, **FULL, master="theirs", interConnProtocols=["kuscia"]), [], None),
        (a_typed(**PARTNER, **FULL, interConnProtocols=["bfia"]), SELF_KINDS[:3], ("Token", "bfia", "RSA-GEN")),
    ],
    ids=["self", "lite", "plane", "mtls", "partner", "partner-auth", "own-master", "partner-lite", "bfia"],
)
def test_objects_of_a_domain(domain: Domain, kinds: list[str], route: tuple[str, str, str | None] | None) -> None:
    assert [each.kind.resource.kind for each in objects.accounts(domain, PLANE)] == kinds
    made = objects.route(domain, PLANE)
    if route is None or made is None:
        assert made is route
        return
    spec = made["spec"]
    method = spec.get("tokenConfig", {}).get("tokenGenMethod")
    assert (spec["authenticationType"], spec["interConnProtocol"], method) == route
    assert "requestHeadersToAdd" not in spec  # no credentials in objects


def test_a_partner_may_touch_mirrored_kinds_only() -> None:
    rules = next(
        each.object["rules"] for each in objects.accounts(a_typed(**PARTNER), PLANE) if each.kind is objects.ROLE
    )
    allowed = {resource for rule in rules for resource in rule["resources"]}
    assert not allowed & {"*", "secrets", "pods", "configmaps", "domainroutes", "gateways"}
    assert {"kusciajobs", "kusciajobsummaries", "kusciajobs/status"} <= allowed


def a_node(ready: str | None, beat: str = STAMP, version: str = "v1") -> Node:
    told = [{"type": "Ready", "status": ready, "lastHeartbeatTime": beat, "lastTransitionTime": STAMP}] if ready else []
    body = {"metadata": {"name": "n"}, "status": {"conditions": told, "nodeInfo": {"kubeletVersion": version}}}
    return NODES.decode(NODES.as_dynamic.encode(body))


@pytest.mark.parametrize(
    ("node", "changes"),
    [
        (a_node("True"), False),
        (a_node("True", "2026-01-02T12:00:29Z"), False),
        (a_node("True", "2026-01-02T12:00:30Z"), True),
        (a_node("True", "2026-01-02T11:00:00Z"), True),
        (a_node("False"), True),
        (a_node("Unknown"), True),
        (a_node(None), True),
        (a_node("True", version="v2"), True),
    ],
    ids=["same", "beat", "later-beat", "clock-set-back", "not-ready", "unknown", "never-spoke", "upgraded"],
)
def test_node_statuses(node: Node, changes: bool) -> None:
    before = plan.DomainStatus(node_statuses=(plan.node_status(a_node("True")),))
    domain = Domain(metadata=a_typed(PLANE).metadata, status=before)
    patch = plan.status_patch(domain, [node], PLANE, NOW)
    assert (patch is not None) is changes
    assert plan.status_patch(domain, [], PLANE, NOW) == {"nodeStatuses": None}


def test_the_planes_own_domain_has_no_deploy_token() -> None:
    assert plan.status_patch(a_typed(PLANE), [], PLANE, NOW) is None
    assert plan.status_patch(a_typed("alice"), [], PLANE, NOW) is not None
    assert plan.status_patch(a_typed("alice", role="partner"), [], PLANE, NOW) is None


def a_namespace(name: str, **labels: str) -> Namespace:
    told = {f"kuscia.secretflow/{key.replace('_', '-')}": value for key, value in labels.items()}
    return NAMESPACES.decode(NAMESPACES.as_dynamic.encode({"metadata": {"name": name, "labels": told}}))


@pytest.mark.parametrize(
    ("name", "namespace", "mark", "revoke", "warn"),
    [
        ("alice", a_namespace("alice", domain_name="alice"), True, True, False),
        ("alice", a_namespace("alice", domain_name="alice", deleted="true"), False, True, False),
        ("alice", a_namespace("alice"), False, False, False),
        ("alice", None, False, False, False),
        (PLANE, a_namespace(PLANE, domain_name=PLANE), False, False, True),
        (PLANE, None, False, False, False),
    ],
    ids=["gone", "marked", "not-ours", "no-namespace", "own", "own-no-namespace"],
)
def test_farewell(name: str, namespace: Namespace | None, mark: bool, revoke: bool, warn: bool) -> None:
    wanted = plan.removal(name, namespace, PLANE)
    assert (wanted.mark, wanted.revoke, bool(wanted.warn)) == (mark, revoke, warn)


@pytest.mark.parametrize(
    ("there", "wanted", "result"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"l": [{"x": 1, "y": 2}]}, {"l": [{"x": 1}]}, True),
        ({"l": [1, 2]}, {"l": [1]}, False),
        ({"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}, {"ownerReferences": [{"uid": "2"}]}, True),
        ({}, {"ownerReferences": [{"uid": "2"}]}, False),
    ],
)
def test_holds(there: Object, wanted: Object, result: bool) -> None:
    assert holds(there, wanted) is result


# On the API server.


async def settled(world: Mesh) -> None:
    await world.settle(1.0)


async def test_a_domain_of_ours_is_furnished(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice", resourceQuota={"podMaxCount": 3}, **FULL))
        await settled(world)
        namespace = await world.get(NAMESPACE, "alice", "")
        assert namespace["metadata"]["labels"]["kuscia.secretflow/domain-name"] == "alice"
        assert (await world.get(QUOTA, "resource-limitation", "alice"))["spec"]["hard"] == {"pods": "3"}
        assert (await world.get(CONFIG_MAP, "domain-config", "alice")).get("data", {}) == {}
        binding = await world.get(CLUSTER_ROLE_BINDING, "alice", "")
        assert binding["roleRef"]["name"] == "domain-cluster-res"
        assert binding["subjects"][0]["namespace"] == "alice"
        for kind in (ACCOUNT, ROLE, ROLE_BINDING):
            assert (await world.get(kind, "alice", "alice"))["metadata"]["ownerReferences"][0]["name"] == "alice"
        route = await world.get(CDR, f"alice-{PLANE}", "")
        assert route["spec"]["tokenConfig"]["rollingUpdatePeriod"] == 86400
        domain = await world.get(DOMAIN, "alice", "")
        assert domain["metadata"]["labels"]["kuscia.secretflow/domain-auth"] == "completed"
        (made,) = domain["status"]["deployTokenStatuses"]
        assert made["state"] == "unused"
        assert made["token"] not in caplog.text
        # Nothing more is written when nothing changes.
        version = domain["metadata"]["resourceVersion"]
        await settled(world)
        assert (await world.get(DOMAIN, "alice", ""))["metadata"]["resourceVersion"] == version


async def test_registration_uses_a_token_up_and_gets_no_second_chance() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        await settled(world)
        (first,) = (await world.get(DOMAIN, "alice", ""))["status"]["deployTokenStatuses"]
        used = {**first, "state": "used"}
        await world.client.patch_status(DOMAIN, "alice", "", {"status": {"deployTokenStatuses": [used]}})
        await settled(world)
        kept, fresh = (await world.get(DOMAIN, "alice", ""))["status"]["deployTokenStatuses"]
        assert kept == used
        assert fresh["state"] == "unused"
        assert fresh["token"] != first["token"]


async def test_what_is_bent_or_removed_comes_back() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice", resourceQuota={"podMaxCount": 3}))
        await settled(world)
        await world.client.delete(ROLE_BINDING, "alice", "alice")
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        await world.client.patch(ROLE, "alice", "alice", {"rules": everything})
        await world.client.patch(QUOTA, "resource-limitation", "alice", {"spec": {"hard": {"pods": "99"}}})
        await settled(world)
        assert await world.exists(ROLE_BINDING, "alice", "alice")
        assert (await world.get(ROLE, "alice", "alice"))["rules"] != everything
        assert (await world.get(QUOTA, "resource-limitation", "alice"))["spec"]["hard"] == {"pods": "3"}
        await world.client.patch(DOMAIN, "alice", "", {"spec": {"resourceQuota": None}})
        await settled(world)
        assert not await world.exists(QUOTA, "resource-limitation", "alice")


async def test_a_domain_that_becomes_a_partner_loses_what_only_ours_have() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("bob", resourceQuota={"podMaxCount": 3}))
        await settled(world)
        await world.client.patch(DOMAIN, "bob", "", {"spec": {"role": "partner", "interConnProtocols": ["kuscia"]}})
        await settled(world)
        assert not await world.exists(CLUSTER_ROLE_BINDING, "bob", "")
        assert not await world.exists(QUOTA, "resource-limitation", "bob")
        labels = (await world.get(NAMESPACE, "bob", ""))["metadata"]["labels"]
        assert labels["kuscia.secretflow/role"] == "partner"
        assert labels["kuscia.secretflow/interconn-protocols"] == "kuscia"
        assert (await world.get(DOMAIN, "bob", ""))["spec"]["master"] == "bob"
        rules = (await world.get(ROLE, "bob", "bob"))["rules"]
        assert not any("pods" in rule["resources"] for rule in rules)


async def test_deletion_keeps_the_namespace_and_revokes_the_account() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        await settled(world)
        await world.client.create(CONFIG_MAP, {"metadata": {"name": "data", "namespace": "alice"}})
        await world.client.delete(DOMAIN, "alice")
        await settled(world)
        labels = (await world.get(NAMESPACE, "alice", ""))["metadata"]["labels"]
        assert labels["kuscia.secretflow/deleted"] == "true"
        assert await world.exists(CONFIG_MAP, "data", "alice")
        for kind in (ROLE_BINDING, ACCOUNT):
            assert not await world.exists(kind, "alice", "alice")
        assert not await world.exists(CLUSTER_ROLE_BINDING, "alice", "")
        await world.client.create(DOMAIN, a_domain("alice"))
        await settled(world)
        labels = (await world.get(NAMESPACE, "alice", ""))["metadata"]["labels"]
        assert "kuscia.secretflow/deleted" not in labels
        assert await world.exists(ROLE_BINDING, "alice", "alice")


async def test_the_planes_own_domain_deleted_by_mistake_does_no_harm() -> None:
    async with mesh(WITH_COLLECTOR) as world:
        await world.client.create(DOMAIN, a_domain(PLANE))
        await settled(world)
        await world.client.delete(DOMAIN, PLANE)
        await settled(world)
        assert "kuscia.secretflow/deleted" not in (await world.get(NAMESPACE, PLANE, ""))["metadata"]["labels"]
        assert await world.exists(ROLE_BINDING, PLANE, PLANE)
        assert "DomainDeleted" in {reason for reason, _ in await world.events()}


async def test_accounts_reach_their_own_namespace_only() -> None:
    jobs = Kind.dynamic(kuscia_resource("kusciajobs", "KusciaJob", namespaced=True))
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        await world.client.create(DOMAIN, a_domain("bob", role="partner"))
        await settled(world)
        alice, bob = world.as_account("alice"), world.as_account("bob")
        await alice.list(DR, "alice")
        await alice.create(NODE, {"metadata": {"name": "n", "labels": {"kuscia.secretflow/namespace": "alice"}}})
        await alice.get(NODE, "n")
        await bob.list(jobs, "bob")
        refused: list[tuple[Client, Kind[Object], str]] = [
            (alice, DR, "bob"), (alice, jobs, "cross-domain"), (alice, DOMAIN, ""), (alice, NODE, ""),
            (bob, jobs, "alice"), (bob, jobs, ""), (bob, DR, "bob"), (bob, POD, "bob"), (bob, NODE, ""), (bob, DOMAIN, ""),
            (bob, Kind.dynamic(builtin("secrets")), "bob"),
        ]  # fmt: skip
        for account, kind, namespace in refused:
            with pytest.raises(Forbidden):
                await account.list(kind, namespace)


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        pytest.param("delete", "pods", True, id="its-agent-removes-pods"),
        pytest.param("patch", "pods/status", True, id="its-agent-tells-their-status"),
        pytest.param("get", "pods/log", True, id="shows-what-they-printed"),
        pytest.param("create", "pods/exec", False, id="runs-nothing-in-them"),
        pytest.param("create", "pods", False, id="makes-no-pods"),
        pytest.param("patch", "pods", False, id="changes-no-pods"),
        pytest.param("create", "serviceaccounts/token", True, id="tokens-for-its-pods"),
        pytest.param("watch", "secrets", True, id="reads-secrets"),
        pytest.param("create", "secrets", False, id="makes-no-secrets"),
        pytest.param("watch", "services", True, id="reads-services"),
        pytest.param("patch", "services", False, id="changes-no-services"),
        pytest.param("update", "configmaps", True, id="its-settings"),
        pytest.param("patch", "domainroutes/status", True, id="agrees-on-tokens"),
        pytest.param("patch", "domainroutes", False, id="changes-no-routes"),
        pytest.param("create", "domainroutes", False, id="makes-no-routes"),
        pytest.param("create", "gateways", True, id="tells-its-gateway"),
        pytest.param("patch", "gateways/status", True, id="and-that-it-lives"),
        pytest.param("create", "domaindatas", True, id="keeps-data"),
        pytest.param("create", "domaindatagrants", True, id="grants-data"),
        pytest.param("watch", "taskresources", True, id="reads-tasks"),
        pytest.param("create", "kusciatasks", False, id="makes-no-tasks"),
        pytest.param("create", "rolebindings", False, id="gives-no-rights"),
    ],
)
def test_what_a_domain_may_do_in_its_namespace(verb: str, resource: str, allowed: bool) -> None:
    rules = next(each.object["rules"] for each in objects.accounts(a_typed(), PLANE) if each.kind is objects.ROLE)
    name, _, sub = resource.partition("/")
    groups = {known.plural: known.group for known in BUILTIN}
    group = groups.get(name, "kuscia.secretflow")
    assert any(rule.allows_resource(verb, group, name, sub) for rule in compile_rules(rules)) is allowed


async def test_reserved_names_get_nothing() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("kube-system"))
        await settled(world)
        labels = (await world.get(NAMESPACE, "kube-system", ""))["metadata"]["labels"]
        assert "kuscia.secretflow/domain-name" not in labels
        assert "status" not in await world.get(DOMAIN, "kube-system", "")
        assert "DomainRefused" in {reason for reason, _ in await world.events()}


async def test_nodes_of_a_domain_are_listed() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        labels = {"kuscia.secretflow/namespace": "alice"}
        await world.client.create(NODE, {"metadata": {"name": "n1", "labels": labels}})
        await world.client.create(NODE, {"metadata": {"name": "other"}})
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": STAMP, "lastTransitionTime": STAMP}
        await world.client.patch_status(NODE, "n1", "", {"status": {"conditions": [ready]}})
        await settled(world)
        (listed,) = (await world.get(DOMAIN, "alice", ""))["status"]["nodeStatuses"]
        assert (listed["name"], listed["status"], listed["lastHeartbeatTime"]) == ("n1", "Ready", STAMP)
        await world.client.delete(NODE, "n1")
        await settled(world)
        assert "nodeStatuses" not in (await world.get(DOMAIN, "alice", ""))["status"]


async def test_lost_answers_leave_no_two_tokens() -> None:
    async with mesh() as world:
        world.faults.share = 0.5
        for name in ("alice", "bob", "carol"):
            await world.client.create(DOMAIN, a_domain(name))
        await world.settle(60, step=1)
        for name in ("alice", "bob", "carol"):
            assert len((await world.get(DOMAIN, name, ""))["status"]["deployTokenStatuses"]) == 1
            assert await world.exists(CLUSTER_ROLE_BINDING, name, "")
