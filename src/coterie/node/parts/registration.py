"""Mode lite with `masterEndpoint`: everything goes through gateways, so the own gateway comes before the API.

    link ──> Envoy with the way to the master ──> informers ──> handshake, feed, heartbeat ──> authority ──> DNS, agent

The API is `http://apiserver.master.svc` behind the own gateway's socket for the node: no credential lies here, the control plane's
gateway adds one to what comes with our token. An Envoy that outlived us, or its files, know the way already and are left as
they are until everything was read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.base import files
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.manager import Runnable, RunOnce
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.gateway.envoy import Envoy
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.registration.master_connection import MasterLink
from coterie.kuscia.gateway.registration.registration_files import MasterToken
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot import EnvoyResources, snapshot
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects, inputs_of
from coterie.kuscia.gateway.snapshot_source import SnapshotSource
from coterie.kuscia.identity import domain_identity
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.node.master_api import api_transport
from coterie.node.parts import gateway_metrics
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.context import NodeContext
from coterie.node.parts.gateway import gateway_parts
from coterie.node.parts.own_domain import prepared

if TYPE_CHECKING:
    from coterie.kuscia.engine import remote_engines, remote_groups
else:
    # Most domains have one machine.
    remote_engines = lazy_import("coterie.kuscia.engine.remote_engines")
    remote_groups = lazy_import("coterie.kuscia.engine.remote_groups")

log = logger("node.registering")

_ROOT_CA = "kube-root-ca.crt"
_BACKOFF = Policy(first=0.2, factor=2.0, limit=10.0)


def build(node: NodeContext) -> list[list[Runnable]]:
    """Provides `client`, `informers`, `agent_tls` and `pod_callers`; the gateway is among the groups, because the API is behind it."""
    settings, clock = node.settings, node.clock
    chosen, paths = settings.agent, settings.paths
    assert chosen is not None, "config.parse gives every lite node an agent"
    with prepared(settings, clock):
        pass
    tie = lite_gateway(settings.gateway, paths, domain_identity.load(paths, settings.domain), clock, chosen.address)
    tls = AgentTls.of_domain(paths, chosen.node_name, chosen.address, clock)
    node.provide("client", tie.client)
    node.provide("informers", tie.informers)
    node.provide("agent_tls", tls)
    node.provide("pod_callers", tie.callers)
    gateway_metrics.add_sources(node, tie.envoy, tie.feed)
    groups: list[list[Runnable]] = [*tie.groups, [authority(tie.client, settings.domain, tls, clock)]]
    if settings.node_api is not None and settings.gateway.pods is not None:
        engines = remote_engines.RemoteEngines(
            tie.client,
            tie.informers,
            tie.callers,
            settings.domain,
            chosen.node_name,
            clock,
            own_only=True,
            network=node.find("applied_remote_pods", remote_groups.AppliedRemotePods),
        )
        groups.append([engines.controller])
    return groups


@dataclass(frozen=True, slots=True)
class LiteGateway:
    """A lite's gateway with its way to the control plane, and the API at the end of that way."""

    link: MasterLink
    client: Client
    informers: Informers
    callers: PodCallers
    envoy: Envoy
    feed: SnapshotSource
    groups: list[list[Runnable]]


def lite_gateway(
    settings: GatewaySettings, paths: DomainPaths, own: DomainIdentity, clock: Clock, machine: str = ""
) -> LiteGateway:
    """`machine`: its address."""
    client = Client(api_transport(GatewayPaths.of(paths)), clock=clock)
    informers = Informers(client)
    link = MasterLink(settings, own, paths, clock=clock)
    watch_tokens(informers, link, own)
    gateway = gateway_parts(
        settings, paths, own, client, informers, clock=clock, master=lambda: link.route, machine=machine
    )
    envoy, feed = gateway.envoy, gateway.feed
    way = BootstrapRoute(link, envoy, feed, settings, paths)
    later = [[each for each in group if each is not envoy] for group in gateway.groups]
    return LiteGateway(
        link, client, informers, gateway.callers, envoy, feed, [[link], [envoy, way], [informers], *later]
    )


def first_resources(link: MasterLink, settings: GatewaySettings, paths: DomainPaths) -> EnvoyResources:
    """What Envoy is told before anything could be read: the way to the master and nothing else."""
    inputs, _ = inputs_of(
        GatewayObjects(master=link.route), settings, link.identity, GatewayPaths.of(paths), version=__version__
    )
    return snapshot(inputs)


class BootstrapRoute:
    """A Runnable: gives Envoy the way to the master until the feed has read the rest; ready when Envoy leads there."""

    name = "first-way"

    def __init__(
        self, link: MasterLink, envoy: Envoy, feed: SnapshotSource, settings: GatewaySettings, paths: DomainPaths
    ) -> None:
        self.ready = asyncio.Event()
        self._link = link
        self._envoy = envoy
        self._feed = feed
        self._inputs = (link, settings, paths)
        self._change_event = asyncio.Event()
        link.on_change = self._on_link_change

    def _on_link_change(self) -> None:
        self._change_event.set()
        self._feed.set_identity(self._link.identity)

    async def run(self) -> None:
        await self._link.ready.wait()
        self._change_event.clear()
        await _first(self._envoy.ready, self._envoy.waiting)
        if not self._envoy.ready.is_set():
            await self._envoy.begin(first_resources(*self._inputs))
        self.ready.set()
        while not self._feed.ready.is_set():
            await _first(self._change_event, self._feed.ready)
            if self._change_event.is_set() and not self._feed.ready.is_set():
                self._change_event.clear()
                # The API cannot be read without it, so nothing else would bring the new token to Envoy.
                await self._envoy.apply(first_resources(*self._inputs))
        await asyncio.Event().wait()


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def watch_tokens(informers: Informers, link: MasterLink, own: DomainIdentity) -> None:
    """The token to the master rolls through its DomainRoute, like all others."""

    def on_change(change: ObjectChange[DomainRoute]) -> None:
        spec = change.object.spec
        if spec.source == own.domain and spec.destination == link.master:
            found = newest_token(change.object, own)
            if found is not None:
                link.observe(found.token, found.revision)

    informers.get(DOMAIN_ROUTES, own.domain).add_handler(on_change)


def newest_token(route: DomainRoute, own: DomainIdentity) -> MasterToken | None:
    ready = [each for each in route.token_status.tokens or () if each.is_ready]
    if not ready:
        return None
    try:
        return MasterToken(crypto.open_sealed(ready[-1].token, own), ready[-1].revision)
    except crypto.NotDecrypted:
        return None  # of an earlier key of ours; the handshake makes another


def authority(client: Client, domain: str, tls: AgentTls, clock: Clock) -> RunOnce:
    """Whom the agent's endpoint believes: the control plane's authority, from our own namespace, or as it was read last."""

    async def read() -> None:
        backoff = Backoff(_BACKOFF)
        while True:
            try:
                found = await client.get(CONFIG_MAPS, _ROOT_CA, domain)
                files.write_atomic(tls.ca, (found.data or {})["ca.crt"])
                return
            except (ApiError, TransportError, KeyError) as error:
                if tls.ca.exists():
                    return
                if backoff.attempts == 3:
                    log.warning("The control plane's authority cannot be read yet", error=error, namespace=domain)
                await clock.sleep(backoff.failed())

    return RunOnce("control-plane-authority", read)
