"""The node's one page for Prometheus: the machine, the API server, pods. Needs `api` and `runtime` where the node has them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.base.clock import Clock
from coterie.base.exposition import Family, labels
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.server import HttpServer
from coterie.kube.api.types.pods import PODS
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kube.control.manager import Runnable
from coterie.kube.metrics.endpoint import MetricsEndpoint, ScrapeAccess
from coterie.kube.metrics.loop_lag import LoopLagSource
from coterie.kube.metrics.machine import MachineSource
from coterie.kube.metrics.sources import MetricsPage, MetricsSource, SampledSource
from coterie.kuscia.control.task_counters import TASK_COUNTERS
from coterie.kuscia.gateway.machine_status import GatewayMachineSource
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.config.settings import MetricsConfig
from coterie.node.parts.apiserver import ApiPlane
from coterie.node.parts.context import NodeContext

if TYPE_CHECKING:
    from coterie.kube.agent.devices import manager
    from coterie.kube.agent.runk import backing_access
    from coterie.kube.agent.runtimes import by_handler, protocol
    from coterie.kube.agent.runtimes.runp import network_access
    from coterie.kube.agent.server import network_metrics, pod_pages, usage_metrics
    from coterie.kube.network.pods import netlink
    from coterie.kuscia.engine import engine_metrics
    from coterie.node.parts import pod_network
else:
    manager = lazy_import("coterie.kube.agent.devices.manager")
    backing_access = lazy_import("coterie.kube.agent.runk.backing_access")
    by_handler = lazy_import("coterie.kube.agent.runtimes.by_handler")
    network_access = lazy_import("coterie.kube.agent.runtimes.runp.network_access")
    network_metrics = lazy_import("coterie.kube.agent.server.network_metrics")
    pod_pages = lazy_import("coterie.kube.agent.server.pod_pages")
    usage_metrics = lazy_import("coterie.kube.agent.server.usage_metrics")
    engine_metrics = lazy_import("coterie.kuscia.engine.engine_metrics")
    netlink = lazy_import("coterie.kube.network.pods.netlink")
    pod_network = lazy_import("coterie.node.parts.pod_network")

log = logger("node")
_ENGINE_SECONDS = 15.0
"""Between two looks at engines' own pages."""


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    bound = open_port(settings.metrics)
    if bound is None:
        return []
    sources: list[MetricsSource] = [_Build(settings), MachineSource()]
    if (plane := node.find("api", ApiPlane)) is not None:
        sources += [_ApiServerSource(plane), TASK_COUNTERS]
    if settings.gateway.enabled and settings.join is None:
        sources.append(GatewayMachineSource())
    sources += node.metrics_sources
    # A lite has controllers, too: the gateway's.
    sources += node.find("controller_metrics", list) or [ControllerMetrics()]
    slow = [*_slow_sources(node), *node.sampled_metrics_sources]
    return [[MetricsPort(bound, sources, slow, access(settings.metrics), node.clock, _engine_pages(node))]]


def _slow_sources(node: NodeContext) -> Sequence[MetricsSource]:
    chosen = node.settings.agent
    if chosen is None or chosen.runk is not None:
        return ()  # what pods use in a backing cluster is measured there
    # The same informer as the agent's own.
    pods = node.informers.get(PODS.as_dynamic, node.settings.only_namespace, fields=f"spec.nodeName={chosen.node_name}")

    def belongs_to(namespace: str, name: str) -> Mapping[str, str]:
        pod = pods.cache.get(name, namespace)
        return engine_metrics.task_labels(pod, node.settings.domain) if pod is not None else {}

    runtime = node.get("pod_runtime", by_handler.RuntimesByHandler)
    usage = usage_metrics.ContainerUsageSource(runtime, belongs_to)
    devices = node.find("devices", manager.DeviceManager)
    found: list[MetricsSource] = [usage]
    sockets = node.find("namespace_sockets", network_access.NamespaceSockets)
    part = node.find("pod_network", pod_network.PodNetworkPart)
    if sockets is not None and part is not None and part.facts is not None:
        open_netlink = partial(sockets.netlink, netlink.NETLINK_ROUTE)
        found.append(network_metrics.PodNetworkSource(runtime, open_netlink, part.facts.cidr))
    if devices is not None:
        found.append(devices)
    return found


