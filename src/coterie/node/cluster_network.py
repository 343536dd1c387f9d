"""What all nodes of a domain have to know of its pod network. The control plane writes it into a ConfigMap at each start:

    kube-system/coterie-network      podCIDR, nodeMaskSize, serviceCIDR, vni, gateway, services

`coterie node add` copies it into join files. A lite that registered may not write there: it has a file for the nodes of its
domain (`write_network`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base import files
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES
from coterie.kube.client.client import Client
from coterie.kube.control.manager import RunOnce
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.node.config import NodeSettings

GATEWAY_PORT = 80
"""In the pod network."""
NAMESPACE, NAME = "kube-system", "coterie-network"
_CONFIG_MAPS = CONFIG_MAPS.as_dynamic


@dataclass(frozen=True, slots=True)
class DomainServices:
    """What pods of all nodes find at the address of the control plane's node."""

    gateway: int = 0
    """Its port; 0: there is no gateway."""
    data_mesh: tuple[int, ...] = ()
    """The ports for HTTP and gRPC; empty: it is switched off."""
    conf_manager: tuple[int, ...] = ()
    """Likewise."""
    api_protocol: str = ""
    """Of KusciaAPI, for config templates."""

    def document(self) -> Object:
        return {
            "gateway": self.gateway,
            "dataMesh": list(self.data_mesh),
            "confManager": list(self.conf_manager),
            "apiProtocol": self.api_protocol,
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DomainServices:
        """TypeError or ValueError when it is none."""
        data_mesh, conf_manager = (
            tuple(int(port) for port in document.get(key) or ()) for key in ("dataMesh", "confManager")
        )
        return cls(int(document.get("gateway") or 0), data_mesh, conf_manager, str(document.get("apiProtocol") or ""))

    @classmethod
    def of(cls, settings: NodeSettings) -> DomainServices:
        mesh, api = settings.data_mesh, settings.kuscia_api
        if settings.agent is None or not settings.gateway.enabled:
            return cls()
        return cls(
            GATEWAY_PORT,
            (mesh.http_port, mesh.grpc_port) if mesh.enabled else (),
            (api.conf_http_port, api.conf_grpc_port) if api.enabled else (),
            api.protocol,
        )


NO_SERVICES = DomainServices()


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
    services: DomainServices = NO_SERVICES
    """What there is at that address."""

    def data(self) -> dict[str, str]:
        return {
            "podCIDR": self.pod_cidr,
            "nodeMaskSize": str(self.node_mask_size),
            "serviceCIDR": self.service_cidr,
            "vni": str(self.vni),
            "gateway": self.gateway,
            "services": json.dumps(self.services.document()),
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
            services=DomainServices.of_document(json.loads(data.get("services") or "{}")),
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
        services=DomainServices.of(settings),
    )


def cluster_of_master(master: MasterEndpoint) -> str:
    """Of a lite, which may not read the uid of the cluster."""
    return f"{master.host}:{master.port}{master.prefix}"


def network_file(paths: DomainPaths) -> Path:
    return paths.pki / "nodes" / "network.json"


def write_network(paths: DomainPaths, network: ClusterNetwork, server: str) -> None:
    """At a lite. `server`: how this machine reaches the API for the domain's other machines."""
    files.private_directory(network_file(paths).parent)
    files.write_atomic(network_file(paths), json.dumps({"server": server, **network.data()}))


def load_network(paths: DomainPaths) -> tuple[ClusterNetwork, str]:
    """What `write_network` was given. OSError when there is none, ValueError when it cannot be read."""
    document = json.loads(network_file(paths).read_bytes())
    return ClusterNetwork.of_data(document), str(document.get("server") or "")


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
