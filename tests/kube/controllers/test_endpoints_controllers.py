"""Endpoints and endpoint slices: rows of both plans, a property of the slices, then a real API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_world import ENDPOINTS, POD, RS, SERVICE, SLICE, World, workload, world

from coterie.kube.api.labels import COTERIE_LEAN_ENDPOINTS, ENDPOINTSLICE_MANAGED_BY, SERVICE_NAME
from coterie.kube.api.meta import Object
from coterie.kube.api.types.network import ENDPOINT_SLICES, SERVICES, EndpointSlice, Service
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.endpoints import controller as endpoints
from coterie.kube.controllers.endpoints import plan as endpoints_plan
from coterie.kube.controllers.endpointslice import controller as slices
from coterie.kube.controllers.endpointslice import plan as slices_plan
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.replicaset import controller as replicasets


def service(*ports: Object, selector: Any = "web", **spec: Any) -> Service:
    body: Object = {
        "metadata": {"name": "svc", "namespace": "default", "uid": "s", "labels": {"team": "a"}},
        "spec": {"clusterIP": "10.9.0.1", "ports": list(ports) or [{"port": 80, "targetPort": 8080}], **spec},
    }
    if selector is not None:
        body["spec"]["selector"] = {"app": selector}
    return SERVICES.decode(SERVICES.as_dynamic.encode(body))


def pod(
    name: str, ip: str = "", *, ready: bool = True, deleting: bool = False, phase: str = "Running", app: str = "web",
    port: int = 0, port_name: str = "http", more_ips: tuple[str, ...] = (), **spec: Any,
) -> Pod:  # fmt: skip
    meta: Object = {"name": name, "uid": f"uid-{name}", "namespace": "default", "labels": {"app": app}}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    container: Object = {"name": "m", "image": "i"}
    if port:
        container["ports"] = [{"name": port_name, "containerPort": port}]
    status = {
        "phase": phase,
        "podIP": ip,
        "podIPs": [{"ip": one} for one in (ip, *more_ips) if one],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    body = {"metadata": meta, "spec": {"nodeName": "n", "containers": [container], **spec}, "status": status}
    return PODS.decode(PODS.as_dynamic.encode(body))


def shown(found: endpoints_plan.DesiredEndpoints) -> list[tuple[list[str], list[str], list[int | None]]]:
    return [
        (
            [a.ip for a in subset.addresses or ()],
            [a.ip for a in subset.not_ready_addresses or ()],
            [port.port for port in subset.ports or ()],
        )
        for subset in found.subsets
    ]


NAMED = {"port": 80, "targetPort": "http", "name": "web"}


@pytest.mark.parametrize(
    ("wanted", "pods", "subsets"),
    [
        (service(), [pod("a", "1.0.0.1"), pod("b", "1.0.0.2")], [(["1.0.0.1", "1.0.0.2"], [], [8080])]),
        (service(), [pod("a", "1.0.0.1"), pod("b", "1.0.0.2", ready=False)], [(["1.0.0.1"], ["1.0.0.2"], [8080])]),
        (service(), [pod("a", "1.0.0.1", deleting=True)], []),
        (service(), [pod("a", "1.0.0.1", phase="Succeeded"), pod("b")], []),
        (service(), [pod("a", "1.0.0.1", app="other")], []),
        (service(publishNotReadyAddresses=True), [pod("a", "1.0.0.1", ready=False), pod("b", "1.0.0.2", deleting=True)], [(["1.0.0.1", "1.0.0.2"], [], [8080])]),
        (service(NAMED), [pod("a", "1.0.0.1", port=81), pod("b", "1.0.0.2", port=82)], [(["1.0.0.1"], [], [81]), (["1.0.0.2"], [], [82])]),
        (service(NAMED), [pod("a", "1.0.0.1", port=81, port_name="other")], []),
        (service({"port": 80}), [pod("a", "1.0.0.1")], [(["1.0.0.1"], [], [80])]),
        (service({"port": 80, "name": "a"}, {"port": 90, "name": "b"}), [pod("a", "1.0.0.1")], [(["1.0.0.1"], [], [80, 90])]),
        (service(), [pod("a", "169.254.0.1"), pod("b", "127.0.1.2")], [(["127.0.1.2"], [], [8080])]),
        (service(ipFamilies=["IPv6"]), [pod("a", "1.0.0.1", more_ips=("fd00::1",))], [(["fd00::1"], [], [8080])]),
    ],
    ids=[
        "ready", "not-ready", "going", "ended-or-no-address", "other-labels", "publish-all", "one-name-two-numbers",
        "no-such-name", "no-target", "two-ports", "link-local-left-out", "ipv6",
    ],
)  # fmt: skip
def test_endpoints(wanted: Service, pods: list[Pod], subsets: Any) -> None:
    assert shown(endpoints_plan.desired_endpoints(wanted, pods)) == subsets
    assert endpoints_plan.desired_endpoints(wanted, pods) == endpoints_plan.desired_endpoints(
        wanted, list(reversed(pods))
    )


def test_headless_endpoints_without_ports_have_names() -> None:
    body = msgspec.structs.replace(
        service(clusterIP="None"), spec=msgspec.structs.replace(service().spec, ports=None, cluster_ip="None")
    )
    found = endpoints_plan.desired_endpoints(
        body, [pod("a", "1.0.0.1", hostname="h", subdomain="svc"), pod("b", "1.0.0.2", hostname="h2", subdomain="x")]
    )
    assert shown(found) == [(["1.0.0.1", "1.0.0.2"], [], [])]
    assert [a.hostname for a in found.subsets[0].addresses or ()] == ["h", ""]
    assert found.labels == {
        "team": "a",
        "service.kubernetes.io/headless": "",
        endpoints_plan.MANAGED_BY: "endpoint-controller",
    }


def test_too_many_addresses_are_cut_the_unready_first() -> None:
    pods = [pod(f"p{i}", f"1.0.{i // 250}.{i % 250}", ready=i % 2 == 0) for i in range(1100)]
    found = endpoints_plan.desired_endpoints(service(), pods)
    ready, waiting, _ = shown(found)[0]
    assert found.truncated and (len(ready), len(waiting)) == (550, 450)


@pytest.mark.parametrize(
    ("selector", "kind", "follows"),
    [("web", "ClusterIP", True), (None, "ClusterIP", False), ("web", "ExternalName", False)],
    ids=["selector", "none", "external"],
)
def test_whose_endpoints(selector: str | None, kind: str, follows: bool) -> None:
    found = slices_plan.plan(service(selector=selector, type=kind), [pod("a", "1.0.0.1")], [])
    assert any(body["endpoints"] for body in found.create) is follows


# ---- slices ----


def made(body: Object, name: str) -> EndpointSlice:
    body = {**body, "metadata": {**body["metadata"], "name": name, "uid": name, "resourceVersion": "1"}}
    return ENDPOINT_SLICES.decode(ENDPOINT_SLICES.as_dynamic.encode(body))


def applied(found: slices_plan.Plan, before: list[EndpointSlice], turn: int) -> list[EndpointSlice]:
    gone = {one.metadata.name for one in found.delete}
    changed = {change.found.metadata.name: change.endpoints for change in found.change}
    kept = [
        msgspec.structs.replace(one, endpoints=changed.get(one.metadata.name, one.endpoints))
        for one in before
        if one.metadata.name not in gone
    ]
    return kept + [made(body, f"s{turn}-{i}") for i, body in enumerate(found.create)]


def members(found: list[EndpointSlice]) -> list[str]:
    return sorted(e.addresses[0] for one in found for e in one.endpoints or ())


def test_conditions_of_endpoints() -> None:
    pods = [
        pod("a", "1.0.0.1"),
        pod("b", "1.0.0.2", ready=False),
        pod("c", "1.0.0.3", deleting=True),
        pod("d", "1.0.0.4", phase="Failed"),
    ]
    (body,) = slices_plan.plan(service(), pods, []).create
    assert [e["conditions"] for e in body["endpoints"]] == [
        {"ready": True, "serving": True, "terminating": False},
        {"ready": False, "serving": False, "terminating": False},
        {"ready": False, "serving": True, "terminating": True},
    ]
    assert body["metadata"]["labels"] == {
        "team": "a",
        SERVICE_NAME: "svc",
        ENDPOINTSLICE_MANAGED_BY: "endpointslice-controller.k8s.io",
    }
    assert body["metadata"]["ownerReferences"][0]["kind"] == "Service" and body["addressType"] == "IPv4"
    assert body["endpoints"][0]["targetRef"]["name"] == "a" and body["endpoints"][0]["nodeName"] == "n"


def test_nobody_is_one_empty_slice() -> None:
    found = slices_plan.plan(service(), [], [])
    (body,) = found.create
    assert body["endpoints"] == [] and body["ports"] == []
    here = applied(found, [], 0)
    again = slices_plan.plan(service(), [], here)
    assert not (again.create or again.change or again.delete)
    then = slices_plan.plan(service(), [pod("a", "1.0.0.1")], here)
    assert len(then.create) == 1 and len(then.delete) == 1


def test_two_families_and_ports_by_name() -> None:
    both = service(NAMED, ipFamilies=["IPv4", "IPv6"])
    pods = [pod("a", "1.0.0.1", port=81, more_ips=("fd00::1",)), pod("b", "1.0.0.2", port=82)]
    found = slices_plan.plan(both, pods, [])
    assert sorted((b["addressType"], b["ports"][0]["port"], len(b["endpoints"])) for b in found.create) == [
        ("IPv4", 81, 1),
        ("IPv4", 82, 1),
        ("IPv6", 81, 1),
    ]
    only = slices_plan.plan(service(NAMED), pods, applied(found, [], 0))
    assert [one.address_type for one in only.delete] == ["IPv6"] and not only.create


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sets(st.integers(1, 40)), min_size=1, max_size=8))
def test_slices_hold_each_pod_once_and_come_to_rest(rounds: list[set[int]]) -> None:
    here: list[EndpointSlice] = []
    for turn, names in enumerate(rounds):
        pods = [pod(f"p{i}", f"1.0.0.{i}") for i in names]
        found = slices_plan.plan(service(), pods, here, size=5)
        here = applied(found, here, turn)
        assert members(here) == sorted(f"1.0.0.{i}" for i in names)
        assert all(len(one.endpoints or ()) <= 5 for one in here)
        again = slices_plan.plan(service(), pods, here, size=5)
        assert not (again.create or again.change or again.delete)


# ---- on the server ----

MAKES = (
    ("replicaset-controller", replicasets.make),
    endpoints.make,
    slices.make,
    lambda c, i, clock: GarbageCollector(c, clock=clock),
)


def svc(**spec: Any) -> Object:
    return {
        "metadata": {"name": "svc", "namespace": "default", "labels": {"team": "a"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}], **spec},
    }


async def ready_addresses(w: World) -> tuple[int, int]:
    listed = await w.get(ENDPOINTS, "svc") if await w.exists(ENDPOINTS, "svc") else {}
    old = sum(len(subset.get("addresses") or ()) for subset in listed.get("subsets") or ())
    new = sum(e["conditions"]["ready"] for one in await w.list(SLICE) for e in one.get("endpoints") or ())
    return old, new


async def test_endpoints_follow_pods() -> None:
    async with world(*MAKES) as w:
        await w.client.create(SERVICE, svc())
        await w.settle(1)
        assert await ready_addresses(w) == (0, 0) and len(await w.list(SLICE)) == 1
        await w.client.create(RS, workload("web", replicas=3))
        await w.settle(2)
        assert await ready_addresses(w) == (3, 3)
        first = (await w.pods())[0]["metadata"]["name"]
        w.outcome = lambda found: "NotReady" if found["metadata"]["name"] == first else "Running"
        await w.settle(1)
        assert await ready_addresses(w) == (2, 2)
        assert len((await w.get(ENDPOINTS, "svc"))["subsets"][0]["notReadyAddresses"]) == 1
        w.outcome = lambda found: "Running"
        await w.client.delete(POD, first, "default")
        await w.settle(2)
        assert await ready_addresses(w) == (3, 3)
        before = [o["metadata"]["resourceVersion"] for o in (*await w.list(SLICE), await w.get(ENDPOINTS, "svc"))]
        await w.settle(60)
        assert before == [
            o["metadata"]["resourceVersion"] for o in (*await w.list(SLICE), await w.get(ENDPOINTS, "svc"))
        ]
        await w.client.patch(SERVICE, "svc", "default", {"spec": {"selector": {"app": "none"}}})
        await w.settle(1)
        assert await ready_addresses(w) == (0, 0)
        await w.client.delete(SERVICE, "svc", "default")
        await w.settle(5)
        assert not await w.exists(ENDPOINTS, "svc") and await w.list(SLICE) == []


async def test_hundreds_of_pods_are_cut_into_slices() -> None:
    async with world(*MAKES) as w:
        await w.client.create(SERVICE, svc())
        await w.client.create(RS, workload("web", replicas=230))
        await w.until(lambda: full(w, 230))
        sizes = sorted(len(one.get("endpoints") or ()) for one in await w.list(SLICE))
        assert sum(sizes) == 230 and max(sizes) <= 100 and len(sizes) <= 4
        await w.client.scale(RS, "web", "default", 10)
        await w.until(lambda: full(w, 10))


async def full(w: World, wanted: int) -> bool:
    return await ready_addresses(w) == (wanted, wanted)


async def test_a_lean_service_has_endpoints_only_while_it_has_addresses() -> None:
    async with world(*MAKES) as w:
        body = svc()
        body["metadata"]["labels"][COTERIE_LEAN_ENDPOINTS] = "true"
        await w.client.create(SERVICE, body)
        await w.settle(1)
        assert not await w.exists(ENDPOINTS, "svc")
        await w.client.create(RS, workload("web", replicas=2))
        await w.settle(2)
        assert await ready_addresses(w) == (2, 0) and await w.list(SLICE) == []
        await w.client.patch(SERVICE, "svc", "default", {"spec": {"selector": {"app": "none"}}})
        await w.settle(1)
        assert not await w.exists(ENDPOINTS, "svc")


async def test_others_endpoints_are_left_alone() -> None:
    async with world(*MAKES) as w:
        body = svc()
        del body["spec"]["selector"]
        await w.client.create(SERVICE, body)
        mine = {
            "metadata": {"name": "svc", "namespace": "default"},
            "subsets": [{"addresses": [{"ip": "10.1.1.1"}], "ports": [{"port": 1}]}],
        }
        await w.client.create(ENDPOINTS, mine)
        foreign = {
            "metadata": {"name": "svc-x", "namespace": "default", "labels": {SERVICE_NAME: "svc"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.1.1"]}],
        }
        await w.client.create(SLICE, foreign)
        await w.settle(3)
        assert (await w.get(ENDPOINTS, "svc"))["subsets"][0]["addresses"][0]["ip"] == "10.1.1.1"
        assert [one["metadata"]["name"] for one in await w.list(SLICE)] == ["svc-x"]
