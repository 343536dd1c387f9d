"""The network that pods have to themselves, made before everything that listens in it.

Provides `pod_runtime` (all runtimes of the node, open when this part's group has started), `runtime` (the RunpRuntime among them, which has the network) and `pod_network` (a PodNetworkPart: what there
is, or why there is none), and `applied_remote_pods` where other machines have pods of the domain. The settings of later parts are changed so that their services to pods listen in that network.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.agent import RuntimeService
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.runtimes.runp import network_access, pod_networks
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets, NotFenced, PodNetworkFacts
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings, RunpSettings
from coterie.kube.control.manager import Runnable
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kube.network.overlay import devices, plan
from coterie.kube.network.pods.netlink import NETLINK_ROUTE, NetlinkSocket
from coterie.kube.network.rootless import enter
from coterie.kube.network.rootless.client import Relay, RelaySettings
from coterie.kube.network.rootless.probe import UNSHARE, remedy_here
from coterie.kuscia.engine.remote_groups import AppliedRemotePods
from coterie.kuscia.gateway.addresses import IngressListeners, PodNetwork, SocketAddress
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.cluster_network import GATEWAY_PORT
from coterie.node.config import AgentConfig, ConfigError, NodeSettings
from coterie.node.join_bundle import Bundle
from coterie.node.parts import container_runtime
from coterie.node.parts.context import NodeContext
from coterie.node.parts.pod_dialler import PodDialler

log = logger("node.podnetwork")

DNS_PORT = 53
PUBLIC_SOCKET = "public.sock"
"""In the gateway's run directory: where the relay brings partners' connections. Short: the path of a socket has a limit."""
_ETHERNET_MTU, _LARGEST_MTU = 1500, 65535
_POD_LOG_MB = 10
"""Of one file of a pod's output, unless `logrotate` says how much."""


@dataclass(frozen=True, slots=True)
class PodNetworkPart:
    facts: PodNetworkFacts | None
    """None: pods share the machine's network."""
    problem: str = ""
    """Why pods are not fenced, and what to do about it."""

    @property
    def fenced(self) -> bool:
        """Pods have a network, users and a root of their own."""
        return self.facts is not None and self.facts.own_users

    @property
    def relayed(self) -> bool:
        """Whether the domain lives in a user namespace, with a relay as its way out."""
        return self.facts is not None and not self.facts.root


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    chosen = settings.agent
    assert chosen is not None, "config.parse gives every node of these modes an agent"
    network = _network_settings(settings, chosen, node.find("join_bundle", Bundle))
    part = _part(settings, chosen, network)
    if not part.fenced:
        node.protections_off.append("NotFenced")
    runtime = RunpRuntime(_runp_settings(settings, chosen, network if part.facts is not None else None))
    runtimes = container_runtime.make(settings, chosen, runtime, runp_directory(settings))
    node.provide("runtime", runtime)
    node.provide("pod_runtime", runtimes)
    node.provide("pod_network", part)
    groups: list[list[Runnable]] = [[RuntimeService(runtimes)]]
    if part.facts is not None:
        sockets = NamespaceSockets(runp_directory(settings), _group(settings, chosen))
        node.provide("namespace_sockets", sockets)
        if part.facts.root and cluster_of(settings, chosen).between_machines:
            node.provide("applied_remote_pods", AppliedRemotePods())
        if (dialler := node.find("pod_dialler", PodDialler)) is not None:
            dialler.attach(sockets, part.facts.cidr, settings.network.pod_cidr)
        node.provide("namespace_listeners", _listeners(settings, part.facts, sockets))
        node.settings = inside(settings, part.facts)
        if part.relayed:
            relay = _relay(node.settings, part.facts, sockets, node.clock)
            node.provide("relay", relay)
            groups.append([relay])
    return groups


def relay_directory(settings: NodeSettings) -> Path:
    return settings.paths.run / "relay"


