"""Where pods run in a backing cluster (`runtime: runk`): the node's services listen where these pods reach them.

Engines are known by the addresses that the backing cluster gives them, as on a pod network of our own; whoever has another
address is nobody here. Other pods of the domain do not use the gateway.
"""

from __future__ import annotations

from dataclasses import replace

from coterie.kube.control.manager import Runnable
from coterie.kuscia.gateway.addresses import PodNetwork
from coterie.node.config import NodeSettings
from coterie.node.parts.context import NodeContext

_NOBODY, _NO_ENGINE = "255.255.255.254/31", "255.255.255.255/32"
"""No pod has these: no address is trusted for the range that it is in."""


def build(node: NodeContext) -> list[list[Runnable]]:
    node.settings = outside(node.settings)
    return []


def outside(settings: NodeSettings) -> NodeSettings:
    """The settings of a node whose pods are elsewhere. Pure."""
    internal = settings.gateway.internal
    if internal is None:
        return settings
    pods = PodNetwork(cidr=_NOBODY, engines=_NO_ENGINE, gateway=internal)
    return replace(settings, gateway=replace(settings.gateway, pods=pods, internal=None))
