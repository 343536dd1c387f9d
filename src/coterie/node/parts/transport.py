"""The message queue of a domain's engines: its sockets are held here, a child serves them while somebody uses it."""

from __future__ import annotations

from pathlib import Path

from coterie.base.files import private_directory
from coterie.base.log import logger
from coterie.kube.control.manager import Runnable
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.transport.process import TransportProcess
from coterie.kuscia.transport.settings import TransportSettings
from coterie.node.parts.context import NodeContext

_log = logger("node.transport")


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    if settings.gateway.pods is None:
        _log.warning(
            "The message queue of engines is not served: pods share the machine's network here, so engines cannot be told apart"
        )
        return []
    places = GatewayPaths.of(settings.paths)
    chosen = TransportSettings(
        settings.domain,
        settings.paths,
        Path(places.transport_socket.host),
        Path(places.transport_engines_socket.host),
        settings.transport.limits,
        settings.logrotate.of_node,
    )
    child = TransportProcess(chosen, private_directory(places.run), node.client, node.clock)
    node.metrics_sources.append(child.metrics)
    return [[child]]
