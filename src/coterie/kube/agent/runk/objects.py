"""The objects that a copy needs beside it in the backing cluster, all owned by it: its garbage collector removes them. Pure."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runk.backing_pod import copy_name, files_name, group_value
from coterie.kube.agent.runk.settings import GROUP_LABEL, OWNER_LABEL, RunkSettings
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass
from coterie.kube.api.meta import Object

_DATA = ("data", "binaryData", "type")


def copied_object(kind: str, obj: Object, backing: Object, settings: RunkSettings) -> Object:
    name = copy_name(pod_model.key_of(backing).name, obj["metadata"]["name"])
    return {**_owned(kind, name, backing, settings), **{key: obj[key] for key in _DATA if obj.get(key)}}


def files_secret(files: Mapping[str, bytes], backing: Object, settings: RunkSettings) -> Object:
    made = _owned("Secret", files_name(pod_model.key_of(backing).name), backing, settings)
    return {**made, "type": "Opaque", "data": {key: base64.b64encode(value).decode() for key, value in files.items()}}


def network_policy(backing: Object, network: PodNetworkClass, settings: RunkSettings) -> Object | None:
    """What an engine may reach: the pods of its group and the node's services. None: it is no engine."""
    if network.kind is PodKind.ORDINARY or not settings.network_policies:
        return None
    peers = [{"podSelector": {"matchLabels": {GROUP_LABEL: group_value(network.group), OWNER_LABEL: settings.owner}}}]
    guest = network.kind is PodKind.GUEST
    services = [each for each in settings.services if each.guests or not guest]
    egress: list[Object] = [{"to": peers}] if network.group else []
    for address in dict.fromkeys(each.address for each in services):
        ports = [{"protocol": each.protocol, "port": each.port} for each in services if each.address == address]
        egress.append({"to": [_block(address)], "ports": ports})
    ingress = [{"from": [*(peers if network.group else ()), *(_block(each) for each in settings.node_addresses)]}]
    meta = backing["metadata"]
    made = _owned("NetworkPolicy", meta["name"], backing, settings)
    return {
        **made,
        "apiVersion": "networking.k8s.io/v1",
        "spec": {
            "podSelector": {"matchLabels": {settings.labels.pod_uid: meta["labels"][settings.labels.pod_uid]}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _block(address: str) -> Object:
    return {"ipBlock": {"cidr": f"{address}/{ipaddress.ip_address(address).max_prefixlen}"}}


def _owned(kind: str, name: str, backing: Object, settings: RunkSettings) -> Object:
    meta = backing["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    known = (settings.labels.namespace, settings.labels.node, settings.labels.pod_uid, OWNER_LABEL)
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {key: meta["labels"][key] for key in known if key in meta["labels"]},
            "ownerReferences": [owner],
        },
    }


def is_owned_by(obj: Object, backing: Object) -> bool:
    return any(each.get("uid") == backing["metadata"]["uid"] for each in obj["metadata"].get("ownerReferences") or ())


def differs(kind: str, there: Object, wanted: Object) -> bool:
    keys = ("spec",) if kind == "NetworkPolicy" else ("data", "binaryData")
    return any((there.get(key) or {}) != (wanted.get(key) or {}) for key in keys)
