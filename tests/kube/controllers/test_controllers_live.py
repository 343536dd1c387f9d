"""The first controllers against an API in memory: restarts, missed events, conflicts, new kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fake_api import FakeApi

from coterie.base.clock import VirtualClock
from coterie.kube.api import errors
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.controllers.clusterrole_aggregation import controller as aggregation
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.namespace import controller as namespaces
from coterie.kube.controllers.quota import controller as quotas
from coterie.kube.controllers.rootca import controller as rootca
from coterie.kube.controllers.serviceaccount import controller as serviceaccounts

CM = Kind.dynamic(builtin("configmaps"))
NS = Kind.dynamic(builtin("namespaces"))


@asynccontextmanager
async def running(*runnables: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(runnable.run()) for runnable in runnables]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks), [t for t in tasks if not t.cancelled()]


def new_api() -> tuple[FakeApi, VirtualClock]:
    clock = VirtualClock()
    return FakeApi(clock), clock


def owned_by(*owners: dict[str, Any], block: bool = False) -> dict[str, Any]:
    return {
        "ownerReferences": [
            {
                "apiVersion": o["apiVersion"],
                "kind": o["kind"],
                "name": o["metadata"]["name"],
                "uid": o["metadata"]["uid"],
            }
            | ({"blockOwnerDeletion": True} if block else {})
            for o in owners
        ]
    }


async def test_gc_background_cascades_through_kinds() -> None:
    api, clock = new_api()
    deployment = api.seed("deployments", "web", "default")
    replicaset = api.seed("replicasets", "web-1", "default", metadata=owned_by(deployment))
    for i in range(5):
        api.seed("pods", f"web-1-{i}", "default", metadata=owned_by(replicaset))
    other = api.seed("configmaps", "free", "default")
    gc = GarbageCollector(api.client(), clock=clock)
    async with running(gc):
        await clock.advance(1)
        assert gc.ready.is_set() and len(api.names("pods", "default")) == 5
        await api.client().delete(
            Kind.dynamic(builtin("deployments", "apps")), "web", "default", propagation="Background"
        )
        await clock.advance(5)
        assert api.names("replicasets", "default") == [] and api.names("pods", "default") == []
        assert api.find("configmaps", "free", "default") == other


async def test_gc_finds_what_was_missed_while_it_was_down() -> None:
    api, clock = new_api()
    gone = api.seed("configmaps", "gone", "default")
    api.seed("secrets", "child", "default", metadata=owned_by(gone))
    await api.client().delete(CM, "gone", "default")
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(3)
    assert api.names("secrets", "default") == []


async def test_gc_an_owner_of_the_same_name_is_not_the_owner() -> None:
    api, clock = new_api()
    first = api.seed("configmaps", "o", "default")
    api.seed("secrets", "child", "default", metadata=owned_by(first))
    await api.client().delete(CM, "o", "default")
    api.seed("configmaps", "o", "default")
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(3)
    assert api.names("secrets", "default") == [] and api.names("configmaps", "default") == ["o"]


async def test_gc_keeps_an_object_while_one_owner_lives() -> None:
    api, clock = new_api()
    a, b = api.seed("configmaps", "a", "default"), api.seed("configmaps", "b", "default")
    api.seed("secrets", "child", "default", metadata=owned_by(a, b))
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(1)
        await api.client().delete(CM, "a", "default")
        await clock.advance(3)
        child = api.find("secrets", "child", "default")
        assert [o["name"] for o in child["metadata"]["ownerReferences"]] == ["b"]
        await api.client().delete(CM, "b", "default")
        await clock.advance(3)
        assert api.names("secrets", "default") == []


async def test_gc_foreground_waits_for_blocking_dependents() -> None:
    api, clock = new_api()
    parent = api.seed("configmaps", "parent", "default")
    api.seed("secrets", "blocking", "default", metadata={**owned_by(parent, block=True), "finalizers": ["test/hold"]})
    api.seed("secrets", "free", "default", metadata=owned_by(parent))
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(1)
        await api.client().delete(CM, "parent", "default", propagation="Foreground")
        await clock.advance(5)
        assert api.names("secrets", "default") == ["blocking"]
        assert api.find("secrets", "blocking", "default")["metadata"]["deletionTimestamp"]
        assert api.find("configmaps", "parent", "default") is not None
        await api.client().patch(
            Kind.dynamic(builtin("secrets")), "blocking", "default", {"metadata": {"finalizers": None}}
        )
        await clock.advance(5)
        assert api.names("secrets", "default") == [] and api.find("configmaps", "parent", "default") is None


async def test_gc_foreground_goes_down_the_whole_tree_and_through_circles() -> None:
    api, clock = new_api()
    root = api.seed("configmaps", "root", "default")
    middle = api.seed("configmaps", "middle", "default", metadata=owned_by(root, block=True))
    api.seed("configmaps", "leaf", "default", metadata=owned_by(middle, block=True))
    one = api.seed("secrets", "one", "default")
    two = api.seed("secrets", "two", "default", metadata=owned_by(one, block=True))
    secrets = Kind.dynamic(builtin("secrets"))
    await api.client().patch(secrets, "one", "default", {"metadata": owned_by(two, block=True)})
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(1)
        await api.client().delete(CM, "root", "default", propagation="Foreground")
        await api.client().delete(secrets, "one", "default", propagation="Foreground")
        await clock.advance(20)
    assert api.names("configmaps", "default") == [] and api.names("secrets", "default") == []


async def test_gc_ends_a_circle_whose_parts_were_all_deleted_by_hand() -> None:
    api, clock = new_api()
    secrets = Kind.dynamic(builtin("secrets"))
    previous = first = api.seed("secrets", "s0", "default")
    for i in range(1, 4):
        previous = api.seed("secrets", f"s{i}", "default", metadata=owned_by(previous, block=True))
    await api.client().patch(
        secrets, first["metadata"]["name"], "default", {"metadata": owned_by(previous, block=True)}
    )
    for i in range(4):
        await api.client().delete(secrets, f"s{i}", "default", propagation="Foreground")
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(20)
    assert api.names("secrets", "default") == []


async def test_gc_orphan_releases_dependents() -> None:
    api, clock = new_api()
    parent = api.seed("configmaps", "parent", "default")
    api.seed("secrets", "child", "default", metadata=owned_by(parent))
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(1)
        await api.client().delete(CM, "parent", "default", propagation="Orphan")
        await clock.advance(5)
    assert api.find("configmaps", "parent", "default") is None
    assert "ownerReferences" not in api.find("secrets", "child", "default")["metadata"]


async def test_gc_owners_across_scopes_and_namespaces() -> None:
    api, clock = new_api()
    node = api.seed("nodes", "n1")
    elsewhere = api.seed("configmaps", "o", "other")
    api.seed("secrets", "of-node", "default", metadata=owned_by(node))
    api.seed("secrets", "of-elsewhere", "default", metadata=owned_by(elsewhere))
    api.seed("nodes", "n2", metadata=owned_by(elsewhere))
    unknown = {"apiVersion": "nowhere.example/v1", "kind": "Ghost", "metadata": {"name": "g", "uid": "g"}}
    api.seed("secrets", "of-unknown", "default", metadata=owned_by(unknown))
    recorder = EventRecorder(api.client(), "gc", clock=clock)
    async with running(GarbageCollector(api.client(), events=recorder, clock=clock), recorder):
        await clock.advance(5)
        assert api.names("secrets", "default") == ["of-node", "of-unknown"] and api.names("nodes") == ["n1", "n2"]
        reasons = {
            e["involvedObject"]["name"]
            for (p, _, _), e in api.objects.items()
            if p == "events" and e["reason"] == "OwnerRefInvalidNamespace"
        }
        assert reasons == {"of-elsewhere", "n2"}
        await api.client().delete(Kind.dynamic(builtin("nodes")), "n1")
        await clock.advance(5)
        assert api.names("secrets", "default") == ["of-unknown"]


async def test_gc_survives_conflicts() -> None:
    api, clock = new_api()
    parent = api.seed("configmaps", "parent", "default")
    api.seed("secrets", "child", "default", metadata=owned_by(parent))
    api.fail["DELETE /api/v1/namespaces/default/secrets/child"] = errors.Conflict("changed meanwhile")
    async with running(GarbageCollector(api.client(), clock=clock)):
        await clock.advance(1)
        await api.client().delete(CM, "parent", "default")
        await clock.advance(3)
        assert api.names("secrets", "default") == ["child"]
        api.fail.clear()
        await clock.advance(10)
        assert api.names("secrets", "default") == []


async def test_gc_follows_definitions_that_come_and_go() -> None:
    api, clock = new_api()
    widgets = Resource("example.com", "v1", "widgets", "Widget", True, singular="widget", custom=True)
    gc = GarbageCollector(api.client(), clock=clock)
    async with running(gc):
        await clock.advance(1)
        api.resources.append(widgets)
        api.seed("customresourcedefinitions", "widgets.example.com")
        await clock.advance(1)
        widget = api.seed("widgets", "w", "default")
        api.seed("secrets", "of-widget", "default", metadata=owned_by(widget))
        parent = api.seed("configmaps", "parent", "default")
        api.seed("widgets", "child", "default", metadata=owned_by(parent))
        await clock.advance(1)
        await api.client().delete(CM, "parent", "default")
        await clock.advance(3)
        assert api.names("widgets", "default") == ["w"] and api.names("secrets", "default") == ["of-widget"]
        watches = len(api.watches)
        for key in [k for k in api.objects if k[0] == "widgets"]:
            del api.objects[key]
        api.resources.remove(widgets)
        await clock.advance(31)
        assert len(api.watches) == watches - 1
    assert api.watches == []


# ---- namespace ----


async def test_namespace_is_emptied_and_released() -> None:
    api, clock = new_api()
    api.seed("namespaces", "doomed")
    api.seed("namespaces", "other")
    for plural in ("configmaps", "secrets", "deployments", "leases"):
        api.seed(plural, "x", "doomed")
        api.seed(plural, "x", "other")
    informers = Informers(api.client())
    async with running(informers, namespaces.make(api.client(), informers, clock=clock)):
        await clock.advance(1)
        await api.client().delete(NS, "doomed")
        await clock.advance(2)
    assert api.names("namespaces") == ["other"]
    assert not [key for key in api.objects if key[1] == "doomed"] and api.names("secrets", "other") == ["x"]


async def test_namespace_waits_for_finalizers_and_says_so() -> None:
    api, clock = new_api()
    api.seed("namespaces", "doomed")
    api.seed("configmaps", "held", "doomed", metadata={"finalizers": ["test/hold"]})
    informers = Informers(api.client())
    async with running(informers, namespaces.make(api.client(), informers, clock=clock)):
        await api.client().delete(NS, "doomed")
        await clock.advance(2)
        status = {c["type"]: c for c in api.find("namespaces", "doomed")["status"]["conditions"]}
        assert status["NamespaceContentRemaining"]["status"] == "True"
        assert (
            status["NamespaceFinalizersRemaining"]["message"]
            == "Some content in the namespace has finalizers remaining: test/hold in 1 resource instances"
        )
        assert status["NamespaceDeletionContentFailure"]["status"] == "False"
        await api.client().patch(CM, "held", "doomed", {"metadata": {"finalizers": None}})
        await clock.advance(10)
    assert api.names("namespaces") == []


async def test_namespace_stays_while_something_cannot_be_deleted_or_seen() -> None:
    api, clock = new_api()
    api.aggregated = False
    api.seed("namespaces", "doomed")
    api.seed("secrets", "x", "doomed")
    api.fail["DELETE /api/v1/namespaces/doomed/secrets"] = errors.Forbidden("not you")
    api.fail["GET /apis/batch/v1"] = errors.ServiceUnavailable("down")
    informers = Informers(api.client())
    async with running(informers, namespaces.make(api.client(), informers, clock=clock)):
        await api.client().delete(NS, "doomed")
        await clock.advance(2)
        status = {c["type"]: c for c in api.find("namespaces", "doomed")["status"]["conditions"]}
        assert (
            status["NamespaceDeletionContentFailure"]["message"]
            == "Failed to delete all resource types: secrets: not you"
        )
        assert "batch/v1" in status["NamespaceDeletionDiscoveryFailure"]["message"]
        del api.fail["DELETE /api/v1/namespaces/doomed/secrets"]
        await clock.advance(10)
        assert api.names("secrets", "doomed") == [] and api.names("namespaces") == ["doomed"]
        api.fail.clear()
        await clock.advance(10)
    assert api.names("namespaces") == []


# ---- serviceaccount, rootca, aggregation, quota ----


async def test_each_namespace_gets_its_account_and_ca() -> None:
    api, clock = new_api()
    api.seed("namespaces", "a")
    informers = Informers(api.client())
    client = api.client()
    accounts = serviceaccounts.make(client, informers, clock=clock)
    async with running(informers, accounts, rootca.make(client, informers, "CA", clock=clock)):
        await clock.advance(1)
        api.seed("namespaces", "b")
        await clock.advance(1)
        for name in ("a", "b"):
            assert api.find("serviceaccounts", "default", name)
            assert api.find("configmaps", "kube-root-ca.crt", name)["data"] == {"ca.crt": "CA"}
        await client.delete(Kind.dynamic(builtin("serviceaccounts")), "default", "a")
        await client.patch(CM, "kube-root-ca.crt", "b", {"data": {"ca.crt": "forged"}})
        await client.delete(CM, "kube-root-ca.crt", "a")
        await clock.advance(1)
        assert api.find("serviceaccounts", "default", "a")
        assert [api.find("configmaps", "kube-root-ca.crt", n)["data"] for n in "ab"] == [{"ca.crt": "CA"}] * 2
        await client.delete(NS, "a")
        await client.delete(Kind.dynamic(builtin("serviceaccounts")), "default", "a")
        await clock.advance(1)
        assert api.find("serviceaccounts", "default", "a") is None


async def test_cluster_roles_are_aggregated() -> None:
    api, clock = new_api()
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    api.seed("clusterroles", "view", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]})
    informers = Informers(api.client())
    async with running(informers, aggregation.make(api.client(), informers, clock=clock)):
        await clock.advance(1)
        api.seed("clusterroles", "pods", metadata={"labels": {"to": "view"}}, rules=[rule])
        await clock.advance(1)
        assert api.find("clusterroles", "view")["rules"] == [rule]
        kind = Kind.dynamic(builtin("clusterroles", "rbac.authorization.k8s.io"))
        await api.client().patch(kind, "view", "", {"rules": []})  # somebody's mistake
        await clock.advance(1)
        assert api.find("clusterroles", "view")["rules"] == [rule]
        await api.client().delete(kind, "pods")
        await clock.advance(1)
        assert api.find("clusterroles", "view")["rules"] == []


async def test_quota_status_follows_objects_and_spec() -> None:
    api, clock = new_api()
    pod_spec = {"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}
    api.seed(
        "resourcequotas",
        "q",
        "default",
        spec={"hard": {"pods": "5", "requests.cpu": "2000m", "count/widgets.example.com": "1"}},
    )
    api.seed("pods", "p1", "default", spec=pod_spec)
    api.seed("pods", "elsewhere", "other", spec=pod_spec)
    informers = Informers(api.client())
    async with running(informers, quotas.make(api.client(), informers, clock=clock)):
        await clock.advance(2)

        def status() -> dict[str, Any]:
            return api.find("resourcequotas", "q", "default")["status"]

        assert status()["hard"] == {"pods": "5", "requests.cpu": "2", "count/widgets.example.com": "1"}
        assert status()["used"] == {"pods": "1", "requests.cpu": "500m", "count/widgets.example.com": "0"}
        api.seed("pods", "p2", "default", spec=pod_spec)
        await clock.advance(2)
        assert status()["used"]["requests.cpu"] == "1"
        await api.client().delete(Kind.dynamic(builtin("pods")), "p1", "default")
        await api.client().patch(
            Kind.dynamic(builtin("resourcequotas")), "q", "default", {"spec": {"hard": {"pods": None, "secrets": "3"}}}
        )
        api.seed("secrets", "s", "default")
        await clock.advance(2)
        assert status()["used"] == {"requests.cpu": "500m", "secrets": "1", "count/widgets.example.com": "0"}
        api.resources.append(Resource("example.com", "v1", "widgets", "Widget", True, singular="widget", custom=True))
        api.seed("widgets", "w", "default")
        await clock.advance(31)
        assert status()["used"]["count/widgets.example.com"] == "1"
