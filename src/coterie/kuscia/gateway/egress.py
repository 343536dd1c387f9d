"""How a route's traffic leaves us: over which of our clusters, and under whose name. Pure.

direct       alice-to-bob-<port>      bob's gateway is dialled
tunnel       alice-to-bob-tunnel      bob dialled us (`tunnel.py`)
polled       alice-to-bob-polled      bob fetches calls in Kuscia's frames (`polling/`)
end to end   alice-to-bob-transit     a connection of our own to bob, inside one to the carrier (`transit.py`)
relayed      as the carrier's route   the carrier reads it and sends it on in our name
"""

from __future__ import annotations

from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, KUSCIA_PROTOCOL
from coterie.kuscia.gateway.model import NOOP_TOKEN, Authentication, Route, RoutePort, SnapshotInputs
from coterie.kuscia.gateway.names import HOST, PROTOCOL, SOURCE, TOKEN, Json, header, literal

TUNNEL = RoutePort("tunnel", 0, tls=True)
TRANSIT = RoutePort("transit", 0, tls=True)
POLLED = RoutePort("polled", 0)


def outbound_name(route: Route, port: RoutePort) -> str:
    return f"{route.source}-to-{route.destination}-{port.name}"


def polled(route: Route) -> bool:
    """A tunnel in Kuscia's frames."""
    return route.tunnel and not route.via and KusciaWireForm.REVERSE_TUNNEL in route.kuscia_wire


def end_to_end(inputs: SnapshotInputs, route: Route) -> bool:
    return bool(route.via) and not inputs.relayed(route)


def carrier(inputs: SnapshotInputs, route: Route) -> Route | None:
    """The route that carries this one; itself when nobody has to."""
    if not route.via:
        return route
    found = next((each for each in inputs.outbound if each.destination == route.via), None)
    return found if found is not None and not found.via else None


def sender(inputs: SnapshotInputs, route: Route) -> Route | None:
    """The route whose clusters and tokens this one's requests use."""
    return route if end_to_end(inputs, route) else carrier(inputs, route)


def ways(inputs: SnapshotInputs, route: Route) -> tuple[RoutePort, ...]:
    if end_to_end(inputs, route):
        return (TRANSIT,)
    if route.tunnel:
        return (POLLED,) if polled(route) else (TUNNEL,)
    return route.ports if route.host else ()


def live_ways(inputs: SnapshotInputs, route: Route, live: frozenset[str]) -> list[RoutePort]:
    return [port for port in ways(inputs, route) if outbound_name(route, port) in live]


def lacks_token(route: Route) -> bool:
    return route.authentication is Authentication.TOKEN and not route.tokens


def introduction(inputs: SnapshotInputs, route: Route) -> list[Json]:
    """Headers that say who we are, as the next gateway reads them."""
    return [*own_name(inputs), *credentials(route)]


def own_name(inputs: SnapshotInputs) -> list[Json]:
    return [header(SOURCE, inputs.domain), header(HOST, f"%REQ({HOST}?:authority)%")]


def credentials(route: Route) -> list[Json]:
    """What the next gateway wants besides our name."""
    token = NOOP_TOKEN
    if route.authentication is Authentication.TOKEN:
        token = route.tokens[-1].reveal() if route.tokens else ""
    spoken = header(PROTOCOL, BFIA_PROTOCOL if route.bfia else KUSCIA_PROTOCOL)
    return [spoken, header(TOKEN, literal(token))] if token else [spoken]
