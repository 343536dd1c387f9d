"""A domain without a public port: it dials its partner's, and the partner's calls come back along that connection. Pure.

    route alice -> bob, bob cannot be dialled

    alice   public port, SNI tunnel.alice.svc   who may open a tunnel is known by its pinned certificate; what the tunnel
                                                is called must be that certificate's fingerprint
            cluster alice-to-bob-tunnel         the connections that came from bob's certificate, and TLS to bob inside
    bob     cluster tunnel-to-alice             dials alice's port, by the address of bob's own route to her
            listener tunnel-to-alice            what comes along: the same door as a public port's, TLS, token and all

Envoy gives up the TLS of the dialling after a handshake, and goes on in clear text: the TLS inside is what protects the
calls. The name is a fingerprint because a name that a partner chooses would let it register as another.

Only HTTP/2 is spoken inside, whatever the calls themselves speak.

Where alice has several gateways, a tunnel ends at one of them: `peer_gateways.py`.

Kuscia's gateways do not dial such tunnels, they ask for calls by polling `receiver.<domain>.svc`: `polling/`, for routes that
ask for it.
"""

from __future__ import annotations

from coterie.kuscia.gateway import tls
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.clusters import cluster, http2_options
from coterie.kuscia.gateway.egress import TUNNEL, outbound_name, polled
from coterie.kuscia.gateway.identity import about, pins
from coterie.kuscia.gateway.model import Route, RoutePort, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import (
    COMPOSITE_CLUSTER,
    HTTP_OPTIONS,
    REVERSE_CLUSTER,
    REVERSE_TUNNEL,
    Json,
    T,
    seconds,
)

_FINGERPRINT = "%DOWNSTREAM_PEER_FINGERPRINT_256%"


def server_name(domain: str) -> str:
    """What a dialler asks for in its TLS greeting."""
    return f"tunnel.{domain}.svc"


# ---- the public side ----


def reverse_tunnel_filter_chain(inputs: SnapshotInputs) -> Json | None:
    """The filter chain at the public port, the same whether there are tunnels or not."""
    if inputs.identity is None:
        return None
    config: Json = {
        "@type": REVERSE_TUNNEL,
        "ping_interval": f"{inputs.tuning.tunnel_check_seconds}s",
        # Both: a call is led to a connection by either of the two names.
        "validation": {"node_id_format": _FINGERPRINT, "cluster_id_format": _FINGERPRINT},
    }
    return {
        "filter_chain_match": {"server_names": [server_name(inputs.domain)]},
        "filters": [{"name": "envoy.filters.network.reverse_tunnel", "typed_config": config}],
        "transport_socket": tls.tunnel_downstream(inputs),
        "transport_socket_connect_timeout": "15s",
    }


def obstacle(inputs: SnapshotInputs, route: Route) -> str:
    """Why no tunnel of the destination's can end here; empty when one can."""
    if polled(route):
        return "" if inputs.polling is not None else "Kuscia's tunnels are not available here"
    if inputs.external is None:
        return f"{route.destination} is to open a tunnel to us, and we have no public port either"
    if inputs.identity is None:
        return "a reverse tunnel needs the domain's certificate and key"
    if not pins(route)[0]:
        return f"a reverse tunnel, and no certificate of {route.destination} is known by which to know whose it is"
    return ""


def accepting_clusters(inputs: SnapshotInputs) -> list[Json]:
    found = []
    for route in inputs.outbound:
        if route.tunnel and not route.via and not polled(route) and not obstacle(inputs, route):
            socket, problem = tls.upstream(inputs, route, TUNNEL)
            if problem is None:
                found += _reverse(inputs, route, socket)
    return found


def cluster_names(route: Route) -> dict[str, str]:
    """The clusters that carry a tunnel's calls, by the partner's certificate."""
    name, known = outbound_name(route, TUNNEL), pins(route)[0]
    return {pin: name if len(known) == 1 else f"{name}-{pin[:16]}" for pin in known}


