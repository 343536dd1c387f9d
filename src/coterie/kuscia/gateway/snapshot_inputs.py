"""What the gateway is told, read from the API's objects. Pure.

    DomainRoutes, Services, Endpoints of our namespace ─┐
    Domains: partners' certificates ────────────────────┤
    Gateways: our domain's other gateways ──────────────┼──> World ──> inputs_of ──> Inputs
    tokens and credentials, opened ─────────────────────┘

Built in, besides the handshake: on a control plane the services `reporter` and `kusciaapi`, opened to the lites of this
control plane, and `apiserver`; on every node the diagnostic endpoint, for partners (`diagnosis/`); where Actions are, the inbox for partners' calls (functions/hops); on a control plane the one for checkpoints of partners' control planes (kuscia/evidence). `apiserver` is opened to the lites and to partners' control planes, each of which calls with the credential of its own service account, which this gateway
adds: nobody outside holds one, and what a caller brings itself is replaced. A caller that another domain speaks for does not
get one: the carrier could then act in its name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kube.api.types import network
from coterie.kube.network.ingress.model import NO_INGRESS, IngressProblem, IngressTable
from coterie.kube.network.ingress.plan import NO_OBJECTS, IngressObjects, ingress_table
from coterie.kuscia.api import labels
from coterie.kuscia.api.domainroutes import route_faults
from coterie.kuscia.api.kuscia_wire import KusciaWireForm, wire_faults
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, KUSCIA_PROTOCOL, Domain, DomainRoute, Gateway
from coterie.kuscia.gateway.addresses import KeyPair, Protocol, SocketAddress
from coterie.kuscia.gateway.certificate_validity import next_change, out_of_date
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.model import (
    MASTER,
    BfiaInbox,
    DiagnosticSockets,
    DomainService,
    EvidenceInbox,
    FunctionsInbox,
    PodCaller,
    PollingSockets,
    Route,
    RoutePort,
    SnapshotInputs,
    SnapshotProblem,
    TransportInbox,
)
from coterie.kuscia.gateway.names import (
    API_SERVICE,
    DIAGNOSE_SERVICE,
    EVIDENCE_SERVICE,
    FUNCTIONS_SERVICE,
    HANDSHAKE_SERVICE,
    KUSCIA_API_SERVICE,
    SCHEDULER_SERVICE,
    TRANSPORT_SERVICE,
)
from coterie.kuscia.gateway.objects import limits_of, route_of, service_of, task_links_of
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.pod_upstreams import is_ordinary_pod
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.gateway.transit import grants_of
from coterie.kuscia.identity.domain_identity import DomainIdentity

REPORTER_SERVICE = "reporter"
_RESERVED = (
    API_SERVICE,
    DIAGNOSE_SERVICE,
    KUSCIA_API_SERVICE,
    FUNCTIONS_SERVICE,
    EVIDENCE_SERVICE,
    TRANSPORT_SERVICE,
    SCHEDULER_SERVICE,
    HANDSHAKE_SERVICE,
)
_AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class GatewayObjects:
    """What is there now. Objects are those of our own namespace, except Domains."""

    routes: Sequence[DomainRoute] = ()
    services: Sequence[network.Service] = ()
    endpoints: Mapping[str, network.Endpoints] = field(default_factory=dict)
    """By name."""
    domains: Mapping[str, Domain] = field(default_factory=dict)
    """By name; empty where we may not read them (a lite)."""
    peer_gateways: Sequence[Gateway] = ()
    """Our domain's other live gateways."""
    tokens: Mapping[str, tuple[tuple[int, SecretValue], ...]] = field(default_factory=dict)
    """Of routes by name: those in force, in clear, with their revisions, newest last."""
    clients: Mapping[str, KeyPair] = field(default_factory=dict)
    """Of routes by name: the client certificate that the route itself brought."""
    bearers: Mapping[str, SecretValue] = field(default_factory=dict)
    """By domain: the credential of its service account."""
    api: SocketAddress | None = None
    """Where our own API listens for this gateway, in plain text; None where there is none."""
    crypt: Path | None = None
    """The socket of the process that encrypts bodies."""
    polling_secret: SecretValue | None = None
    """By which calls that were fetched in Kuscia's frames are known to Envoy."""
    master: Route | None = None
    """A lite's way to its control plane, as agreed on before any object could be read."""
    callers: tuple[PodCaller, ...] = ()
    ingress: IngressObjects = NO_OBJECTS
    function_callers: frozenset[str] = frozenset()
    """Partners that call functions of ours, or answer calls of ours."""


