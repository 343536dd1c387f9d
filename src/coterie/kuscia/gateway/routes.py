"""Which request goes where: the virtual hosts of both listeners. Pure.

    external   kuscia-handshake.<us>.svc    our handshake and registration server, without token
               diagnose.<us>.svc            our diagnostic endpoint, for partners only
               coterie-functions.<us>.svc   calls and replies of partners that take part in our functions, two paths
               interconn-scheduler.<us>.svc scheduling requests of partners that speak BFIA, seven paths
               coterie-evidence.<us>.svc    checkpoints and statements of partners' control planes, five paths
               transport.<us>.svc           messages for our engines (kuscia/transport), two paths
               <service>.<us>.svc           our services, each for the domains it is opened to
               *.<third>.svc                what we carry for a partner that was granted it
               anything else                403 as for what is not opened, and 401 for whom we do not know

    internal   kuscia-handshake.<us>.svc    as above; the node itself calls all of these, pods what `pod_access` allows
               transport.<us>.svc           pop, peek and release here, push at the partner that the call names
               <service>.<us>.svc           our services, for our own pods
               *.<partner>.svc              the partner's gateway, with our name and token
               hosts of Dns objects         endpoints of our services, by path (ingress.py)
               anything else                404

No route has an end time: engines hold calls open for hours. What may be tried again is only what certainly never
reached the other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.kuscia.api.evidence_exchange import EVIDENCE_PATHS
from coterie.kuscia.bfia import wire
from coterie.kuscia.gateway import ingress, peer_gateways, task_bandwidth, transit, tunnel
from coterie.kuscia.gateway.clusters import (
    BFIA,
    DIAGNOSE,
    DIAGNOSE_GRPC,
    EVIDENCE,
    FUNCTIONS,
    HANDSHAKE,
    TRANSPORT,
    TRANSPORT_ENGINES,
)
from coterie.kuscia.gateway.crypt import routing as crypt
from coterie.kuscia.gateway.crypt.exchange import RouteSide
from coterie.kuscia.gateway.egress import (
    POLLED,
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
from coterie.kuscia.gateway.identity import about, access_of_anyone, access_of_domains, without_secrets
from coterie.kuscia.gateway.model import (
    BfiaInbox,
    DomainService,
    EvidenceInbox,
    FunctionsInbox,
    Route,
    RoutePort,
    SnapshotInputs,
    SnapshotProblem,
    TransportInbox,
)
from coterie.kuscia.gateway.names import (
    ACCESS_FILTER,
    AUTH_FILTER,
    BANDWIDTH_FILTER,
    BRIDGE_FILTER,
    CHANNEL_GRPC_PATH,
    CHANNEL_PATH,
    CHANNEL_SIZE,
    DIAGNOSE_RATE_FILTER,
    DIAGNOSE_SERVICE,
    DOWNSTREAM_PROTOCOL,
    ERROR,
    EVIDENCE_SERVICE,
    FILTER_CONFIG,
    FUNCTION_CALLS_PATH,
    FUNCTION_REPLIES_PATH,
    FUNCTIONS_SERVICE,
    GRPC_BRIDGE,
    GRPC_BRIDGE_PER_ROUTE,
    HANDSHAKE_SERVICE,
    HOST,
    IF_PRESENT,
    LOCAL_RATE_LIMIT,
    ORIGIN,
    PEER_FINGERPRINT,
    PEER_KEY,
    PTP_SESSION,
    PTP_SOURCE_INSTITUTION,
    PTP_SOURCE_NODE,
    PTP_TARGET_NODE,
    PTP_TOPIC,
    SCHEDULER_SERVICE,
    SOURCE,
    TRACE_BAGGAGE,
    TRANSPORT_SERVICE,
    Json,
    header,
    literal,
    seconds,
)
from coterie.kuscia.gateway.pod_access import sessions_of, transport_hosts
from coterie.kuscia.gateway.polling import config as polling
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
_FUNCTION_CALL_SECONDS = 30.0
_CHECKPOINT_SECONDS = 10.0
_TRANSPORT_SECONDS = 330.0
"""Somebody may wait 300 s for a message, or for room for one."""
_INVOKE_PATH, _PUSH_PATH = CHANNEL_PATH + "invoke", CHANNEL_PATH + "push"
_GRPC_PUSH_PATH = CHANNEL_GRPC_PATH + "push"
_SCHEDULE_SECONDS = 30.0
_HANDSHAKE_PATHS = ("/handshake", "/register")


def external_routes(inputs: SnapshotInputs, live: frozenset[str]) -> Json:
    """`live`: names of the clusters there are."""
    decorating = tuple(route for route in inputs.inbound if route.headers and not inputs.relayed(route))
    place = service_host_context(inputs)
    opened = (service_for_partners(place, each, decorating) for each in _services(inputs) if not each.domain_only)
    diagnostic = [_diagnostic_host(inputs)] if inputs.diagnose is not None else []
    inboxes = [_functions_host(inputs, inputs.functions)] if inputs.functions is not None else []
    inboxes += [_evidence_host(inputs, inputs.evidence)] if inputs.evidence is not None else []
    inboxes += [_messages_host(inputs, inputs.transport)] if inputs.transport is not None else []
    inboxes += [_bfia_host(inputs, inputs.bfia)] if inputs.bfia is not None else []
    hosts = [
        *(crypt.for_partners(each, inputs) for each in (*diagnostic, *inboxes)),
        *(crypt.for_partners(each, inputs) for each in opened),
        *_carried(inputs, live),
        *transit.carrier_hosts(inputs, live),
        *transit.inner_hosts(inputs),
        polling.receiver_host(inputs),
        _closed(inputs),
    ]
    listed = [_handshake_host(inputs, outside=True), *(without_secrets(each) for each in hosts)]
    # A gateway or proxy in between has put its own name into the Host header; the true one travels beside it.
    return _table(inputs, EXTERNAL, listed) | {"vhost_header": HOST}


def internal_routes(inputs: SnapshotInputs, live: frozenset[str]) -> tuple[Json, list[SnapshotProblem]]:
    hosts = [_handshake_host(inputs, outside=False)]
    hosts += [_own_messages_host(inputs, live)] if inputs.transport is not None else []
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


# ---- inboxes of functions and of evidence ----


def _functions_host(inputs: SnapshotInputs, inbox: FunctionsInbox) -> Json:
    """For listed partners, which speak for themselves; the table of our own pods does not have it. No call is long: it is answered when it is on the
    bus. Who else asks learns as little as about any other name."""
    action = send_to(_FUNCTION_CALL_SECONDS, FUNCTIONS) | {"timeout": seconds(_FUNCTION_CALL_SECONDS)}
    paths = (FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH)
    return _inbox_host(inputs, FUNCTIONS_SERVICE, _inbox_routes(inbox.callers, paths, action))


def _evidence_host(inputs: SnapshotInputs, inbox: EvidenceInbox) -> Json:
    """As the inbox of functions, for partners' control planes."""
    action = send_to(_CHECKPOINT_SECONDS, EVIDENCE) | {"timeout": seconds(_CHECKPOINT_SECONDS)}
    return _inbox_host(inputs, EVIDENCE_SERVICE, _inbox_routes(inbox.callers, EVIDENCE_PATHS, action))


