"""Does a route work, and if not, on which side and at which step? Pure.

The first row that holds is the reason of `Ready=False`. Rows in Kuscia's words keep its words, the misspelt one
included, because consumers match on them; the others say what Kuscia leaves unsaid or calls something else.

    reason                       when                                                                    Kuscia's
    RouteInvalid                 fields contradict each other; the message names them                    no
    DomainNotFound               there is no Domain object for an end                                    no
    NoDomainHosted               both ends are partners: no gateway of ours has a part                   no
    DomainCertificateMissing     a token is needed and an end has neither certificate nor key            no
    DomainCertificateInvalid     an end's certificate cannot be read, or is not RSA                      no
    DomainRouteConflict          somebody else's DomainRoute has the copy's name                         no
    DomainRouteNotCreated        a copy is not there (yet)                                               no
    GatewayNotAlive              no gateway of a hosted end gave a heartbeat within three minutes        no
    TransitRouteMissing          the route through which this one goes does not exist here               no
    TransitRouteNotReady         it exists and is not ready                                              no
    EndpointUnreachable          live gateways of the source report: no port of the endpoint answers     no
    DestinationUnreachable       the source's gateway got no answer to three probes                      yes
    DestinationIsNotAuthrized    the destination has not accepted the source, or no longer does          yes
    TokenNotGenerate             an end that we host holds no token (any more)                           yes
    TokenNotReady                no token is loaded by all live gateways of the destination              no
    TokenExpired                 the source's newest token is past its time                              no
    TokenRevisionNotMatch        the destination does not hold the token that the source uses            yes
    HeartBeatTimeout             the source was heard before, and not within thirty seconds              yes

An end that a partner hosts is judged by what our end knows of it. While a token rolls the older one is good on both
sides, so rolling does not make a route unready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.domainroutes import KeyFault, network_status_name, public_key_of_certificate
from coterie.kuscia.api.types.domain import (
    ClusterDomainRoute,
    ClusterDomainRouteStatus,
    ClusterDomainRouteTokens,
    DomainRoute,
    EndpointStatus,
    Gateway,
    RouteCondition,
    RouteToken,
)
from coterie.kuscia.controllers.clusterdomainroute.plan import RouteEndDomain

HEARTBEAT_LIMIT = 30.0
HEARTBEAT_STEP = 60.0
"""A heartbeat alone is written to the ClusterDomainRoute only when it is this much newer than the one there."""
_DOMAIN_ROUTE = "DomainRoute"


@dataclass(frozen=True, slots=True)
class RouteView:
    """All that readiness depends on."""

    route: ClusterDomainRoute
    source: RouteEndDomain
    destination: RouteEndDomain
    source_copy: DomainRoute | None = None
    destination_copy: DomainRoute | None = None
    source_gateways: Sequence[Gateway] = ()
    """The live ones."""
    destination_gateways: Sequence[Gateway] = ()
    faults: Sequence[str] = ()
    conflicts: Mapping[str, str] = field(default_factory=dict)
    needed: Sequence[tuple[tuple[str, str], ClusterDomainRoute | None]] = ()
    """Routes through which this one goes."""
    heartbeat_age: float | None = None
    """Seconds since the destination was seen to hear the source; None when it never was."""


@dataclass(frozen=True, slots=True)
class RouteReadiness:
    reason: str
    message: str = ""


SUCCESS = RouteReadiness("Success")


def readiness(view: RouteView, now: datetime) -> RouteReadiness:
    return next(_problems(view, now), SUCCESS)


def _problems(view: RouteView, now: datetime) -> Iterator[RouteReadiness]:
    if view.faults:
        yield RouteReadiness("RouteInvalid", "; ".join(view.faults))
    yield from _domain_problems(view)
    yield from _copy_problems(view)
    yield from _gateway_problems(view)
    yield from _transit_problems(view)
    yield from _reachability_problems(view)
    if view.route.spec.needs_token:
        yield from _token_problems(view, now)


def _domain_problems(view: RouteView) -> Iterator[RouteReadiness]:
    for side in (view.source, view.destination):
        if side.missing:
            yield RouteReadiness("DomainNotFound", f"Domain {side.name} does not exist; create it")
    if not view.source.hosted and not view.destination.hosted:
        message = f"{view.source.name} and {view.destination.name} are both partners; one end must be a domain of ours"
        yield RouteReadiness("NoDomainHosted", message)
    if not view.route.spec.needs_token:
        return
    config = view.route.spec.token_config
    for side, key in (
        (view.source, config.source_public_key if config else ""),
        (view.destination, config.destination_public_key if config else ""),
    ):
        cert = side.domain.spec.cert if side.domain is not None else ""
        try:
            if cert:
                public_key_of_certificate(cert)
            elif not key:
                message = f"Domain {side.name} has no certificate in spec.cert, so no token can be negotiated"
                yield RouteReadiness("DomainCertificateMissing", message)
        except KeyFault as fault:
            yield RouteReadiness("DomainCertificateInvalid", f"Domain {side.name}, spec.cert: {fault}")


def _copy_problems(view: RouteView) -> Iterator[RouteReadiness]:
    name = f"{view.source.name}-{view.destination.name}"
    for namespace, owner in view.conflicts.items():
        message = f"DomainRoute {namespace}/{name} belongs to {owner}; remove it or this route"
        yield RouteReadiness("DomainRouteConflict", message)
    for side, copy in ((view.source, view.source_copy), (view.destination, view.destination_copy)):
        if side.hosted and copy is None:
            yield RouteReadiness("DomainRouteNotCreated", f"DomainRoute {side.name}/{name} is not there yet")


def _gateway_problems(view: RouteView) -> Iterator[RouteReadiness]:
    sides = (
        (view.source, "source", view.source_gateways),
        (view.destination, "destination", view.destination_gateways),
    )
    for side, role, live in sides:
        if side.hosted and not live:
            yield RouteReadiness(
                "GatewayNotAlive", f"no gateway of {side.name} ({role}) gave a heartbeat within three minutes"
            )


def _transit_problems(view: RouteView) -> Iterator[RouteReadiness]:
    for (source, destination), route in view.needed:
        message = f"the route from {source} to {destination}, through which this one goes,"
        if route is None:
            yield RouteReadiness("TransitRouteMissing", f"{message} does not exist; create it")
            continue
        ready = route.ready
        if ready is None or ready.status != "True":
            why = f": {ready.reason}" if ready is not None and ready.reason else ""
            yield RouteReadiness("TransitRouteNotReady", f"{message} is not ready{why}")


def _reachability_problems(view: RouteView) -> Iterator[RouteReadiness]:
    where = _address(view)
    reports = list(_reports(view).values())
    if reports and not any(healthy for _, healthy in reports) and any(known for known, _ in reports):
        yield RouteReadiness("EndpointUnreachable", f"no gateway of {view.source.name} can connect to {where}")
    status = view.source_copy.status if view.source_copy is not None else None
    if status is not None and status.is_destination_unreachable:
        yield RouteReadiness(
            "DestinationUnreachable", f"{view.destination.name} at {where} did not answer three probes"
        )


def _address(view: RouteView) -> str:
    spec = view.route.spec
    if spec.transit is not None:
        return f"the end of {spec.transit.method}"
    endpoint = spec.endpoint
    if endpoint is None or not endpoint.host:
        return "its configured address"
    return f"{endpoint.host}:{','.join(str(port.port) for port in endpoint.ports or ())}"


def _token_problems(view: RouteView, now: datetime) -> Iterator[RouteReadiness]:
    source, destination = view.source_copy, view.destination_copy
    using: RouteToken | None = None
    if source is not None:
        using = source.token_status.newest
        if source.status is None or not source.status.is_destination_authorized:
            yield RouteReadiness("DestinationIsNotAuthrized", _unauthorised(view))
        elif using is None:
            message = f"{view.destination.name} knows {view.source.name}, but they have no token at present; one is negotiated"
            yield RouteReadiness("TokenNotGenerate", message)
        elif (expires := parse_time(using.expiration_time)) is not None and expires <= now:
            message = (
                f"token revision {using.revision} expired at {using.expiration_time} and no new one was negotiated"
            )
            yield RouteReadiness("TokenExpired", message)
    if destination is not None:
        held = destination.token_status.tokens or ()
        ready = [token for token in held if token.is_ready]
        if not held:
            yield RouteReadiness("TokenNotGenerate", f"{view.destination.name} holds no token of {view.source.name}")
        elif not ready:
            message = f"token revision {held[-1].revision} is not loaded by all gateways of {view.destination.name}"
            yield RouteReadiness("TokenNotReady", message)
        elif using is not None and using.revision not in {token.revision for token in ready}:
            message = f"{view.source.name} uses token revision {using.revision}, {view.destination.name} holds {ready[-1].revision}"
            yield RouteReadiness("TokenRevisionNotMatch", message)
        elif view.heartbeat_age is not None and view.heartbeat_age > HEARTBEAT_LIMIT:
            message = (
                f"{view.destination.name} has not heard of {view.source.name} for more than {HEARTBEAT_LIMIT:.0f} s"
            )
            yield RouteReadiness("HeartBeatTimeout", message)


def _unauthorised(view: RouteView) -> str:
    """Whose turn it is."""
    assert view.source_copy is not None
    status = view.source_copy.token_status
    if status.newest is None and status.revision_initializer:
        return (
            f"TokenNotGenerate: gateway {status.revision_initializer} of {view.source.name} has not finished a handshake "
            f"with {view.destination.name}; is the route known there, with {view.source.name}'s certificate?"
        )
    if status.newest is None:
        return f"TokenNotGenerate: {view.source.name} has not begun a handshake with {view.destination.name}"
    return f"{view.destination.name} does not know this route, or does not accept {view.source.name}"


def _reports(view: RouteView) -> dict[str, tuple[bool, bool]]:
    """By `<gateway>-<port>`: whether the gateway reports on that port at all, and whether it answers."""
    spec = view.route.spec
    if not view.source.hosted or spec.transit is not None or spec.endpoint is None:
        return {}
    out = {}
    for gateway in view.source_gateways:
        statuses = (gateway.status.network_status or ()) if gateway.status is not None else ()
        healthy = {entry.name: entry.healthy_endpoints_count > 0 for entry in statuses if entry.type == _DOMAIN_ROUTE}
        for port in spec.endpoint.ports or ():
            name = network_status_name(spec.source, spec.destination, port.name)
            out[f"{gateway.metadata.name}-{port.name}"] = (name in healthy, healthy.get(name, False))
    return out


# The whole status.


def status(view: RouteView, now: datetime, stamp: str) -> ClusterDomainRouteStatus:
    """What the status should be. `stamp` is `now` as text."""
    before = view.route.status
    endpoints = {name: EndpointStatus(endpoint_healthy=healthy) for name, (_, healthy) in _reports(view).items()}
    return replace(
        before,
        token_status=_tokens(view, before.token_status),
        conditions=_conditions(before.conditions or (), readiness(view, now), stamp),
        endpoint_statuses=endpoints or None,
    )


def _conditions(before: Sequence[RouteCondition], verdict: RouteReadiness, stamp: str) -> tuple[RouteCondition, ...]:
    word = "True" if verdict is SUCCESS else "False"
    old = next((found for found in before if found.type == "Ready"), None)
    if old is not None and (old.status, old.reason, old.message) == (word, verdict.reason, verdict.message):
        return tuple(before)
    new = RouteCondition(
        type="Ready",
        status=word,
        reason=verdict.reason,
        message=verdict.message,
        last_update_time=stamp,
        last_transition_time=old.last_transition_time if old is not None and old.status == word else stamp,
    )
    return (*(found for found in before if found.type != "Ready"), new)


def _tokens(view: RouteView, before: ClusterDomainRouteTokens | None) -> ClusterDomainRouteTokens | None:
    old = before if before is not None else ClusterDomainRouteTokens()
    source = _copied(view.source_copy, old.source_tokens)
    destination = _copied(view.destination_copy, old.destination_tokens)
    newest = (source or destination or (None,))[-1]
    if newest is None:
        return None
    return ClusterDomainRouteTokens(
        revision=newest.revision,
        revision_time=newest.revision_time,
        source_tokens=source,
        destination_tokens=destination,
    )


def _copied(copy: DomainRoute | None, before: Sequence[RouteToken] | None) -> tuple[RouteToken, ...] | None:
    tokens = copy.token_status.tokens if copy is not None else None
    if not tokens:
        return None
    known = {token.revision: token for token in before or ()}
    return tuple(_without_haste(token, known.get(token.revision)) for token in tokens)


def _without_haste(token: RouteToken, before: RouteToken | None) -> RouteToken:
    """The token, with the older heartbeat while that is recent enough: a write for each beat of each route is a flood."""
    new = parse_time(token.heart_beat_time)
    old = parse_time(before.heart_beat_time) if before is not None else None
    if new is None or old is None or not 0 <= (new - old).total_seconds() < HEARTBEAT_STEP:
        return token
    assert before is not None
    return replace(token, heart_beat_time=before.heart_beat_time)