class InputCache:
    """What was made of which objects: of a thousand services one changes at a time, and objects are never changed in place."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[tuple[Any, ...], Any]] = {}
        self.until: datetime | None = None
        """When a certificate begins or ceases to count, and all must be looked at again though no object changed."""

    def recall(self, kind: str, name: str, given: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        known = self._made.get((kind, name))
        if known is not None and len(known[0]) == len(given) and all(map(_same, known[0], given)):
            return known[1]
        made = make()
        self._made[kind, name] = (given, made)
        return made

    def keep_only(self, wanted: set[tuple[str, str]]) -> None:
        for gone in self._made.keys() - wanted:
            del self._made[gone]


def _same(one: Any, other: Any) -> bool:
    # Comparing whole objects would take longer than making them anew.
    return one is other or (isinstance(one, tuple) and bool(one == other))


def inputs_of(
    world: GatewayObjects,
    settings: GatewaySettings,
    identity: DomainIdentity,
    places: GatewayPaths,
    *,
    version: str = "",
    memory: InputCache | None = None,
    now: datetime | None = None,
) -> tuple[SnapshotInputs, list[SnapshotProblem]]:
    """What cannot be read is left out, and a problem says why. `now`: partners' certificates count by their dates."""
    remembered = memory or InputCache()
    problems: list[SnapshotProblem] = []
    routes = _routes(world, settings, remembered, problems)
    if now is not None:
        remembered.until = next_change((pem for route in routes for pem in route.certificates), now)
        routes = [_in_time(route, settings.domain, now, problems) for route in routes]
    services = _services(world, settings, remembered, problems)
    if settings.control_plane and world.api is not None:
        services = [each for each in services if each.name != API_SERVICE]
        services.append(_api(world, settings.domain, routes, world.api))
    for name, address in _for_lites(settings).items():
        services = [each for each in services if each.name != name]
        services.append(DomainService(name, (address,), access=_lites(world, settings.domain)))
    table, unserved = _ingress_table(world, settings)
    problems += [SnapshotProblem(f"{each.kind} {each.name}", each.message) for each in unserved]
    remembered.keep_only(
        {("route", each.metadata.name) for each in world.routes}
        | {("service", each.metadata.name) for each in world.services}
    )
    inputs = SnapshotInputs(
        domain=settings.domain,
        internal=settings.internal,
        external=settings.external,
        handshake=places.handshake_socket,
        node_socket=places.node_socket,
        directory=places.directory,
        logs=places.logs,
        instance=settings.instance,
        version=version,
        protocol=settings.protocol,
        identity=KeyPair(identity.certificate_file, identity.key_file),
        shown=settings.external_tls.pair if settings.external_tls is not None else None,
        fingerprint=_fingerprint(identity.certificate),
        # A lite that comes to register has no certificate that anybody knows, and some partners show none.
        newcomers=settings.protocol is Protocol.MTLS
        and (settings.control_plane or any(_shows_none(each, settings.domain) for each in routes)),
        aliases=(MASTER,) if settings.control_plane else (),
        routes=tuple(routes),
        services=tuple(services),
        crypt=world.crypt,
        diagnose=DiagnosticSockets(places.diagnose_socket, places.diagnose_grpc_socket) if settings.diagnose else None,
        functions=_functions(world, settings, places),
        evidence=_evidence(world, settings, places),
        transport=_transport(world, settings, places),
        bfia=_bfia(world, settings, places),
        polling=_polling(world, routes, places),
        limits=limits_of(world.services),
        task_links=task_links_of(world.services, settings.domain),
        peer_gateways=_peer_gateways(world.peer_gateways, settings),
        pods=settings.pods,
        callers=world.callers,
        ingress=table,
        ingress_listeners=settings.ingress if settings.pods is not None else None,
        transit=tuple(grant for each in world.routes if not each.metadata.deleting for grant in grants_of(each)),
    )
    return inputs, problems


