"""The domain's listeners: its public port, the one for its own pods, and its names.

Addresses follow the node's own (`agent.address`, else `apiServer.host`), so that several domains on one machine, each
with a loopback address of its own, do not meet:

    node's own address      public port on    for its own pods and DNS on
    127.0.0.1, 0.0.0.0      0.0.0.0           127.0.0.1
    127.0.1.2               127.0.1.2         127.0.1.2
    10.0.0.2                10.0.0.2          127.0.0.1: whoever reaches these speaks as this domain

Envoy's 80 and the DNS's 53 need rights. Where this process has none, other ports are taken and that is told.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.network.dns.settings import Nameserver
from coterie.kuscia.gateway.addresses import IngressListeners, KeyPair, Protocol, SocketAddress
from coterie.kuscia.gateway.settings import ExternalTls, GatewaySettings, MasterEndpoint
from coterie.node.config.reading import PORTS, Block, ConfigError, is_address
from coterie.node.config.settings import DnsConfig, InlineFile, Notice

INTERNAL_PORT, EXTERNAL_PORT, DNS_PORT = 80, 1080, 53
UNPRIVILEGED = {INTERNAL_PORT: 10080, DNS_PORT: 10053}
UNPRIVILEGED_SENTENCE = "This process may not open a port below 1024; it uses another"
_ORDINARY = ("127.0.0.1", "::1", "0.0.0.0", "::")
_NONE = "none"
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class GatewaySection:
    gateway: GatewaySettings
    dns: DnsConfig
    inline_files: tuple[InlineFile, ...]
    notices: tuple[Notice, ...]


def read(
    document: Block, mode: str, domain: str, paths: DomainPaths, lowest_port: int, *, inner_address: str = ""
) -> GatewaySection:
    """`inner_address`: where pods reach the node, when that is not this machine alone."""
    inner, outer = listen_addresses(
        document.block("agent").text("address", "") if mode != "master" else "",
        document.block("apiServer").text("host", "") if mode != "lite" else "",
    )
    inner = inner_address or inner
    notices: list[Notice] = []

    def usual(block: Block, port: int) -> int:
        if port >= lowest_port or block.raw("port") is not None:
            return port
        notices.append(Notice(UNPRIVILEGED_SENTENCE, block.path("port"), str(UNPRIVILEGED[port])))
        return UNPRIVILEGED[port]

    block, dns = document.block("gateway"), document.block("dns")
    internal = block.block("internal")
    protocol = Protocol(document.choice("protocol", "MTLS", tuple(Protocol)))
    tls, files = _external_tls(document.block("domainRoute").block("externalTLS"), protocol, paths)
    masters = _masters(document) if mode == "lite" else ()
    gateway = GatewaySettings(
        domain=domain,
        enabled=_enabled(block, registers=mode == "lite" and not document.text("join", "")),
        instance=_instance(block, document.block("agent").text("nodeName", "")),
        # A master has no pods.
        internal=_address(internal, inner, usual(internal, INTERNAL_PORT)) if mode != "master" else None,
        external=_external(block, outer),
        ingress=_ingress(block, outer),
        cluster_domain=_cluster_domain(dns),
        protocol=protocol,
        external_tls=tls,
        control_plane=mode != "lite",
        diagnose=block.flag("diagnose", True),
        workers=block.number("workers", 1, 1, 1024),
        master=masters[0] if masters else None,
        other_masters=masters[1:],
        deploy_token=document.secret("liteDeployToken") if mode == "lite" else None,
    )
    _check_apart(gateway)
    enabled = dns.flag("enabled", True)
    served = DnsConfig(
        enabled=enabled,
        address=dns.address("host", inner),
        port=dns.number("port", usual(dns, DNS_PORT) if enabled else DNS_PORT, *PORTS),
        upstream=_upstream(dns),
        cluster_domain=_cluster_domain(dns),
    )
    return GatewaySection(gateway, served, files, tuple(notices))


def listen_addresses(*own: str) -> tuple[str, str]:
    """(for our own, public): the addresses to listen on, for a node with these addresses."""
    for text in own:
        if not text or text in _ORDINARY or not is_address(text):
            continue
        return (text if ipaddress.ip_address(text).is_loopback else "127.0.0.1"), text
    return "127.0.0.1", "0.0.0.0"


def _address(block: Block, host: str, port: int) -> SocketAddress:
    return SocketAddress(block.address("host", host), block.number("port", port, *PORTS))


def _external(block: Block, host: str) -> SocketAddress | None:
    value = block.raw("external")
    if value is None and block.has("external"):
        # Elsewhere no value means the default. Here it could as well mean "no port", so nobody's port is opened.
        raise block.refused(
            "external", "has no value; write none for no public port, or host and port, or leave it out"
        )
    if value == _NONE:
        return None
    return _address(block.block("external"), host, EXTERNAL_PORT)


def _ingress(block: Block, host: str) -> IngressListeners | None:
    """Off unless a port is named: whoever reaches it is not authenticated."""
    section = block.block("ingress")
    where = section.address("host", host)
    ports = [section.number(name, 0, 0, PORTS[1]) for name in ("httpPort", "httpsPort")]
    if not any(ports):
        if section.raw("host") is not None:
            raise section.refused(
                "httpPort", "is missing; name httpPort, httpsPort or both, or leave gateway.ingress out"
            )
        return None
    http, https = (SocketAddress(where, port) if port else None for port in ports)
    return IngressListeners(http, https)


def _check_apart(gateway: GatewaySettings) -> None:
    listeners = {"internal": gateway.internal, "external": gateway.external}
    if gateway.ingress is not None:
        listeners |= {"ingress.httpPort": gateway.ingress.http, "ingress.httpsPort": gateway.ingress.https}
    taken: dict[str, SocketAddress] = {}
    for name, address in listeners.items():
        if address is None:
            continue
        for other, before in taken.items():
            everywhere = {"0.0.0.0", "::"} & {address.host, before.host}
            if address.port == before.port and (everywhere or address.host == before.host):
                raise ConfigError(f"gateway.{name}: {address} is the address of gateway.{other} too; take another port")
        taken[name] = address


def _enabled(block: Block, *, registers: bool) -> bool:
    enabled = block.flag("enabled", True)
    if not enabled and registers:
        raise block.refused("enabled", "must be true: a lite node reaches its control plane through its gateway")
    return enabled


def _instance(block: Block, node_name: str) -> str:
    name = block.text("name", "")
    if name and dns_subdomain_faults(name):
        raise block.refused("name", f'"{name}" is no valid name; take lower-case letters, digits, "-" and "."')
    # Host names of containers and laptops may hold anything; the Gateway object's name may not.
    host = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip(".-")
    return name or node_name or host or "gateway"


def _masters(document: Block) -> tuple[MasterEndpoint, ...]:
    """The gateways of one control plane, separated by commas."""
    text = document.text("masterEndpoint", "")
    try:
        found = tuple(MasterEndpoint.parse(each.strip()) for each in text.split(",")) if text else ()
    except ValueError as problem:
        raise document.refused("masterEndpoint", str(problem)) from problem
    if len({each.tls for each in found}) > 1:
        raise document.refused(
            "masterEndpoint", "names some members with http:// and some with https://; all have the same protocol"
        )
    return found


def _upstream(dns: Block) -> tuple[str, ...]:
    servers = dns.texts("upstream", "addresses of DNS servers")
    for server in servers:
        try:
            Nameserver.parse(server)
        except ValueError as problem:
            raise dns.refused("upstream", str(problem)) from problem
    return servers


def _cluster_domain(dns: Block) -> str:
    name = dns.text("clusterDomain", CLUSTER_DOMAIN)
    if dns_subdomain_faults(name) or name.rpartition(".")[2] == "svc":
        raise dns.refused(
            "clusterDomain", f'"{name}" is no domain name such as cluster.local (and none that ends in svc)'
        )
    return name


def _external_tls(
    block: Block, protocol: Protocol, paths: DomainPaths
) -> tuple[ExternalTls | None, tuple[InlineFile, ...]]:
    """The organisation's own certificate. Kuscia drops it unless `protocol` is empty; here it always counts."""
    certificate, key, authority = (_file(block, name, paths) for name in ("cert", "key", "ca"))
    off = block.raw("enableTLS") is not None and not block.flag("enableTLS", False)
    if certificate is None and key is None and authority is None:
        if off and protocol is not Protocol.NOTLS:
            raise block.refused("enableTLS", "does not turn TLS off; plain text is had by protocol: NOTLS")
        return None, ()
    if off:
        raise block.refused("enableTLS", "must be true for the files to be used; plain text is had by protocol: NOTLS")
    if protocol is Protocol.NOTLS:
        raise block.refused("certFile", "has no place beside protocol: NOTLS; take one of them out")
    if certificate is None or key is None:
        missing = "certFile" if certificate is None else "keyFile"
        raise block.refused(missing, "is missing; a certificate and its key are needed together")
    given = [each for each in (certificate, key, authority) if each is not None]
    inline = tuple(InlineFile(path, content) for path, content in given if content is not None)
    return ExternalTls(KeyPair(certificate[0], key[0]), authority[0] if authority else None), inline


def _file(block: Block, name: str, paths: DomainPaths) -> tuple[Path, SecretValue | None] | None:
    """A file, or what is to be in one; relative paths lie in var/certs, as in Kuscia's own files."""
    named, content = block.text(f"{name}File", ""), block.encoded(f"{name}Data")
    if named and content:
        raise block.refused(f"{name}Data", f"stands beside {name}File; take one of them out")
    if content:
        return paths.certs / f"external-tls.{'key' if name == 'key' else f'{name}.crt'}", content
    return (paths.certs / Path(named).expanduser(), None) if named else None
