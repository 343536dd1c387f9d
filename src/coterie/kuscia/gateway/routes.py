"""Which request goes where: the virtual hosts of both listeners. Pure.

    external   kuscia-handshake.<us>.svc    our handshake and registration server, without token
               diagnose.<us>.svc            our diagnostic endpoint, for partners only
               <service>.<us>.svc           our services, each for the domains it is opened to
               *.<third>.svc                what we carry for a partner that was granted it
               anything else                403 as for what is not opened, and 401 for whom we do not know

    internal   kuscia-handshake.<us>.svc    as above; the node itself calls all of these, pods what `pod_access` allows
               <service>.<us>.svc           our services, for our own pods
               *.<partner>.svc              the partner's gateway, with our name and token
               hosts of Dns objects         endpoints of our services, by path (ingress.py)
               anything else                404

No route has an end time: engines hold calls open for hours. What may be tried again is only what certainly never
reached the other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.kuscia.gateway import ingress, peer_gateways, task_bandwidth, transit, tunnel
from coterie.kuscia.gateway.clusters import DIAGNOSE, DIAGNOSE_GRPC, HANDSHAKE
from coterie.kuscia.gateway.crypt import routing as crypt
from coterie.kuscia.gateway.crypt.exchange import RouteSide
from coterie.kuscia.gateway.egress import (
    carrier,
    credentials,
    end_to_end,
    introduction,
    lacks_token,
    live_ways,
    outbound_name,
    own_name,
    sender,
    ways,
)
from coterie.kuscia.gateway.identity import about, access_of_domains, without_secrets
from coterie.kuscia.gateway.model import (
    DomainService,
    Route,
    RoutePort,
    SnapshotInputs,
    SnapshotProblem,
)
from coterie.kuscia.gateway.names import (
    ACCESS_FILTER,
    AUTH_FILTER,
    BANDWIDTH_FILTER,
    DIAGNOSE_RATE_FILTER,
    DIAGNOSE_SERVICE,
    DOWNSTREAM_PROTOCOL,
    ERROR,
    FILTER_CONFIG,
    HANDSHAKE_SERVICE,
    HOST,
    IF_PRESENT,
    LOCAL_RATE_LIMIT,
    PEER_FINGERPRINT,
    PEER_KEY,
    TRACE_BAGGAGE,
    Json,
    header,
    literal,
)
from coterie.kuscia.gateway.service_hosts import (
    ALL,
    NOT_OPENED,
    refusal,
    send_to,
    service_for_own,
    service_for_partners,
    service_host_context,
)

EXTERNAL = "external"
INTERNAL = "internal"
_DIAGNOSTIC_BURST = 500
"""Calls; 100 more each second."""
_HANDSHAKE_PATHS = ("/handshake", "/register")


def external_routes(inputs: SnapshotInputs, live: frozenset[str]) -> Json:
    """`live`: names of the clusters there are."""
    decorating = tuple(route for route in inputs.inbound if route.headers and not inputs.relayed(route))
    place = service_host_context(inputs)
    opened = (service_for_partners(place, each, decorating) for each in _services(inputs) if not each.domain_only)
    diagnostic = [_diagnostic_host(inputs)] if inputs.diagnose is not None else []
    hosts = [
        *(crypt.for_partners(each, inputs) for each in diagnostic),
        *(crypt.for_partners(each, inputs) for each in opened),
        *_carried(inputs, live),
        *transit.carrier_hosts(inputs, live),
        *transit.inner_hosts(inputs),
        tunnel.poll_refusal(inputs),
        _closed(inputs),
    ]
    listed = [_handshake_host(inputs, outside=True), *(without_secrets(each) for each in hosts)]
    # A gateway or proxy in between has put its own name into the Host header; the true one travels beside it.
    return _table(inputs, EXTERNAL, listed) | {"vhost_header": HOST}


def internal_routes(inputs: SnapshotInputs, live: frozenset[str]) -> tuple[Json, list[SnapshotProblem]]:
    hosts = [_handshake_host(inputs, outside=False)]
    place = service_host_context(inputs)
    hosts += [service_for_own(place, each) for each in _services(inputs)]
    problems: list[SnapshotProblem] = []
    for route in inputs.outbound:
        host, problem = _to_partner(inputs, route, live)
        hosts.append(host)
        problems += [problem] if problem is not None else []
    hosts += ingress.pod_hosts(inputs)
    hosts.append(_nowhere(inputs))
    return _table(inputs, INTERNAL, hosts) | {"request_headers_to_add": own_name(inputs)}, problems


def transit_routes(inputs: SnapshotInputs, live: frozenset[str]) -> Json:
    """What becomes of the connections that a carrier passes on for us."""
    return {
        "name": transit.SIDE,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": transit.source_hosts(inputs, live),
    }


def hop(inputs: SnapshotInputs, side: str) -> str:
    """How this gateway is called in error messages."""
    return f"{inputs.domain}/{inputs.instance}/{side}"


def cause(inputs: SnapshotInputs, side: str, message: str) -> str:
    return f"<{hop(inputs, side)} $cause$ {message}>"


def _table(inputs: SnapshotInputs, side: str, hosts: list[Json]) -> Json:
    return {
        "name": side,
        "ignore_port_in_host_matching": True,
        "most_specific_header_mutations_wins": True,
        "response_headers_to_add": [
            # For a proxy between two gateways; there is none between a gateway and its own pods.
            *([header("x-accel-buffering", "no")] if side == EXTERNAL else []),
            # An error that came from further on keeps its story, with us put in front.
            header(ERROR, f"{literal(hop(inputs, side))} => %RESP({ERROR})%", IF_PRESENT),
        ],
        "virtual_hosts": sorted(_distinct(hosts), key=lambda each: str(each["name"])),
    }


def _distinct(hosts: Iterable[Json]) -> Iterable[Json]:
    """One name that two virtual hosts claim makes Envoy refuse the whole table: the first keeps it."""
    taken: set[str] = set()
    for host in hosts:
        domains = [each for each in host["domains"] if each not in taken]
        taken.update(domains)
        if len(domains) == len(host["domains"]):
            yield host
        elif domains:
            yield {**host, "domains": domains}


def _services(inputs: SnapshotInputs) -> list[DomainService]:
    return sorted(inputs.services, key=lambda each: each.name)


# ---- handshake ----


def _handshake_host(inputs: SnapshotInputs, *, outside: bool) -> Json:
    off: Json = {"@type": FILTER_CONFIG, "disabled": True}
    host: Json = {
        "name": "handshake",
        "domains": [f"{HANDSHAKE_SERVICE}.{name}.svc" for name in inputs.names],
        "routes": [
            {"match": {"path": path}, "route": send_to(inputs.tuning.idle_stream_seconds, HANDSHAKE)}
            for path in _HANDSHAKE_PATHS
        ],
    }
    if outside:
        host["typed_per_filter_config"] = {AUTH_FILTER: off}
        # It keeps the token, since it probes it.
        host["request_headers_to_remove"] = [PEER_KEY]
        host["request_headers_to_add"] = [header(PEER_FINGERPRINT, "%DOWNSTREAM_PEER_FINGERPRINT_256%")]
    return host


# ---- diagnosis ----


def diagnostic_rate_filter() -> Json:
    """Of the external listener: off, except on the host of the diagnostic endpoint."""
    return {
        "name": DIAGNOSE_RATE_FILTER,
        "typed_config": {"@type": LOCAL_RATE_LIMIT, "stat_prefix": DIAGNOSE_RATE_FILTER},
        "disabled": True,
    }


def _diagnostic_rate() -> Json:
    """Of all partners together, besides the limits of each (`diagnosis/limits.py`): also a refusal there is work of the node, and
    Envoy refuses for less."""
    always: Json = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return {
        "@type": LOCAL_RATE_LIMIT,
        "stat_prefix": DIAGNOSE_RATE_FILTER,
        "token_bucket": {"max_tokens": _DIAGNOSTIC_BURST, "tokens_per_fill": 10, "fill_interval": "0.1s"},
        "filter_enabled": always,
        "filter_enforced": always,
    }


def _diagnostic_host(inputs: SnapshotInputs) -> Json:
    """For authenticated partners; the table of our own pods does not have it."""
    idle = inputs.tuning.idle_stream_seconds
    return {
        "name": DIAGNOSE_SERVICE,
        "domains": [f"{DIAGNOSE_SERVICE}.{name}.svc" for name in inputs.names],
        "request_headers_to_add": [
            header(PEER_FINGERPRINT, "%DOWNSTREAM_PEER_FINGERPRINT_256%"),
            header(DOWNSTREAM_PROTOCOL, "%PROTOCOL%"),
        ],
        "typed_per_filter_config": {DIAGNOSE_RATE_FILTER: _diagnostic_rate()},
        "routes": [
            {"match": {**ALL, "grpc": {}}, "route": send_to(idle, DIAGNOSE_GRPC)},
            {"match": ALL, "route": send_to(idle, DIAGNOSE)},
        ],
    }


# ---- partners ----


def _to_partner(inputs: SnapshotInputs, route: Route, live: frozenset[str]) -> tuple[Json, SnapshotProblem | None]:
    host: Json = {"name": f"{route.source}-to-{route.destination}", "domains": _partner_domains(route)}
    why = _refused(inputs, route, live)
    if why:
        host["routes"] = [{"match": ALL, **refusal(503, f"{about(route)}: {why}")}]
        return host, SnapshotProblem(about(route), why)
    leaving = sender(inputs, route)
    assert leaving is not None
    ports = live_ways(inputs, leaving, live)
    host["request_headers_to_remove"] = list(TRACE_BAGGAGE)
    # Our name stands in the table.
    host["request_headers_to_add"] = credentials(leaving)
    host["routes"] = [
        *_forward(inputs, leaving, ports, only=f"{HANDSHAKE_SERVICE}."),
        *(_waiting(route) if lacks_token(leaving) or crypt.lacks_key(route) else _data(inputs, route, leaving, ports)),
    ]
    return peer_gateways.among_gateways(inputs, carrier(inputs, route), host), None


def _partner_domains(route: Route) -> list[str]:
    return [f"*.{name}.svc" for name in dict.fromkeys((route.destination, *route.aliases))]


def _refused(inputs: SnapshotInputs, route: Route, live: frozenset[str]) -> str:
    """Why nothing may be sent; empty when it may."""
    if why := crypt.refused(inputs, route):
        return why
    leaving = carrier(inputs, route)
    if leaving is None:
        return f"there is no direct route to {route.via}, which is to carry this one"
    if leaving.tunnel and (why := tunnel.obstacle(inputs, leaving)):
        return why
    if not ways(inputs, leaving):
        return f"no address of {leaving.destination} is given"
    if not live_ways(inputs, leaving, live):
        return f"the gateway of {leaving.destination} may not be called"
    if end_to_end(inputs, route):
        if lacks_token(leaving):
            return f"no token has been agreed on yet with {route.via}, which is to carry this one"
        return transit.obstacle(inputs, route)
    return ""


def _waiting(route: Route) -> list[Json]:
    """Before the handshake nothing but the handshake is sent."""
    return [{"match": ALL, **refusal(503, f"{about(route)}: no token has been agreed on yet")}]


def _data(inputs: SnapshotInputs, route: Route, leaving: Route, ports: Sequence[RoutePort]) -> list[Json]:
    # A task whose name begins with another's comes first.
    counted = sorted(
        task_bandwidth.outgoing(inputs, route.destination).items(), key=lambda each: (-len(each[0]), each[0])
    )
    limited = [
        made for task, config in counted for made in _forward(inputs, leaving, ports, only=f"{task}-", bandwidth=config)
    ]
    made = [*limited, *_forward(inputs, leaving, ports)]
    return [crypt.encrypted(each, route, RouteSide.CALL) for each in made] if route.body_encryption else made


def _forward(
    inputs: SnapshotInputs,
    leaving: Route,
    ports: Sequence[RoutePort],
    *,
    only: str = "",
    bandwidth: Json | None = None,
) -> list[Json]:
    """One route per port: gRPC goes to a gRPC port, the rest to the other. A single port takes everything.

    `only`: for hosts that begin so.
    """
    grpc = next((port for port in ports if port.grpc), None)
    plain = next((port for port in ports if not port.grpc), None)
    made = []
    for port in (grpc, plain):
        if port is None:
            continue
        match: Json = dict(ALL)
        if only:
            match["headers"] = [{"name": ":authority", "string_match": {"prefix": only}}]
        if port.grpc and plain is not None:
            match["grpc"] = {}
        action = send_to(inputs.tuning.idle_stream_seconds, outbound_name(leaving, port))
        if leaving.host and port in leaving.ports:
            action["host_rewrite_literal"] = leaving.host
        if prefix := port.path_prefix.strip("/"):
            action["prefix_rewrite"] = f"/{prefix}/"
        route: Json = {"match": match, "route": action}
        if bandwidth is not None:
            route["typed_per_filter_config"] = {BANDWIDTH_FILTER: bandwidth}
        made.append(route)
    return made


def _carried(inputs: SnapshotInputs, live: frozenset[str]) -> Iterable[Json]:
    """For a partner on its way to a third domain, hop by hop. It stays the origin; we are the sender."""
    for route in inputs.outbound:
        granted = [grant.source for grant in inputs.transit if grant.destination == route.destination]
        if not granted or route.via or _refused(inputs, route, live) or lacks_token(route):
            continue
        yield {
            "name": f"transit-{route.destination}",
            "domains": _partner_domains(route),
            "routes": _forward(inputs, route, live_ways(inputs, route, live)),
            # The origin stays as `auth` let it pass.
            "request_headers_to_add": introduction(inputs, route),
            "typed_per_filter_config": {ACCESS_FILTER: access_of_domains(granted)},
        }


def _closed(inputs: SnapshotInputs) -> Json:
    """Who asks from outside does not learn whether there is no such service or none for him.

    The rules refuse all of it. A CONNECT that led to an answer of our own would end the whole connection, so its route has
    an aim, to which it never comes: the handshake, which everybody may call anyway.
    """
    aim = send_to(inputs.tuning.idle_stream_seconds, HANDSHAKE)
    connect = {**aim, "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}]}
    return {
        "name": "closed",
        "domains": ["*"],
        "routes": [{"match": ALL, **NOT_OPENED}, {"match": {"connect_matcher": {}}, "route": connect}],
        "typed_per_filter_config": {ACCESS_FILTER: access_of_domains(())},
    }


def _nowhere(inputs: SnapshotInputs) -> Json:
    message = cause(inputs, INTERNAL, 'Service "%REQ(:authority)%" not found.')
    return {
        "name": "nowhere",
        "domains": ["*"],
        "routes": [{"match": ALL, **refusal(404, "Service not found.")}],
        "response_headers_to_add": [header(ERROR, message)],
    }