def _polling(world: GatewayObjects, routes: Iterable[Route], places: GatewayPaths) -> PollingSockets | None:
    if world.polling_secret is None or not any(map(polled, routes)):
        return None
    return PollingSockets(
        places.poll_socket, places.poll_calls_socket, places.poll_entrance_socket, world.polling_secret
    )


def _shows_none(route: Route, ours: str) -> bool:
    return route.destination == ours and KusciaWireForm.NO_CLIENT_CERTIFICATE in route.kuscia_wire


def _functions(world: GatewayObjects, settings: GatewaySettings, places: GatewayPaths) -> FunctionsInbox | None:
    """Only partners with a route of their own to us: a carrier does not speak for them here."""
    known = {
        each.spec.source
        for each in world.routes
        if each.spec.destination == settings.domain and not each.metadata.deleting
    }
    callers = world.function_callers & known - {settings.domain}
    return FunctionsInbox(places.hops_socket, callers) if callers else None


def _evidence(world: GatewayObjects, settings: GatewaySettings, places: GatewayPaths) -> EvidenceInbox | None:
    """For control planes of partners with a route of their own to us. A lite keeps no jobs, and reads no Domains."""
    if not settings.control_plane:
        return None
    callers = frozenset(each.metadata.name for each in _partner_masters(world, settings))
    return EvidenceInbox(places.witness_socket, callers) if callers else None


def _transport(world: GatewayObjects, settings: GatewaySettings, places: GatewayPaths) -> TransportInbox | None:
    """Only where pods have a network of their own: elsewhere nobody could tell which engine calls. Partners need a route
    of their own to us; which session each may use is decided behind the socket."""
    if not settings.transport or settings.pods is None:
        return None
    callers = frozenset(
        each.spec.source
        for each in world.routes
        if each.spec.destination == settings.domain
        and each.spec.source != settings.domain
        and not each.metadata.deleting
    )
    return TransportInbox(places.transport_socket, places.transport_engines_socket, callers)


def _bfia(world: GatewayObjects, settings: GatewaySettings, places: GatewayPaths) -> BfiaInbox | None:
    """For control planes of partners that speak BFIA and have a route of their own to us."""
    if not settings.control_plane:
        return None
    callers = frozenset(
        each.metadata.name for each in _partner_masters(world, settings) if each.protocol == BFIA_PROTOCOL
    )
    return BfiaInbox(places.bfia_socket, callers) if callers else None


def _partner_masters(world: GatewayObjects, settings: GatewaySettings) -> Iterator[Domain]:
    """Partners' control planes with a route of their own to us."""
    for each in world.routes:
        domain = world.domains.get(each.spec.source)
        if (
            each.spec.destination == settings.domain
            and not each.metadata.deleting
            and domain is not None
            and domain.partner
            and not domain.metadata.deleting
            and domain.spec.master in ("", each.spec.source)
        ):
            yield domain


def _ingress_table(world: GatewayObjects, settings: GatewaySettings) -> tuple[IngressTable, Sequence[IngressProblem]]:
    """Only ordinary pods are backends: whoever calls is not authenticated."""
    pods = settings.pods
    if pods is None or not (world.ingress.ingresses or world.ingress.dnses):
        return NO_INGRESS, ()
    return ingress_table(world.ingress, lambda address: is_ordinary_pod(pods, address))


@lru_cache(maxsize=16)
def _fingerprint(certificate: str) -> str:
    return pki.fingerprint(pki.load_certificate(certificate.encode()))


def _peer_gateways(gateways: Iterable[Gateway], settings: GatewaySettings) -> tuple[SocketAddress, ...]:
    if settings.pods is not None or settings.internal is None:
        return ()
    port = settings.internal.port
    found = {each.status.address for each in gateways if each.status is not None and each.status.address}
    return tuple(SocketAddress(host, port) for host in sorted(found))


