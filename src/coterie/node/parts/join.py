"""A lite that joined with a file made at the control plane (`coterie node add`): the API over HTTPS.

Provides `client`, `informers`, `agent_tls` and `join_bundle`.
"""

from __future__ import annotations

from dataclasses import replace

from coterie.base.backoff import Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.client.client import Client
from coterie.kube.client.failover import FailoverTransport
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.node import api_servers, join_bundle
from coterie.node.config import AgentConfig, ConfigError, NetworkConfig, NodeSettings
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.context import NodeContext

_RETRY = Policy(first=0.2, factor=2.0, limit=4.0, jitter=0.3)
"""A control plane that is back finds its nodes within seconds: they hear of new pods, and of those that were deleted."""
_SERVERS_FILE = "api-servers"
_ANSWER_SECONDS = 15.0
"""A member that does not answer is left for another before the node counts as lost."""
log = logger("node.join")


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    assert settings.agent is not None, "config.parse gives every lite node an agent"
    assert settings.join is not None
    bundle = join_bundle.read_bundle(settings.join)
    _warn_of_expiry(bundle, node.clock)
    client, informers = connected(bundle, settings)
    node.settings = joined_settings(settings, settings.agent, bundle)
    node.provide("client", client)
    node.provide("informers", informers)
    node.provide("join_bundle", bundle)
    node.provide("agent_tls", AgentTls.of_bundle(bundle, settings.paths))
    return [[informers]]


def connected(bundle: join_bundle.Bundle, settings: NodeSettings) -> tuple[Client, Informers]:
    """To whichever member of the control plane lives."""
    connection = bundle.connection()
    if bundle.namespace:
        # A machine of a lite's domain: its API is at the lite's first machine, and nowhere else.
        client = Client(HttpTransport(connection))
        return client, Informers(client, retry=_RETRY)
    kept = settings.paths.storage / _SERVERS_FILE
    transport = FailoverTransport(
        api_servers.kept_servers(kept, bundle.server),
        lambda server: HttpTransport(replace(connection, server=server), timeout=_ANSWER_SECONDS),
    )
    client = Client(transport)
    informers = Informers(client, retry=_RETRY)
    api_servers.follow(informers, transport, bundle.server, kept)
    return client, informers


def _warn_of_expiry(bundle: join_bundle.Bundle, clock: Clock) -> None:
    ends = bundle.first_expiry(clock.now())
    if ends is not None:
        log.warning(
            "The certificates of the join file expire: make a new file with `coterie node add`",
            node=bundle.node,
            on=ends.date().isoformat(),
        )


def joined_settings(settings: NodeSettings, chosen: AgentConfig, bundle: join_bundle.Bundle) -> NodeSettings:
    """What a node that joins has from the control plane counts, not its own configuration."""
    settings = replace(settings, agent=named_by(bundle, chosen), network=network_of(bundle, settings.network))
    if not bundle.pod_cidr:
        return settings  # a file of an earlier version
    services = bundle.services
    mesh, api = settings.data_mesh, settings.kuscia_api
    if services.data_mesh:
        mesh = replace(mesh, http_port=services.data_mesh[0], grpc_port=services.data_mesh[1])
    if services.conf_manager:
        api = replace(api, conf_http_port=services.conf_manager[0], conf_grpc_port=services.conf_manager[1])
    return replace(
        settings,
        only_namespace=bundle.namespace,
        remote_gateway=bundle.gateway if services.gateway else "",
        gateway=replace(settings.gateway, enabled=bool(services.gateway)),
        data_mesh=replace(mesh, enabled=bool(services.data_mesh)),
        kuscia_api=replace(api, enabled=bool(services.conf_manager), protocol=services.api_protocol or api.protocol),
    )


def named_by(bundle: join_bundle.Bundle, chosen: AgentConfig) -> AgentConfig:
    """A node that joined is who its certificate says it is, and its pods have the addresses that it was given."""
    if chosen.node_name not in ("", bundle.node):
        raise ConfigError(f'agent.nodeName: the file under `join` is for "{bundle.node}", not "{chosen.node_name}"')
    return replace(chosen, node_name=bundle.node, pod_cidr=bundle.pod_cidr or chosen.pod_cidr)


def network_of(bundle: join_bundle.Bundle, chosen: NetworkConfig) -> NetworkConfig:
    """The control plane decides about the addresses of the domain."""
    if not bundle.cluster_cidr:
        return chosen
    return NetworkConfig(bundle.cluster_cidr, bundle.node_mask_size, bundle.service_cidr or chosen.service_cidr)
