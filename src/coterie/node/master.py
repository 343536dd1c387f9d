"""Mode master: the control plane and the domain's gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.control.manager import Runnable
from coterie.node.config import NodeSettings
from coterie.node.parts.controllers import control_groups
from coterie.node.parts.own_domain import prepared

if TYPE_CHECKING:
    from coterie.node.parts import dns, gateway, kusciaapi
else:
    # A control plane without a gateway or a name server does without what they are made of.
    dns = lazy_import("coterie.node.parts.dns")
    gateway = lazy_import("coterie.node.parts.gateway")
    kusciaapi = lazy_import("coterie.node.parts.kusciaapi")


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    with prepared(settings, clock):
        made, client, informers = control_groups(settings, clock)
    if settings.kuscia_api.enabled:
        settings = kusciaapi.with_door(settings)
    gates = gateway.gateway_of_plane(settings, made, client, informers, clock) if settings.gateway.enabled else []
    names = dns.dns_groups(settings, informers, clock) if settings.dns.enabled else []
    api = kusciaapi.kusciaapi_groups(settings, client, clock) if settings.kuscia_api.enabled else []
    return [*made, *gates, *names, *api]
