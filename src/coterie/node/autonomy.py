"""Mode autonomy: the control plane, the gateway and the agent in one process; they speak to the API without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.clock import Clock
from coterie.base.later import later
from coterie.control.manager import Runnable
from coterie.node.agentport import AgentTls
from coterie.node.config import NodeSettings
from coterie.node.control import control_groups
from coterie.node.dnsnode import dns_groups
from coterie.node.nodeagent import agent_groups
from coterie.node.owndomain import prepared

if TYPE_CHECKING:
    from coterie.node import datameshnode, gatewaynode, kusciaapinode
else:
    # A control plane without a gateway or a data mesh does without their libraries.
    datameshnode = later("coterie.node.datameshnode")
    gatewaynode = later("coterie.node.gatewaynode")
    kusciaapinode = later("coterie.node.kusciaapinode")


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    chosen = settings.agent
    assert chosen is not None, "config.parse gives every autonomy node an agent"
    with prepared(settings, clock):
        made, client, informers = control_groups(settings, clock)
        tls = AgentTls.of_plane(settings.paths, chosen.node_name, chosen.address, clock)
    if settings.kuscia_api.enabled:
        settings = kusciaapinode.with_door(settings)
    gateway = gatewaynode.gateway_of_plane(settings, made, client, informers, clock) if settings.gateway.enabled else []
    names = dns_groups(settings, informers, clock)
    data = datameshnode.datamesh_groups(settings, client, informers, clock) if settings.data_mesh.enabled else []
    api = kusciaapinode.kusciaapi_groups(settings, client, clock) if settings.kuscia_api.enabled else []
    return [*made, *gateway, *names, *api, *data, *agent_groups(settings, chosen, client, informers, tls, clock)]
