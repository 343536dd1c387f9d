"""Through a third domain that can neither read nor impersonate: alice -> joe -> bob. Pure.

    alice   cluster alice-to-bob-transit   TLS to bob as on any other route: bob pinned, our certificate shown
              └ listener transit-to-bob    that connection becomes one CONNECT to transit.bob ...
                  └ listener transit       ... which gets our name and joe's token and goes over the route to joe
    joe     virtual host transit.bob       for those who were granted it: a connection to bob's port, bytes passed on
    bob                                    alice's own certificate and token, as if she had dialled

The CONNECT takes the step over `transit` because a token rolls: there it lies in a route table, whereas in the listener
that makes the CONNECT a new token would cut all connections.

Where bob has no public port and dials joe, joe cannot dial him: the CONNECT goes down the tunnel, and bob leads it to
`door`, which is what his public port would be.

A chain is longer when joe's own route to bob goes through another domain: joe then passes the CONNECT on under his own
name, and that domain has to grant it to joe.

Whoever may be carried stands in `SnapshotInputs.transit`. `grants_of` reads it from the carrier's own route to the destination;
nobody else can write there, and without it nobody is carried.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DomainRoute
from coterie.kuscia.gateway import tls
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.clusters import cluster, hop_options, http2_options
from coterie.kuscia.gateway.egress import (
    TRANSIT,
    carrier,
    end_to_end,
    introduction,
    lacks_token,
    live_ways,
    outbound_name,
    polled,
)
from coterie.kuscia.gateway.identity import access_of_domains, pins
from coterie.kuscia.gateway.model import Route, RoutePort, SnapshotInputs, SnapshotProblem, TransitGrant
from coterie.kuscia.gateway.names import (
    ACCESS_FILTER,
    HCM,
    ORIGIN,
    ROUTER,
    TCP_PROXY,
    Json,
    file_source,
    header,
    seconds,
)

SIDE = "transit"
_INNER_LISTENER = "door"
_MATCH: Json = {"connect_matcher": {}}


def grants_of(route: DomainRoute) -> tuple[TransitGrant, ...]:
    """Whom the source of a route lets travel along, as its own copy of the route says."""
    own, destination = route.spec.source, route.spec.destination
    if not destination or route.metadata.namespace != own:
        return ()
    listed = (route.metadata.annotations or {}).get(labels.COTERIE_CARRY_FOR, "").split(",")
    return tuple(TransitGrant(name, destination) for name in sorted({each.strip() for each in listed} - {"", own}))


def host_of(domain: str) -> str:
    """What a CONNECT asks for. No service has such a name: theirs end in `.svc`."""
    return f"transit.{domain}"


def obstacle(inputs: SnapshotInputs, route: Route) -> str:
    """Why a connection of our own cannot be carried; empty when it can."""
    if not pins(route)[0]:
        return (
            f"it goes through {route.via}, and no certificate of {route.destination} is known"
            f" by which to tell it from {route.via}"
        )
    leaving = carrier(inputs, route)
    if leaving is not None and polled(leaving):
        return f"{leaving.destination} fetches calls in Kuscia's frames, which carry no connections of others"
    if leaving is not None and not leaving.tunnel and _opening(leaving.ports) is None and leaving.ports:
        return f"the way to {route.via} has a path prefix, which only requests can pass that go hop by hop"
    return ""


def _opening(ports: Iterable[RoutePort]) -> RoutePort | None:
    """The port for a CONNECT, which has no path that a prefix could stand before."""
    return min((port for port in ports if not port.path_prefix.strip("/")), key=lambda each: each.grpc, default=None)


# ---- the source ----


def carried_out(inputs: SnapshotInputs) -> list[Route]:
    asked = (each for each in inputs.outbound if end_to_end(inputs, each))
    return [each for each in asked if carrier(inputs, each) is not None and not obstacle(inputs, each)]


def source_clusters(inputs: SnapshotInputs) -> list[Json]:
    found = []
    for route in carried_out(inputs):
        socket, problem = tls.upstream(inputs, route, TRANSIT)
        if problem is None:
            inner = _through(_listener_name(route), outbound_name(route, TRANSIT), hop_options(inputs.tuning, TRANSIT))
            found.append(
                inner | {"connect_timeout": seconds(inputs.tuning.connect_seconds), "transport_socket": socket}
            )
    if found:
        options: Json = {"explicit_http_config": {"http2_protocol_options": http2_options(inputs.tuning)}}
        found.append(_through(SIDE, SIDE, options))
    return found


def _through(listener: str, name: str, options: Json) -> Json:
    """A cluster that leads back into this Envoy, without a socket."""
    made = cluster(name, (), 5.0, options)
    inside = {"endpoint": {"address": {"envoy_internal_address": {"server_listener_name": listener}}}}
    made["load_assignment"]["endpoints"] = [{"lb_endpoints": [inside]}]
    return made


def _listener_name(route: Route) -> str:
    return f"{SIDE}-to-{route.destination}"


def source_listeners(inputs: SnapshotInputs, route_file: object, access_log: list[Json]) -> list[Json]:
    found = [_entrance(route) for route in carried_out(inputs)]
    if found:
        manager: Json = {
            "@type": HCM,
            "stat_prefix": SIDE,
            "codec_type": "HTTP2",
            "rds": {"route_config_name": SIDE, "config_source": file_source(route_file)},
            "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER, "suppress_envoy_headers": True}}],
            "http2_protocol_options": http2_options(inputs.tuning),
            "upgrade_configs": [{"upgrade_type": "CONNECT"}],
            "generate_request_id": False,
            "stream_idle_timeout": seconds(inputs.tuning.idle_stream_seconds),
            "access_log": access_log,
        }
        found.append(_inside(SIDE, {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}))
    return found


def _entrance(route: Route) -> Json:
    proxy: Json = {
        "@type": TCP_PROXY,
        "stat_prefix": _listener_name(route),
        "cluster": SIDE,
        "tunneling_config": {"hostname": f"{host_of(route.destination)}:443"},
    }
    return _inside(_listener_name(route), {"name": "envoy.filters.network.tcp_proxy", "typed_config": proxy})


def _inside(name: str, network_filter: Json) -> Json:
    return {"name": name, "internal_listener": {}, "filter_chains": [{"filters": [network_filter]}]}


def source_hosts(inputs: SnapshotInputs, live: frozenset[str]) -> list[Json]:
    """The virtual hosts of `transit`."""
    found = []
    for route in carried_out(inputs):
        leaving = carrier(inputs, route)
        host = _onwards(inputs, route.destination, leaving, live) if leaving is not None else None
        if host is not None:
            found.append(host)
    return found


def _onwards(inputs: SnapshotInputs, destination: str, leaving: Route, live: frozenset[str]) -> Json | None:
    """A CONNECT to the destination goes to the next gateway, in our name."""
    port = _opening(live_ways(inputs, leaving, live))
    if port is None or lacks_token(leaving):
        return None
    return {
        "name": f"{SIDE}-connect-{destination}",
        "domains": [host_of(destination)],
        "routes": [{"match": _MATCH, "route": _connect(inputs, outbound_name(leaving, port))}],
        # Whom it is for stands inside, encrypted; to the next gateway it is ours.
        "request_headers_to_add": [*introduction(inputs, leaving), header(ORIGIN, inputs.domain)],
    }


def _connect(inputs: SnapshotInputs, target: str, config: Json | None = None) -> Json:
    upgrade: Json = {"upgrade_type": "CONNECT", "enabled": True}
    if config is not None:
        upgrade["connect_config"] = config
    return {
        "cluster": target,
        "timeout": "0s",
        "idle_timeout": seconds(inputs.tuning.idle_stream_seconds),
        "upgrade_configs": [upgrade],
    }


# ---- the carrier ----


def _granted(inputs: SnapshotInputs) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for grant in sorted(inputs.transit):
        found.setdefault(grant.destination, []).append(grant.source)
    return found


def carrier_problems(inputs: SnapshotInputs) -> list[SnapshotProblem]:
    reached = {each.destination for each in inputs.outbound}
    return [
        SnapshotProblem(
            f"transit {grant.source}-{grant.destination}", f"there is no route of ours to {grant.destination}"
        )
        for grant in inputs.transit
        if grant.destination not in reached
    ]


def _pipe_name(route: Route) -> str:
    return f"{route.source}-to-{route.destination}-carried"


def _pipe(inputs: SnapshotInputs, route: Route) -> RoutePort | None:
    """The port of a destination's gateway at which TLS begins, where we dial it ourselves."""
    if route.via or route.tunnel or not route.host:
        return None
    return _opening(port for port in route.ports if port.tls)


