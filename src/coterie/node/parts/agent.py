"""The node agent's parts: the runtime, the endpoint, the Node object, its pods."""

from __future__ import annotations

import os

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent import agent as agents
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.network_check import NetworkCheck
from coterie.kube.agent.node.conditions import PodNetworkState
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.runtimes.by_handler import RuntimesByHandler
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.settings import AgentSettings, NodeObjectSettings, PodLogSettings, PodSettings
from coterie.kube.api.errors import Forbidden
from coterie.kube.client.client import Client
from coterie.kube.control.manager import Runnable
from coterie.kube.network.overlay.controller import OverlayController
from coterie.kube.network.policies.enforcer import PolicyEnforcer
from coterie.kube.network.ports.publisher import PortPublisher
from coterie.kuscia.api.types.job import APP_IMAGES
from coterie.kuscia.control.log_index import PodLogIndex
from coterie.kuscia.control.log_search import NodeLogSearch
from coterie.kuscia.control.usage_log import USAGE_LOG, UsageLog
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin
from coterie.kuscia.engine.log_index_plugin import LogIndexPlugin
from coterie.kuscia.engine.remote_engines import RemoteGateway
from coterie.kuscia.engine.remote_groups import AppliedRemotePods, RemoteGroups
from coterie.kuscia.engine.usage_recorder import EngineUsageRecorder
from coterie.kuscia.gateway.callers import PodCallers
from coterie.node.config import AgentConfig, NodeSettings
from coterie.node.join_bundle import Bundle
from coterie.node.parts import container_runtime
from coterie.node.parts.agent_endpoint import AgentPort, AgentTls
from coterie.node.parts.context import NodeContext
from coterie.node.parts.dns import pod_dns
from coterie.node.parts.engine_parts import StaleCallers, config_store, engine_settings, logged_here
from coterie.node.parts.pod_network import DNS_PORT, PodNetworkPart, shared_images
from coterie.node.parts.policies import PolicyPlugin
from coterie.node.parts.services import HostPortPlugin

log = logger("node.agent")
_NO_WAY = (
    "this node has no network to the other machines of its domain, where the gateway and the data mesh are: that needs a node "
    "that runs as root and can isolate pods"
)


def build(node: NodeContext) -> list[list[Runnable]]:
    chosen = node.settings.agent
    assert chosen is not None, "config.parse gives every node of these modes an agent"
    return agent_groups(node, chosen)


def agent_groups(node: NodeContext, chosen: AgentConfig) -> list[list[Runnable]]:
    """The node agent with its endpoint. The endpoint's port is known before the Node object names it."""
    settings, client, informers, clock = node.settings, node.client, node.informers, node.clock
    network, runtime = node.get("runtime", RunpRuntime), node.get("pod_runtime", RuntimesByHandler)
    tls = node.get("agent_tls", AgentTls)
    _share_images(network.store, settings)
    part = node.get("pod_network", PodNetworkPart)
    bundle = node.find("join_bundle", Bundle)
    callers = node.find("pod_callers", PodCallers)
    rotation = settings.logrotate
    check = _network_check(settings, network, runtime, part, clock)
    port = AgentPort(runtime, chosen, tls, clock)
    engines = _engine_plugin(node, chosen, callers, part, bundle)
    index = PodLogIndex.of(settings.paths.stdout)
    written = UsageLog(settings.paths.log(USAGE_LOG), clock, rotation.of_node)
    usage = EngineUsageRecorder(runtime, written, clock)
    agent = agents.make(
        client,
        informers,
        runtime,
        AgentSettings(
            node_name=chosen.node_name,
            paths=settings.paths,
            address=chosen.address,
            port=port.port,
            capacity=chosen.capacity,
            pressure=chosen.pressure,
            node=NodeObjectSettings(
                lease_seconds=chosen.lease_seconds,
                renew_seconds=chosen.lease_seconds / 4,
                # A join file of an earlier version gives no range, and the one of our configuration may be another's.
                # On somebody's cluster the ranges of nodes are the cluster's.
                pod_cidr=chosen.pod_cidr if (bundle is None or bundle.pod_cidr) and not settings.api.kubeconfig else "",
                addresses=tuple(each for each in bundle.addresses if each != chosen.address) if bundle else (),
            ),
            dns=pod_dns(settings),
            pods=PodSettings(
                namespace=settings.only_namespace,
                host_paths=chosen.host_paths,
                withheld=(settings.paths.home, *shared_images(settings)),
                allow_privileged=chosen.allow_privileged,
                defaults=chosen.defaults,
            ),
            logs=PodLogSettings(max_age_days=rotation.max_age_days, max_total_bytes=rotation.max_total_mb << 20),
            default_handler=container_runtime.default_handler(
                chosen, container_runtime.installed, root=os.getuid() == 0
            ),
            devices=chosen.devices,
        ),
        clock,
        plugins=[engines, LogIndexPlugin(index, settings.domain, clock, usage.starting), *_network_plugins(node)],
        images=NodeImages(network.store, settings.images, clock),
        served_images=lambda: _app_images(client),
        network=lambda: PodNetworkState(
            part.fenced, check.problem if check is not None else "", part.problem, part.facts is None
        ),
    )
    port.devices = agent.devices
    port.log_search = NodeLogSearch(
        settings.paths, settings.domain, clock, node=chosen.node_name, index=index, sources=logged_here(settings)
    )
    node.provide("devices", agent.devices)
    if check is not None:
        check.on_change = agent.node.update_conditions
    _runtime, *rest = agent.groups
    last: list[Runnable] = [usage, *([StaleCallers(callers, clock)] if callers is not None else [])]
    overlay = node.find("overlay", OverlayController)
    if overlay is not None and overlay.selector:
        last.append(
            RemoteGroups(
                informers,
                engines.pod_network,
                network.set_remote_pods,
                clock,
                domain=settings.domain,
                node=chosen.node_name,
                selector=overlay.selector,
                applied=node.find("applied_remote_pods", AppliedRemotePods),
            )
        )
    return [
        [agent.events, *([check] if check is not None else [])],
        [port],
        *rest,
        last,
    ]


