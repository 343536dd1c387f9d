"""Nodes: what they offer, what they are called, whom they keep away, how they are."""

from __future__ import annotations

import msgspec

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import QuantityText


class Taint(Model, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Model, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None
    pod_cidr: str = msgspec.field(name="podCIDR", default="")
    pod_cidrs: tuple[str, ...] | None = msgspec.field(name="podCIDRs", default=None)
    """One for each address family; the first is `podCIDR`."""
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeAddress(Model, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class NodeCondition(Condition, frozen=True, kw_only=True):
    last_heartbeat_time: str | None = None


class NodeInfo(Model, frozen=True, kw_only=True):
    kubelet_version: str = ""


class NodeImage(Model, frozen=True, kw_only=True):
    names: tuple[str, ...] | None = None
    """`repository:tag`, and `repository@digest` where the digest is known."""


class NodeStatus(Model, frozen=True, kw_only=True):
    capacity: dict[str, QuantityText] | None = None
    allocatable: dict[str, QuantityText] | None = None
    conditions: tuple[NodeCondition, ...] | None = None
    addresses: tuple[NodeAddress, ...] | None = None
    node_info: NodeInfo | None = None
    images: tuple[NodeImage, ...] | None = None


class Node(ApiObject, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


NETWORK_UNAVAILABLE, SHARED_NETWORK = "NetworkUnavailable", "PodsShareMachineNetwork"
"""A condition, and its reason where pods have no addresses of their own, although all is as it can be there."""

NODES = Kind(builtin("nodes"), Node)