def _reverse(inputs: SnapshotInputs, route: Route, socket: Json | None) -> list[Json]:
    """One for each certificate of the partner's; while it changes from one to the other they are tried in turn."""
    name, names = outbound_name(route, TUNNEL), cluster_names(route)
    options: Json = {"explicit_http_config": {"http2_protocol_options": http2_options(inputs.tuning)}}
    protocol = {HTTP_OPTIONS: {"@type": T + HTTP_OPTIONS, **options}}
    found = []
    for pin, each in names.items():
        kind: Json = {"@type": REVERSE_CLUSTER, "cleanup_interval": "60s", "host_id_format": pin}
        made = _provided(inputs, each, "envoy.clusters.reverse_connection", kind)
        found.append(made | {"typed_extension_protocol_options": protocol, "transport_socket": socket})
    if len(names) > 1:
        # Where no tunnel is, connecting fails at once, which every route answers by trying again: here, the next one.
        kind = {"@type": COMPOSITE_CLUSTER, "clusters": [{"name": each} for each in names.values()]}
        found.append(_provided(inputs, name, "envoy.clusters.composite", kind))
    return found


def _provided(inputs: SnapshotInputs, name: str, kind: str, config: Json) -> Json:
    """A cluster of a kind that finds its endpoints by itself."""
    made = cluster(name, (), inputs.tuning.connect_seconds, {})
    del made["load_assignment"]
    return made | {"lb_policy": "CLUSTER_PROVIDED", "cluster_type": {"name": kind, "typed_config": config}}


# ---- the side that dials ----


def _dialled(inputs: SnapshotInputs, route: Route) -> tuple[Route, RoutePort] | str:
    """Our route to the partner and its port, or why it cannot be dialled."""
    back = next((each for each in inputs.outbound if each.destination == route.source), None)
    if back is None or back.via or back.tunnel or not back.host:
        return f"a tunnel is to be opened to {route.source}, and there is no direct route to it"
    if inputs.identity is None or not inputs.fingerprint:
        return "a reverse tunnel needs the domain's certificate, its key and its fingerprint"
    port = min(
        (port for port in back.ports if not port.path_prefix.strip("/")), key=lambda each: each.grpc, default=None
    )
    if port is None:
        return f"a tunnel cannot pass the path prefix on the way to {route.source}"
    problem = tls.upstream(inputs, back, _secured(port))[1]
    return problem.message if problem is not None else (back, port)


def _secured(port: RoutePort) -> RoutePort:
    """A tunnel is dialled by TLS even where the port speaks plain text otherwise."""
    return RoutePort(port.name, port.port, tls=True)


def dialling(inputs: SnapshotInputs) -> tuple[list[tuple[Route, Route, RoutePort]], list[SnapshotProblem]]:
    """The tunnels we open: the route whose calls come along, and the way to the partner."""
    found, problems = [], []
    for route in inputs.inbound:
        if not route.tunnel or route.via or polled(route):
            continue
        way = _dialled(inputs, route)
        if isinstance(way, str):
            problems.append(SnapshotProblem(about(route), way))
        else:
            found.append((route, *way))
    return found, problems


def _name(route: Route) -> str:
    return f"tunnel-to-{route.source}"


def dialling_clusters(inputs: SnapshotInputs) -> list[Json]:
    found = []
    for route, back, port in dialling(inputs)[0]:
        made = cluster(_name(route), [SocketAddress(back.host, port.port)], inputs.tuning.connect_seconds, {})
        found.append(made | {"transport_socket": tls.tunnel_upstream(inputs, back, server_name(route.source))})
    return found


def dialling_listeners(inputs: SnapshotInputs, manager: Json) -> list[Json]:
    """`manager`: what a public port of ours would have behind its TLS."""
    return [_listener(inputs, route, manager) for route, _, _ in dialling(inputs)[0]]


def _listener(inputs: SnapshotInputs, route: Route, manager: Json) -> Json:
    own, count = inputs.fingerprint, inputs.tuning.tunnel_connections
    where = f"rc://{own}:{own}:coterie@{_name(route)}:{count}"
    return {
        "name": _name(route),
        "address": {
            "socket_address": {
                "address": where, "port_value": 0, "resolver_name": "envoy.resolvers.reverse_connection",
            }
        },
        "listener_filters_timeout": "0s",
        "filter_chains": [
            {
                "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
                "transport_socket": tls.serving(inputs),
                # The partner begins when it has something to say, and not when the connection is there.
                "transport_socket_connect_timeout": seconds(0),
            }
        ],
    }  # fmt: skip
