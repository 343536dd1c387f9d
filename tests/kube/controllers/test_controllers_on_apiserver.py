"""All first controllers together on the real API server in-process: what a user sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kube.client.wait import wait_for, wait_until_gone
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.leader import LeaderElection
from coterie.kube.control.manager import Manager
from coterie.kube.controllers.clusterrole_aggregation import controller as aggregation
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.namespace import controller as namespaces
from coterie.kube.controllers.quota import controller as quotas
from coterie.kube.controllers.rootca import controller as rootca
from coterie.kube.controllers.serviceaccount import controller as serviceaccounts
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

ADMIN = UserInfo("system:admin", ("system:masters",))
NS = Kind.dynamic(builtin("namespaces"))
CM = Kind.dynamic(builtin("configmaps"))
SECRETS = Kind.dynamic(builtin("secrets"))
CRDS = Kind.dynamic(builtin("customresourcedefinitions", "apiextensions.k8s.io"))
WIDGETS = Kind.dynamic(Resource("example.com", "v1", "widgets", "Widget", True, singular="widget", custom=True))


@asynccontextmanager
async def server() -> AsyncIterator[Client]:
    store = MemoryStore()
    await store.open()
    api = ApiServer(store, Settings(extensions=[KUSCIA]))
    await api.start()
    client = Client(InProcessTransport(api.handle, ADMIN))
    try:
        yield client
    finally:
        await client.close()
        await api.stop()
        await store.close()


@asynccontextmanager
async def controlled() -> AsyncIterator[Client]:
    async with server() as client:
        informers = Informers(client)
        recorder = EventRecorder(client, "controllers")
        controllers = [
            GarbageCollector(client, events=recorder),
            namespaces.make(client, informers),
            serviceaccounts.make(client, informers),
            rootca.make(client, informers, "-----BEGIN CERTIFICATE-----"),
            quotas.make(client, informers),
            aggregation.make(client, informers),
        ]
        manager = Manager([[recorder], [informers], controllers])
        task = asyncio.create_task(manager.run())
        await asyncio.wait_for(manager.ready.wait(), 10)
        try:
            yield client
        finally:
            manager.stop()
            await asyncio.wait_for(task, 10)


def named(name: str, namespace: str = "default", owners: list[Object] | None = None, **fields: Any) -> Object:
    references = [
        {
            "apiVersion": o["apiVersion"],
            "kind": o["kind"],
            "name": o["metadata"]["name"],
            "uid": o["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for o in owners or ()
    ]
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": references}, **fields}


async def test_namespaces_are_furnished_emptied_and_released() -> None:
    async with controlled() as client:
        await client.create(NS, {"metadata": {"name": "alice"}})
        await wait_for(client, Kind.dynamic(builtin("serviceaccounts")), "default", "alice", lambda o: o is not None, 5)
        await wait_for(client, CM, "kube-root-ca.crt", "alice", lambda o: o is not None, 5)
        await client.create(SECRETS, named("s", "alice"))
        await client.delete(NS, "alice")
        await wait_until_gone(client, NS, "alice", timeout=10)
        assert (await client.list(SECRETS, "alice")).items == []


async def test_garbage_collection_background_foreground_orphan() -> None:
    async with controlled() as client:
        parent = await client.create(CM, named("background"))
        child = await client.create(CM, named("child", owners=[parent]))
        await client.create(SECRETS, named("grandchild", owners=[child]))
        await client.delete(CM, "background", "default")
        await wait_until_gone(client, SECRETS, "grandchild", "default", 5)
        parent = await client.create(CM, named("foreground"))
        await client.create(SECRETS, named("blocking", owners=[parent]))
        await client.delete(CM, "foreground", "default", propagation="Foreground")
        await wait_until_gone(client, CM, "foreground", "default", 5)
        await wait_until_gone(client, SECRETS, "blocking", "default", 0.5)
        parent = await client.create(CM, named("orphan"))
        await client.create(SECRETS, named("kept", owners=[parent]))
        await asyncio.sleep(0.05)  # the watch tells the collector of the dependent
        await client.delete(CM, "orphan", "default", propagation="Orphan")
        await wait_until_gone(client, CM, "orphan", "default", 5)
        kept = await client.get(SECRETS, "kept", "default")
        assert not kept["metadata"].get("ownerReferences")


async def test_custom_resources_are_collected() -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    async with controlled() as client:
        await client.create(CRDS, definition)
        await wait_for(
            client,
            CRDS,
            "widgets.example.com",
            "",
            lambda o: any(
                c["type"] == "Established" and c["status"] == "True"
                for c in (o or {}).get("status", {}).get("conditions", [])
            ),
            5,
        )
        widget = await client.create(WIDGETS, named("w"))
        await client.create(SECRETS, named("of-widget", owners=[widget]))
        parent = await client.create(CM, named("parent"))
        await client.create(WIDGETS, named("of-map", owners=[parent]))
        await client.delete(CM, "parent", "default")
        await wait_until_gone(client, WIDGETS, "of-map", "default", 10)
        await client.delete(WIDGETS, "w", "default")
        await wait_until_gone(client, SECRETS, "of-widget", "default", 10)


async def test_quota_status_and_role_aggregation() -> None:
    roles = Kind.dynamic(builtin("clusterroles", "rbac.authorization.k8s.io"))
    quota_kind = Kind.dynamic(builtin("resourcequotas"))
    async with controlled() as client:
        await client.create(quota_kind, named("q", spec={"hard": {"secrets": "10", "count/configmaps": "10"}}))
        await client.create(SECRETS, named("a"))
        used = {"secrets": "1", "count/configmaps": "1"}
        await wait_for(client, quota_kind, "q", "default", lambda o: (o or {}).get("status", {}).get("used") == used, 5)
        rule = {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}
        labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
        await client.create(roles, {"metadata": {"name": "widgets-view", "labels": labels}, "rules": [rule]})
        await wait_for(client, roles, "view", "", lambda o: rule in (o or {}).get("rules", []), 5)


async def test_informers_and_leases_on_the_real_server() -> None:
    async with server() as client:
        informer = Informer(client, CM)
        task = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.synced.wait(), 5)
        for i in range(50):
            await client.create(CM, named(f"c{i}"))
        await client.delete_collection(CM, "default")
        await client.create(CM, named("last"))
        arrived = asyncio.Event()
        informer.add_handler(lambda change: arrived.set() if CM.key(change.object).name == "last" else None)
        await asyncio.wait_for(arrived.wait(), 5)
        assert len(informer.cache.list("default")) == 1 and informer.restarts == 0
        task.cancel()
        await asyncio.wait([task])
        election = LeaderElection(client, "lock", "kube-system", "me")
        await asyncio.wait_for(election.acquire(), 5)
        await election.release()
        lease = await client.get(Kind.dynamic(builtin("leases", "coordination.k8s.io")), "lock", "kube-system")
        assert lease["spec"].get("holderIdentity", "") == ""
