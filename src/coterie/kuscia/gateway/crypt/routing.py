"""Which of Envoy's routes encrypt, and for whom. Pure."""

from __future__ import annotations

from coterie.kuscia.gateway.crypt.exchange import RouteEnd, RouteSide
from coterie.kuscia.gateway.crypt.keys import AES
from coterie.kuscia.gateway.identity import about
from coterie.kuscia.gateway.model import Route, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import (
    CRYPT_FILTER,
    EXT_PROC_PER_ROUTE,
    FILTER_CONFIG,
    HEADER_MUTATION_PER_ROUTE,
    LENGTH_FILTER,
    ORIGIN,
    Json,
)
from coterie.kuscia.gateway.service_hosts import refusal


def refused(inputs: SnapshotInputs, route: Route) -> str:
    """Why nothing may be sent on a route that asks for encryption; empty when it may, or does not ask."""
    if not route.body_encryption:
        return ""
    if route.body_encryption != AES:
        return (
            f"body encryption with {route.body_encryption} is not available, only with {AES}; nothing is sent in clear"
        )
    if inputs.crypt is None:
        return "body encryption is asked for and not available here; nothing is sent in clear"
    if len(route.revisions) != len(route.tokens):
        return "body encryption needs the revisions of the route's tokens; nothing is sent in clear"
    return ""


def problems(inputs: SnapshotInputs) -> list[SnapshotProblem]:
    """Of routes that lead to us; those that lead away tell their own."""
    return [SnapshotProblem(about(route), why) for route in inputs.inbound if (why := refused(inputs, route))]


def lacks_key(route: Route) -> bool:
    return bool(route.body_encryption) and not route.tokens


def encrypted(made: Json, route: Route, side: RouteSide) -> Json:
    """Envoy's route `made`, switched to encryption for `route`; its name tells the child which keys."""
    per_route: Json = {"@type": EXT_PROC_PER_ROUTE, "overrides": {}}
    length: Json = {"@type": HEADER_MUTATION_PER_ROUTE}
    filters = made.get("typed_per_filter_config", {}) | {
        CRYPT_FILTER: {"@type": FILTER_CONFIG, "config": per_route},
        LENGTH_FILTER: {"@type": FILTER_CONFIG, "config": length},
    }
    return {**made, "name": RouteEnd(side, route.source, route.destination).name, "typed_per_filter_config": filters}


def for_partners(host: Json, inputs: SnapshotInputs) -> Json:
    """A service's virtual host for partners: whoever must encrypt gets routes of its own before all others.

    Matched by the origin, which `auth` has verified: a domain in between encrypts nothing and can read nothing. On a
    route whose encryption is not possible here nothing is let in either.
    """
    asking = [route for route in inputs.inbound if route.body_encryption]
    if not asking:
        return host
    first = []
    for route in asking:
        why = refused(inputs, route)
        for each in host["routes"]:
            match = {**each["match"], "headers": [*each["match"].get("headers", ()), _is(ORIGIN, route.source)]}
            # The name of the route is the only thing that Envoy tells the child about it.
            made = {**each, "match": match} if not why else {"match": match, **refusal(503, f"{about(route)}: {why}")}
            first.append(made if why or "direct_response" in made else encrypted(made, route, RouteSide.SERVE))
    return {**host, "routes": [*first, *host["routes"]]}


def _is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}
