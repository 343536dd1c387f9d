"""Who of a domain may reach what outside of it. Pure."""

from __future__ import annotations

from coterie.kube.network.rootless.addresses import in_network, packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Endpoint = tuple[str, int]

NEVER_FOR_PODS = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",  # link-local, with the metadata service of most clouds
    "224.0.0.0/4",
    "240.0.0.0/4",  # with broadcast
    "100.100.100.200/32",  # metadata service of Alibaba Cloud
    "168.63.129.16/32",  # host agent of Azure
    "192.0.0.0/24",  # metadata service of Oracle Cloud
)


class EgressPolicy:
    __slots__ = ("enabled", "gateway", "pod_cidr")

    def __init__(self, gateway: str = "", pod_cidr: str = "", enabled: bool = False) -> None:
        self.gateway = gateway
        """The domain's own address in its network namespace."""
        self.pod_cidr = pod_cidr
        self.enabled = enabled
        """Whether pods may reach the outside at all."""

    def is_own(self, peer: str) -> bool:
        """A process of the domain itself (gateway, data mesh), not of a pod."""
        address = packed(peer)
        return in_network(address, "127.0.0.0/8") or (bool(self.gateway) and address == packed(self.gateway))

    def refusal(self, peer: str, destination: Endpoint, is_machine_address: Callable[[str], bool]) -> str:
        """Why the connection is not made; empty: it is."""
        host, port = destination
        if not port:
            return "no port"
        if self.is_own(peer):
            return ""
        if not self.pod_cidr or not in_network(packed(peer), self.pod_cidr):
            return "unknown source"
        if not self.enabled:
            return "egress of pods is disabled"
        address = packed(host)
        if len(address) != 4 or any(in_network(address, each) for each in (*NEVER_FOR_PODS, self.pod_cidr)):
            return "the address is reserved"
        if is_machine_address(host):
            return "the address belongs to this machine"
        return ""
