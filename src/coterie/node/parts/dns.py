"""The domain's DNS server as a part of a node, and what its pods' own resolver files say.

    dns_groups(settings, informers, clock)    the server, after the informers and before the agent
    pod_dns(settings)                         for the agent: nameserver, search, entries of hosts files

A resolver file cannot name a port. So where the server may not have port 53 (no rights, `dns.port`), or is switched off,
pods get the machine's resolver file, and the names that never change - of the node and of its gateway - in their hosts
file. Services then have no names inside pods; engines reach them through the gateway, whose address is in their
hosts file as `gateway`, with the service in the Host header.

Pods of the domain search `<domain>.svc` and then, as in Kubernetes, `<namespace>.svc.cluster.local`, `svc.cluster.local` and
`cluster.local`; pods of other namespaces search the last three first. Names with a dot are tried as they are first
(`ndots:1`). `svc` is not searched: every name that upstream denies would be tried below `svc` too, where it would be a name in
another domain: `typo.com` would lead to the gateway. Below `svc.cluster.local` only namespaces of this cluster have names.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.pods.hosts_files import parse_resolver_file
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets
from coterie.kube.agent.settings import DnsSettings
from coterie.kube.api.types.ingress import DNSES, Dns
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kube.network.dns.model import name_of
from coterie.kube.network.dns.server import DnsServer
from coterie.kube.network.dns.settings import PORT, Nameserver, Network, ServerSettings, without_self
from coterie.kube.network.dns.zone import GATEWAY_PORT, Zone
from coterie.kube.network.dns.zone_updater import ZoneUpdater
from coterie.kube.network.ingress.plan import dns_hosts
from coterie.kuscia.extensions.dns import (
    GATEWAY_LABEL,
    GATEWAY_SERVICES,
    HOST_SERVICES,
    MASTER,
    DomainNames,
    is_of_domain,
)
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.join_bundle import Bundle
from coterie.node.parts.context import NodeContext

log = logger("node.dns")

MACHINE_FILE = Path("/etc/resolv.conf")


def build(node: NodeContext) -> list[list[Runnable]]:
    bundle = node.find("join_bundle", Bundle)
    # A control plane of an earlier version lets nodes look into their own namespace only.
    alone = bundle is not None and not bundle.pod_cidr
    sockets = node.find("namespace_sockets", NamespaceSockets)
    return dns_groups(node.settings, node.informers, node.clock, sockets, own_namespace_only=alone)


def dns_groups(
    settings: NodeSettings,
    informers: Informers,
    clock: Clock,
    inside: NamespaceSockets | None = None,
    *,
    own_namespace_only: bool = False,
) -> list[list[Runnable]]:
    """`inside`: makes sockets of the pod network. `own_namespace_only`: no other may be watched. ConfigError when the address cannot be had."""
    dns = settings.dns
    if not dns.enabled:
        return []
    if ipaddress.ip_address(dns.address).is_unspecified:
        # Answers might come from another address than was asked, and pods need one to ask.
        raise ConfigError(f"dns.host: {dns.address} is every address; name one, such as 127.0.0.1")
    zone_updater = _zone_updater(settings, informers, own_namespace_only=own_namespace_only)
    upstream = _upstream(settings)
    try:
        pods = settings.gateway.pods
        # Pods of other nodes ask their own.
        clients: tuple[Network, ...] = (ipaddress.ip_network(pods.cidr),) if pods is not None else ()
        # Engines have no way out but to their peers; questions about other names would be one.
        engines: tuple[Network, ...] = (ipaddress.ip_network(pods.engines),) if pods is not None else ()
        if settings.runk is not None:
            # Only engines ask here: other pods have the DNS of their cluster.
            clients = engines = tuple(map(ipaddress.ip_network, settings.runk.pod_cidr))
        listening = ServerSettings(dns.address, dns.port, clients, engines)
        sockets = None
        if inside is not None:
            sockets = inside.udp(dns.address, dns.port), inside.tcp(dns.address, dns.port)
        server = DnsServer(listening, zone_updater, upstream, clock, sockets=sockets)
    except OSError as problem:
        raise ConfigError(_cannot_listen(dns.address, dns.port, problem)) from problem
    if dns.port != PORT and settings.agent is not None:
        log.warning(
            "Pods cannot ask the domain's DNS, because resolver files know no port but 53; services have no names in pods",
            port=dns.port,
        )
    return [[server]]


def _zone_updater(settings: NodeSettings, informers: Informers, *, own_namespace_only: bool) -> ZoneUpdater:
    zone = _zone(settings)
    if own_namespace_only or settings.only_namespace:
        updater = ZoneUpdater(zone, informers, settings.domain)
        # Of a node that joined, the gateway's settings are on another machine.
        if settings.gateway.ingress is not None or (settings.join is not None and settings.only_namespace):
            _follow_dns_objects(settings, informers, updater, settings.domain)
        return updater
    if settings.mode == "lite":
        # A node that joined may not read Domains; their namespaces say that they are theirs.
        updater = ZoneUpdater(zone, informers, is_foreign=is_of_domain)
        updater.set_foreign((MASTER,))
    else:
        domains = DomainNames(informers)
        updater = ZoneUpdater(zone, informers, is_foreign=is_of_domain, wait_for=(domains.ready,))
        domains.follow(updater.set_foreign)
    _follow_dns_objects(settings, informers, updater)
    return updater


def _follow_dns_objects(
    settings: NodeSettings, informers: Informers, updater: ZoneUpdater, namespace: str = ""
) -> None:
    """Their hosts lead to the gateway, which serves them to pods."""
    if settings.gateway.pods is None or not (settings.gateway.enabled or settings.remote_gateway):
        return
    gateway = updater.zone.gateway
    informer = informers.get(DNSES, namespace)

    def changed(_: ObjectChange[Dns]) -> None:
        found = dns_hosts(informer.cache.list(settings.domain), settings.dns.cluster_domain)
        updater.set_hosts({name_of(host): gateway for host in found})

    informer.add_handler(changed)


def pod_dns(settings: NodeSettings, machine_file: Path = MACHINE_FILE) -> DnsSettings:
    """What the agent writes into the files of each pod."""
    if settings.dns.enabled and settings.dns.port == PORT:
        return DnsSettings(
            (settings.dns.address,),
            (f"{settings.domain}.svc",),
            cluster_domain=settings.dns.cluster_domain,
            domain_namespace=settings.domain,
            host_resolv_conf=machine_file,
        )
    zone = _zone(settings)
    hosts = tuple(
        (address, tuple(spelling for name in names for spelling in (name, f"{name}.{settings.domain}.svc")))
        for addresses, names in ((zone.host, HOST_SERVICES), (zone.gateway, GATEWAY_SERVICES))
        for address in addresses
    )
    return DnsSettings(hosts=hosts, host_resolv_conf=machine_file)


def _zone(settings: NodeSettings) -> Zone:
    """The node's own services and the gateway's internal port are for this domain's pods, and listen side by side."""
    listener = settings.gateway.pod_listener
    gateway: tuple[str, ...] = ()
    if listener is not None:
        everywhere = ipaddress.ip_address(listener.host).is_unspecified
        gateway = (settings.dns.address if everywhere else listener.host,)
    # Virtual addresses of Services mean nothing in a backing cluster.
    network, fenced = settings.network, settings.gateway.pods is not None and settings.runk is None
    virtual = ipaddress.ip_network(network.service_cidr)
    return Zone(
        settings.domain,
        gateway,
        # Of a node that joined, data mesh and ConfManager are where the gateway is.
        (settings.remote_gateway or settings.dns.address,),
        # Without a pod network nothing leads a cluster IP to endpoints.
        virtual=virtual if fenced else None,
        networks=(ipaddress.ip_network(network.pod_cidr), virtual) if fenced else (),
        cluster_domain=name_of(settings.dns.cluster_domain),
        gateway_port=listener.port if listener is not None else GATEWAY_PORT,
        host_services=frozenset(HOST_SERVICES),
        gateway_services=frozenset(GATEWAY_SERVICES),
        gateway_label=GATEWAY_LABEL,
    )


