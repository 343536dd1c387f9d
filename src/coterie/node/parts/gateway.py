"""A node's gateway: Envoy, what feeds it, the handshake with partners, the sign of life.

    handshake server, credentials ─> Envoy and its feed ─> negotiator, heartbeat ─> (control planes) InterConn

The handshake server comes first: Envoy leads partners to it from its first moment on. Envoy and the feed wait for each
other: the feed for Envoy's word, Envoy for the first complete configuration (or it goes on with the one that an earlier
life left behind). The negotiator and the heartbeat need a gateway that serves.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.base.clock import Clock
from coterie.base.exposition import Family
from coterie.base.files import private_directory
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.http.messages import Handler
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.manager import Runnable
from coterie.kuscia.bfia.server import BfiaServer
from coterie.kuscia.control.usage_log import USAGE_LOG, UsageLog
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.bearer import BearerTokens
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.gateway.crypt.process import BodyEncryptionProcess, CryptSettings
from coterie.kuscia.gateway.diagnosis.party_facts import PartyFactsSource
from coterie.kuscia.gateway.diagnosis.reverse_probe import ReverseProbe
from coterie.kuscia.gateway.diagnosis.server import DiagnosticServer
from coterie.kuscia.gateway.envoy import Envoy, EnvoySettings
from coterie.kuscia.gateway.handshake import negotiator
from coterie.kuscia.gateway.handshake.effective_tokens import EffectiveTokens, opened_of
from coterie.kuscia.gateway.handshake.handshake_client import HttpHandshakeTransport
from coterie.kuscia.gateway.handshake.pinned_certificates import domain_certificates, no_certificates
from coterie.kuscia.gateway.handshake.server import HandshakeServer
from coterie.kuscia.gateway.heartbeat import Heartbeat
from coterie.kuscia.gateway.ingress_status import IngressStatuses, point_of
from coterie.kuscia.gateway.model import Route
from coterie.kuscia.gateway.names import ORIGIN
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.polling.poller import CallPoller
from coterie.kuscia.gateway.polling.receiver import PollReceiver
from coterie.kuscia.gateway.registration.server import RegistrationServer
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot_source import SnapshotSource
from coterie.kuscia.gateway.usage_monitor import UsageMonitor
from coterie.kuscia.identity import domain_identity
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.kuscia.interconn.runnable import MemberRunners
from coterie.kuscia.reporter.server import Reporter
from coterie.node.config import ConfigError
from coterie.node.parts import gateway_metrics, kusciaapi
from coterie.node.parts.context import NodeContext
from coterie.node.parts.interconn import bfia_group, interconn_group
from coterie.node.parts.leadership import Leadership

if TYPE_CHECKING:
    from coterie.kuscia.engine import remote_engines, remote_groups
else:
    # A master has no pods.
    remote_engines = lazy_import("coterie.kuscia.engine.remote_engines")
    remote_groups = lazy_import("coterie.kuscia.engine.remote_groups")

_log = logger("node.gateway")
_EVERYWHERE = ("0.0.0.0", "::")


class _Calls:
    """The connections of handshakes that we begin, closed when the node stops. A Runnable."""

    name = "handshake-calls"

    def __init__(self, caller: HttpHandshakeTransport) -> None:
        self.ready = asyncio.Event()
        self._caller = caller

    async def run(self) -> None:
        self.ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._caller.close()


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """A gateway put together; `groups` is what a Manager runs."""

    envoy: Envoy
    feed: SnapshotSource
    callers: PodCallers
    groups: list[list[Runnable]]


def build(node: NodeContext) -> list[list[Runnable]]:
    """Beside the parts of a control plane. The domain's keys must be in their files."""
    if node.settings.kuscia_api.enabled:
        node.settings = kusciaapi.with_gateway_socket(node.settings)
    settings, client, informers, clock = node.settings, node.client, node.informers, node.clock
    own = domain_identity.load(settings.paths, settings.domain)
    api_ready = node.get("api_ready", asyncio.Event)

    places = gateway_paths(settings.paths)
    machine = settings.agent.address if settings.agent is not None else ""

    def api() -> SocketAddress | None:
        return places.api_socket if api_ready.is_set() else None

    reporter = Reporter(client, settings.domain, Path(places.reporter_socket.host))
    chosen = replace(settings.gateway, reporter=places.reporter_socket)
    made = gateway_parts(chosen, settings.paths, own, client, informers, clock=clock, api=api, machine=machine)
    node.provide("pod_callers", made.callers)
    gateway_metrics.add_sources(node, made.envoy, made.feed)
    first: list[Runnable] = [reporter]
    if settings.gateway.pods is not None and settings.agent is not None:
        own_node = settings.agent.node_name
        # Before Envoy: ordinary pods of other nodes are known to it from the beginning.
        engines = remote_engines.RemoteEngines(
            client,
            informers,
            made.callers,
            settings.domain,
            own_node,
            clock,
            network=node.find("applied_remote_pods", remote_groups.AppliedRemotePods),
        )
        first.append(engines.controller)
    served: list[Runnable] = [BfiaServer(client, informers, Path(places.bfia_socket.host), ORIGIN, clock)]

    def partners(its_client: Client, its_informers: Informers) -> list[Runnable]:
        """What we ask of partners, once in a control plane."""
        interconn = interconn_group(places, its_client, its_informers, clock)
        return [*interconn, *bfia_group(places, settings.domain, its_client, its_informers, clock)]

    leadership = node.find("leadership", Leadership)
    if leadership is not None:
        leadership.add(partners)
        node.metrics_sources.append(_InterconnOfTerm(leadership))
    else:
        calling = partners(client, informers)
        node.metrics_sources += [each for each in calling if isinstance(each, MemberRunners)]
        served += calling
    return [first, *made.groups, served]


