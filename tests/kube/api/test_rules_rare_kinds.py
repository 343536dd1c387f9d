"""Rules of CSI kinds, devices and flow control: what each refuses, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest
from rules_kit import change_faults, created, faults

STORAGE, DEVICES, FLOW, NETWORK = (
    "storage.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
)


def slice_spec(**fields: Any) -> dict[str, Any]:
    pool = {"name": "p", "resourceSliceCount": 1}
    return {"spec": {"driver": "d.example.com", "nodeName": "n", "pool": pool, **fields}}


def device(**fields: Any) -> dict[str, Any]:
    return slice_spec(devices=[{"name": "a", **fields}])


def flow_schema(**fields: Any) -> dict[str, Any]:
    return {"spec": {"priorityLevelConfiguration": {"name": "system"}, "matchingPrecedence": 5, **fields}}


def claim(*requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": list(requests), **devices}}}


ONE = {"name": "one", "exactly": {"deviceClassName": "gpu"}}

CREATED: list[tuple[tuple[str, str], dict[str, Any], str]] = [
    ((STORAGE, "CSIDriver"), {"spec": {}}, ""),
    ((STORAGE, "CSIDriver"), {"spec": {"fsGroupPolicy": "X"}}, 'spec.fsGroupPolicy: Unsupported value: "X"'),
    ((STORAGE, "CSIDriver"), {"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 5}]}}, "may not specify a duration less than 10 minutes"),
    ((STORAGE, "CSIDriver"), {"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}}, 'spec.tokenRequests[1].audience: Duplicate value: "a"'),
    ((STORAGE, "CSIDriver"), {"spec": {"nodeAllocatableUpdatePeriodSeconds": 9}}, "must be greater than or equal to 10 seconds"),
    ((STORAGE, "CSINode"), {"spec": {"drivers": [{"name": "d", "nodeID": ""}]}}, "spec.drivers[0].nodeID: Required value"),
    ((STORAGE, "CSINode"), {"spec": {"drivers": [{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": "n"}]}}, 'spec.drivers[1].name: Duplicate value: "d"'),
    ((STORAGE, "CSIStorageCapacity"), {"storageClassName": "s", "capacity": "-1"}, "capacity: Invalid value"),
    ((STORAGE, "VolumeAttachment"), {"spec": {"attacher": "d", "nodeName": "n", "source": {}}}, "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"),
    ((STORAGE, "VolumeAttachment"), {"spec": {"attacher": "d", "nodeName": "n", "source": {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}}}, "spec.source.inlineVolumeSpec.csi: Required value"),
    ((STORAGE, "VolumeAttributesClass"), {"driverName": "d"}, "parameters: Required value: must contain at least one key/value pair"),
    ((DEVICES, "ResourceClaim"), claim(ONE), ""),
    ((DEVICES, "ResourceClaim"), claim({"name": "x"}), "exactly one of `exactly` or `firstAvailable` is required"),
    ((DEVICES, "ResourceClaim"), claim(ONE, ONE), 'spec.devices.requests[1]: Duplicate value: "one"'),
    ((DEVICES, "ResourceClaim"), claim(ONE, constraints=[{"requests": ["two"], "matchAttribute": "a.b/c"}]), "must be the name of a request in the claim"),
    ((DEVICES, "ResourceClaim"), claim(ONE, constraints=[{"matchAttribute": "bare"}]), "a fully qualified name must be a domain and a name separated by a slash"),
    ((DEVICES, "ResourceClaim"), claim(ONE, config=[{"opaque": {"driver": "d", "parameters": [1]}}]), "must be a valid JSON object"),
    ((DEVICES, "ResourceClaim"), claim({"name": "x", "exactly": {"deviceClassName": "g", "allocationMode": "All", "count": 2}}), "must not be specified when allocationMode is 'All'"),
    ((DEVICES, "ResourceClaim"), claim(*({**ONE, "name": f"r{n}"} for n in range(33))), "Too many: 33: must have at most 32 items"),
    ((DEVICES, "DeviceClass"), {"spec": {"selectors": [{"cel": {"expression": "1"}}]}}, "must evaluate to bool"),
    ((DEVICES, "DeviceClass"), {"spec": {"extendedResourceName": "cpu"}}, "must be a valid extended resource name"),
    ((DEVICES, "ResourceSlice"), device(attributes={"a": {"string": "x"}}), ""),
    ((DEVICES, "ResourceSlice"), slice_spec(allNodes=True), "`perDeviceNodeSelection` is required, but multiple fields are set"),
    ((DEVICES, "ResourceSlice"), slice_spec(nodeName=None), "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"),
    ((DEVICES, "ResourceSlice"), device(attributes={"a": {"string": "x", "int": 1}}), "exactly one value must be specified"),
    ((DEVICES, "ResourceSlice"), device(attributes={"a": {"version": "1.2"}}), "must be a string compatible with semver.org spec 2.0.0"),
    ((DEVICES, "ResourceSlice"), device(attributes={"a b": {"int": 1}}), "a valid C identifier must start with"),
    ((DEVICES, "ResourceSlice"), device(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}}), "allowMultipleAllocations must be true"),
    ((DEVICES, "ResourceSlice"), device(allowMultipleAllocations=True, capacity={"m": {"value": "4", "requestPolicy": {"default": "3", "validValues": ["1", "2"]}}}), "default value is not valid according to the requestPolicy"),
    ((DEVICES, "ResourceSlice"), device(taints=[{"key": "a", "effect": "X"}]), 'Unsupported value: "X"'),
    ((DEVICES, "ResourceSlice"), device(bindingConditions=["a"]), "bindingFailureConditions are required to use bindingConditions"),
    ((FLOW, "FlowSchema"), flow_schema(matchingPrecedence=1), "only the schema named 'exempt' may have matchingPrecedence 1"),
    ((FLOW, "FlowSchema"), flow_schema(matchingPrecedence=10_001), "must not be greater than 10000"),
    ((FLOW, "FlowSchema"), flow_schema(rules=[{"subjects": []}]), "subjects must contain at least one value"),
    ((FLOW, "FlowSchema"), flow_schema(rules=[{"subjects": [{"kind": "User", "group": {"name": "g"}}]}]), "group is forbidden when subject kind is not 'Group'"),
    ((FLOW, "PriorityLevelConfiguration"), {"spec": {"type": "Exempt"}}, "must be 'Exempt' if and only if `name` is 'exempt'"),
    ((FLOW, "PriorityLevelConfiguration"), {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": 5}}}}}, "should not be greater than queues (4)"),
    ((FLOW, "PriorityLevelConfiguration"), {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": 10_000_000, "handSize": 5}}}}}, "should not be greater than 60"),
    ((NETWORK, "ServiceCIDR"), {"spec": {"cidrs": ["10.0.0.1/24"]}}, 'must be in canonical form ("10.0.0.0/24")'),
    ((NETWORK, "ServiceCIDR"), {"spec": {"cidrs": ["10.0.0.0/24", "10.1.0.0/24"]}}, "may specify no more than one IP for each IP family"),
    ((NETWORK, "IPAddress"), {"spec": {}}, "spec.parentRef: Required value"),
    (("node.k8s.io", "RuntimeClass"), {"handler": "A"}, 'handler: Invalid value: "A"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "obj", "fault"), CREATED, ids=lambda value: value[1] if isinstance(value, tuple) else None
)
def test_objects(kind: tuple[str, str], obj: dict[str, Any], fault: str) -> None:
    found = faults(kind, {"metadata": {"name": "x"}, **obj})
    if not fault:
        assert found == []
    else:
        assert any(fault in each for each in found), found


CHANGED: list[tuple[tuple[str, str], dict[str, Any], dict[str, Any], str]] = [
    ((STORAGE, "CSIDriver"), {"spec": {"attachRequired": True}}, {"spec": {"attachRequired": False}}, "spec.attachedRequired: Invalid value: false: field is immutable"),
    ((STORAGE, "CSINode"), {"spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 1}}]}}, {"spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 2}}]}}, ""),
    ((STORAGE, "CSINode"), {"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}}, {"spec": {"drivers": [{"name": "d", "nodeID": "m"}]}}, "spec.drivers"),
    ((STORAGE, "VolumeAttributesClass"), {"driverName": "d", "parameters": {"a": "b"}}, {"driverName": "d", "parameters": {"a": "c"}}, "updates to parameters are forbidden."),
    ((NETWORK, "ServiceCIDR"), {"spec": {"cidrs": ["10.0.0.0/24"]}}, {"spec": {"cidrs": ["10.0.0.0/24", "fd00::/64"]}}, ""),
    ((NETWORK, "ServiceCIDR"), {"spec": {"cidrs": ["10.0.0.0/24"]}}, {"spec": {"cidrs": ["10.1.0.0/24"]}}, "field is immutable"),
    ((DEVICES, "ResourceSlice"), slice_spec(), slice_spec(nodeName="m"), 'spec.nodeName: Invalid value: "m": field is immutable'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new", "fault"), CHANGED)
def test_changes(kind: tuple[str, str], old: dict[str, Any], new: dict[str, Any], fault: str) -> None:
    meta = {"metadata": {"name": "x"}}
    found = change_faults(kind, created(kind, {**meta, **old}), {**meta, **new})
    if not fault:
        assert found == []
    else:
        assert any(fault in each for each in found), found