def _upstream(settings: NodeSettings) -> Callable[[], Sequence[Nameserver]]:
    dns = settings.dns
    if dns.upstream:
        chosen = without_self([Nameserver.parse(text) for text in dns.upstream], dns.address, dns.port)
        if not chosen:
            raise ConfigError("dns.upstream: names this server itself only; name those that know all other names")
        return lambda: chosen
    return MachineServers(MACHINE_FILE, dns.address, dns.port)


class MachineServers:
    """The servers of the machine's resolver file, read again when it changes."""

    def __init__(self, path: Path, address: str, port: int) -> None:
        self._path = path
        self._address = address
        self._port = port
        self._stamp: tuple[int, int] | None = None
        self._servers: list[Nameserver] = []

    def __call__(self) -> Sequence[Nameserver]:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                self._servers = self._read(self._path.read_text(errors="replace"))
                self._stamp = stamp
        except OSError:
            self._servers, self._stamp = [], None
        return self._servers

    def _read(self, text: str) -> list[Nameserver]:
        named, _, _ = parse_resolver_file(text)
        found = [Nameserver(host) for host in named if _is_address(host)]
        return without_self(found, self._address, self._port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _cannot_listen(address: str, port: int, problem: OSError) -> str:
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    ways = "set dns.host or dns.port, or dns.enabled: false"
    if problem.errno == errno.EADDRINUSE:
        return f"dns: another program listens on {where}; {ways}"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"dns.host: {address} is no address of this machine; {ways}"
    return f"dns: cannot listen on {where} ({problem.strerror}); {ways}"