def _engine_pages(node: NodeContext) -> Sequence[MetricsSource]:
    """Pages that engines serve themselves, where their AppImage has a `metricProbe`."""
    chosen, domain = node.settings.agent, node.settings.domain
    if chosen is None:
        return ()
    access: protocol.PodAccess
    if chosen.runk is not None:
        access = node.get("backing_access", backing_access.BackingAccess)
    else:
        access = node.get("pod_runtime", by_handler.RuntimesByHandler)
    pods = node.informers.get(PODS.as_dynamic, node.settings.only_namespace, fields=f"spec.nodeName={chosen.node_name}")

    def pages() -> list[pod_pages.PodPage]:
        found = ((pod, engine_metrics.metrics_page(pod, domain)) for pod in pods.cache)
        return [pod_pages.PodPage(pod["metadata"]["uid"], *page) for pod, page in found if page is not None]

    return [
        pod_pages.PodPagesSource(
            access,
            pages,
            prefixes=engine_metrics.RESERVED_PREFIXES,
            names=engine_metrics.RESERVED_NAMES,
        )
    ]


def open_port(wanted: MetricsConfig) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in wanted.address else socket.AF_INET
    try:
        return socket.create_server((wanted.address, wanted.port), family=family, backlog=16)
    except OSError as problem:
        where = f"{wanted.address}:{wanted.port}"
        if wanted.required:
            raise ConfigError(f"metrics.port: {where} cannot be opened ({problem.strerror})") from problem
        log.warning(
            "There is no page of metrics: its port cannot be opened; set metrics.port, or metrics.enabled: false",
            address=where,
            error=problem,
        )
        return None


def access(wanted: MetricsConfig) -> ScrapeAccess:
    token = None
    if wanted.token_file:
        try:
            token = SecretValue(Path(wanted.token_file).expanduser().read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"metrics.tokenFile: {wanted.token_file} cannot be read ({problem})") from problem
        if not token:
            raise ConfigError(f"metrics.tokenFile: {wanted.token_file} is empty")
    return ScrapeAccess([ipaddress.ip_network(each) for each in wanted.allow], token)


class MetricsPort:
    """A Runnable: the page is served while it runs."""

    name = "metrics"

    def __init__(
        self,
        bound: socket.socket,
        sources: Sequence[MetricsSource],
        slow: Sequence[MetricsSource],
        access: ScrapeAccess,
        clock: Clock,
        engines: Sequence[MetricsSource] = (),
    ) -> None:
        """`slow`: asked in the background. `engines`: so too, and what they say is not trusted."""
        self.ready = asyncio.Event()
        self._socket = bound
        self._sources = sources
        self._slow = slow
        self._engines = engines
        self._lag = LoopLagSource()
        self._access = access
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        address, port = self._socket.getsockname()[:2]
        async with TaskOwner(self.name) as owner:
            sampled = [SampledSource(source, self._clock, owner) for source in self._slow]
            engines = [SampledSource(source, self._clock, owner, _ENGINE_SECONDS) for source in self._engines]
            page = MetricsPage([*self._sources, self._lag, *sampled], foreign=engines)
            http = HttpServer(MetricsEndpoint(page, self._access).handle)
            await http.serve(self._socket)
            log.info("Metrics are served", address=address, port=port)
            self.ready.set()
            try:
                await self._stop.wait()
            finally:
                self._lag.stop()
                await http.stop()


class _Build:
    name = "build"

    def __init__(self, settings: NodeSettings) -> None:
        where = labels(version=__version__, mode=settings.mode, domain=settings.domain)
        self._family = Family("coterie_build_info", "Version, mode and domain of this node; 1.", "gauge", [(where, 1)])

    async def families(self) -> Sequence[Family]:
        return [self._family]


class _ApiServerSource:
    name = "apiserver"

    def __init__(self, plane: ApiPlane) -> None:
        self._plane = plane

    async def families(self) -> Sequence[Family]:
        return self._plane.server.metrics.families()
