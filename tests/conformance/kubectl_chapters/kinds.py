"""Kinds that few people write: each is explained, created, shown, described and deleted; and who uses them here."""

from __future__ import annotations

import json
from typing import Any

from kubectl_steps import Chapter, Command, Step

_GROUPS = {
    "csidrivers": ("storage.k8s.io/v1", "CSIDriver"),
    "csinodes": ("storage.k8s.io/v1", "CSINode"),
    "csistoragecapacities": ("storage.k8s.io/v1", "CSIStorageCapacity"),
    "deviceclasses": ("resource.k8s.io/v1", "DeviceClass"),
    "flowschemas": ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
    "ipaddresses": ("networking.k8s.io/v1", "IPAddress"),
    "prioritylevelconfigurations": ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "resourceclaimtemplates": ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "runtimeclasses": ("node.k8s.io/v1", "RuntimeClass"),
    "servicecidrs": ("networking.k8s.io/v1", "ServiceCIDR"),
    "volumeattachments": ("storage.k8s.io/v1", "VolumeAttachment"),
    "volumeattributesclasses": ("storage.k8s.io/v1", "VolumeAttributesClass"),
}
_CLAIM = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}}
_LIMITED = {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}
_SUBJECTS = [{"kind": "User", "user": {"name": "jane"}}]
_RULE = {"subjects": _SUBJECTS, "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]}
_PARENT = {"resource": "gateways", "group": "lab.io", "name": "g"}
_POOL = {"name": "p", "resourceSliceCount": 1}

_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "csidrivers": ({"spec": {"attachRequired": False}}, r"^k\s+false\s+false\s+false\s+<unset>\s+false\s+Persistent\s"),
    "csinodes": ({"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}}, r"^k\s+1\s"),
    "csistoragecapacities": ({"storageClassName": "s", "capacity": "1Gi"}, r"^k\s+s\s+1Gi"),
    "deviceclasses": ({"spec": {"selectors": [{"cel": {"expression": "device.driver == 'd'"}}]}}, r"^k\s"),
    "flowschemas": (
        {"spec": {"priorityLevelConfiguration": {"name": "system"}, "matchingPrecedence": 42, "rules": [_RULE]}},
        r"^k\s+system\s+42\s+<none>\s",
    ),
    "ipaddresses": ({"spec": {"parentRef": _PARENT}}, r"^100\.112\.77\.7\s+gateways\.lab\.io/g\s"),
    "prioritylevelconfigurations": ({"spec": _LIMITED}, r"^k\s+Limited\s+30\s+<none>\s"),
    "resourceclaims": ({"spec": _CLAIM}, r"^k\s+pending\s"),
    "resourceclaimtemplates": ({"spec": {"spec": _CLAIM}}, r"^k\s"),
    "resourceslices": ({"spec": {"driver": "d", "nodeName": "n", "pool": _POOL}}, r"^k\s+n\s+d\s+p\s"),
    "runtimeclasses": ({"handler": "runp"}, r"^k\s+runp\s"),
    "servicecidrs": ({"spec": {"cidrs": ["100.112.64.0/20"]}}, r"^k\s+100\.112\.64\.0/20\s"),
    "volumeattachments": (
        {"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}},
        r"^k\s+d\s+v\s+n\s+false\s",
    ),
    "volumeattributesclasses": ({"driverName": "d", "parameters": {"iops": "5"}}, r"^k\s+d\s"),
}
_DESCRIBED_AS_BETA = frozenset({"ipaddresses", "servicecidrs", "volumeattributesclasses"})
"""Older clients describe these in a beta version only."""
_ACTED_ON = frozenset({"ipaddresses", "runtimeclasses", "servicecidrs"})


def _name(plural: str) -> str:
    return "100.112.77.7" if plural == "ipaddresses" else "k"


def _life(plural: str) -> list[Step]:
    (version, kind), (_, row) = _GROUPS[plural], _FIELDS[plural]
    group, name = version.partition("/")[0], _name(plural)
    full = f"{plural}.{group}"
    described = "1.33" if plural in _DESCRIBED_AS_BETA else "1.0"
    warned = () if plural in _ACTED_ON else rf"Warning: {kind} is stored only"
    return [
        Command(f"explain {plural}", f"explain {plural} --api-version={version}", out=rf"KIND:\s+{kind}\b"),
        Command(f"create {plural}", f"create -f {plural}.json", out=f"{name} created", err=warned),
        Command(f"get {plural}", f"get {full}", out=row),
        Command(f"json {plural}", f"get {full} {name} -o json", check=lambda obj: obj["metadata"]["uid"]),
        Command(f"describe {plural}", f"describe {full} {name}", out=rf"Name:\s+{name.replace('.', '[.]')}", since=described),
        Command(f"label {plural}", f"label {full} {name} a=b", out=f"{name} labeled"),
        Command(f"apply {plural}", f"apply --server-side --force-conflicts -f {plural}.json", out="serverside-applied"),
        Command(f"delete {plural}", f"delete {full} {name}", out=f"\"{name}\".* deleted"),
    ]  # fmt: skip


def _file(plural: str) -> str:
    version, kind = _GROUPS[plural]
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": _name(plural)}, **_FIELDS[plural][0]})


KINDS = Chapter(
    "kinds",
    (
        *(step for plural in _GROUPS for step in _life(plural)),
        Command("components", "get componentstatuses", out=r"^etcd-0\s+Healthy\s+ok", err="deprecated"),
        Command("default range", "get servicecidrs kubernetes", out=r"^kubernetes\s+100\.112\.0\.0/16\s"),
        Command("default levels", "get prioritylevelconfigurations", out=(r"^exempt\s+Exempt\s", r"^catch-all\s+Limited\s+5\s")),
        Command("default schemas", "get flowschemas", out=(r"^exempt\s+exempt\s+1\s", r"^global-default\s+global-default\s+9900\s")),
        Command("service", "create service clusterip kinds --tcp=80", out="service/kinds created"),
        Command("no class", "run p --image=i --overrides='{\"spec\":{\"runtimeClassName\":\"absent\"}}'", rc=1, err='pod rejected: RuntimeClass "absent" not found'),
    ),
    files={f"{plural}.json": _file(plural) for plural in _GROUPS},
)  # fmt: skip