def _bfia_host(inputs: SnapshotInputs, inbox: BfiaInbox) -> Json:
    """As the inbox of functions, for partners whose Domain says that they speak BFIA."""
    return _inbox_host(inputs, SCHEDULER_SERVICE, _bfia_routes(inbox.callers))


def _bfia_routes(callers: Iterable[str]) -> list[Json]:
    action = send_to(_SCHEDULE_SECONDS, BFIA) | {"timeout": seconds(_SCHEDULE_SECONDS)}
    return _inbox_routes(callers, wire.POSTS, action, gets=wire.GETS)


def _inbox_routes(
    callers: Iterable[str],
    paths: Sequence[str],
    action: Json,
    *,
    gets: Sequence[str] = (),
    besides: Sequence[Json] = (),
) -> list[Json]:
    asked = [*((path, _POST) for path in paths), *((path, _GET) for path in gets)]
    return [
        {"match": {"path": path, "headers": [_is(SOURCE, each), _is(ORIGIN, each), method, *besides]}, "route": action}
        for each in sorted(callers)
        for path, method in asked
    ]


def _inbox_host(inputs: SnapshotInputs, service: str, routes: list[Json]) -> Json:
    return {
        "name": service,
        "domains": [f"{service}.{name}.svc" for name in inputs.names],
        "routes": [*routes, {"match": ALL, **NOT_OPENED}],
    }


