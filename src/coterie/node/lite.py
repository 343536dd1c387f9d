"""Mode lite: the agent, joined to a control plane on another machine."""

from __future__ import annotations

from dataclasses import replace

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.node import join_bundle
from coterie.node.config import AgentConfig, ConfigError, NodeSettings
from coterie.node.parts import registration
from coterie.node.parts.agent import agent_groups
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.dns import dns_groups


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    assert settings.agent is not None, "config.parse gives every lite node an agent"
    if settings.join is None:
        return registration.groups(settings, clock)
    bundle = join_bundle.read_bundle(settings.join)
    client = Client(HttpTransport(bundle.connection()))
    informers = Informers(client)
    tls = AgentTls.of_bundle(bundle, settings.paths)
    chosen = named_by(bundle, settings.agent)
    names = dns_groups(settings, informers, clock)
    return [[informers], *names, *agent_groups(settings, chosen, client, informers, tls, clock)]


def named_by(bundle: join_bundle.Bundle, chosen: AgentConfig) -> AgentConfig:
    """A node that joined is who its certificate says it is."""
    if chosen.node_name not in ("", bundle.node):
        raise ConfigError(f'agent.nodeName: the file under `join` is for "{bundle.node}", not "{chosen.node_name}"')
    return replace(chosen, node_name=bundle.node)