def _share_images(store: ImageStore, settings: NodeSettings) -> None:
    """Without the shared directory the node has all layers for itself, which is never wrong."""
    try:
        store.share(next(iter(shared_images(settings)), None))
    except (ImageError, OSError) as problem:
        log.warning("image.sharedStore is not used", why=str(problem))
        store.share(None)


async def _app_images(client: Client) -> set[str]:
    """Names of images that AppImages have. A lite may not read them: there, what no pod uses may go."""
    try:
        page = await client.list(APP_IMAGES)
    except Forbidden:
        return set()
    return {f"{each.spec.image.name}:{each.spec.image.tag}" for each in page.items}


def _network_check(
    settings: NodeSettings, network: RunpRuntime, runtime: RuntimesByHandler, part: PodNetworkPart, clock: Clock
) -> NetworkCheck | None:
    pods = settings.gateway.pods
    if pods is None:
        return None
    name = f"gateway.{settings.domain}.svc" if settings.dns.enabled else ""
    # A node that joined may have no way to the gateway: engines are refused then, and other pods need none.
    reachable = settings.join is None or (bool(settings.remote_gateway) and not part.relayed)
    port = pods.gateway.port if settings.gateway.enabled and reachable else 0
    return NetworkCheck(
        network,
        settings.dns.address,
        name,
        port,
        clock,
        needed=lambda: bool(runtime.pods()),
        gateway=pods.gateway.host,
    )


def _engine_plugin(
    node: NodeContext, chosen: AgentConfig, callers: PodCallers | None, part: PodNetworkPart, bundle: Bundle | None
) -> EnginePlugin:
    settings, client = node.settings, node.client
    issuer = EngineCertificateIssuer(
        bundle.engines if bundle is not None else DomainAuthority(settings.paths), settings.domain, node.clock
    )
    remote = bool(settings.remote_gateway)
    names = part.facts is not None or not settings.dns.enabled or settings.dns.port == DNS_PORT
    return EnginePlugin(
        engine_settings(settings, chosen),
        issuer,
        config_store(settings, client),
        callers,
        gateway=RemoteGateway(client, node.informers, chosen.node_name, settings.only_namespace) if remote else None,
        unreachable=_NO_WAY if remote and (part.facts is None or part.relayed) else "",
        fenced=part.fenced,
        names=names,
    )


def _network_plugins(node: NodeContext) -> list[AgentPlugin]:
    found: list[AgentPlugin] = []
    enforcer, publisher = node.find("policy_enforcer", PolicyEnforcer), node.find("port_publisher", PortPublisher)
    if enforcer is not None:
        found.append(PolicyPlugin(enforcer))
    if publisher is not None:
        found.append(HostPortPlugin(publisher))
    return found
