"""KusciaAPI and ConfManager as parts of a node: the ports are held here, a child serves them while somebody calls.

    with_door(settings)                       before the gateway: where it leads lites to
    kusciaapi_groups(settings, client, clock)

The keys and the token are made when the node starts, so that callers find them before the first call.
"""

from __future__ import annotations

import errno
from dataclasses import replace

from coterie.base.clock import Clock
from coterie.base.files import private_directory
from coterie.base.log import logger
from coterie.kube.client.client import Client
from coterie.kube.control.manager import Runnable
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.kusciaapi import server_certificates
from coterie.kuscia.kusciaapi.process import GATE_SOCKET, KusciaApiProcess
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Protection
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.parts.context import NodeContext

log = logger("kusciaapi")


def build(node: NodeContext) -> list[list[Runnable]]:
    groups = kusciaapi_groups(
        node.settings,
        node.find("kusciaapi_client", Client) or node.client,
        node.clock,
        node.find("namespace_listeners", NamespaceListeners),
    )
    node.metrics_sources += [each.metrics for group in groups for each in group if isinstance(each, KusciaApiProcess)]
    return groups


def with_gateway_socket(settings: NodeSettings) -> NodeSettings:
    """Of a control plane: its gateway leads lites to KusciaAPI."""
    if not settings.kuscia_api.enabled or not settings.gateway.enabled or settings.mode == "lite":
        return settings
    socket = SocketAddress(str(GatewayPaths.of(settings.paths).run / GATE_SOCKET), 0)
    return replace(settings, gateway=replace(settings.gateway, kuscia_api=socket))


def kusciaapi_groups(
    settings: NodeSettings, client: Client, clock: Clock, pods: NamespaceListeners | None = None
) -> list[list[Runnable]]:
    """ConfigError when a port cannot be had. A node that only joined has no key of its domain, hence no KusciaAPI.

    `pods`: the network in which ConfManager listens; None: the machine's.
    """
    chosen, paths = settings.kuscia_api, settings.paths
    if not chosen.enabled or not paths.domain_key.exists():
        return []
    lite = settings.mode == "lite"
    made = KusciaApiSettings(
        settings.domain,
        settings.mode,
        paths,
        chosen.address,
        chosen.http_port,
        chosen.grpc_port,
        Protection(chosen.protocol),
        chosen.conf_address,
        chosen.conf_http_port,
        chosen.conf_grpc_port,
        gateway=GatewayPaths.of(paths).node_socket.host if lite else "",
        timeouts=chosen.timeouts,
        conf_timeouts=chosen.conf_timeouts,
        log_rotation=settings.logrotate.of_node,
        node=settings.agent.node_name if settings.agent is not None else "",
    )
    if pods is not None:
        made = replace(made, conf_address=pods.address)
    server_certificates.ensure(made, chosen.names, clock.now(), conf_names=(chosen.conf_address,))
    # Beside the gateway's sockets, whose directory is short enough for a socket's name.
    run = private_directory(GatewayPaths.of(paths).run)
    try:
        child = KusciaApiProcess(made, run, client, clock, inner=settings.gateway.kuscia_api is not None, pods=pods)
    except OSError as problem:
        raise ConfigError(_cannot_listen(made, problem)) from problem
    if made.protection is Protection.NOTLS:
        log.warning(
            "KusciaAPI is plain text without authentication: anyone who can connect may do everything",
            address=chosen.address,
            http=chosen.http_port,
            grpc=chosen.grpc_port,
        )
    return [[child]]


def _cannot_listen(made: KusciaApiSettings, problem: OSError) -> str:
    ports = f"{made.address} port {made.http_port} or {made.grpc_port}"
    conf = f"{made.conf_address} port {made.conf_http_port} or {made.conf_grpc_port}"
    ways = "set host, HTTPPort and GRPCPort of kusciaAPI and of confManager, or kusciaAPI.enabled: false"
    if problem.errno == errno.EADDRINUSE:
        return f"kusciaAPI: another program listens on {ports}, or on {conf}; {ways}"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"kusciaAPI.host: {made.address} or {made.conf_address} is no address of this machine; {ways}"
    return f"kusciaAPI: cannot listen on {ports}, or on {conf} ({problem.strerror}); {ways}"
