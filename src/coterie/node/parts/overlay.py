"""The network to the domain's pods on other machines, and from the machine to pods. For root; where pods have a network.

Provides `overlay`.
"""

from __future__ import annotations

from pathlib import Path

from coterie.base.log import logger
from coterie.kube.agent.runtimes.runp import pod_networks
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.network import SERVICES
from coterie.kube.control.manager import Runnable
from coterie.kube.network.overlay.controller import OverlayController
from coterie.kube.network.overlay.plan import OverlaySettings, gateway_of
from coterie.kube.network.pods.firewall import LINK_PROBE_PORT
from coterie.kuscia.api import labels
from coterie.node import cluster_network
from coterie.node.join_bundle import Bundle
from coterie.node.parts.context import NodeContext
from coterie.node.parts.pod_network import PodNetworkPart, cluster_of, outer_address, runp_directory

log = logger("node.overlay")


def build(node: NodeContext) -> list[list[Runnable]]:
    settings, chosen = node.settings, node.settings.agent
    assert chosen is not None, "config.parse gives every node of these modes an agent"
    facts = node.get("pod_network", PodNetworkPart).facts
    if facts is None or not facts.root:
        return []
    bundle = node.find("join_bundle", Bundle)
    if bundle is not None and not bundle.vni:
        log.warning(
            "The join file is of an earlier version: pods reach no other machine; make it anew", file=settings.join
        )
        return []
    cluster = cluster_of(settings, chosen)
    runtime = node.get("runtime", RunpRuntime)
    directory = runp_directory(settings)

    async def overlay_settings() -> OverlaySettings:
        return OverlaySettings(
            node=chosen.node_name,
            address=outer_address(chosen, bundle),
            pod_cidr=chosen.pod_cidr,
            cluster_cidr=cluster.cidr,
            service_cidr=settings.network.service_cidr,
            each_service=bool(settings.only_namespace),
            vni=await _vni(node, bundle),
            mtu=runtime.pod_mtu,
            between_machines=cluster.between_machines,
            link_routes=chosen.link_routes,
        )

    sockets = node.get("namespace_sockets", NamespaceSockets)
    controller = OverlayController(
        overlay_settings,
        node.informers if cluster.between_machines else None,
        f"{labels.KUSCIA_NODE_NAMESPACE}={settings.domain}",
        directory,
        namespace=lambda: _namespace(directory),
        domain_netlink=sockets.netlink,
        probe_socket=lambda: sockets.udp(gateway_of(chosen.pod_cidr), LINK_PROBE_PORT),
        clock=node.clock,
        # Domains of one control plane share the range of its Services.
        services=node.informers.get(SERVICES, settings.only_namespace) if settings.only_namespace else None,
    )
    node.provide("overlay", controller)
    runtime.on_namespace_change.append(controller.namespace_changed)
    return [[controller]]


async def _vni(node: NodeContext, bundle: Bundle | None) -> int:
    settings = node.settings
    if bundle is not None:
        return bundle.vni
    master = settings.gateway.master
    if master is not None:
        return cluster_network.vni_of(cluster_network.cluster_of_master(master), settings.domain)
    found = await node.client.get(NAMESPACES, cluster_network.NAMESPACE)
    return cluster_network.vni_of(found.metadata.uid, settings.domain)


def _namespace(directory: Path) -> Path:
    """OSError while there is none."""
    facts = pod_networks.read_facts(str(directory))
    if facts is None or "path" not in facts:
        raise FileNotFoundError(2, "there is no pod network now", str(directory))
    return Path(facts["path"])
