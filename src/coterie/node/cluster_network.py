"""What all nodes of a domain have to know of its pod network. The control plane writes it into a ConfigMap at each start:

    kube-system/coterie-network      podCIDR, nodeMaskSize, serviceCIDR, vni, gateway

`coterie node add` copies it into join files.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES
from coterie.kube.client.client import Client
from coterie.kube.control.manager import RunOnce
from coterie.node.config import NodeSettings

NAMESPACE, NAME = "kube-system", "coterie-network"
_CONFIG_MAPS = CONFIG_MAPS.as_dynamic


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    pod_cidr: str = ""
    """All pods of the domain."""
    node_mask_size: int = 0
    service_cidr: str = ""
    vni: int = 0
    """Of the domain's VXLAN; 0: none."""
    gateway: str = ""
    """Address of the control plane's own node in the pod network; empty where it has none."""

    def data(self) -> dict[str, str]:
        return {
            "podCIDR": self.pod_cidr,
            "nodeMaskSize": str(self.node_mask_size),
            "serviceCIDR": self.service_cidr,
            "vni": str(self.vni),
            "gateway": self.gateway,
        }

    @classmethod
    def of_data(cls, data: Mapping[str, str]) -> ClusterNetwork:
        """ValueError when the ConfigMap was changed by hand."""
        return cls(
            pod_cidr=data.get("podCIDR", ""),
            node_mask_size=int(data.get("nodeMaskSize") or 0),
            service_cidr=data.get("serviceCIDR", ""),
            vni=int(data.get("vni") or 0),
            gateway=data.get("gateway", ""),
        )


NO_NETWORK = ClusterNetwork()


def vni_of(cluster: str, domain: str) -> int:
    """24 bits that differ between domains whose machines share a network. `cluster`: uid of the namespace kube-system."""
    digest = hashlib.sha256(f"{cluster}/{domain}".encode()).digest()
    return int.from_bytes(digest[:3], "big") or 1


def network_of(settings: NodeSettings, cluster: str) -> ClusterNetwork:
    network, own = settings.network, settings.agent
    return ClusterNetwork(
        pod_cidr=network.pod_cidr,
        node_mask_size=network.node_mask_size,
        service_cidr=network.service_cidr,
        vni=vni_of(cluster, settings.domain),
        gateway=str(ipaddress.ip_network(own.pod_cidr).network_address + 1) if own is not None else "",
    )


def published_network(client: Client, settings: NodeSettings) -> RunOnce:
    async def publish() -> None:
        cluster = (await client.get(NAMESPACES, NAMESPACE)).metadata.uid
        data = network_of(settings, cluster).data()
        body: Object = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
        try:
            await client.patch(_CONFIG_MAPS, NAME, NAMESPACE, {"data": data})
        except NotFound:
            try:
                await client.create(_CONFIG_MAPS, body)
            except AlreadyExists:
                await client.patch(_CONFIG_MAPS, NAME, NAMESPACE, {"data": data})

    return RunOnce("cluster-network", publish)


async def read_network(client: Client) -> ClusterNetwork:
    """Raises NotFound at a control plane of an earlier version."""
    return ClusterNetwork.of_data((await client.get(_CONFIG_MAPS, NAME, NAMESPACE)).get("data") or {})
