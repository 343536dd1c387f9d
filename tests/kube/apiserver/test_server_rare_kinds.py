"""Kinds of few users on a server: runtime classes, addresses of Services, flow control, CSI, devices, components."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_kit import PODS, Api, pod, serving

from coterie.kube.apiserver.server import Settings
from coterie.kube.store.memory import MemoryStore

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
ADDRESSES = "/apis/networking.k8s.io/v1/ipaddresses"
RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
SERVICES = "/api/v1/namespaces/default/services"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
HANDLER = "coterie.io/runtime-handler"


async def until(api: Api, path: str, wanted: Any) -> Any:
    """What a GET of the path answers, once `wanted` holds of it."""
    for _ in range(200):
        answer = await api.call("GET", path)
        if wanted(answer):
            return answer.json
        await asyncio.sleep(0)
    raise AssertionError(answer)


# -- runtime classes --------------------------------------------------------------------------------------------------


def runtime_class(name: str, handler: str = "runp", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "handler": handler, **fields}


async def test_a_pod_takes_over_overhead_scheduling_and_handler_of_its_class(api: Api) -> None:
    overhead = {"podFixed": {"cpu": "10m", "memory": "1Mi"}}
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    scheduling = {"nodeSelector": {"zone": "a"}, "tolerations": [toleration]}
    await api.post(CLASSES, runtime_class("small", overhead=overhead, scheduling=scheduling))
    made = await api.post(PODS, pod("p", runtimeClassName="small", nodeSelector={"disk": "ssd"}))
    spec = made["spec"]
    assert spec["overhead"] == overhead["podFixed"]
    assert spec["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert toleration in spec["tolerations"]
    assert made["metadata"]["annotations"][HANDLER] == "runp"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"runtimeClassName": "absent"}, 'pod rejected: RuntimeClass "absent" not found'),
        (
            {"overhead": {"cpu": "1"}},
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            {"runtimeClassName": "small", "overhead": {"cpu": "2"}},
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            {"runtimeClassName": "small", "nodeSelector": {"zone": "b"}},
            "conflict: runtimeClass.scheduling.nodeSelector[zone] = a; pod.spec.nodeSelector[zone] = b",
        ),
    ],
)
async def test_pods_that_do_not_fit_a_class_are_refused(api: Api, spec: dict[str, Any], why: str) -> None:
    fields = {"overhead": {"podFixed": {"cpu": "1"}}, "scheduling": {"nodeSelector": {"zone": "a"}}}
    await api.post(CLASSES, runtime_class("small", **fields))
    refused = await api.refused(403, "POST", PODS, pod("p", **spec))
    assert refused.message == f'pods "p" is forbidden: {why}'


async def test_nobody_chooses_a_handler_without_a_class(api: Api) -> None:
    body = pod("p")
    body["metadata"]["annotations"] = {HANDLER: "kata"}
    assert HANDLER not in (await api.post(PODS, body))["metadata"].get("annotations", {})


async def test_nobody_changes_the_handler_of_a_pod(api: Api) -> None:
    body = pod("p", runtimeClassName="gvisor")
    made = await api.post(PODS, body)
    assert made["metadata"]["annotations"][HANDLER] == "gvisor"
    for value in ("runp", None):
        patched = await api.patch(f"{PODS}/p", {"metadata": {"annotations": {HANDLER: value, "a": "b"}}})
        assert patched["metadata"]["annotations"] == {HANDLER: "gvisor", "a": "b"}
    made = await api.post(PODS, pod("q"))
    patched = await api.patch(f"{PODS}/q", {"metadata": {"annotations": {HANDLER: "runc"}}})
    assert HANDLER not in patched["metadata"].get("annotations", {})


async def test_there_is_a_class_for_each_handler(api: Api) -> None:
    found = {each["metadata"]["name"]: each for each in (await api.get(CLASSES))["items"]}
    assert set(found) == {"runp", "bubblewrap", "runc", "crun", "gvisor", "kata"}
    made = await api.post(PODS, pod("p", runtimeClassName="gvisor"))
    assert made["spec"]["nodeSelector"] == {"coterie.io/runtime.gvisor": "true"}
    assert made["spec"]["overhead"] == {"memory": "48Mi"}


async def test_a_handler_stays_and_an_update_names_its_version(api: Api) -> None:
    made = await api.post(CLASSES, runtime_class("small"))
    changed = await api.refused(422, "PUT", f"{CLASSES}/small", {**made, "handler": "other"})
    assert 'handler: Invalid value: "other": field is immutable' in changed.message
    del made["metadata"]["resourceVersion"]
    unversioned = await api.refused(422, "PUT", f"{CLASSES}/small", made)
    assert "must be specified for an update" in unversioned.message


# -- addresses of Services --------------------------------------------------------------------------------------------


async def test_each_cluster_ip_has_its_object_for_as_long_as_the_service(api: Api) -> None:
    made = await api.post(SERVICES, {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    path = f"{ADDRESSES}/{made['spec']['clusterIP']}"
    found = await until(api, path, lambda answer: answer.status == 200)
    assert found["spec"]["parentRef"] == {"group": "", "resource": "services", "namespace": "default", "name": "web"}
    assert found["metadata"]["labels"] == {
        "ipaddress.kubernetes.io/ip-family": "IPv4",
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
    }
    await api.ok("DELETE", path)
    await until(api, path, lambda answer: answer.status == 200)
    await api.ok("DELETE", f"{SERVICES}/web")
    await until(api, path, lambda answer: answer.status == 404)


async def test_an_address_that_somebody_keeps_is_not_given_out(api: Api) -> None:
    parent = {"resource": "gateways", "group": "lab.io", "name": "g"}
    await api.post(ADDRESSES, {"metadata": {"name": "100.112.1.1"}, "spec": {"parentRef": parent}})
    made = await api.post(SERVICES, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
    assert made["spec"]["clusterIP"] == "100.112.1.2"
    body = {"metadata": {"name": "b"}, "spec": {"ports": [{"port": 80}], "clusterIP": "100.112.1.1"}}
    assert "provided IP is already allocated" in (await api.refused(422, "POST", SERVICES, body)).message
    assert (await api.get(f"{ADDRESSES}/100.112.1.1"))["spec"]["parentRef"]["name"] == "g"


async def test_a_service_made_again_gets_its_address_again(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}], "clusterIP": "100.112.0.9"}}
    await api.post(SERVICES, body)
    await until(api, f"{ADDRESSES}/100.112.0.9", lambda answer: answer.status == 200)
    await api.ok("DELETE", f"{SERVICES}/a")
    assert (await api.post(SERVICES, {**body, "metadata": {"name": "b"}}))["spec"]["clusterIP"] == "100.112.0.9"
    path = f"{ADDRESSES}/100.112.0.9"
    await until(api, path, lambda a: a.status == 200 and a.json["spec"]["parentRef"]["name"] == "b")


async def test_names_of_addresses_are_addresses(api: Api) -> None:
    body = {"spec": {"parentRef": {"resource": "services", "name": "s"}}}
    refused = await api.refused(422, "POST", ADDRESSES, {"metadata": {"name": "web"}, **body})
    assert "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)" in refused.message


async def test_the_range_of_the_settings_is_shown_and_others_must_lie_in_it(api: Api) -> None:
    found = await api.get(f"{RANGES}/kubernetes")
    assert found["spec"] == {"cidrs": ["100.112.0.0/16"]}
    assert found["status"]["conditions"][0] | {"lastTransitionTime": ""} == {
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready", "lastTransitionTime": "",
    }  # fmt: skip
    for name, cidr, status in (("inside", "100.112.64.0/20", "True"), ("outside", "10.96.0.0/16", "False")):
        await api.post(RANGES, {"metadata": {"name": name}, "spec": {"cidrs": [cidr]}})
        made = await until(api, f"{RANGES}/{name}", lambda answer: (answer.json.get("status") or {}).get("conditions"))
        ready = made["status"]["conditions"][0]
        assert ready["status"] == status
    assert ready["reason"] == "NotRouted" and "network.serviceCIDR" in ready["message"]
    await api.ok("DELETE", f"{RANGES}/kubernetes")
    await until(api, f"{RANGES}/kubernetes", lambda answer: answer.status == 200)


async def test_a_changed_setting_changes_the_range() -> None:
    store = MemoryStore()
    await store.open()
    async with serving(store=store) as api:
        await api.post(SERVICES, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
        await until(api, f"{ADDRESSES}/100.112.1.1", lambda answer: answer.status == 200)
    async with serving(Settings(service_cidr="100.113.0.0/16"), store=store) as api:
        assert (await api.get(f"{RANGES}/kubernetes"))["spec"] == {"cidrs": ["100.113.0.0/16"]}
        assert "100.112.1.1" not in (await api.call("GET", ADDRESSES)).names
    await store.close()


# -- flow control -----------------------------------------------------------------------------------------------------


async def test_the_objects_that_kubernetes_begins_with_exist_and_stay_as_they_are(api: Api) -> None:
    levels = (await api.call("GET", f"{FLOW}/prioritylevelconfigurations")).names
    assert {"exempt", "catch-all", "system", "node-high", "leader-election", "workload-low", "global-default"} <= set(
        levels
    )
    schemas = (await api.call("GET", f"{FLOW}/flowschemas")).names
    assert {"exempt", "catch-all", "probes", "system-nodes", "service-accounts", "global-default"} <= set(schemas)
    for path in (f"{FLOW}/flowschemas/catch-all", f"{FLOW}/prioritylevelconfigurations/catch-all"):
        found = await api.get(path)
        found["spec"].update({"matchingPrecedence": 9} if "flowschemas" in path else {"type": "Exempt"})
        refused = await api.refused(422, "PUT", path, found)
        assert "spec of 'catch-all' must equal the fixed value" in refused.message


async def test_who_writes_a_level_is_warned(api: Api) -> None:
    spec = {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}
    made = await api.call("POST", f"{FLOW}/prioritylevelconfigurations", {"metadata": {"name": "mine"}, "spec": spec})
    assert made.status == 201 and "is stored only" in made.warnings()[0]
    assert made.json["spec"]["limited"] == {
        "nominalConcurrencyShares": 30,
        "lendablePercent": 0,
        "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}},
    }


# -- the rest ---------------------------------------------------------------------------------------------------------


async def test_components(api: Api) -> None:
    path = "/api/v1/componentstatuses"
    listed = await api.call("GET", path)
    assert listed.json["kind"] == "ComponentStatusList" and listed.names == ["etcd-0"]
    assert "deprecated" in listed.warnings()[0]
    one = await api.get(f"{path}/etcd-0")
    assert one["conditions"] == [{"type": "Healthy", "status": "True", "message": "ok"}]
    await api.refused(404, "GET", f"{path}/absent")
    await api.refused(405, "POST", path, one)
    table = await api.get(path, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert table["rows"][0]["cells"] == ["etcd-0", "Healthy", "ok", ""]


async def test_the_spec_of_a_claim_is_checked_and_stays(api: Api) -> None:
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

    def claim(expression: str) -> dict[str, Any]:
        selectors = [{"cel": {"expression": expression}}]
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": selectors}}
        return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}

    wrong = await api.refused(422, "POST", path, claim("device.absent == 1"))
    assert "spec.devices.requests[0].exactly.selectors[0].cel.expression" in wrong.message
    assert "compilation failed" in wrong.message
    made = await api.post(path, claim("device.driver == 'gpu.example.com'"))
    assert made["spec"]["devices"]["requests"][0]["exactly"] | {"selectors": []} == {
        "deviceClassName": "gpu", "selectors": [], "allocationMode": "ExactCount", "count": 1,
    }  # fmt: skip
    made["spec"]["devices"]["requests"][0]["name"] = "other"
    assert "field is immutable" in (await api.refused(422, "PUT", f"{path}/c", made)).message
    reserved = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    refused = await api.refused(
        422, "PATCH", f"{path}/c/status", reserved, headers={"content-type": "application/merge-patch+json"}
    )
    assert "may not be specified when `allocated` is not set" in refused.message


async def test_slices_are_selected_by_node_and_driver(api: Api) -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices"
    for name, node in (("a", "n1"), ("b", "n2")):
        spec = {"driver": "d.example.com", "nodeName": node, "pool": {"name": node, "resourceSliceCount": 1}}
        await api.post(path, {"metadata": {"name": name}, "spec": spec})
    assert (await api.call("GET", f"{path}?fieldSelector=spec.nodeName=n2,spec.driver=d.example.com")).names == ["b"]
    deleted = await api.ok("DELETE", f"{path}/a")
    assert deleted["kind"] == "ResourceSlice"