def _relay(settings: NodeSettings, facts: PodNetworkFacts, sockets: NamespaceSockets, clock: Clock) -> Relay:
    """The way of an ordinary user's domain to the outside, and of partners to its gateway."""
    external, pods = settings.gateway.external, settings.gateway.pods
    assert pods is not None
    listens = settings.gateway.enabled and external is not None
    return Relay(
        relay_directory(settings),
        RelaySettings(
            listeners=(str(external),) if listens else (),
            target=pods.public_socket,
            others=_ingress_targets(settings),
            # The name changes exactly when the namespace does.
            inner_key=facts.namespace.name,
            gateway=facts.gateway,
            pod_cidr=facts.cidr,
        ),
        open_inner=lambda: asyncio.to_thread(sockets.tcp, "0.0.0.0", network_access.RELAY_PORT),
        log_file=settings.paths.log("relay"),
        clock=clock,
    )


def _ingress_targets(settings: NodeSettings) -> tuple[tuple[str, str], ...]:
    ingress = settings.gateway.ingress
    if ingress is None or not settings.gateway.enabled:
        return ()
    pairs = ((ingress.http, ingress.http_socket), (ingress.https, ingress.https_socket))
    return tuple((str(where), socket) for where, socket in pairs if where is not None)


def _part(settings: NodeSettings, chosen: AgentConfig, network: PodNetworkSettings) -> PodNetworkPart:
    directory = runp_directory(settings)
    try:
        facts = network_access.ensure(directory, _group(settings, chosen), network)
    except NotFenced as problem:
        text = remedy_here(problem.step, problem.number)
        log.warning(
            "NotFenced: pods share the machine's network and files; nothing that other domains begin runs here",
            why=problem,
            do=text,
        )
        return PodNetworkPart(None, f"{problem}; {text}")
    except RuntimeFailure as problem:
        raise ConfigError(f"agent: {problem.message}") from problem
    problem_text = ""
    if not facts.own_users:
        problem_text = f"pods share the users of this machine; {remedy_here(UNSHARE, errno.EPERM)}"
        log.warning("NotFenced: nothing that other domains begin runs here", why=problem_text)
    return PodNetworkPart(facts, problem_text)


def runp_directory(settings: NodeSettings) -> Path:
    return settings.paths.run / "runp"


def _group(settings: NodeSettings, chosen: AgentConfig) -> str:
    return group_of(chosen.node_name, runp_directory(settings))


def _enter(settings: NodeSettings, *, resolver: str = "") -> tuple[str, ...]:
    """Starts a program inside an ordinary user's pod network; its holder may have been replaced by then."""
    return enter.command(str(runp_directory(settings) / pod_networks.FACTS_FILE), resolver=resolver)


def _listeners(settings: NodeSettings, facts: PodNetworkFacts, sockets: NamespaceSockets) -> NamespaceListeners:
    return NamespaceListeners(
        facts.gateway,
        sockets.tcp,
        sockets.shared_tcp,
        netns=facts.namespace if facts.root else None,
        prefix=() if facts.root else _enter(settings, resolver=facts.gateway),
    )


def _network_settings(settings: NodeSettings, chosen: AgentConfig, bundle: Bundle | None) -> PodNetworkSettings:
    everybody = [("udp", DNS_PORT), ("tcp", DNS_PORT), ("tcp", GATEWAY_PORT)]
    if settings.data_mesh.enabled:
        everybody += [("tcp", settings.data_mesh.http_port), ("tcp", settings.data_mesh.grpc_port)]
    own = []
    if settings.kuscia_api.enabled:
        own = [("tcp", settings.kuscia_api.conf_http_port), ("tcp", settings.kuscia_api.conf_grpc_port)]
    cluster = cluster_of(settings, chosen)
    return PodNetworkSettings(
        chosen.pod_cidr,
        tuple(everybody),
        tuple(own),
        mtu=_mtu(chosen, bundle),
        cluster_cidr=cluster.cidr,
        node_mask_size=cluster.node_prefix,
        control_gateway=bundle.gateway if bundle is not None and cluster.between_machines else "",
    )


