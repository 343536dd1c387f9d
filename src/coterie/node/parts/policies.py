"""NetworkPolicies as a part of a node: enforced in its pod network, where it has one.

Provides `policy_enforcer`. The agent starts no container before the enforcer knows its pod.
"""

from __future__ import annotations

import msgspec

from coterie.kube.agent.plugin import PodNetworkPlugin
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.runtimes.runp import pod_networks
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import Pod
from coterie.kube.control.manager import Runnable
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER
from coterie.kube.network.policies.enforcer import PolicyEnforcer, PolicySettings
from coterie.kube.network.policies.model import PROTOCOLS, PolicyPod
from coterie.kube.network.policies.plan import NodeGateways
from coterie.node.config import NodeSettings
from coterie.node.parts.context import NodeContext
from coterie.node.parts.pod_network import runp_directory

SERVICES_NAMESPACE = "kube-system"
DNS_LABELS = {"k8s-app": "kube-dns"}
GATEWAY_LABELS = {"k8s-app": "coterie-gateway"}
"""How rules of egress select the node's DNS server and gateway: as if they were pods of `kube-system`."""


def build(node: NodeContext) -> list[list[Runnable]]:
    sockets = node.find("namespace_sockets", NamespaceSockets)
    settings = node.settings
    if sockets is None or settings.agent is None:
        return []  # pods share the machine's network; the Node says so
    directory = str(runp_directory(settings))
    enforcer = PolicyEnforcer(
        node.client,
        node.informers,
        PolicySettings(
            node_name=settings.agent.node_name,
            namespace=settings.only_namespace,
            nodes=NodeGateways(settings.network.pod_cidr, settings.network.node_mask_size),
            services=node_services(settings),
            open_netlink=lambda: sockets.netlink(NETLINK_NETFILTER),
            namespace_id=lambda: int((pod_networks.read_facts(directory) or {}).get("inode") or 0),
        ),
        node.clock,
    )
    node.provide("policy_enforcer", enforcer)
    return [[enforcer]]


def node_services(settings: NodeSettings) -> tuple[PolicyPod, ...]:
    found = []
    if settings.dns.enabled:
        ports = tuple((PROTOCOLS[name], settings.dns.port) for name in ("UDP", "TCP"))
        found.append(PolicyPod(SERVICES_NAMESPACE, DNS_LABELS, settings.dns.address, only=ports))
    pods = settings.gateway.pods
    if pods is not None:
        ports = ((PROTOCOLS["TCP"], pods.gateway.port),)
        found.append(PolicyPod(SERVICES_NAMESPACE, GATEWAY_LABELS, pods.gateway.host, only=ports))
    return tuple(found)


class PolicyPlugin(PodNetworkPlugin):
    """No container starts before its pod's policies are enforced."""

    name = "policies"

    def __init__(self, enforcer: PolicyEnforcer) -> None:
        self._enforcer = enforcer

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        await self._enforcer.add_pod(msgspec.convert(pod, Pod), address)

    def network_gone(self, pod_uid: str) -> None:
        self._enforcer.remove_pod(pod_uid)
