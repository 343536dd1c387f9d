"""Mode autonomy: the control plane, the gateway and the agent in one process; they speak to the API without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.control.manager import Runnable
from coterie.node.config import NodeSettings
from coterie.node.parts.agent import agent_groups
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.controllers import control_groups
from coterie.node.parts.dns import dns_groups
from coterie.node.parts.own_domain import prepared

if TYPE_CHECKING:
    from coterie.node.parts import datamesh, gateway, kusciaapi
else:
    # A control plane without a gateway or a data mesh does without their libraries.
    datamesh = lazy_import("coterie.node.parts.datamesh")
    gateway = lazy_import("coterie.node.parts.gateway")
    kusciaapi = lazy_import("coterie.node.parts.kusciaapi")


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    chosen = settings.agent
    assert chosen is not None, "config.parse gives every autonomy node an agent"
    with prepared(settings, clock):
        made, client, informers = control_groups(settings, clock)
        tls = AgentTls.of_plane(settings.paths, chosen.node_name, chosen.address, clock)
    if settings.kuscia_api.enabled:
        settings = kusciaapi.with_door(settings)
    gates = gateway.gateway_of_plane(settings, made, client, informers, clock) if settings.gateway.enabled else []
    names = dns_groups(settings, informers, clock)
    data = datamesh.datamesh_groups(settings, client, informers, clock) if settings.data_mesh.enabled else []
    api = kusciaapi.kusciaapi_groups(settings, client, clock) if settings.kuscia_api.enabled else []
    return [*made, *gates, *names, *api, *data, *agent_groups(settings, chosen, client, informers, tls, clock)]