# ---- services ----


def _services(
    world: GatewayObjects, settings: GatewaySettings, memory: InputCache, problems: list[SnapshotProblem]
) -> list[DomainService]:
    found: list[DomainService] = []
    for each in world.services:
        if each.metadata.deleting:
            continue
        name = each.metadata.name
        given = (each, world.endpoints.get(name))
        made = memory.recall("service", name, given, lambda given=given: service_of(*given))  # type: ignore[misc]
        if isinstance(made, SnapshotProblem):
            problems.append(made)
        elif made is not None:
            found.append(made)
        if name in _RESERVED or name in _for_lites(settings):
            why = "this name is the control plane's own, pods cannot call it; take another one"
            problems.append(SnapshotProblem(f"service {name}", why))
    return found


def api_callers(routes: Iterable[DomainRoute], domains: Mapping[str, Domain], ours: str) -> frozenset[str]:
    """Domains that may call our API: lites of this control plane, and partners' control planes that speak Kuscia's
    protocol. Each needs a route to us that it uses itself."""
    return frozenset(
        route.spec.source
        for route in routes
        if route.spec.destination == ours
        and (route.spec.transit is None or not route.spec.transit.through)
        and (domain := domains.get(route.spec.source)) is not None
        and _may_call(domain)
    )


def _may_call(domain: Domain) -> bool:
    if domain.metadata.deleting:
        return False
    if not domain.partner:
        return True
    own_master = domain.spec.master in ("", domain.metadata.name)
    return own_master and KUSCIA_PROTOCOL in (domain.spec.inter_conn_protocols or (KUSCIA_PROTOCOL,))


def _api(world: GatewayObjects, ours: str, routes: Iterable[Route], address: SocketAddress) -> DomainService:
    allowed = api_callers(world.routes, world.domains, ours)
    credentials: dict[str, SecretValue] = {}
    for route in routes:
        if route.destination != ours or route.source not in allowed:
            continue
        # What somebody wrote into the route wins: that is how Kuscia's control planes do it.
        written = next((value for key, value in route.headers if key.lower() == _AUTHORIZATION), "")
        if written:
            credentials[route.source] = SecretValue(written)
        elif route.source in world.bearers:
            credentials[route.source] = SecretValue(f"Bearer {world.bearers[route.source].reveal()}")
    return DomainService(
        API_SERVICE,
        (address,),
        access=frozenset(credentials),
        credentials=tuple(sorted(credentials.items())),
    )


def _for_lites(settings: GatewaySettings) -> dict[str, SocketAddress]:
    """What our own domain and the lites may call by name; partners' engines have their own control plane for it."""
    found = {REPORTER_SERVICE: settings.reporter, KUSCIA_API_SERVICE: settings.kuscia_api}
    return {name: address for name, address in found.items() if address is not None and settings.control_plane}


def _lites(world: GatewayObjects, ours: str) -> frozenset[str]:
    lites = {name for name, domain in world.domains.items() if not domain.partner}
    return api_callers(world.routes, world.domains, ours) & lites


# ---- routes ----


def _routes(
    world: GatewayObjects, settings: GatewaySettings, memory: InputCache, problems: list[SnapshotProblem]
) -> list[Route]:
    found: list[Route] = []
    for each in world.routes:
        if each.metadata.deleting or settings.domain not in (each.spec.source, each.spec.destination):
            continue
        name = each.metadata.name
        certificate, fault = _partner_certificate(each, world.domains, settings.domain)
        if fault is not None:
            problems.append(fault)
        given = (each, certificate, world.tokens.get(name, ()), (world.clients.get(name),))
        made = memory.recall(
            "route",
            name,
            given,
            lambda each=each, certificate=certificate: _route(world, settings, each, certificate),  # type: ignore[misc]
        )
        if isinstance(made, SnapshotProblem):
            problems.append(made)
        else:
            found.append(made)
    return found if world.master is None else _led(found, world.master)


