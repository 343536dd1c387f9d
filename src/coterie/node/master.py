"""Mode master: the control plane and the domain's gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.clock import Clock
from coterie.base.later import later
from coterie.control.manager import Runnable
from coterie.node.config import NodeSettings
from coterie.node.control import control_groups
from coterie.node.owndomain import prepared

if TYPE_CHECKING:
    from coterie.node import dnsnode, gatewaynode, kusciaapinode
else:
    # A control plane without a gateway or a name server does without what they are made of.
    dnsnode = later("coterie.node.dnsnode")
    gatewaynode = later("coterie.node.gatewaynode")
    kusciaapinode = later("coterie.node.kusciaapinode")


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    with prepared(settings, clock):
        made, client, informers = control_groups(settings, clock)
    if settings.kuscia_api.enabled:
        settings = kusciaapinode.with_door(settings)
    gateway = gatewaynode.gateway_of_plane(settings, made, client, informers, clock) if settings.gateway.enabled else []
    names = dnsnode.dns_groups(settings, informers, clock) if settings.dns.enabled else []
    api = kusciaapinode.kusciaapi_groups(settings, client, clock) if settings.kuscia_api.enabled else []
    return [*made, *gateway, *names, *api]