class _InterconnOfTerm:
    """What InterConn counts, while this member leads."""

    name = "interconn"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def families(self) -> Sequence[Family]:
        running = [each for each in self._leadership.elected.parts if isinstance(each, MemberRunners)]
        return [family for each in running for family in await each.families()]


def gateway_parts(
    settings: GatewaySettings,
    paths: DomainPaths,
    identity: DomainIdentity,
    client: Client,
    informers: Informers,
    *,
    clock: Clock,
    api: Callable[[], SocketAddress | None] = lambda: None,
    master: Callable[[], Route | None] = lambda: None,
    address: str = "",
    machine: str = "",
) -> GatewayParts:
    """`api`: where our own API listens, on a control plane. `master`: a lite's way to its control plane as it was agreed
    on before any object could be read. `address`: where the domain's other gateways find this one. `machine`: the address of
    the machine, for a gateway that listens on all."""
    places = gateway_paths(paths)
    domain, instance = settings.domain, settings.instance
    address = address or _reached_at(settings, machine)
    events = EventRecorder(client, "gateway", instance=instance, clock=clock)
    envoy = Envoy(
        EnvoySettings(
            domain,
            places.directory,
            places.run,
            places.logs,
            instance=instance,
            workers=settings.workers,
            log_level=settings.log_level,
            log_rotation=settings.log_rotation,
            command_prefix=settings.command_prefix,
        ),
        clock=clock,
    )
    crypt = BodyEncryptionProcess(
        CryptSettings(domain, places.run, places.logs, logging=paths.logging, log_rotation=settings.log_rotation),
        clock=clock,
    )
    fetched = SecretValue(secrets.token_urlsafe(32))
    bearers = BearerTokens(client, lambda: feed.notify_change(), clock=clock) if settings.control_plane else None
    callers = PodCallers()
    effective = EffectiveTokens(client, informers, domain, instance, clock)
    statuses = _ingress_statuses(settings, client, informers, address, lambda: not feed.world().peer_gateways, clock)
    feed = SnapshotSource(
        informers,
        envoy,
        settings,
        identity,
        places,
        tokens_of=partial(opened_of, identity=identity),
        on_loaded=effective.loaded,
        on_ingresses=statuses.served if statuses is not None else None,
        bearers=bearers,
        crypt=crypt,
        polling_secret=fetched,
        callers=callers,
        api=api,
        master=master,
        events=events,
        version=__version__,
        clock=clock,
    )
    caller = HttpHandshakeTransport(places.node_socket)
    heartbeat = Heartbeat(
        client,
        settings,
        identity,
        envoy.admin,
        feed.world,
        address=address,
        version=__version__,
        clock=clock,
    )
    usage = UsageMonitor(
        client,
        domain,
        instance,
        envoy.admin,
        lambda: feed.inputs,
        feed.tasks_running,
        record=UsageLog(paths.log(USAGE_LOG), clock, settings.log_rotation).links,
        clock=clock,
    )
    shaking = negotiator.make(client, informers, identity, instance, caller, events=events, clock=clock)
    first: list[Runnable] = [
        events,
        crypt,
        _handshake_server(settings, places, identity, client, informers, clock),
        _Calls(caller),
    ]
    if bearers is not None:
        first.append(bearers)
    if settings.diagnose:
        first.append(_diagnostic_server(domain, places, client, clock))
    first.append(PollReceiver(domain, Path(places.poll_socket.host), Path(places.poll_calls_socket.host)))
    poller = CallPoller(
        domain,
        Path(places.node_socket.host),
        Path(places.poll_entrance_socket.host),
        fetched,
        lambda: feed.inputs,
        clock=clock,
    )
    groups: list[list[Runnable]] = [first, [envoy, feed, effective.controller], [shaking, heartbeat, usage, poller]]
    if statuses is not None:
        groups[-1].append(statuses.controller)
    return GatewayParts(envoy, feed, callers, groups)