@dataclass(frozen=True, slots=True)
class PodCluster:
    """The range of all pods of the domain, as this node can be part of it."""

    cidr: str
    node_prefix: int
    between_machines: bool
    """False: the domain has no other node, or this one's range does not fit into the domain's, so its pods are alone."""


def cluster_of(settings: NodeSettings, chosen: AgentConfig) -> PodCluster:
    network, own = settings.network, ipaddress.IPv4Network(chosen.pod_cidr)
    fits = (
        # A lite that registered has other nodes if they may join it.
        (settings.gateway.master is None or settings.node_api is not None)
        and own.prefixlen == network.node_mask_size
        and own.subnet_of(ipaddress.IPv4Network(network.pod_cidr))
    )
    return PodCluster(network.pod_cidr if fits else str(own), own.prefixlen, fits)


def outer_address(chosen: AgentConfig, bundle: Bundle | None) -> str:
    """Where other machines send packets for our pods."""
    return plan.outer_address((chosen.address, *(bundle.addresses if bundle is not None else ())))


def _mtu(chosen: AgentConfig, bundle: Bundle | None) -> int:
    """What fits into the packets between machines; 0 where there are none."""
    address = outer_address(chosen, bundle)
    if os.getuid() or not plan.can_carry(address):
        return 0
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        found = devices.mtu_with(netlink, address) or _ETHERNET_MTU
    finally:
        netlink.close()
    return min(found, _LARGEST_MTU) - plan.HEADER_BYTES


def shared_images(settings: NodeSettings) -> tuple[Path, ...]:
    """The directory of layers that other domains use as well: no pod may write there."""
    place = settings.images.shared_store
    return (Path(place),) if place else ()


def _runp_settings(settings: NodeSettings, chosen: AgentConfig, network: PodNetworkSettings | None) -> RunpSettings:
    paths, rotation = settings.paths, settings.logrotate
    return RunpSettings(
        directory=runp_directory(settings),
        images=paths.images,
        node=chosen.node_name,
        address=chosen.address,
        network=network,
        allow_host_network=chosen.allow_host_network,
        # Keys, the store and other pods' files; a container sees its own pod's directories all the same.
        hidden=(paths.home, *shared_images(settings)),
        log_bytes=(rotation.max_file_mb or _POD_LOG_MB) << 20,
        log_files=rotation.max_files,
    )


def inside(settings: NodeSettings, facts: PodNetworkFacts) -> NodeSettings:
    """The settings of a node whose services to pods listen in the pod network."""
    run = GatewayPaths.of(settings.paths).run
    pods = PodNetwork(
        cidr=facts.cidr,
        engines=network_access.engine_range(facts.cidr),
        cluster=settings.network.pod_cidr,
        gateway=SocketAddress(settings.remote_gateway or facts.gateway, GATEWAY_PORT),
        namespace=str(facts.namespace) if facts.root else "",
        resolver=None if facts.root else SocketAddress(facts.gateway, DNS_PORT),
        public_socket="" if facts.root or settings.gateway.external is None else str(run / PUBLIC_SOCKET),
    )
    return replace(
        settings,
        gateway=replace(
            settings.gateway,
            pods=pods,
            ingress=_behind_relay(settings.gateway.ingress, run) if not facts.root else settings.gateway.ingress,
            internal=None,
            command_prefix=() if facts.root else _enter(settings),
        ),
        dns=replace(settings.dns, address=facts.gateway, port=DNS_PORT),
    )


def _behind_relay(ingress: IngressListeners | None, run: Path) -> IngressListeners | None:
    """An ordinary user's Envoy is inside the pod network: the relay has the ports."""
    if ingress is None:
        return None
    return replace(
        ingress,
        http_socket=str(run / "in-http.sock") if ingress.http is not None else "",
        https_socket=str(run / "in-https.sock") if ingress.https is not None else "",
    )
