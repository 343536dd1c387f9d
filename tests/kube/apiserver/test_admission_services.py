"""Cluster IPs and node ports: given out in the write that needs them, honoured, refused, kept over restarts, freed."""

import asyncio
from typing import Any

import orjson
from server_kit import MERGE, Api, serving

from coterie.kube.apiserver.server import Settings
from coterie.kube.store.memory import MemoryStore
from coterie.kube.store.protocol import PutOp

SERVICES = "/api/v1/namespaces/default/services"
SMALL = Settings(service_cidr="100.112.0.0/28")


def service(name: str, ports: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": ports or [{"port": 80}], "selector": {"app": "x"}, **spec}}


async def made(api: Api, name: str, ports: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await api.post(SERVICES, service(name, ports, **spec)))["spec"]
    return answer


async def test_an_address_of_the_range_with_the_fields_that_go_with_it(api: Api):
    first, second = await made(api, "a"), await made(api, "b")
    assert first["clusterIP"] == "100.112.1.1" and second["clusterIP"] == "100.112.1.2"
    assert first["clusterIPs"] == ["100.112.1.1"]
    assert (first["ipFamilies"], first["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")
    assert "nodePort" not in first["ports"][0]


async def test_headless_and_external_names_have_no_address(api: Api):
    assert (await made(api, "a", clusterIP="None"))["clusterIPs"] == ["None"]
    external = await made(api, "b", type="ExternalName", externalName="example.org")
    assert not {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"} & external.keys()


async def test_an_address_that_is_asked_for_is_given_or_refused(api: Api):
    assert (await made(api, "a", clusterIP="100.112.0.10"))["clusterIPs"] == ["100.112.0.10"]
    taken = await api.refused(422, "POST", SERVICES, service("b", clusterIP="100.112.0.10"))
    assert taken.message == (
        'Service "b" is invalid: spec.clusterIPs: Invalid value: ["100.112.0.10"]: '
        "failed to allocate IP 100.112.0.10: provided IP is already allocated"
    )
    for outside in ("10.0.0.1", "100.112.0.0", "100.112.255.255"):
        refused = await api.refused(422, "POST", SERVICES, service("b", clusterIP=outside))
        assert refused.message == (
            f'Service "b" is invalid: spec.clusterIPs: Invalid value: ["{outside}"]: failed to allocate IP {outside}: '
            f"the provided IP ({outside}) is not in the valid range. The range of valid IPs is 100.112.0.0/16"
        )


async def test_who_exists_already_is_said_to_exist(api: Api):
    await made(api, "a", clusterIP="100.112.0.10")
    assert (await api.refused(409, "POST", SERVICES, service("a", clusterIP="100.112.0.10"))).reason == "AlreadyExists"


async def test_ipv6_is_not_configured(api: Api):
    answer = await api.refused(422, "POST", SERVICES, service("a", ipFamilyPolicy="RequireDualStack"))
    assert "this cluster is not configured for dual-stack services" in answer.message
    answer = await api.refused(422, "POST", SERVICES, service("a", ipFamilies=["IPv6"]))
    assert 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster' in answer.message
    assert (await made(api, "a", ipFamilyPolicy="PreferDualStack"))["ipFamilies"] == ["IPv4"]


async def test_the_range_ends_and_what_is_deleted_is_free_again():
    async with serving(SMALL) as api:
        for number in range(14):
            await made(api, f"s{number}")
        full = await api.refused(500, "POST", SERVICES, service("more"))
        assert full.message == "Internal error occurred: failed to allocate a serviceIP: range is full"
        freed = (await api.get(f"{SERVICES}/s5"))["spec"]["clusterIP"]
        await api.ok("DELETE", f"{SERVICES}/s5")
        assert (await made(api, "more"))["clusterIP"] == freed


async def test_no_address_is_given_twice_when_everybody_comes_at_once(api: Api):
    answers = await asyncio.gather(*(made(api, f"s{n}", type="NodePort") for n in range(60)))
    assert len({each["clusterIP"] for each in answers}) == 60
    assert len({each["ports"][0]["nodePort"] for each in answers}) == 60
    asked = [api.call("POST", SERVICES, service(f"t{n}", clusterIP="100.112.0.7")) for n in range(5)]
    assert sorted(each.status for each in await asyncio.gather(*asked)) == [201, 422, 422, 422, 422]


async def test_a_dry_run_takes_nothing(api: Api):
    shown = await api.call("POST", f"{SERVICES}", service("a", type="NodePort"), query="dryRun=All")
    assert shown.json["spec"]["clusterIP"] == "100.112.1.1" and shown.json["spec"]["ports"][0]["nodePort"]
    assert (await made(api, "b"))["clusterIP"] == "100.112.1.1"
    asked = service("c", [{"port": 80, "nodePort": 30001}], type="NodePort")
    assert (await api.call("POST", SERVICES, asked, query="dryRun=All")).status == 201
    assert (await made(api, "d", [{"port": 80, "nodePort": 30001}], type="NodePort"))["ports"][0]["nodePort"] == 30001


async def test_a_refused_write_takes_nothing(api: Api):
    await api.refused(422, "POST", SERVICES, service("a", clusterIP="100.112.0.9", sessionAffinity="Nonsense"))
    assert (await made(api, "b", clusterIP="100.112.0.9"))["clusterIP"] == "100.112.0.9"


async def test_g_08_addresses_survive_a_restart_and_the_next_service_gets_a_fresh_one():
    store = MemoryStore()
    await store.open()
    async with serving(store=store) as api:
        asked = [[{"port": 80, "nodePort": 30000 + number}] for number in range(2)]
        kept = [await made(api, name, ports, type="NodePort") for name, ports in zip("ab", asked, strict=True)]
    async with serving(store=store) as api:
        assert [(await api.get(f"{SERVICES}/{name}"))["spec"] for name in "ab"] == kept
        assert (await made(api, "c"))["clusterIP"] == "100.112.1.3"
        await api.refused(422, "POST", SERVICES, service("d", clusterIP=kept[0]["clusterIP"]))
        await api.refused(422, "POST", SERVICES, service("d", asked[1], type="NodePort"))
    await store.close()


async def test_services_of_earlier_versions_get_their_address_at_start():
    store = MemoryStore()
    await store.open()
    async with serving(store=store) as api:
        await made(api, "old")
        await made(api, "headless", clusterIP="None")
    [record] = [each for each in (await store.scan("/registry/")).records if each.key.endswith("services/default/old")]
    value = orjson.loads(record.value)
    for field in ("clusterIP", "clusterIPs"):
        del value["spec"][field]
    await store.submit((PutOp(record.key, orjson.dumps(value), record.revision, 0),))
    async with serving(store=store) as api:
        assert (await api.get(f"{SERVICES}/old"))["spec"]["clusterIPs"] == ["100.112.1.1"]
        assert (await api.get(f"{SERVICES}/headless"))["spec"]["clusterIPs"] == ["None"]
    await store.close()


async def test_node_ports_are_given_honoured_and_refused(api: Api):
    spec = await made(
        api, "a", [{"name": "x", "port": 80}, {"name": "y", "port": 81, "nodePort": 30080}], type="NodePort"
    )
    given, asked = (port["nodePort"] for port in spec["ports"])
    assert asked == 30080 and 30086 <= given <= 32767
    assert spec["externalTrafficPolicy"] == "Cluster"
    taken = await api.refused(422, "POST", SERVICES, service("b", [{"port": 1, "nodePort": given}], type="NodePort"))
    assert taken.message == (
        f'Service "b" is invalid: spec.ports[0].nodePort: Invalid value: {given}: provided port is already allocated'
    )
    outside = await api.refused(422, "POST", SERVICES, service("b", [{"port": 1, "nodePort": 80}], type="NodePort"))
    assert "provided port is not in the valid range. The range of valid ports is 30000-32767" in outside.message
    await api.ok("DELETE", f"{SERVICES}/a")
    assert (await made(api, "b", [{"port": 1, "nodePort": given}], type="NodePort"))["ports"][0]["nodePort"] == given


async def test_one_port_in_two_protocols_has_one_node_port(api: Api):
    ports = [{"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53, "protocol": "TCP"}]
    spec = await made(api, "dns", ports, type="NodePort")
    assert spec["ports"][0]["nodePort"] == spec["ports"][1]["nodePort"]


async def test_types_change_and_bring_or_free_what_belongs_to_them(api: Api):
    address = (await made(api, "a"))["clusterIP"]
    path = f"{SERVICES}/a"

    async def patched(**spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await api.patch(path, {"spec": spec}))["spec"]
        return found

    node = await patched(type="NodePort")
    port = node["ports"][0]["nodePort"]
    assert node["clusterIP"] == address and port in range(30000, 32768)
    balanced = await patched(type="LoadBalancer", externalTrafficPolicy="Local")
    assert balanced["ports"][0]["nodePort"] == port and balanced["healthCheckNodePort"] not in (0, port)
    plain = await patched(type="ClusterIP")
    assert "nodePort" not in plain["ports"][0] and "externalTrafficPolicy" not in plain
    assert "healthCheckNodePort" not in plain and "allocateLoadBalancerNodePorts" not in plain
    external = await patched(type="ExternalName", externalName="example.org")
    assert "clusterIP" not in external and "clusterIPs" not in external and "ipFamilies" not in external
    assert (await made(api, "b", clusterIP=address))["clusterIP"] == address
    again = await patched(type="ClusterIP", externalName=None)
    assert again["clusterIP"] not in ("", address) and again["ipFamilies"] == ["IPv4"]


async def test_an_address_cannot_be_changed_or_taken_away_and_may_be_left_out(api: Api):
    address = (await made(api, "a"))["clusterIP"]
    path = f"{SERVICES}/a"
    changed = await api.refused(422, "PUT", path, service("a", clusterIP="100.112.0.5"))
    assert "may not change once set" in changed.message
    assert changed.causes[0]["message"] == 'Invalid value: ["100.112.0.5"]: may not change once set'
    taken = (await made(api, "c"))["clusterIP"]
    for elsewhere in ("192.0.2.1", taken):
        changed = await api.refused(422, "PUT", path, service("a", clusterIP=elsewhere))
        assert [each["field"] for each in changed.causes] == ["spec.clusterIPs[0]"]
        assert "may not change once set" in changed.message
    headless = await api.refused(422, "PUT", path, service("a", clusterIP="None"))
    assert "may not change once set" in headless.message
    kept = await api.call("PUT", path, service("a", [{"port": 81}]))
    assert kept.json["spec"]["clusterIP"] == address
    # The refused address was not kept for anybody.
    assert (await made(api, "b", clusterIP="100.112.0.5"))["clusterIP"] == "100.112.0.5"


async def test_a_health_check_port_is_for_load_balancers_only(api: Api):
    answer = await api.refused(422, "POST", SERVICES, service("a", type="NodePort", healthCheckNodePort=30009))
    assert "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'" in answer.message


async def test_a_service_that_becomes_an_external_name_loses_what_depends_on_its_type(api: Api):
    await made(api, "a", type="LoadBalancer", externalTrafficPolicy="Local")
    path = f"{SERVICES}/a"
    await api.patch(f"{path}/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})
    found = await api.get(path)
    found["spec"] |= {"type": "ExternalName", "externalName": "example.org"}
    external = await api.put(path, found)
    assert external["status"] == {"loadBalancer": {}}
    assert set(external["spec"]) == {
        "type", "externalName", "ports", "selector", "sessionAffinity", "internalTrafficPolicy"
    } & set(external["spec"])  # fmt: skip
    assert all("nodePort" not in port for port in external["spec"]["ports"])
    # What was changed together with the type is checked, not dropped.
    await made(api, "b")
    spec = {
        "type": "ExternalName",
        "externalName": "example.org",
        "clusterIP": "192.0.2.1",
        "clusterIPs": ["192.0.2.1"],
    }
    refused = await api.refused(422, "PATCH", f"{SERVICES}/b", {"spec": spec}, headers={"content-type": MERGE})
    assert "may not be set for ExternalName services" in refused.message