def _handshake_server(
    settings: GatewaySettings,
    places: GatewayPaths,
    identity: DomainIdentity,
    client: Client,
    informers: Informers,
    clock: Clock,
) -> HandshakeServer:
    """On a control plane lites register there too, and partners' certificates are known."""
    extra: Mapping[str, Handler] = {}
    if settings.control_plane:
        extra = {"/register": RegistrationServer(client, identity, clock=clock).register}
    known = domain_certificates(informers) if settings.control_plane else no_certificates
    return HandshakeServer(
        client,
        informers,
        identity,
        settings.instance,
        clock,
        extra=extra,
        path=Path(places.handshake_socket.host),
        certificates=known,
    )


def _diagnostic_server(domain: str, places: GatewayPaths, client: Client, clock: Clock) -> DiagnosticServer:
    return DiagnosticServer(
        domain,
        Path(places.diagnose_socket.host),
        Path(places.diagnose_grpc_socket.host),
        PartyFactsSource(client, domain, __version__).facts,
        ReverseProbe(domain, Path(places.node_socket.host)).measure,
        version=__version__,
        clock=clock,
    )


def gateway_paths(paths: DomainPaths) -> GatewayPaths:
    """With the sockets' directory made. It may lie among everybody's temporary files: somebody else's is not used."""
    places = GatewayPaths.of(paths)
    run = private_directory(places.run)
    found = run.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{run}: belongs to another process; remove it, or choose a shorter root")
    return places


def _ingress_statuses(
    settings: GatewaySettings,
    client: Client,
    informers: Informers,
    address: str,
    alone: Callable[[], bool],
    clock: Clock,
) -> IngressStatuses | None:
    if settings.ingress is None:
        return None
    if settings.pods is None:
        _log.warning(
            "Ingresses are not served: pods share the machine's network here, and only ordinary pods may be backends"
        )
        return None
    for name, where in (("HTTP", settings.ingress.http), ("HTTPS", settings.ingress.https)):
        if where is not None:
            _log.warning("Ingresses are served to everybody who reaches this port", port=str(where), protocol=name)
    point = point_of(settings.ingress, address)
    watched = "" if settings.control_plane else settings.domain
    return IngressStatuses(client, informers, settings.domain, point, watched=watched, alone=alone, clock=clock)


def _reached_at(settings: GatewaySettings, machine: str) -> str:
    listeners = [settings.internal if settings.pods is None else None, settings.external]
    hosts = [listener.host for listener in listeners if listener is not None]
    return next((host for host in hosts if host not in _EVERYWHERE), machine or "127.0.0.1")
