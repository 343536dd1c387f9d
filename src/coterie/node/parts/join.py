"""A lite that joined with a file made at the control plane (`coterie node add`): the API over HTTPS.

Provides `client`, `informers`, `agent_tls` and `join_bundle`.
"""

from __future__ import annotations

from dataclasses import replace

from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.node import join_bundle
from coterie.node.config import AgentConfig, ConfigError
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.context import NodeContext


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    assert settings.agent is not None, "config.parse gives every lite node an agent"
    assert settings.join is not None
    bundle = join_bundle.read_bundle(settings.join)
    client = Client(HttpTransport(bundle.connection()))
    informers = Informers(client)
    node.settings = replace(settings, agent=named_by(bundle, settings.agent))
    node.provide("client", client)
    node.provide("informers", informers)
    node.provide("join_bundle", bundle)
    node.provide("agent_tls", AgentTls.of_bundle(bundle, settings.paths))
    return [[informers]]


def named_by(bundle: join_bundle.Bundle, chosen: AgentConfig) -> AgentConfig:
    """A node that joined is who its certificate says it is, and its pods have the addresses that it was given."""
    if chosen.node_name not in ("", bundle.node):
        raise ConfigError(f'agent.nodeName: the file under `join` is for "{bundle.node}", not "{chosen.node_name}"')
    return replace(chosen, node_name=bundle.node, pod_cidr=bundle.pod_cidr or chosen.pod_cidr)
