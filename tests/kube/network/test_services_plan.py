"""Which endpoints a Service leads to, and what differs between two states of the table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.network import EndpointSlice, Service
from coterie.kube.network.services.plan import Backend, NodeView, PortChain, ServiceTable, TableChange, plan
from coterie.kube.network.services.rules import change_messages

VIEW = NodeView("here", frozenset({"elsewhere"}))
VIP = "100.112.1.1"
TCP, UDP = 6, 17
WEB = {"name": "web", "port": 80, "targetPort": "http", "protocol": "TCP"}


def service(*ports: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> Service:
    given = {"type": "ClusterIP", "clusterIP": VIP, "ports": list(ports) or [WEB], **spec}
    metadata = {"name": "web", "namespace": "default", "uid": "u"}
    return msgspec.convert({"metadata": metadata, "spec": given, "status": status or {}}, Service)


def endpoint(address: str, node: str = "there", **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "nodeName": node, "conditions": conditions or {"ready": True, "serving": True}}


def slice_of(*endpoints: dict[str, Any], port: int = 8000, **port_more: Any) -> EndpointSlice:
    body = {
        "metadata": {"name": "s", "namespace": "default"},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": port, "protocol": "TCP", **port_more}],
        "endpoints": list(endpoints),
    }
    return msgspec.convert(body, EndpointSlice)


def addresses(found: dict[str, PortChain], name: str = "service-default/web/tcp/80") -> list[str]:
    return [each.address for each in found[name].backends] if name in found else []


LEAVING = {"ready": False, "serving": True, "terminating": True}
DEAD = {"ready": False, "serving": False, "terminating": True}
NOT_READY = {"ready": False, "serving": False, "terminating": False}


@pytest.mark.parametrize(
    ("states", "chosen"),
    [
        ([{"ready": True}, {"ready": True}], [0, 1]),
        ([{"ready": True}, NOT_READY], [0]),
        ([{"ready": True}, LEAVING], [0]),
        ([NOT_READY, LEAVING], [1]),
        ([DEAD, LEAVING, LEAVING], [1, 2]),
        ([DEAD, NOT_READY], []),
        # With publishNotReadyAddresses the slice says so of pods that do not serve, too.
        ([{"ready": True, "serving": False, "terminating": True}], [0]),
        # What is not said is true of ready.
        ([{"serving": True}], [0]),
    ],
)
def test_terminating_endpoints_serve_only_when_no_other_is_left(
    states: list[dict[str, bool]], chosen: list[int]
) -> None:
    listed = [f"100.96.0.{number}" for number in range(2, 2 + len(states))]
    slices = [slice_of(*(endpoint(address, **state) for address, state in zip(listed, states, strict=True)))]
    assert addresses(plan(service(), slices, VIEW)) == [listed[each] for each in chosen]


def test_endpoints_of_several_slices_with_different_numbers_of_a_named_port() -> None:
    slices = [slice_of(endpoint("100.96.0.2")), slice_of(endpoint("100.96.0.3"), port=9000)]
    [chain] = plan(service(), slices, VIEW).values()
    assert chain.backends == (Backend("100.96.0.2", 8000), Backend("100.96.0.3", 9000))
    assert chain.keys == ((VIP, TCP, 80),)


def test_a_port_gets_the_endpoints_of_its_name_and_protocol() -> None:
    other = {"name": "dns", "port": 80, "protocol": "UDP"}
    slices = [slice_of(endpoint("100.96.0.2")), slice_of(endpoint("100.96.0.3"), name="dns", protocol="UDP", port=53)]
    found = plan(service(WEB, other), slices, VIEW)
    assert found["service-default/web/tcp/80"].backends == (Backend("100.96.0.2", 8000),)
    assert found["service-default/web/udp/80"].backends == (Backend("100.96.0.3", 53),)


def test_nodes_of_other_domains_are_not_reached() -> None:
    slices = [slice_of(endpoint("100.96.0.2", "elsewhere"), endpoint("100.96.0.3"))]
    assert addresses(plan(service(), slices, VIEW)) == ["100.96.0.3"]


def test_internal_traffic_stays_here_and_external_addresses_lead_everywhere() -> None:
    slices = [slice_of(endpoint("100.96.0.2", "here"), endpoint("100.96.0.3"))]
    found = plan(service(internalTrafficPolicy="Local", externalIPs=["192.0.2.1"]), slices, VIEW)
    local, everywhere = found["service-default/web/tcp/80/local"], found["service-default/web/tcp/80"]
    assert (local.keys, [each.address for each in local.backends]) == (((VIP, TCP, 80),), ["100.96.0.2"])
    assert everywhere.keys == (("192.0.2.1", TCP, 80),) and len(everywhere.backends) == 2
    assert plan(service(internalTrafficPolicy="Local"), [slice_of(endpoint("100.96.0.3"))], VIEW) == {}


def test_addresses_of_a_load_balancer() -> None:
    status = {
        "loadBalancer": {"ingress": [{"ip": "192.0.2.5"}, {"hostname": "x"}, {"ip": "192.0.2.6", "ipMode": "Proxy"}]}
    }
    [chain] = plan(service(status=status), [slice_of(endpoint("100.96.0.2"))], VIEW).values()
    assert chain.keys == ((VIP, TCP, 80), ("192.0.2.5", TCP, 80))


@pytest.mark.parametrize(
    "spec",
    [{"clusterIP": "None"}, {"type": "ExternalName", "clusterIP": ""}, {"clusterIP": ""}, {"clusterIP": "fd00::1"}],
)
def test_services_without_a_virtual_address(spec: dict[str, Any]) -> None:
    assert plan(service(**spec), [slice_of(endpoint("100.96.0.2"))], VIEW) == {}


def test_session_affinity() -> None:
    slices = [slice_of(endpoint("100.96.0.2"))]
    [chain] = plan(service(sessionAffinity="ClientIP"), slices, VIEW).values()
    assert chain.affinity_seconds == 10800
    config = {"clientIP": {"timeoutSeconds": 60}}
    [chain] = plan(service(sessionAffinity="ClientIP", sessionAffinityConfig=config), slices, VIEW).values()
    assert chain.affinity_seconds == 60


# --- the table ------------------------------------------------------------------------------------------------------

ONE, TWO = ObjectKey("x", "one"), ObjectKey("x", "two")


def chain(*backends: str, at: str = VIP, protocol: int = TCP) -> PortChain:
    return PortChain(protocol, ((at, protocol, 80),), tuple(Backend(each, 8000) for each in backends))


def test_the_same_again_is_no_change() -> None:
    table = ServiceTable()
    assert not table.update({ONE: {"a": chain("100.96.0.2")}}).empty
    again = table.update({ONE: {"a": chain("100.96.0.2")}, TWO: {}})
    assert again.empty and change_messages(again) == []


def test_another_endpoint_rewrites_one_chain_and_no_key() -> None:
    table = ServiceTable()
    table.update({ONE: {"a": chain("100.96.0.2")}, TWO: {"b": chain("100.96.0.2", at="100.112.1.2")}})
    change = table.update({ONE: {"a": chain("100.96.0.2", "100.96.0.3")}})
    assert list(change.changed) == ["a"] and not (change.added or change.removed or change.keys_added)
    assert (change.hairpins_added, change.hairpins_removed) == (("100.96.0.3",), ())
    change = table.update({ONE: {"a": chain("100.96.0.3")}})
    assert change.hairpins_removed == (), "the other Service has it still"


def test_a_service_that_goes_takes_all_of_it_along() -> None:
    table = ServiceTable()
    table.update({ONE: {"a": chain("100.96.0.2", protocol=UDP)}})
    change = table.update({ONE: {}})
    assert list(change.removed) == ["a"] and change.keys_removed == ((VIP, UDP, 80),)
    assert change.hairpins_removed == ("100.96.0.2",) and change.gone_udp == (Backend("100.96.0.2", 8000),)
    assert table.everything() == TableChange({}, {}, {}) and len(table) == 0


def test_an_address_that_two_services_have_belongs_to_the_first() -> None:
    table = ServiceTable()
    table.update({ONE: {"a": chain("100.96.0.2")}})
    second = table.update({TWO: {"b": chain("100.96.0.3")}})
    assert (second.keys_added, second.keys_removed) == ((), ())
    assert table.everything().keys_added == (((VIP, TCP, 80), "a"),)
    freed = table.update({ONE: {}})
    assert freed.keys_removed == ((VIP, TCP, 80),) and freed.keys_added == (((VIP, TCP, 80), "b"),)


def test_an_address_moves_within_one_transaction() -> None:
    table = ServiceTable()
    table.update({ONE: {"a": chain("100.96.0.2")}})
    change = table.update({ONE: {"c": chain("100.96.0.2")}})
    assert change.keys_removed == ((VIP, TCP, 80),) and change.keys_added == (((VIP, TCP, 80), "c"),)
    assert list(change.removed) == ["a"] and list(change.added) == ["c"]
