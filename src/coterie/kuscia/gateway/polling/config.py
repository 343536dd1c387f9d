"""What Envoy is told about tunnels in Kuscia's frames. Pure."""

from __future__ import annotations

from coterie.kuscia.gateway.clusters import cluster
from coterie.kuscia.gateway.egress import POLLED, outbound_name, polled
from coterie.kuscia.gateway.identity import access_of_anyone
from coterie.kuscia.gateway.model import SnapshotInputs
from coterie.kuscia.gateway.names import (
    ACCESS_FILTER,
    ORIGIN,
    POLLED_PATH,
    RECEIVER_SERVICE,
    SOURCE,
    Json,
    header,
)
from coterie.kuscia.gateway.service_hosts import ALL, refusal, send_to

_PARTNERS = "poll-receiver"
_CONNECT_SECONDS = 5.0
_STREAM_SECONDS = 400.0
"""Longer than a poll, and than a call waits for its answer: what ends them is behind the socket."""


def clusters(inputs: SnapshotInputs) -> list[Json]:
    if inputs.polling is None:
        return []
    routes = [route for route in inputs.outbound if polled(route)]
    found = [cluster(_PARTNERS, [inputs.polling.partners], _CONNECT_SECONDS, {})] if routes else []
    return found + [
        cluster(outbound_name(route, POLLED), [inputs.polling.calls], _CONNECT_SECONDS, {}) for route in routes
    ]


def receiver_host(inputs: SnapshotInputs) -> Json:
    """At the public port: polls and replies of partners that fetch their calls, and speak for themselves."""
    message = (
        "This gateway is no receiver to poll. To be called without a public port, dial it (see REVERSE-TUNNEL), or let the "
        "route to you ask for Kuscia's frames."
    )
    action = send_to(_STREAM_SECONDS, _PARTNERS)
    routes: list[Json] = [
        {
            "match": {"path": path, "headers": [_is(SOURCE, route.destination), _is(ORIGIN, route.destination)]},
            "route": action,
        }
        for route in inputs.outbound
        if inputs.polling is not None and polled(route)
        for path in ("/poll", "/reply")
    ]
    return {
        "name": RECEIVER_SERVICE,
        "domains": [f"{RECEIVER_SERVICE}.{name}.svc" for name in inputs.names],
        "routes": [*routes, {"match": ALL, **refusal(501, message)}],
        "typed_per_filter_config": {ACCESS_FILTER: access_of_anyone()},
    }


def path_header() -> list[Json]:
    """With a call that becomes a frame: its path as it was written, which a server hands out decoded."""
    return [header(POLLED_PATH, "%REQ(:path)%")]


def _is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}
