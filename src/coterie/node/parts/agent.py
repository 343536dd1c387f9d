"""The node agent's parts: the runtime, the endpoint, the Node object, its pods."""

from __future__ import annotations

from functools import cache

from coterie.base.clock import Clock
from coterie.kube.agent import agent as agents
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import RunpSettings
from coterie.kube.agent.settings import AgentSettings, NodeObjectSettings, PodLogSettings, PodSettings
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kuscia.engine.certificates import EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin, EngineSettings
from coterie.kuscia.engine.templates.config_store import DomainConfig, NoConfigStore
from coterie.kuscia.identity import domain_identity
from coterie.node.config import AgentConfig, NodeSettings
from coterie.node.parts.agent_endpoint import AgentPort, AgentTls
from coterie.node.parts.context import NodeContext
from coterie.node.parts.dns import pod_dns

_POD_LOG_MB = 10
"""Of one file of a pod's output, unless `logrotate` says how much."""


def build(node: NodeContext) -> list[list[Runnable]]:
    chosen = node.settings.agent
    assert chosen is not None, "config.parse gives every node of these modes an agent"
    tls = node.get("agent_tls", AgentTls)
    return agent_groups(node.settings, chosen, node.client, node.informers, tls, node.clock)


def agent_groups(
    settings: NodeSettings, chosen: AgentConfig, client: Client, informers: Informers, tls: AgentTls, clock: Clock
) -> list[list[Runnable]]:
    """The node agent with its endpoint. The endpoint's port is known before the Node object names it."""
    paths, rotation = settings.paths, settings.logrotate
    runtime = RunpRuntime(
        RunpSettings(
            directory=paths.run / "runp",
            images=paths.images,
            node=chosen.node_name,
            address=chosen.address,
            # Keys, the store and other pods' files; a container sees its own pod's directories all the same.
            hidden=(paths.home,),
            log_bytes=(rotation.max_file_mb or _POD_LOG_MB) << 20,
            log_files=rotation.max_files,
        )
    )
    port = AgentPort(runtime, chosen, tls, clock)
    agent = agents.make(
        client,
        informers,
        runtime,
        AgentSettings(
            node_name=chosen.node_name,
            paths=settings.paths,
            address=chosen.address,
            port=port.port,
            capacity=chosen.capacity,
            node=NodeObjectSettings(lease_seconds=chosen.lease_seconds, renew_seconds=chosen.lease_seconds / 4),
            dns=pod_dns(settings),
            pods=PodSettings(
                # A lite that registered sees no pods but its own domain's.
                namespace=settings.domain if settings.gateway.master is not None else "",
                host_paths=chosen.host_paths,
                allow_privileged=chosen.allow_privileged,
                defaults=chosen.defaults,
            ),
            logs=PodLogSettings(max_age_days=rotation.max_age_days),
        ),
        clock,
        plugins=[_engine_plugin(settings, chosen, client, clock)],
    )
    first, *rest = agent.groups
    return [first, [port], *rest]


def engine_settings(settings: NodeSettings, chosen: AgentConfig) -> EngineSettings:
    """Config templates get the protocol of KusciaAPI, which may differ from the gateway's."""
    return EngineSettings(
        domain=settings.domain,
        data=settings.paths.data,
        api_protocol=settings.kuscia_api.protocol,
        api_token=settings.paths.api_token,
        taint=chosen.taint,
        bandwidth_mbit=chosen.bandwidth_mbit,
        reserved_bandwidth_mbit=chosen.reserved_bandwidth_mbit,
    )


def _engine_plugin(settings: NodeSettings, chosen: AgentConfig, client: Client, clock: Clock) -> EnginePlugin:
    issuer = EngineCertificateIssuer(settings.paths, settings.domain, clock)
    return EnginePlugin(engine_settings(settings, chosen), issuer, _config_store(settings, client) or NoConfigStore())


def _config_store(settings: NodeSettings, client: Client) -> DomainConfig | None:
    """The values that the domain keeps for its engines; a node that only joined has no key to read them with."""
    if not settings.paths.domain_key.exists():
        return None
    key = cache(lambda: domain_identity.load(settings.paths, settings.domain).key)
    return DomainConfig(client, settings.domain, key)
