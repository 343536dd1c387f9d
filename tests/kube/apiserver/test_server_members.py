"""API servers of one store: who lives, the endpoints of `default/kubernetes`, and what one that leaves takes along."""

from __future__ import annotations

from typing import Any

import pytest
from server_kit import Api

from coterie.base.clock import VirtualClock
from coterie.kube.api import errors
from coterie.kube.apiserver import bootstrap
from coterie.kube.apiserver.bootstrap import ServerEndpoint, own_endpoints
from coterie.kube.apiserver.members import DURATION, FORGOTTEN, ServerMember, living, observed
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store.memory import MemoryStore

A, B = ServerEndpoint("10.0.0.1", 6443), ServerEndpoint("10.0.0.2", 6443)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def lease(name: str, address: str, renewed: str) -> dict[str, Any]:
    annotations = {"coterie.io/address": address}
    return {"metadata": {"name": f"apiserver-{name}", "annotations": annotations}, "spec": {"renewTime": renewed}}


def test_a_member_lives_while_its_lease_changes():
    first = observed([lease("a", "10.0.0.1:6443", "1"), lease("b", "10.0.0.2:6443", "1")], {}, 100.0)
    assert living(first, 100.0, "a") == [A, B]
    then = observed([lease("a", "10.0.0.1:6443", "2"), lease("b", "10.0.0.2:6443", "1")], first, 100.0 + DURATION)
    assert living(then, 100.0 + DURATION, "a") == [A]
    again = observed([lease("b", "10.0.0.2:6443", "2")], then, 200.0)
    assert living(again, 200.0, "a") == [B]
    assert living(observed([lease("c", "nonsense", "1")], {}, 1.0), 1.0, "a") == []


@pytest.mark.parametrize("text", ["", "x", "10.0.0.1", "10.0.0.1:x", "host:80", "::1"])
def test_what_is_no_address_is_none(text: str):
    assert ServerEndpoint.parse(text) is None
    assert str(ServerEndpoint.parse("[fd00::1]:6443")) == "[fd00::1]:6443"


def test_slices_have_one_port_and_one_family():
    _, slices = own_endpoints([B, A])
    assert [(each["metadata"]["name"], len(each["endpoints"])) for each in slices] == [("kubernetes", 2)]
    other, six = ServerEndpoint("10.0.0.3", 7443), ServerEndpoint("fd00::1", 6443)
    endpoints, slices = own_endpoints([A, other, six])
    assert [each["metadata"]["name"] for each in slices] == [
        "kubernetes",
        "kubernetes-6443-ipv6",
        "kubernetes-7443-ipv4",
    ]
    assert [each["ports"][0]["port"] for each in endpoints["subsets"]] == [6443, 7443]


async def member(store: MemoryStore, clock: VirtualClock, name: str) -> Api:
    server = ApiServer(store, Settings(member=ServerMember(name, "1", "memory")), clock)
    await server.start()
    return Api(server, store, clock)


async def addresses(api: Api) -> list[str]:
    found = await api.ok("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
    return [each["ip"] for subset in found["subsets"] for each in subset["addresses"]]


async def test_endpoints_are_those_of_all_that_live():
    clock, store = VirtualClock(), MemoryStore()
    await store.open()
    a = await member(store, clock, "a")
    await a.server.publish("10.0.0.1", 6443)
    assert await addresses(a) == ["10.0.0.1"]
    # Another server's life, without its process: a second one would need a shared store.
    other = lease("b", "10.0.0.2:6443", "2026-01-02T03:04:05.000000Z")
    other["metadata"]["labels"] = {"apiserver.kubernetes.io/identity": "coterie-apiserver"}
    await a.post(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **other})
    await clock.advance(3)
    assert await addresses(a) == ["10.0.0.1", "10.0.0.2"]
    await clock.advance(DURATION + 3)
    assert await addresses(a) == ["10.0.0.1"]
    assert (await a.ok("GET", f"{LEASES}/apiserver-b"))["metadata"]["name"] == "apiserver-b"
    await clock.advance(FORGOTTEN)
    listed = (await a.ok("GET", LEASES))["items"]
    assert [each["metadata"]["name"] for each in listed] == ["apiserver-a"]
    await a.server.leave()
    await clock.advance(5)
    assert (await a.ok("GET", LEASES))["items"] == [], "who has left does not come back"
    await a.server.stop()
    await store.close()


async def test_members_that_publish_at_once_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch):
    """A member that starts while another writes the same objects: it was stopped by the conflict once."""
    clock, store = VirtualClock(), MemoryStore()
    await store.open()
    a = await member(store, clock, "a")
    real, lost = bootstrap.ensure_own_service, []

    async def late(send: Any, cluster_ip: str, servers: Any) -> None:
        if len(lost) < 2:
            lost.append(servers)
            raise errors.Conflict("the object has been modified")
        await real(send, cluster_ip, servers)

    monkeypatch.setattr(bootstrap, "ensure_own_service", late)
    await a.server.publish("10.0.0.1", 6443)
    assert await addresses(a) == ["10.0.0.1"] and len(lost) == 2
    await a.server.stop()
    await store.close()