def _is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}


_POST = _is(":method", "POST")
_GET = _is(":method", "GET")


# ---- the message queue ----


def _messages_host(inputs: SnapshotInputs, inbox: TransportInbox) -> Json:
    """For partners that speak for themselves. Taking messages is for our own engines."""
    return _inbox_host(inputs, TRANSPORT_SERVICE, _messages_routes(inbox.callers))


def _messages_routes(callers: Iterable[str], *besides: Json) -> list[Json]:
    paths = (_INVOKE_PATH, CHANNEL_PATH + "transport")
    return _inbox_routes(callers, paths, send_to(_TRANSPORT_SECONDS, TRANSPORT), besides=besides)


def _own_messages_host(inputs: SnapshotInputs, live: frozenset[str]) -> Json:
    """For engines; `pod_access` has seen to it that each names a session of its own task."""
    action = send_to(_TRANSPORT_SECONDS, TRANSPORT_ENGINES)
    ours = {"match": _push_to(inputs.domain), "route": action | {"prefix_rewrite": _INVOKE_PATH}}
    taken = ("pop", "peek", "release")
    nobody = "There is no route to the domain that x-ptp-target-node-id names."
    return {
        "name": TRANSPORT_SERVICE,
        "domains": [*transport_hosts(inputs.domain)],
        # Ours to say, whatever an engine wrote.
        "request_headers_to_add": [header(each, inputs.domain) for each in (PTP_SOURCE_NODE, PTP_SOURCE_INSTITUTION)],
        "routes": [
            *({"match": {"path": CHANNEL_PATH + each}, "route": action} for each in taken),
            *(_bridged({"match": {"path": CHANNEL_GRPC_PATH + each}, "route": action}) for each in taken),
            ours,
            _bridged(ours),
            *(made for route in inputs.outbound for made in _pushes(inputs, route, live)),
            *({"match": {"path": each}, **refusal(404, nobody)} for each in (_PUSH_PATH, _GRPC_PUSH_PATH)),
            {"match": ALL, **refusal(404, "There is push, pop, peek and release.")},
        ],
    }


def bridge_filter() -> Json:
    """Of the internal listener: off, except on the gRPC routes of the message queue. Takes the frames of gRPC off a request, which goes on as HTTP, and
    puts them on the answer, which the header makes known the size of."""
    bridge = {"@type": GRPC_BRIDGE, "content_type": "application/x-protobuf", "withhold_grpc_frames": True}
    return {"name": BRIDGE_FILTER, "typed_config": bridge | {"response_size_header": CHANNEL_SIZE}, "disabled": True}


