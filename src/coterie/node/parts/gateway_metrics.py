"""What the node's page of metrics says about its gateway: Envoy's statistics, connections to partners, routes and certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.bandwidth_report import BandwidthReport, bandwidth_report
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.control.bandwidth_metrics import BandwidthSource
from coterie.kuscia.gateway.envoy import Envoy
from coterie.kuscia.gateway.metrics.envoy_source import EnvoyStatsSource
from coterie.kuscia.gateway.metrics.route_source import RouteSource
from coterie.kuscia.gateway.metrics.socket_source import Owner, RouteSocketsSource
from coterie.kuscia.gateway.snapshot_source import SnapshotSource
from coterie.node.parts.context import NodeContext

if TYPE_CHECKING:
    from coterie.kube.network.rootless import client
else:
    # Only where an ordinary user runs pods.
    client = lazy_import("coterie.kube.network.rootless.client")


def add_sources(node: NodeContext, envoy: Envoy, feed: SnapshotSource) -> None:
    settings = node.settings
    external = settings.gateway.external_tls
    files = {
        "domain": settings.paths.domain_certificate,
        "ca": settings.paths.ca_certificate,
        **({"external": external.pair.certificate} if external is not None else {}),
    }
    node.metrics_sources += [
        EnvoyStatsSource(envoy.admin, settings.domain, lambda: feed.inputs),
        RouteSource(settings.domain, lambda: feed.world().routes, lambda: feed.inputs, files),
    ]
    if settings.gateway.control_plane:
        node.metrics_sources.append(bandwidth_source(node))
    node.sampled_metrics_sources.append(
        RouteSocketsSource(envoy.admin, settings.domain, lambda: feed.inputs, _owner(node, envoy))
    )


def bandwidth_source(node: NodeContext) -> BandwidthSource:
    """Of a control plane, for all domains that it hosts: a master's page has the figures of its lites."""
    nodes, pods = node.informers.get(NODES), node.informers.get(PODS)
    gateways, routes = node.informers.get(GATEWAYS), node.informers.get(DOMAIN_ROUTES)
    reservations, domains = node.informers.get(TASK_RESOURCES), node.informers.get(DOMAINS)

    def reports() -> list[BandwidthReport]:
        return [
            bandwidth_report(
                domain.metadata.name,
                nodes.cache.list(),
                pods.cache.list(domain.metadata.name),
                gateways.cache.list(domain.metadata.name),
                routes.cache.list(domain.metadata.name),
                reservations.cache.list(domain.metadata.name),
            )
            for domain in domains.cache.list()
            if is_own(domain)
        ]

    return BandwidthSource(reports)


def _owner(node: NodeContext, envoy: Envoy) -> Owner:
    """Who opens connections to partners: Envoy, or the relay outside of an ordinary user's namespaces."""
    inside = bool(node.settings.gateway.command_prefix)
    relay = node.find("relay", client.Relay) if inside else None

    async def owner() -> int | None:
        if relay is None:
            return envoy.pid
        try:
            return (await relay.status()).pid
        except (OSError, client.RelayError):
            return None

    return owner
