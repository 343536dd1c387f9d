"""The zone follows the API's objects, change by change, and ends up as if it had been made at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dns_kit import PATIENCE, question, shown
from fake_api import FakeApi

from coterie.base.tasks import TaskOwner
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.network import ENDPOINT_SLICES, ENDPOINTS, SERVICES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns.answer import answer
from coterie.kube.network.dns.model import RecordType, ResponseCode
from coterie.kube.network.dns.zone import Zone, zone_of
from coterie.kube.network.dns.zone_updater import ZoneUpdater

EMPTY = Zone("alice", ("127.0.1.1",), ("127.0.1.1",))


@asynccontextmanager
async def keeping(api: FakeApi) -> AsyncIterator[ZoneUpdater]:
    informers = Informers(api.client())
    keeper = ZoneUpdater(EMPTY, informers)
    assert not keeper.synced
    async with TaskOwner("test") as owner:
        owner.start("informers", informers.run())
        await keeper.wait_synced()
        yield keeper


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():
            await asyncio.sleep(0.005)


def told(keeper: ZoneUpdater, name: str) -> list[str]:
    found = answer(question(name, RecordType.A), keeper.zone)
    return [shown(record) for record in found.answers] or [ResponseCode(found.code).name]


def subsets(*ips: str) -> list[dict[str, Any]]:
    return [{"addresses": [{"ip": ip} for ip in ips], "ports": [{"name": "http", "port": 80}]}]


async def test_services_and_endpoints_in_any_order() -> None:
    api = FakeApi()
    api.seed("endpoints", "early", "alice", subsets=subsets("10.0.0.1"))
    client = api.client()
    async with keeping(api) as keeper:
        changes: list[int] = []
        keeper.on_change(lambda: changes.append(keeper.zone.serial))
        assert told(keeper, "early.alice.svc") == ["NXDOMAIN"]
        api.seed("services", "early", "alice", spec={"clusterIP": "None"})
        await until(lambda: told(keeper, "early.alice.svc") == ["A 10.0.0.1"])
        await client.patch(ENDPOINTS, "early", "alice", {"subsets": subsets("10.0.0.2")})
        await until(lambda: told(keeper, "early.alice.svc") == ["A 10.0.0.2"])
        api.seed("services", "early", "bob", spec={"clusterIP": "None"})
        await client.delete(SERVICES, "early", "alice")
        await until(lambda: told(keeper, "early.alice.svc") == ["NXDOMAIN"])
        assert changes == sorted(set(changes)) and len(changes) >= 3


async def test_pods_come_move_and_go() -> None:
    api = FakeApi()
    client = api.client()
    about = {"spec": {"hostname": "h", "subdomain": "s"}}
    api.seed("pods", "p", "alice", **about, status={"phase": "Pending"})
    async with keeping(api) as keeper:
        assert told(keeper, "h.s.alice.svc") == ["NXDOMAIN"]
        await client.patch(PODS, "p", "alice", {"status": {"podIP": "10.0.0.1"}}, subresource="status")
        await until(lambda: told(keeper, "h.s.alice.svc") == ["A 10.0.0.1"])
        api.seed("pods", "q", "alice", **about, status={"phase": "Running", "podIP": "10.0.0.2"})
        await until(lambda: told(keeper, "h.s.alice.svc") == ["A 10.0.0.1", "A 10.0.0.2"])
        await client.patch(PODS, "p", "alice", {"status": {"phase": "Failed"}}, subresource="status")
        await until(lambda: told(keeper, "h.s.alice.svc") == ["A 10.0.0.2"])
        await client.delete(PODS, "q", "alice", grace=0)
        await until(lambda: told(keeper, "h.s.alice.svc") == ["NXDOMAIN"])
        assert not keeper.zone.pods


async def test_the_same_as_made_at_once() -> None:
    api = FakeApi()
    for number in range(5):
        api.seed("services", f"s{number}", "alice", spec={"clusterIP": "None", "ports": [{"name": "http", "port": 80}]})
        api.seed("endpoints", f"s{number}", "alice", subsets=subsets(f"10.0.0.{number}"))
        api.seed("pods", f"p{number}", "alice", spec={"subdomain": "s"}, status={"podIP": f"10.0.1.{number}"})
    client = api.client()
    async with keeping(api) as keeper:
        kinds = [await client.list(kind, "alice") for kind in (SERVICES, ENDPOINTS, PODS)]
        services, endpoints, pods = (list(found.items) for found in kinds)
        made = zone_of("alice", EMPTY.gateway, EMPTY.host, services, endpoints, pods)
        assert (dict(keeper.zone.services), dict(keeper.zone.pods)) == (made.services, made.pods)
        assert len(made.services) == len(made.pods) == 5


async def test_names_of_all_namespaces_except_other_domains() -> None:
    api = FakeApi()
    for namespace, ip in (("default", "10.0.0.1"), ("bob", "10.0.0.2"), ("marked", "10.0.0.3")):
        api.seed("namespaces", namespace, metadata={"labels": {"foreign": "yes"} if namespace == "marked" else {}})
        api.seed("services", "web", namespace, spec={"clusterIP": "None"})
        api.seed("endpoints", "web", namespace, subsets=subsets(ip))
    client = api.client()
    informers = Informers(client)
    keeper = ZoneUpdater(EMPTY, informers, is_foreign=lambda each: "foreign" in (each.metadata.labels or {}))
    keeper.set_foreign(["bob"])
    async with TaskOwner("test") as owner:
        owner.start("informers", informers.run())
        await keeper.wait_synced()
        assert told(keeper, "web.default.svc.cluster.local") == ["A 10.0.0.1"]
        assert told(keeper, "web.bob.svc") == told(keeper, "web.marked.svc") == ["A 127.0.1.1"]
        assert told(keeper, "web.new.svc") == ["A 127.0.1.1"]
        api.seed("namespaces", "new")
        await until(lambda: told(keeper, "web.new.svc") == ["NXDOMAIN"])
        keeper.set_foreign(["new"])
        assert told(keeper, "web.new.svc") == ["A 127.0.1.1"]
        assert told(keeper, "web.bob.svc") == ["A 10.0.0.2"]
        await client.patch(NAMESPACES, "bob", "", {"metadata": {"labels": {"foreign": "yes"}}})
        await until(lambda: told(keeper, "web.bob.svc") == ["A 127.0.1.1"])


async def test_slices_that_somebody_wrote_count_and_those_of_controllers_are_the_endpoints() -> None:
    api = FakeApi()
    managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}

    def slices(name: str, ips: list[str], labels: dict[str, str], **conditions: bool) -> None:
        endpoints = [{"addresses": [ip], "hostname": f"h{ip[-1]}", "conditions": conditions} for ip in ips]
        meta = {"labels": {"kubernetes.io/service-name": "web", **labels}}
        ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
        api.seed("endpointslices", name, "alice", metadata=meta, addressType="IPv4", endpoints=endpoints, ports=ports)

    api.seed("services", "web", "alice", spec={"clusterIP": "None", "ports": [{"name": "http", "port": 80}]})
    slices("mine", ["10.0.0.1"], {})
    slices("late", ["10.0.0.2"], {}, ready=False)
    slices("made", ["10.0.0.3"], managed)
    client = api.client()
    async with keeping(api) as keeper:
        assert told(keeper, "web.alice.svc") == told(keeper, "h1.web.alice.svc") == ["A 10.0.0.1"]
        found = answer(question("_http._tcp.web.alice.svc", RecordType.SRV), keeper.zone)
        assert [shown(each) for each in found.answers] == ["SRV 80 h1.web.alice.svc"]
        await client.delete(ENDPOINT_SLICES, "mine", "alice")
        await until(lambda: told(keeper, "web.alice.svc") == ["NOERROR"])


async def test_addresses_of_pods_and_services_lead_back_to_names() -> None:
    api = FakeApi()
    api.seed("namespaces", "default")
    api.seed("services", "web", "default", spec={"clusterIP": "None"})
    api.seed("endpoints", "web", "default", subsets=subsets("10.0.0.1"))
    api.seed("pods", "p", "default", status={"phase": "Running", "podIP": "10.0.0.1"})
    client = api.client()

    def back(keeper: ZoneUpdater, last: int) -> list[str]:
        found = answer(question(f"{last}.0.0.10.in-addr.arpa", RecordType.PTR), keeper.zone)
        return [shown(record) for record in found.answers]

    async with keeping(api) as keeper:
        pod_name = "10-0-0-1.default.pod.cluster.local"
        assert back(keeper, 1) == ["PTR 10-0-0-1.web.default.svc.cluster.local"]
        assert told(keeper, pod_name) == ["A 10.0.0.1"]
        await client.patch(ENDPOINTS, "web", "default", {"subsets": subsets("10.0.0.2")})
        await until(lambda: back(keeper, 2) == ["PTR 10-0-0-2.web.default.svc.cluster.local"])
        assert back(keeper, 1) == []
        await client.delete(SERVICES, "web", "default")
        await until(lambda: back(keeper, 2) == [])
        await client.patch(PODS, "p", "default", {"status": {"phase": "Failed"}}, subresource="status")
        await until(lambda: told(keeper, pod_name) == ["NXDOMAIN"])
        assert not keeper.zone.reverse and not keeper.zone.pod_addresses