def _bridged(made: Json) -> Json:
    """Envoy's route `made` for the same call in gRPC."""
    per_route: Json = {"@type": FILTER_CONFIG, "config": {"@type": GRPC_BRIDGE_PER_ROUTE}}
    filters = made.get("typed_per_filter_config", {}) | {BRIDGE_FILTER: per_route}
    path = made["match"]["path"]
    return made | {
        "match": made["match"] | {"path": _GRPC_PUSH_PATH if path == _PUSH_PATH else path},
        "typed_per_filter_config": filters,
        # The message has it; a header besides would mean the other form.
        "request_headers_to_remove": [*made.get("request_headers_to_remove", ()), PTP_TOPIC],
        # A partner's queue does not say it.
        "response_headers_to_add": [header(CHANNEL_SIZE, "%RESP(content-length)%")],
    }


def _push_to(domain: str, *more: Json) -> Json:
    return {"path": _PUSH_PATH, "headers": [_is(PTP_TARGET_NODE, domain), *more]}


def _pushes(inputs: SnapshotInputs, route: Route, live: frozenset[str]) -> list[Json]:
    """A push to this partner goes to its gateway as `invoke`, under our name."""
    target = route.destination
    why = _refused(inputs, route, live)
    leaving = sender(inputs, route) if not why else None
    if leaving is not None and (lacks_token(leaving) or crypt.lacks_key(route)):
        why = "no token has been agreed on yet"
    if leaving is None or why:
        refused = {"match": _push_to(target), **refusal(503, f"{about(route)}: {why}")}
        return [refused, refused | {"match": refused["match"] | {"path": _GRPC_PUSH_PATH}}]
    ports = live_ways(inputs, leaving, live)
    # The least that carries HTTP: a port for gRPC only where there is no other.
    ports = [port for port in ports if not port.grpc][:1] or ports[:1]
    host = f"{TRANSPORT_SERVICE}.{target}.svc"
    naming = [header(HOST, host), *credentials(leaving)]
    limited = sorted(task_bandwidth.outgoing(inputs, target).items())
    made: list[Json] = []
    for task, bandwidth in (*limited, ("", None)):
        session = [{"name": PTP_SESSION, "string_match": {"safe_regex": {"regex": sessions_of(task)}}}] if task else []
        for each in _forward(inputs, leaving, ports, bandwidth=bandwidth):
            action = {"host_rewrite_literal": host, **each["route"]}
            action["prefix_rewrite"] = action.get("prefix_rewrite", "").rstrip("/") + _INVOKE_PATH
            made.append(
                each
                | {
                    "match": _push_to(target, *session),
                    "route": action,
                    "request_headers_to_add": naming,
                    "request_headers_to_remove": list(TRACE_BAGGAGE),
                }
            )
            made.append(_bridged(made[-1]))
    return [crypt.encrypted(each, route, RouteSide.CALL) for each in made] if route.body_encryption else made


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
        if port is POLLED:
            route["request_headers_to_add"] = polling.path_header()
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
        "routes": [
            *_by_path(inputs),
            {"match": ALL, **NOT_OPENED},
            {"match": {"connect_matcher": {}}, "route": connect},
        ],
        "typed_per_filter_config": {ACCESS_FILTER: access_of_domains(())},
    }


def _by_path(inputs: SnapshotInputs) -> list[Json]:
    """A partner that is known by its certificate alone calls us by our address: BFIA has paths, and no names of services."""
    known = {route.source for route in inputs.inbound if route.by_certificate and not inputs.relayed(route)}
    made: list[Json] = []
    if inputs.bfia is not None:
        made += _bfia_routes(known & inputs.bfia.callers)
    if inputs.transport is not None:
        made += _messages_routes(known & inputs.transport.callers, _is(PTP_TARGET_NODE, inputs.domain))
    return [each | {"typed_per_filter_config": {ACCESS_FILTER: access_of_anyone()}} for each in made]


def _nowhere(inputs: SnapshotInputs) -> Json:
    message = cause(inputs, INTERNAL, 'Service "%REQ(:authority)%" not found.')
    return {
        "name": "nowhere",
        "domains": ["*"],
        "routes": [{"match": ALL, **refusal(404, "Service not found.")}],
        "response_headers_to_add": [header(ERROR, message)],
    }
