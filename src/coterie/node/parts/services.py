"""Services in the pod network of a node: their virtual addresses, and the ports of the machine that lead to pods.

Provides `port_publisher`. The agent starts no container before the host ports of its pod are open.
"""

from __future__ import annotations

from coterie.kube.agent.plugin import PodNetworkPlugin
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets
from coterie.kube.api.meta import Object
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.manager import Runnable
from coterie.kube.network.ports.listeners import PortListeners
from coterie.kube.network.ports.plan import MachineView, engine_addresses, node_addresses
from coterie.kube.network.ports.publisher import PortPublisher, is_own_address
from coterie.kube.network.services.node_scope import NodeScope
from coterie.kube.network.services.proxy import ServiceProxy, ServiceRules
from coterie.node.parts.context import NodeContext
from coterie.node.parts.pod_network import PodNetworkPart

COMPONENT = "service-proxy"


def build(node: NodeContext) -> list[list[Runnable]]:
    sockets = node.find("namespace_sockets", NamespaceSockets)
    settings, clock = node.settings, node.clock
    facts, chosen = node.get("pod_network", PodNetworkPart).facts, settings.agent
    if sockets is None or facts is None or chosen is None:
        return []  # pods share the machine's network; the Node says so
    network = settings.network
    namespace = settings.only_namespace
    scope = NodeScope(node.informers, chosen.node_name, namespace)
    rules = ServiceRules(sockets.netlink, facts.gateway, network.service_cidr)
    proxy = ServiceProxy(node.informers, scope, rules, namespace=namespace, clock=clock)
    events = EventRecorder(node.client, COMPONENT, instance=chosen.node_name, clock=clock)
    addresses, is_engine = node_addresses(chosen.address), engine_addresses(network.pod_cidr, network.node_mask_size)
    publisher = PortPublisher(
        node.informers,
        PortListeners(sockets, facts.gateway),
        lambda: MachineView(scope.view, addresses, is_own_address, is_engine),
        scope,
        events,
        namespace=namespace,
        node_name=chosen.node_name,
        clock=clock,
    )
    node.provide("port_publisher", publisher)
    return [[events, proxy, publisher]]


class HostPortPlugin(PodNetworkPlugin):
    """No container starts before its pod's host ports are open on this machine; that a pod ended is seen in the API."""

    name = "hostports"

    def __init__(self, publisher: PortPublisher) -> None:
        self._publisher = publisher

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        await self._publisher.open_for_pod(pod, address)