def _in_time(route: Route, ours: str, now: datetime, problems: list[SnapshotProblem]) -> Route:
    """Without certificates that do not count today. On the way out Envoy itself refuses them, and we only say so."""
    wrong = {pem: why for pem in route.certificates if (why := out_of_date(pem, now))}
    if not wrong:
        return route
    inbound = route.destination == ours
    partner = route.source if inbound else route.destination
    about = f"route {route.source}-{route.destination}"
    problems += [
        SnapshotProblem(
            about, f"the certificate of {partner} {why}; get a new one from {partner} and put it into its Domain"
        )
        for why in wrong.values()
    ]
    return (
        replace(route, certificates=tuple(pem for pem in route.certificates if pem not in wrong)) if inbound else route
    )


def _led(found: list[Route], agreed: Route) -> list[Route]:
    """With the way to the control plane as the lite's link knows it: it hears of each token of the object, and of newer ones
    when the object cannot be read any more; and it knows what the control plane's port really shows."""
    pair = (agreed.source, agreed.destination)
    others = [each for each in found if (each.source, each.destination) != pair]
    mine = next((each for each in found if (each.source, each.destination) == pair), agreed)
    known = replace(
        mine,
        host=agreed.host,
        ports=agreed.ports,
        tokens=agreed.tokens,
        certificates=agreed.certificates,
        authority=agreed.authority,
        aliases=agreed.aliases,
    )
    return [*others, known]


def _route(
    world: GatewayObjects, settings: GatewaySettings, each: DomainRoute, certificate: tuple[str, ...]
) -> Route | SnapshotProblem:
    name = each.metadata.name
    if faults := [*route_faults(each.spec, dials=False), *wire_faults(each.metadata.annotations, each.spec)]:
        # One thing that Envoy does not take would keep every later change from it.
        return SnapshotProblem(f"route {name}", "; ".join(faults))
    opened = world.tokens.get(name, ())
    made = route_of(
        {
            "metadata": {"namespace": settings.domain, "annotations": each.metadata.annotations},
            "spec": msgspec.to_builtins(each.spec),
        },
        tokens=[token for _, token in opened],
        certificates=certificate,
        client=world.clients.get(name),
    )
    if isinstance(made, SnapshotProblem):
        return made
    made = replace(made, revisions=tuple(revision for revision, _ in opened))
    if made.source != settings.domain:
        return made
    if settings.master is not None and not made.host and not made.via and not made.tunnel:
        # Only a lite's way to its own control plane has no address: the lite knows it from its configuration.
        made = to_master(made, settings.master)
    if made.authority and not made.via and not made.tunnel:
        # The partner's port shows a certificate of that authority, not the partner's own.
        made = replace(made, certificates=())
    return made


def to_master(route: Route, endpoint: MasterEndpoint) -> Route:
    """A lite's route to its control plane, with the address from its configuration."""
    port = RoutePort("http", endpoint.port, tls=endpoint.tls, path_prefix=endpoint.prefix)
    return replace(route, host=endpoint.host, ports=(port,), aliases=(MASTER,))


def _partner_certificate(
    route: DomainRoute, domains: Mapping[str, Domain], ours: str
) -> tuple[tuple[str, ...], SnapshotProblem | None]:
    """From the partner's Domain, or, where that may not be read, from what the control plane put on the route."""
    spec = route.spec
    partner = spec.destination if spec.source == ours else spec.source
    domain = domains.get(partner)
    text = domain.spec.cert if domain is not None else ""
    text = text or (route.metadata.annotations or {}).get(labels.COTERIE_PARTNER_CERTIFICATE, "")
    if not text:
        return (), None
    try:
        return (_pem(text),), None
    except (binascii.Error, UnicodeDecodeError):
        about = f"route {spec.source}-{spec.destination}"
        return (), SnapshotProblem(about, f"the certificate of {partner} is not base64 of PEM")


@lru_cache(maxsize=4096)
def _pem(text: str) -> str:
    return base64.b64decode(text, validate=True).decode()