def carrier_clusters(inputs: SnapshotInputs) -> list[Json]:
    granted = _granted(inputs)
    return [
        cluster(_pipe_name(route), [SocketAddress(route.host, port.port)], inputs.tuning.connect_seconds, {})
        for route in inputs.outbound
        if route.destination in granted and (port := _pipe(inputs, route)) is not None
    ]


def carrier_hosts(inputs: SnapshotInputs, live: frozenset[str]) -> list[Json]:
    """At the public port: CONNECTs of those who may pass."""
    granted = _granted(inputs)
    found = []
    for route in inputs.outbound:
        sources = granted.get(route.destination)
        if not sources:
            continue
        host = _pass_on(inputs, route, live)
        if host is not None:
            found.append(host | {"typed_per_filter_config": {ACCESS_FILTER: access_of_domains(sources)}})
    return found


def _pass_on(inputs: SnapshotInputs, route: Route, live: frozenset[str]) -> Json | None:
    if _pipe(inputs, route) is not None:
        return {
            "name": f"{SIDE}-connect-{route.destination}",
            "domains": [host_of(route.destination)],
            "routes": [{"match": _MATCH, "route": _connect(inputs, _pipe_name(route), {})}],
        }
    leaving = carrier(inputs, route)
    if leaving is None or polled(leaving) or not (route.via or route.tunnel):
        return None
    return _onwards(inputs, route.destination, leaving, live)


# ---- a destination that its carrier cannot dial ----


def _tunnelled_carriers(inputs: SnapshotInputs) -> set[str]:
    dialled = {route.source for route in inputs.inbound if route.tunnel and not route.via and not polled(route)}
    return {route.via for route in inputs.inbound if end_to_end(inputs, route)} & dialled


def inner_clusters(inputs: SnapshotInputs) -> list[Json]:
    return [_through(_INNER_LISTENER, _INNER_LISTENER, {})] if _tunnelled_carriers(inputs) else []


def inner_listeners(inputs: SnapshotInputs, manager: Json) -> list[Json]:
    """`manager`: what a public port of ours would have behind its TLS."""
    if not _tunnelled_carriers(inputs):
        return []
    made = _inside(_INNER_LISTENER, {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager})
    made["filter_chains"][0]["transport_socket"] = tls.serving(inputs)
    return [made]


def inner_hosts(inputs: SnapshotInputs) -> list[Json]:
    carriers = _tunnelled_carriers(inputs)
    if not carriers:
        return []
    host: Json = {
        "name": f"{SIDE}-{_INNER_LISTENER}",
        "domains": [host_of(inputs.domain)],
        "routes": [{"match": _MATCH, "route": _connect(inputs, _INNER_LISTENER, {})}],
        "typed_per_filter_config": {ACCESS_FILTER: access_of_domains(carriers)},
    }
    return [host]
