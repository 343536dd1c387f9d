"""The agent of a node whose pods run in a backing cluster (`runtime: runk`), with its endpoint. Provides `backing_access`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coterie.base import pki
from coterie.base.log import logger
from coterie.kube.agent.runk import mirror_agent
from coterie.kube.agent.runk.backing_access import BackingAccess
from coterie.kube.agent.runk.settings import DEFAULT_EPHEMERAL_STORAGE, MirrorLabels, ReachableService, RunkSettings
from coterie.kube.agent.settings import AgentSettings, NodeObjectSettings, PodLogSettings, PodSettings
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection, KubeconfigError
from coterie.kube.control.manager import Runnable
from coterie.kuscia.api import labels
from coterie.kuscia.control.log_index import PodLogIndex
from coterie.kuscia.control.log_search import NodeLogSearch
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin
from coterie.kuscia.engine.log_index_plugin import LogIndexPlugin
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.identity import domain_identity
from coterie.node.config import AgentConfig, ConfigError, NodeSettings, RunkConfig
from coterie.node.parts.agent_endpoint import AgentPort, AgentTls
from coterie.node.parts.context import NodeContext
from coterie.node.parts.engine_parts import StaleCallers, config_store, engine_settings, logged_here

log = logger("node.runk")
_DNS_PORT = 53
_POD_LOG_MB = 10
_OWNER_LENGTH = 32


def build(node: NodeContext) -> list[list[Runnable]]:
    settings, clock, chosen = node.settings, node.clock, node.settings.agent
    assert chosen is not None and chosen.runk is not None, "the registry builds this part for runtime runk only"
    connection = backing_connection(chosen.runk)
    backing = Client(HttpTransport(connection, clock=clock), clock=clock, namespace=connection.namespace)
    mirrored = runk_settings(settings, chosen, chosen.runk, connection.namespace, _owner(settings))
    access = BackingAccess(backing, connection, mirrored.namespace)
    node.provide("backing_access", access)
    port = AgentPort(access, chosen, node.get("agent_tls", AgentTls), clock)
    callers = node.find("pod_callers", PodCallers)
    index = PodLogIndex.of(settings.paths.stdout)
    issuer = EngineCertificateIssuer(DomainAuthority(settings.paths), settings.domain, clock)
    engines = EnginePlugin(
        engine_settings(settings, chosen),
        issuer,
        config_store(settings, node.client),
        callers,
        names=bool(mirrored.dns_servers),
    )
    agent = mirror_agent.make(
        node.client,
        node.informers,
        backing,
        _agent_settings(settings, chosen, port.port),
        mirrored,
        clock,
        plugins=[engines, LogIndexPlugin(index, settings.domain, clock)],
    )
    access.manager = agent.pods
    port.log_search = NodeLogSearch(
        settings.paths, settings.domain, clock, node=chosen.node_name, index=index, sources=logged_here(settings)
    )
    last: list[Runnable] = [StaleCallers(callers, clock)] if callers is not None else []
    return [[port], *agent.groups, last]


def backing_connection(chosen: RunkConfig) -> ClusterConnection:
    """Raises ConfigError."""
    try:
        if chosen.kubeconfig_file:
            return kubeconfig.read(Path(chosen.kubeconfig_file)).resolve()
        return kubeconfig.in_cluster()
    except KubeconfigError as problem:
        what = f"{problem}; name a kubeconfig of the backing cluster, or run the node in a pod there"
        raise ConfigError(f"runk.kubeconfigFile: {what}") from problem


def _owner(settings: NodeSettings) -> str:
    """The same for each life of the domain, and for nobody else: by its key."""
    own = domain_identity.load(settings.paths, settings.domain)
    public = pki.public_pem(own.key.public_key())
    return hashlib.sha256(public).hexdigest()[:_OWNER_LENGTH]


def _agent_settings(settings: NodeSettings, chosen: AgentConfig, port: int) -> AgentSettings:
    rotation = settings.logrotate
    return AgentSettings(
        node_name=chosen.node_name,
        paths=settings.paths,
        address=chosen.address,
        port=port,
        capacity=chosen.capacity,
        pressure=chosen.pressure,
        node=NodeObjectSettings(lease_seconds=chosen.lease_seconds, renew_seconds=chosen.lease_seconds / 4),
        pods=PodSettings(namespace=settings.only_namespace),
        logs=PodLogSettings(max_age_days=rotation.max_age_days, max_total_bytes=rotation.max_total_mb << 20),
    )


def runk_settings(
    settings: NodeSettings, chosen: AgentConfig, runk: RunkConfig, context_namespace: str, owner: str
) -> RunkSettings:
    """Pure. `context_namespace`: of the kubeconfig's context."""
    rotation = settings.logrotate
    own_dns = settings.dns.address if settings.dns.enabled and settings.dns.port == _DNS_PORT else ""
    servers = runk.dns_servers or ((own_dns,) if own_dns else ())
    defaults = chosen.defaults
    return RunkSettings(
        namespace=runk.namespace or context_namespace,
        owner=owner,
        labels=MirrorLabels(labels.KUSCIA_NODE_NAMESPACE, labels.KUSCIA_NODE, labels.KUSCIA_POD_UID),
        dns_servers=servers,
        dns_search=(f"{settings.domain}.svc",),
        labels_to_add=runk.labels,
        annotations_to_add=runk.annotations,
        affinity=runk.affinity,
        runtime_class=runk.runtime_class,
        pull_secrets=runk.pull_secrets,
        service_account=runk.service_account,
        run_as_user=runk.run_as_user,
        allow_root=runk.allow_root,
        allow_privileged=chosen.allow_privileged,
        network_policies=runk.network_policies,
        node_addresses=tuple(dict.fromkeys((chosen.address, *(each.address for each in _gateway(settings))))),
        services=(*_gateway(settings), *_services(settings, servers)),
        dropped_resources=(labels.KUSCIA_BANDWIDTH,),
        default_memory=defaults.memory,
        default_ephemeral_storage=defaults.ephemeral_storage or DEFAULT_EPHEMERAL_STORAGE,
        keep_logs=runk.keep_logs,
        log_directory=Path(runk.log_directory) if runk.log_directory else None,
        log_bytes=runk.log_max_bytes or (rotation.max_file_mb or _POD_LOG_MB) << 20,
        log_files=runk.log_max_files or rotation.max_files,
    )


def _gateway(settings: NodeSettings) -> tuple[ReachableService, ...]:
    listener = settings.gateway.pod_listener
    return (ReachableService(listener.host, "TCP", listener.port),) if listener is not None else ()


def _services(settings: NodeSettings, servers: tuple[str, ...]) -> tuple[ReachableService, ...]:
    """Ports of the node that engines use, as on a pod network of our own."""
    found = [ReachableService(server, protocol, _DNS_PORT) for server in servers for protocol in ("UDP", "TCP")]
    mesh, conf = settings.data_mesh, settings.kuscia_api
    if mesh.enabled:
        found += [ReachableService(mesh.address, "TCP", port) for port in (mesh.http_port, mesh.grpc_port)]
    if conf.enabled:
        ports = (conf.conf_http_port, conf.conf_grpc_port)
        found += [ReachableService(conf.conf_address, "TCP", port, guests=False) for port in ports]
    return tuple(found)
